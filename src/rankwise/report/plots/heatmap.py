"""Heatmaps: one value for each pair of two parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rankwise.report.markup import Markup
from rankwise.report.plots import svg
from rankwise.report.plots.numerals import number
from rankwise.report.plots.scale import axis_for

_WIDTH = 560.0
_TOP, _BOTTOM = 34.0, 46.0
_TALLEST, _LOWEST = 52.0, 20.0
# So high are all rows together, if they fit.
_HEIGHT = 220.0
_LONGEST_NAME = 18
_PALEST, _STRONGEST = 0.07, 0.95
# Above this, letters are set in the colour that stands out against a dark field.
_DARK = 0.55


def heatmap(
    values: Mapping[tuple[str, str], float],
    across: Sequence[str],
    down: Sequence[str],
    *,
    words: tuple[str, str],
    unit: str = "",
) -> Markup:
    """Draw a field for each pair of (across, down) that has a finite value."""
    finite = {pair: value for pair, value in values.items() if math.isfinite(value)}
    axis = axis_for(finite.values())
    # What has no place on a logarithmic axis is zero: the palest of all.
    placed = [value for value in finite.values() if axis.shows(value)] or [axis.low]
    least, greatest = min(placed), max(placed)
    low, high = axis.at(least), axis.at(greatest)
    left = 40 + max((svg.width_of(_short(name)) for name in down), default=0)
    wide = (_WIDTH - left - 12) / max(1, len(across))
    tall = min(_TALLEST, max(_LOWEST, _HEIGHT / max(1, len(down))))
    is_written = wide >= 38
    parts = []
    for row, name in enumerate(down):
        middle = _TOP + (row + 0.5) * tall
        parts.append(svg.text(left - 8, middle + 4, _short(name), anchor="end", kind="faint"))
        for column, other in enumerate(across):
            value = finite.get((other, name))
            if value is None:
                continue
            share = 0.5 if high == low else 0.0
            if high > low and axis.shows(value):
                share = (axis.at(value) - low) / (high - low)
            opacity = _PALEST + (_STRONGEST - _PALEST) * share
            x = left + column * wide
            title = f"{words[0]} {other}, {words[1]} {name}: {number(value)} {unit}".rstrip()
            parts.append(
                svg.rectangle(
                    x + 1,
                    _TOP + row * tall + 1,
                    wide - 2,
                    tall - 2,
                    "heat",
                    opacity=opacity,
                    title=title,
                )
            )
            if is_written:
                kind = "on cell" if opacity > _DARK else "strong cell"
                written = number(value, 3)
                parts.append(
                    svg.text(x + wide / 2, middle + 4, written, anchor="middle", kind=kind)
                )
    bottom = _TOP + len(down) * tall
    step = max(
        1, math.ceil(max((svg.width_of(_short(one)) + 8 for one in across), default=1) / wide)
    )
    for column in range(0, len(across), step):
        middle = left + (column + 0.5) * wide
        parts.append(
            svg.text(middle, bottom + 16, _short(across[column]), anchor="middle", kind="faint")
        )
    parts.append(svg.text((left + _WIDTH) / 2, bottom + 36, words[0], anchor="middle"))
    parts.append(svg.text(14, (_TOP + bottom) / 2, words[1], anchor="middle", turn=True))
    parts += _key(least, greatest, unit, is_log=axis.is_log)
    return svg.drawing(_WIDTH, bottom + _BOTTOM, f"{words[1]} against {words[0]}", parts)


def _key(least: float, greatest: float, unit: str, *, is_log: bool) -> list[Markup]:
    """Say what pale and strong mean."""
    steps = 12
    last = f"{number(greatest, 3)} {unit}{', logarithmic' if is_log else ''}".strip()
    right = _WIDTH - 14 - svg.width_of(last)
    parts = [svg.text(right + 6, 16, last, kind="faint")]
    for step in range(steps):
        opacity = _PALEST + (_STRONGEST - _PALEST) * step / (steps - 1)
        parts.append(svg.rectangle(right - (steps - step) * 9, 6, 9, 12, "heat", opacity=opacity))
    first = number(least, 3)
    parts.append(svg.text(right - steps * 9 - 6, 16, first, anchor="end", kind="faint"))
    return parts


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"
