"""The store, and who drives a run that is in it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from rankwise.errors import InputError, StoreFailure
from rankwise.node.files import lock, unlock
from rankwise.store.database import Database
from rankwise.store.queries import Queries
from rankwise.store.samples import SampleQueries, SampleWrites
from rankwise.store.schema import open_for_reading, open_for_writing
from rankwise.store.writes import Writes

_LOCK = "engine.lock"
_LOOK_LOCK = "look.lock"
# A look takes as long as a few questions to Slurm, each of which has a limit of its own.
_LOOKERS_SECONDS = 300.0


class BeingDriven(InputError):
    """Another process drives this run."""

    def __init__(self, run: str, pid: str) -> None:
        super().__init__(
            f"{run} is already running, in process {pid or 'unknown'}\n"
            f"  To see its state:  rankwise status {run}     To end it:  rankwise cancel {run}"
        )


@contextlib.contextmanager
def driving(folder: Path, run: str) -> Iterator[None]:
    """Be the only process that drives a run; BeingDriven if another one does already.

    A process that only looks at the run is waited for.
    """
    path = folder / _LOCK
    file = _open(path)
    try:
        _lock(file, folder, run)
        _note_pid(file)
        yield
    finally:
        os.close(file)


@contextlib.contextmanager
def looking(folder: Path, run: str) -> Iterator[None]:
    """Keep drivers waiting while what has ended is taken in; BeingDriven if there is one.

    One process looks at a time. What it holds is shared: no driver takes it for another driver.
    """
    own = _open(folder / _LOOK_LOCK)
    file = _open(folder / _LOCK)
    try:
        if not lock(own, waits=False):
            raise BeingDriven(run, _pid_in(folder / _LOOK_LOCK))
        _note_pid(own)
        if not lock(file, waits=False, is_shared=True):
            raise BeingDriven(run, _pid_in(folder / _LOCK))
        yield
    finally:
        os.close(file)
        os.close(own)


def _open(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    except OSError as error:
        raise StoreFailure(f"{path}: {error.strerror}") from error


def _lock(file: int, folder: Path, run: str) -> None:
    """Lock a run for a driver, as soon as no process looks at it any more."""
    deadline = time.monotonic() + _LOOKERS_SECONDS
    while not lock(file, waits=False):
        # Only a driver keeps others from sharing it.
        if not lock(file, waits=False, is_shared=True):
            raise BeingDriven(run, _pid_in(folder / _LOCK))
        # Two who wait must not keep each other out by what they hold.
        unlock(file)
        if time.monotonic() > deadline:
            pid = _pid_in(folder / _LOOK_LOCK)
            raise InputError(
                f"{run}: process {pid or 'unknown'} has been looking at it for "
                f"{_LOOKERS_SECONDS:g} s, and hangs or is stopped; end that process and try again"
            )
        time.sleep(0.01)


def _note_pid(file: int) -> None:
    os.ftruncate(file, 0)
    os.pwrite(file, str(os.getpid()).encode(), 0)


def _pid_in(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, ValueError):
        return ""


def driver_of(folder: Path) -> int | None:
    """Return the process that drives a run; None: no process does."""
    path = folder / _LOCK
    try:
        with path.open() as file:
            if not lock(file.fileno(), waits=False, is_shared=True):
                return int(file.read() or 0)
    except (OSError, ValueError):
        pass
    return None


FILE = "store.db"

# In seconds. A writer holds the lock for milliseconds; on a busy disk, for a second.
PATIENCE = 30.0


class Store(Queries, Writes, SampleQueries, SampleWrites):
    """A store that is open; many processes may have it open, each for itself."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.path = database.path
        self.folder = database.path.parent

    @classmethod
    def open(cls, folder: Path, *, read_only: bool = False, patience: float = PATIENCE) -> Self:
        """Open the store in a folder, `.rankwise`; it is made, unless it is only to be read.

        `patience` is how long to wait for others, in seconds. Raises StoreFailure.
        """
        connect = open_for_reading if read_only else open_for_writing
        return cls(connect(folder.absolute() / FILE, patience=patience))

    def run_folder(self, run: str) -> Path:
        """Return the folder in which a run has its files."""
        return self.folder / "runs" / run

    def close(self) -> None:
        """Close it; more than once is fine."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
