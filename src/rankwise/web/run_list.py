"""The first page: the runs of the store, the newest first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rankwise.report.facts import cut
from rankwise.report.markup import Markup, joined, tag
from rankwise.report.outcomes import moment
from rankwise.report.words import counted
from rankwise.store import RunRow, State, Store
from rankwise.store.pages import RunFilter
from rankwise.web.ask import Ask, address, run_address
from rankwise.web.counts import counts_of
from rankwise.web.page import PAGE_ROWS, Column, Page, live, offset, pager, search, table
from rankwise.web.states import CHOICES, bar, in_words, outcome, states_of, took

_COLUMNS = (
    Column(name="run"),
    Column(name="outcome"),
    Column(name="progress"),
    Column(name="kind"),
    Column(name="begun"),
    Column(name="took", is_number=True),
    Column(name="tags"),
)
_MOST_TAGS = 4


def run_list(store: Store, ask: Ask) -> Page:
    """Show the runs that are wanted."""
    wanted = RunFilter(
        states=states_of(ask.text("state")),
        kind=ask.text("kind"),
        words=ask.text("words"),
        tag=ask.text("tag"),
    )
    seen = store.last_event()
    found = store.run_page(wanted, limit=PAGE_ROWS, offset=offset(ask))
    kinds = {"": "any kind", **{kind: kind for kind in sorted(store.run_kinds())}}
    form = search(
        ask,
        "Name",
        selects={"state": ("Outcome", CHOICES), "kind": ("Kind", kinds)},
        fields={"tag": "Tag"},
    )
    rows = [_row(store, run, ask) for run in found.rows]
    if found.total or any(ask.query.values()):
        shown = table("Runs, the newest first", _COLUMNS, rows)
    else:
        shown = tag("p", "There are no runs yet. To make one: ", tag("code", "rankwise run FILE"))
    content = [
        tag("h1", "Runs"),
        form,
        live("runs", shown, pager(ask, found.total, "runs")),
    ]
    busy = sum(not run.state.is_over for run in found.rows)
    return Page(
        title="Runs",
        content=joined(content),
        changes=address("/changes", seen=seen),
        said=f"{counted(busy, 'run')} not over yet" if busy else "",
    )


def _row(store: Store, run: RunRow, ask: Ask) -> Markup:
    counts = counts_of(store, run)
    return tag(
        "tr",
        tag("th", tag("a", cut(run.id, 160), href=run_address(run.id)), scope="row", class_="k"),
        outcome(run.state),
        tag("td", bar(counts), tag("span", _done(counts), class_="soft"), class_="bar-cell"),
        tag("td", run.kind, class_="p"),
        tag("td", moment(run.started or run.created), class_="p"),
        took(run.started, run.ended, now=ask.now, is_over=run.state.is_over),
        tag("td", *_tags(run), class_="tags"),
    )


def _done(counts: Mapping[State, int]) -> str:
    total = sum(counts.values())
    done = sum(count for state, count in counts.items() if state.is_over)
    if done < total:
        return f"{done:,} of {total:,}"
    return in_words(counts) if total > 1 else ""


def _tags(run: RunRow) -> Iterator[Markup]:
    shown = {name: value for name, value in run.tags.items() if not name.startswith("rankwise.")}
    for name, value in list(shown.items())[:_MOST_TAGS]:
        short = value[:10] if name == "git.commit" else cut(value, 30)
        words = short if name.startswith("git.") else f"{cut(name, 30)}={short}"
        yield tag("a", words, href=address("/", tag=f"{name}={value}"), class_="tag")
