"""What Slurm's commands print, read; all of it was printed by one."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from rankwise.backends import doctor
from rankwise.backends.base import Attempt, Submission, Unreachable, Updates, is_conclusive
from rankwise.backends.batch import slurm
from rankwise.backends.batch.backend import BatchBackend
from rankwise.backends.batch.slurm import Slurm, state_of
from rankwise.backends.batch.states import judge as judge_job
from rankwise.backends.batch.submitting import script_text
from rankwise.backends.batch.system import (
    FORGOTTEN,
    JobState,
    Needs,
    QueueFull,
    failure_of,
    needs_of,
)
from rankwise.documents.site_models import ComputeConfig, SlurmConfig
from rankwise.errors import ComputeFailure
from rankwise.plan import Process, Resources, Task
from rankwise.records import AttemptEnd
from rankwise.runtimes.base import PreparedRuntime
from tests.backends.places import Watching


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


@pytest.mark.parametrize(
    ("listed", "partition", "names"),
    [
        ("n1|a|4|4000|(null)\nn1|b|4|4000|(null)\nn2|b|8|4000|(null)\n", "", ["n1", "n2"]),
        ("n1|a*|4|4000|(null)\nn1|b|4|4000|(null)\nn2|b|8|4000|(null)\n", "", ["n1"]),
        ("n1|a*|4|4000|(null)\nn1|b|4|4000|(null)\nn2|b|8|4000|(null)\n", "a,b", ["n1", "n2"]),
    ],
)
def test_a_node_in_several_partitions_is_counted_once(
    listed: str, partition: str, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    system = Slurm(SlurmConfig(partition=partition))
    monkeypatch.setattr(system, "call", lambda _command: listed)
    assert [node.name for node in system.nodes()] == names


def test_a_job_gets_no_variables_of_the_step_that_its_client_runs_in() -> None:
    given = {"SLURM_JOB_ID": "7", "PMI_RANK": "0", "SLURM_CONF": "/c", "SLURM_CLUSTERS": "x"}
    assert Slurm().plain_environment(given) == {"SLURM_CONF": "/c", "SLURM_CLUSTERS": "x"}


def test_doctor_finds_the_plugins_of_a_slurm_that_lists_them_on_stderr(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    srun = tmp_path / "srun"
    srun.write_text("#!/bin/sh\nprintf 'srun: MPI types are...\\nsrun: none\\nsrun: pmi2\\n' >&2\n")
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    found = doctor._plugins(Slurm(), SlurmConfig(mpi="srun-pmi2"))
    assert found.is_well
    assert "MPI plugins of srun: pmi2;" in found.what
    assert not doctor._plugins(Slurm(), SlurmConfig(mpi="srun-pmix")).is_well


@pytest.mark.parametrize(("said", "number"), [("12\n", "12"), ("12;cluster\n", "12")])
def test_the_number_of_a_job_is_read(said: str, number: str) -> None:
    assert slurm.read_submitted(said) == number


@pytest.mark.parametrize("said", ["", "Submitted batch job 12\n"])
def test_output_of_sbatch_without_a_job_number_is_an_error(said: str) -> None:
    with pytest.raises(ComputeFailure, match="no job number"):
        slurm.read_submitted(said)


def test_errors_of_slurm_are_classified() -> None:
    away = "sbatch: error: Batch job submission failed: Unable to contact slurm controller"
    assert isinstance(failure_of(Slurm(), "sbatch", 1, away), Unreachable)
    full = "sbatch: error: QOSMaxSubmitJobPerUserLimit\nsbatch: error: Job violates policy"
    assert isinstance(failure_of(Slurm(), "sbatch", 1, full), QueueFull)
    other = failure_of(Slurm(), "sbatch", 1, "sbatch: error: invalid partition specified: x\n")
    assert type(other) is ComputeFailure
    assert str(other) == "sbatch: error: invalid partition specified: x"


def test_an_unknown_state_of_a_job_is_not_its_end() -> None:
    for state in ("RUNNING", "COMPLETING", "POWER_UP_NODE", "EXPEDITING"):
        assert not state_of(state).is_over
    for state in ("COMPLETED", "CANCELLED", "OUT_OF_MEMORY", "LAUNCH_FAILED"):
        assert state_of(state).is_over
    assert FORGOTTEN.is_over


@pytest.mark.parametrize("program", ["scontrol", "sacct"])
def test_a_failed_query_does_not_call_a_job_forgotten(
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


# How attempts on Slurm ended, from the runner's word and Slurm's; and what sbatch is handed

CANCELLED = AttemptEnd(outcome="cancelled", exit_code=130, reason="by signal 15 (SIGTERM)")
KILLED = AttemptEnd(outcome="crashed", exit_code=137, signal=9, reason="worker-0 was ended")
KILLED_BELOW_A_SHELL = AttemptEnd(
    outcome="failed", exit_code=137, reason="worker-0 exited with code 137"
)
FAILED = AttemptEnd(outcome="failed", exit_code=7, reason="worker-0 exited with code 7")


def state(word: str, **more: Any) -> JobState:
    return state_of(word, **more)


def judge(end: AttemptEnd | None, job: JobState | None, **more: Any) -> AttemptEnd:
    """Judge as the backend does, with what Slurm makes of the lines of the output."""
    explained = Slurm().explain(job or FORGOTTEN, more.get("words", ()))
    return judge_job(end, explained, system=Slurm.title, **more)


@pytest.mark.parametrize(
    ("end", "job", "outcome", "code", "words"),
    [
        (CANCELLED, state("CANCELLED"), "cancelled", 130, "not by rankwise"),
        (CANCELLED, state("TIMEOUT"), "timed out", 124, "time limit"),
        (CANCELLED, state("FAILED"), "cancelled", 130, "SIGTERM"),
        (None, state("CANCELLED", reason="by 0"), "cancelled", 130, "(by 0)"),
        (None, state("NODE_FAIL", nodes="n2"), "lost", 1, "lost a node: n2"),
        (CANCELLED, state("PREEMPTED"), "lost", 1, "preempted"),
        (KILLED, state("OUT_OF_MEMORY"), "crashed", 137, "out of memory"),
        (KILLED_BELOW_A_SHELL, state("OUT_OF_MEMORY"), "crashed", 137, "out of memory"),
        (KILLED_BELOW_A_SHELL, state("FAILED"), "failed", 137, "exited with code 137"),
        (KILLED, state("FAILED"), "crashed", 137, "worker-0 was ended"),
        (None, state("FAILED"), "lost", 1, "Slurm says FAILED"),
        (None, None, "lost", 1, "Slurm has forgotten it"),
        # Whatever Slurm says: the runner has seen how it ended.
        (FAILED, state("CANCELLED"), "failed", 7, "exited with code 7"),
        (FAILED, state("TIMEOUT"), "failed", 7, "exited with code 7"),
        (FAILED, None, "failed", 7, "exited with code 7"),
    ],
)
def test_the_outcome_comes_from_the_runner_or_from_slurm(
    end: AttemptEnd | None, job: JobState | None, outcome: str, code: int, words: str
) -> None:
    said = judge(end, job, job_id="12")
    assert (said.outcome, said.exit_code) == (outcome, code)
    assert words in said.reason


@pytest.mark.parametrize(
    ("line", "outcome"),
    [
        ("slurmstepd: error: *** JOB 3 ON n1 CANCELLED AT 2026-01-01T00:00:00 ***", "cancelled"),
        (
            "slurmstepd: error: *** JOB 3 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***",
            "timed out",
        ),
        (
            "slurmstepd: error: *** JOB 3 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO PREEMPTION ***",
            "lost",
        ),
        (
            "slurmstepd: error: StepId=4.batch exceeded memory limit (3 > 1), being killed",
            "crashed",
        ),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=4.batch.", "crashed"),
    ],
)
def test_slurms_own_lines_in_the_log_explain_a_forgotten_job(line: str, outcome: str) -> None:
    assert judge(None, None, job_id="3", words=["hello", line]).outcome == outcome


def test_our_own_cancel_is_not_reported_as_one_from_outside() -> None:
    said = judge(CANCELLED, state("CANCELLED"), job_id="3", is_wanted=True)
    assert (said.outcome, said.reason) == ("cancelled", "cancelled")


def test_a_script_that_fails_before_our_part_is_not_run() -> None:
    words = ["module: command not found"]
    said = judge(None, state("FAILED"), job_id="3", words=words, has_begun=False)
    assert said.outcome == "not run"
    assert "module: command not found" in said.reason


def test_a_runners_record_is_conclusive_unless_the_runner_was_killed() -> None:
    assert is_conclusive(FAILED)
    assert not is_conclusive(CANCELLED)
    assert not is_conclusive(KILLED)
    assert not is_conclusive(KILLED_BELOW_A_SHELL)
    assert is_conclusive(AttemptEnd(outcome="crashed", exit_code=139, signal=11))


def task(**more: Any) -> Task:
    process = Process(name="w", role="w", command="true")
    return Task(**{"key": "t", "processes": (process,) * 8, "nodes": 2, **more})


def test_a_node_gives_a_core_to_each_process_as_far_as_it_has_them() -> None:
    assert needs_of(task()) == Needs(nodes=2, cores=4)
    assert needs_of(task(), most_cores=3) == Needs(nodes=2, cores=3)
    claimed = Resources(cores=20, memory=3 << 30, gpus=4)
    wanted = Needs(nodes=2, cores=10, memory=1536, gpus=2, minutes=3)
    assert needs_of(task(resources=claimed, timeout=90.0), most_cores=3) == wanted
    assert needs_of(task(resources=claimed), counts_gpus=True).gpus == 0


def test_options_say_what_the_site_file_says_and_its_own_come_last() -> None:
    choice = SlurmConfig(partition="p", time="5", options=("--exclusive",))
    options = Slurm(choice).options(Needs(nodes=2, cores=4, memory=100, gpus=1, minutes=9))
    assert options[-1] == "--exclusive"
    wanted = {"--nodes=2", "--cpus-per-task=4", "--mem=100M", "--gpus-per-node=1"}
    assert wanted | {"--partition=p", "--time=5"} <= set(options)


def test_a_script_stops_at_the_first_line_that_fails() -> None:
    choice = SlurmConfig(modules=("mpi/4 x",), init=("export A={b}",))
    assert script_text(choice, "run", ["python", "a b"]).splitlines() == [
        "#!/bin/bash -l",
        "# run, by rankwise",
        "set -e",
        "module load 'mpi/4 x'",
        "export A={b}",
        "exec python 'a b'",
    ]


# A Slurm that does not answer: what is not sent can be cancelled all the same


@pytest.mark.parametrize("is_writable", [True, False], ids=["writable", "not writable"])
def test_cancelling_an_attempt_that_was_not_submitted_ends_it_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_writable: bool
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # There is no Slurm on it.
    folder = tmp_path / "store" / "run-1" / "task" / "1"
    folder.mkdir(parents=True)
    # There is no room in the queue for anything.
    settings = SlurmConfig(max_queued=0)
    updates: Updates = SimpleQueue()
    compute = BatchBackend(ComputeConfig(name="slurm", backend="slurm", batch=settings), updates)
    watching = Watching(compute, updates)
    attempt = Attempt(label="run-1/task/1", marker="rw-1", folder=folder)
    worker = Process(name="worker", role="worker", command="true")
    task = Task(key="task", processes=(worker,), folder=str(tmp_path), compute="slurm")
    compute.submit(Submission(attempt=attempt, task=task, runtime=PreparedRuntime()))
    assert watching.look() == []
    if not is_writable:
        shutil.rmtree(folder)
        folder.touch()
    compute.cancel(attempt)
    assert watching.look() == [attempt]
    end = watching.ends[attempt.marker]
    assert (end.outcome, end.exit_code) == ("cancelled", 130)
    compute.close()
