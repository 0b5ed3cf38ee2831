"""Run the real command line on real documents, and find out what it leaves behind."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

LIMIT_SECONDS = 240.0
_SCRUBBED = ("PYTEST_", "COV_", "OMPI_", "PMI", "PMIX_", "RANKWISE_")
_MARK = "RANKWISE_TEST_SHOP"


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What a command printed and returned."""

    command: str
    exit_code: int
    output: str
    errors: str

    def __str__(self) -> str:
        return f"$ {self.command}\nexit {self.exit_code}\n{self.output}\n--- stderr\n{self.errors}"


@dataclass(slots=True)
class Shop:
    """A folder with documents and a store; everything that is started in it is known by a mark."""

    folder: Path
    variables: dict[str, str] = field(default_factory=dict)
    python: str | Path = sys.executable
    mark: str = field(default_factory=lambda: secrets.token_hex(8))
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def write(self, name: str, text: str) -> Path:
        """Write a file, without the indentation of the test that has it."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return path

    def command(self, *arguments: str | Path) -> list[str]:
        return [str(self.python), "-m", "rankwise.cli.main", *map(str, arguments)]

    def environment(self) -> dict[str, str]:
        kept = {name: v for name, v in os.environ.items() if not name.startswith(_SCRUBBED)}
        # These import more than all the rest, numpy among it.
        kept["PYTEST_ADDOPTS"] = "-p no:anyio -p no:randomly -p no:hypothesispytest"
        return {**kept, "NO_COLOR": "1", "COLUMNS": "100", _MARK: self.mark, **self.variables}

    def start(
        self, *arguments: str | Path, variables: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Start a command, in a session of its own."""
        process = subprocess.Popen(
            self.command(*arguments),
            cwd=self.folder,
            env={**self.environment(), **(variables or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def rankwise(
        self,
        *arguments: str | Path,
        variables: Mapping[str, str] | None = None,
        seconds: float = LIMIT_SECONDS,
    ) -> Said:
        """Run a command to its end."""
        process = self.start(*arguments, variables=variables)
        try:
            output, errors = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, errors = process.communicate()
            raise AssertionError(
                f"no end after {seconds:g} s: {' '.join(map(str, arguments))}\n{output}\n{errors}"
            ) from None
        return Said(
            command=f"rankwise {' '.join(map(str, arguments))}",
            exit_code=process.returncode,
            output=output,
            errors=errors,
        )

    def processes(self) -> list[psutil.Process]:
        """Find everything that was started here and is still there."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(_MARK) == self.mark:
                    found.append(process)
        return found

    def wait_until_empty(self, seconds: float = 30.0) -> None:
        """Wait until nothing is left; raises AssertionError with what outlives the limit."""
        deadline = time.monotonic() + seconds
        while left := self.processes():
            assert time.monotonic() < deadline, [_describe(process) for process in left]
            time.sleep(0.05)

    def kill_all(self) -> None:
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()
        # A test that failed has left its own undone: that is not to fail the next one too.
        for command in self.started:
            with command:
                command.wait(LIMIT_SECONDS)


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[Shop]:
    """Open a shop; whatever is still in it at the end is killed."""
    folder.mkdir(parents=True, exist_ok=True)
    shop = Shop(folder)
    try:
        yield shop
    finally:
        shop.kill_all()


def wait_for(path: Path, seconds: float = 30.0) -> str:
    """Wait until a file has something in it."""
    deadline = time.monotonic() + seconds
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < deadline, f"nothing in {path}"
        time.sleep(0.01)
    return path.read_text()


def _describe(process: psutil.Process) -> str:
    try:
        return f"{process.pid} {process.status()} {' '.join(process.cmdline())}"
    except psutil.Error:
        return f"{process.pid} is gone"
