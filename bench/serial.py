"""Tests on one rank: what the plugin costs where it has nothing to gain but a second rank."""

from __future__ import annotations

from pathlib import Path

from bench import suites
from bench.environment import NO_RANKWISE, NO_XDIST, pytest
from bench.measure import Contestant, each_scheduler, take_turns
from bench.table import Table, compare

_TESTS = 1000


def run(folder: Path, repetitions: int) -> Table:
    suite = suites.write_serial(folder / "serial", _TESTS)
    shows = f"{_TESTS} passed"
    contestants = [
        Contestant(
            name="pytest",
            command=pytest(*NO_RANKWISE, *NO_XDIST),
            folder=suite,
            shows=shows,
        ),
        *each_scheduler(suite, shows, target=1.5),
        Contestant(
            name="pytest -n 2 (xdist)",
            command=pytest(*NO_RANKWISE, "-n2"),
            folder=suite,
            shows=shows,
        ),
    ]
    samples = take_turns(contestants, repetitions)
    return compare(f"{_TESTS:,} trivial tests on one rank", contestants, samples)
