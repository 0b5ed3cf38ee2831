"""Tests that crash or hang in a pool: what does the run pay for each of them?"""

from __future__ import annotations

from pathlib import Path

from bench import suites
from bench.contestants import Contestant
from bench.environment import pytest
from bench.measure import median, take_turns
from bench.suites import Fault
from bench.table import Table, judge

_TESTS = 1000
_LIMIT_SECONDS = 2
# Every fifth of them hangs.
_FAULTS = tuple(Fault.HANG if number % 5 == 2 else Fault.CRASH for number in range(25))
_TARGET_SECONDS = 0.5
# A faulty round may take half a minute, of which the limits alone are ten seconds.
_MOST_REPETITIONS = 3


def run(folder: Path, repetitions: int) -> Table:
    command = pytest("--n-workers=2", f"--test-timeout={_LIMIT_SECONDS}")
    crashes, hangs = _FAULTS.count(Fault.CRASH), _FAULTS.count(Fault.HANG)
    rounds = min(repetitions, _MOST_REPETITIONS)
    clean, faulty = take_turns(
        [
            Contestant(
                name="without faults",
                command=command,
                folder=suites.write_faulty(folder / "clean", _TESTS, ()),
                shows=f"{_TESTS} passed",
            ),
            Contestant(
                name=f"with {len(_FAULTS)} faults",
                command=command,
                folder=suites.write_faulty(folder / "faulty", _TESTS, _FAULTS),
                shows=f"{len(_FAULTS)} failed, {_TESTS} passed",
                code=1,
            ),
        ],
        rounds,
    )
    limits = hangs * _LIMIT_SECONDS
    pairs = zip(faulty.samples, clean.samples, strict=True)
    more = median([own.wall - other.wall for own, other in pairs])
    relaunch = (more - limits) / len(_FAULTS)
    table = Table(
        title=f"{_TESTS:,} trivial tests on one and two ranks, {' '.join(command[2:])}; the "
        f"faults are {crashes} tests that crash and {hangs} that hang; medians of {rounds}",
        headings=("wall s", "CPU s", "more s", "limits s", "per relaunch s", "target"),
        rows=[
            (clean.contestant.name, f"{clean.wall:.2f}", f"{clean.cpu:.2f}", "", "", "", ""),
            (
                faulty.contestant.name,
                f"{faulty.wall:.2f}",
                f"{faulty.cpu:.2f}",
                f"{more:.2f}",
                f"{limits}",
                f"{relaunch:.2f}",
                judge(relaunch, _TARGET_SECONDS),
            ),
        ],
    )
    table.remarks.append(f"Per relaunch: what is more than the limits, divided by {len(_FAULTS)}.")
    return table
