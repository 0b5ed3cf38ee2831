"""A container image: each process in a container of its own, which sees this machine's network."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from rankwise.errors import ComputeFailure
from rankwise.node.equipment import ENGINES, quoted, run
from rankwise.plan import RuntimeChoice, fill_in, later
from rankwise.runtimes.base import Command, PreparedRuntime, Say

_ALWAYS_PASSED = ("RANKWISE_ATTEMPT",)
"""By this one, whatever an attempt has left behind is found, in containers too."""
_ANSWER_SECONDS = 60
_PULL_SECONDS = 3600
_SHOWN_LINES = 10
_AS_ALL = ("run", "--rm", "--init", "--network", "host")
_SHARED_MEMORY = ("--ipc", "host")
# Podman mounts this for `--ipc host`, and as a user it cannot make it.
_QUEUES = Path("/dev/mqueue")
_ENGINES_FAULT, _CANNOT_START = 125, 126
_OWN = later("own")
_REMEDIES = {
    "container-init": "install catatonit, by which it ends what is left in a container",
    "rlimit": "set `default_ulimits` in containers.conf to no more than `ulimit -H -n`",
    "systemd": 'set `cgroup_manager = "cgroupfs"` in containers.conf',
    "default OCI runtime": "install runc or crun, and name it as `runtime` in containers.conf",
    "subuid": "have /etc/subuid and /etc/subgid name ranges for you (`usermod --add-subuids`)",
}
"""What engines say when they cannot start anything, and what helps; the first that fits counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """Turns commands into ones that run in a container."""

    engine: str
    executable: str
    image: str
    uid: int = field(default_factory=os.getuid)
    """Whose the processes in it are; another machine has users of its own."""
    gid: int = field(default_factory=os.getgid)
    shared_memory: tuple[str, ...] = _SHARED_MEMORY
    """Options by which its processes share memory with those of other containers."""

    def __call__(
        self,
        command: Command,
        *,
        name: str,
        folder: str,
        mounts: Sequence[str] = (),
        aliases: Mapping[str, str] | None = None,
        names: Iterable[str] = (),
        gpus: int = 0,
    ) -> tuple[str, ...]:
        """Return the engine's command line; values of variables never stand in it."""
        line = ("/bin/sh", "-c", command) if isinstance(command, str) else command
        inner = ("/bin/sh", "-c", _script(), "rankwise", f"{_OWN}/__main__.py", name, *line)
        seen = tuple(dict.fromkeys((folder, *mounts)))
        # Here and not in the plan: which engine it is becomes known only on the machine.
        self._check(seen)
        pairs = [*((path, path) for path in seen), *(aliases or {}).items(), (_OWN, f"{_OWN}:ro")]
        volumes = [f"{source}:{place}" for source, place in pairs]
        if self.engine == "apptainer":
            return self._apptainer(inner, folder, volumes, gpus)
        passed = sorted({*names, *_ALWAYS_PASSED})
        return (
            *(self.executable, *_AS_ALL),
            *self.shared_memory,
            *self._user(),
            *self._gpus(gpus),
            *(part for volume in volumes for part in ("--volume", volume)),
            *("--workdir", folder),
            *(part for name in passed for part in ("--env", name)),
            # Without an entry in the image's list of users, the home would be /.
            *(() if "HOME" in passed else ("--env", "HOME=/tmp")),
            # An image's own entry point might do anything with the command.
            *("--entrypoint", inner[0], self.image, *inner[1:]),
        )

    def trial(self) -> tuple[str, ...]:
        """Return a command line that starts a container, which has nothing to do."""
        inner = ("--entrypoint", "/bin/sh", self.image, "-c", ":")
        return (self.executable, *_AS_ALL, *self.shared_memory, *self._user(), *inner)

    def _check(self, folders: Iterable[str]) -> None:
        letters = ":," if self.engine == "apptainer" else ":"
        for path in folders:
            # A mark for a value that is known later has colons of its own.
            if unfit := [letter for letter in letters if letter in fill_in(path, lambda _: "")]:
                raise ComputeFailure(
                    f'{path} cannot be seen in a container of {self.engine}, for its name has "'
                    f'{unfit[0]}"; rename the folder'
                )

    def _user(self) -> tuple[str, ...]:
        # Rootless podman maps our user to root in the container, unless it is told otherwise.
        if self.engine == "podman" and self.uid != 0:
            return ("--userns", "keep-id")
        return ("--user", f"{self.uid}:{self.gid}")

    def _gpus(self, gpus: int) -> tuple[str, ...]:
        if not gpus:
            return ()
        return ("--gpus", "all") if self.engine == "docker" else ("--device", "nvidia.com/gpu=all")

    def _apptainer(
        self, inner: Sequence[str], folder: str, volumes: Sequence[str], gpus: int
    ) -> tuple[str, ...]:
        """Network, user and variables are the machine's anyway."""
        return (
            *(self.executable, "exec"),
            *(("--nv",) if gpus else ()),
            *(part for volume in volumes for part in ("--bind", volume)),
            *("--pwd", folder, _source(self.image), *inner),
        )


