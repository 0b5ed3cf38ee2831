"""The last screen of a run that somebody has looked on at."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from rankwise.report.folding import Sections
    from rankwise.store import RunRow, Store

_SUITE = "Suite"
_MOST_TESTS_EXPLAINED = 10
# A log with more of them is not easier to read.
_MOST_SECTIONS = 50
_LINES_IN_SECTIONS = 100


def show_last(store: Store, run: RunRow, console: Console, sections: Sections) -> None:
    """Show how a run ended and why, in one screen; on a CI that folds, all that failed above it."""
    if sections.are_folded and sum(store.counts(run.id).values()) > 1:
        _show_failed(store, run, console, sections)
    with sections.inert():
        if run.kind == _SUITE:
            _show_suite_end(store, run, console)
        else:
            _show_other_end(store, run, console)


def _show_failed(store: Store, run: RunRow, console: Console, sections: Sections) -> None:
    """Put all that is known of each task that failed in a section of its own."""
    from rankwise.report.explanation import explain_run
    from rankwise.report.terminal_explain import show_explanation

    console.print()
    for one in explain_run(store, run.id, most=_MOST_SECTIONS, lines=_LINES_IN_SECTIONS).first:
        reason = f": {one.reason.partition(chr(10))[0]}" if one.reason else ""
        with sections.section(f"{one.task} {one.state}{reason}"):
            show_explanation(console, one, is_brief=False)


def _show_other_end(store: Store, run: RunRow, console: Console) -> None:
    from rankwise.report.explanation import explain_run
    from rankwise.report.terminal_room import height_of, room_on
    from rankwise.report.terminal_run import LINES_OF_END, show_end

    explained = explain_run(store, run.id, lines=10)
    # What is shown above it leaves as much for what has failed.
    room = (room_on(console) - LINES_OF_END) // (2 if explained else 1)
    used = 0
    for show in (
        _matrix_view(store, run, console),
        measured := _measures_view(store, run, console),
    ):
        if show is not None:
            used += height_of(console, partial(show, room))
            show(room)
    show_end(
        console,
        run,
        store.counts(run.id),
        explained,
        store.run_folder(run.id),
        used=used,
        has_measured=measured is not None,
    )


def _matrix_view(store: Store, run: RunRow, console: Console) -> Callable[[int], None] | None:
    """Give what shows the table of a matrix in so many lines, if it is one."""
    from rankwise.report.matrix import matrix_of

    matrix = matrix_of(store, run)
    if matrix is None:
        return None
    from rankwise.report.terminal_matrix import show_matrix_in_brief

    return lambda room: show_matrix_in_brief(console, matrix, room=room)


def _measures_view(store: Store, run: RunRow, console: Console) -> Callable[[int], None] | None:
    """Give what shows in so many lines what the run has measured, if anything."""
    from rankwise.report.measures import measures_of, run_before
    from rankwise.report.terminal_measures import show_measures

    measures = measures_of(store, run.id, run.name, before=run_before(store, run), tasks={})
    if not measures:
        return None
    return lambda room: show_measures(console, measures, room=room)


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
