"""Tests whose setup cannot end differently on one rank than on another."""

from __future__ import annotations

import pytest

# Nothing but these, and the values of `parametrize`, is known to be the same on every rank.
_FIXTURES = frozenset(("comm", "mpi_ranks", "request", "event_loop_policy"))
_FIXTURES_OF = frozenset(("_pytest", "rankwise", "pytest_asyncio"))
_MARKS = frozenset(("parallel", "mpi", "parallel_from_context", "parametrize"))
# What these do before a test, they do alike on all ranks.
_HOOKS_OF = frozenset(("_pytest", "rankwise", "pytest_randomly"))


def has_plain_setup(item: pytest.Item) -> bool:
    """Tell whether nothing of the user's runs, and nothing can be skipped, before the test itself.

    Then the ranks need not agree that all of them are ready: most small tests are like this, and
    to wait for each other would be a good part of their time.
    """
    return (
        type(item) is pytest.Function
        and all(mark.name in _MARKS for mark in item.iter_markers())
        and all(_is_plain_fixture(item, name) for name in item.fixturenames)
        and all(
            hook.function.__module__.partition(".")[0] in _HOOKS_OF
            for hook in item.ihook.pytest_runtest_setup.get_hookimpls()
        )
    )


def _is_plain_fixture(item: pytest.Function, name: str) -> bool:
    definitions = item._fixtureinfo.name2fixturedefs.get(name, ())
    modules = {definition.func.__module__.partition(".")[0] for definition in definitions}
    if name in _FIXTURES:
        return modules <= _FIXTURES_OF
    # `parametrize` gives a value through a fixture of pytest's own. So do `setup_method` and its
    # like, which call the user's functions, but these are no parameters.
    callspec = getattr(item, "callspec", None)
    return callspec is not None and name in callspec.params and modules == {"_pytest"}
