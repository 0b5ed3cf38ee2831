"""Policies on a simulated machine: how long they think, and how good their plans are."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from bench import suites
from bench.measure import median
from bench.table import Table, judge
from rankwise.pytest_plugin.schedulers.base import Assignment, Pace, ScheduledTest, Scheduler
from rankwise.pytest_plugin.schedulers.dispatcher import ScheduledSuite, make_scheduler
from tests.support.simulate import Simulation, lower_bound, simulate

_TESTS = 100_000
_RANKS = 4096
_SEED = 5
_TARGET_SECONDS = 5.0
_MOST_REPETITIONS = 3


class _Timed:
    """A policy with a stopwatch."""

    one_by_one: ClassVar[bool] = False

    def __init__(self, policy: Scheduler) -> None:
        self._policy = policy
        self.seconds = 0.0

    def release(self, ranks: tuple[int, ...]) -> None:
        started = time.perf_counter()
        self._policy.release(ranks)
        self.seconds += time.perf_counter() - started

    def put_back(self, case: int) -> None:
        self._policy.put_back(case)

    def take(self) -> Assignment | None:
        started = time.perf_counter()
        assignment = self._policy.take()
        self.seconds += time.perf_counter() - started
        return assignment


def run(_folder: Path, repetitions: int) -> Table:
    cases = suites.many(_TESTS, _SEED)
    seconds = [case.seconds or 0.0 for case in cases]
    strangers = [replace(case, seconds=None) for case in cases]
    bound = lower_bound(cases, seconds, _RANKS)
    rounds = min(repetitions, _MOST_REPETITIONS)
    table = Table(
        title=f"{_TESTS:,} simulated tests of 1-{max(case.size for case in cases)} ranks on "
        f"{_RANKS:,} ranks; no order can take less than {bound:.0f} s; medians of {rounds}",
        headings=("before first test s", "all decisions s", "makespan / bound", "idle", "target"),
    )
    for scheduler in ("static", "dynamic"):
        for name, told in (("unknown", strangers), ("known", cases)):
            measured = [_simulate(scheduler, told, seconds) for _ in range(rounds)]
            planning = median([planned for planned, _, _ in measured])
            thinking = median([thought for _, thought, _ in measured])
            simulation = measured[0][2]
            table.rows.append(
                (
                    f"{scheduler}, durations {name}",
                    f"{planning:.2f}",
                    f"{thinking:.2f}",
                    f"{simulation.makespan / bound:.2f}",
                    f"{100 * simulation.idle / (_RANKS * simulation.makespan):.0f} %",
                    judge(thinking, _TARGET_SECONDS),
                )
            )
    return table


def _simulate(
    scheduler: str, cases: Sequence[ScheduledTest], seconds: Sequence[float]
) -> tuple[float, float, Simulation]:
    """Return the seconds until the first test could start, those of all decisions, and the rest."""
    pace = Pace()
    started = time.perf_counter()
    policy = _Timed(make_scheduler(scheduler, ScheduledSuite(cases=cases, groups=[]), _RANKS, pace))
    planning = time.perf_counter() - started
    simulation = simulate(policy, seconds, _RANKS, pace=pace)
    assert len(simulation.spans) == len(cases), "a policy has lost tests"
    return planning, planning + policy.seconds, simulation
