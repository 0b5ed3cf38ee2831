"""Line plots, heatmaps, bars and sparklines."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from markupsafe import Markup

from rankwise.reports.measurements import Spread, Trend
from rankwise.reports.plots import svg
from rankwise.reports.plots.axes import BYTES, Axis, axis_for, labelled, number_text
from rankwise.reports.plots.svg import Point
from rankwise.reports.rendering import macros
from rankwise.wording import moment

_WIDTH = 560.0
_ROW, _BARS_TOP, _BARS_BOTTOM = 26.0, 8.0, 10.0
_FOR_BAR_NAMES, _FOR_NUMBERS = 270.0, 110.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One bar, and what is written at its end."""

    name: str
    value: float
    said: str
    low: float | None = None
    high: float | None = None


def bar_plot(bars: Sequence[Bar], label: str) -> Markup:
    """Draw bars from zero, one below the other; what is negative or not finite has no length."""
    drawn = [bar for bar in bars if math.isfinite(bar.value)]
    tops = [bar.high if bar.high is not None else bar.value for bar in drawn]
    axis = axis_for([0.0, *(top for top in tops if math.isfinite(top))], is_log=False)
    names = svg.fitted([bar.name for bar in drawn], _FOR_BAR_NAMES)
    left = 12 + max(map(svg.width_of, names), default=0)
    room = _WIDTH - left - _FOR_NUMBERS

    def place(value: float) -> float:
        return left + room * max(0.0, axis.at(value))

    rows = []
    for row, (bar, name) in enumerate(zip(drawn, names, strict=True)):
        is_range = bar.low is not None and bar.high is not None and bar.high > bar.low
        ends = [place(one) for one in (bar.low, bar.high) if one is not None and is_range]
        rows.append((bar, name, _BARS_TOP + (row + 0.5) * _ROW, place(bar.value), ends))
    height = _BARS_TOP + len(drawn) * _ROW + _BARS_BOTTOM
    return macros("reports/plots").bars(_WIDTH, height, label, left, rows)


_HEATMAP_TOP, _HEATMAP_BOTTOM = 34.0, 46.0
_TALLEST, _LOWEST = 52.0, 20.0
# So high are all rows together, if they fit.
_HEATMAP_HEIGHT = 220.0
_FOR_TICK_NAMES = 140.0
_PALEST, _STRONGEST = 0.07, 0.95
_KEY_STEPS = 12


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
    rows, names = (svg.fitted(some, _FOR_TICK_NAMES) for some in (down, across))
    left = 40 + max(map(svg.width_of, rows), default=0)
    wide = (_WIDTH - left - 12) / max(1, len(across))
    tall = min(_TALLEST, max(_LOWEST, _HEATMAP_HEIGHT / max(1, len(down))))
    # Narrower fields have no room for three digits.
    is_written = wide >= 38
    fields = []
    for (row, name), (column, other) in product(enumerate(down), enumerate(across)):
        if (value := finite.get((other, name))) is None:
            continue
        share = 0.5 if high == low else 0.0
        if high > low and axis.shows(value):
            share = (axis.at(value) - low) / (high - low)
        x, y = left + column * wide, _HEATMAP_TOP + row * tall
        title = f"{words[0]} {other}, {words[1]} {name}: {number_text(value)} {unit}".rstrip()
        said = number_text(value, 3) if is_written else ""
        fields.append((x, y, wide, tall, _opacity(share), title, said))
    bottom = _HEATMAP_TOP + len(down) * tall
    # Only as many names as do not run into each other.
    step = max(1, math.ceil(max((svg.width_of(one) + 8 for one in names), default=1) / wide))
    last = f"{number_text(greatest, 3)} {unit}{', logarithmic' if axis.is_log else ''}".strip()
    return macros("reports/plots").heatmap(
        _WIDTH,
        bottom + _HEATMAP_BOTTOM,
        words,
        left - 8,
        ((left + _WIDTH) / 2, (_HEATMAP_TOP + bottom) / 2),
        bottom,
        fields,
        [(_HEATMAP_TOP + (row + 0.5) * tall + 4, name) for row, name in enumerate(rows)],
        [(left + (at + 0.5) * wide, names[at]) for at in range(0, len(names), step)],
        {
            "first": number_text(least, 3),
            "last": last,
            "right": _WIDTH - 14 - svg.width_of(last),
            "shades": [_opacity(step / (_KEY_STEPS - 1)) for step in range(_KEY_STEPS)],
        },
    )


