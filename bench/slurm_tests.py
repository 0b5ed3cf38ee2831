"""Tests on the nodes of a real Slurm, against bare sruns and against a pool on this machine."""

from __future__ import annotations

from pathlib import Path

from bench import spellings, suites
from bench.contestants import Contestant
from bench.environment import BENCH, pytest, python
from bench.measure import BenchError, Result, take_turns
from bench.table import Table, compare

_TESTS = 50
_WORKERS = 8
_STEPS_TARGET = 1.2
_POOL_TARGET = 1.5
_MOST_REPETITIONS = 3

# As many at once as the allocation holds, the next as soon as one is over.
_DRIVER = """
import subprocess, sys, time

count, width = map(int, sys.argv[1:])
program = "from mpi4py import MPI; print('hello', MPI.COMM_WORLD.rank)"
command = ["srun", "--quiet", "--exact", "--ntasks=2", "--nodes=1-2", "--mpi=pmi2"]
command += [sys.executable, "-c", program]
running, left = [], count
while left or running:
    while left and len(running) < width // 2:
        running.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE))
        left -= 1
    for step in [one for one in running if one.poll() is not None]:
        assert sorted(step.stdout.read().split()) == [b"0", b"1", b"hello", b"hello"]
        running.remove(step)
    time.sleep(0.002)
print(count, "steps")
"""


def run_steps(folder: Path, repetitions: int) -> Table:
    """Measure a job step for each test."""
    suite = suites.write(folder / "suite", _TESTS, spellings.RANKWISE)
    bare = Contestant(
        name=f"{_TESTS} times srun -n 2 python, {_WORKERS // 2} at once",
        command=[*_allocated(), *python("-c", _DRIVER, str(_TESTS), str(_WORKERS))],
        folder=suite,
        shows=f"{_TESTS} steps",
    )
    ours = Contestant(
        name=f"pytest --n-workers={_WORKERS} --scheduler=slurm",
        command=pytest(f"--n-workers={_WORKERS}", "--scheduler=slurm"),
        folder=suite,
        shows=f"{_TESTS} passed",
        target=_STEPS_TARGET,
    )
    table = compare(
        f"{_TESTS} trivial tests on two ranks, each a job step of its own",
        _on_cluster([bare, ours], repetitions),
    )
    table.remarks.append("Both ask Slurm for an allocation first; that is part of the time.")
    return table


def run_pool(folder: Path, repetitions: int) -> Table:
    """Measure a pool on the nodes of an allocation."""
    suite = suites.write(folder / "suite", _TESTS, spellings.RANKWISE)
    local = Contestant(
        name=f"pytest --n-workers={_WORKERS}",
        command=pytest(f"--n-workers={_WORKERS}"),
        folder=suite,
        shows=f"{_TESTS} passed",
    )
    ours = Contestant(
        name=f"salloc -n {_WORKERS} pytest --scheduler=slurm-pool",
        command=[*_allocated(), *pytest("--scheduler=slurm-pool")],
        folder=suite,
        shows=f"{_TESTS} passed",
        target=_POOL_TARGET,
    )
    return compare(
        f"{_TESTS} trivial tests on two ranks, in a pool on two nodes",
        _on_cluster([local, ours], repetitions),
    )


def _allocated() -> list[str]:
    return ["salloc", "--quiet", f"--ntasks={_WORKERS}"]


def _on_cluster(contestants: list[Contestant], repetitions: int) -> list[Result]:
    from cluster import PACKAGES, cluster, obstacle
    from debian import install

    if why := install(PACKAGES, obstacle):
        raise BenchError(f"no Slurm here: {why}")
    assert BENCH.python.exists()
    with cluster() as made:
        there = [_with_variables(one, made.variables) for one in contestants]
        return take_turns(there, min(repetitions, _MOST_REPETITIONS))


def _with_variables(contestant: Contestant, variables: dict[str, str]) -> Contestant:
    from dataclasses import replace

    return replace(contestant, variables=variables)
