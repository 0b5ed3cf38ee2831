"""Keeps files of a stage with the run; equal files are kept once."""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

from rankwise.errors import InputError
from rankwise.files import matching
from rankwise.steps.program import guarded

_CHUNK_BYTES = 1 << 20


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog="rankwise.steps.artifacts", description=__doc__)
    parser.add_argument("patterns", nargs="+", help="files, in this folder")
    parser.add_argument("--into", required=True, help="where they are to be found")
    parser.add_argument("--objects", required=True, help="where each different file is kept")
    given = parser.parse_args()

    def act() -> None:
        kept = keep(given.patterns, Path.cwd(), Path(given.into), Path(given.objects))
        print(f"{len(kept)} artifact{'s' * (len(kept) != 1)} kept in {given.into}")

    return guarded(act)


def keep(patterns: Sequence[str], folder: Path, into: Path, objects: Path) -> list[str]:
    """Keep what fits the patterns, all of it or nothing, and name it; may be repeated."""
    names: list[str] = []
    for pattern in patterns:
        found = matching([pattern], folder)
        if not found:
            raise InputError(f"no artifact fits {pattern!r} in {folder}")
        names += [name for name in found if name not in names]
    beside = into.with_name(f".{into.name}-{os.getpid()}")
    shutil.rmtree(beside, ignore_errors=True)
    for name in names:
        place = beside / name
        place.parent.mkdir(parents=True, exist_ok=True)
        _link(_stored(folder / name, objects), place)
    if into.exists():
        # An earlier try of the same stage; nobody has had it yet.
        shutil.rmtree(into)
    beside.rename(into)
    return names


def _stored(file: Path, objects: Path) -> Path:
    """Keep a file under the digest of what is in it and of whether it can be run."""
    is_program = bool(file.stat().st_mode & stat.S_IXUSR)
    digest = hashlib.sha256(b"x" if is_program else b"-")
    with file.open("rb") as source:
        while chunk := source.read(_CHUNK_BYTES):
            digest.update(chunk)
    name = digest.hexdigest()
    place = objects / name[:2] / name[2:]
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        beside = place.with_name(f".{place.name}-{os.getpid()}")
        shutil.copyfile(file, beside)
        # Whoever changed one would change it for all runs that have it.
        beside.chmod(0o555 if is_program else 0o444)
        beside.replace(place)
    return place


def _link(stored: Path, place: Path) -> None:
    try:
        place.hardlink_to(stored)
    except OSError:
        shutil.copy2(stored, place)


if __name__ == "__main__":
    sys.exit(main())
