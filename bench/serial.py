"""Tests on one rank: what the plugin costs where it has nothing to gain but a second rank."""

from __future__ import annotations

from pathlib import Path

from bench import suites
from bench.environment import NO_RANKWISE, NO_XDIST, pytest
from bench.measure import SCHEDULERS, Contestant, take_turns
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
        *(
            Contestant(
                name=f"mpirun -n 2 pytest --scheduler={scheduler}",
                command=pytest(*NO_XDIST, f"--scheduler={scheduler}", ranks=2),
                folder=suite,
                shows=shows,
                target=1.5,
            )
            for scheduler in SCHEDULERS
        ),
        Contestant(
            name="pytest -n 2 (xdist)",
            command=pytest(*NO_RANKWISE, "-n2"),
            folder=suite,
            shows=shows,
        ),
    ]
    samples = take_turns(contestants, repetitions)
    return compare(f"{_TESTS:,} trivial tests on one rank", contestants, samples)
