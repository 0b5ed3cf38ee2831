"""HTML and SVG as safe text: what is not markup is escaped, terminal colours become classes."""

from __future__ import annotations

import re

from markupsafe import Markup, escape

from rankwise.safe_text import clean, fit


def escaped(text: str) -> Markup:
    """Make markup of a text: every character stands for itself."""
    return text if isinstance(text, Markup) else escape(fit(text))


def attributes(**given: str | bool | None) -> Markup:
    """Write attributes; `class_` is the attribute class, and `aria_label` aria-label.

    One that is True stands without a value, one that is False or None is left out.
    """
    written = []
    for key, value in given.items():
        name = key.rstrip("_").replace("_", "-")
        if value is True:
            written.append(f" {name}")
        elif value is not None and value is not False:
            written.append(f' {name}="{escaped(str(value))}"')
    return Markup("".join(written))


_COLOUR = re.compile(r"\x1b\[([0-9;:]*)m")
# A progress bar may be one line of a megabyte.
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
            parts.append(
                Markup('<span class="{}">{}</span>').format(names, text) if names else text
            )
        if len(shown) < len(piece):
            parts.append(escaped(" …"))
            break
    return Markup("".join(parts))


def _after(classes: set[str], codes: str) -> set[str]:
    """Return what counts after a sequence: the colour of letters, and whether they are bold."""
    # Backgrounds are left out: a page has its own.
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
