"""Lines over an axis, each with a band of how much its values vary."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rankwise.report.markup import Markup
from rankwise.report.plots import svg
from rankwise.report.plots.numerals import BYTES, labelled
from rankwise.report.plots.scale import Axis, axis_for

WIDTH, HEIGHT = 560.0, 330.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 72.0, 18.0, 14.0, 48.0
_LEGEND_ROW = 18.0
_LONGEST_NAME = 40


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

    @property
    def label(self) -> str:
        return f"{self.y} against {self.x}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Area:
    """Where on the drawing the axes are."""

    x: Axis
    y: Axis
    top: float

    @property
    def bottom(self) -> float:
        return HEIGHT - _BOTTOM + self.top - _TOP

    def place(self, x: float, y: float) -> tuple[float, float]:
        across = _LEFT + self.x.at(x) * (WIDTH - _LEFT - _RIGHT)
        return across, self.bottom - self.y.at(y) * (self.bottom - self.top)


def line_plot(
    series: Sequence[Series],
    words: Words,
    *,
    ideal: Sequence[tuple[float, float]] = (),
    changes: Iterable[float] = (),
    x_labels: Sequence[tuple[float, str]] = (),
    x_is_log: bool | None = None,
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
        is_log=False if x_labels else x_is_log,
    )
    if x_labels:
        ends = [place for place, _ in x_labels]
        x = Axis(low=min(ends), high=max(ends), ticks=_thinned(x_labels))
    seen = [value for dot in all_dots for value in (dot.low, dot.y, dot.high)]
    y = axis_for([*seen, *(b for _, b in ideal)], in_bytes=words.y_unit == BYTES, is_log=y_is_log)
    legend, rows = _legend([one.name for one in series])
    area = _Area(x=x, y=y, top=_TOP + rows * _LEGEND_ROW)
    parts = [*legend, *_axes(area, words)]
    if len(ideal) > 1:
        shown = [area.place(a, b) for a, b in ideal if x.shows(a) and y.shows(b)]
        parts.append(svg.path(shown, "ideal", ' fill="none"'))
    for place in changes:
        across, _ = area.place(place, y.low)
        parts.append(svg.line(across, area.top, across, area.bottom, "change"))
    left_out = 0
    for number, one in enumerate(series):
        fits = [dot for dot in one.dots if x.shows(dot.x) and y.shows(dot.y)]
        left_out += len(one.dots) - len(fits)
        parts += _drawn(area, fits, number)
    height = area.bottom + _BOTTOM
    return svg.drawing(WIDTH, height, words.label, parts), left_out


def _thinned(labels: Sequence[tuple[float, str]]) -> tuple[tuple[float, str], ...]:
    widest = max(svg.width_of(words) for _, words in labels)
    room = max(1, int((WIDTH - _LEFT - _RIGHT) / (widest + 10)))
    step = -(-len(labels) // room)
    # The last one is what people look for.
    return tuple(reversed(labels[::-1][::step]))


def _legend(names: Sequence[str]) -> tuple[list[Markup], int]:
    """Name the lines above the plot, in as many rows as it takes; one alone needs no name."""
    if len(names) < 2:
        return [], 0
    parts: list[Markup] = []
    across, row = _LEFT, 0
    for number, name in enumerate(names):
        short = name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"
        needed = 34 + svg.width_of(short) + 14
        if across > _LEFT and across + needed > WIDTH - _RIGHT:
            across, row = _LEFT, row + 1
        middle = _TOP + row * _LEGEND_ROW
        parts.append(_stroke([(across, middle), (across + 26, middle)], number))
        parts.append(svg.mark(across + 13, middle, number))
        parts.append(svg.text(across + 32, middle + 4, short))
        across += needed
    return parts, row + 1


def _axes(area: _Area, words: Words) -> Iterator[Markup]:
    for value, label in area.y.ticks:
        _, down = area.place(area.x.low, value)
        yield svg.line(_LEFT, down, WIDTH - _RIGHT, down, "grid")
        yield svg.text(_LEFT - 8, down + 4, label, anchor="end", kind="faint")
    for value, label in area.x.ticks:
        across, _ = area.place(value, area.y.low)
        yield svg.line(across, area.bottom, across, area.bottom + 4, "axis")
        yield svg.text(across, area.bottom + 18, label, anchor="middle", kind="faint")
    yield svg.line(_LEFT, area.bottom, WIDTH - _RIGHT, area.bottom, "axis")
    middle = (area.top + area.bottom) / 2
    yield svg.text((_LEFT + WIDTH - _RIGHT) / 2, area.bottom + 38, words.x, anchor="middle")
    named = f"{words.y} ({words.y_unit})" if words.y_unit else words.y
    yield svg.text(14, middle, named, anchor="middle", turn=True)


def _drawn(area: _Area, dots: Sequence[Dot], number: int) -> Iterator[Markup]:
    kind = number % svg.SERIES
    lowest = area.y.low
    upper = [area.place(dot.x, dot.high) for dot in dots if area.y.shows(dot.high)]
    lower = [
        area.place(dot.x, dot.low if area.y.shows(dot.low) else lowest)
        for dot in dots
        if area.y.shows(dot.high)
    ]
    if len(upper) > 1 and upper != lower:
        yield svg.path([*upper, *reversed(lower)], f"f{kind}", ' fill-opacity=".16"')
    places = [area.place(dot.x, dot.y) for dot in dots]
    if len(upper) == 1 and upper != lower:
        yield svg.line(*upper[0], *lower[0], f"s{kind}")
    if len(places) > 1:
        yield _stroke(places, number)
    for (across, down), dot in zip(places, dots, strict=True):
        yield svg.mark(across, down, number, dot.note)


def _stroke(places: Sequence[tuple[float, float]], number: int) -> Markup:
    kind = number % svg.SERIES
    dash = f' stroke-dasharray="{svg.DASHES[kind]}"' if svg.DASHES[kind] else ""
    return svg.path(places, f"s{kind}", f' fill="none" stroke-width="2"{dash}')


def note_for(words: Words, dot: Dot, count: int) -> str:
    """Say what one value is, for a pointer that rests on it."""
    where = f"{words.x} {labelled(dot.x, in_bytes=words.x_unit == BYTES)}"
    said = f"{where}: {labelled(dot.y)} {words.y_unit}".rstrip()
    if count < 2:
        return said
    return f"{said} ({labelled(dot.low)} to {labelled(dot.high)}, {count} values)"
