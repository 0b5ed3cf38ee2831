"""Compare the measurements of two sets of runs."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rankwise.errors import InputError
from rankwise.metrics.conditions import noise
from rankwise.reports.measurements import Measure, series_data
from rankwise.stats import comparison as stats
from rankwise.stats.comparison import Comparison, ComparisonVerdict
from rankwise.store import RunRow, Store
from rankwise.store.samples import SeriesRow
from rankwise.wording import counted

# What may make a difference beside the code.
_SURROUNDINGS = ("host", "cpu", "cores", "mpi", "mpi4py", "python", "numpy", "torch")
_Key = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """The runs that are compared with others."""

    given: str
    """How they were asked for."""
    runs: Sequence[RunRow]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesComparison:
    """What came of one series."""

    series: SeriesRow
    result: Comparison


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What came of all series, the worst first."""

    before: Side
    after: Side
    lines: Sequence[SeriesComparison]
    remarks: Sequence[str] = ()
    differences: Sequence[str] = ()
    """Those of the remarks that name what was different beside the code."""

    @property
    def counts(self) -> Mapping[ComparisonVerdict, int]:
        """Count the verdicts; every one is there, the worst first."""
        found = Counter(line.result.verdict for line in self.lines)
        return {verdict: found[verdict] for verdict in ComparisonVerdict}

    @property
    def verdict(self) -> ComparisonVerdict:
        """The worst of all."""
        return next(verdict for verdict, number in self.counts.items() if number)


@dataclass(slots=True)
class _Gathered:
    """What one side has measured."""

    series: dict[_Key, SeriesRow] = field(default_factory=dict)
    trials: dict[_Key, stats.Trials] = field(default_factory=dict)
    surroundings: dict[str, set[str]] = field(default_factory=dict)


def compare_sides(
    store: Store,
    before: Side,
    after: Side,
    *,
    metrics: Sequence[str] = (),
    threshold_of: Callable[[str], float] = lambda metric: stats.THRESHOLD,
) -> Compared:
    """Compare what both sides have measured; raises InputError if they have nothing in common."""
    if common := {run.id for run in before.runs} & {run.id for run in after.runs}:
        raise InputError(
            f"run {min(common)} is both {before.given!r} and {after.given!r}: "
            "nothing can be compared with itself"
        )
    names = [{run.name for run in side.runs} for side in (before, after)]
    # One document may be compared with another; of several, each is compared with itself.
    is_named = max(map(len, names)) > 1
    first, second = (_gather(store, side, metrics, is_named) for side in (before, after))
    both = [key for key in first.trials if key in second.trials]
    failed = _failed_cases(store, after)
    gone = _gone(first, second, failed)
    if not both and not gone:
        raise InputError(_nothing_common(store, before, after, metrics))
    pairs = [
        stats.Pair(
            before=first.trials[key],
            after=second.trials[key],
            better=second.series[key].better,
            threshold=threshold_of(second.series[key].metric),
        )
        for key in both
    ]
    # All at once: a correction for many comparisons needs to know them all.
    lines = [
        SeriesComparison(series=second.series[key], result=result)
        for key, result in zip(both, stats.compare(pairs), strict=True)
    ]
    differences = _differences(first, second)
    return Compared(
        before=before,
        after=after,
        lines=sorted([*lines, *gone], key=_severity),
        remarks=[
            *_unfinished(before, after),
            *_alone(first, second),
            *_partly(second, both, failed),
            *differences,
        ],
        differences=differences,
    )


def compared_data(compared: Compared) -> dict[str, Any]:
    """Return a comparison as JSON has it."""
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


