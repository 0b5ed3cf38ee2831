"""How a run stands, in words that are written down or sent."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from rankwise.report.words import duration
from rankwise.store import RunRow, State, Store, TaskRow


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
    return "\n".join(_lines(store, store.run(run))) + "\n"


def _lines(store: Store, run: RunRow) -> Iterator[str]:
    yield from (f"# {run.id}", "", standing(store, run.id), "")
    if run.started is not None:
        begun = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run.started))
        yield from (f"Started {begun}, {duration(time.time() - run.started)} ago.", "")
    yield from ("| stage | outcome | time | remark |", "| --- | --- | --- | --- |")
    for row in _others(store, run.id):
        took = duration(row.ended - row.started) if row.ended and row.started else ""
        remark = row.reason.replace("|", "\\|").replace("\n", " ")
        yield f"| {row.key} | {row.state} | {took} | {remark} |"
    yield ""
    for child in store.children(run.id):
        counts = {state: count for state, count in store.counts(child.id).items() if count}
        told = ", ".join(f"{count} {state}" for state, count in counts.items())
        yield f"Goes on by itself: {child.id}, {child.state} ({told}).\n"
    for name in _artifacts(store.run_folder(run.id)):
        yield f"- {name}"


def _others(store: Store, run: str) -> list[TaskRow]:
    """Give all tasks but the one that is asking, which cannot know how it ends."""
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
