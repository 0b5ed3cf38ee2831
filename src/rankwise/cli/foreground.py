"""Drives a run while somebody looks on."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from enum import Enum, auto
from typing import TYPE_CHECKING

from rankwise.cli.faults import leave_streams

if TYPE_CHECKING:
    from rich.console import Console

    from rankwise.plan import Task
    from rankwise.report.terminal_live import View
    from rankwise.store import RunRow, Store

# Of more tasks than this, only what became of them is shown, not what they write.
_MOST_TASKS_WITH_OUTPUT = 10
_SUITE, _MATRIX = "Suite", "Matrix"
_MOST_TESTS_EXPLAINED = 10


class Shown(Enum):
    """How much is to be seen."""

    ALL = auto()
    NOTHING = auto()
    EVENTS = auto()


def chosen(*, quiet: bool, as_json: bool) -> Shown:
    """Give what two options mean together."""
    if as_json:
        return Shown.EVENTS
    return Shown.NOTHING if quiet else Shown.ALL


def drive_shown(store: Store, run: RunRow, tasks: Sequence[Task], shown: Shown) -> int:
    """Drive a run to its end, show it, and give its exit code."""
    from rankwise.cli.afterwards import see_off
    from rankwise.engine.runs import drive
    from rankwise.report.terminal import make_console
    from rankwise.report.terminal_live import Onlooker
    from rankwise.report.terminal_run import show_left, show_start

    if shown is Shown.ALL:
        with _unheard():
            show_start(make_console(), run, tasks, is_again=run.started is not None)
    running = [one.folder for one in store.attempts(run.id) if not one.state.is_over]
    try:
        with Onlooker(_view(store, run, tasks, shown), running=running) as onlooker:
            end = drive(store, run.id, observer=onlooker.observe)
    except KeyboardInterrupt:
        show_left(make_console(to_stderr=True), run.id)
        raise
    with _unheard():
        _show_end(store, run, shown)
    with _unheard():
        see_off(store, run.id)
    return end.exit_code


@contextlib.contextmanager
def _unheard() -> Iterator[None]:
    """Go on where nobody reads any more: the run matters, and its exit code."""
    with contextlib.suppress(OSError):
        yield
    leave_streams()


def _view(store: Store, run: RunRow, tasks: Sequence[Task], shown: Shown) -> View:
    from rankwise.report.terminal_events import JsonView, QuietView

    match shown:
        case Shown.EVENTS:
            return JsonView(sys.stdout)
        case Shown.NOTHING:
            return QuietView(sys.stderr)
    are_tests = run.kind in (_SUITE, _MATRIX)
    if len(tasks) > _MOST_TASKS_WITH_OUTPUT or are_tests:
        from rankwise.report.forecast import durations_before
        from rankwise.report.terminal import make_console
        from rankwise.report.terminal_tasks import TasksView

        counts = store.counts(run.id)
        over = sum(count for state, count in counts.items() if state.is_over)
        console = make_console()
        known = durations_before(store, run) if console.is_terminal else {}
        return TasksView(console, total=len(tasks), over=over, are_tests=are_tests, known=known)
    from rankwise.report.terminal_output import OutputView

    return OutputView(sys.stdout, tasks)


def _show_end(store: Store, run: RunRow, shown: Shown) -> None:
    from rankwise.report.explanation import explain_run
    from rankwise.report.terminal import make_console
    from rankwise.report.terminal_run import show_end

    now = store.run(run.id)
    if shown is Shown.EVENTS or (shown is Shown.NOTHING and now.state.is_green):
        return
    console = make_console(to_stderr=shown is Shown.NOTHING)
    if now.kind == _SUITE:
        _show_suite_end(store, now, console)
        return
    explained = explain_run(store, run.id, lines=10)
    _show_matrix(store, now, console)
    show_end(console, now, store.counts(run.id), explained, store.run_folder(run.id))
    _show_measures(store, now, console)


def _show_matrix(store: Store, run: RunRow, console: Console) -> None:
    """Show the table of a matrix, if it is one."""
    from rankwise.report.matrix import matrix_of

    if matrix := matrix_of(store, run):
        from rankwise.report.terminal_matrix import show_matrix

        show_matrix(console, matrix)


def _show_measures(store: Store, run: RunRow, console: Console) -> None:
    """Show what the run has measured, if anything."""
    from rankwise.report.measures import measures_of, run_before
    from rankwise.report.terminal_measures import show_measures

    measures = measures_of(store, run.id, run.name, before=run_before(store, run), tasks={})
    if measures:
        show_measures(console, measures, run.id)


def _show_suite_end(store: Store, run: RunRow, console: Console) -> None:
    from rankwise.report.cases import cases_of, repeated_of
    from rankwise.report.explanation import explain_run
    from rankwise.report.terminal_suite import show_suite_end

    explained = explain_run(store, run.id, most=_MOST_TESTS_EXPLAINED, lines=10)
    show_suite_end(
        console,
        run,
        cases=cases_of(store, run.id),
        repeated=repeated_of(store, run.id),
        explained=explained,
        folder=store.run_folder(run.id),
    )
