from __future__ import annotations

import pytest

from rankwise.launch.commandline import read_command
from rankwise.launch.rewriting import wrapping
from rankwise.launch.shell import apply
from rankwise.plan import show
from tests.launch.samples import RANK


def wrapped(line: str) -> str:
    launch = read_command(line, "openmpi4").launch
    assert launch is not None
    edits = wrapping(line, launch)
    return edits if isinstance(edits, str) else show(apply(line, edits))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("mpirun -np 4 ./a x", f"mpirun -np 4 {RANK} ./a x"),
        ("mpirun -np 4 -- ./a", f"mpirun -np 4 -- {RANK} ./a"),
        ("mpirun -n 1 ./a : -n 2 ./b", f"mpirun -n 1 {RANK} ./a : -n 2 {RANK} ./b"),
        ("cd x;  mpirun  ./a|tee 'b'", f"cd x;  mpirun  {RANK} ./a|tee 'b'"),
        ("horovodrun -np 4 python a.py", f"horovodrun -np 4 {RANK} python a.py"),
        ("srun -n4 ./a", f"srun -n4 {RANK} ./a"),
        ("torchrun a.py x", f"torchrun --no_python {RANK} python -u a.py x"),
        (
            "torchrun --standalone -- a.py",
            f"torchrun --standalone --no_python -- {RANK} python -u a.py",
        ),
        ("torchrun -m a.b x", f"torchrun --no_python {RANK} python -u -m a.b x"),
        ("torchrun -m --nnodes 1 a.b", f"torchrun --nnodes 1 --no_python {RANK} python -u -m a.b"),
        ("torchrun --no-python ./a", f"torchrun --no-python {RANK} ./a"),
        (
            "/opt/x/bin/torchrun a.py",
            f"/opt/x/bin/torchrun --no_python {RANK} /opt/x/bin/python -u a.py",
        ),
        ("'/o x/torchrun' a.py", f"'/o x/torchrun' --no_python {RANK} '/o x/python' -u a.py"),
        (
            "python3 -m torch.distributed.run a.py",
            f"python3 -m torch.distributed.run --no_python {RANK} python3 -u a.py",
        ),
        (
            "python -m torch.distributed.launch --use_env a.py",
            f"python -m torch.distributed.launch --use_env --no_python {RANK} python -u a.py",
        ),
    ],
)
def test_the_wrapper_stands_before_every_program(line: str, expected: str) -> None:
    assert wrapped(line) == expected


def test_ranks_that_a_launcher_hands_arguments_to_are_not_wrapped() -> None:
    assert wrapped("python -m torch.distributed.launch a.py") == (
        "without --use_env it hands the rank to the script as an argument (add --use_env if the "
        "script takes it from LOCAL_RANK)"
    )


def test_a_script_within_the_launcher_is_not_wrapped() -> None:
    assert wrapped("torchrun --run-path /a.py") == "--run-path runs the script within the launcher"
