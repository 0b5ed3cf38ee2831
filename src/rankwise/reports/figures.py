"""Which plots a run is worth, and what is said below each."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from rankwise.reports.measurements import Measure, Trend, as_number, varied_in
from rankwise.reports.plots import charts
from rankwise.reports.plots.axes import labelled, number_text, unit_of
from rankwise.reports.plots.charts import Bar, Dot, Series, Words
from rankwise.reports.plots.svg import SERIES
from rankwise.wording import counted, duration, grouped

MOST_FIGURES = 24
# The names that documents and benchmarks use for how many there are, and how large it is.
_RANKS = ("ranks", "np", "processes", "procs", "nodes", "workers", "gpus", "threads", "cores")
_SIZES = ("size", "message_size", "msg_size", "bytes", "message")
_TIMES = {"s", "ms", "us", "µs", "μs", "ns", "min", "h", "sec", "seconds"}
_MOST_FIELDS = 30
_MOST_DOTS = 200
_MOST_BARS = 16
# Two times are compared by reading them.
_FEWEST_TASKS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One plot with its words."""

    title: str
    note: str
    svg: Markup


def figures_of(
    measures: Sequence[Measure],
    trends: Sequence[tuple[Measure, Trend]],
    times: Sequence[tuple[str, float]],
) -> list[Figure]:
    """Draw what people would rather look at than read; `times` are names of cases with seconds."""
    by_metric = grouped(((one.metric, one.unit), one) for one in measures)
    # Values of two units have no axis in common.
    found = [
        one for (name, unit), rows in by_metric.items() for one in _of_metric(name, unit, rows)
    ]
    found += itertools.starmap(_trend, trends)
    if len(times) >= _FEWEST_TASKS:
        found.append(_slowest(times))
    return found[:MOST_FIGURES]


@dataclass(frozen=True, slots=True, kw_only=True)
class LineGroup:
    """What is drawn together."""

    rows: Sequence[Measure]
    across: str
    """The parameter along the axis, which all of them have; empty: they are beside each other."""
    rest: Sequence[str]
    """What else varies."""

    def lines(self) -> dict[str, list[Measure]]:
        """Part them into lines by name: no two of a line have the same place on the axis."""
        found: dict[tuple[str | None, ...], dict[float, Measure]] = {}
        for at, row in enumerate(self.rows):
            place = as_number(row.parameters[self.across]) if self.across else float(at)
            assert place is not None
            values = tuple(row.parameters.get(name) for name in self.rest)
            # Equal numbers that are written differently, such as 1K and 1024, are two cases.
            key = values
            while place in found.get(key, {}):
                key = (*key, "again")
            found.setdefault(key, {})[place] = row
        lines: dict[str, list[Measure]] = {}
        for places in found.values():
            measures = list(places.values())
            # Values that are written alike, such as 1K and 1024, have lines of their own.
            name = _name(measures[0], self.rest)
            others = (f"{name} ({number})".strip() for number in itertools.count(2))
            name = next(one for one in itertools.chain([name], others) if one not in lines)
            lines[name] = measures
        return dict(sorted(lines.items(), key=lambda one: _natural(one[0])))


def groups_of(rows: Sequence[Measure]) -> Iterator[LineGroup]:
    """Part the rows of a metric into what is drawn together: each row is in one group.

    What belongs to no point is apart from what does, and so is what lacks the axis of the others.
    """
    for has_point in (True, False):
        left = [row for row in rows if bool(row.points) == has_point]
        while left:
            varied = varied_in(row.parameters for row in left)
            numeric = [name for name in varied if _are_numbers(left, name)]
            across = _main_axis(left, numeric) if numeric else ""
            together = [row for row in left if not across or across in row.parameters]
            rest = [name for name in varied if name != across]
            yield LineGroup(rows=together, across=across, rest=rest)
            left = [row for row in left if across and across not in row.parameters]


def _of_metric(metric: str, unit: str, rows: Sequence[Measure]) -> Iterator[Figure]:
    """Draw one metric over what varies; one value alone is in the table only."""
    for group in groups_of(rows):
        if len(group.rows) < 2:
            continue
        if not group.across:
            yield _compared(metric, unit, group.rows, group.rest)
            continue
        yield _over(metric, unit, group)
        if group.across in _RANKS:
            yield from _scaling(metric, unit, group)
        if group.rest:
            yield from _field(metric, unit, group)


