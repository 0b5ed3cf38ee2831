"""Drive a run here: what is shown meanwhile and at its end, reports and notices afterwards."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from enum import Enum, auto
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rankwise.cli.main import leave_streams
from rankwise.plan import NOTIFIED, REPORTED

if TYPE_CHECKING:
    from rich.console import Console

    from rankwise.plan import Plan, Task
    from rankwise.reports.terminal.console import Sections
    from rankwise.reports.terminal.live import View
    from rankwise.store import RunRow, Store

_WHEN_COMPLETE = "when-complete"
_DONE = "afterwards"


def remembering(plan: Plan, notified: Sequence[str]) -> Plan:
    """Have the run of a plan remember whom to tell of its end; InputError: nobody is called so."""
    if not notified:
        return plan
    from pathlib import Path

    from rankwise.documents.site import find_site

    site = find_site(Path(plan.source).parent)
    for name in notified:
        site.notify(name)
    return dataclasses.replace(plan, tags={**plan.tags, NOTIFIED: ",".join(notified)})


def is_to_follow(run: RunRow) -> bool:
    """Return whether anything is to be done when a run is over."""
    return NOTIFIED in run.tags or REPORTED in run.tags


def on_run_finished(store: Store, run: str) -> None:
    """Do what a run that is over was to be followed by, once; all that goes wrong is only said."""
    row = store.run(run)
    names = [name for name in row.tags.get(NOTIFIED, "").split(",") if name]
    is_report_wanted = row.tags.get(REPORTED) == _WHEN_COMPLETE
    folder = store.run_folder(run)
    if not row.state.is_over or not (names or is_report_wanted) or (folder / _DONE).exists():
        return
    from rankwise.cli.results import say, tell

    try:
        if is_report_wanted:
            _write_report(store, run)
        if names:
            _send_waiting(store)
            tell(store, row, names)
    except Exception as error:
        say(f"{run} is over, but not all that was to follow was done: {error}")
    with contextlib.suppress(OSError):
        (folder / _DONE).touch()


def _write_report(store: Store, run: str) -> None:
    from rankwise.cli.results import say
    from rankwise.errors import InputError
    from rankwise.files import write_whole
    from rankwise.reports.model import ReportData, write_report

    data = ReportData(store=store, run=store.run(run), now=time.time())
    page = write_whole(data.folder / "report.html", write_report(data, "html"))
    say(f"the report is in {page}")
    try:
        write_whole(data.folder / "report.pdf", write_report(data, "pdf"))
    except InputError as error:
        say(f"there is no report.pdf: {error}")


def _send_waiting(store: Store) -> None:
    """Try again what earlier runs could not send."""
    from rankwise.cli.results import say
    from rankwise.notify.delivery import Outbox, retry

    outbox = Outbox(store.folder)
    if outbox.waiting():
        retry(outbox, say=say)


# Of more tasks than this, only what became of them is shown, not what they write.
_MOST_TASKS_WITH_OUTPUT = 10
_SUITE, _MATRIX = "Suite", "Matrix"


class Shown(Enum):
    """How much is to be seen."""

    ALL = auto()
    NOTHING = auto()
    EVENTS = auto()


def chosen(*, quiet: bool, as_json: bool) -> Shown:
    """Return what two options mean together."""
    if as_json:
        return Shown.EVENTS
    return Shown.NOTHING if quiet else Shown.ALL


def drive_shown(store: Store, run: RunRow, tasks: Sequence[Task], shown: Shown) -> int:
    """Drive a run to its end, show it, and give its exit code."""
    from rankwise.engine.runs import drive
    from rankwise.reports.terminal.console import make_console
    from rankwise.reports.terminal.live import LiveDisplay
    from rankwise.reports.terminal.run_end import show_left, show_start

    sections = _sections(shown)
    with sections.inert() if shown is Shown.ALL else contextlib.nullcontext():
        if shown is Shown.ALL:
            with _unheard():
                show_start(make_console(), run, tasks, is_again=run.started is not None)
        running = [one.folder for one in store.attempts(run.id) if not one.state.is_over]
        try:
            with LiveDisplay(_view(store, run, tasks, shown), running=running) as display:
                end = drive(store, run.id, observer=display.observe)
        except KeyboardInterrupt:
            show_left(make_console(to_stderr=True), run.id)
            raise
    with _unheard():
        now = store.run(run.id)
        if shown is Shown.ALL or (shown is Shown.NOTHING and not now.state.is_green):
            show_last(store, now, make_console(to_stderr=shown is Shown.NOTHING), sections)
    with _unheard():
        on_run_finished(store, run.id)
    return end.exit_code


def _sections(shown: Shown) -> Sections:
    """Return what the CI understands that reads what is shown, if one does."""
    from rankwise.reports.terminal.console import OneText, sections_for

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
    from rankwise.reports.terminal.live import JsonView, QuietView

    match shown:
        case Shown.EVENTS:
            return JsonView(sys.stdout)
        case Shown.NOTHING:
            return QuietView(sys.stderr)
    are_tests = run.kind in (_SUITE, _MATRIX)
    if len(tasks) > _MOST_TASKS_WITH_OUTPUT or are_tests:
        from rankwise.reports.status import durations_before
        from rankwise.reports.terminal.console import make_console
        from rankwise.reports.terminal.live import TasksView

        counts = store.counts(run.id)
        over = sum(count for state, count in counts.items() if state.is_over)
        console = make_console()
        known = durations_before(store, run) if console.is_terminal else {}
        return TasksView(console, total=len(tasks), over=over, are_tests=are_tests, known=known)
    from rankwise.reports.terminal.live import OutputView

    return OutputView(sys.stdout, tasks)


def write_ci_outputs(
    store: Store, run: str, *, junit: Path | None, markdown: Path | None, is_quiet: bool = False
) -> None:
    """Write the files that were asked for; under GitHub Actions, annotations and a summary."""
    is_github = os.environ.get("GITHUB_ACTIONS") == "true"
    if junit is None and markdown is None and not is_github:
        return
    from rankwise.files import write_whole
    from rankwise.reports.model import ReportData, write_report

    data = ReportData(store=store, run=store.run(run), now=time.time())
    for place, name in ((junit, "junit"), (markdown, "markdown")):
        if place is not None:
            write_whole(place, write_report(data, name))
    if is_github and not is_quiet:
        from rankwise.reports.data_formats import error_lines
        from rankwise.reports.failures import with_run

        workspace = os.environ.get("GITHUB_WORKSPACE", "")
        for line in error_lines(with_run(data.run, data.results), workspace=workspace):
            print(line)
    if is_github and (page := os.environ.get("GITHUB_STEP_SUMMARY")):
        _append(Path(page), write_report(data, "markdown"))


def _append(page: Path, text: bytes) -> None:
    """Add to GitHub's page; a run is not worse because that cannot be written."""
    try:
        with page.open("ab") as file:
            file.write(text)
    except OSError as error:
        print(f"rankwise: {page}: {error.strerror}", file=sys.stderr)