def _opacity(share: float) -> float:
    return _PALEST + (_STRONGEST - _PALEST) * share


WIDTH, HEIGHT = 560.0, 330.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 72.0, 18.0, 14.0, 48.0
_LEGEND_ROW = 18.0
_FOR_NAMES = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """One value of a line, and between what it varies."""

    x: float
    y: float
    low: float
    high: float
    note: str = ""
    """What a pointer that rests on it is shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line."""

    name: str
    dots: Sequence[Dot]


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """What is written at the axes."""

    x: str
    y: str
    x_unit: str = ""
    y_unit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Area:
    """Where on the drawing the axes are."""

    x: Axis
    y: Axis
    top: float

    @property
    def bottom(self) -> float:
        return HEIGHT - _BOTTOM + self.top - _TOP

    def place(self, x: float, y: float) -> Point:
        across = _LEFT + self.x.at(x) * (WIDTH - _LEFT - _RIGHT)
        return across, self.bottom - self.y.at(y) * (self.bottom - self.top)


def line_plot(
    series: Sequence[Series],
    words: Words,
    *,
    ideal: Sequence[tuple[float, float]] = (),
    changes: Iterable[float] = (),
    x_labels: Sequence[tuple[float, str]] = (),
    y_is_log: bool | None = None,
) -> tuple[Markup, int]:
    """Draw lines; also says how many values could not be drawn.

    `ideal` is a line to compare with, `changes` are places on the x axis where something changed,
    and `x_labels` is written there in place of numbers.
    """
    all_dots = [dot for one in series for dot in one.dots]
    x = axis_for(
        [dot.x for dot in all_dots],
        in_bytes=words.x_unit == BYTES,
        own_ticks=True,
        is_log=False if x_labels else None,
    )
    # Runs are beside each other at equal distances, whatever their numbers.
    if x_labels:
        ends = [place for place, _ in x_labels]
        x = Axis(low=min(ends), high=max(ends), ticks=_thinned(x_labels))
    seen = [value for dot in all_dots for value in (dot.low, dot.y, dot.high)]
    y = axis_for([*seen, *(b for _, b in ideal)], in_bytes=words.y_unit == BYTES, is_log=y_is_log)
    legend = _legend([one.name for one in series])
    area = _Area(x=x, y=y, top=legend[-1][1] + _LEGEND_ROW if legend else _TOP)
    shown = [area.place(a, b) for a, b in ideal if x.shows(a) and y.shows(b)]
    fitting = [[dot for dot in one.dots if x.shows(dot.x) and y.shows(dot.y)] for one in series]
    drawn = macros("reports/plots").lines(
        WIDTH,
        area.bottom + _BOTTOM,
        f"{words.y} against {words.x}",
        words,
        (_LEFT, WIDTH - _RIGHT, area.top, area.bottom),
        legend,
        [(area.place(value, y.low)[0], label) for value, label in x.ticks],
        [(area.place(x.low, value)[1], label) for value, label in y.ticks],
        svg.path(shown) if len(ideal) > 1 else "",
        [area.place(one, y.low)[0] for one in changes],
        [_drawn(area, dots) for dots in fitting],
    )
    return drawn, sum(len(one.dots) for one in series) - sum(map(len, fitting))


def history_plot(words: Words, trend: Trend, *, has_band: bool) -> Markup:
    """Draw a value over runs, with lines where a new level begins."""
    dots = []
    for at, one in enumerate(trend.moments):
        middle, low, high = one.spread.middle, one.spread.low, one.spread.high
        said = f"{one.run}: {number_text(middle)} {words.y_unit}".rstrip()
        note = f"{said}, {moment(one.created)}"
        ends = (low, high) if has_band else (middle, middle)
        dots.append(Dot(x=float(at), y=middle, low=ends[0], high=ends[1], note=note))
    # All have the same name: the number of the run tells them apart.
    labels = [(float(at), one.run.rpartition("-")[2]) for at, one in enumerate(trend.moments)]
    changes = [turn.change.at - 0.5 for turn in trend.turns]
    return line_plot([Series(name="", dots=dots)], words, x_labels=labels, changes=changes)[0]


