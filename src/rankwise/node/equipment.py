"""What a machine that is elsewhere has, and how the runtime of an attempt is made ready there."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from .files import Locked, discard, end_of_log, read_json, shell_quote, to_json, write_file
from .machine import total_memory, usable_cores
from .order import Placement

ENGINES = ("docker", "podman", "apptainer")
# Folders that other programs share: they are found through PATH, in the user's order.
_SHARED = ("/bin", "/usr/bin", "/usr/local/bin")
_SHOWN_LINES = 20
_MAKE_SECONDS = 3600
_ASK_SECONDS = 60


class CannotEquip(Exception):
    """The runtime cannot be made here; the message says why."""


def inventory() -> dict[str, Any]:
    """Return what there is; never raises."""
    return {
        "python": sys.executable,
        "version": ".".join(map(str, sys.version_info[:3])),
        "host": os.uname().nodename,
        "platform": f"{platform.system()}-{platform.machine()}",
        "cores": usable_cores(),
        "memory": total_memory(),
        "gpus": gpus(),
        "uid": os.getuid(),
        "gid": os.getgid(),
        "uv": find_uv(""),
        "engines": {name: path for name in ENGINES if (path := shutil.which(name))},
    }


def gpus() -> list[str]:
    """Return the numbers of the GPUs, as CUDA_VISIBLE_DEVICES has them."""
    said = ask(["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"], 30) or ""
    return [line.strip() for line in said.splitlines() if line.strip().isdecimal()]


def ask(command: Sequence[str], seconds: float = _ASK_SECONDS) -> str | None:
    """Return what a command prints; None: it cannot be run, or it fails."""
    try:
        done = run(command, seconds, cwd="/")
    except (OSError, subprocess.SubprocessError):
        return None
    return None if done.returncode else done.stdout


def run(
    command: Sequence[str], seconds: float | None, **more: Any
) -> subprocess.CompletedProcess[str]:
    """Run a command without our input, which is the runner's, and keep what it says."""
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    more = {**streams, "text": True, "errors": "replace", **more}
    return subprocess.run(command, timeout=seconds, check=False, **more)


def quoted(text: str, most: int = _SHOWN_LINES) -> str:
    """Return the last lines of what a command said, to stand below a message."""
    lines = [line for line in text.splitlines() if line.strip()][-most:]
    return "".join(f"\n    {line}" for line in lines)


def find_uv(root: str) -> str:
    """Find uv: on PATH, where its installer puts it, or sent along; empty: there is none."""
    home = os.path.expanduser("~")
    places = [f"{home}/.local/bin/uv", f"{home}/.cargo/bin/uv", f"{root}/bin/uv"]
    return shutil.which("uv") or next(filter(exists, places if root else places[:2]), "")


def equip(folder: str, root: str) -> None:
    """Make the runtimes ready that `runtime.json` names, and write how they are used."""
    choice = read_json(f"{folder}/runtime.json")
    if code := choice.get("repository"):
        clone_code(code, f"{root}/repositories")
    if own := choice.get("processes"):
        processes = {}
        for name, one in own.items():
            made = ready(one, root)
            more = {"path": [*made.path, *made.path_behind], "unset": made.unset}
            processes[name] = made.environment, more
        there = Placement(processes=processes)
    else:
        there = ready(choice, root)
    there.write(folder)


def ready(choice: dict[str, Any], root: str) -> Placement:
    """Make one runtime ready, and return how it is used."""
    kind = choice["kind"]
    if kind == "container":
        engine, image = choice["engine"], choice["image"]
        # Apptainer gets an image at its first use.
        is_there = os.path.basename(engine) == "apptainer"
        if not is_there and ask([engine, "image", "inspect", image]) is None:
            call(choice, [engine, "pull", image])
        return Placement()
    executable, there = "", Placement()
    if kind == "uv":
        executable = f"{environment_for(choice, root)}/bin/python"
    elif kind != "modules":  # which the command itself loads
        executable = interpreter(choice) if kind == "python" else choice["host_python"]
    if executable:
        there = placement_for(executable, root, is_first=not choice["has_path"])
    if choice.get("tools"):
        tools = tools_for(choice, executable, root)
        there = there.replace(path_behind=[*there.path_behind, tools])
    return there


def clone_code(code: dict[str, str], store: str) -> None:
    """Clone the repository that a task works in; CannotEquip: that cannot be done here."""
    from .repository import GitFailure, clone

    # The runner reads them after us, from the beginning.
    secrets = json.loads(os.pread(0, 1 << 24, 0) or "{}")
    try:
        clone(store, code["url"], {**os.environ, **secrets}, code["commit"], code["into"])
    except (GitFailure, OSError) as failure:
        why = f"{code['url']} could not be cloned on {os.uname().nodename}: {failure}"
        raise CannotEquip(why) from failure


def tools_for(choice: dict[str, Any], executable: str, root: str) -> str:
    """Return a folder with a Python that has the packages a command needs, under its own name."""
    tools = choice["tools"]
    if not (executable and has_packages(executable, tools)):
        own = {"name": " ".join(tools), "python": "", "requirements": tools, "lock_digest": ""}
        own |= {"host_python": choice["host_python"], "locked": None}
        executable = f"{environment_for(own, root)}/bin/python"
    return stand_ins(executable, root, choice["tools_python"])


def has_packages(executable: str, names: Sequence[str]) -> bool:
    """Return whether an interpreter has packages."""
    line = "import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, sys.argv[1:])))"
    return ask([executable, "-c", line, *names]) is not None