def _line_data(line: SeriesComparison) -> dict[str, Any]:
    result = line.result
    return {
        **series_data(line.series),
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


def _gather(store: Store, side: Side, metrics: Sequence[str], is_named: bool) -> _Gathered:
    """Read what the runs of a side have measured; under noise or not is known by its conditions."""
    found = _Gathered()
    names = {run.name for run in side.runs}
    known = {series.id: series for name in sorted(names) for series in store.series(name=name)}
    for run in side.runs:
        conditions = store.conditions(run.id)
        troubles = {which: noise(each) for which, each in conditions.items()}
        for each in conditions.values():
            for name in (one for one in _SURROUNDINGS if one in each):
                found.surroundings.setdefault(name, set()).add(str(each[name]))
        for row in store.samples_of_run(run.id):
            series = known[row.series]
            if metrics and series.metric not in metrics:
                continue
            key = _key(series, is_named=is_named)
            found.series[key] = series
            # Also where all of it is under noise: the series was measured.
            trials = found.trials.setdefault(key, stats.Trials())
            # A value under noise is counted, so that a verdict can say why it is not sure.
            if trouble := troubles.get((row.task, row.attempt), ()):
                trials.noisy += 1
                trials.noise.extend(trouble)
            else:
                trials.values.append(row.value)
    return found


def _key(series: SeriesRow, *, is_named: bool) -> _Key:
    # The number of a series is of one document: two documents may have the same series.
    point = json.dumps(dict(series.point), sort_keys=True)
    return (series.name * is_named, series.metric, series.unit, series.case, point)


def _gone(
    first: _Gathered, second: _Gathered, failed: Mapping[str, Sequence[str]]
) -> list[SeriesComparison]:
    """Judge what B has not measured because its case failed there: that is no improvement."""
    found = []
    for key, trials in first.trials.items():
        series, values = first.series[key], trials.values
        if key in second.trials or series.case not in failed:
            continue
        result = Comparison(
            verdict=ComparisonVerdict.REGRESSED,
            reason=f"not measured in B: {failed[series.case][0]}",
            before=stats.median(values) if values else None,
            trials=(len(values), 0),
        )
        found.append(SeriesComparison(series=series, result=result))
    return found


def _partly(
    second: _Gathered, both: Sequence[_Key], failed: Mapping[str, Sequence[str]]
) -> list[str]:
    """Say of which cases only some trials were measured in B: the others did not pass."""
    cases = dict.fromkeys(second.series[key].case for key in both)
    return [
        f"{counted(len(failed[case]), 'trial')} of {case or 'it'} did not pass in B, and "
        f"{'is' if len(failed[case]) == 1 else 'are'} not among these: {failed[case][0]}"
        for case in cases
        if case in failed
    ]


def _failed_cases(store: Store, side: Side) -> dict[str, list[str]]:
    """Say what became of the cases that were to be measured and are not green."""
    found: dict[str, list[str]] = {}
    for run in side.runs:
        for row in store.task_rows(run.id, bodies=True):
            measuring = row.body.measuring if row.body is not None else None
            if measuring is not None and row.state.is_over and not row.state.is_green:
                found.setdefault(measuring.case, []).append(f"{row.key} {row.state}")
    return found


def _severity(line: SeriesComparison) -> tuple[int, float]:
    moved = abs(line.result.change) if line.result.change is not None else 0.0
    return list(ComparisonVerdict).index(line.result.verdict), -moved


def _unfinished(before: Side, after: Side) -> list[str]:
    """Say which runs are not over: what they have yet to measure is not compared."""
    return [
        f"{run.id} of {name} is {run.state}: what it has yet to measure does not count here"
        for name, side in (("A", before), ("B", after))
        for run in side.runs
        if not run.state.is_over
    ]


def _alone(first: _Gathered, second: _Gathered) -> list[str]:
    """Say what only one side has measured."""
    told = []
    for name, mine, other in (("A", first, second), ("B", second, first)):
        if alone := [key for key in mine.trials if key not in other.trials]:
            metrics = sorted({mine.series[key].metric for key in alone})
            told.append(f"only {name} has {len(alone)} of the series, of {', '.join(metrics)}")
    return told


def _differences(first: _Gathered, second: _Gathered) -> list[str]:
    """Say what else was different: a comparison cannot tell it from the code."""
    found = []
    for name in _SURROUNDINGS:
        # Of a side without conditions, nothing is said to differ.
        sides = [each.surroundings.get(name, set()) for each in (first, second)]
        a, b = (" and ".join(sorted(values)[:3]) for values in sides)
        if all(sides) and sides[0] != sides[1]:
            found.append(f"{name} was not the same: {a} in A, {b} in B")
    return found


def _nothing_common(store: Store, before: Side, after: Side, metrics: Sequence[str]) -> str:
    for side in (before, after):
        if not any(store.samples_of_run(run.id) for run in side.runs):
            runs = ", ".join(run.id for run in side.runs[:3])
            return f"{store.path}: {side.given!r} has measured nothing (runs {runs})"
    # Each side has measured something, so it must be something else.
    which = f" of {', '.join(metrics)}" if metrics else ""
    return (
        f"{store.path}: {before.given!r} and {after.given!r} have no series{which} in common: the "
        "same metric, unit, case and point"
    )


# In seconds: more than this is for `rankwise compare`, a report must not take long.
_MOST_WORK = 1.0
# What a comparison of two times one trial takes; it grows with their third power.
_WORK = 6e-6


def judged(
    store: Store, measures: Sequence[Measure], *, run: RunRow, before: RunRow
) -> list[Measure]:
    """Return measures with a verdict each; without any where that would take too long."""
    # Without a verdict, a report still has the change.
    trials = (max(one.now.count, one.before.count) for one in measures if one.before is not None)
    if sum(_WORK * number**3 for number in trials) > _MOST_WORK:
        return list(measures)
    sides = (Side(given=one.id, runs=[one]) for one in (before, run))
    try:
        compared = compare_sides(store, *sides)
    except (InputError, TypeError, ValueError):
        # Nothing in common, or conditions in another form than ours.
        return list(measures)
    found = {line.series.id: line.result for line in compared.lines}
    # A verdict that may have another cause than the code says so.
    beside = "".join(f"; {remark}" for remark in compared.differences)
    return [
        dataclasses.replace(
            one, verdict=str(found[one.series].verdict), why=found[one.series].reason + beside
        )
        if one.series in found
        else one
        for one in measures
    ]
