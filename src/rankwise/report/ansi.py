"""The colours of terminals on a page; all else that terminals obey is left out."""

from __future__ import annotations

import re

from rankwise.report.markup import Markup, escaped, tag
from rankwise.report.terminal import clean

_COLOUR = re.compile(r"\x1b\[([0-9;:]*)m")
_MOST_LETTERS = 400


def as_markup(line: str, *, most: int = _MOST_LETTERS) -> Markup:
    """Make markup of one line that a process has written; a long one is cut."""
    kept = clean(line, keep_colours=True)
    pieces = _COLOUR.split(kept)
    parts: list[Markup] = []
    classes: set[str] = set()
    room = most
    for number, piece in enumerate(pieces):
        if number % 2:
            classes = _after(classes, piece)
            continue
        shown = piece[:room]
        room -= len(shown)
        if shown:
            text = escaped(shown)
            names = " ".join(sorted(classes))
            parts.append(tag("span", text, class_=names) if names else text)
        if len(shown) < len(piece):
            parts.append(escaped(" …"))
            break
    return Markup("".join(parts))


def without_colours(line: str) -> str:
    """Give one line as plain text; a long one is cut."""
    plain = clean(line, keep_colours=False)
    return plain if len(plain) <= _MOST_LETTERS else f"{plain[:_MOST_LETTERS]} …"


def _after(classes: set[str], codes: str) -> set[str]:
    """Give what counts after a sequence: the colour of letters, and whether they are bold."""
    now = set(classes)
    for code in re.split("[;:]", codes):
        number = int(code) if code.isdigit() and len(code) < 4 else 0
        if number in (38, 48):
            # One of many colours: what follows are its numbers.
            break
        if number in (0, 39):
            now = {one for one in now if number and not one.startswith("a")}
        elif number == 1:
            now.add("b")
        elif number == 22:
            now.discard("b")
        elif 30 <= number <= 37 or 90 <= number <= 97:
            now = {one for one in now if not one.startswith("a")} | {f"a{number % 10}"}
    return now
