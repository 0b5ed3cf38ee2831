"""Time limits as people give them: on the command line, in a file, with a mark."""

from __future__ import annotations

import argparse

import pytest

from rankwise.pytest_plugin.marks import limit_of
from rankwise.pytest_plugin.options import (
    DEFAULT_GRACE,
    DEFAULT_LIMIT,
    grace_from,
    limit_from,
    seconds_option,
)

ALONE = ("-p", "no:randomly", "-p", "no:asyncio")


@pytest.mark.parametrize(("text", "seconds"), [("0", 0.0), ("2.5", 2.5), ("1e3", 1000.0)])
def test_a_number_of_seconds_is_read(text: str, seconds: float) -> None:
    assert seconds_option(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-1", "inf", "nan", "1e999", "5s"])
def test_what_is_no_number_of_seconds_is_refused_by_name(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as caught:
        seconds_option(text)
    assert repr(text) in str(caught.value)


# Settings


def test_without_a_setting_the_limits_are_the_usual_ones(pytester: pytest.Pytester) -> None:
    config = pytester.parseconfig(*ALONE)
    assert (limit_from(config), grace_from(config)) == (DEFAULT_LIMIT, DEFAULT_GRACE)


def test_limits_can_be_given_in_the_configuration(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ntest_timeout = 30\nrank_grace = 0.5")
    config = pytester.parseconfig(*ALONE)
    assert (limit_from(config), grace_from(config)) == (30.0, 0.5)


def test_the_command_line_comes_before_the_configuration(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ntest_timeout = 30\nrank_grace = 0.5")
    config = pytester.parseconfig(*ALONE, "--test-timeout=0", "--rank-grace=7")
    assert (limit_from(config), grace_from(config)) == (0.0, 7.0)


@pytest.mark.parametrize("option", ["--test-timeout=soon", "--rank-grace=-1"])
def test_nonsense_on_the_command_line_is_refused(pytester: pytest.Pytester, option: str) -> None:
    pytester.makepyfile("def test_it(): pass")
    result = pytester.runpytest_inprocess(*ALONE, option)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*{option.partition('=')[0]}*is not a number of seconds*"])


def test_nonsense_in_the_configuration_is_refused_with_its_place(pytester: pytest.Pytester) -> None:
    path = pytester.makeini("[pytest]\ntest_timeout = soon")
    config = pytester.parseconfig(*ALONE)
    with pytest.raises(pytest.UsageError) as caught:
        limit_from(config)
    assert str(caught.value) == f"{path}: test_timeout: 'soon' is not a number of seconds"


# Marks


def marked(pytester: pytest.Pytester, *marks: str, plugin: str = "no:timeout") -> pytest.Item:
    decorators = "\n".join(f"@pytest.mark.{mark}" for mark in marks)
    pytester.makepyfile(test_it=f"import pytest\n{decorators}\ndef test_func(): pass")
    (item,), _ = pytester.inline_genitems(*ALONE, "-p", plugin)
    return item


@pytest.mark.parametrize(
    ("mark", "seconds"),
    [
        ("timeout(5)", 5.0),
        ("timeout(0.5)", 0.5),
        ("timeout(timeout=5)", 5.0),
        ("timeout(5, method='signal')", 5.0),
        ("timeout(0)", 0.0),
        ("timeout(None)", 0.0),
        ("mpi(ranks=2, timeout=5)", 5.0),
        ("mpi(ranks=2, timeout=5, unit='s')", 5.0),
        ("mpi(ranks=2, timeout=5, unit='m')", 300.0),
        ("mpi(ranks=2, timeout=0.5, unit='h')", 1800.0),
        ("mpi(ranks=2)", 99.0),
        ("parallel(2)", 99.0),
    ],
)
def test_a_mark_gives_a_test_its_own_limit(
    pytester: pytest.Pytester, mark: str, seconds: float
) -> None:
    assert limit_of(marked(pytester, mark), 99.0) == seconds


def test_the_closest_mark_wins(pytester: pytest.Pytester) -> None:
    item = marked(pytester, "timeout(2)", "timeout(3)")
    assert limit_of(item, 99.0) == 3.0, "the one next to the function"


def test_a_plugin_that_ends_tests_at_the_same_limit_from_within_comes_first(
    pytester: pytest.Pytester,
) -> None:
    pytest.importorskip("pytest_timeout")
    assert limit_of(marked(pytester, "timeout(5)", plugin="timeout"), 99.0) > 5.0
    assert limit_of(marked(pytester, "timeout(0)", plugin="timeout"), 99.0) == 0.0


@pytest.mark.parametrize(
    "mark", ["timeout('5')", "timeout(-1)", "timeout(True)", "mpi(timeout=[5])"]
)
def test_a_mark_without_a_number_is_refused_with_its_test(
    pytester: pytest.Pytester, mark: str
) -> None:
    with pytest.raises(pytest.UsageError, match=r"::test_func: @pytest\.mark.* is not a number"):
        limit_of(marked(pytester, mark), 99.0)
