"""Tests on two ranks, against two pytests that know nothing of each other."""

from __future__ import annotations

from pathlib import Path

from bench import spellings, suites
from bench.contestants import Contestant, each_scheduler, pool
from bench.environment import NO_RANKWISE, pytest
from bench.measure import take_turns
from bench.peers import Peer
from bench.table import Table, compare

_TESTS = 300


def run(folder: Path, repetitions: int) -> Table:
    suite = suites.write(folder / "two_rank", _TESTS, spellings.RANKWISE)
    shows = f"{_TESTS} passed"
    contestants = [
        Contestant(
            name="mpirun -n 2 pytest -p no:rankwise",
            command=pytest(*NO_RANKWISE, ranks=2),
            folder=suites.write(folder / "by_hand", _TESTS, spellings.BY_HAND),
            shows=shows,
        ),
        pool(suite, shows, target=1.2),
        *each_scheduler(suite, shows, target=1.0),
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
    table = compare(f"{_TESTS} trivial tests on two ranks", take_turns(contestants, repetitions))
    table.remarks.append(
        "Without a plugin, and with mpi-pytest and pytest-mpi, the tests take COMM_WORLD from a "
        "fixture of their own."
    )
    return table
