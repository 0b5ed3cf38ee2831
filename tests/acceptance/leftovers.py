"""What a run has left behind: nothing, or a test fails."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from tests.acceptance.harness import Project

# Far more than it takes to end all processes of a run that has ended by itself.
END_SECONDS = 30.0


@contextmanager
def short_folder() -> Iterator[Path]:
    """Return a folder for the temporary files of a run, with a name as short as a socket's file."""
    with TemporaryDirectory(prefix="rw") as folder:
        yield Path(folder)


def processes_of(project: Project) -> list[psutil.Process]:
    """Find everything that a run of the project has started and that is still there."""
    found = []
    for process in psutil.process_iter():
        try:
            record = process.environ().get("RANKWISE_TEST_RECORD", "")
            if record.startswith(f"{project.folder}/"):
                found.append(process)
        except psutil.Error:
            continue
    return found


def describe(processes: list[psutil.Process]) -> str:
    """Name processes, as far as they are still there."""
    lines = []
    for process in processes:
        try:
            lines.append(f"{process.pid} {process.status()} {' '.join(process.cmdline())}")
        except psutil.Error:
            continue
    return "\n".join(lines)


def wait_until_gone(project: Project, seconds: float = END_SECONDS) -> float:
    """Wait until no process of the project is left; gives how long that took.

    Raises AssertionError with the processes that outlive the limit.
    """
    begin = time.monotonic()
    while processes := processes_of(project):
        assert time.monotonic() - begin < seconds, describe(processes)
        time.sleep(0.05)
    return time.monotonic() - begin


def check_that_nothing_is_left(project: Project, temporary: Path) -> None:
    """Fail if a process of the project, or a folder of its runs, is still there."""
    wait_until_gone(project)
    assert list(temporary.glob("rankwise-*")) == []


def wait_for_text(path: Path, seconds: float = END_SECONDS) -> str:
    """Read a file as soon as it is there; its writer moves it into place."""
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.02)
    return path.read_text()
