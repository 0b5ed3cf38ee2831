"""Ranks that raise."""

from __future__ import annotations

import pytest

from rankwise.launch.commandline import read_command
from rankwise.launch.rewriting import ending_all
from rankwise.launch.shell import apply


@pytest.mark.parametrize(
    ("line", "mended"),
    [
        ("mpirun -n 4 python train.py", "mpirun -n 4 python -m mpi4py train.py"),
        (
            "mpirun -n 4 python3.11 -u -O train.py -x",
            "mpirun -n 4 python3.11 -u -O -m mpi4py train.py -x",
        ),
        ("mpirun python -m package", "mpirun python -m mpi4py -m package"),
        ("mpirun python -c 'print(1)'", "mpirun python -m mpi4py -c 'print(1)'"),
        ("mpirun -n 1 python a.py : -n 2 ./b", "mpirun -n 1 python -m mpi4py a.py : -n 2 ./b"),
    ],
)
def test_python_is_run_such_that_one_exception_ends_all(line: str, mended: str) -> None:
    launch = read_command(line).launch
    assert launch is not None
    assert apply(line, ending_all(launch)) == mended


@pytest.mark.parametrize(
    "line",
    [
        "mpirun -n 4 ./a.out",
        "mpirun -n 4 python -m mpi4py train.py",
        "mpirun -n 4 python",
        "mpirun -n 4 python -W error train.py",
        "torchrun --nproc_per_node 2 train.py",
    ],
)
def test_other_lines_stay_as_they_are(line: str) -> None:
    launch = read_command(line).launch
    assert launch is None or ending_all(launch) == []
