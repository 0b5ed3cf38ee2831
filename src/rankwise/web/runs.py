"""Pages of runs: tasks, tests, documents, failures, the matrix, the timeline."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from itertools import islice

from rankwise.plan import Task, show
from rankwise.reports.failures import explain_run, processes_of
from rankwise.reports.html import timeline_section
from rankwise.reports.matrix import matrix_of
from rankwise.reports.model import repeat_command
from rankwise.reports.rendering import render
from rankwise.reports.timeline import timeline_of_run
from rankwise.safe_text import cut
from rankwise.store import State, Store
from rankwise.store.queries import RESULT_ORDERS, TASK_ORDERS, RunFilter, TaskFilter
from rankwise.web import pages
from rankwise.web.pages import PageContent, PageRequest
from rankwise.wording import counted, duration, moment


def run_list(store: Store, ask: PageRequest) -> PageContent:
    """Show the runs that are wanted."""
    wanted = RunFilter(
        states=pages.states_of(ask.text("state")),
        kind=ask.text("kind"),
        words=ask.text("words"),
        tag=ask.text("tag"),
    )
    found = store.run_page(wanted, limit=pages.PAGE_ROWS, offset=pages.offset(ask))
    busy = sum(not run.state.is_over for run in found.rows)
    content = render(
        "web/runs",
        ask=ask,
        choices=pages.CHOICES,
        kinds={"": "any kind", **{kind: kind for kind in sorted(store.run_kinds())}},
        rows=[(run, pages.counts_of(store, run)) for run in found.rows],
        total=found.total,
    )
    return PageContent(
        title="Runs",
        content=content,
        changes=pages.address("/changes", seen=ask.seen),
        said=f"{counted(busy, 'run')} not over yet" if busy else "",
    )


def tasks_page(store: Store, ask: PageRequest) -> PageContent:
    """Show the tasks of a run that are wanted."""
    run = store.run(ask.run)
    order = ask.choice("order", TASK_ORDERS, "plan")
    states, words = pages.states_of(ask.text("state")), ask.text("words")
    counts = pages.counts_of(store, run)
    found = store.task_page(
        run.id,
        TaskFilter(states=states, words=words),
        order=order,
        now=ask.now,
        limit=pages.PAGE_ROWS,
        offset=pages.offset(ask),
        # Without words it is known already, and the store need not count again.
        total=None if words else sum(counts[state] for state in states or State),
    )
    return pages.framed(
        store,
        ask,
        "",
        "tasks",
        rows=found.rows,
        total=found.total,
        order=order,
        choices=pages.CHOICES,
        children=store.children(run.id),
    )


def tests_page(store: Store, ask: PageRequest) -> PageContent:
    """Show the single tests of a run that are wanted."""
    order = ask.choice("order", RESULT_ORDERS, "plan")
    found = store.result_page(
        ask.run,
        TaskFilter(states=pages.states_of(ask.text("state")), words=ask.text("words")),
        order=order,
        limit=pages.PAGE_ROWS,
        offset=pages.offset(ask),
    )
    tests = store.result_counts(ask.run)
    return pages.framed(
        store, ask, "Tests", "tests", found=found, order=order, choices=pages.CHOICES, tests=tests
    )


def document_page(store: Store, ask: PageRequest) -> PageContent:
    """Show what was asked for, and what is known about the run."""
    run = store.run(ask.run)
    about = [
        ("document", run.source),
        ("created", moment(run.created)),
        ("ended", moment(run.ended) if run.ended is not None else ""),
        *run.tags.items(),
        *(("note", one) for one in run.notices),
    ]
    text = store.spec_text(run.id)
    return pages.framed(store, ask, "Document", "document", is_live=False, text=text, about=about)


def task_page(store: Store, ask: PageRequest) -> PageContent:
    """Show one task."""
    run = store.run(ask.run)
    key = ask.name("task")
    row, task = store.task_row(run.id, key), store.task(run.id, key)
    attempts = store.attempts(run.id, key)
    is_alone = sum(store.counts(run.id).values()) == 1
    return pages.framed(
        store,
        ask,
        cut(key, 80),
        "task",
        about=list(_about(task, repeat_command(run, key, is_alone=is_alone))),
        row=row,
        attempts=attempts,
        processes=processes_of(store, attempts[-1]) if attempts else (),
    )


def _about(task: Task, repeat: str) -> Iterator[tuple[str, str]]:
    given = (one.command for one in task.processes)
    texts = (one if isinstance(one, str) else shlex.join(one) for one in given)
    commands = dict.fromkeys(map(show, texts))
    # Ranks mostly share one command: a few are enough to know a task by.
    yield from (("command", command) for command in islice(commands, 5))
    yield from (
        ("in", task.code or task.folder),
        ("on", f"{task.compute}, {task.nodes} nodes" if task.nodes > 1 else task.compute),
        ("runtime", task.runtime.name),
        ("needs", ", ".join(task.needs[:20])),
        ("limit", duration(task.timeout) if task.timeout else ""),
        ("asked for in", task.place),
        *task.tags.items(),
        *(("note", note) for note in task.notes),
        ("to repeat it", repeat),
    )


_MOST_FAILURES = 10
_LINES = 30
# What a reader has unfolded stays so: it is not replaced behind their back every second.
_INTERVAL_SECONDS = 5.0


def failure_page(store: Store, ask: PageRequest) -> PageContent:
    """Show the failures of a run."""
    found = explain_run(store, ask.run, most=_MOST_FAILURES, lines=_LINES)
    return pages.framed(store, ask, "Failures", "failures", interval=_INTERVAL_SECONDS, found=found)


def matrix_page(store: Store, ask: PageRequest) -> PageContent:
    """Show the matrix of a run; of one that is none, say so."""
    matrix = matrix_of(store, store.run(ask.run))
    return pages.framed(store, ask, "Matrix", "matrix", interval=_INTERVAL_SECONDS, matrix=matrix)


# All tasks are read for it: the more there are, the less often.
_TASKS_A_SECOND = 500
_LEAST_SECONDS = 3.0
_MOST_SHAPES = 600


def timeline_page(store: Store, ask: PageRequest) -> PageContent:
    """Show the timeline of a run."""
    timeline = timeline_of_run(store, ask.run, now=ask.now)
    shown = timeline_section(timeline, most=_MOST_SHAPES) if timeline.bars else None
    interval = max(_LEAST_SECONDS, sum(store.counts(ask.run).values()) / _TASKS_A_SECOND)
    return pages.framed(store, ask, "Timeline", "timeline", interval=interval, shown=shown)
