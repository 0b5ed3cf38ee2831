"""Folders to put before PATH, so that `python` is a certain interpreter."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import shutil
from pathlib import Path

from rankwise.errors import ComputeFailure
from rankwise.runtime.cache import cache_folder

_NAMES = ("python", "python3")
# What else lies here is everybody's, and is found through PATH in the order that the user wants.
_SHARED = frozenset(map(Path, ("/bin", "/usr/bin", "/usr/local/bin")))


def folders_for(executable: str) -> tuple[str, ...]:
    """Give the folder of an interpreter, and before it one with the names that it lacks there.

    ComputeFailure: that other folder cannot be written.
    """
    folder = Path(executable).parent
    if folder in _SHARED:
        own: tuple[str, ...] = ()
        missing = [name for name in _NAMES if not _is_same(shutil.which(name), executable)]
    else:
        own = (str(folder),)
        missing = [name for name in _NAMES if not _is_same(folder / name, executable)]
    return (str(_stand_ins(executable, missing)), *own) if missing else own


def _is_same(path: str | Path | None, executable: str) -> bool:
    try:
        return path is not None and Path(path).samefile(executable)
    except OSError:
        return False


def _stand_ins(executable: str, names: list[str]) -> Path:
    """Write small scripts that call the interpreter.

    No links: through one in another folder, it would not find its virtual environment.
    """
    script = f'#!/bin/sh\nexec {shlex.quote(executable)} "$@"\n'
    digest = hashlib.sha256(f"{executable}\0{names}".encode(errors="surrogateescape")).hexdigest()
    folder = cache_folder() / "pythons" / digest[:16]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            if not _has(folder / name, script):
                _write(folder / name, script)
    except OSError as error:
        raise ComputeFailure(
            f"{folder} cannot be written: {error.strerror}; set XDG_CACHE_HOME to a folder that can"
        ) from error
    return folder


def _has(path: Path, text: str) -> bool:
    with contextlib.suppress(OSError, ValueError):
        return path.read_text() == text and os.access(path, os.X_OK)
    return False


def _write(path: Path, script: str) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(script)
    beside.chmod(0o755)
    beside.replace(path)
