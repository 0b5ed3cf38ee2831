"""The last words on a suite."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

from rich.console import Console

from rankwise.reports.failures import CaseResult, Repeated, RunExplanation
from rankwise.reports.terminal.run_end import show_suite_end
from rankwise.store import State
from tests.reports.test_junit import CASES, RUN


def shown(cases: list[CaseResult], repeated: list[Repeated] | None = None) -> str:
    stream = io.StringIO()
    show_suite_end(
        Console(file=stream, width=120, force_terminal=False, highlight=False),
        RUN,
        cases=cases,
        repeated=repeated or [],
        explained=RunExplanation(first=(), others=()),
        folder=Path("logs"),
    )
    return stream.getvalue()


def test_a_table_and_counts_and_what_was_missing() -> None:
    text = shown(CASES)
    rows = [line.split() for line in text.splitlines()]
    assert ["good", "passed", "1.2", "s"] in rows
    assert ["extra", "skipped", "needs", "2", "GPUs,", "found", "0"] in rows
    assert "6 tests: 2 passed, 1 failed, 1 timed out, 1 not run, 1 skipped" in text
    assert "1 test did not run, and the suite is not green without: needs 2 GPUs, found 0" in text
    assert "  | y" not in text


def test_of_many_tests_only_those_are_named_that_are_not_green() -> None:
    many = [
        CaseResult(task=f"t{number}", name=f"t{number}", state=State.PASSED) for number in range(50)
    ]
    text = shown([*many, CASES[1]])
    assert "t17" not in text
    assert "bad" in text
    assert "51 tests: 50 passed, 1 failed" in text


def test_flaky_tests_are_named() -> None:
    text = shown([], [Repeated(name="a", passed=3, times=5), Repeated(name="b", passed=5, times=5)])
    assert "a is flaky: it passed 3 of 5 times" in text
    assert "b is" not in text


def test_names_cannot_disturb_the_terminal() -> None:
    case = dataclasses.replace(CASES[0], name="\x1b[2J[bold]a\x07")
    assert "[bold]a" in shown([case])
    assert "\x1b" not in shown([case])
