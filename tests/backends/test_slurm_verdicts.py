"""How attempts on Slurm ended, from the runner's word and Slurm's; and what sbatch is handed."""

from __future__ import annotations

from typing import Any

import pytest

from rankwise.backends.base import is_conclusive
from rankwise.backends.batch.slurm import Slurm, state_of
from rankwise.backends.batch.states import judge as judge_job
from rankwise.backends.batch.submitting import script_text
from rankwise.backends.batch.system import FORGOTTEN, JobState, Needs, needs_of
from rankwise.documents.site_models import SlurmConfig
from rankwise.plan import Process, Resources, Task
from rankwise.records import AttemptEnd

CANCELLED = AttemptEnd(outcome="cancelled", exit_code=130, reason="by signal 15 (SIGTERM)")
KILLED = AttemptEnd(outcome="crashed", exit_code=137, signal=9, reason="worker-0 was ended")
KILLED_BELOW_A_SHELL = AttemptEnd(
    outcome="failed", exit_code=137, reason="worker-0 left with exit code 137"
)
FAILED = AttemptEnd(outcome="failed", exit_code=7, reason="worker-0 left with exit code 7")


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
        (KILLED_BELOW_A_SHELL, state("FAILED"), "failed", 137, "left with exit code 137"),
        (KILLED, state("FAILED"), "crashed", 137, "worker-0 was ended"),
        (None, state("FAILED"), "lost", 1, "Slurm says FAILED"),
        (None, None, "lost", 1, "Slurm has forgotten it"),
        # Whatever Slurm says: the runner has seen how it ended.
        (FAILED, state("CANCELLED"), "failed", 7, "exit code 7"),
        (FAILED, state("TIMEOUT"), "failed", 7, "exit code 7"),
        (FAILED, None, "failed", 7, "exit code 7"),
    ],
)
def test_who_has_the_last_word(
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
def test_what_slurm_has_written_tells_where_nobody_remembers(line: str, outcome: str) -> None:
    assert judge(None, None, job_id="3", words=["hello", line]).outcome == outcome


def test_what_we_have_cancelled_is_not_somebody_elses_doing() -> None:
    said = judge(CANCELLED, state("CANCELLED"), job_id="3", is_wanted=True)
    assert (said.outcome, said.reason) == ("cancelled", "cancelled")


def test_a_script_that_fails_before_our_part_is_not_run() -> None:
    words = ["module: command not found"]
    said = judge(None, state("FAILED"), job_id="3", words=words, has_begun=False)
    assert said.outcome == "not run"
    assert "module: command not found" in said.reason


def test_a_runners_word_is_enough_unless_it_was_ended_itself() -> None:
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
