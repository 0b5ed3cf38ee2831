from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise.launch.commandline import (
    Dialect,
    Launch,
    count_in,
    find_launcher,
    options_of,
    read_command,
    seems_torch,
)
from rankwise.launch.mpiexec import Family
from rankwise.launch.shell import Word, read
from tests.launch.samples import HOROVODRUN, MPIRUN, MPIRUN_OF_KUBERNETES, TORCH_LAUNCH

FAMILIES: tuple[Family, ...] = ("mpich", "intel", "openmpi4", "openmpi5", "unknown")
_PIECES = (
    *("mpirun", "torchrun", "python", "-m", "torch.distributed.launch", "horovodrun", "srun"),
    *("-np", "4", "--np=4", "-x", "A=b", "-mca", ":", "--", "-n4", "--use_env", "env", "exec"),
    *("'", '"', "$N", "${N", "$(", "|", "&&", ";", ">", "<<", "\n", "\\", "-", "--", "=", "RANK"),
)
LINES = st.lists(st.sampled_from(_PIECES), max_size=12).map(" ".join) | st.text(max_size=50)


def launch_of(line: str, family: Family = "openmpi4", **environment: str) -> Launch:
    reading = read_command(line, family, environment)
    assert reading.launch is not None, reading.reason
    return reading.launch


def programs(line: str, family: Family = "openmpi4") -> list[str]:
    """Return each program of a line, with its arguments."""
    segments = launch_of(line, family).segments
    return [line[segment.program[0].start : segment.program[-1].end] for segment in segments]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("line", [MPIRUN, MPIRUN_OF_KUBERNETES, HOROVODRUN])
def test_the_lines_of_documents_are_read_with_every_mpi(line: str, family: Family) -> None:
    launch = launch_of(line, family)
    assert launch.processes == 16
    assert programs(line, family) == ["python train.py"]


def test_the_line_of_torch_is_read() -> None:
    launch = launch_of(TORCH_LAUNCH)
    assert launch.dialect == "torch.distributed.launch"
    assert launch.python == "python"
    assert launch.processes is None
    assert launch.processes_per_node == "4"
    assert launch.nodes == (4, 4)
    assert programs(TORCH_LAUNCH) == ["python train.py"]


@pytest.mark.parametrize(
    ("line", "family", "program"),
    [
        ("mpirun ./a -np 4", "openmpi4", "./a -np 4"),
        ("mpirun -np 4 -- ./a", "openmpi4", "./a"),
        ("mpirun -np=4 --hostfile=h ./a", "openmpi5", "./a"),
        ("mpiexec -n 4 -genv A b -genv C=d ./a x", "mpich", "./a x"),
        ("mpiexec -n 4 -env A b ./a", "mpich", "./a"),
        ("mpiexec -s 0 -n 4 ./a", "intel", "./a"),
        ("mpirun -s -n 4 ./a", "openmpi4", "./a"),
        ("mpirun -n 4 -ppn 2 -genvall ./a", "openmpi4", "./a"),
        ("mpirun -np 4 --mca btl tcp,self \\\n  ./a", "openmpi4", "./a"),
        ("cd x && mpirun -np 4 ./a | tee log", "openmpi4", "./a"),
        ("mpirun -np 4 ./a > log 2>&1", "openmpi4", "./a"),
        ("env A=b time mpirun -np 4 ./a", "openmpi4", "./a"),
        ('mpirun -np 4 "$PROGRAM" x', "openmpi4", '"$PROGRAM" x'),
        ("mpirun -np 4 $HOME/bin/a x", "openmpi4", "$HOME/bin/a x"),
        ("mpirun -np 4 $(which python) a.py", "openmpi4", "$(which python) a.py"),
        ("mpirun -np $N ./a", "openmpi4", "./a"),
        ("srun -n4 -N 2 --ntasks-per-node=2 -u ./a", "openmpi4", "./a"),
        ("srun -lu --mpi pmix ./a", "openmpi4", "./a"),
        ("srun -K0 ./a", "openmpi4", "./a"),
        ("horovodrun -np 4 -H a:2,b:2 --verbose ./a", "openmpi4", "./a"),
        ('horovodrun --num-proc=4 --mpi-args="-x A" ./a', "openmpi4", "./a"),
        ("torchrun --nproc-per-node=2 -m train.main --x", "openmpi4", "train.main --x"),
        ("torchrun --nproc_per 2 -r3 --standalone -- a.py", "openmpi4", "a.py"),
        ("torchrun --rdzv-conf 'a=b,c=d' a.py : b", "openmpi4", "a.py : b"),
    ],
)
def test_options_end_where_the_program_begins(line: str, family: Family, program: str) -> None:
    assert programs(line, family) == [program]


def test_a_line_may_have_several_programs() -> None:
    line = "mpirun -n 1 ./a x : -n 3 -x B=c ./b"
    assert programs(line) == ["./a x", "./b"]
    assert launch_of(line).processes == 4
    assert launch_of("mpirun -n 1 ./a : ./b").processes is None


