"""HTML and SVG as text that is safe: whatever is not markup already is escaped."""

from __future__ import annotations

import re
from collections.abc import Iterable

from rankwise.report.terminal import clean

# What no document may contain, and what would hide or turn around the words beside it.
_UNFIT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ufffe\uffff]")
_LONE = re.compile("[\ud800-\udfff]")
_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;"})


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


def fit(text: str) -> str:
    """Take out of a text what no document may contain."""
    if text.isascii() and text.isprintable():
        return text
    if "\x1b" in text:
        text = clean(text, keep_colours=False)
    return _LONE.sub("\ufffd", _UNFIT.sub("", text))


def escaped(text: str) -> Markup:
    """Make markup of a text: every character stands for itself."""
    return text if isinstance(text, Markup) else Markup(fit(text).translate(_ENTITIES))


def joined(parts: Iterable[str]) -> Markup:
    """Put parts together, one after the other."""
    return Markup("".join(map(escaped, parts)))


def tag(name: str, *content: str, **attributes: str | bool | None) -> Markup:
    """Make an element; `class_` is the attribute class, and `aria_label` aria-label.

    An attribute that is True stands without a value, one that is False or None is left out.
    """
    written = []
    for key, value in attributes.items():
        attribute = key.rstrip("_").replace("_", "-")
        if value is True:
            written.append(f" {attribute}")
        elif value is not None and value is not False:
            written.append(f' {attribute}="{escaped(str(value))}"')
    inner = joined(content)
    return Markup(f"<{name}{''.join(written)}>{inner}</{name}>")
