"""Which plots a run is worth, and what is said below each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rankwise.report.markup import Markup
from rankwise.report.measures import Measure, Spread, Trend, as_number
from rankwise.report.plots.bars import Bar, bar_plot
from rankwise.report.plots.heatmap import heatmap
from rankwise.report.plots.lines import Dot, Series, Words, line_plot, note_for
from rankwise.report.plots.numerals import labelled, number, unit_of
from rankwise.report.plots.svg import SERIES
from rankwise.report.words import counted, duration

MOST_FIGURES = 24
_RANKS = ("ranks", "np", "processes", "procs", "nodes", "workers", "gpus", "threads", "cores")
_SIZES = ("size", "message_size", "msg_size", "bytes", "message")
_TIMES = {"s", "ms", "us", "µs", "μs", "ns", "min", "h", "sec", "seconds"}
_MOST_FIELDS = 30
_MOST_DOTS = 200
_MOST_BARS = 16
_FEWEST_TASKS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One plot with its words."""

    title: str
    note: str
    svg: Markup


def figures_of(
    measures: Sequence[Measure], trends: Sequence[Trend], times: Sequence[tuple[str, float]]
) -> list[Figure]:
    """Draw what people would rather look at than read; `times` are names of cases with seconds."""
    by_metric: dict[tuple[str, str], list[Measure]] = {}
    for measure in measures:
        by_metric.setdefault((measure.metric, measure.unit), []).append(measure)
    found: list[Figure] = []
    for (metric, unit), rows in by_metric.items():
        found += _of_metric(metric, unit, rows)
    found += [_trend(one) for one in trends]
    if len(times) >= _FEWEST_TASKS:
        found.append(_slowest(times))
    return found[:MOST_FIGURES]


def _of_metric(metric: str, unit: str, rows: Sequence[Measure]) -> Iterator[Figure]:
    """Draw one metric over what varies; what belongs to no point is apart from what does."""
    for has_point in (True, False):
        some = [row for row in rows if bool(row.points) == has_point]
        if len(some) < 2:
            continue
        varied = _varied(some)
        numeric = [name for name in varied if _are_numbers(some, name)]
        if not numeric:
            yield _compared(metric, unit, some, varied)
            continue
        across = _main_axis(some, numeric)
        rest = [name for name in varied if name != across]
        yield _over(metric, unit, some, across, rest)
        if across in _RANKS:
            yield from _scaling(metric, unit, some, across, rest)
        if rest:
            yield from _field(metric, unit, some, across, rest)


def _varied(rows: Sequence[Measure]) -> list[str]:
    """Name the parameters that have more than one value, in the order in which they come."""
    values: dict[str, set[str]] = {}
    for row in rows:
        for name, value in row.parameters.items():
            values.setdefault(name, set()).add(value)
    return [name for name, seen in values.items() if len(seen) > 1]


def _are_numbers(rows: Sequence[Measure], name: str) -> bool:
    values = [row.parameters[name] for row in rows if name in row.parameters]
    return all(as_number(value) is not None for value in values)


def _main_axis(rows: Sequence[Measure], names: Sequence[str]) -> str:
    """Choose what goes along: a point's axis, sizes, ranks, or what has the most values."""
    points = {name for row in rows for name in row.points}

    def weight(name: str) -> tuple[bool, bool, bool, int]:
        count = len({row.parameters.get(name) for row in rows})
        return name in points, name in _SIZES, name in _RANKS, count

    return max(names, key=weight)


def _over(
    metric: str, unit: str, rows: Sequence[Measure], across: str, rest: Sequence[str]
) -> Figure:
    words = Words(x=_worded(across), x_unit=unit_of(across), y=_worded(metric), y_unit=unit)
    lines = _lines(rows, across, rest, words)
    shown = lines[:SERIES]
    plot, left_out = line_plot(shown, words)
    spoken = [_band(rows), *_left_out(left_out, rows)]
    if len(lines) > len(shown):
        spoken.append(f"{len(shown)} of {len(lines)} lines are drawn; the table has all.")
    return Figure(
        title=f"{_capital(_worded(metric))} against {_worded(across)}",
        note=" ".join(spoken),
        svg=plot,
    )


