"""Made-up histories whose truth is known: how often changes are found, and alarms false."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.table import Table
from rankwise.stats.change_points import LevelChange, find_changes
from rankwise.stats.comparison import median

_SEED = 8
_HISTORIES = 1000
_COMMITS = 100
_TRIALS = 5
_NOISE = 0.05
_SPIKES = 0.05
_SPIKE = 1.5
# A change that is reported so many commits off is found: who looks for it, sees it.
_OFF = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """One kind of histories."""

    name: str
    step: float = 0.0
    age: int = 0
    """So many commits are after the step."""
    commits: int = _COMMITS
    whole_commits: bool = False
    """Whether a spike hits all trials of a commit."""
    least: float | None = None
    """The share to be found that is aimed at; without a step, the share of alarms at most."""


_CASES = (
    _Case(name="no change", least=0.01),
    _Case(name="+10 %, three commits old", step=0.10, age=3, least=0.93),
    _Case(name="+5 %, twenty commits old", step=0.05, age=20, least=0.85),
    _Case(name="+10 %, three commits old, of 30", step=0.10, age=3, commits=30),
    _Case(name="no change, spikes of whole commits", whole_commits=True),
    _Case(name="+10 %, three old, spikes of whole commits", step=0.10, age=3, whole_commits=True),
)


def run(_folder: Path, _repetitions: int) -> Table:
    table = Table(
        title=f"{_HISTORIES:,} histories each of {_COMMITS} commits with {_TRIALS} trials; "
        f"{_NOISE:.0%} noise, {_SPIKES:.0%} of the trials are spikes of {_SPIKE - 1:+.0%}; "
        f"seed {_SEED}",
        headings=("alarms", f"found ±{_OFF}", "exactly", "ms each", "target"),
    )
    for case in _CASES:
        table.rows.append(_row(case))
    table.remarks.append("Alarms: histories in which any change is reported.")
    return table


def _row(case: _Case) -> Sequence[str]:
    chance = random.Random(f"{_SEED} {case.name}")
    histories = [_history(case, chance) for _ in range(_HISTORIES)]
    begun = time.perf_counter()
    found = [find_changes(history) for history in histories]
    milliseconds = (time.perf_counter() - begun) * 1000 / _HISTORIES
    alarms = sum(map(bool, found)) / _HISTORIES
    shown = (f"{alarms:.1%}", "", "", f"{milliseconds:.1f}")
    if not case.step:
        return (case.name, *shown, _judged(alarms, case.least, at_most=True))
    near, exact = (_hits(case, found, off) for off in (_OFF, 0))
    shown = (shown[0], f"{near:.1%}", f"{exact:.1%}", shown[3])
    return (case.name, *shown, _judged(near, case.least, at_most=False))


def _history(case: _Case, chance: random.Random) -> list[float]:
    """Make the medians of all commits."""
    first = case.commits - case.age

    def trials(level: float) -> list[float]:
        values = [level * (1 + chance.gauss(0, _NOISE)) for _ in range(_TRIALS)]
        hits = [chance.random() < _SPIKES for _ in values]
        if case.whole_commits:
            hits = [hits[0]] * len(hits)
        return [value * (_SPIKE if hit else 1) for value, hit in zip(values, hits, strict=True)]

    return [median(trials(1 + case.step * (commit >= first))) for commit in range(case.commits)]


def _hits(case: _Case, found: Sequence[Sequence[LevelChange]], off: int) -> float:
    truth = case.commits - case.age
    hits = [any(abs(change.at - truth) <= off for change in changes) for changes in found]
    return sum(hits) / len(found)


def _judged(share: float, aim: float | None, *, at_most: bool) -> str:
    if aim is None:
        return ""
    is_met = share <= aim if at_most else share >= aim
    return f"{'≤' if at_most else '≥'} {aim:.0%} {'met' if is_met else 'MISSED'}"
