"""Files that are there whole, or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from rankwise.errors import InputError


def write_whole(path: Path, content: bytes) -> Path:
    """Write a file beside its place and move it there; raises InputError where that cannot be."""
    path = path.absolute()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:40]}-")
        try:
            with os.fdopen(file, "wb") as opened:
                opened.write(content)
            # A temporary file is its owner's alone; others may read what is written for people.
            mask = os.umask(0)
            os.umask(mask)
            Path(beside).chmod(0o666 & ~mask)
            Path(beside).replace(path)
        except BaseException:
            Path(beside).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from error
    return path
