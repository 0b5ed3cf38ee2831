"""Daemons of a batch system on this machine, in a folder and on ports of its own.

Everything that is started here ends with this process, whatever happens to it.

Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from children import end_with_parent

START_SECONDS = 60.0
_PLACE = "/var/tmp"


@dataclass(slots=True, kw_only=True)
class Daemons:
    """Daemons that are known by one variable of their environment."""

    folder: Path
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def variables(self) -> dict[str, str]:
        """Return what a command needs to find them; the first says whose a process is."""
        raise NotImplementedError

    def start(self) -> None:
        """Start all of them, and wait until they can be used."""
        raise NotImplementedError

    def stop(self) -> None:
        """End everything."""
        self.end_all()

    def remove(self) -> None:
        """End everything and delete the folder."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def mark(self) -> tuple[bytes, bytes]:
        """Return the variable by which their processes are known."""
        name, value = next(iter(self.variables.items()))
        return name.encode(), value.encode()

    def run(self, *command: str, timeout: float = 60.0) -> str:
        """Return the output of a command that must succeed."""
        done = subprocess.run(
            command,
            env=os.environ | self.variables,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if done.returncode:
            said = done.stderr or done.stdout
            raise RuntimeError(f"{' '.join(command)} left with {done.returncode}: {said}")
        return done.stdout

    def start_one(
        self, name: str, command: Sequence[str], more: Mapping[str, str] | None = None
    ) -> None:
        (self.folder / "log").mkdir(exist_ok=True)
        with (self.folder / "log" / f"{name}.out").open("ab") as log:
            self.daemons[name] = subprocess.Popen(
                [str(shutil.which(command[0], path=path()) or command[0]), *command[1:]],
                env={**os.environ, **self.variables, **(more or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=end_with_parent,  # noqa: PLW1509  there are no threads
            )

    def end_one(self, name: str, number: int) -> None:
        daemon = self.daemons.pop(name, None)
        if daemon is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(daemon.pid, number)
            daemon.wait()

    def end_all(self) -> None:
        """Kill the daemons, and whatever runs for them."""
        for name in reversed(list(self.daemons)):
            self.end_one(name, signal.SIGKILL)
        for pid in with_variable(*self.mark()):
            kill(pid)

    def wait_for(self, what: str, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not is_so():
            for name, daemon in self.daemons.items():
                if daemon.poll() is not None:
                    log = (self.folder / "log" / f"{name}.out").read_text(errors="replace")
                    raise RuntimeError(f"{name} left with {daemon.returncode}:\n{log[-2000:]}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"waited {START_SECONDS:g} s in vain for {what}")
            time.sleep(0.05)


_Made = TypeVar("_Made", bound=Daemons)


@contextlib.contextmanager
def started(
    make: Callable[[Path], _Made], prefix: str, variable: str, inner: str
) -> Iterator[_Made]:
    """Have daemons in a folder, which their processes know as `inner` in it by a variable."""
    _remove_forsaken(prefix, variable, inner)
    made = _start(make, prefix)
    try:
        yield made
    finally:
        made.remove()


def _start(make: Callable[[Path], _Made], prefix: str) -> _Made:
    """Start daemons, on other ports if another process takes one before they do."""
    for tries_left in reversed(range(3)):
        # Not below pytest's folder: sockets have short names, and daemons want folders that only
        # their own user may write to, all the way up.
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=_PLACE))
        (folder / "owner").write_text(str(os.getpid()))
        folder.chmod(0o755)
        made = make(folder)
        try:
            made.start()
        except BaseException as error:
            made.remove()
            if not tries_left or "already in use" not in str(error):
                raise
        else:
            return made
    raise AssertionError("the last try returns or raises")


def _remove_forsaken(prefix: str, variable: str, inner: str) -> None:
    """End what is left where the process was killed: its daemons are gone, their jobs are not."""
    for folder in Path(_PLACE).glob(f"{prefix}*"):
        try:
            owner = int((folder / "owner").read_text())
        except (OSError, ValueError):
            continue  # It is just being made, or removed.
        if not Path(f"/proc/{owner}").exists():
            for pid in with_variable(variable.encode(), str(folder / inner).encode()):
                kill(pid)
            shutil.rmtree(folder, ignore_errors=True)


def path() -> str:
    """Return a PATH with the folders of daemons, which not everybody has on it."""
    return f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin:/sbin"


def free_ports(count: int) -> list[int]:
    """Find ports with some free ones after each, below those that the kernel gives out.

    Where the search begins is random: daemons that start at the same time find other ports.
    """
    found: list[int] = []
    start = 10000 + 8 * secrets.randbelow(2000)
    for first in range(start, start + 4096, 8):
        if all(is_free(port) for port in range(first, first + 8)):
            found.append(first)
            if len(found) == count:
                return found
    raise RuntimeError("no free ports")


def is_free(port: int) -> bool:
    """Return whether a daemon could listen there, on all addresses."""
    with socket.socket() as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):
            line.bind(("", port))
            return True
    return False


def answers(port: int) -> bool:
    with socket.socket() as line:
        line.settimeout(1)
        return line.connect_ex(("127.0.0.1", port)) == 0


def with_variable(name: bytes, value: bytes, also: tuple[bytes, bytes] | None = None) -> list[int]:
    """Find processes by variables in their environment."""
    wanted = {name + b"=" + value, *([b"=".join(also)] if also else [])}
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if wanted <= set((entry / "environ").read_bytes().split(b"\0")):
                    found.append(int(entry.name))
    return found


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)