def _are_numbers(rows: Sequence[Measure], name: str) -> bool:
    return all(as_number(row.parameters.get(name, "0")) is not None for row in rows)


def _main_axis(rows: Sequence[Measure], names: Sequence[str]) -> str:
    """Choose what goes along: a point's axis, sizes, ranks, or what has the most values."""
    points = {name for row in rows for name in row.points}

    def weight(name: str) -> tuple[bool, bool, bool, int]:
        count = len({row.parameters.get(name) for row in rows})
        return name in points, name in _SIZES, name in _RANKS, count

    return max(names, key=weight)


def _over(metric: str, unit: str, group: LineGroup) -> Figure:
    rows, across = group.rows, group.across
    words = Words(x=_worded(across), x_unit=unit_of(across), y=_worded(metric), y_unit=unit)
    lines = _lines(group, words)
    # More lines cannot be told apart.
    shown = lines[:SERIES]
    plot, left_out = charts.line_plot(shown, words)
    spoken = [_band(rows), *_left_out(left_out, rows)]
    if len(lines) > len(shown):
        spoken.append(f"{len(shown)} of {len(lines)} lines are drawn; the table has all.")
    title = f"{_capital(_worded(metric))} against {_worded(across)}"
    return Figure(title=title, note=" ".join(spoken), svg=plot)


def _lines(group: LineGroup, words: Words) -> list[Series]:
    return [
        Series(name=name, dots=_dots(measures, group.across, words))
        for name, measures in group.lines().items()
    ]


def _dots(measures: Sequence[Measure], across: str, words: Words) -> list[Dot]:
    known = ((as_number(one.parameters[across]), one.now) for one in measures)
    places = {place: spread for place, spread in known if place is not None}
    # More dots than the eye can tell apart only make the page larger.
    step = max(1, math.ceil(len(places) / _MOST_DOTS))
    chosen = ((x, places[x]) for x in sorted(places)[::step])
    return [
        Dot(x=x, y=one.middle, low=one.low, high=one.high, note=charts.note_for(words, x, one))
        for x, one in chosen
    ]


def _name(row: Measure, names: Iterable[str]) -> str:
    return ", ".join(
        f"{name} {written(name, row.parameters[name])}" for name in names if name in row.parameters
    )


def _natural(text: str) -> tuple[tuple[bool, float, str], ...]:
    """Order names as people do: 2 before 16."""
    words = text.replace(",", " ").split()
    return tuple(((value := as_number(one)) is None, value or 0.0, one) for one in words)


def _scaling(metric: str, unit: str, group: LineGroup) -> Iterator[Figure]:
    """Draw how well more ranks are used, where more of them should mean less time or more work."""
    rows, across = group.rows, group.across
    # What a metric means is known from its unit, and from which direction is better.
    better = {row.better for row in rows} - {""}
    # How long something small takes is no work that more ranks could share.
    is_time = unit in _TIMES and better <= {"lower"} and "latency" not in metric.lower()
    if not is_time and better != {"higher"}:
        return
    words = Words(x=_worded(across), y="efficiency", y_unit="%")
    lines = []
    for one in _lines(group, words)[:SERIES]:
        shares = ((dot.x, _efficiency(one.dots[0], dot, is_time=is_time)) for dot in one.dots)
        dots = [
            Dot(x=x, y=y, low=y, high=y, note=f"{words.x} {number_text(x)}: {number_text(y, 3)}%")
            for x, y in shares
            if y is not None
        ]
        if len(dots) > 1:
            lines.append(Series(name=one.name, dots=dots))
    if not lines:
        return
    ends = [dot.x for one in lines for dot in one.dots]
    ideal = [(min(ends), 100.0), (max(ends), 100.0)]
    plot, _ = charts.line_plot(lines, words, ideal=ideal, y_is_log=False)
    what = "time" if is_time else "rate"
    yield Figure(
        title=f"Efficiency of {_worded(metric)} against {_worded(across)}",
        note=f"100%: the {what} of the fewest {_worded(across)}, perfectly shared among more.",
        svg=plot,
    )


def _efficiency(first: Dot, dot: Dot, *, is_time: bool) -> float | None:
    if not (first.x > 0 and first.y > 0 and dot.x > 0 and dot.y > 0):
        return None
    gain = first.y / dot.y if is_time else dot.y / first.y
    share = 100 * gain * (first.x / dot.x)
    return share if math.isfinite(share) else None


