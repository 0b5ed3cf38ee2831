"""The options, settings and marks that pytest is told of; a plain pytest loads this too."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

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


def _known(ours: tuple[str, ...], name: str) -> str:
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


_TYPES = {"SECONDS": seconds_option, "N": _positive}
_FLAG = {"action": "store_true"}

# By option, with what stands for its value if it takes one: that says how the value is read, too.
_OPTIONS = {
    "--n-workers=N": (
        "Start N ranks and run the tests on them; no mpirun is needed. A rank that crashes or "
        "hangs ends its test only. auto: as many as there are cores."
    ),
    "--scheduler=NAME": (
        "How tests are given to ranks. With --n-workers: pool (default: ranks are reused; a "
        "world that a test has ended is started again), shell (fresh processes for every test), "
        "slurm (every test is a job step of its own), slurm-pool (a pool on the nodes of an "
        "allocation), batch and batch-pool (as shell and pool, in a job of the batch system that "
        "--on names). With any, sequential: one test at a time, in order (default under mpirun). "
        "static: every test gets its ranks before the first one starts. dynamic: the largest test "
        "that fits the free ranks goes next, and of those the longest (default with --n-workers). "
        "Other packages can add names (entry points of the group rankwise.schedulers)."
    ),
    "--policy=NAME": (
        "Which test goes next, for schedulers that start ranks: sequential, static, dynamic "
        "(default), or a name that another package has added."
    ),
    "--test-timeout=SECONDS": (
        "How long setup, call and teardown of a test may take each, before it is ended and "
        "reported with the place where every rank is (default: 600; 0: for ever). "
        "@pytest.mark.timeout(SECONDS) sets it for one test."
    ),
    "--rank-grace=SECONDS": (
        "How long the other ranks of a test may go on after one has failed (default: 5)."
    ),
    "--world": (
        "With --n-workers: run every test in a world of exactly its size, so that "
        "MPI.COMM_WORLD has as many ranks as the test."
    ),
    "--leak-check": "Fail tests that leave a message, a communicator or an error handler behind.",
    "--no-warm-start": (
        "Start ranks from nothing, not as copies of a process that has loaded the tests."
    ),
    "--bind": (
        "Keep each rank on cores of its own (default with --scheduler=shell, if there are "
        "enough cores), or on none."
    ),
    "--rank-output": (
        "Of which ranks of a test the captured output is shown: all (default), rank 0, or "
        "those that failed."
    ),
    "--tmux": "With --n-workers: show what each rank prints, as it prints it, in a pane of tmux.",
    "--timeline=FILE": (
        "Write when which test ran on which rank, and why the suite takes as long as it does, "
        "as a page (FILE.html) or as data (FILE.json)."
    ),
    "--nprocs=N": "Run every test marked with a number of ranks on N ranks instead.",
}

# Those of pytest_parallel under their names there.
_SLURM_OPTIONS = {
    "--slurm-options=OPTIONS": (
        'Options for sbatch: --slurm-options="--time=00:30:00 --qos=test". The number of '
        "tasks is that of --n-workers."
    ),
    "--slurm-srun-options=OPTIONS": (
        'Options for each srun: --slurm-srun-options="--mem-per-cpu=4GB".'
    ),
    "--slurm-export-env": "Let the job have the environment of this terminal (default).",
    "--no-slurm-export-env": "",
    "--slurm-init-cmds --slurm-additional-cmds=COMMANDS": (
        'Commands to run in the job before the tests: --slurm-init-cmds="source my_env.sh". '
        "The tests see the variables that they set."
    ),
    "--slurm-file=FILE": "A job script with #SBATCH lines and commands; the tests run at its end.",
    "--use-srun": "Start the ranks with srun (default).",
    "--no-use-srun": "Start the ranks with the mpiexec of the MPI library, within the job.",
    "--detach": "Only submit: the whole run goes into the job, and what it prints into a file.",
    "--no-detach": "Wait for the job (default), also if a configuration file says --detach.",
    "--slurm-wait=SECONDS": (
        "How long to wait for the allocation before it is cancelled (default: for ever)."
    ),
    "--on=NAME": (
        "For --scheduler=batch and batch-pool: the [compute.NAME] of rankwise.toml whose "
        "batch system runs the tests, on one node."
    ),
    "--slurm-address=ADDRESS": (
        "The address of this machine that the nodes can reach, if it is not the one by which "
        "it reaches Slurm."
    ),
}

# What these do is loaded only if they are used.
_NOTEBOOK_OPTIONS = {
    "--notebooks=PATH": (
        "Run this notebook, or all notebooks in this folder, as tests. May be repeated; "
        "without other arguments nothing else is run."
    ),
    "--notebooks-output=FOLDER": (
        "Where the executed notebooks are written, with a page of HTML and the pictures of "
        "each (default: in pytest's cache)."
    ),
    "--notebooks-jobs=N": f"Run so many notebooks at a time (default: {_NOTEBOOK_JOBS}).",
    "--notebooks-timeout=SECONDS": (
        "How long a notebook may take (default: what it says itself, or 600; 0: for ever)."
    ),
    "--notebooks-reuse-kernel": (
        "Run all notebooks in one kernel, one after the other: what one leaves behind, the "
        "next one finds."
    ),
}

# What is special about some of them.
_SPECIAL: Mapping[str, Mapping[str, Any]] = {
    "--n-workers": {"type": _workers},
    "--scheduler": {"type": partial(_known, SCHEDULERS)},
    "--policy": {"type": partial(_known, POLICIES), "dest": "rankwise_policy"},
    "--bind": {"choices": ("core", "none"), "action": "store"},
    "--rank-output": {"choices": ("all", "0", "failed"), "default": "all", "action": "store"},
    "--slurm-export-env": {"default": True},
    "--no-slurm-export-env": {"action": "store_false", "dest": "slurm_export_env"},
    "--slurm-init-cmds": {"action": "append"},
    "--use-srun": {"default": True},
    "--no-use-srun": {"action": "store_false", "dest": "use_srun"},
    "--no-detach": {"action": "store_false", "dest": "detach"},
    "--slurm-wait": {"default": 0.0},
    "--on": {"dest": "rankwise_on"},
    "--notebooks": {"action": "append"},
    "--notebooks-jobs": {"default": _NOTEBOOK_JOBS},
}


def add_options(parser: pytest.Parser) -> None:
    """Declare every option and setting."""
    for name, title, options in (
        ("rankwise", "tests on many ranks (rankwise)", _OPTIONS),
        ("rankwise-slurm", "tests on the nodes of Slurm (rankwise)", _SLURM_OPTIONS),
        ("rankwise notebooks", "notebooks as tests (rankwise)", _NOTEBOOK_OPTIONS),
    ):
        group = parser.getgroup(name, title)
        for spelled, words in options.items():
            spellings, _, value = spelled.partition("=")
            names = spellings.split()
            usual = {"metavar": value, "type": _TYPES.get(value)} if value else _FLAG
            group.addoption(*names, help=words, **{**usual, **_SPECIAL.get(names[0], {})})
    parser.addini("test_timeout", "the default of --test-timeout, in seconds", default="")
    parser.addini("rank_grace", "the default of --rank-grace, in seconds", default="")
