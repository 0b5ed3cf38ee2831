"""The options, settings and marks that pytest is told of; a plain pytest loads this too."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from _pytest.nodes import Node

DEFAULT_LIMIT = 600.0
DEFAULT_GRACE = 5.0


def seconds_option(text: str) -> float:
    """Read a number of seconds from the command line; raises ArgumentTypeError."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return seconds


def policy_from(config: pytest.Config, named: str) -> str:
    """Return in which order tests start: as named, or what other options need."""
    # --stepwise takes everything before the failing test as done, so that has to be true.
    return "sequential" if config.getoption("stepwise", False) else named


def limit_from(config: pytest.Config) -> float:
    """Return the time limit of tests that have none of their own; 0: none."""
    return _setting(config, "test_timeout", DEFAULT_LIMIT)


def grace_from(config: pytest.Config) -> float:
    """Return how long the other ranks of a test may go on after one has failed."""
    return _setting(config, "rank_grace", DEFAULT_GRACE)


def _setting(config: pytest.Config, name: str, default: float) -> float:
    given = config.getoption(name)
    if given is not None:
        return float(given)
    text = str(config.getini(name) or "")
    if not text:
        return default
    try:
        return seconds_option(text)
    except argparse.ArgumentTypeError as error:
        where = config.inipath or "the configuration"
        raise pytest.UsageError(f"{where}: {name}: {error}") from None


SLURM_SCHEDULERS = ("slurm", "slurm-pool")
BATCH_SCHEDULERS = ("batch", "batch-pool")
STARTS_RANKS = ("pool", "shell", *SLURM_SCHEDULERS, *BATCH_SCHEDULERS)
SCHEDULERS = ("sequential", "static", "dynamic", *STARTS_RANKS)
POLICIES = ("sequential", "static", "dynamic")

_NOTEBOOK_JOBS = 2

_MARKS = ("parallel", "mpi", "parallel_from_context")

MARKERS = (
    (
        "parallel(n, world=False, threads=1, exclusive=None): run the test on n ranks, or once on "
        "each number of ranks of a list; world: COMM_WORLD has that size; threads: cores for each "
        'rank; exclusive: "numa" or "node", nothing else runs there meanwhile'
    ),
    "timeout(seconds): how long each phase of the test may take (0: for ever)",
    "parallel_from_context: run the test on as many ranks as the run has",
    "mpi(ranks): the same as parallel(ranks); without `ranks`, as parallel_from_context",
)


def closest_mark(node: Node) -> pytest.Mark | None:
    """Return the mark that counts of those on a test (function, class or module)."""
    return next((found for found in node.iter_markers() if found.name in _MARKS), None)


def add_options(parser: pytest.Parser) -> None:
    """Declare every option and setting."""
    group = parser.getgroup("rankwise", "tests on many ranks (rankwise)")
    group.addoption(
        "--n-workers",
        type=_workers,
        metavar="N",
        help="Start N ranks and run the tests on them; no mpirun is needed. A rank that crashes or "
        "hangs ends its test only. auto: as many as there are cores.",
    )
    group.addoption(
        "--scheduler",
        type=_scheduler,
        metavar="NAME",
        help="How tests are given to ranks. With --n-workers: pool (default: ranks are reused; a "
        "world that a test has ended is started again), shell (fresh processes for every test), "
        "slurm (every test is a job step of its own), slurm-pool (a pool on the nodes of an "
        "allocation), batch and batch-pool (as shell and pool, in a job of the batch system that "
        "--on names). With any, sequential: one test at a time, in order (default under mpirun). "
        "static: every test gets its ranks before the first one starts. dynamic: the largest test "
        "that fits the free ranks goes next, and of those the longest (default with --n-workers). "
        "Other packages can add names (entry points of the group rankwise.schedulers).",
    )
    group.addoption(
        "--policy",
        type=_policy,
        metavar="NAME",
        dest="rankwise_policy",
        help="Which test goes next, for schedulers that start ranks: sequential, static, dynamic "
        "(default), or a name that another package has added.",
    )
    group.addoption(
        "--test-timeout",
        type=seconds_option,
        metavar="SECONDS",
        help="How long setup, call and teardown of a test may take each, before it is ended and "
        "reported with the place where every rank is (default: 600; 0: for ever). "
        "@pytest.mark.timeout(SECONDS) sets it for one test.",
    )
    group.addoption(
        "--rank-grace",
        type=seconds_option,
        metavar="SECONDS",
        help="How long the other ranks of a test may go on after one has failed (default: 5).",
    )
    group.addoption(
        "--world",
        action="store_true",
        help="With --n-workers: run every test in a world of exactly its size, so that "
        "MPI.COMM_WORLD has as many ranks as the test.",
    )
    group.addoption(
        "--leak-check",
        action="store_true",
        help="Fail tests that leave a message, a communicator or an error handler behind.",
    )
    group.addoption(
        "--no-warm-start",
        action="store_true",
        help="Start ranks from nothing, not as copies of a process that has loaded the tests.",
    )
    group.addoption(
        "--bind",
        choices=("core", "none"),
        help="Keep each rank on cores of its own (default with --scheduler=shell, if there are "
        "enough cores), or on none.",
    )
    group.addoption(
        "--rank-output",
        choices=("all", "0", "failed"),
        default="all",
        help="Of which ranks of a test the captured output is shown: all (default), rank 0, or "
        "those that failed.",
    )
    group.addoption(
        "--tmux",
        action="store_true",
        help="With --n-workers: show what each rank prints, as it prints it, in a pane of tmux.",
    )
    group.addoption(
        "--timeline",
        metavar="FILE",
        help="Write when which test ran on which rank, and why the suite takes as long as it does, "
        "as a page (FILE.html) or as data (FILE.json).",
    )
    parser.addini("test_timeout", "the default of --test-timeout, in seconds", default="")
    parser.addini("rank_grace", "the default of --rank-grace, in seconds", default="")
    group.addoption(
        "--nprocs",
        type=_positive,
        metavar="N",
        help="Run every test marked with a number of ranks on N ranks instead.",
    )
    _add_slurm_options(parser)
    _add_notebook_options(parser)


