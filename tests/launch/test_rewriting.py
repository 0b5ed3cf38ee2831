"""Command lines that are changed: for another MPI, with a wrapper for ranks, with values for names."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise.launch.commandline import read_command
from rankwise.launch.mpiexec import Family
from rankwise.launch.rewriting import (
    NAMES,
    ending_all,
    fixes_for,
    in_shell,
    names_in,
    notes_for,
    prepare,
    substitute,
    wrapping,
)
from rankwise.launch.shell import apply
from rankwise.plan import later, show
from tests.launch.samples import MPIRUN, MPIRUN_OF_KUBERNETES, RANK, TORCH_LAUNCH
from tests.launch.test_commandline import FAMILIES, LINES


def mended(line: str, family: Family) -> tuple[str, list[str]]:
    launch = read_command(line, family).launch
    assert launch is not None
    fixes = fixes_for(line, launch, family)
    return apply(line, [fix.edit for fix in fixes]), notes_for(fixes, launch, family)


@pytest.mark.parametrize(
    ("line", "family", "expected"),
    [
        ("mpirun -mca pml ob1 --mca btl ^openib ./a", "mpich", "mpirun ./a"),
        ("mpirun -gmca a b -n 2 ./a", "intel", "mpirun -n 2 ./a"),
        ("mpirun -x A -x B=c ./a", "mpich", "mpirun -genv B=c ./a"),
        ("mpirun -x 'B=c d' ./a", "mpich", "mpirun -genv 'B=c d' ./a"),
        (
            "mpirun -n 1 -x A=b ./a : -n 1 -x A=c ./b",
            "mpich",
            "mpirun -n 1 -env A=b ./a : -n 1 -env A=c ./b",
        ),
        ("mpirun --allow-run-as-root --oversubscribe ./a", "mpich", "mpirun ./a"),
        ("mpirun -bind-to none -map-by slot ./a", "mpich", "mpirun -bind-to none ./a"),
        ("mpirun -bind-to none -map-by slot ./a", "intel", "mpirun -bind-to none -map-by slot ./a"),
        ("mpirun --map-by core ./a", "mpich", "mpirun --map-by core ./a"),
        ("mpirun --map-by core:2 ./a", "mpich", "mpirun --map-by core:2 ./a"),
        ("mpirun --map-by ppr:2:node ./a", "mpich", "mpirun -ppn 2 ./a"),
        ("mpirun --map-by node ./a", "mpich", "mpirun -ppn 1 ./a"),
        ("mpirun -c 4 -wd /x -H h ./a", "mpich", "mpirun -n 4 -wdir /x -hosts h ./a"),
        ("mpirun -npernode 2 ./a", "mpich", "mpirun -ppn 2 ./a"),
        ("mpirun --npernode=2 ./a", "mpich", "mpirun -ppn 2 ./a"),
        ("mpirun --pernode ./a", "mpich", "mpirun -ppn 1 ./a"),
        ("mpirun --report-bindings ./a", "mpich", "mpirun --report-bindings ./a"),
        ("mpirun --report-bindings ./a", "intel", "mpirun ./a"),
        ("mpirun --hostfile h -np 2 ./a -x A", "mpich", "mpirun --hostfile h -np 2 ./a -x A"),
        ("mpirun --rankfile h ./a", "mpich", "mpirun --rankfile h ./a"),
        (
            "mpirun -bind-to none -map-by slot ./a",
            "openmpi4",
            "mpirun -bind-to none -map-by slot ./a",
        ),
        (
            "mpirun -bind-to none --map-by slot ./a",
            "openmpi5",
            "mpirun --bind-to none --map-by slot ./a",
        ),
        ("mpirun -genv A b -env C=d ./a", "openmpi4", "mpirun -x A=b -x C=d ./a"),
        ("mpirun -genv A 'b c' ./a", "openmpi4", "mpirun -x A='b c' ./a"),
        ("mpirun -genvlist A,B -genvall ./a", "openmpi5", "mpirun -x A -x B ./a"),
        (
            "mpirun -f h -ppn 2 -l ./a",
            "openmpi4",
            "mpirun --hostfile h --npernode 2 --tag-output ./a",
        ),
        ("mpirun -mca a b -genv A b ./a", "unknown", "mpirun -mca a b -genv A b ./a"),
        ("mpiexec.hydra -x A ./a", "unknown", "mpiexec.hydra -x A ./a"),
        ("orterun -mca a b ./a", "mpich", "orterun -mca a b ./a"),
        ("torchrun python a.py", "mpich", "torchrun --no_python python a.py"),
        ("torchrun -- python3 a.py", "mpich", "torchrun --no_python -- python3 a.py"),
        ("torchrun --no-python python a.py", "mpich", "torchrun --no-python python a.py"),
        ("torchrun a.py", "mpich", "torchrun a.py"),
        ("torchrun -m python", "mpich", "torchrun -m python"),
        (
            "python -m torch.distributed.launch /x/python3.9 a.py",
            "mpich",
            "python -m torch.distributed.launch --use_env --no_python /x/python3.9 a.py",
        ),
    ],
)
def test_a_line_is_mended_for_the_launcher_that_is_here(
    line: str, family: Family, expected: str
) -> None:
    assert mended(line, family)[0] == expected


def test_every_change_is_named_once_with_what_stood_there() -> None:
    line, notes = mended(MPIRUN_OF_KUBERNETES, "mpich")
    assert line == "mpirun -np 16 -bind-to none python train.py"
    assert notes == [
        "compatibility: run-as-root: `--allow-run-as-root` left out: mpirun is of MPICH, which always allows it",
        "compatibility: map-by: `-map-by slot` left out: mpirun is of MPICH, which places ranks otherwise",
        "compatibility: export: `-x LD_LIBRARY_PATH`, `-x PATH` left out: mpirun is of MPICH, which passes on all variables",
        "compatibility: mca: `-mca pml ob1`, `-mca btl ^openib` left out: mpirun is of MPICH, which has no such parameters",
    ]


def test_open_mpi_5_needs_two_dashes_where_4_did_with_one() -> None:
    _, notes = mended(MPIRUN, "openmpi5")
    assert notes == [
        (
            "compatibility: two-dashes: `-bind-to none` became `--bind-to none`, `-map-by slot` became "
            "`--map-by slot`: mpirun is of Open MPI 5, which needs two dashes"
        )
    ]


def test_open_mpi_4_takes_its_own_options_as_they_are() -> None:
    assert mended(MPIRUN, "openmpi4") == (MPIRUN, [])


def test_a_note_names_a_program_that_torch_takes_for_a_script() -> None:
    line, notes = mended(TORCH_LAUNCH, "mpich")
    assert line == TORCH_LAUNCH.replace("--use_env ", "--use_env --no_python ")
    assert notes == [
        (
            "compatibility: no-python: `python train.py` names a program, which torch.distributed.launch "
            "takes for a script: --no_python added"
        )
    ]


# Ranks that raise


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


# line


def test_a_line_is_mended_wrapped_and_filled_in_at_once() -> None:
    line = "mpirun -mca a b --hostfile RANKWISE_HOSTFILE ./a RANKWISE_HOSTFILE"
    prepared = prepare(line, read_command(line, "mpich"), "mpich")
    command = prepared.for_process({"RANKWISE_HOSTFILE": "/h"})
    assert show(command) == f"mpirun --hostfile /h {RANK} ./a /h"
    assert prepared.environment == {"RANKWISE_RANK_OUTPUT": "own"}


def test_a_line_that_is_not_understood_stays_and_a_note_says_what_follows() -> None:
    prepared = prepare("./start.sh 4", read_command("./start.sh 4"), "mpich")
    assert prepared.for_process({}) == "./start.sh 4"
    assert prepared.environment == {}
    assert prepared.notes == (
        (
            "ranks: `./start.sh 4`: no mpirun, mpiexec, horovodrun, srun or torchrun stands in it: the "
            "exit code will be that of the command as a whole"
        ),
    )


def test_a_reason_is_given_for_ranks_that_cannot_be_wrapped() -> None:
    line = "torchrun --run-path /a.py"
    prepared = prepare(line, read_command(line), "mpich")
    assert prepared.for_process({}) == line
    assert prepared.notes == (
        (
            "ranks: torchrun: --run-path runs the script within the launcher: the exit code will be the "
            "launcher's"
        ),
    )


def test_output_that_goes_elsewhere_is_left_to_the_launcher() -> None:
    line = "mpirun ./a | tee log"
    prepared = prepare(line, read_command(line), "openmpi4")
    assert show(prepared.for_process({})) == f"mpirun {RANK} ./a | tee log"
    assert prepared.environment == {}


@settings(deadline=None)
@given(LINES, st.sampled_from(FAMILIES))
def test_a_line_that_is_not_understood_is_never_changed(line: str, family: Family) -> None:
    reading = read_command(line, family)
    prepared = prepare(line, reading, family)
    if reading.launch is None:
        assert prepared.for_process({}) == line
        assert prepared.notes


# ranks


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


# words

VALUES = {"NODE_RANK": "3", "MASTER_ADDR": later("address:0"), "MASTER_PORT": later("port:m@0")}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("a --node_rank NODE_RANK b", "a --node_rank 3 b"),
        ("a --node_rank=NODE_RANK", "a --node_rank=3"),
        ("a -r=NODE_RANK", "a -r=3"),
        ("python train.py NODE_RANK", "python train.py 3"),
        ("cd x && a NODE_RANK | b NODE_RANK", "cd x && a 3 | b 3"),
        ("a   NODE_RANK \\\n  NODE_RANK", "a   3 \\\n  3"),
    ],
)
def test_names_written_as_words_become_values(line: str, expected: str) -> None:
    assert substitute(line, VALUES) == expected


@pytest.mark.parametrize(
    "line",
    [
        "a $NODE_RANK ${NODE_RANK}",
        'a "NODE_RANK"',
        "a 'NODE_RANK'",
        "python -c \"print('NODE_RANK')\"",
        "a MY_NODE_RANK NODE_RANK_2 node_rank xNODE_RANK",
        "A=NODE_RANK a",
        "mpirun -x NODE_RANK ./a",
        "mpirun -genv NODE_RANK 5 ./a",
        "mpirun --genvlist NODE_RANK ./a",
        "env -u NODE_RANK ./a",
        "export NODE_RANK; unset NODE_RANK; printenv NODE_RANK",
        "a RANK LOCAL_RANK",
        "a NODE_RANK 'open",
        "a NODE_RANK:unknown",
        "a # NODE_RANK",
    ],
)
def test_what_is_no_plain_word_is_left_to_the_shell(line: str) -> None:
    assert substitute(line, VALUES) == line


def test_only_names_on_the_list_are_replaced() -> None:
    assert substitute("a HOME NODE_RANK", {"HOME": "/root", "NODE_RANK": "1"}) == "a HOME 1"
    assert "HOME" not in NAMES


def test_names_may_be_joined_by_colons() -> None:
    line = "torchrun --rdzv_endpoint MASTER_ADDR:MASTER_PORT a.py"
    expected = f"torchrun --rdzv_endpoint {later('address:0')}:{later('port:m@0')} a.py"
    assert substitute(line, VALUES) == expected


def test_values_are_quoted_where_the_shell_would_break_them() -> None:
    folder = later("folder") + "/hostfile"
    assert in_shell("3") == "3"
    assert in_shell(later("address:0")) == later("address:0")
    assert in_shell(folder) == f"'{folder}'"
    assert substitute("a TF_CONFIG", {"TF_CONFIG": '{"a": 1}'}) == "a '{\"a\": 1}'"


def test_names_of_variables_in_a_line_are_listed() -> None:
    assert names_in("a MASTER_ADDR:MASTER_PORT $NODE_RANK", VALUES) == [
        "MASTER_ADDR",
        "MASTER_PORT",
    ]


@settings(deadline=None)
@given(
    LINES, st.dictionaries(st.sampled_from(sorted(NAMES)), st.from_regex(r"\A[a-z0-9 '$]{0,6}\Z"))
)
def test_substitution_is_idempotent_and_never_raises(line: str, values: dict[str, str]) -> None:
    once = substitute(line, values)
    assert substitute(once, values) == once


@settings(deadline=None)
@given(LINES)
def test_without_variables_nothing_changes(line: str) -> None:
    assert substitute(line, {}) == line
