"""Pages of a run: its tasks, the single tests in them, and the document."""

from __future__ import annotations

from urllib.parse import quote_plus

from rankwise.report.facts import cut
from rankwise.report.markup import Markup, escaped, joined, tag
from rankwise.report.outcomes import TONES, moment
from rankwise.report.words import counted, duration
from rankwise.store import ResultRow, RunRow, State, Store, TaskRow
from rankwise.store.pages import RESULT_ORDERS, TASK_ORDERS, TaskFilter
from rankwise.web.ask import Ask, run_address
from rankwise.web.counts import counts_of
from rankwise.web.page import (
    PAGE_ROWS,
    Column,
    Page,
    facts,
    live,
    offset,
    pager,
    search,
    table,
)
from rankwise.web.run_frame import framed
from rankwise.web.states import CHOICES, in_words, outcome, states_of, took

_TASK_COLUMNS = (
    Column(name="task", up="name"),
    Column(name="outcome", up="outcome"),
    Column(name="took", up="shortest", down="longest", is_number=True),
    Column(name="tries", is_number=True),
    Column(name="why"),
    Column(name="log"),
)
_TEST_COLUMNS = (
    Column(name="test", up="name"),
    Column(name="outcome", up="outcome"),
    Column(name="took", up="shortest", down="longest", is_number=True),
    Column(name="task"),
)
_MOST_DOCUMENT = 200_000
_MOST_OF_A_MESSAGE = 5000
_LONGEST = 200


def tasks_page(store: Store, ask: Ask) -> Page:
    """Show the tasks of a run that are wanted."""
    run = store.run(ask.run)
    order = ask.choice("order", TASK_ORDERS, "plan")
    states, words = states_of(ask.text("state")), ask.text("words")
    counts = counts_of(store, run)
    found = store.task_page(
        run.id,
        TaskFilter(states=states, words=words),
        order=order,
        now=ask.now,
        limit=PAGE_ROWS,
        offset=offset(ask),
        total=None if words else sum(counts[state] for state in states or State),
    )
    form = search(ask, "Name or reason", selects={"state": ("Outcome", CHOICES)})
    task, log = (escaped(run_address(run.id, part)) for part in ("task", "logs"))
    rows = [_task(row, task, log, ask.now) for row in found.rows]
    shown = table("Tasks of this run", _TASK_COLUMNS, rows, ask=ask, order=order)
    return framed(
        store,
        ask,
        run,
        "",
        tag("h2", "Tasks"),
        form,
        live("tasks", shown, pager(ask, found.total, "tasks")),
        live("children", _children(store, run)),
    )


def _task(row: TaskRow, task: str, log: str, now: float) -> Markup:
    """Make the row of a task; the addresses of its pages are those of no task yet.

    It is put together by hand: many browsers ask for many rows, again and again.
    """
    asked = quote_plus(row.key, errors="replace")
    state, key = row.state, escaped(cut(row.key, _LONGEST))
    link = f'<a href="{log}?task={asked}">log</a>' if row.attempts else ""
    reason = f'<td class="w">{escaped(cut(row.reason))}' if row.reason else "<td>"
    return Markup(
        f'<tr><th scope="row" class="k"><a href="{task}?task={asked}">{key}</a></th>'
        f'<td class="o {TONES[state]}">{state}</td>'
        f"{took(row.started, row.ended, now=now, is_over=state.is_over)}"
        f'<td class="n">{row.attempts or ""}</td>{reason}</td><td>{link}</td></tr>'
    )


def _children(store: Store, run: RunRow) -> Markup:
    """Lead to the runs that stages of this one have submitted."""
    children = store.children(run.id)
    if not children:
        return Markup()
    items = (
        tag(
            "li",
            tag("a", child.id, href=run_address(child.id)),
            " ",
            tag("b", str(child.state), class_=f"o {TONES[child.state]}"),
        )
        for child in children
    )
    return joined([tag("h2", "Runs that it has submitted"), tag("ul", *items)])


def tests_page(store: Store, ask: Ask) -> Page:
    """Show the single tests of a run that are wanted."""
    run = store.run(ask.run)
    order = ask.choice("order", RESULT_ORDERS, "plan")
    found = store.result_page(
        run.id,
        TaskFilter(states=states_of(ask.text("state")), words=ask.text("words")),
        order=order,
        limit=PAGE_ROWS,
        offset=offset(ask),
    )
    counts = store.result_counts(run.id)
    form = search(ask, "Name", selects={"state": ("Outcome", CHOICES)})
    rows = [_test(run, task, one) for task, one in found.rows]
    shown = table("Single tests of this run", _TEST_COLUMNS, rows, ask=ask, order=order)
    words = f"{counted(sum(counts.values()), 'test')}: {in_words(counts)}"
    return framed(
        store,
        ask,
        run,
        "Tests",
        tag("h2", "Single tests"),
        form,
        live("tests", tag("p", words), shown, pager(ask, found.total, "tests")),
    )


def _test(run: RunRow, task: str, one: ResultRow) -> Markup:
    name: Markup | str = cut(one.name, _LONGEST)
    if one.message and one.state is not State.PASSED:
        report = tag("pre", cut(one.message, _MOST_OF_A_MESSAGE), tabindex="0")
        name = tag("details", tag("summary", name), tag("div", report), class_="inline")
    return tag(
        "tr",
        tag("th", name, scope="row", class_="k"),
        outcome(one.state),
        tag("td", duration(one.seconds), class_="n"),
        tag("td", tag("a", cut(task, 80), href=run_address(run.id, "task", task=task))),
    )


def document_page(store: Store, ask: Ask) -> Page:
    """Show what was asked for, and what is known about the run."""
    run = store.run(ask.run)
    text = cut(store.spec_text(run.id), _MOST_DOCUMENT)
    shown = tag("pre", text, tabindex="0") if text.strip() else tag("p", "It is empty.")
    return framed(
        store,
        ask,
        run,
        "Document",
        tag("h2", "What was asked for"),
        shown,
        tag("h2", "What is known about this run"),
        facts(
            [
                ("document", run.source),
                ("created", moment(run.created)),
                ("ended", moment(run.ended) if run.ended is not None else ""),
                *run.tags.items(),
                *(("note", one) for one in run.notices),
            ]
        ),
        is_live=False,
    )
