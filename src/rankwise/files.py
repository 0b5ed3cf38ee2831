"""Files by patterns, and digests of what is in them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

_CHUNK_BYTES = 1 << 20


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
    return folder.glob(pattern)


def digest_of_files(patterns: Iterable[str], folder: Path) -> str:
    """Give a digest of the names and the contents of all files that fit."""
    digest = hashlib.sha256()
    for name in matching(patterns, folder):
        digest.update(os.fsencode(name) + b"\0" + _digest(folder / name).encode())
    return digest.hexdigest()


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    try:
        if path.is_symlink() and not path.is_file():
            return f"link to {path.readlink()}"
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
    except OSError as error:
        # It is gone meanwhile, or nobody may read it: in any case not as it was.
        return f"{error.errno}"
    return digest.hexdigest()
