"""Every test in fresh processes, against bare launches of Python that do nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from bench import spellings, suites
from bench.contestants import Contestant
from bench.environment import PLUGINS, prepare, pytest, python
from bench.measure import take_turns
from bench.peers import Peer
from bench.spellings import Spelling
from bench.table import Table, compare

_TESTS = 20
_TARGET = 0.8
# What a numerical project's tests begin with.
_IMPORTS = ("numpy", "scipy.linalg")
# Each run is already the sum of twenty launches, and a round with the peers takes minutes.
_MOST_REPETITIONS = 3

# One launch after the other, with the interpreter and the mpiexec of the environment.
_DRIVER = """
import subprocess, sys

count, imports = int(sys.argv[1]), sys.argv[2:]
program = "".join(f"import {name}; " for name in imports)
program += "from mpi4py import MPI; print('hello', MPI.COMM_WORLD.rank)"
for number in range(count):
    command = ["mpiexec", "-n", "2", sys.executable, "-c", program]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True)
    assert sorted(done.stdout.split()) == [b"0", b"1", b"hello", b"hello"], done.stdout
print(count, "launches")
"""


def run(folder: Path, repetitions: int) -> Table:
    # The peers take several times as long as a bare launch, so they have fewer turns.
    contestants = [
        *_ours(folder / "plain", (), ""),
        *_ours(folder / "imports", _IMPORTS, ", imports"),
        *_beside_plugins(folder / "plugins"),
        *_peers(folder / "plain", (), "", most_rounds=2),
        *_peers(folder / "imports", _IMPORTS, ", imports", most_rounds=1),
    ]
    prepare(PLUGINS)
    table = compare(
        f"{_TESTS} trivial tests on two ranks, each in processes of its own",
        take_turns(contestants, min(repetitions, _MOST_REPETITIONS)),
    )
    table.remarks += [
        f"Imports: {' and '.join(_IMPORTS)} at the top of the module.",
        "All but testflo -n 2 run one test at a time, which is two ranks.",
        "Plugins: beside the most common plugins of pytest.",
        "No bytecode: with PYTHONDONTWRITEBYTECODE=1, as in many container images.",
    ]
    return table


def _ours(folder: Path, imports: Sequence[str], suffix: str) -> list[Contestant]:
    suite = suites.write(folder / "rankwise", _TESTS, spellings.RANKWISE, imports=imports)
    return [
        Contestant(
            name=f"{_TESTS} times mpiexec -n 2 python{suffix}",
            command=python("-c", _DRIVER, str(_TESTS), *imports),
            folder=suite,
            shows=f"{_TESTS} launches",
        ),
        Contestant(
            name=f"pytest --n-workers=2 --scheduler=shell{suffix}",
            command=pytest("--n-workers=2", "--scheduler=shell"),
            folder=suite,
            shows=f"{_TESTS} passed",
            target=_TARGET,
        ),
    ]


def _beside_plugins(folder: Path) -> list[Contestant]:
    suite = suites.write(folder / "rankwise", _TESTS, spellings.RANKWISE)
    ways: Mapping[str, Mapping[str, str]] = {
        ", plugins": {},
        ", plugins, no bytecode": {"PYTHONDONTWRITEBYTECODE": "1"},
    }
    return [
        Contestant(
            name=f"pytest --n-workers=2 --scheduler=shell{suffix}",
            command=pytest("--n-workers=2", "--scheduler=shell", environment=PLUGINS),
            folder=suite,
            shows=f"{_TESTS} passed",
            target=_TARGET,
            own_environment=PLUGINS,
            variables=more,
        )
        for suffix, more in ways.items()
    ]


def _peers(
    folder: Path, imports: Sequence[str], suffix: str, *, most_rounds: int
) -> list[Contestant]:
    def write(peer: Peer, spelling: Spelling) -> Path:
        return suites.write(folder / peer, _TESTS, spelling, imports=imports)

    testflo = write(Peer.TESTFLO, spellings.TESTFLO)
    return [
        Contestant(
            name=f"pytest (pytest-isolate-mpi){suffix}",
            command=pytest(environment=Peer.PYTEST_ISOLATE_MPI.environment),
            folder=write(Peer.PYTEST_ISOLATE_MPI, spellings.PYTEST_ISOLATE_MPI),
            # Each rank has a report of its own.
            shows=f"{2 * _TESTS} passed",
            peer=Peer.PYTEST_ISOLATE_MPI,
            most_rounds=most_rounds,
        ),
        Contestant(
            name=f"pytest (mpi-pytest){suffix}",
            command=pytest(environment=Peer.MPI_PYTEST.environment),
            folder=write(Peer.MPI_PYTEST, spellings.MPI_PYTEST),
            shows=f"{_TESTS} passed",
            peer=Peer.MPI_PYTEST,
            most_rounds=most_rounds,
        ),
        *(
            Contestant(
                name=f"testflo -n {width}{suffix}",
                command=python(
                    "-m", "testflo", "-n", str(width), environment=Peer.TESTFLO.environment
                ),
                folder=testflo,
                shows=f"Passed:  {_TESTS}\n",
                peer=Peer.TESTFLO,
                most_rounds=most_rounds,
            )
            for width in (1, 2)
        ),
    ]
