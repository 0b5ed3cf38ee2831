"""Tests on two ranks, against two pytests that know nothing of each other."""

from __future__ import annotations

from pathlib import Path

from bench import spellings, suites
from bench.contestants import Contestant, each_scheduler, pool
from bench.environment import BENCH, NO_RANKWISE, PLUGINS, VirtualEnvironment, prepare, pytest
from bench.measure import take_turns
from bench.peers import Peer
from bench.table import Table, compare

_TESTS = 300
_TARGET = 1.1
_TARGET_OF_POOL = 1.2


def run(folder: Path, repetitions: int) -> list[Table]:
    suite = suites.write(folder / "two_rank", _TESTS, spellings.RANKWISE)
    by_hand = suites.write(folder / "by_hand", _TESTS, spellings.BY_HAND)
    table = compare(
        f"{_TESTS} trivial tests on two ranks",
        take_turns([*_ours(suite, by_hand, BENCH), *_peers(folder)], repetitions),
    )
    table.remarks.append(
        "Without a plugin, and with mpi-pytest and pytest-mpi, the tests take COMM_WORLD from a "
        "fixture of their own."
    )
    prepare(PLUGINS)
    beside = compare(
        f"{_TESTS} trivial tests on two ranks, beside the most common plugins of pytest",
        take_turns(_ours(suite, by_hand, PLUGINS), repetitions),
    )
    return [table, beside]


def _ours(suite: Path, by_hand: Path, environment: VirtualEnvironment) -> list[Contestant]:
    shows = f"{_TESTS} passed"
    return [
        Contestant(
            name="mpirun -n 2 pytest -p no:rankwise",
            command=pytest(*NO_RANKWISE, ranks=2, environment=environment),
            folder=by_hand,
            shows=shows,
            own_environment=environment,
        ),
        pool(suite, shows, target=_TARGET_OF_POOL, environment=environment),
        *each_scheduler(suite, shows, target=_TARGET, environment=environment),
    ]


def _peers(folder: Path) -> list[Contestant]:
    shows = f"{_TESTS} passed"
    return [
        Contestant(
            name="mpirun -n 2 pytest (mpi-pytest)",
            command=pytest(ranks=2, environment=Peer.MPI_PYTEST.environment),
            folder=suites.write(folder / "mpi_pytest", _TESTS, spellings.MPI_PYTEST),
            shows=shows,
            peer=Peer.MPI_PYTEST,
        ),
        Contestant(
            name="mpirun -n 2 pytest --with-mpi (pytest-mpi)",
            command=pytest("--with-mpi", ranks=2, environment=Peer.PYTEST_MPI.environment),
            folder=suites.write(folder / "pytest_mpi", _TESTS, spellings.PYTEST_MPI),
            shows=shows,
            peer=Peer.PYTEST_MPI,
        ),
    ]
