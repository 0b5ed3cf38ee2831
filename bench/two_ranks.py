"""Tests on two ranks, against two pytests that know nothing of each other."""

from __future__ import annotations

from pathlib import Path

from bench import suites
from bench.environment import NO_RANKWISE, NO_XDIST, pytest
from bench.measure import Contestant, each_scheduler, take_turns
from bench.table import Table, compare

_TESTS = 300


def run(folder: Path, repetitions: int) -> Table:
    suite = suites.write_two_rank(folder / "two_rank", _TESTS)
    by_hand = suites.write_two_rank_by_hand(folder / "by_hand", _TESTS)
    shows = f"{_TESTS} passed"
    contestants = [
        Contestant(
            name="mpirun -n 2 pytest -p no:rankwise",
            command=pytest(*NO_XDIST, *NO_RANKWISE, ranks=2),
            folder=by_hand,
            shows=shows,
        ),
        *each_scheduler(suite, shows, target=1.0),
    ]
    samples = take_turns(contestants, repetitions)
    table = compare(f"{_TESTS} trivial tests on two ranks", contestants, samples)
    table.remarks.append(
        "Without the plugin, the tests take COMM_WORLD from a fixture of their own."
    )
    return table
