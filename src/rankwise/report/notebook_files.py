"""Notebooks that attempts have left behind, and the pictures in them."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_KINDS = (".ipynb", ".html", ".pdf")
# What an attempt has for itself, or was given: no results.
_NOT_LOOKED_INTO = frozenset({"nodes", "processes", "bin", ".ipynb_checkpoints"})
_DEEPEST = 3
_MOST_FILES = 12
_MOST_BYTES = 50_000_000
_PICTURES = {"image/png": b"\x89PNG\r\n\x1a\n", "image/jpeg": b"\xff\xd8\xff", "image/gif": b"GIF8"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A picture that a cell of a notebook has shown."""

    kind: str
    """`image/png`, for example."""
    data: str
    """In base64."""
    words: str
    """What is known of it, for those who do not see it."""

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.data.encode()).hexdigest()

    @property
    def address(self) -> str:
        """Give an address that holds the picture itself."""
        return f"data:{self.kind};base64,{self.data}"


def notebook_files(folder: Path) -> list[Path]:
    """Find notebooks, and what was made of them, in the folder of an attempt."""
    return sorted(_files(folder, _DEEPEST), key=lambda path: (path.stem, path.suffix))[:_MOST_FILES]


def _files(folder: Path, depth: int) -> Iterator[Path]:
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    for entry in entries:
        if entry.is_symlink():
            continue
        if entry.is_dir() and depth > 1 and entry.name not in _NOT_LOOKED_INTO:
            yield from _files(Path(entry.path), depth - 1)
        elif entry.name.endswith(_KINDS) and entry.is_file():
            yield Path(entry.path)


def pictures_of(notebook: Path, *, largest: int) -> list[Picture]:
    """Take the pictures out of a notebook that are no larger than so many bytes of base64."""
    try:
        if notebook.stat().st_size > _MOST_BYTES:
            return []
        content = json.loads(notebook.read_bytes())
        return [
            picture
            for number, cell in enumerate(content["cells"], start=1)
            for output in cell.get("outputs", ())
            if (picture := _picture(output.get("data") or {}, number)) is not None
            and len(picture.data) <= largest
        ]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return []


def _picture(data: Mapping[str, Any], number: int) -> Picture | None:
    for kind, beginning in _PICTURES.items():
        if kind in data:
            text = "".join(_text(data[kind]).split())
            if not _is(text, beginning):
                continue
            shown = _text(data.get("text/plain", "")).strip("<>").splitlines()
            words = f"cell {number}: {shown[0][:80]}" if shown else f"cell {number}"
            return Picture(kind=kind, data=text, words=words)
    return None


def _is(text: str, beginning: bytes) -> bool:
    """Tell whether it is base64 of what begins like that."""
    try:
        return base64.b64decode(text, validate=True).startswith(beginning)
    except (binascii.Error, ValueError):
        return False


def _text(value: str | Sequence[str]) -> str:
    return value if isinstance(value, str) else "".join(map(str, value))
