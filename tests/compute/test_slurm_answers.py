"""What Slurm's commands print, read; all of it was printed by one."""

from __future__ import annotations

import pytest

from rankwise.errors import ComputeFailure
from rankwise.slurm import answers
from rankwise.slurm.commands import SlurmAway, SlurmFull, failure_of


def test_the_queue_is_read_line_by_line() -> None:
    found = answers.read_queue(
        "1|RUNNING|None|n[1-2]|rw-1\n12_3|PENDING|Resources||rw-2\n7|OUT_OF_MEMORY|OutOfMemory|n1|x\n"
    )
    assert found["1"] == answers.JobState(state="RUNNING", nodes="n[1-2]", name="rw-1")
    assert (found["12_3"].is_waiting, found["12_3"].reason) == (True, "Resources")
    assert found["7"].is_over


def test_one_job_in_all_detail_is_read_though_values_have_blanks() -> None:
    found = answers.read_shown(
        "JobId=1 JobName=abc UserId=root(0) JobState=FAILED Reason=NonZeroExitCode Requeue=1 "
        "Restarts=2 BatchFlag=1 ExitCode=3:0 NodeList=n1 Command=/bin/a JobState=RUNNING b "
        "WorkDir=/tmp/x y"
    )
    assert found == answers.JobState(
        state="FAILED",
        reason="NonZeroExitCode",
        nodes="n1",
        name="abc",
        exit_code="3:0",
        restarts=2,
    )
    assert answers.read_shown("") is None


def test_accounts_are_read_without_steps() -> None:
    found = answers.read_account(
        "5|CANCELLED by 0|0:0|None assigned|None|rw-5\n6|FAILED|7:0|n1|None|rw-6\n6.batch|FAILED|7:0|n1||batch\n"
    )
    assert found.keys() == {"5", "6"}
    assert (found["5"].state, found["5"].reason) == ("CANCELLED", "by 0")
    assert found["6"].exit_code == "7:0"


def test_nodes_are_read_with_their_gpus() -> None:
    found = answers.read_nodes(
        "n1|test*|4|4000|(null)|idle\nn2|gpu|64|512000+|gpu:a100:4(S:0-1),gpu:2|mix\n"
    )
    assert [(node.partition, node.is_default, node.gpus) for node in found] == [
        ("test", True, 0),
        ("gpu", False, 6),
    ]
    assert found[1].memory == 512000


@pytest.mark.parametrize(("said", "number"), [("12\n", "12"), ("12;cluster\n", "12")])
def test_the_number_of_a_job_is_read(said: str, number: str) -> None:
    assert answers.read_submitted(said) == number


@pytest.mark.parametrize("said", ["", "Submitted batch job 12\n"])
def test_what_is_no_number_is_not_taken_for_one(said: str) -> None:
    with pytest.raises(ValueError, match="no job number"):
        answers.read_submitted(said)


def test_failures_are_told_apart() -> None:
    away = "sbatch: error: Batch job submission failed: Unable to contact slurm controller"
    assert isinstance(failure_of("sbatch", 1, away), SlurmAway)
    full = "sbatch: error: QOSMaxSubmitJobPerUserLimit\nsbatch: error: Job violates policy"
    assert isinstance(failure_of("sbatch", 1, full), SlurmFull)
    other = failure_of("sbatch", 1, "sbatch: error: invalid partition specified: x\n")
    assert type(other) is ComputeFailure
    assert str(other) == "sbatch: error: invalid partition specified: x"