@pytest.mark.parametrize(
    ("line", "processes", "per_node", "nodes"),
    [
        ("mpirun ./a", None, None, None),
        ("mpirun -c 3 ./a", 3, None, None),
        ("mpirun --np 3 -n 4 ./a", 4, None, None),
        ("mpirun -np 0 ./a", None, None, None),
        ("mpirun -np many ./a", None, None, None),
        ("mpirun -np $N ./a", 7, None, None),
        ('mpirun -np "${N}" ./a', 7, None, None),
        ("mpirun --np=$N ./a", 7, None, None),
        ("mpirun -np $OTHER ./a", None, None, None),
        ("mpirun -npernode 2 ./a", None, "2", None),
        ("mpirun -N 2 ./a", None, "2", None),
        ("mpirun -ppn 2 ./a", None, "2", None),
        ("mpirun --map-by ppr:2:node ./a", None, "2", None),
        ("srun -n 8 -N 2 ./a", 8, None, (2, 2)),
        ("srun --ntasks-per-node 2 ./a", None, "2", None),
        ("torchrun --nnodes 1:4 --nproc-per-node gpu a.py", None, "gpu", (1, 4)),
        ("torchrun --nnodes=$N a.py", None, None, (7, 7)),
        ("torchrun a.py --nnodes 4", None, None, None),
    ],
)
def test_counts_are_read(
    line: str, processes: int | None, per_node: str | None, nodes: tuple[int, int] | None
) -> None:
    launch = launch_of(line, N="7")
    assert launch.processes == processes
    assert launch.processes_per_node == per_node
    assert launch.nodes == nodes


@pytest.mark.parametrize(
    ("line", "keeps"),
    [
        ("mpirun ./a", True),
        ("cd x && mpirun ./a && echo done", True),
        ("mpirun ./a < input", True),
        ("mpirun ./a | tee log", False),
        ("mpirun ./a > log", False),
        ("(mpirun ./a)", False),
        ("mpirun --output-filename x ./a", False),
        ("mpirun -tag-output ./a", False),
        ("torchrun -r 3 a.py", False),
        ("torchrun --log-dir x a.py", False),
        ("srun -t 10 ./a", True),
        ("srun -o out ./a", False),
    ],
)
def test_it_is_known_whether_the_output_goes_elsewhere(line: str, keeps: bool) -> None:
    assert launch_of(line).keeps_output is keeps


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("./start.sh", "no mpirun, mpiexec, horovodrun, srun or torchrun stands in it"),
        ("", "no mpirun, mpiexec, horovodrun, srun or torchrun stands in it"),
        ("mpirun ./a; mpirun ./b", "it has more than one launcher"),
        ("for i in 1 2; do mpirun ./a; done", "it has conditions, loops or functions"),
        ("mpirun 'a", "its quotes, or text that follows on other lines, are not understood"),
        ("mpirun -np 4", "mpirun is given no program"),
        ("mpirun -np", "the line ends after `-np`"),
        ("mpirun -mca a", "the line ends after `-mca`"),
        ("mpirun --frobnicate ./a", "the option `--frobnicate` of mpirun is not known"),
        ("mpirun --app file", "the option `--app` of mpirun is not known"),
        ("mpirun -np 4 $OPTIONS ./a", "`$OPTIONS` may be options or the program"),
        ("mpirun - ./a", "`-` is not understood as an option of mpirun"),
        ("mpirun ./a :", "mpirun is given no program"),
        ("torchrun -x a.py", "the option `-x` of torchrun is not known"),
        ("srun --multi-prog file", "the option `--multi-prog` of srun is not known"),
    ],
)
def test_what_is_not_clear_is_given_up_with_a_reason(line: str, reason: str) -> None:
    reading = read_command(line, "openmpi4")
    assert reading.launch is None
    assert reading.reason == reason


def test_a_launcher_of_torch_is_noticed_even_where_the_line_is_not_understood() -> None:
    reading = read_command("torchrun --frobnicate 2 a.py")
    assert reading.launch is None
    assert reading.starts_ranks


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("4", 4),
        ("0", None),
        ("", None),
        (None, None),
        ("-1", None),
        ("²", None),
        ("9" * 5000, None),
    ],
)
def test_counts_are_numbers_from_one_on(text: str | None, count: int | None) -> None:
    assert count_in(text) == count


@settings(deadline=None)
@given(LINES, st.sampled_from(FAMILIES))
def test_reading_never_raises_and_says_why_it_gives_up(line: str, family: Family) -> None:
    reading = read_command(line, family, {"N": "2"})
    assert (reading.launch is None) == bool(reading.reason)
    if reading.launch is not None:
        for segment in reading.launch.segments:
            assert segment.program


# launchers


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


# options


def test_every_option_that_is_asked_for_is_in_its_table() -> None:
    for dialect in get_args(Dialect):
        table = options_of(dialect)
        for name in (*table.processes, *table.per_node, *table.nodes):
            assert table.arguments.get(name) == 1, (dialect, name)
        for name in table.output:
            assert table.arguments.get(name) is not None or name == "logdir", (dialect, name)


def test_where_launchers_differ_their_own_table_counts() -> None:
    assert options_of("openmpi").arguments.get("s") == 0
    assert options_of("hydra").arguments.get("s") == 1


def test_names_may_be_shortened_where_that_is_clear() -> None:
    torchrun = options_of("torchrun")
    assert torchrun.full_name("nproc-per") == "nproc-per-node"
    assert torchrun.full_name("nproc-per-node") == "nproc-per-node"
    assert torchrun.full_name("n") == "n"
    assert torchrun.full_name("rdzv") == "rdzv"
    assert options_of("openmpi").full_name("hostf") == "hostf"