@cache
def _script() -> str:
    return Path(__file__).with_name("container.sh").read_text(encoding="utf-8")


def _source(image: str) -> str:
    """Name an image as apptainer does: a file, or where it comes from."""
    is_named = "://" in image or image.startswith("/") or image.endswith(".sif")
    return image if is_named else f"docker://{image}"


def prepare(choice: RuntimeChoice, say: Say) -> PreparedRuntime:
    """Find an engine that works, and have it get the image."""
    container = _working_engine(choice)
    if choice.build:
        from rankwise.runtimes.images import build  # Most images are not built here.

        build(choice, container.executable, say)
    if container.engine != "apptainer":  # which gets it at its first use
        _get_image(choice, container, say)
        _try(choice, container)
    return PreparedRuntime(wrap=container, is_container=True)


def _working_engine(choice: RuntimeChoice) -> Container:
    troubles = []
    # Apptainer builds nothing from a Dockerfile.
    engines = [one for one in ENGINES if not choice.build or one != "apptainer"]
    for engine in (choice.engine,) if choice.engine else engines:
        executable = shutil.which(engine)
        if executable is None:
            troubles.append(f"{engine} is not on PATH")
        elif trouble := _trouble(engine, executable):
            troubles.append(trouble)
        else:
            return Container(
                engine=engine,
                executable=executable,
                image=choice.image,
                shared_memory=shared_memory(engine, os.getuid()),
            )
    raise ComputeFailure(
        f'runtime "{choice.name}" is the container image {choice.image}, and no engine can run it: '
        f"{'; '.join(troubles)}. Start or install one, or map the name to something else in "
        f"rankwise.toml"
    )


def shared_memory(engine: str, uid: int) -> tuple[str, ...]:
    """Return the options by which containers of an engine share memory on this machine."""
    is_lacking = engine == "podman" and uid and not _QUEUES.exists()
    return ("--volume", "/dev/shm:/dev/shm") if is_lacking else _SHARED_MEMORY


def _trouble(engine: str, executable: str) -> str | None:
    """Say why an engine cannot be used, or None if it can."""
    question = "--version" if engine == "apptainer" else "info"
    said = _ask([executable, question], _ANSWER_SECONDS)
    if said is None:
        return None
    reason = _with_remedy(said.text)
    is_asleep = "daemon" in reason.lower()
    state = f"{engine} is there, but its daemon is not running: " if is_asleep else ""
    return f"{state}`{engine} {question}` says: {reason}"


def _get_image(choice: RuntimeChoice, container: Container, say: Say) -> None:
    executable, image = container.executable, container.image
    # A registry that cannot be reached does no harm where the image is there.
    if _ask([executable, "image", "inspect", image], _ANSWER_SECONDS) is None:
        return
    say(f'getting the image of runtime "{choice.name}": {image}')
    said = _ask([executable, "pull", image], _PULL_SECONDS)
    if said is not None:
        raise ComputeFailure(
            f'runtime "{choice.name}": {container.engine} cannot get the image {image}:'
            f"{quoted(said.text, _SHOWN_LINES)}\n"
            f"correct `image` of its table in rankwise.toml, or log in to its registry"
        )


def _try(choice: RuntimeChoice, container: Container) -> None:
    """Start a container once: many an engine that answers cannot."""
    said = _ask(container.trial(), _ANSWER_SECONDS)
    # Other exit codes are those of what is in the image, which may have no shell.
    if said is not None and said.exit_code in (None, _ENGINES_FAULT, _CANNOT_START):
        raise ComputeFailure(
            f'runtime "{choice.name}": {container.engine} cannot start a container of '
            f"{choice.image}: {_with_remedy(said.text)}"
        )


def _with_remedy(text: str) -> str:
    """Quote the last line of an engine, which says why, and what helps, if that is known."""
    reason = text.splitlines()[-1]
    helps = next((remedy for word, remedy in _REMEDIES.items() if word in reason), None)
    return f"{reason}; {helps}" if helps else reason


@dataclass(frozen=True, slots=True)
class _Said:
    """What an engine says that does not do what it is asked."""

    text: str
    exit_code: int | None = None


def _ask(command: Sequence[str], seconds: float) -> _Said | None:
    """Run a command; None if it succeeds, else what it says."""
    try:
        done = run(command, seconds)
    except OSError as error:
        return _Said(f"{command[0]} does not start: {error.strerror}")
    except subprocess.TimeoutExpired:
        return _Said(f"no answer in {seconds:.0f} s")
    if done.returncode == 0:
        return None
    text = done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}"
    return _Said(text, done.returncode)
