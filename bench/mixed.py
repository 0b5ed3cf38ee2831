"""Tests of all sizes and lengths on four ranks: how near to the least possible time?"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from bench import suites
from bench.environment import NO_XDIST, pytest
from bench.measure import SCHEDULERS, Contestant, forget, median
from bench.measure import run as run_once
from bench.table import Table
from rankwise.testing.dispatch import Suite, make_policy
from rankwise.testing.policy import Case, Pace
from rankwise.testing.policy.simulate import lower_bound, simulate

_TESTS = 40
_RANKS = 4
_AREA_SECONDS = 15.0
_SEED = 4
# Each round takes a minute, nearly all of it asleep: noise is small and patience is not endless.
_MOST_REPETITIONS = 3


def run(folder: Path, repetitions: int) -> Table:
    rounds = min(repetitions, _MOST_REPETITIONS)
    cases = suites.mixed(_TESTS, _RANKS, _AREA_SECONDS, _SEED)
    contestants = {
        scheduler: Contestant(
            name=scheduler,
            command=pytest(*NO_XDIST, f"--scheduler={scheduler}", ranks=_RANKS),
            folder=suites.write_sleeping(folder / f"mixed-{scheduler}", cases),
            shows=f"{_TESTS} passed",
        )
        for scheduler in SCHEDULERS
    }
    spans: dict[tuple[str, bool], list[float]] = {}
    for _ in range(rounds):
        for scheduler, contestant in contestants.items():
            forget(contestant.folder)
            for known in (False, True):
                spans.setdefault((scheduler, known), []).append(_span(contestant))
    bound = lower_bound(cases, _seconds(cases), _RANKS)
    table = Table(
        title=f"{_TESTS} tests of 1-{_RANKS} ranks on {_RANKS} ranks, from the start of the first "
        f"test to the end of the last; no order takes less than {bound:.2f} s; medians of {rounds}",
        headings=("tests s", "/ bound", "policy alone / bound"),
    )
    for (scheduler, known), taken in spans.items():
        table.rows.append(
            (
                f"{scheduler}, {'second run' if known else 'first run'}",
                f"{median(taken):.2f}",
                f"{median(taken) / bound:.2f}",
                f"{_simulated(scheduler, cases, known) / bound:.2f}",
            )
        )
    table.remarks.append("The second run knows from pytest's cache how long each test took.")
    return table


def _seconds(cases: list[Case]) -> list[float]:
    return [case.seconds or 0.0 for case in cases]


def _span(contestant: Contestant) -> float:
    """Run once; give the seconds between the start of the first test and the end of the last."""
    record = contestant.folder / "span.json"
    run_once(contestant, {"BENCH_SPAN": str(record)})
    return float(json.loads(record.read_text()))


def _simulated(scheduler: str, cases: list[Case], known: bool) -> float:
    told = cases if known else [replace(case, seconds=None) for case in cases]
    pace = Pace()
    policy = make_policy(scheduler, Suite(cases=told, groups=[]), _RANKS, pace)
    return simulate(policy, _seconds(cases), _RANKS, pace=pace).makespan
