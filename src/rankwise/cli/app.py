"""Puts verbs together for typer."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping

import typer


def make_app(verbs: Iterable[str], others: Mapping[str, str] | None = None) -> typer.Typer:
    """Make an application of some verbs; each is `command` in the module of its name.

    The others, with what they are about, are only for shells to complete.
    """
    app = typer.Typer(
        # Pages that are set by rich cost as much time as all the rest together.
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 100},
    )
    # With a callback, an application of one verb still wants to be told which.
    app.callback()(_rankwise)
    for verb in verbs:
        module = importlib.import_module(f"rankwise.cli.{verb}")
        app.command(verb)(module.command)
    for verb, about in (others or {}).items():
        app.command(verb, help=about)(_other)
    return app


def _other() -> None:
    """Stand for a verb that is not loaded."""


def _rankwise() -> None:
    """Run what is written in YAML documents."""
