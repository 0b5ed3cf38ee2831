"""Options, settings and marks as pytest knows them; a plain pytest loads this module too."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from _pytest.nodes import Node

LATE_GC = pytest.StashKey[bool]()
"""Whether garbage collection is to be enabled at the first test."""

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
    """Return the order in which tests start: the one named, or what other options need."""
    # --stepwise takes all tests before the failing one as done.
    return "sequential" if config.getoption("stepwise", False) else named


def limit_from(config: pytest.Config) -> float:
    """Return the time limit of tests that have none of their own; 0: none."""
    return _setting(config, "test_timeout", DEFAULT_LIMIT)


def grace_from(config: pytest.Config) -> float:
    """Return how long the other ranks of a test may go on after one has failed."""
    return _setting(config, "rank_grace", DEFAULT_GRACE)


def _setting(config: pytest.Config, name: str, default: float) -> float:
    given = config.getoption(name)
    # The command line is stronger than the configuration file.
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

_MARKS = ("parallel", "mpi", "parallel_from_context")

MARKERS = (
    (
        "parallel(n, world=False, threads=1, exclusive=None): run the test on n ranks, or once on "
        "each number of ranks of a list; world: COMM_WORLD has that size; threads: cores for each "
        'rank; exclusive: "core", "l3", "numa", "socket" or "node", nothing else runs there'
    ),
    "timeout(seconds): how long each phase of the test may take (0: no limit)",
    "parallel_from_context: run the test on as many ranks as the run has",
    "mpi(ranks): the same as parallel(ranks); without `ranks`, as parallel_from_context",
    "mpi_skip: with --with-mpi of pytest-mpi, the test is skipped; mpi_break does the same",
    "mpi_break: the same as mpi_skip",
    "mpi_xfail: with --with-mpi of pytest-mpi, the test is expected to fail",
)


def closest_mark(node: Node) -> pytest.Mark | None:
    """Return the mark of ours that is closest to a test (on its function, class or module)."""
    return next((found for found in node.iter_markers() if found.name in _MARKS), None)


def _known(ours: tuple[str, ...], name: str) -> str:
    """Return a name of ours, or one that another package has added."""
    if name not in ours:
        # Entry points of other packages are searched only now: that takes time.
        from dataclasses import replace

        from rankwise.plugins import SCHEDULERS as POINT

        point = replace(POINT, more=[one for one in ours if one not in POLICIES])
        if problem := point.problem(name):
            raise argparse.ArgumentTypeError(problem)
    return name


def _workers(text: str) -> str:
    return text if text == "auto" else str(_positive(text))


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


_BINDINGS = ("core", "l3", "numa", "socket", "none")


def _binding(text: str) -> str:
    if text.startswith("map:"):
        from rankwise.launch.cores import read_map

        try:
            read_map(text.removeprefix("map:"))
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
    elif text not in _BINDINGS:
        raise argparse.ArgumentTypeError(
            f"{text!r} is none of {', '.join(_BINDINGS)}, and no map of cores such as map:0,2-3,4+6"
        )
    return text


# By what stands for the value of an option in options.txt.
_TYPES = {"SECONDS": seconds_option, "N": _positive}
_FLAG = {"action": "store_true"}

# What neither the name nor the value of an option says.
_SPECIAL: Mapping[str, Mapping[str, Any]] = {
    "--n-workers": {"type": _workers},
    "--scheduler": {"type": partial(_known, SCHEDULERS)},
    "--policy": {"type": partial(_known, POLICIES), "dest": "rankwise_policy"},
    "--too-few": {"choices": ("skip", "error"), "action": "store"},
    "--bind": {"type": _binding},
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
    "--notebooks-jobs": {"default": 2},
}


def add_options(parser: pytest.Parser) -> None:
    """Declare every option and setting.

    The options are in options.txt, by groups: spellings, what stands for the value, and the help.
    """
    text = Path(__file__).with_name("options.txt").read_text(encoding="utf-8")
    for section in text.removeprefix("# ").split("\n# "):
        title, *entries = section.split("\n--")
        group = parser.getgroup(*title.strip().split(": "))
        for entry in entries:
            spelled, *words = entry.splitlines()
            spellings, _, value = f"--{spelled}".partition("=")
            names = spellings.split()
            usual = {"metavar": value, "type": _TYPES.get(value)} if value else _FLAG
            options = {**usual, **_SPECIAL.get(names[0], {})}
            group.addoption(*names, help=" ".join(map(str.strip, words)), **options)
    parser.addini("test_timeout", "the default of --test-timeout, in seconds", default="")
    parser.addini("rank_grace", "the default of --rank-grace, in seconds", default="")