def _thinned(labels: Sequence[tuple[float, str]]) -> tuple[tuple[float, str], ...]:
    widest = max(svg.width_of(words) for _, words in labels)
    room = max(1, int((WIDTH - _LEFT - _RIGHT) / (widest + 10)))
    step = -(-len(labels) // room)
    # The last one is what people look for.
    return tuple(reversed(labels[::-1][::step]))


def _legend(names: Sequence[str]) -> list[tuple[float, float, str, str]]:
    """Return where the names of lines are above the plot, and a piece of each line."""
    # One alone needs no name.
    if len(names) < 2:
        return []
    parts = []
    across, middle = _LEFT, _TOP
    for short in svg.fitted(names, _FOR_NAMES):
        needed = 34 + svg.width_of(short) + 14
        if across > _LEFT and across + needed > WIDTH - _RIGHT:
            across, middle = _LEFT, middle + _LEGEND_ROW
        piece = svg.path([(across, middle), (across + 26, middle)])
        parts.append((across, middle, short, piece))
        across += needed
    return parts


def _drawn(area: _Area, dots: Sequence[Dot]) -> tuple[str, Sequence[float], str, list[object]]:
    """Return the band of a line, or what one dot varies between; its way; and its dots."""
    shown = [dot for dot in dots if area.y.shows(dot.high)]
    upper = [area.place(dot.x, dot.high) for dot in shown]
    # What a logarithmic axis has no place for is at its end.
    lows = (dot.low if area.y.shows(dot.low) else area.y.low for dot in shown)
    lower = [area.place(dot.x, low) for dot, low in zip(shown, lows, strict=True)]
    # A band of no height would be a hairline.
    has_band = upper != lower
    places = [area.place(dot.x, dot.y) for dot in dots]
    return (
        svg.path([*upper, *reversed(lower)]) if has_band and len(upper) > 1 else "",
        (*upper[0], *lower[0]) if has_band and len(upper) == 1 else (),
        svg.path(places) if len(places) > 1 else "",
        [(*place, dot.note) for place, dot in zip(places, dots, strict=True)],
    )


def note_for(words: Words, place: float, one: Spread) -> str:
    """Say what one value is, for a pointer that rests on it."""
    where = f"{words.x} {labelled(place, in_bytes=words.x_unit == BYTES)}"
    said = f"{where}: {labelled(one.middle)} {words.y_unit}".rstrip()
    if one.count < 2:
        return said
    return f"{said} ({labelled(one.low)} to {labelled(one.high)}, {one.count} values)"


_SPARKLINE_WIDTH, _SPARKLINE_HEIGHT = 120, 28
# More points than this are closer to each other than the eye can tell.
_MOST_POINTS = 32


def outline(times: Sequence[float], values: Sequence[float], least: float) -> str:
    """Draw values over time, from zero to the highest of them, or to `least` if that is higher."""
    points = _highest_points(
        [(time, max(0.0, value)) for time, value in zip(times, values, strict=True)]
    )
    # A sample at zero, or none at all, must not end in a division by zero.
    end = max((time for time, _ in points), default=0.0) or 1.0
    top = max(least, *(value for _, value in points), 0.0) or 1.0
    across = [round(_SPARKLINE_WIDTH * time / end) for time, _ in points]
    # A line at the very edge would be cut in half.
    high = _SPARKLINE_HEIGHT - 3
    down = [round(_SPARKLINE_HEIGHT - 1 - high * value / top) for _, value in points]
    # From the left edge on: the first sample is taken some time after the start.
    places = zip([0, *across], [*down[:1], *down], strict=True)
    drawn = "L".join(f"{x} {y}" for x, y in places) if points else "0 0"
    return f"M{drawn}V{_SPARKLINE_HEIGHT}H0Z"


def _highest_points(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Keep the highest of neighbours: peaks are what people look for."""
    step = -(-len(points) // _MOST_POINTS) or 1
    starts = range(0, len(points), step)
    return [max(points[at : at + step], key=lambda point: point[1]) for at in starts]
