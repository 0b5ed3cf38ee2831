"""Steps that tell of a run: a report in a file, a message to people."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from rankwise.errors import ComputeFailure
from rankwise.files import write_whole
from rankwise.notify.delivery import notify
from rankwise.plan import EARLIER
from rankwise.plugins import REPORT_FORMATS
from rankwise.reports.data_formats import csv_report
from rankwise.reports.model import ReportData, write_report
from rankwise.reports.rendering import render_markdown
from rankwise.steps import expanded
from rankwise.store import State, Store, TaskRow
from rankwise.wording import counted, grouped, listed, moment

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
    now = time.time()
    return render_markdown(
        "reports/pipeline",
        run=row,
        measures=ReportData(store=store, run=row, now=now).measures,
        standing=standing(store, run),
        started=moment(row.started or 0.0, with_zone=False),
        now=now,
        rows=_others(store, run),
        children=[(child, store.counts(child.id)) for child in store.children(run)],
        artifacts=_artifacts(store.run_folder(run)),
    )


def _others(store: Store, run: str) -> list[TaskRow]:
    """Return all tasks but the one that is asking, which cannot know how it ends."""
    own = Path(os.environ.get("RANKWISE_FOLDER", "")).parent.name
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


def notify_step(
    *, store: str, run_id: str, to: Sequence[str] = (), run: str = "", file: str = ""
) -> None:
    """Send how a run stands: to names in rankwise.toml, to a command `run`, to a file."""
    with Store.open(Path(store), read_only=True) as opened:
        message = standing(opened, run_id)
        print(message, flush=True)
        if to:
            _deliver(opened, run_id, to)
    said = f"{message}\n".encode(errors="backslashreplace")
    if file:
        with Path(expanded(file)).open("ab") as news:
            news.write(time.strftime("%Y-%m-%d %H:%M:%S ").encode() + said)
    if run:
        done = subprocess.run(["/bin/sh", "-c", run], input=said, check=False)
        if done.returncode:
            raise ComputeFailure(f"the command of `notify` failed: exit code {done.returncode}")


def _deliver(store: Store, run: str, names: Sequence[str]) -> None:
    data = ReportData(store=store, run=store.run(run), now=time.time())
    if not notify(data, names, say=print):
        raise ComputeFailure("not all messages were sent: rankwise notify --retry tries again")


def samples_step(*, store: str, run_id: str, line: Sequence[str]) -> None:
    """Write what the trials that this task needs have measured, and become its analysis."""
    attempt, file = Path(os.environ["RANKWISE_FOLDER"]), Path(os.environ["RANKWISE_SAMPLES"])
    with Store.open(Path(store), read_only=True) as opened:
        task = opened.task(run_id, attempt.parent.name)
        trials = dict.fromkeys(task.needs, run_id)
        if earlier := task.files.get(EARLIER, "").split():
            passed = opened.passed_in_runs(opened.run(run_id).name)
            trials |= {key: passed[key] for key in earlier if key in passed}
        found = [
            _measured(opened, *one) for one in grouped((v, k) for k, v in trials.items()).items()
        ]
        cases = [case for data in found for case in data.cases]
        if not any(case.state is State.PASSED for case in cases):
            raise ComputeFailure("no trial has passed: there is nothing to analyse")
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, csv_report(*found))
    red = sum(not case.state.is_green for case in cases)
    runs = listed([data.run.id for data in found])
    # What the analysis prints may become a part of reports: this does not.
    said = f"{counted(len(cases), 'trial')} of {runs}, {red} not green: {file.resolve()}"
    print(f"rankwise: {said}", file=sys.stderr, flush=True)
    os.execvp(line[0], [*line])


def _measured(store: Store, run: str, keys: Collection[str]) -> ReportData:
    """Return the data of a run with these trials as its only cases, compared with no other run."""
    data, wanted = ReportData(store=store, run=store.run(run), now=time.time()), {*keys}
    return data.with_parts(before="", cases=[one for one in data.cases if one.key in wanted])


def report_step(*, store: str, run_id: str, to: str) -> None:
    """Write the report of a run: the ending of the file says which, Markdown if none is known."""
    place = Path(expanded(to))
    with Store.open(Path(store), read_only=True) as opened:
        # Into the log of the stage as well, where it is seen without a browser.
        print(page(opened, run_id))
        content = _content(opened, run_id, place)
    place.parent.mkdir(parents=True, exist_ok=True)
    write_whole(place, content)


def _content(store: Store, run: str, place: Path) -> bytes:
    """Write the format that a file is named after, else the page of the pipeline."""
    name = place.suffix.removeprefix(".")
    if name not in _SUFFIXES and (name in REPORT_FORMATS.ours or REPORT_FORMATS.problem(name)):
        return page(store, run).encode()
    return write_report(ReportData(store=store, run=store.run(run), now=time.time()), name)
