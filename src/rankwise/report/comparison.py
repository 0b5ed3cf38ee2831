"""Two sets of runs side by side, as data: which trials there are, and what they say."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rankwise.errors import InputError
from rankwise.metrics.conditions import Conditions, noise
from rankwise.stats.compare import THRESHOLD, Comparison, Pair, Trials, Verdict, compare
from rankwise.store import RunRow, Store
from rankwise.store.samples import SeriesRow

# What may make a difference beside the code.
_SURROUNDINGS = ("host", "cpu", "cores", "mpi", "mpi4py", "python", "numpy", "torch")
_Key = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """The runs that are compared with others."""

    given: str
    """What somebody has called them."""
    runs: Sequence[RunRow]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What came of one series."""

    series: SeriesRow
    result: Comparison


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What came of all series, the worst first."""

    before: Side
    after: Side
    lines: Sequence[Line]
    remarks: Sequence[str] = ()

    @property
    def counts(self) -> Mapping[Verdict, int]:
        """Count the verdicts; every one is there, the worst first."""
        found = Counter(line.result.verdict for line in self.lines)
        return {verdict: found[verdict] for verdict in Verdict}

    @property
    def verdict(self) -> Verdict:
        """The worst of all."""
        return next(verdict for verdict, number in self.counts.items() if number)


@dataclass(slots=True)
class _Gathered:
    """What one side has measured."""

    series: dict[_Key, SeriesRow] = field(default_factory=dict)
    values: dict[_Key, list[float]] = field(default_factory=dict)
    noisy: Counter[_Key] = field(default_factory=Counter)
    noise: dict[_Key, list[str]] = field(default_factory=dict)
    surroundings: dict[str, set[str]] = field(default_factory=dict)


def compare_sides(
    store: Store,
    before: Side,
    after: Side,
    *,
    metrics: Sequence[str] = (),
    threshold_of: Callable[[str], float] = lambda metric: THRESHOLD,
) -> Compared:
    """Compare what both sides have measured; raises InputError if they have nothing in common."""
    _refuse_overlap(before, after)
    names = [{run.name for run in side.runs} for side in (before, after)]
    # One document may be compared with another; of several, each is with itself.
    is_named = max(map(len, names)) > 1
    first, second = (_gather(store, side, metrics, is_named) for side in (before, after))
    both = [key for key in first.values if key in second.values]
    if not both:
        raise InputError(_nothing_common(store, before, after, metrics))
    pairs = [
        Pair(
            before=_trials(first, key),
            after=_trials(second, key),
            better=second.series[key].better,
            threshold=threshold_of(second.series[key].metric),
        )
        for key in both
    ]
    lines = [
        Line(series=second.series[key], result=result)
        for key, result in zip(both, compare(pairs), strict=True)
    ]
    return Compared(
        before=before,
        after=after,
        lines=sorted(lines, key=_severity),
        remarks=[*_alone(first, second), *_differences(first, second)],
    )


def compared_data(compared: Compared) -> dict[str, Any]:
    """Give a comparison as JSON has it."""
    return {
        "verdict": compared.verdict,
        "counts": dict(compared.counts),
        **{
            name: {"given": side.given, "runs": [run.id for run in side.runs]}
            for name, side in (("a", compared.before), ("b", compared.after))
        },
        "series": [_line_data(line) for line in compared.lines],
        "remarks": list(compared.remarks),
    }


def _line_data(line: Line) -> dict[str, Any]:
    series, result = line.series, line.result
    return {
        "name": series.name,
        "metric": series.metric,
        "unit": series.unit,
        "better": series.better,
        "case": series.case,
        "point": dict(series.point),
        "verdict": result.verdict,
        "reason": result.reason,
        "a": result.before,
        "b": result.after,
        "trials": list(result.trials),
        "change": result.change,
        "interval": list(result.interval) if result.interval else None,
        "p": result.p,
        "cliffs_delta": result.delta,
    }


def _refuse_overlap(before: Side, after: Side) -> None:
    common = {run.id for run in before.runs} & {run.id for run in after.runs}
    if common:
        raise InputError(
            f"run {min(common)} is both {before.given!r} and {after.given!r}: "
            "nothing can be compared with itself"
        )


def _gather(store: Store, side: Side, metrics: Sequence[str], is_named: bool) -> _Gathered:
    """Read what the runs of a side have measured; under noise or not is known by its conditions."""
    found = _Gathered()
    names = {run.name for run in side.runs}
    known = {series.id: series for name in sorted(names) for series in store.series(name=name)}
    for run in side.runs:
        conditions = store.conditions(run.id)
        troubles = {which: noise(each) for which, each in conditions.items()}
        _note_surroundings(found, conditions.values())
        for row in store.samples_of_run(run.id):
            series = known[row.series]
            if metrics and series.metric not in metrics:
                continue
            key = _key(series, is_named=is_named)
            found.series[key] = series
            values = found.values.setdefault(key, [])
            if trouble := troubles.get((row.task, row.attempt), ()):
                found.noisy[key] += 1
                found.noise.setdefault(key, []).extend(trouble)
            else:
                values.append(row.value)
    return found


def _key(series: SeriesRow, *, is_named: bool) -> _Key:
    point = json.dumps(dict(series.point), sort_keys=True)
    key = (series.metric, series.unit, series.case, point)
    return (series.name, *key) if is_named else key


def _note_surroundings(found: _Gathered, conditions: Iterable[Conditions]) -> None:
    for each in conditions:
        for name in _SURROUNDINGS:
            if name in each:
                found.surroundings.setdefault(name, set()).add(str(each[name]))


def _trials(gathered: _Gathered, key: _Key) -> Trials:
    return Trials(
        values=gathered.values[key],
        noisy=gathered.noisy[key],
        noise=gathered.noise.get(key, ()),
    )


def _severity(line: Line) -> tuple[int, float]:
    moved = abs(line.result.change) if line.result.change is not None else 0.0
    return list(Verdict).index(line.result.verdict), -moved


def _alone(first: _Gathered, second: _Gathered) -> list[str]:
    """Say what only one side has measured."""
    told = []
    for name, mine, other in (("A", first, second), ("B", second, first)):
        if alone := [key for key in mine.values if key not in other.values]:
            metrics = sorted({mine.series[key].metric for key in alone})
            told.append(f"only {name} has {len(alone)} of the series, of {', '.join(metrics)}")
    return told


def _differences(first: _Gathered, second: _Gathered) -> list[str]:
    """Say what else was different: a comparison cannot tell it from the code."""
    return [
        f"{name} was not the same: {_listed(first.surroundings[name])} in A, "
        f"{_listed(second.surroundings[name])} in B"
        for name in _SURROUNDINGS
        if first.surroundings.get(name, set()) != second.surroundings.get(name, set())
        and first.surroundings.get(name)
        and second.surroundings.get(name)
    ]


def _listed(values: set[str]) -> str:
    return " and ".join(sorted(values)[:3])


def _nothing_common(store: Store, before: Side, after: Side, metrics: Sequence[str]) -> str:
    for side in (before, after):
        if not any(store.samples_of_run(run.id) for run in side.runs):
            runs = ", ".join(run.id for run in side.runs[:3])
            return f"{store.path}: {side.given!r} has measured nothing (runs {runs})"
    which = f" of {', '.join(metrics)}" if metrics else ""
    return (
        f"{store.path}: {before.given!r} and {after.given!r} have no series{which} in common: the "
        "same metric, unit, case and point"
    )
