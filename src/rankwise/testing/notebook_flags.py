"""The options for notebooks; what they do is loaded only if they are used."""

from __future__ import annotations

import argparse

import pytest

from rankwise.testing.limits import seconds_option

DEFAULT_JOBS = 2


def add_notebook_options(parser: pytest.Parser) -> None:
    """Add the options to pytest's own."""
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
        default=DEFAULT_JOBS,
        metavar="N",
        help=f"Run so many notebooks at a time (default: {DEFAULT_JOBS}).",
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


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)
