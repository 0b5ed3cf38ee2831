"""Puts folders back that an earlier run has kept, and keeps them for later ones."""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

from rankwise.errors import ComputeFailure, InputError
from rankwise.files import digest_of_files, matching
from rankwise.steps.program import guarded

_KEPT = 10
"""So many caches stay; those that were not used for the longest time go first."""


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog="rankwise.steps.cache", description=__doc__)
    parser.add_argument("what", choices=("restore", "save"))
    parser.add_argument("paths", nargs="+", help="what is kept, from this folder")
    parser.add_argument("--store", required=True, help="where caches are kept")
    parser.add_argument("--key", action="append", default=[], help="files that say which version")
    parser.add_argument("--command", default="", help="what makes it")
    given = parser.parse_args()
    folder, store = Path.cwd(), Path(given.store)

    def act() -> None:
        name = f"{key_of(given.key, given.command, given.paths, folder)}.tar"
        if given.what == "restore":
            restore(store / name, given.paths, folder)
        else:
            save(store / name, given.paths, folder)

    return guarded(act)


def key_of(files: Sequence[str], command: str, paths: Sequence[str], folder: Path) -> str:
    """Give the name of the cache that is wanted."""
    for pattern in files:
        if not matching([pattern], folder):
            raise InputError(f"no file fits {pattern!r} in {folder}: the key of the cache is wrong")
    digest = hashlib.sha256(digest_of_files(files, folder).encode())
    # What is in there may hold its own path, as virtual environments do.
    for part in (str(folder), command, *paths):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()


def restore(cache: Path, paths: Sequence[str], folder: Path) -> bool:
    """Put back what was kept; False: there is nothing."""
    present = [path for path in paths if (folder / path).exists()]
    if present:
        print(f"cache: {', '.join(present)} is there already")
        return False
    try:
        with tarfile.open(cache) as archive:
            archive.extractall(folder, filter="fully_trusted")
    except FileNotFoundError:
        print("cache: nothing was kept for these files")
        return False
    except (tarfile.TarError, EOFError) as error:
        raise ComputeFailure(f"{cache} is damaged ({error}): remove it") from error
    os.utime(cache)
    print(f"cache: {', '.join(paths)} put back")
    return True


def save(cache: Path, paths: Sequence[str], folder: Path) -> bool:
    """Keep it, all or nothing; False: it is kept already."""
    if cache.exists():
        return False
    missing = [path for path in paths if not (folder / path).exists()]
    if missing:
        raise InputError(f"the stage has not made {missing[0]!r}, which is to be cached")
    cache.parent.mkdir(parents=True, exist_ok=True)
    beside = cache.with_name(f".{cache.name}-{os.getpid()}")
    with tarfile.open(beside, "w") as archive:
        for path in paths:
            archive.add(folder / path, arcname=path)
    beside.replace(cache)
    _remove_old(cache.parent)
    print(f"cache: {', '.join(paths)} kept")
    return True


def _remove_old(folder: Path) -> None:
    by_use = sorted(folder.glob("*.tar"), key=lambda path: path.stat().st_mtime)
    for path in by_use[:-_KEPT]:
        path.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
