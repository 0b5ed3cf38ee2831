"""Measurements of a run, and their history over earlier runs."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

from rankwise.errors import InputError
from rankwise.plan import Task
from rankwise.stats.change_points import LevelChange, find_changes
from rankwise.store import RunRow, Store
from rankwise.store.samples import SampleRow, SeriesRow
from rankwise.wording import grouped

_PAIR = re.compile(r"([\w.-]+)=(\S*)")
_NUMBER = re.compile(r"([-+]?[\d.]+(?:[eE][-+]?\d+)?)\s*(?:([KMGT])(iB|B)?|B)?")
# The number of a repetition is no parameter: repetitions are one case.
_TRIAL = "trial"
# Quartiles of fewer values than this say little.
_FEWEST_FOR_QUARTILES = 5
# So many runs are searched for the one before.
_MOST_SEARCHED = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Some values in short: the one in the middle, and between what they vary."""

    middle: float
    low: float
    high: float
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One metric of one case at one point."""

    series: int
    metric: str
    unit: str
    better: str
    case: str
    parameters: Mapping[str, str]
    """Those of the case, and the point."""
    points: tuple[str, ...]
    """The names of those parameters that are the point's."""
    now: Spread
    before: Spread | None = None
    """In the run before, if there was one."""
    verdict: str = ""
    """`regressed`, `improved`, `unchanged` or `inconclusive`; empty: it was not compared."""
    why: str = ""
    unfit: int = 0
    """How many values were no finite numbers, and do not count."""

    @property
    def change(self) -> float | None:
        """By which share it differs from the run before."""
        if self.before is None or not self.before.middle:
            return None
        before = self.before.middle
        # Divided first: the difference of two great numbers may be greater than all numbers.
        change = self.now.middle / abs(before) - math.copysign(1, before)
        return change if math.isfinite(change) else None


def spread_of(values: Iterable[float]) -> Spread | None:
    """Put values in short; None: there is no finite one.

    They vary between the quartiles, or of few values between the least and the greatest.
    """
    known = sorted(value for value in values if math.isfinite(value))
    if not known:
        return None
    low, high = known[0], known[-1]
    if len(known) >= _FEWEST_FOR_QUARTILES:
        low, high = _quantile(known, 0.25), _quantile(known, 0.75)
    return Spread(middle=_quantile(known, 0.5), low=low, high=high, count=len(known))


