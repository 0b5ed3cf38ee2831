"""What Slurm's commands print, read; all of it was printed by one."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwise.backends.base import Unreachable
from rankwise.backends.batch import slurm
from rankwise.backends.batch.slurm import Slurm, state_of
from rankwise.backends.batch.system import FORGOTTEN, QueueFull, failure_of
from rankwise.errors import ComputeFailure


def test_the_queue_is_read_line_by_line() -> None:
    found = slurm.read_queue(
        "1|RUNNING|None|n[1-2]|rw-1\n12_3|PENDING|Resources||rw-2\n7|OUT_OF_MEMORY|OutOfMemory|n1|x\n"
    )
    assert found["1"] == state_of("RUNNING", nodes="n[1-2]", name="rw-1")
    assert (found["12_3"].is_waiting, found["12_3"].reason) == (True, "Resources")
    assert found["7"].is_over


def test_one_job_in_all_detail_is_read_though_values_have_blanks() -> None:
    found = slurm.read_shown(
        "JobId=1 JobName=abc UserId=root(0) JobState=FAILED Reason=NonZeroExitCode Requeue=1 "
        "Restarts=2 BatchFlag=1 ExitCode=3:0 NodeList=n1 Command=/bin/a JobState=RUNNING b "
        "WorkDir=/tmp/x y"
    )
    assert found == state_of(
        "FAILED",
        reason="NonZeroExitCode",
        nodes="n1",
        name="abc",
        exit_code="3:0",
    )
    assert slurm.read_shown("") is None


def test_accounts_are_read_without_steps() -> None:
    found = slurm.read_account(
        "5|CANCELLED by 0|0:0|None assigned|None|rw-5\n6|FAILED|7:0|n1|None|rw-6\n6.batch|FAILED|7:0|n1||batch\n"
    )
    assert found.keys() == {"5", "6"}
    assert (found["5"].word, found["5"].reason) == ("CANCELLED", "by 0")
    assert found["6"].exit_code == "7:0"


def test_nodes_are_read_with_their_gpus() -> None:
    found = slurm.read_nodes(
        "n1|test*|4|4000|(null)|idle\nn2|gpu|64|512000+|gpu:a100:4(S:0-1),gpu:2|mix\n"
    )
    assert [(node.name, is_default, node.gpus) for node, is_default in found] == [
        ("n1", True, 0),
        ("n2", False, 6),
    ]
    assert found[1][0].memory == 512000


@pytest.mark.parametrize(("said", "number"), [("12\n", "12"), ("12;cluster\n", "12")])
def test_the_number_of_a_job_is_read(said: str, number: str) -> None:
    assert slurm.read_submitted(said) == number


@pytest.mark.parametrize("said", ["", "Submitted batch job 12\n"])
def test_what_is_no_number_is_not_taken_for_one(said: str) -> None:
    with pytest.raises(ComputeFailure, match="no job number"):
        slurm.read_submitted(said)


def test_failures_are_told_apart() -> None:
    away = "sbatch: error: Batch job submission failed: Unable to contact slurm controller"
    assert isinstance(failure_of(Slurm(), "sbatch", 1, away), Unreachable)
    full = "sbatch: error: QOSMaxSubmitJobPerUserLimit\nsbatch: error: Job violates policy"
    assert isinstance(failure_of(Slurm(), "sbatch", 1, full), QueueFull)
    other = failure_of(Slurm(), "sbatch", 1, "sbatch: error: invalid partition specified: x\n")
    assert type(other) is ComputeFailure
    assert str(other) == "sbatch: error: invalid partition specified: x"


def test_a_state_that_is_not_known_leaves_it_open_what_becomes_of_a_job() -> None:
    for state in ("RUNNING", "COMPLETING", "POWER_UP_NODE", "EXPEDITING"):
        assert not state_of(state).is_over
    for state in ("COMPLETED", "CANCELLED", "OUT_OF_MEMORY", "LAUNCH_FAILED"):
        assert state_of(state).is_over
    assert FORGOTTEN.is_over


@pytest.mark.parametrize("program", ["scontrol", "sacct"])
def test_a_question_without_an_answer_is_not_a_job_that_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    script = tmp_path / program
    ask = Slurm().show if program == "scontrol" else Slurm().accounts
    for words in ("slurm_load_jobs error: Protocol authentication error", "Segmentation fault"):
        script.write_text(f"#!/bin/sh\necho '{words}' >&2\nexit 1\n")
        script.chmod(0o755)
        with pytest.raises(ComputeFailure, match=words):
            ask("7")
    forgotten = {
        "scontrol": "slurm_load_jobs error: Invalid job id specified",
        "sacct": "Slurm accounting storage is disabled",
    }
    script.write_text(f"#!/bin/sh\necho '{forgotten[program]}' >&2\nexit 1\n")
    assert not ask("7")
