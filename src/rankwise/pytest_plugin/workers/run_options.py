"""What the command line asks of Slurm, for a run with workers there."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

_TASKS = ("-n", "--ntasks")
_CORES = ("-c", "--cpus-per-task")
# These would take the job out of our hands: it must be one allocation whose number we are told.
_NOT_OURS = ("-a", "--array", "-W", "--wait", "--wrap", "--test-only", "--parsable")

_DIRECTIVE = "#SBATCH"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmOptions:
    """What the user wants of Slurm."""

    tasks: int
    """How many tasks the allocation has."""
    cores_per_task: int = 1
    options: tuple[str, ...] = ()
    """For sbatch."""
    srun_options: tuple[str, ...] = ()
    exports: bool = True
    """Whether the job has the environment of the terminal."""
    commands: tuple[str, ...] = ()
    """To be run in the job before everything else."""
    script: str = ""
    """The user's own job script; what runs the tests is put at its end."""
    uses_srun: bool = True
    detaches: bool = False
    wait: float = 0.0
    """For how long to wait for the allocation, in seconds; 0: for ever."""
    address: str = ""
    """The address of this machine that the nodes can reach; empty: find it out."""
    job: str = ""
    """The allocation that this process runs in; empty: there is none."""
    on: str = ""
    """The name in the site file of another batch system; empty: it is Slurm, by these options."""


def read_slurm_options(
    known: argparse.Namespace, environment: Mapping[str, str] = os.environ
) -> SlurmOptions:
    """Read what was asked for.

    Raises UsageError for what cannot be.
    """
    options = _words("--slurm-options", known.slurm_options)
    script = _read_script(known.slurm_file)
    given = [(word, "--slurm-options") for word in options]
    given += [(word, known.slurm_file) for word in _options_in(script, known.slurm_file)]
    _refuse(given)
    # With --detach the job is a new one, also if this process is in one already.
    job = "" if known.detach else environment.get("SLURM_JOB_ID", "")
    cores = value_of(_CORES, [word for word, _ in given]) or (
        environment.get("SLURM_CPUS_PER_TASK", "") if job else ""
    )
    return SlurmOptions(
        tasks=_count_tasks(known.n_workers, environment if job else {}),
        cores_per_task=int(cores) if cores.isdecimal() and int(cores) else 1,
        options=options,
        srun_options=_words("--slurm-srun-options", known.slurm_srun_options),
        exports=known.slurm_export_env,
        commands=tuple(known.slurm_init_cmds or ()),
        script=script,
        uses_srun=known.use_srun,
        detaches=known.detach,
        wait=known.slurm_wait,
        address=known.slurm_address or "",
        job=job,
    )


def read_batch_options(known: argparse.Namespace) -> SlurmOptions:
    """Read what is asked of the batch system that `--on` names; raises UsageError."""
    if not known.rankwise_on:
        raise pytest.UsageError(
            f"--scheduler={known.scheduler} needs --on=NAME: a [compute.NAME] of rankwise.toml"
        )
    if known.n_workers in (None, "auto"):
        raise pytest.UsageError(
            f"--scheduler={known.scheduler} needs --n-workers=N: the job has so many cores"
        )
    return SlurmOptions(
        tasks=int(known.n_workers),
        uses_srun=False,
        wait=known.slurm_wait,
        address=known.slurm_address or "",
        on=known.rankwise_on,
    )


def _words(option: str, text: str | None) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text or ""))
    except ValueError as error:
        raise pytest.UsageError(f"{option}={text!r} cannot be read: {error}") from None


def _read_script(name: str | None) -> str:
    if name is None:
        return ""
    try:
        return Path(name).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise pytest.UsageError(f"--slurm-file={name} cannot be read: {error}") from None


def _options_in(script: str, name: str) -> list[str]:
    """Return the words of the #SBATCH lines of a script, as Slurm reads them.

    It reads up to the first command, and takes quotation marks and comments as a shell does.
    """
    words: list[str] = []
    for number, line in enumerate(script.splitlines(), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            break
        # Slurm takes it for a directive only at the very beginning of a line.
        if not line.startswith(_DIRECTIVE):
            continue
        try:
            words += shlex.split(line.removeprefix(_DIRECTIVE), comments=True)
        except ValueError as error:
            raise pytest.UsageError(
                f"{name}:{number}: Slurm cannot read this line: {error}: {line}"
            ) from None
    return words


def _refuse(given: Sequence[tuple[str, str]]) -> None:
    for word, where in given:
        if _value_in(_TASKS, word) is not None:
            raise pytest.UsageError(
                f"{word!r} in {where}: the number of tasks is that of --n-workers, because "
                "rankwise counts on them when it packs the tests. Say --n-workers=N instead."
            )
        if _value_in(_NOT_OURS, word) is not None:
            raise pytest.UsageError(
                f"{word!r} in {where}: the tests need one allocation that rankwise looks after, "
                "and with that option it would be something else. Leave it out."
            )


def _value_in(names: Sequence[str], word: str, following: str = "") -> str | None:
    """Return the value of a word that is one of these options: `-n8`, `-n`, `--ntasks=8`.

    None: it is none of them.
    """
    for name in names:
        if word == name:
            return following
        if name.startswith("--"):
            if word.startswith(f"{name}="):
                return word.partition("=")[2]
        elif word.startswith(name) and not word.startswith("--"):
            return word[len(name) :]
    return None


def value_of(names: Sequence[str], words: Sequence[str]) -> str:
    """Return the value of the last of these options; empty: none is given."""
    pairs = zip(words, [*words[1:], ""], strict=False)
    given = [_value_in(names, word, following) for word, following in pairs]
    return next((value for value in reversed(given) if value is not None), "")


def _count_tasks(asked: str | None, job: Mapping[str, str]) -> int:
    """Settle the number of workers; `job` are the variables of the job that we are in."""
    # The older name, which some versions set instead.
    there = job.get("SLURM_NTASKS", "") or job.get("SLURM_NPROCS", "")
    if asked in (None, "auto"):
        if there.isdecimal():
            return int(there)
        raise pytest.UsageError(
            "--scheduler=slurm needs --n-workers=N: so many tasks are asked of Slurm"
        )
    width = int(str(asked))
    if there.isdecimal() and width > int(there):
        raise pytest.UsageError(
            f"--n-workers={width} is more than this allocation has: job {job['SLURM_JOB_ID']} has "
            f"{there} tasks. Leave --n-workers out, or ask for more: salloc --ntasks={width}"
        )
    return width