_SUITE_KIND = "Suite"
_MOST_TESTS_EXPLAINED = 10
# A log with more of them is not easier to read.
_MOST_SECTIONS = 50
_LINES_IN_SECTIONS = 100


def show_last(store: Store, run: RunRow, console: Console, sections: Sections) -> None:
    """Show how a run ended and why, in one screen; on a CI that folds, all that failed above it."""
    if sections.are_folded and sum(store.counts(run.id).values()) > 1:
        _show_failed(store, run, console, sections)
    with sections.inert():
        if run.kind == _SUITE_KIND:
            _show_suite_end(store, run, console)
        else:
            _show_other_end(store, run, console)


def _show_failed(store: Store, run: RunRow, console: Console, sections: Sections) -> None:
    """Put all that is known of each task that failed in a section of its own."""
    from rankwise.reports.failures import explain_run
    from rankwise.reports.terminal.run_end import show_explanation

    console.print()
    for one in explain_run(store, run.id, most=_MOST_SECTIONS, lines=_LINES_IN_SECTIONS).first:
        reason = f": {one.reason.partition(chr(10))[0]}" if one.reason else ""
        with sections.section(f"{one.task} {one.state}{reason}"):
            show_explanation(console, one, is_brief=False)


def _show_other_end(store: Store, run: RunRow, console: Console) -> None:
    from rankwise.reports.failures import explain_run
    from rankwise.reports.terminal.console import height_of, room_on
    from rankwise.reports.terminal.run_end import LINES_OF_END, show_end

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
    """Return what shows the table of a matrix in so many lines, if it is one."""
    if run.kind != _MATRIX:
        return None
    from rankwise.reports.matrix import matrix_of

    matrix = matrix_of(store, run)
    if matrix is None:
        return None
    from rankwise.reports.terminal.matrix import show_matrix_in_brief

    return lambda room: show_matrix_in_brief(console, matrix, room=room)


def _measures_view(store: Store, run: RunRow, console: Console) -> Callable[[int], None] | None:
    """Return what shows in so many lines what the run has measured, if anything."""
    if not store.has_samples(run.id):
        return None
    from rankwise.reports.measurements import measures_of, run_before
    from rankwise.reports.terminal.run_end import show_measures

    measures = measures_of(store, run.id, run.name, before=run_before(store, run), tasks={})
    if not measures:
        return None
    return lambda room: show_measures(console, measures, room=room)


def _show_suite_end(store: Store, run: RunRow, console: Console) -> None:
    from rankwise.reports.failures import explain_run, repeated_of, results_of
    from rankwise.reports.terminal.run_end import show_suite_end

    explained = explain_run(store, run.id, most=_MOST_TESTS_EXPLAINED, lines=10)
    show_suite_end(
        console,
        run,
        cases=results_of(store, run.id),
        repeated=repeated_of(store, run.id),
        explained=explained,
        folder=store.run_folder(run.id),
    )
