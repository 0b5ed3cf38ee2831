"""Tests on one rank: what the plugin costs where it has nothing to gain but a second rank."""

from __future__ import annotations

from pathlib import Path

from bench import spellings, suites
from bench.contestants import Contestant, each_scheduler, pool
from bench.environment import NO_RANKWISE, pytest, python
from bench.measure import take_turns
from bench.peers import Peer
from bench.table import Table, compare

_TESTS = 1000


def run(folder: Path, repetitions: int) -> Table:
    suite = suites.write(folder / "serial", _TESTS, spellings.SERIAL)
    shows = f"{_TESTS} passed"
    contestants = [
        Contestant(name="pytest", command=pytest(*NO_RANKWISE), folder=suite, shows=shows),
        pool(suite, shows, target=1.3),
        *each_scheduler(suite, shows, target=1.5),
        Contestant(
            name="pytest -n 2 (xdist)",
            command=pytest("-n2", environment=Peer.PYTEST_XDIST.environment),
            folder=suite,
            shows=shows,
            peer=Peer.PYTEST_XDIST,
        ),
        Contestant(
            name="testflo -n 2",
            command=python("-m", "testflo", "-n", "2", environment=Peer.TESTFLO.environment),
            folder=suite,
            shows=f"Passed:  {_TESTS}\n",
            peer=Peer.TESTFLO,
        ),
    ]
    results = take_turns(contestants, repetitions)
    return compare(f"{_TESTS:,} trivial tests on one rank", results)
