"""Bars beside names, with how much each value varies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rankwise.report.markup import Markup
from rankwise.report.plots import svg
from rankwise.report.plots.scale import axis_for

_WIDTH = 560.0
_ROW, _TOP, _BOTTOM = 26.0, 8.0, 10.0
_LONGEST_NAME = 36
_FOR_NUMBERS = 110.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One bar, and what is written at its end."""

    name: str
    value: float
    said: str
    low: float | None = None
    high: float | None = None
    series: int = 0


def bar_plot(bars: Sequence[Bar], label: str) -> Markup:
    """Draw bars from zero, one below the other; what is negative or not finite has no length."""
    drawn = [bar for bar in bars if math.isfinite(bar.value)]
    tops = [bar.high if bar.high is not None else bar.value for bar in drawn]
    axis = axis_for([0.0, *(top for top in tops if math.isfinite(top))], is_log=False)
    left = 12 + max((svg.width_of(_short(bar.name)) for bar in drawn), default=0)
    room = _WIDTH - left - _FOR_NUMBERS
    parts = []
    for row, bar in enumerate(drawn):
        middle = _TOP + (row + 0.5) * _ROW
        end = left + room * max(0.0, axis.at(bar.value))
        parts.append(svg.text(left - 8, middle + 4, _short(bar.name), anchor="end"))
        kind = f"f{bar.series % svg.SERIES}"
        title = f"{bar.name}: {bar.said}"
        parts.append(
            svg.rectangle(
                left, middle - 8, max(1.0, end - left), 16, kind, opacity=0.85, title=title
            )
        )
        furthest = end
        if bar.low is not None and bar.high is not None and bar.high > bar.low:
            low, furthest = (left + room * max(0.0, axis.at(one)) for one in (bar.low, bar.high))
            parts.append(svg.line(low, middle, furthest, middle, "axis"))
            parts += [svg.line(one, middle - 4, one, middle + 4, "axis") for one in (low, furthest)]
        parts.append(svg.text(max(end, furthest) + 8, middle + 4, bar.said, kind="strong"))
    height = _TOP + len(drawn) * _ROW + _BOTTOM
    return svg.drawing(_WIDTH, height, label, parts)


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"
