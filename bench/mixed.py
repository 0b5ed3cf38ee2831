"""Tests of all sizes and lengths on four ranks: how near to the least possible time?"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench import suites
from bench.contestants import SCHEDULERS, Contestant
from bench.environment import pytest
from bench.measure import BenchError, forget, median
from bench.measure import run as run_once
from bench.table import Table, judge
from rankwise.pytest_plugin.schedulers.base import Pace, ScheduledTest
from rankwise.pytest_plugin.schedulers.dispatcher import ScheduledSuite, make_scheduler
from tests.support.simulate import lower_bound, simulate

_TESTS = 40
_RANKS = 4
_AREA_SECONDS = 15.0
_SEED = 4
# Each round takes a minute, nearly all of it asleep: noise is small and patience is not endless.
_MOST_REPETITIONS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """A way to run the tests, by a policy; and what their time by the bound should not exceed."""

    name: str
    arguments: Sequence[str]
    mpirun: bool
    policy: str
    first_target: float | None = None
    second_target: float | None = None


_ENTRIES = (
    _Entry(
        name=f"pytest --n-workers={_RANKS}",
        arguments=(f"--n-workers={_RANKS}",),
        mpirun=False,
        policy="dynamic",
        first_target=1.10,
        second_target=1.05,
    ),
    *(
        _Entry(
            name=f"mpirun -n {_RANKS} pytest --scheduler={scheduler}",
            arguments=(f"--scheduler={scheduler}",),
            mpirun=True,
            policy=scheduler,
        )
        for scheduler in SCHEDULERS
    ),
)


@dataclass(slots=True, kw_only=True)
class _Runs:
    """Seconds of each run: the tests' own, and all others."""

    spans: list[float] = field(default_factory=list)
    startups: list[float] = field(default_factory=list)


def run(folder: Path, repetitions: int) -> Table:
    rounds = min(repetitions, _MOST_REPETITIONS)
    cases = suites.mixed(_TESTS, _RANKS, _AREA_SECONDS, _SEED)
    bound = lower_bound(cases, _seconds(cases), _RANKS)
    table = Table(
        title=f"{_TESTS} tests of 1-{_RANKS} ranks on {_RANKS} ranks, from the start of the first "
        f"test to the end of the last; no order takes less than {bound:.2f} s; medians of {rounds}",
        headings=("tests s", "/ bound", "start-up s", "policy alone / bound", "target"),
    )
    for (entry, known), runs in _measure(folder, cases, rounds).items():
        ratio = median(runs.spans) / bound
        table.rows.append(
            (
                f"{entry.name}, {'second run' if known else 'first run'}",
                f"{median(runs.spans):.2f}",
                f"{ratio:.2f}",
                f"{median(runs.startups):.2f}",
                f"{_simulated(entry.policy, cases, known) / bound:.2f}",
                judge(ratio, entry.second_target if known else entry.first_target),
            )
        )
    table.remarks += [
        "The second run knows from pytest's cache how long each test took.",
        "Start-up: the rest of the command's time, before the first test and after the last.",
    ]
    return table


def _measure(
    folder: Path, cases: Sequence[ScheduledTest], rounds: int
) -> Mapping[tuple[_Entry, bool], _Runs]:
    """Run every entry twice in each round: without knowing how long tests take, and knowing."""
    contestants = {
        entry: Contestant(
            name=entry.name,
            command=pytest(*entry.arguments, ranks=_RANKS if entry.mpirun else None),
            folder=suites.write_sleeping(folder / f"mixed-{number}", cases),
            shows=f"{_TESTS} passed",
        )
        for number, entry in enumerate(_ENTRIES)
    }
    measured = {(entry, known): _Runs() for entry in _ENTRIES for known in (False, True)}
    for _ in range(rounds):
        for entry, contestant in contestants.items():
            forget(contestant.folder)
            for known in (False, True):
                span, startup = _span(contestant)
                measured[entry, known].spans.append(span)
                measured[entry, known].startups.append(startup)
    return measured


def _seconds(cases: Sequence[ScheduledTest]) -> list[float]:
    return [case.seconds or 0.0 for case in cases]


def _span(contestant: Contestant) -> tuple[float, float]:
    """Run once; give the seconds from the start of the first test to the end of the last, and the
    rest of the command's."""
    record = contestant.folder / "span.json"
    record.unlink(missing_ok=True)
    sample = run_once(contestant, {"BENCH_SPAN": str(record)})
    if not record.exists():
        raise BenchError(f"{contestant.name}: no process has noted when the tests ran")
    span = float(json.loads(record.read_text()))
    return span, sample.wall - span


def _simulated(scheduler: str, cases: Sequence[ScheduledTest], known: bool) -> float:
    told = cases if known else [replace(case, seconds=None) for case in cases]
    pace = Pace()
    policy = make_scheduler(scheduler, ScheduledSuite(cases=told, groups=[]), _RANKS, pace)
    return simulate(policy, _seconds(cases), _RANKS, pace=pace).makespan
