from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise.launch.commandline import read_command
from rankwise.launch.mpiexec import Family
from rankwise.launch.rewriting import prepare
from rankwise.plan import show
from tests.launch.samples import RANK
from tests.launch.test_command import FAMILIES, LINES


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


def test_ranks_that_cannot_be_wrapped_are_told() -> None:
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
