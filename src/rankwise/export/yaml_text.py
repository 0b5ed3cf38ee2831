"""Writes plain data as YAML that every reader takes for the same, whichever version it follows.

Kubernetes and Azure ML read YAML 1.1, where `on` is a truth value and `1:30` a number; others read
1.2. So a text stands without quotes only if no reader can take it for anything else, and long texts
are written as blocks, for people to read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

# A letter first, and nothing that YAML gives a meaning to. A word of a few letters may be a truth
# value; the longer ones among those are known.
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./@-]*(?:[:=+][A-Za-z0-9_./@-]+)*(?: [A-Za-z0-9_./@-]+)*")
_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null", "none", "nan"})
# What may stand in a block: what is printed, and no line ends but \n.
_BLOCK = re.compile(
    "[\t\n\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]+"
)
_PRINTED = re.compile(
    "[\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r", "\0": "\\0"}


def to_yaml(documents: Iterable[Mapping[str, Any]]) -> str:
    """Write documents, with a line between them."""
    return "---\n".join("".join(f"{line}\n" for line in _mapping(one, 0)) for one in documents)


def _lines(value: Any, depth: int) -> Iterator[str]:
    """Give the lines of a value; the first one continues the line of its key."""
    if isinstance(value, Mapping) and value:
        yield ""
        yield from _mapping(value, depth)
    elif isinstance(value, Sequence) and not isinstance(value, str) and value:
        yield ""
        for entry in value:
            # What is in an entry stands two further in, its first line beside the dash.
            first, *rest = _lines(entry, depth + 1)
            if not first and rest:
                first, *rest = rest
                first = " " + first.lstrip(" ")
            yield "  " * depth + "-" + first
            yield from rest
    elif isinstance(value, str) and _is_block(value):
        yield " |" if value.endswith("\n") else " |-"
        for line in value.removesuffix("\n").split("\n"):
            yield "  " * depth + line if line else ""
    else:
        yield f" {_scalar(value)}"


def _mapping(value: Mapping[str, Any], depth: int) -> Iterator[str]:
    for key, entry in value.items():
        first, *rest = _lines(entry, depth + 1)
        yield "  " * depth + _text(key) + ":" + first
        yield from rest


def _is_block(text: str) -> bool:
    """Tell whether a text has several lines, and is read back from a block as it is."""
    return (
        "\n" in text.removesuffix("\n")
        and text[0] not in " \t\n"
        and not text.endswith("\n\n")
        # A line of blanks alone may be taken for indentation.
        and not any(line.isspace() for line in text.split("\n"))
        and _BLOCK.fullmatch(text) is not None
    )


def _scalar(value: Any) -> str:
    match value:
        case str():
            return _text(value)
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return repr(value)
        case None:
            return "null"
        case Mapping():
            return "{}"
        case Sequence():
            return "[]"
    raise TypeError(f"{type(value).__name__} cannot be written as YAML")


def _text(text: str) -> str:
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        return text
    return '"' + "".join(map(_letter, text)) + '"'


def _letter(letter: str) -> str:
    if letter in _ESCAPES:
        return _ESCAPES[letter]
    if _PRINTED.fullmatch(letter):
        return letter
    number = ord(letter)
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"
