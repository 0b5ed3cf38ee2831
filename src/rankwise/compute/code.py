"""Copies of people's code, so that what runs is what was there when it was started."""

from __future__ import annotations

import fnmatch
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from rankwise.errors import ComputeFailure

_IGNORE_FILES = (".rankwiseignore", ".amlignore")
_NEVER = (
    ".git",
    ".hg",
    ".rankwise",
    "__pycache__",
    "*.pyc",
    ".venv",
    "venv",
    ".tox",
    ".mypy_cache",
)
_MOST_BYTES = 500 * 2**20


def copy_code(source: Path, target: Path) -> None:
    """Copy a folder, but not what its .rankwiseignore (or .amlignore) names."""
    if not source.is_dir():
        raise ComputeFailure(f"{source}: there is no such folder; `code.path` must name one")
    patterns = (*_NEVER, *_read_patterns(source))
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
    """Give the files that a copy of a folder would have, in a fixed order."""
    patterns = (*_NEVER, *_read_patterns(source))
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
        return [line.strip().rstrip("/") for line in lines if line.strip() and line[0] != "#"]
    return []


def _matches(path: Path, source: Path, patterns: Sequence[str]) -> bool:
    inside = path.relative_to(source).as_posix()
    return any(
        fnmatch.fnmatch(path.name, pattern) or fnmatch.fnmatch(inside, pattern.lstrip("/"))
        for pattern in patterns
    )