def interpreter(choice: dict[str, Any]) -> str:
    path = str(choice["python"])
    inside = [f"{path}/bin/python", f"{path}/bin/python3"]
    for one in inside if os.path.isdir(path) else [path]:
        if exists(one):
            return one
    raise CannotEquip(
        f'runtime "{choice["name"]}": {path} is no Python on {os.uname().nodename}; '
        f"`python` of its table in rankwise.toml must name one that the machine has"
    )


def exists(path: str) -> bool:
    return os.access(path, os.X_OK)


def placement_for(executable: str, root: str, *, is_first: bool) -> Placement:
    """Have the processes of an order find this interpreter as `python`."""
    place = os.path.dirname(executable)
    own = stand_ins(executable, root, "python", "python3")
    path = [own, *([] if place in _SHARED else [place])]
    prefix = os.path.dirname(place)
    is_environment = os.path.exists(f"{prefix}/pyvenv.cfg")
    return Placement(
        environment={"VIRTUAL_ENV": prefix} if is_environment else {},
        unset=["PYTHONHOME"] if is_environment else ["VIRTUAL_ENV", "PYTHONHOME"],
        path=path if is_first else (),
        path_behind=() if is_first else path,
    )


def stand_ins(executable: str, root: str, *names: str) -> str:
    """Return a folder with scripts of these names that call an interpreter.

    They are no links: through a link in another folder, it would not find its virtual environment.
    """
    words = os.fsencode("\0".join([executable, *names]))
    folder = f"{root}/pythons/{hashlib.sha256(words).hexdigest()[:16]}"
    script = os.fsencode(f'#!/bin/sh\nexec {shell_quote(executable)} "$@"\n')
    for name in names:
        # A full disk, or a user, may have left another file of that name.
        if not exists(f"{folder}/{name}") or end_of_log(f"{folder}/{name}") != script:
            write_file(f"{folder}/{name}", script, 0o755)
    return folder


def environment_for(choice: dict[str, Any], root: str) -> str:
    """Make an environment from requirements, or take the one that was made from the same words."""
    # The number changes when environments are made in another way.
    words = [2, platform.python_version() if not choice["python"] else "", choice["python"]]
    words += [sorted(choice["requirements"]), choice["host_python"], choice["lock_digest"]]
    folder = f"{root}/runtimes/{hashlib.sha256(json.dumps(words).encode()).hexdigest()[:16]}"
    content = f"{folder}/content"
    os.makedirs(folder, exist_ok=True)
    with Locked(f"{folder}/lock"):
        if not (os.path.exists(f"{folder}/complete") and exists(f"{content}/bin/python")):
            # In this order: what is half removed must not look complete.
            for path in (f"{folder}/complete", content):
                discard(path)
            uv = find_uv(root)
            make_environment(
                content,
                _listed_files(choice, folder),
                uv=[uv] if uv else [],
                python=choice["python"] or choice["host_python"],
                base=partial(venv_python, choice),
                call=partial(call, choice),
            )
            write_file(f"{folder}/complete", to_json(choice))
    return content


def make_environment(
    content: str,
    files: Iterable[str],
    *,
    uv: Sequence[str],
    python: str,
    base: Callable[[], str],
    call: Callable[[Sequence[str]], None],
) -> None:
    """Make a virtual environment, and install what files list: the client's way and the nodes'.

    `uv` gets any Python; without it, `base` names the interpreter. `call` runs each command.
    """
    inside = f"{content}/bin/python"
    if uv:
        command = [*uv, "--color", "never", "--quiet"]
        call([*command, "venv", "--python", python, content])
        # Bytecode at once: later, all ranks would make it at the same time.
        install = [*command, "pip", "install", "--python", inside, "--compile-bytecode"]
    else:
        call([base(), "-m", "venv", content])
        install = [inside, "-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet"]
        install.append("install")
    # One by one: a lock with hashes allows nothing that has none.
    for file in files:
        call([*install, "-r", file])


def _listed_files(choice: dict[str, Any], folder: str) -> Iterator[str]:
    """Write what is to be installed."""
    if choice["locked"]:
        name, text = choice["locked"]
        # Its name tells what kind it is, and may be that of any file of ours.
        lock = f"{folder}/locked/{os.path.basename(name)}"
        write_file(lock, text)
        yield lock
    if choice["requirements"]:
        listed = f"{folder}/requirements.txt"
        # A file and not arguments: arguments are seen by all users of the machine.
        write_file(listed, "".join(f"{one}\n" for one in choice["requirements"]))
        yield listed


def tool_of(command: Sequence[str]) -> str:
    """Return the program that a command runs, or the module: `uv`, `venv`, `pip`."""
    return command[2] if command[1:2] == ["-m"] else os.path.basename(command[0])


def venv_python(choice: dict[str, Any]) -> str:
    wanted = choice["python"]
    if not wanted:
        return str(choice["host_python"])
    if found := shutil.which(f"python{wanted}"):
        return found
    raise CannotEquip(
        f'runtime "{choice["name"]}" wants Python {wanted}, which {os.uname().nodename} has not; '
        f"install uv there, which gets it"
    )


def call(choice: dict[str, Any], command: Sequence[str]) -> None:
    """Run a command that makes something; CannotEquip with its last words if it fails."""
    try:
        done = run(command, _MAKE_SECONDS, cwd="/", stderr=subprocess.STDOUT)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotEquip(f'runtime "{choice["name"]}": {command[0]}: {error}') from error
    if done.returncode:
        raise CannotEquip(
            f'the runtime "{choice["name"]}" could not be made on {os.uname().nodename}: '
            f"{tool_of(command)} ended with exit code {done.returncode}:{quoted(done.stdout)}"
        )
