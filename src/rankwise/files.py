"""Files that tasks read and leave behind: patterns, digests, and copies of code."""

from __future__ import annotations

import errno
import fnmatch
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from rankwise.errors import ComputeFailure, InputError
from rankwise.node.files import write_file

_IGNORE_FILES = (".rankwiseignore", ".amlignore")
_NEVER = (
    *(".git", ".hg", ".rankwise", "__pycache__", "*.pyc"),
    *(".venv", "venv", ".tox", ".mypy_cache"),
)
# More is hardly code: a copy for each node would fill their disks.
_MOST_BYTES = 500 * 2**20


def copy_code(source: Path, target: Path) -> None:
    """Copy a folder, but not what its .rankwiseignore (or .amlignore) names."""
    if not source.is_dir():
        raise ComputeFailure(f"{source}: there is no such folder; `code.path` must name one")
    patterns = _read_patterns(source)
    total = 0

    def ignored(folder: str, names: Sequence[str]) -> set[str]:
        nonlocal total
        place = Path(folder)
        left_out = {name for name in names if _matches(place / name, source, patterns)}
        for name in set(names) - left_out:
            path = place / name
            if path.is_file() and not path.is_symlink():
                total += path.stat().st_size
        if total > _MOST_BYTES:
            raise ComputeFailure(
                f"{source}: more than {_MOST_BYTES >> 20} MiB to copy for every node; name what "
                f"is not code in {source / _IGNORE_FILES[0]}, a pattern a line"
            )
        return left_out

    try:
        shutil.copytree(source, target, symlinks=True, ignore=ignored, dirs_exist_ok=True)
    except (OSError, shutil.Error) as error:
        raise ComputeFailure(f"{source}: could not be copied to {target}: {error}") from error


def files_of_code(source: Path) -> Iterator[Path]:
    """Return the files that a copy of a folder would have, in a fixed order."""
    patterns = _read_patterns(source)
    for folder, folders, names in os.walk(source):
        place = Path(folder)
        folders[:] = sorted(
            name for name in folders if not _matches(place / name, source, patterns)
        )
        for name in sorted(names):
            path = place / name
            if path.is_file() and not _matches(path, source, patterns):
                yield path


def _read_patterns(folder: Path) -> list[str]:
    for name in _IGNORE_FILES:
        try:
            lines = (folder / name).read_text(errors="replace").splitlines()
        except OSError:
            continue
        own = [line.strip().rstrip("/") for line in lines if line.strip() and line[0] != "#"]
        return [*_NEVER, *own]
    return [*_NEVER]


def _matches(path: Path, source: Path, patterns: Sequence[str]) -> bool:
    inside = path.relative_to(source).as_posix()
    return any(
        fnmatch.fnmatch(path.name, pattern) or fnmatch.fnmatch(inside, pattern.lstrip("/"))
        for pattern in patterns
    )


def open_left(path: Path, *, follows_links: bool = False) -> BinaryIO:
    """Open what an attempt has left, to read it; raises OSError for anything but a file.

    A job may leave whatever it likes under any name: a named pipe would keep its reader waiting for
    ever, and a link could lead anywhere.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    # Without O_NONBLOCK, this would wait for a writer of a named pipe.
    descriptor = os.open(path, flags if follows_links else flags | os.O_NOFOLLOW)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(descriptor, "rb", buffering=0)


def read_left(path: Path) -> bytes:
    """Read all of what an attempt has left; raises OSError for anything but a file."""
    with open_left(path) as file:
        return file.read()


def read_data(path: Path) -> dict[str, Any]:
    """Return the JSON object that a runner has left; empty: there is none, or it is not whole."""
    try:
        data = json.loads(read_left(path))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def matching(patterns: Iterable[str], folder: Path) -> list[str]:
    """Name the files that fit patterns, from their folder; all in a folder that fits.

    `**` stands for any folders. What is named outright is found even if it begins with a dot.
    """
    found: set[str] = set()
    for pattern in patterns:
        for path in _fitting(folder, pattern):
            inside = path.rglob("*") if path.is_dir() and not path.is_symlink() else [path]
            found |= {
                os.path.relpath(one, folder) for one in inside if one.is_file() or one.is_symlink()
            }
    return sorted(found)


def _fitting(folder: Path, pattern: str) -> Iterable[Path]:
    path = Path(pattern)
    if path.is_absolute():
        folder, pattern = Path(path.anchor), str(path.relative_to(path.anchor))
    if not any(sign in pattern for sign in "*?["):
        exact = folder / pattern
        return [exact] if exact.exists() else []
    try:
        return list(folder.glob(pattern))
    except ValueError as error:  # `**` beside other characters, before Python 3.13.
        raise InputError(f"{pattern!r} is no pattern of files: {error}") from error


def without_match(patterns: Iterable[str], folder: Path) -> list[str]:
    """Return the patterns that no file fits."""
    return [pattern for pattern in patterns if not matching([pattern], folder)]


def digest_of_files(patterns: Iterable[str], folder: Path) -> str:
    """Return a digest of the names and the contents of all files that fit."""
    digest = hashlib.sha256()
    for name in matching(patterns, folder):
        digest.update(os.fsencode(name) + b"\0" + digest_of_file(folder / name).encode())
    return digest.hexdigest()


def digest_of_file(path: Path) -> str:
    """Return a digest of what is in a file, of where a broken link leads, or of why neither is."""
    try:
        if path.is_symlink() and not path.is_file():
            return f"link to {path.readlink()}"
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        # It is gone meanwhile, or may not be read: in any case it is not as it was.
        return f"{error.errno}"


def write_whole(path: Path, content: str | bytes) -> Path:
    """Write a file beside its place and move it there; raises InputError where that cannot be."""
    path = path.absolute()
    try:
        write_file(path, content)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from error
    return path
