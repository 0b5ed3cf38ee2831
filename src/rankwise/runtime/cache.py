"""Things that take long to make, made once and kept, whoever else makes them at the same time."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from rankwise.errors import ComputeFailure
from rankwise.runtime.contract import Say

Make = Callable[[Path, int], Mapping[str, object]]
COMPLETE = "complete.json"
"""Comes last: what stands beside it is whole."""
_WAIT_SECONDS = 3600.0
_LOOK_SECONDS = 0.1


def cache_folder() -> Path:
    """Give the folder for what can be made again."""
    place = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The specification has one that is not absolute ignored.
    if place.is_absolute():
        return place / "rankwise"
    try:
        return Path.home() / ".cache" / "rankwise"
    except RuntimeError as error:
        raise ComputeFailure(
            "there is no home folder to keep things in; set XDG_CACHE_HOME to a folder"
        ) from error


def made_once(
    folder: Path,
    make: Make,
    *,
    is_sound: Callable[[Path], bool],
    say: Say,
    what: str,
) -> Path:
    """Give `folder/content`, which `make` has made now or some time before.

    `make` gets the path, where nothing is, and a lock to leave open in the processes that it
    starts: if this process is killed, nobody begins again before they have ended too. It is made
    in its final place, since an environment that is moved loses the way to its interpreter.
    What it returns is kept for people to read. ComputeFailure: the folder cannot be written.
    """
    content = folder / "content"
    if _is_complete(folder) and is_sound(content):
        return content
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(folder, say, what) as lock:
            if not (_is_complete(folder) and is_sound(content)):
                (folder / COMPLETE).unlink(missing_ok=True)
                _mark_complete(folder, _make_anew(content, make, lock))
    except OSError as error:
        raise ComputeFailure(
            f"{what} cannot be kept in {folder}: {error.strerror}; make room there, or set "
            f"XDG_CACHE_HOME to another folder"
        ) from error
    return content


def _make_anew(content: Path, make: Make, lock: int) -> Mapping[str, object]:
    if content.exists():
        shutil.rmtree(content)
    try:
        return make(content, lock)
    except BaseException:
        shutil.rmtree(content, ignore_errors=True)  # the disk may be full of it
        raise


def _is_complete(folder: Path) -> bool:
    return (folder / COMPLETE).exists()


def _mark_complete(folder: Path, about: Mapping[str, object]) -> None:
    beside = folder / f".{COMPLETE}"
    beside.write_text(json.dumps(about, indent=2) + "\n")
    beside.replace(folder / COMPLETE)


@contextlib.contextmanager
def _alone(folder: Path, say: Say, what: str) -> Iterator[int]:
    """Hold the folder's lock, and give the number of the open file that is locked."""
    path = folder / "lock"
    deadline = time.monotonic() + _WAIT_SECONDS
    is_told = False
    while True:
        lock = os.open(path, os.O_CREAT | os.O_RDWR, 0o666)
        try:
            if _try_lock(lock, path):
                yield lock
                return
        finally:
            os.close(lock)
        if not is_told:
            say(f"waiting for another process that makes {what}")
            is_told = True
        if time.monotonic() > deadline:
            raise ComputeFailure(
                f"another process has made {what} for more than {_WAIT_SECONDS / 60:.0f} minutes; "
                f"see who has {path} open, and end it"
            )
        time.sleep(_LOOK_SECONDS)


def _try_lock(lock: int, path: Path) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    # Somebody may have emptied the cache meanwhile: a lock on a file that is gone holds nobody off.
    try:
        return os.path.samestat(os.fstat(lock), path.stat())
    except FileNotFoundError:
        return False
