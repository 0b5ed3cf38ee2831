"""One site file as text: on which lines its keys are, and what is wrong with it."""

from __future__ import annotations

import contextlib
import difflib
import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

Key = tuple[str, ...]
"""A key with those of the tables that it is in."""

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_PART = r"""(?:"(?:[^"\\]|\\.)*"|'[^']*'|[A-Za-z0-9_-]+)"""
_ASSIGNMENT = re.compile(rf"\s*({_PART}(?:\s*\.\s*{_PART})*)\s*=")
_HEADER = re.compile(rf"\s*(\[\[?\s*{_PART}(?:\s*\.\s*{_PART})*\s*\]\]?)")


class Page:
    """A site file, and the complaints about it."""

    def __init__(self, file: Path, text: str = "") -> None:
        self.file = file
        self._lines = _lines_of_keys(text)
        self._complaints: list[tuple[int, str]] = []

    def place(self, at: Key) -> str:
        """Say where a key is; if that is not found, where the table is that it is in."""
        return f"{shown(self.file)}:{self._line(at)}"

    def complain(self, at: Key, what: str) -> None:
        """Say what is wrong with the value of a key."""
        self._complaints.append((self._line(at), f"{self.place(at)}: {what}"))

    def complain_of_line(self, line: int, what: str, column: int = 0) -> None:
        """Say what is wrong with a line; 0: with the whole file."""
        position = "".join(f":{number}" for number in (line, column) if number)
        self._complaints.append((line, f"{shown(self.file)}{position}: {what}"))

    def complain_of_unknown(self, at: Key, table: Mapping[str, Any], known: Iterable[str]) -> None:
        """Complain of each key in a table that is none of the known ones."""
        where = f"[{self.header(at)}]" if at else "a site file"
        known = tuple(known)
        for key in table.keys() - set(known):
            hint = did_you_mean(key, known) or f"; there are {', '.join(known)}"
            self.complain((*at, key), f'{where} has no "{key}"{hint}')

    @staticmethod
    def header(at: Key) -> str:
        """Write a key as it stands in the header of a table."""
        return ".".join(map(toml_key, at))

    def complaints(self) -> list[str]:
        """Give the complaints in the order of the lines."""
        return [text for _, text in sorted(self._complaints)]

    def _line(self, at: Key) -> int:
        while at and at not in self._lines:
            at = at[:-1]
        return self._lines.get(at, 1)


def toml_key(name: str) -> str:
    """Write a name as a key in TOML: with quotes if it needs them."""
    return name if _BARE.fullmatch(name) else json.dumps(name, ensure_ascii=False)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Name the known word that is nearest, if one is near."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f'; did you mean "{near[0]}"?' if near else ""


def shown(file: Path) -> str:
    """Write a path as short as people know it."""
    with contextlib.suppress(ValueError, OSError):
        return str(file.relative_to(Path.cwd()))
    return str(file)


def _lines_of_keys(text: str) -> dict[Key, int]:
    """Find the lines on which keys are, and tables begin.

    tomllib does not tell. Lines are looked at one by one, so a line in the middle of a long text
    may pass for a key; then a complaint has a wrong line, and nothing else is wrong.
    """
    lines: dict[Key, int] = {}
    table: Key = ()
    for number, line in enumerate(text.split("\n"), 1):
        if found := _HEADER.match(line):
            path = table = _path(found[1])
        elif found := _ASSIGNMENT.match(line):
            path = (*table, *_path(f"{found[1]} = 0"))
        else:
            continue
        for length in range(1, len(path) + 1):
            lines.setdefault(path[:length], number)
    return lines


def _path(statement: str) -> Key:
    """Have tomllib take a key apart."""
    try:
        value: Any = tomllib.loads(statement)
    except ValueError:
        return ()
    path = []
    while value:
        if isinstance(value, list):
            value = value[0]
        else:
            [(key, value)] = value.items()
            path.append(key)
    return tuple(path)