def _lines(rows: Sequence[Measure], across: str, rest: Sequence[str], words: Words) -> list[Series]:
    groups: dict[str, dict[float, Spread]] = {}
    for row in rows:
        place = as_number(row.parameters.get(across, ""))
        if place is not None:
            groups.setdefault(_name(row, rest), {})[place] = row.now
    return [
        Series(name=name, dots=_dots(places, words))
        for name, places in sorted(groups.items(), key=lambda one: _natural(one[0]))
    ]


def _dots(places: dict[float, Spread], words: Words) -> list[Dot]:
    step = max(1, math.ceil(len(places) / _MOST_DOTS))
    dots = []
    for place in sorted(places)[::step]:
        spread = places[place]
        dot = Dot(x=place, y=spread.middle, low=spread.low, high=spread.high)
        note = note_for(words, dot, spread.count)
        dots.append(Dot(x=dot.x, y=dot.y, low=dot.low, high=dot.high, note=note))
    return dots


def _name(row: Measure, names: Iterable[str]) -> str:
    return ", ".join(
        f"{name} {written(name, row.parameters[name])}" for name in names if name in row.parameters
    )


def _natural(text: str) -> tuple[tuple[bool, float, str], ...]:
    """Order names as people do: 2 before 16."""
    words = text.replace(",", " ").split()
    numbers = [as_number(word) for word in words]
    return tuple(
        (value is None, value or 0.0, word) for value, word in zip(numbers, words, strict=True)
    )


def _scaling(
    metric: str, unit: str, rows: Sequence[Measure], across: str, rest: Sequence[str]
) -> Iterator[Figure]:
    """Draw how well more ranks are used, where more of them should mean less time or more work."""
    better = {row.better for row in rows} - {""}
    # How long something small takes is no work that more ranks could share.
    is_time = unit in _TIMES and better <= {"lower"} and "latency" not in metric.lower()
    if not is_time and better != {"higher"}:
        return
    words = Words(x=_worded(across), y="efficiency", y_unit="%")
    lines = []
    for one in _lines(rows, across, rest, words)[:SERIES]:
        first = one.dots[0]
        dots = []
        for dot in one.dots:
            share = _efficiency(first, dot, is_time=is_time)
            if share is not None:
                note = f"{words.x} {number(dot.x)}: {number(share, 3)} %"
                dots.append(Dot(x=dot.x, y=share, low=share, high=share, note=note))
        if len(dots) > 1:
            lines.append(Series(name=one.name, dots=dots))
    if not lines:
        return
    ends = [dot.x for one in lines for dot in one.dots]
    plot, _ = line_plot(
        lines, words, ideal=[(min(ends), 100.0), (max(ends), 100.0)], y_is_log=False
    )
    what = "time" if is_time else "rate"
    yield Figure(
        title=f"Efficiency of {_worded(metric)} against {_worded(across)}",
        note=f"100 %: the {what} of the fewest {_worded(across)}, perfectly shared among more.",
        svg=plot,
    )


def _efficiency(first: Dot, dot: Dot, *, is_time: bool) -> float | None:
    if not (first.x > 0 and first.y > 0 and dot.x > 0 and dot.y > 0):
        return None
    gain = first.y / dot.y if is_time else dot.y / first.y
    share = 100 * gain * (first.x / dot.x)
    return share if math.isfinite(share) else None


def _field(
    metric: str, unit: str, rows: Sequence[Measure], across: str, rest: Sequence[str]
) -> Iterator[Figure]:
    """Draw a heatmap of two parameters where there are enough values of both."""

    def values_of(name: str) -> list[str]:
        seen = {row.parameters[name] for row in rows if name in row.parameters}
        return sorted(seen, key=_natural)

    down = max(rest, key=lambda name: len(values_of(name)))
    columns, lines = values_of(across), values_of(down)
    if not (3 <= len(columns) <= _MOST_FIELDS and 3 <= len(lines) <= _MOST_FIELDS):
        return
    cells: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        if across in row.parameters and down in row.parameters:
            pair = row.parameters[across], row.parameters[down]
            cells.setdefault(pair, []).append(row.now.middle)
    if len(cells) < 0.6 * len(columns) * len(lines):
        return
    means = {pair: sum(value / len(some) for value in some) for pair, some in cells.items()}
    others = [name for name in rest if name != down]
    note = f"Means over {', '.join(map(_worded, others))}." if others else "Medians."
    yield Figure(
        title=f"{_capital(_worded(metric))} by {_worded(across)} and {_worded(down)}",
        note=f"{note} The stronger, the greater.",
        svg=heatmap(
            {(written(across, a), written(down, b)): mean for (a, b), mean in means.items()},
            [written(across, one) for one in columns],
            [written(down, one) for one in lines],
            words=(_worded(across), _worded(down)),
            unit=unit,
        ),
    )


