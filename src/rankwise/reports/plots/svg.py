"""Places, forms and widths of words in drawings; their SVG is in templates/plots.html.j2."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rankwise.safe_text import clip_apart

SERIES = 8
"""So many lines can be told apart by colour, dash and mark."""

Point = tuple[float, float]
_MARK_SIZE = 3.2
_MARKS: Sequence[Sequence[Point]] = (
    [(0, -1), (0.87, -0.5), (0.87, 0.5), (0, 1), (-0.87, 0.5), (-0.87, -0.5)],
    [(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)],
    [(0, -1.2), (1.1, 0.9), (-1.1, 0.9)],
    [(0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)],
    [(-1.1, -0.9), (1.1, -0.9), (0, 1.2)],
)


def coordinate(value: float) -> str:
    """Write a coordinate as shortly as the eye allows."""
    return f"{value:.1f}".removesuffix(".0")


def path(points: Iterable[Point]) -> str:
    """Write the way through points."""
    return "M" + "L".join(f"{coordinate(x)} {coordinate(y)}" for x, y in points)


def corners(x: float, y: float, number: int) -> str:
    """Write the corners of the mark of a line."""
    form = ((x + a * _MARK_SIZE, y + b * _MARK_SIZE) for a, b in _MARKS[number % len(_MARKS)])
    return " ".join(f"{coordinate(across)},{coordinate(down)}" for across, down in form)


# The widest of the fonts of pages and of PDF, where letters are larger.
_WIDTHS = {**dict.fromkeys("fijlrst.,:;'|!()[]/- ", 5.5), **dict.fromkeys("mwMW@%", 13.5)}


def width_of(words: str) -> float:
    """Guess how wide words are at the size of a plot's text."""
    return sum(_WIDTHS.get(one, 7.6 if one.islower() or one.isdigit() else 11.0) for one in words)


def fitted(names: Sequence[str], room: float) -> list[str]:
    """Shorten names to a width; names that differ still do."""
    most = max(map(len, names), default=0)
    while most > 1 and max(map(width_of, found := clip_apart(names, most)), default=0) > room:
        # By how much they are too wide is nearly by how much they are too long.
        most = min(most - 1, int(most * room / max(map(width_of, found))) + 2)
    return clip_apart(names, most)
