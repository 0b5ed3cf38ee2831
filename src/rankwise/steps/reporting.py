"""Steps that tell of a run: a report in a file, a message to people."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from rankwise.errors import ComputeFailure
from rankwise.files import write_whole
from rankwise.notify.delivery import notify
from rankwise.plugins import REPORT_FORMATS
from rankwise.reports.model import ReportData, write_report
from rankwise.reports.rendering import render_markdown
from rankwise.steps import expanded, parser_about_run
from rankwise.store import State, Store, TaskRow

# The other formats of ours are for a CI, and were Markdown here before they were there.
_SUFFIXES = ("html", "pdf", "json")


def standing(store: Store, run: str) -> str:
    """Say in one line how a run stands, apart from the stage that asks."""
    rows = _others(store, run)
    bad = [row for row in rows if row.state.is_over and not row.state.is_green]
    if bad:
        first = min(bad, key=lambda row: row.ended or 0.0)
        return f"{run}: {first.key} {first.state}{f' ({first.reason})' if first.reason else ''}"
    return f"{run}: {sum(row.state.is_green for row in rows)} of {len(rows)} stages passed so far"


def page(store: Store, run: str) -> str:
    """Write a page about a run, in Markdown."""
    row = store.run(run)
    return render_markdown(
        "reports/pipeline",
        run=row,
        standing=standing(store, run),
        started=time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row.started or 0.0)),
        now=time.time(),
        rows=_others(store, run),
        children=[(child, store.counts(child.id)) for child in store.children(run)],
        artifacts=_artifacts(store.run_folder(run)),
    )


def _others(store: Store, run: str) -> list[TaskRow]:
    """Return all tasks but the one that is asking, which cannot know how it ends."""
    folder = os.environ.get("RANKWISE_FOLDER", "")
    own = Path(folder).parent.name if folder else ""
    return [
        row
        for row in store.task_rows(run)
        if not (row.key == own and row.state in (State.RUNNING, State.SUBMITTING))
    ]


def _artifacts(folder: Path) -> list[str]:
    kept = folder / "artifacts"
    return sorted(
        path.relative_to(folder).as_posix()
        for path in kept.rglob("*")
        if path.is_file() and not path.name.startswith(".")
    )


def notify_main() -> None:
    """Do what the command line says."""
    parser = parser_about_run("notify", "Send a message about a run.")
    parser.add_argument("--to", action="append", default=[], help="a name in rankwise.toml")
    parser.add_argument("--command", default="", help="a line that has the message as its input")
    parser.add_argument("--file", default="", help="a file to which the message is added")
    given = parser.parse_args()
    with Store.open(Path(given.store), read_only=True) as store:
        message = standing(store, given.run)
        print(message, flush=True)
        if given.to:
            _deliver(store, given.run, given.to)
    said = f"{message}\n".encode(errors="backslashreplace")
    if given.file:
        with Path(expanded(given.file)).open("ab") as file:
            file.write(time.strftime("%Y-%m-%d %H:%M:%S ").encode() + said)
    if given.command:
        done = subprocess.run(["/bin/sh", "-c", given.command], input=said, check=False)
        if done.returncode:
            raise ComputeFailure(f"the command of `notify` failed: exit code {done.returncode}")


def _deliver(store: Store, run: str, names: list[str]) -> None:
    data = ReportData(store=store, run=store.run(run), now=time.time())
    if not notify(data, names, say=print):
        raise ComputeFailure("not all messages were sent: rankwise notify --retry tries again")


def report_main() -> None:
    """Do what the command line says."""
    parser = parser_about_run("report", "Write the report of a run.")
    formats = ".html, .pdf, .json and formats of other packages get that, others Markdown"
    parser.add_argument("to", help=f"the file; {formats}")
    given = parser.parse_args()
    place = Path(expanded(given.to))
    with Store.open(Path(given.store), read_only=True) as store:
        # Into the log of the stage as well, where it is seen without a browser.
        print(page(store, given.run))
        content = _content(store, given.run, place)
    place.parent.mkdir(parents=True, exist_ok=True)
    write_whole(place, content)


def _content(store: Store, run: str, place: Path) -> bytes:
    """Write the format that a file is named after, else the page of the pipeline."""
    name = place.suffix.removeprefix(".")
    if name not in _SUFFIXES and (name in REPORT_FORMATS.ours or REPORT_FORMATS.problem(name)):
        return page(store, run).encode()
    return write_report(ReportData(store=store, run=store.run(run), now=time.time()), name)