def _field(metric: str, unit: str, group: LineGroup) -> Iterator[Figure]:
    """Draw a heatmap of two parameters where there are enough values of both."""
    rows, across, rest = group.rows, group.across, group.rest

    def values_of(name: str) -> list[str]:
        seen = {row.parameters[name] for row in rows if name in row.parameters}
        return sorted(seen, key=_natural)

    down = max(rest, key=lambda name: len(values_of(name)))
    columns, lines = values_of(across), values_of(down)
    if not (3 <= len(columns) <= _MOST_FIELDS and 3 <= len(lines) <= _MOST_FIELDS):
        return
    cells = grouped(
        ((row.parameters[across], row.parameters[down]), row.now.middle)
        for row in rows
        if row.parameters.keys() >= {across, down}
    )
    # A field with many holes shows no pattern.
    if len(cells) < 0.6 * len(columns) * len(lines):
        return
    # Each by its own weight: the sum of two great numbers may be greater than all numbers.
    means = {pair: sum(value / len(some) for value in some) for pair, some in cells.items()}
    others = [name for name in rest if name != down]
    note = f"Means over {', '.join(map(_worded, others))}." if others else "Medians."
    drawn = charts.heatmap(
        {(written(across, a), written(down, b)): mean for (a, b), mean in means.items()},
        [written(across, one) for one in columns],
        [written(down, one) for one in lines],
        words=(_worded(across), _worded(down)),
        unit=unit,
    )
    title = f"{_capital(_worded(metric))} by {_worded(across)} and {_worded(down)}"
    yield Figure(title=title, note=f"{note} The stronger, the greater.", svg=drawn)


def written(name: str, value: str) -> str:
    """Write the value of a parameter for people."""
    known = as_number(value) if unit_of(name) else None
    return value if known is None else labelled(known, in_bytes=True)


def _compared(metric: str, unit: str, rows: Sequence[Measure], varied: Sequence[str]) -> Figure:
    """Draw values beside each other where nothing that varies is a number."""
    bars = [
        Bar(
            name=_name(row, varied) or row.case or row.metric,
            value=row.now.middle,
            said=f"{number_text(row.now.middle)} {unit}".rstrip(),
            low=row.now.low,
            high=row.now.high,
        )
        for row in rows[:_MOST_BARS]
    ]
    spoken = [_band(rows)]
    if len(rows) > len(bars):
        spoken.append(f"{len(bars)} of {len(rows)} are drawn; the table has all.")
    plot = charts.bar_plot(bars, _worded(metric))
    return Figure(title=_capital(_worded(metric)), note=" ".join(spoken), svg=plot)


def _trend(one: Measure, trend: Trend) -> Figure:
    words = Words(x="run", y=_worded(one.metric), y_unit=one.unit)
    plot = charts.history_plot(words, trend, has_band=True)
    spoken = [f"The last {counted(len(trend.moments), 'run')}, this one to the right."]
    if trend.turns:
        places = ", ".join(turn.first_bad.run for turn in trend.turns)
        spoken.append(f"It has changed with {places}.")
    if trend.trouble:
        spoken.append(trend.trouble)
    # The parameters of one case alone: nothing beside it says which it is.
    case = _name(one, one.parameters)
    title = f"{_capital(_worded(one.metric))} over runs{f' ({case})' if case else ''}"
    return Figure(title=title, note=" ".join(spoken), svg=plot)


def _slowest(times: Sequence[tuple[str, float]]) -> Figure:
    longest = sorted(times, key=lambda one: -one[1])[:_MOST_BARS]
    bars = [Bar(name=name, value=seconds, said=duration(seconds)) for name, seconds in longest]
    which = f"The {len(bars)} longest of {len(times)}." if len(times) > len(bars) else ""
    svg = charts.bar_plot(bars, "time of cases")
    return Figure(title="Where the time went", note=which, svg=svg)


def _band(rows: Sequence[Measure]) -> str:
    most = max(row.now.count for row in rows)
    if most < 2:
        return "One value each."
    between = "quartiles" if most >= 5 else "least and greatest"
    return f"Medians of up to {most} values; the band is between the {between}."


def _left_out(count: int, rows: Sequence[Measure]) -> Iterator[str]:
    unfit = sum(row.unfit for row in rows)
    for number, why in (
        (count, "not positive, and the axis is logarithmic"),
        (unfit, "not finite"),
    ):
        if number:
            yield f"{counted(number, 'value')} left out: {why}."


def _worded(name: str) -> str:
    return {"size": "message size", "np": "ranks"}.get(name, name.replace("_", " "))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
