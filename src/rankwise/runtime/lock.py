"""Files that say which packages an environment has: what is in them counts, not their names."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

_INCLUDED = re.compile(r"^\s*(?:-r|-c|--requirement|--constraint)[=\s]\s*(\S+)", re.MULTILINE)


def digest_of(path: Path) -> str:
    """Name the content of a lock file, and of all that it includes; OSError: one is not there."""
    digest = hashlib.sha256()
    for text in texts_of(path):
        digest.update(f"{len(text)}\n{text}".encode())
    return digest.hexdigest()[:16]


def texts_of(path: Path) -> list[str]:
    """Give what is in a lock file and in those that it includes, each once."""
    return list(_texts(path, set()))


def _texts(path: Path, seen: set[Path]) -> Iterator[str]:
    if path in seen:
        return
    seen.add(path)
    text = path.read_text(encoding="utf-8", errors="replace")
    yield text
    if path.suffix == ".toml":
        return
    for name in _INCLUDED.findall(text):
        if "://" not in name:
            yield from _texts(path.parent / name, seen)
