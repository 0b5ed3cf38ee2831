"""Runs and who drives them: one at a time, which a lock says even after a kill."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from rankwise.errors import InputError, StoreFailure

_LOCK = "engine.lock"
_LOOKERS_SECONDS = 0.3


class BeingDriven(InputError):
    """Another process drives this run."""

    def __init__(self, run: str, pid: str) -> None:
        super().__init__(
            f"{run} is being driven by process {pid or 'unknown'}\n"
            f"  To look at it:  rankwise status {run}     To end it:  rankwise cancel {run}"
        )


@contextlib.contextmanager
def driving(folder: Path, run: str) -> Iterator[None]:
    """Be the only one who drives a run; BeingDriven if somebody does already."""
    path = folder / _LOCK
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    except OSError as error:
        raise StoreFailure(f"{path}: {error.strerror}") from error
    try:
        if not _lock(file):
            raise BeingDriven(run, path.read_text().strip())
        os.ftruncate(file, 0)
        os.pwrite(file, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(file)


def _lock(file: int) -> bool:
    """Lock a file; those who only look hold it for a moment."""
    deadline = time.monotonic() + _LOOKERS_SECONDS
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        else:
            return True


def driver_of(folder: Path) -> int | None:
    """Give the process that drives a run; None: nobody does."""
    path = folder / _LOCK
    try:
        with path.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return int(file.read() or 0)
    except (OSError, ValueError):
        pass
    return None