def _add_slurm_options(parser: pytest.Parser) -> None:
    """Declare the options about Slurm; those of pytest_parallel under their names there."""
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
        "--no-detach",
        action="store_false",
        dest="detach",
        help="Wait for the job (default), also if a configuration file says --detach.",
    )
    group.addoption(
        "--slurm-wait",
        type=seconds_option,
        default=0.0,
        metavar="SECONDS",
        help="How long to wait for the allocation before it is cancelled (default: for ever).",
    )
    group.addoption(
        "--on",
        metavar="NAME",
        dest="rankwise_on",
        help="For --scheduler=batch and batch-pool: the [compute.NAME] of rankwise.toml whose "
        "batch system runs the tests, on one node.",
    )
    group.addoption(
        "--slurm-address",
        metavar="ADDRESS",
        help="The address of this machine that the nodes can reach, if it is not the one by which "
        "it reaches Slurm.",
    )


def _add_notebook_options(parser: pytest.Parser) -> None:
    """Declare the options for notebooks; what they do is loaded only if they are used."""
    group = parser.getgroup("rankwise notebooks", "notebooks as tests (rankwise)")
    group.addoption(
        "--notebooks",
        action="append",
        metavar="PATH",
        help="Run this notebook, or all notebooks in this folder, as tests. May be repeated; "
        "without other arguments nothing else is run.",
    )
    group.addoption(
        "--notebooks-output",
        metavar="FOLDER",
        help="Where the executed notebooks are written, with a page of HTML and the pictures of "
        "each (default: in pytest's cache).",
    )
    group.addoption(
        "--notebooks-jobs",
        type=_positive,
        default=_NOTEBOOK_JOBS,
        metavar="N",
        help=f"Run so many notebooks at a time (default: {_NOTEBOOK_JOBS}).",
    )
    group.addoption(
        "--notebooks-timeout",
        type=seconds_option,
        metavar="SECONDS",
        help="How long a notebook may take (default: what it says itself, or 600; 0: for ever).",
    )
    group.addoption(
        "--notebooks-reuse-kernel",
        action="store_true",
        help="Run all notebooks in one kernel, one after the other: what one leaves behind, the "
        "next one finds.",
    )


def _scheduler(name: str) -> str:
    return _known(name, SCHEDULERS)


def _policy(name: str) -> str:
    return _known(name, POLICIES)


def _known(name: str, ours: tuple[str, ...]) -> str:
    if name not in ours:
        from rankwise.pytest_plugin.schedulers.base import find_scheduler

        try:
            find_scheduler(name, ours)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
    return name


def _workers(text: str) -> str:
    return text if text == "auto" else str(_positive(text))


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)
