"""What a run has measured, one row for each metric of each case at each point."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rankwise.errors import InputError
from rankwise.plan import Task
from rankwise.stats.changes import find_changes
from rankwise.store import RunRow, Store
from rankwise.store.samples import SampleRow, SeriesRow

_PAIR = re.compile(r"([\w.-]+)=(\S*)")
_TRIAL = "trial"
# Quartiles of fewer values say little.
_FEWEST_FOR_QUARTILES = 5
# So many runs are searched for the one before.
_MOST_SEARCHED = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Some values in short: the one in the middle, and between what they vary."""

    middle: float
    low: float
    high: float
    count: int


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
    """`regressed`, `improved`, `unchanged` or `inconclusive`; empty: nobody has compared it."""
    why: str = ""
    unfit: int = 0
    """How many values were no finite numbers, and do not count."""

    @property
    def change(self) -> float | None:
        """By which share it differs from the run before."""
        if self.before is None or not self.before.middle:
            return None
        change = self.now.middle / self.before.middle - 1
        return change if math.isfinite(change) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """One series over the runs, the oldest first."""

    measure: Measure
    runs: tuple[tuple[str, Spread], ...]
    changes: tuple[int, ...] = ()
    """Which of the runs have begun a new level."""
    trouble: str = ""
    """Why nobody has looked for changes."""


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
    samples = _by_series(store.samples_of_run(run))
    if not samples:
        return []
    earlier = _by_series(store.samples_of_run(before)) if before else {}
    found = []
    for series in store.series(name=name):
        rows = samples.get(series.id)
        now = spread_of(row.value for row in rows) if rows else None
        if rows is None or now is None:
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
                before=spread_of(row.value for row in earlier.get(series.id, ())),
                unfit=len(rows) - now.count,
            )
        )
    order = {one.metric: number for number, one in reversed(list(enumerate(found)))}
    return sorted(found, key=lambda one: order[one.metric])


def run_before(store: Store, run: RunRow) -> str | None:
    """Find the run before this one that has measured something."""
    older = [
        one.id
        for one in store.runs(_MOST_SEARCHED, name=run.name)
        if one.number < run.number and one.state.is_over
    ]
    return next((one for one in older if store.samples_of_run(one)), None)


def trends_of(
    store: Store, measures: Sequence[Measure], *, run: str, most_runs: int
) -> list[Trend]:
    """Gather how measures were in the runs up to this one; only those with two runs or more."""
    found = []
    for measure in measures:
        of_run: dict[str, list[float]] = {}
        for row in store.history(measure.series):
            of_run.setdefault(row.run, []).append(row.value)
        names = list(of_run)
        names = names[: names.index(run) + 1][-most_runs:] if run in of_run else []
        spreads = [(one, spread_of(of_run[one])) for one in names]
        known = tuple((one, spread) for one, spread in spreads if spread is not None)
        if len(known) > 1:
            changes, trouble = _changes([spread.middle for _, spread in known])
            found.append(Trend(measure=measure, runs=known, changes=changes, trouble=trouble))
    return found


def _changes(values: Sequence[float]) -> tuple[tuple[int, ...], str]:
    """Find where a history has changed, or say why that cannot be done here."""
    try:
        return tuple(change.at for change in find_changes(values)), ""
    except InputError as error:
        return (), str(error)


def _by_series(rows: Iterable[SampleRow]) -> dict[int, list[SampleRow]]:
    found: dict[int, list[SampleRow]] = {}
    for row in rows:
        found.setdefault(row.series, []).append(row)
    return found


def _parameters(series: SeriesRow, task: Task | None) -> dict[str, str]:
    """Give the parameters of a series: those of its task are exact, its case is for people."""
    pairs = dict(_PAIR.findall(series.case))
    tags = dict(task.tags) if task is not None else {}
    exact = {key: tags[key] for key in pairs if key in tags} or pairs
    point = {key: _as_text(value) for key, value in series.point.items()}
    return {key: value for key, value in {**exact, **point}.items() if key != _TRIAL}


def _as_text(value: float | int | str) -> str:
    return f"{value:g}" if isinstance(value, float) and abs(value) < 1e15 else str(value)


def as_number(text: str) -> float | None:
    """Read a parameter as a number, `1M` and `4KiB` too; None: it is none."""
    found = re.fullmatch(r"([-+]?[\d.]+(?:[eE][-+]?\d+)?)\s*(?:([KMGT])(iB|B)?|B)?", text.strip())
    if not found:
        return None
    try:
        value = float(found[1])
    except ValueError:
        return None
    power = " KMGT".index(found[2]) if found[2] else 0
    value *= 1024.0**power
    return value if math.isfinite(value) else None
