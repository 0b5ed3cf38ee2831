"""Drive a run here: what is shown meanwhile and at its end, reports and notices afterwards."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import time
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from pathlib import Path
from typing import TYPE_CHECKING

from rankwise.cli.main import leave_streams
from rankwise.plan import NOTIFIED, REPORTED

if TYPE_CHECKING:
    from rankwise.plan import Plan, Task
    from rankwise.reports.terminal.console import Sections
    from rankwise.reports.terminal.live import View
    from rankwise.store import RunRow, Store

# The file that says that reports and notices of a run are done.
_DONE = "afterwards"


def with_recipients(plan: Plan, names: Sequence[str]) -> Plan:
    """Have the run of a plan remember who gets its result; InputError: one is unknown."""
    from rankwise.documents.site import find_site

    site = find_site(Path(plan.source).parent)
    for name in names:
        site.notify(name)
    return dataclasses.replace(plan, tags={**plan.tags, NOTIFIED: ",".join(names)})


def on_run_finished(store: Store, run: RunRow) -> None:
    """Write the report and send the result of a run that is over, once; errors are only shown.

    A tag of the run says which of them. A client that was killed leaves this to `resume`.
    """
    follow = ((REPORTED, _write_report), (NOTIFIED, _send_waiting), (NOTIFIED, _send))
    wanted = [act for tag, act in follow if tag in run.tags]
    # A file, and not a row of the store: `resume` opens the store for reading only.
    done = store.run_folder(run.id) / _DONE
    if not run.state.is_over or not wanted or done.exists():
        return
    from rankwise.cli.results import say

    for act in wanted:
        try:
            act(store, run)
        # The run has ended and has its exit code: nothing that comes afterwards may change it.
        except Exception as error:
            say(f"{run.id} is over, but a step after it failed: {error}")
    with contextlib.suppress(OSError):
        done.touch()


def _write_report(store: Store, run: RunRow) -> None:
    from rankwise.cli.results import say
    from rankwise.errors import InputError
    from rankwise.files import write_whole
    from rankwise.reports.model import ReportData, write_report

    data = ReportData(store=store, run=run, now=time.time())
    page = write_whole(data.folder / "report.html", write_report(data, "html"))
    say(f"the report is in {page}")
    # The library that makes it is an extra.
    try:
        write_whole(data.folder / "report.pdf", write_report(data, "pdf"))
    except InputError as error:
        say(f"there is no report.pdf: {error}")


def _send(store: Store, run: RunRow) -> None:
    from rankwise.cli.results import send_result

    send_result(store, run, run.tags[NOTIFIED].split(","))


def _send_waiting(store: Store, run: RunRow) -> None:
    """Try again what earlier runs could not send."""
    del run
    from rankwise.cli.results import say
    from rankwise.notify.delivery import Outbox, retry

    outbox = Outbox(store.folder)
    if outbox.waiting():
        retry(outbox, say=say)


# Of more tasks than this, only their states are shown, not what they write.
_MOST_TASKS_WITH_OUTPUT = 10


class Shown(Enum):
    """How much of a run is shown."""

    ALL = auto()
    NOTHING = auto()
    EVENTS = auto()


def chosen(*, quiet: bool, as_json: bool) -> Shown:
    """Return what two options mean together."""
    if as_json:
        return Shown.EVENTS
    return Shown.NOTHING if quiet else Shown.ALL


def drive_shown(store: Store, run: RunRow, tasks: Sequence[Task], shown: Shown) -> int:
    """Drive a run to its end, show it, and return its exit code."""
    from rankwise.engine.runs import drive
    from rankwise.reports.terminal.console import make_console
    from rankwise.reports.terminal.live import LiveDisplay
    from rankwise.reports.terminal.run_end import show_last, show_left, show_start

    sections = _sections(shown)
    with sections.inert() if shown is Shown.ALL else contextlib.nullcontext():
        if shown is Shown.ALL:
            with contextlib.suppress(OSError):
                show_start(make_console(), run, tasks, is_again=run.started is not None)
        attempts = store.attempts(run.id) if run.started is not None else []
        # What an earlier client has started writes on; its logs are followed, too.
        running = [one.folder for one in attempts if not one.state.is_over]
        try:
            with LiveDisplay(_view(store, run, tasks, shown), running=running) as display:
                end = drive(store, run.id, observer=display.observe)
        except KeyboardInterrupt:
            # The second Ctrl-C: the runners go on, and the user must know how to find them.
            show_left(make_console(to_stderr=True), run.id)
            raise
    now = store.run(run.id)
    # When the reader of our output is gone, the run still matters, and its exit code.
    with contextlib.suppress(OSError):
        if shown is Shown.ALL or (shown is Shown.NOTHING and not now.state.is_green):
            show_last(store, now, make_console(to_stderr=shown is Shown.NOTHING), sections)
    with contextlib.suppress(OSError):
        on_run_finished(store, now)
    # Otherwise the last flush, in `guarded`, would fail and hide the exit code of the run.
    leave_streams()
    return end.exit_code


def _sections(shown: Shown) -> Sections:
    """Return sections as the CI folds them that reads our output, if one does."""
    from rankwise.reports.terminal.console import Sections, sections_for

    if shown is Shown.EVENTS:
        return Sections()
    return sections_for(sys.stderr if shown is Shown.NOTHING else sys.stdout, os.environ)


def _view(store: Store, run: RunRow, tasks: Sequence[Task], shown: Shown) -> View:
    from rankwise.reports.terminal.live import JsonView, OutputView, QuietView, TasksView

    match shown:
        case Shown.EVENTS:
            return JsonView(sys.stdout)
        case Shown.NOTHING:
            return QuietView(sys.stderr)
    are_tests = run.kind in ("Suite", "Matrix")
    if len(tasks) > _MOST_TASKS_WITH_OUTPUT or are_tests:
        from rankwise.reports.status import durations_before
        from rankwise.reports.terminal.console import make_console

        counts = store.counts(run.id)
        over = sum(count for state, count in counts.items() if state.is_over)
        console = make_console()
        known = durations_before(store, run) if console.is_terminal else {}
        return TasksView(console, total=len(tasks), over=over, are_tests=are_tests, known=known)
    return OutputView(sys.stdout, tasks)


def write_ci_outputs(
    store: Store, run: str, files: Mapping[str, str | None], *, with_annotations: bool
) -> None:
    """Write the reports that were asked for; for GitHub Actions, annotations and a summary."""
    wanted = {name: place for name, place in files.items() if place is not None}
    is_github = os.environ.get("GITHUB_ACTIONS") == "true"
    if not wanted and not is_github:
        return
    from rankwise.cli.results import write_report_to
    from rankwise.reports.model import ReportData, write_report

    data = ReportData(store=store, run=store.run(run), now=time.time())
    # First: a report on standard output is the last there, and whole.
    if is_github and with_annotations:
        from rankwise.reports.data_formats import error_lines
        from rankwise.reports.failures import with_run

        workspace = os.environ.get("GITHUB_WORKSPACE", "")
        for line in error_lines(with_run(data.run, data.results), workspace=workspace):
            print(line)
    for name, place in wanted.items():
        write_report_to(place, write_report(data, name))
    if is_github and (page := os.environ.get("GITHUB_STEP_SUMMARY")):
        _append(Path(page), write_report(data, "markdown"))


def _append(page: Path, text: bytes) -> None:
    """Add to GitHub's page; that it cannot be written does not change how the run ended."""
    try:
        with page.open("ab") as file:
            file.write(text)
    except OSError as error:
        print(f"rankwise: {page}: {error.strerror}", file=sys.stderr)
