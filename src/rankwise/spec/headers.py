"""What scripts say of themselves in a comment: `# rankwise: ranks=4 gpus=2 timeout=60`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

from rankwise.errors import InputError
from rankwise.spec.base import Review
from rankwise.spec.complaints import complaints
from rankwise.spec.mistakes import Mistake, Position, as_error, printable_name, quoted
from rankwise.spec.scalars import resolve
from rankwise.spec.suite import Header
from rankwise.spec.written import Section

# Who looks for it, looks at the beginning.
_MOST_LINES = 30
_MOST_BYTES = 20_000
_HEADER = re.compile(r"\s*#\s*rankwise:\s*(?P<rest>.*?)\s*")
_WORD = re.compile(r"\S+")

SILENT = Header()
"""What a script says that says nothing."""
# Thousands of scripts say the same.
_KNOWN: dict[tuple[str, ...], Header] = {(): SILENT}


def header_of(path: Path) -> Header:
    """Read what a script says of itself; raises InputError with a line for every mistake."""
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES).decode(errors="replace")
    except OSError as error:
        raise InputError(f"{printable_name(path)}: it cannot be read: {error.strerror}") from error
    if "rankwise:" not in text:
        return SILENT
    lines = [
        (number, found["rest"], found.start("rest"))
        for number, line in enumerate(text.splitlines()[:_MOST_LINES], start=1)
        if (found := _HEADER.fullmatch(line))
    ]
    said = tuple(rest for _, rest, _ in lines)
    if said not in _KNOWN:
        _KNOWN[said] = _read_all(path, lines)
    return _KNOWN[said]


def _read_all(path: Path, lines: Iterable[tuple[int, str, int]]) -> Header:
    contents = Section(Position(1, 1))
    mistakes: list[Mistake] = []
    for number, rest, column in lines:
        mistakes += _read(rest, number, column, contents)
    review = Review()
    try:
        header = Header.model_validate(contents, context=review)
    except ValidationError as error:
        mistakes += complaints(error, contents, review)
    if mistakes:
        raise as_error(printable_name(path), mistakes)
    return header


def _read(text: str, line: int, before: int, contents: Section) -> list[Mistake]:
    """Put `name=value` words into a section, each with its place."""
    mistakes = []
    for word in _WORD.finditer(text):
        at = Position(line, before + word.start() + 1)
        name, equals, value = word[0].partition("=")
        if not equals:
            mistakes.append(Mistake(at, f"must be `name=value`, not {quoted(word[0])}"))
        elif name in contents:
            mistakes.append(Mistake(at, f"`{name}` is there already"))
        else:
            value_at = Position(line, at.column + len(name) + 1)
            contents.put(name, resolve(value), at, value_at)
    return mistakes
