"""What is wrong with a document, where, and in which words."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rankwise.errors import InputError

# Enough to mend a document by; more would only scroll the first ones away.
MOST_SHOWN = 100
_LONGEST_QUOTE = 60


class Position(NamedTuple):
    """A place in a document, counted from 1 as editors do."""

    line: int
    column: int


class Mistake(NamedTuple):
    """One thing that is wrong."""

    position: Position
    message: str


def as_error(name: str, mistakes: Iterable[Mistake]) -> InputError:
    """Put all mistakes of a document into one error, a line for each, in the document's order."""
    found = sorted(set(mistakes))
    lines = [f"{name}:{at.line}:{at.column}: {message}" for at, message in found[:MOST_SHOWN]]
    if len(found) > MOST_SHOWN:
        lines.append(f"{name}: and {len(found) - MOST_SHOWN} more mistakes")
    return InputError("\n".join(lines))


def printable_name(path: Path) -> str:
    """Name a file in a way that every terminal can show."""
    shown = str(path).encode("utf-8", "backslashreplace").decode("utf-8")
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in shown)


def clipped(text: str) -> str:
    """Make a text fit for one line: short, and without characters that a terminal obeys."""
    shown = repr(text[:_LONGEST_QUOTE])[1:-1].replace("\\'", "'")
    return shown + "…" if len(text) > _LONGEST_QUOTE else shown


def code(name: str) -> str:
    """Show the name of a field or a type as such."""
    return f"`{clipped(name)}`"


def quoted(value: Any) -> str:
    """Show what somebody wrote, as far as it fits into a message."""
    match value:
        case None:
            return "empty"
        case Mapping():
            return "a mapping"
        case list() | tuple():
            return "a list"
        case str() if hasattr(value, "value"):
            # A number or a truth value, shown as it stands in the document.
            return clipped(value)
        case str():
            return f"'{clipped(value)}'"
        case bool():
            return str(value).lower()
    return clipped(str(value))


def listed(names: Sequence[str], last: str = "or") -> str:
    """Join names into a phrase: `a, b or c`."""
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} {last} {names[-1]}"


def nearest(name: str, valid: Iterable[str]) -> str | None:
    """Find the valid name that was most likely meant; None if none is alike."""
    by_core = {_core(each): each for each in valid}
    found = difflib.get_close_matches(_core(name[:_LONGEST_QUOTE]), by_core, n=1)
    return by_core[found[0]] if found else None


def _core(name: str) -> str:
    """Leave out in what spellings of one name differ: `instanceCount` and `instance-count`."""
    return name.lower().replace("_", "").replace("-", "")