def written(name: str, value: str) -> str:
    """Write the value of a parameter for people."""
    known = as_number(value)
    if known is None or not unit_of(name):
        return value
    return labelled(known, in_bytes=True)


def _compared(metric: str, unit: str, rows: Sequence[Measure], varied: Sequence[str]) -> Figure:
    """Draw values beside each other where nothing that varies is a number."""
    bars = [
        Bar(
            name=_name(row, varied) or row.case or row.metric,
            value=row.now.middle,
            said=f"{number(row.now.middle)} {unit}".rstrip(),
            low=row.now.low,
            high=row.now.high,
        )
        for row in rows[:_MOST_BARS]
    ]
    spoken = [_band(rows)]
    if len(rows) > len(bars):
        spoken.append(f"{len(bars)} of {len(rows)} are drawn; the table has all.")
    return Figure(
        title=_capital(_worded(metric)), note=" ".join(spoken), svg=bar_plot(bars, _worded(metric))
    )


def _trend(trend: Trend) -> Figure:
    one = trend.measure
    words = Words(x="run", y=_worded(one.metric), y_unit=one.unit)
    dots = [
        Dot(
            x=float(place),
            y=spread.middle,
            low=spread.low,
            high=spread.high,
            note=f"{run}: {number(spread.middle)} {one.unit}".rstrip(),
        )
        for place, (run, spread) in enumerate(trend.runs)
    ]
    labels = [(float(place), run.rpartition("-")[2]) for place, (run, _) in enumerate(trend.runs)]
    plot, _ = line_plot(
        [Series(name="", dots=dots)],
        words,
        x_labels=labels,
        changes=[place - 0.5 for place in trend.changes],
    )
    spoken = [f"The last {counted(len(dots), 'run')}, this one to the right."]
    if trend.changes:
        places = ", ".join(trend.runs[place][0] for place in trend.changes)
        spoken.append(f"It has changed with {places}.")
    if trend.trouble:
        spoken.append(trend.trouble)
    case = _name(one, one.parameters)
    return Figure(
        title=f"{_capital(_worded(one.metric))} over runs{f' ({case})' if case else ''}",
        note=" ".join(spoken),
        svg=plot,
    )


def _slowest(times: Sequence[tuple[str, float]]) -> Figure:
    longest = sorted(times, key=lambda one: -one[1])[:_MOST_BARS]
    bars = [Bar(name=name, value=seconds, said=duration(seconds)) for name, seconds in longest]
    which = f"The {len(bars)} longest of {len(times)}." if len(times) > len(bars) else ""
    return Figure(title="Where the time went", note=which, svg=bar_plot(bars, "time of cases"))


def _band(rows: Sequence[Measure]) -> str:
    most = max(row.now.count for row in rows)
    if most < 2:
        return "One value each."
    between = "quartiles" if most >= 5 else "least and greatest"
    return f"Medians of up to {most} values; the band is between the {between}."


def _left_out(count: int, rows: Sequence[Measure]) -> Iterator[str]:
    if count:
        verb = "is" if count == 1 else "are"
        yield f"{counted(count, 'value')} that a logarithmic axis has no place for {verb} left out."
    if unfit := sum(row.unfit for row in rows):
        verb = "is" if unfit == 1 else "are"
        yield f"{counted(unfit, 'value')} {verb} not finite and left out."


def _worded(name: str) -> str:
    return {"size": "message size", "np": "ranks"}.get(name, name.replace("_", " "))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
