"""The options that are about Slurm; what they mean is elsewhere."""

from __future__ import annotations

import argparse

import pytest

SLURM_SCHEDULERS = ("slurm", "slurm-pool")


def add_slurm_options(parser: pytest.Parser) -> None:
    """Declare the options; those of pytest_parallel under their names there."""
    group = parser.getgroup("rankwise-slurm", "tests on the nodes of Slurm (rankwise)")
    group.addoption(
        "--slurm-options",
        metavar="OPTIONS",
        help='Options for sbatch: --slurm-options="--time=00:30:00 --qos=test". The number of '
        "tasks is that of --n-workers.",
    )
    group.addoption(
        "--slurm-srun-options",
        metavar="OPTIONS",
        help='Options for each srun: --slurm-srun-options="--mem-per-cpu=4GB".',
    )
    group.addoption(
        "--slurm-export-env",
        action="store_true",
        default=True,
        help="Let the job have the environment of this terminal (default).",
    )
    group.addoption("--no-slurm-export-env", action="store_false", dest="slurm_export_env")
    group.addoption(
        *("--slurm-init-cmds", "--slurm-additional-cmds"),
        action="append",
        metavar="COMMANDS",
        help='Commands to run in the job before the tests: --slurm-init-cmds="source my_env.sh". '
        "The tests see the variables that they set.",
    )
    group.addoption(
        "--slurm-file",
        metavar="FILE",
        help="A job script with #SBATCH lines and commands; the tests run at its end.",
    )
    group.addoption(
        "--use-srun",
        action="store_true",
        default=True,
        help="Start the ranks with srun (default).",
    )
    group.addoption(
        "--no-use-srun",
        action="store_false",
        dest="use_srun",
        help="Start the ranks with the mpiexec of the MPI library, within the job.",
    )
    group.addoption(
        "--detach",
        action="store_true",
        help="Only submit: the whole run goes into the job, and what it prints into a file.",
    )
    group.addoption(
        "--slurm-wait",
        type=_seconds,
        default=0.0,
        metavar="SECONDS",
        help="How long to wait for the allocation before it is cancelled (default: for ever).",
    )
    group.addoption(
        "--slurm-address",
        metavar="ADDRESS",
        help="The address of this machine that the nodes can reach, if it is not the one by which "
        "it reaches Slurm.",
    )


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return seconds
