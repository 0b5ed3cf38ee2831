"""How metrics were in all runs, as data: where they have changed, and since which commits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from rankwise.stats.changes import Change, find_changes
from rankwise.stats.medians import median
from rankwise.store import Store
from rankwise.store.samples import SampleRow, SeriesRow

LAST_RUNS = 200
COMMIT, BRANCH, DIRTY = "git.commit", "git.branch", "git.dirty"


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The runs of one commit that came one after the other, or one run."""

    run: str
    """The first one."""
    created: float
    commit: str
    """Empty: it is not known."""
    is_dirty: bool
    """Whether there was more than the commit."""
    value: float
    """The median of all trials."""
    trials: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A change, and between which runs it came."""

    change: Change
    last_good: Moment
    first_bad: Moment
    meaning: str
    """`regressed`, `improved`, or `changed` where nobody knows which direction is the good one."""

    @property
    def commits(self) -> str:
        """The range to look at, as git writes it; empty: they are not known."""
        first, last = self.last_good.commit, self.first_bad.commit
        return f"{first}..{last}" if first and last and first != last else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """One series over its runs, the oldest first."""

    series: SeriesRow
    moments: Sequence[Moment]
    turns: Sequence[Turn]


def trend_of(store: Store, series: SeriesRow, *, last_runs: int | None = LAST_RUNS) -> Trend:
    """Find out how a series was and where it has changed; raises InputError without numpy."""
    moments = moments_of(store.history(series.id, last_runs=last_runs))
    changes = find_changes([moment.value for moment in moments])
    turns = [
        Turn(
            change=change,
            last_good=moments[change.at - 1],
            first_bad=moments[change.at],
            meaning=_meaning(series, change),
        )
        for change in changes
    ]
    return Trend(series=series, moments=moments, turns=turns)


def moments_of(rows: Iterable[SampleRow]) -> list[Moment]:
    """Put the trials of each commit together, as far as they came one after the other."""
    return [_moment(list(group)) for _, group in groupby(rows, key=_what)]


def trend_data(trend: Trend) -> dict[str, Any]:
    """Give a trend as JSON has it."""
    series = trend.series
    return {
        "name": series.name,
        "metric": series.metric,
        "unit": series.unit,
        "better": series.better,
        "case": series.case,
        "point": dict(series.point),
        "history": [
            {
                "run": moment.run,
                "time": moment.created,
                "commit": moment.commit,
                "dirty": moment.is_dirty,
                "median": moment.value,
                "trials": moment.trials,
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
    is_clean = commit and DIRTY not in row.tags
    return (commit, "") if is_clean else (commit, row.run)


def _moment(rows: Sequence[SampleRow]) -> Moment:
    first = rows[0]
    return Moment(
        run=first.run,
        created=first.created,
        commit=first.tags.get(COMMIT, ""),
        is_dirty=DIRTY in first.tags,
        value=median([row.value for row in rows]),
        trials=len(rows),
    )


def _meaning(series: SeriesRow, change: Change) -> str:
    if not series.better:
        return "changed"
    return "regressed" if (change.share > 0) == (series.better == "lower") else "improved"
