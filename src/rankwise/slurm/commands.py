"""Calls of Slurm's commands, with what can go wrong told apart."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence

from rankwise.errors import ComputeFailure
from rankwise.slurm import answers
from rankwise.slurm.answers import JobState

CALL_SECONDS = 60.0


class SlurmAway(ComputeFailure):
    """Nobody answers. Whether a job was taken is not known: look for its name."""


class SlurmFull(ComputeFailure):
    """A limit on the number of jobs is reached; there will be room later."""


def submit(
    script: str, options: Sequence[str], *, environment: Mapping[str, str] | None = None
) -> str:
    """Hand in a script and give the job's number.

    ComputeFailure with Slurm's own words: it was refused. SlurmAway and SlurmFull are special
    cases of it. Idempotent it is not.
    """
    said = call(["sbatch", "--parsable", *options], given=script, environment=environment)
    try:
        return answers.read_submitted(said)
    except ValueError as error:
        raise ComputeFailure(str(error)) from error


def states(job_ids: Iterable[str]) -> dict[str, JobState]:
    """Ask for the states of all these jobs at once; those that Slurm has forgotten are left out.

    With the number of an array, its members are given as `NUMBER_INDEX`.
    """
    listed = ",".join(dict.fromkeys(job_ids))
    if not listed:
        return {}
    try:
        said = call(queue_command([f"--jobs={listed}"]))
    except ComputeFailure as failure:
        if "Invalid job id" in str(failure):
            return {}
        raise
    return answers.read_queue(said)


def queue_command(which: Sequence[str]) -> list[str]:
    """Give the one call that tells the states of many jobs."""
    return [
        *("squeue", "--noheader", "--array", "--states=all"),
        *("-o", answers.QUEUE_FORMAT, *which),
    ]


def find_by_name(name: str) -> dict[str, JobState]:
    """Find the jobs of a name that Slurm still knows, by their numbers."""
    return answers.read_queue(call(queue_command([f"--name={name}"])))


def show(job_id: str) -> JobState | None:
    """Ask for one job in all detail; None: Slurm has forgotten it."""
    try:
        return answers.read_shown(call(["scontrol", "--oneliner", "show", "job", job_id]))
    except SlurmAway:
        raise
    except ComputeFailure:
        return None


def account(job_id: str) -> JobState | None:
    """Ask the accounting for a job; None: it is off, or does not know the job."""
    return accounts([f"--jobs={job_id}"]).get(job_id)


def accounts(which: Sequence[str]) -> dict[str, JobState]:
    """Ask the accounting for jobs; empty if it is off."""
    try:
        said = call(
            [
                *("sacct", "--noheader", "--parsable2", "--allocations"),
                *(f"--format={answers.ACCOUNT_FORMAT}", *which),
            ]
        )
    except SlurmAway:
        raise
    except ComputeFailure:
        return {}
    return answers.read_account(said)


def cancel(job_id: str, *options: str) -> None:
    """Have a job ended; one that is over already is left as it is."""
    call(["scancel", "--quiet", *options, job_id])


def settings() -> dict[str, str]:
    """Ask how this Slurm is configured."""
    return answers.read_settings(call(["scontrol", "show", "config"]))


def call(
    command: Sequence[str], *, given: str = "", environment: Mapping[str, str] | None = None
) -> str:
    """Run one command to its end and give what it printed.

    ComputeFailure has what it said instead.
    """
    try:
        done = subprocess.run(
            command,
            input=given,
            env=dict(environment) if environment is not None else None,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=CALL_SECONDS,
            check=False,
        )
    except FileNotFoundError as error:
        raise ComputeFailure(
            f"{command[0]} is not on PATH: this machine has no Slurm, or it needs a module"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise SlurmAway(f"{command[0]} gave no answer within {CALL_SECONDS:g} s") from error
    except OSError as error:
        raise ComputeFailure(f"{command[0]} cannot be started: {error.strerror}") from error
    if done.returncode:
        raise failure_of(command[0], done.returncode, done.stderr or done.stdout)
    return done.stdout


def failure_of(name: str, code: int, words: str) -> ComputeFailure:
    """Make an error of what a command said before it left with a code."""
    text = "; ".join(line.strip() for line in words.splitlines() if line.strip())
    text = text or f"{name} left with exit code {code}"
    if answers.says_away(text):
        return SlurmAway(text)
    if answers.says_full(text):
        return SlurmFull(text)
    return ComputeFailure(text)


def plain_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Give the variables without those of the Slurm job that this process may itself be in."""
    kept = ("SLURM_CONF", "SLURM_TIME_FORMAT", "SLURM_CLUSTERS")
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith("SLURM") or name in kept
    }


def nodes(partition: str = "") -> list[answers.Node]:
    """Ask what nodes a partition has; without a name, the one of jobs that name none."""
    which = [f"--partition={partition}"] if partition else []
    said = call(["sinfo", "--noheader", "--Node", "-o", answers.NODE_FORMAT, *which])
    found = answers.read_nodes(said)
    if not partition and any(node.is_default for node in found):
        return [node for node in found if node.is_default]
    return found
