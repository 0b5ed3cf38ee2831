"""Outputs, line by line: without colours, and without lines that are no text."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator

# No table has longer lines; a log may have one of 50 MB.
_LONGEST = 10_000
_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
# Digits that people of other scripts write are numbers to Python, and 1_000 is as well.
_NUMBER = re.compile(
    r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[+-]?(?:nan|inf(?:inity)?)",
    re.IGNORECASE | re.ASCII,
)


def lines_of(text: str) -> Iterator[str]:
    """Give the lines of a text, as they are read when colours are taken away."""
    for line in io.StringIO(text, newline="\n"):
        if len(line) <= _LONGEST:
            yield plain(line.rstrip("\n"))


def plain(text: str) -> str:
    """Take out of a text whatever no person sees on a terminal."""
    if text.isprintable():
        return text
    # What was printed over is gone: of a line with a progress bar, the last part counts.
    seen = text.rstrip("\r").rpartition("\r")[2]
    return _CONTROL.sub("", _SEQUENCE.sub("", seen))


def number_in(word: str) -> float | None:
    """Give the number that a word is, which may be one that is no value; None: it is none."""
    return float(word) if _NUMBER.fullmatch(word) else None


def numbers_in(line: str) -> list[float]:
    """Give the numbers that a line consists of; empty if there is anything else in it."""
    numbers = [number_in(word) for word in line.split()]
    return [] if None in numbers else [number for number in numbers if number is not None]


def size_in(number: float) -> int | None:
    """Give the size of a message that a number may be; None: it is none."""
    return int(number) if math.isfinite(number) and number >= 0 and number.is_integer() else None
