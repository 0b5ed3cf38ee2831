"""How long a test may take, and how long its ranks may go on after one of them has failed."""

from __future__ import annotations

import argparse

import pytest

DEFAULT_LIMIT = 600.0
DEFAULT_GRACE = 5.0

# So long pytest-timeout may take for what it does at the same limit.
_HEAD_START = 1.0

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def seconds_option(text: str) -> float:
    """Read a number of seconds from the command line; raises ArgumentTypeError."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return seconds


def limit_from(config: pytest.Config) -> float:
    """Give the time limit of tests that have none of their own; 0: none."""
    return _setting(config, "test_timeout", DEFAULT_LIMIT)


def grace_from(config: pytest.Config) -> float:
    """Give how long the other ranks of a test may go on after one has failed."""
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


def limit_of(item: pytest.Item, default: float) -> float:
    """Give the time limit of each phase of a test; 0: none.

    Raises UsageError for a mark that gives no number.
    """
    for found in item.iter_markers():
        match found.name:
            case "timeout":
                value = found.args[0] if found.args else found.kwargs.get("timeout")
                limit = _seconds(item, found, value)
                # That plugin ends a test from within: the rank lives on, if that succeeds.
                has_plugin = item.config.pluginmanager.has_plugin("timeout")
                return limit + _HEAD_START if limit and has_plugin else limit
            case "mpi" if "timeout" in found.kwargs:
                unit = _UNITS.get(str(found.kwargs.get("unit", "s")), 1.0)
                return _seconds(item, found, found.kwargs["timeout"]) * unit
    return default


def _seconds(item: pytest.Item, found: pytest.Mark, value: object) -> float:
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise pytest.UsageError(
            f"{item.nodeid}: @pytest.mark.{found.name}: {value!r} is not a number of seconds"
        )
    return float(value)
