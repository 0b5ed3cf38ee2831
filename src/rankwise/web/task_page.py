"""One task: its attempts, the processes of the last one, and what it was asked to do."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from rankwise.plan import Task, show
from rankwise.records import read_processes
from rankwise.report.facts import cut, repeat_command
from rankwise.report.markup import Markup, joined, tag
from rankwise.report.outcomes import TONES, moment
from rankwise.report.words import duration, ending, label, size
from rankwise.store import AttemptRow, ProcessRow, RunRow, Store
from rankwise.web.ask import Ask, run_address
from rankwise.web.page import Column, Page, facts, live, table
from rankwise.web.run_frame import framed
from rankwise.web.states import outcome, took

_ATTEMPTS = (
    Column(name="attempt"),
    Column(name="outcome"),
    Column(name="begun"),
    Column(name="took", is_number=True),
    Column(name="why"),
    Column(name="log"),
)
_PROCESSES = (
    Column(name="process"),
    Column(name="node", is_number=True),
    Column(name="end"),
    Column(name="took", is_number=True),
    Column(name="memory", is_number=True),
    Column(name="CPU", is_number=True),
    Column(name="log"),
)
_MOST_ROWS = 500


def task_page(store: Store, ask: Ask) -> Page:
    """Show one task."""
    run = store.run(ask.run)
    key = ask.name("task")
    row, task = store.task_row(run.id, key), store.task(run.id, key)
    attempts = store.attempts(run.id, key)
    parts = [
        tag("h2", cut(key, 200), " ", tag("b", str(row.state), class_=f"o {TONES[row.state]}"))
    ]
    if row.reason:
        parts.append(tag("p", cut(row.reason, 2000)))
    if row.origin:
        link = tag("a", row.origin, href=run_address(row.origin, "task", task=key))
        parts.append(tag("p", "Its outcome is that of ", link))
    if attempts:
        rows = [_attempt(run, one, ask) for one in attempts[-_MOST_ROWS:]]
        parts.append(table("Attempts", _ATTEMPTS, rows))
        parts.append(_processes(store, run, attempts[-1], ask))
    else:
        parts.append(tag("p", "It was not tried yet.", class_="soft"))
    is_alone = sum(store.counts(run.id).values()) == 1
    about = facts(_about(task, repeat_command(run, key, is_alone=is_alone)))
    return framed(
        store,
        ask,
        run,
        cut(key, 80),
        live("task", *parts),
        tag("h2", "What it was asked to do"),
        about,
    )


def _attempt(run: RunRow, one: AttemptRow, ask: Ask) -> Markup:
    log = run_address(run.id, "logs", task=one.task, attempt=one.number)
    return tag(
        "tr",
        tag("th", str(one.number), scope="row"),
        outcome(one.state),
        tag("td", moment(one.started or one.begun), class_="p"),
        took(one.started, one.ended, now=ask.now, is_over=one.state.is_over),
        tag("td", cut(one.reason), class_="w" if one.reason else None),
        tag("td", tag("a", f"log of attempt {one.number}", href=log)),
    )


def _processes(store: Store, run: RunRow, attempt: AttemptRow, ask: Ask) -> Markup:
    found: Sequence[ProcessRow] = store.processes(run.id, attempt.task, attempt.number)
    # Of what still runs, only its runner's own files tell.
    found = found or read_processes(attempt.folder)
    if not found:
        return Markup()
    rows = [_process(run, attempt, one, ask) for one in found[:_MOST_ROWS]]
    title = f"Processes of attempt {attempt.number}"
    more = [tag("p", f"{len(found) - _MOST_ROWS:,} more are not shown.", class_="soft")]
    return joined([table(title, _PROCESSES, rows), *(more if len(found) > _MOST_ROWS else [])])


def _process(run: RunRow, attempt: AttemptRow, one: ProcessRow, ask: Ask) -> Markup:
    log = run_address(run.id, "logs", task=attempt.task, attempt=attempt.number, process=one.name)
    name = label(one.name)
    is_over = one.ended is not None or attempt.state.is_over
    blamed = " (to blame)" if one.name == attempt.culprit else ""
    end = f"{ending(one.exit_code, one.signal)}{blamed}" if is_over else "runs"
    seconds = "" if one.cpu_seconds is None else duration(one.cpu_seconds)
    return tag(
        "tr",
        tag("th", name, scope="row", class_="p"),
        tag("td", str(one.node), class_="n"),
        tag("td", "ended by rankwise" if one.by_us else end, class_="o bad" if blamed else None),
        took(one.started, one.ended, now=ask.now, is_over=is_over),
        tag("td", "" if one.peak_memory is None else size(one.peak_memory), class_="n"),
        tag("td", seconds, class_="n"),
        tag("td", tag("a", f"log of {name}", href=log)),
    )


def _about(task: Task, repeat: str) -> list[tuple[str, str]]:
    commands: dict[str, None] = {}
    for process in task.processes:
        command = process.command
        text = command if isinstance(command, str) else shlex.join(command)
        commands[show(text)] = None
    return [
        *(("command", command) for command in list(commands)[:5]),
        ("in", task.code or task.folder),
        ("on", f"{task.compute}, {task.nodes} nodes" if task.nodes > 1 else task.compute),
        ("runtime", task.runtime.name),
        ("needs", ", ".join(task.needs[:20])),
        ("limit", duration(task.timeout) if task.timeout else ""),
        ("asked for in", task.place),
        *task.tags.items(),
        *(("note", note) for note in task.notes),
        ("to repeat it", repeat),
    ]