def _quantile(ordered: Sequence[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    first = math.floor(place)
    rest = place - first
    if not rest:
        return ordered[first]
    # Each by its own weight: the sum of two great numbers may be greater than all numbers.
    return ordered[first] * (1 - rest) + ordered[first + 1] * rest


def measures_of(
    store: Store, run: str, name: str, *, before: str | None, tasks: Mapping[str, Task]
) -> list[Measure]:
    """Gather what a run has measured, beside what the run before has."""
    samples = grouped((row.series, row) for row in store.samples_of_run(run))
    if not samples:
        return []
    known = store.samples_of_run(before) if before else ()
    earlier = grouped((row.series, row.value) for row in known)
    found = []
    for series in store.series(name=name):
        rows = samples.get(series.id, [])
        if (now := spread_of(row.value for row in rows)) is None:
            continue
        found.append(
            Measure(
                series=series.id,
                metric=series.metric,
                unit=series.unit,
                better=series.better,
                case=series.case,
                parameters=_parameters(series, tasks.get(rows[0].task)),
                points=tuple(series.point),
                now=now,
                before=spread_of(earlier.get(series.id, ())),
                unfit=len(rows) - now.count,
            )
        )
    # What was measured together is together, in the order in which it first came.
    order = list(dict.fromkeys(one.metric for one in found))
    return sorted(found, key=lambda one: order.index(one.metric))


def run_before(store: Store, run: RunRow) -> str | None:
    """Find the run before this one that has measured something."""
    for one in store.runs(_MOST_SEARCHED, name=run.name):
        # By number and not by time: an older run may have been resumed, and ended later.
        if one.number < run.number and one.state.is_over and store.has_samples(one.id):
            return one.id
    return None


def trends_of(
    store: Store, measures: Sequence[Measure], *, run: str, most_runs: int
) -> list[tuple[Measure, Trend]]:
    """Gather how measures were in the runs up to this one; only those with two runs or more."""
    found = []
    for measure in measures:
        of_run = grouped((row.run, row) for row in store.history(measure.series))
        names = list(of_run)
        names = names[: names.index(run) + 1][-most_runs:] if run in of_run else []
        trend = trend_of([of_run[name] for name in names], measure.better)
        if len(trend.moments) > 1:
            found.append((measure, trend))
    return found


def _parameters(series: SeriesRow, task: Task | None) -> dict[str, str]:
    """Return the parameters of a series: those of its task are exact, its case is for people."""
    pairs = dict(_PAIR.findall(series.case))
    tags = dict(task.tags) if task is not None else {}
    exact = {key: tags[key] for key in pairs if key in tags} or pairs
    point = {key: _as_text(value) for key, value in series.point.items()}
    return {key: value for key, value in {**exact, **point}.items() if key != _TRIAL}


def _as_text(value: float | int | str) -> str:
    """Write the place of a point: of two that differ, both do as texts."""
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) < 1e15
    return str(int(value)) if is_whole else str(value)


def varied_in(rows: Iterable[Mapping[str, str]]) -> list[str]:
    """Name the parameters that are not the same for all; to have none is a difference, too."""
    rows = list(rows)
    names = dict.fromkeys(name for row in rows for name in row)
    return [name for name in names if len({row.get(name) for row in rows}) > 1]


def as_number(text: str) -> float | None:
    """Read a parameter as a number, `1M` and `4KiB` too; None: it is none."""
    found = _NUMBER.fullmatch(text.strip())
    try:
        # The order of the letters is the power of 1024.
        value = float(found[1]) * 1024.0 ** " KMGT".index(found[2] or " ") if found else math.nan
    except ValueError:  # Such as 1.2.3, which is a version.
        return None
    return value if math.isfinite(value) else None


LAST_RUNS = 200
COMMIT, BRANCH, DIRTY = "git.commit", "git.branch", "git.dirty"


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryPoint:
    """The runs of one commit that came one after the other, or one run."""

    run: str
    """The first one."""
    created: float
    commit: str
    """Empty: it is not known."""
    is_dirty: bool
    """Whether there was more than the commit."""
    spread: Spread
    """Of all trials."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePoint:
    """A change, and between which runs it came."""

    change: LevelChange
    last_good: HistoryPoint
    first_bad: HistoryPoint
    meaning: str
    """`regressed`, `improved`, or `changed` where the document does not say which is better."""

    @property
    def commits(self) -> str:
        """The range to look at, as git writes it; empty: they are not known."""
        first, last = self.last_good.commit, self.first_bad.commit
        return f"{first}..{last}" if first and last and first != last else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """One series over its runs, the oldest first."""

    moments: Sequence[HistoryPoint]
    turns: Sequence[ChangePoint] = ()
    trouble: str = ""
    """Why changes were not looked for."""


def trend_of(groups: Iterable[Sequence[SampleRow]], better: str) -> Trend:
    """Find out how groups of samples follow on each other, and where their level has changed."""
    moments = [moment for rows in groups if (moment := _moment(rows)) is not None]
    try:
        changes = find_changes([moment.spread.middle for moment in moments])
    except InputError as error:  # There is no numpy: the values can be shown all the same.
        return Trend(moments=moments, trouble=str(error))
    turns = []
    for change in changes:
        last, first = moments[change.at - 1], moments[change.at]
        meaning = "regressed" if (change.share > 0) == (better == "lower") else "improved"
        meaning = meaning if better else "changed"
        turns.append(ChangePoint(change=change, last_good=last, first_bad=first, meaning=meaning))
    return Trend(moments=moments, turns=turns)


def history_of(store: Store, series: SeriesRow, *, last_runs: int | None = LAST_RUNS) -> Trend:
    """Return the trend of a series: a moment for each commit, or run where it is not known."""
    rows = store.history(series.id, last_runs=last_runs)
    return trend_of([list(group) for _, group in groupby(rows, key=_what)], series.better)


def series_data(series: SeriesRow) -> dict[str, Any]:
    """Return a series as JSON has it."""
    # The number is of this store only.
    return {name: value for name, value in asdict(series).items() if name != "id"}


def trend_data(series: SeriesRow, trend: Trend) -> dict[str, Any]:
    """Return the trend of a series as JSON has it."""
    return {
        **series_data(series),
        "history": [
            {
                "run": moment.run,
                "time": moment.created,
                "commit": moment.commit,
                "dirty": moment.is_dirty,
                "median": moment.spread.middle,
                "trials": moment.spread.count,
            }
            for moment in trend.moments
        ],
        "changes": [
            {
                "meaning": turn.meaning,
                "before": turn.change.before,
                "after": turn.change.after,
                # JSON has no infinity.
                "change": turn.change.share if math.isfinite(turn.change.share) else None,
                "p": turn.change.p,
                "last_good": {"run": turn.last_good.run, "commit": turn.last_good.commit},
                "first_bad": {"run": turn.first_bad.run, "commit": turn.first_bad.commit},
                "commits": turn.commits,
            }
            for turn in trend.turns
        ],
    }


def _what(row: SampleRow) -> tuple[str, str]:
    """Say what was measured: a commit, or whatever was there at a run."""
    commit = row.tags.get(COMMIT, "")
    # Two runs with changes that were not committed may have measured different code.
    return (commit, "") if commit and DIRTY not in row.tags else (commit, row.run)


def _moment(rows: Sequence[SampleRow]) -> HistoryPoint | None:
    first, spread = rows[0], spread_of(row.value for row in rows)
    # None is finite: such a place has no level.
    if spread is None:
        return None
    return HistoryPoint(
        run=first.run,
        created=first.created,
        commit=first.tags.get(COMMIT, ""),
        is_dirty=DIRTY in first.tags,
        spread=spread,
    )
