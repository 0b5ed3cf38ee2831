from __future__ import annotations

import pytest

from rankwise.launch.launchers import find_launcher, seems_torch
from rankwise.launch.mpiexec import Family
from rankwise.launch.shell import Word, read


def words_of(line: str) -> tuple[Word, ...]:
    parts = read(line)
    assert parts is not None
    return parts.commands[0].words


@pytest.mark.parametrize(
    ("line", "family", "dialect"),
    [
        ("mpirun a", "unknown", "openmpi"),
        ("mpirun a", "openmpi5", "openmpi"),
        ("mpiexec a", "mpich", "hydra"),
        ("/opt/mpi/bin/mpirun a", "intel", "hydra"),
        ("mpiexec.hydra a", "openmpi4", "hydra"),
        ("mpirun.mpich a", "unknown", "hydra"),
        ("orterun a", "mpich", "openmpi"),
        ("prterun a", "unknown", "openmpi"),
        ("horovodrun a", "mpich", "horovodrun"),
        ("srun a", "mpich", "srun"),
        ("torchrun a", "mpich", "torchrun"),
        ("python -m torch.distributed.run a", "mpich", "torchrun"),
        ("python3.11 -u -X dev -m torch.distributed.launch a", "mpich", "torch.distributed.launch"),
        ("python -um torch.distributed.launch a", "mpich", "torch.distributed.launch"),
        ("python -mtorch.distributed.launch a", "mpich", "torch.distributed.launch"),
        ("env A=b exec mpirun a", "mpich", "hydra"),
        ("uv run torchrun a", "unknown", "torchrun"),
        ("conda run -n x python -m torch.distributed.run a", "unknown", "torchrun"),
    ],
)
def test_launchers_are_known_by_their_names(line: str, family: Family, dialect: str) -> None:
    launcher = find_launcher(words_of(line), family)
    assert launcher is not None
    assert launcher.dialect == dialect
    assert words_of(line)[launcher.arguments].raw == "a"


@pytest.mark.parametrize(
    "line",
    [
        "python train.py",
        "echo mpirun",
        "python -m train torchrun",
        "python -c mpirun",
        "$MPIRUN a",
        "A=b",
        "python -m",
    ],
)
def test_other_commands_are_no_launchers(line: str) -> None:
    assert find_launcher(words_of(line), "unknown") is None


def test_the_interpreter_of_a_launcher_is_kept_as_it_is_written() -> None:
    launcher = find_launcher(words_of("'/a b/python' -m torch.distributed.run a"), "unknown")
    assert launcher is not None
    assert launcher.python == "'/a b/python'"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("torchrun train.py", True),
        ("poetry run torchrun train.py", True),
        ("python -m torch.distributed.launch train.py", True),
        ("deepspeed train.py", True),
        ("accelerate launch train.py", True),
        ("accelerate config", False),
        ("bash -c 'cd x; torchrun train.py'", True),
        ("bash -c 'python -m torch.distributed.run train.py'", True),
        ("bash train.sh", False),
        ("python train.py --launcher torchrun", False),
        ("python train.py torchrun", False),
        ("pip install deepspeed", False),
        ("mpirun python train.py", False),
    ],
)
def test_commands_that_start_ranks_of_torch_are_recognised(line: str, expected: bool) -> None:
    assert seems_torch(words_of(line)) is expected
