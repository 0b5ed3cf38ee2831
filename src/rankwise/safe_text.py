"""Text from programs made safe: nothing in it that a terminal, a page or XML obeys."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile


def harmless(text: str) -> str:
    """Show what a terminal would obey, and leave the ends of lines."""
    return "".join(one if one.isprintable() or one == "\n" else repr(one)[1:-1] for one in text)


_MOST_LETTERS = 400


def cut(text: str, most: int = _MOST_LETTERS) -> str:
    """Shorten a text that is too long to read."""
    return text if len(text) <= most else f"{text[:most]} …"


def clip(text: str, most: int) -> str:
    """Shorten a name to so many letters, where it must fit into a width."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def clip_apart(names: Sequence[str], most: int) -> list[str]:
    """Shorten names to so many letters; names that differ still do, if there is a way to that."""
    found = [clip(name, most) for name in names]
    # Many names differ only at their end, and of some of them, even the ends are long.
    common = sum(1 for _ in takewhile(lambda some: len(set(some)) == 1, zip(*names, strict=False)))
    for ways in (names, [f"…{name[common:]}" for name in names]):
        if len(set(found)) < len(set(names)):
            found = [clip_middle(name, most) for name in ways]
    return found


def clip_middle(text: str, most: int) -> str:
    """Shorten a name that may differ from others only at its end."""
    first = most // 2
    return text if len(text) <= most else f"{text[:first]}…{text[len(text) - most + first + 1 :]}"


_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
# Every other sequence moves the cursor, clears, sets titles or asks the terminal something.
_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_RESET = "\x1b[0m"


def clean(text: str, *, keep_colours: bool = False) -> str:
    """Remove from a line what does more to a terminal than show text."""
    if text.isprintable():
        return text
    if "\x1b" not in text:
        return _CONTROL.sub("", text)
    if not keep_colours:
        return _CONTROL.sub("", _SEQUENCE.sub("", text))
    colours = _COLOUR.findall(text)
    pieces = (_CONTROL.sub("", _SEQUENCE.sub("", piece)) for piece in _COLOUR.split(text))
    cleaned = "".join(piece + colour for piece, colour in zip(pieces, [*colours, ""], strict=True))
    return cleaned + _RESET if colours else cleaned


# What XML 1.0 has no place for, escaped or not.
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_LONGEST_XML = 100_000


def fit_for_xml(text: str) -> str:
    """Make a text fit for XML: no colours, and a mark for what XML cannot hold."""
    lines = (clean(line) for line in text[:_LONGEST_XML].split("\n"))
    return _NO_XML.sub("\ufffd", "\n".join(lines))


def one_line(text: str, most: int) -> str:
    """Make one line of the beginning of a text, fit for XML."""
    return " ".join(fit_for_xml(text[:most]).split())


# What no document may contain, and what would hide or turn around the words beside it.
_UNFIT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ufffe\uffff]")
_LONE = re.compile("[\ud800-\udfff]")


def fit(text: str) -> str:
    """Take out of a text what no document may contain."""
    if text.isascii() and text.isprintable():
        return text
    if "\x1b" in text:
        text = clean(text)
    return _LONE.sub("\ufffd", _UNFIT.sub("", text))
