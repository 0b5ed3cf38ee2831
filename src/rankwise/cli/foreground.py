"""Drives a run while somebody looks on."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from enum import Enum, auto
from typing import TYPE_CHECKING

from rankwise.cli.faults import leave_streams

if TYPE_CHECKING:
    from rankwise.plan import Task
    from rankwise.report.folding import Sections
    from rankwise.report.terminal_live import View
    from rankwise.store import RunRow, Store

# Of more tasks than this, only what became of them is shown, not what they write.
_MOST_TASKS_WITH_OUTPUT = 10
_SUITE, _MATRIX = "Suite", "Matrix"


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
    from rankwise.cli.summary import show_last
    from rankwise.engine.runs import drive
    from rankwise.report.terminal import make_console
    from rankwise.report.terminal_live import Onlooker
    from rankwise.report.terminal_run import show_left, show_start

    sections = _sections(shown)
    with sections.inert() if shown is Shown.ALL else contextlib.nullcontext():
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
        now = store.run(run.id)
        if shown is Shown.ALL or (shown is Shown.NOTHING and not now.state.is_green):
            show_last(store, now, make_console(to_stderr=shown is Shown.NOTHING), sections)
    with _unheard():
        see_off(store, run.id)
    return end.exit_code


def _sections(shown: Shown) -> Sections:
    """Give what the CI understands that reads what is shown, if one does."""
    from rankwise.report.folding import OneText, sections_for

    match shown:
        case Shown.EVENTS:
            return OneText()
        case Shown.NOTHING:
            return sections_for(sys.stderr, os.environ)
    return sections_for(sys.stdout, os.environ)


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
