"""A run of many tasks: a line for each that is over, and a bar on terminals."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from rankwise.reports.terminal.live import TasksView
from rankwise.safe_text import clean
from rankwise.store.rows import Event, Kind


def event(kind: Kind, **details: Any) -> Event:
    return Event(kind=kind, run="job-1", **details)


def test_in_a_pipe_there_is_a_line_for_each_task_and_no_bar() -> None:
    stream = io.StringIO()
    view = TasksView(Console(file=stream, width=200, force_terminal=False), total=3)
    view.event(event("task started", task="one", time=10.0))
    view.refresh()
    assert stream.getvalue() == ""
    view.event(event("attempt ended", task="one", state="passed", time=11.5))
    view.event(event("task over", task="one", state="passed", time=11.5))
    view.event(event("task over", task="two", state="not run", reason="needs [one]", time=12.0))
    view.event(event("notice", reason="a word", time=12.0))
    view.lines([])
    view.refresh()
    view.close()
    assert stream.getvalue() == ("passed    one  1.5 s\nnot run   two  needs [one]\n-- a word\n")


def test_the_time_of_a_task_is_that_of_all_its_attempts() -> None:
    stream = io.StringIO()
    view = TasksView(Console(file=stream, width=200, force_terminal=False), total=1)
    for number in (1, 2):
        view.event(event("task started", task="one", attempt=number, time=10.0 * number))
        view.event(event("attempt ended", task="one", state="failed", time=10.0 * number + 5))
    view.event(event("task over", task="one", state="failed", time=25.0))
    view.refresh()
    assert stream.getvalue() == "failed    one  15 s\n"


def test_a_terminal_shows_how_far_it_has_come() -> None:
    stream = io.StringIO()
    view = TasksView(Console(file=stream, width=100, force_terminal=True), total=4, over=1)
    view.event(event("task started", task="one", time=10.0))
    view.event(event("task started", task="two", time=10.0))
    view.event(event("task over", task="one", state="failed", time=11.5))
    view.refresh()
    view.close()
    shown = stream.getvalue()
    assert "2/4" in shown
    assert "1 task not passed" in shown
    assert "running: two" in shown


def test_ctrl_c_says_what_it_does() -> None:
    stream = io.StringIO()
    view = TasksView(Console(file=stream, width=200, force_terminal=False), total=3)
    view.refresh()
    view.ending(2)
    assert stream.getvalue().startswith("-- ending 2 processes ...")


def test_tests_are_announced_and_only_the_first_line_of_a_reason_is_shown() -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=200, force_terminal=False)
    view = TasksView(console, total=3, are_tests=True)
    view.event(event("task started", task="one", attempt=1, time=10.0))
    view.event(event("attempt ended", task="one", attempt=1, state="failed", time=11.0))
    view.event(event("task started", task="one", attempt=2, time=11.0))
    reason = "check 1 (contains 'x'): not found in a:\n  | y"
    view.event(event("task over", task="one", state="failed", reason=reason, time=12.0))
    view.refresh()
    assert stream.getvalue() == (
        "Running: one\nRunning: one (attempt 2)\n"
        "failed    one  2.0 s  check 1 (contains 'x'): not found in a\n"
    )


def test_a_terminal_names_the_tests_that_are_running() -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=100, force_terminal=True)
    view = TasksView(console, total=4, are_tests=True)
    view.event(event("task started", task="one", time=10.0))
    view.event(event("task started", task="two", time=10.0))
    view.event(event("task over", task="three", state="skipped", time=10.0))
    view.refresh()
    view.close()
    assert "running: one and two" in stream.getvalue()
    assert "not passed" not in stream.getvalue()


def test_names_that_are_too_long_leave_the_bar_alone() -> None:
    stream = io.StringIO()
    view = TasksView(Console(file=stream, width=60, force_terminal=True), total=216, over=1)
    view.event(event("task started", task="a-name-that-is-long@machine-7", time=10.0))
    view.refresh()
    view.close()
    line = clean(stream.getvalue(), keep_colours=False)
    assert f"{'━' * 20}   1/216 0:00:00 running: a-name-that-i…" in line
