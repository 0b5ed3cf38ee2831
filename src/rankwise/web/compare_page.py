"""Two runs side by side: what came out otherwise, and what became slower."""

from __future__ import annotations

from collections.abc import Iterator

from rankwise.errors import InputError
from rankwise.report.comparison import Compared, Line, Side, compare_sides
from rankwise.report.facts import cut
from rankwise.report.markup import Markup, joined, tag
from rankwise.report.terminal_compare import amount, place, share
from rankwise.report.words import duration
from rankwise.stats.compare import Verdict
from rankwise.store import RunRow, Store
from rankwise.store.pages import Difference
from rankwise.web.ask import Ask, run_address
from rankwise.web.counts import counts_of
from rankwise.web.page import Column, Page, notice, table, void
from rankwise.web.states import bar, in_words, outcome

_MOST_LINES = 200
_MOST_OFFERED = 50
_TONES = {
    Verdict.REGRESSED: "o bad",
    Verdict.INCONCLUSIVE: "o warn",
    Verdict.IMPROVED: "o good",
    Verdict.UNCHANGED: "o idle",
}
_MEASURES = (
    Column(name="metric"),
    Column(name="case"),
    Column(name="verdict"),
    Column(name="A", is_number=True),
    Column(name="B", is_number=True),
    Column(name="unit"),
    Column(name="change", is_number=True),
    Column(name="between", is_number=True),
    Column(name="why"),
)
_OUTCOMES = (
    Column(name="task"),
    Column(name="in A"),
    Column(name="in B"),
    Column(name="took in A", is_number=True),
    Column(name="took in B", is_number=True),
)


def compare_page(store: Store, ask: Ask) -> Page:
    """Show how two runs differ, or ask which."""
    given = ask.text("a"), ask.text("b")
    parts = [tag("h1", "Compare two runs"), _form(store, *given)]
    if all(given):
        try:
            first, second = (store.find_run(one) for one in given)
        except InputError as error:
            parts.append(notice(str(error)))
        else:
            parts += _compared(store, first, second)
    title = f"{given[0]} and {given[1]}" if all(given) else "Compare"
    return Page(title=cut(title, 120), content=joined(parts))


def _form(store: Store, a: str, b: str) -> Markup:
    options = (void("option", value=run.id) for run in store.runs(_MOST_OFFERED))
    fields = (
        tag(
            "label",
            tag("span", f"Run {name.upper()}"),
            void("input", type="text", name_=name, value=value, list="runs", autocomplete="off"),
        )
        for name, value in (("a", a), ("b", b))
    )
    button = tag("button", "Compare", type="submit")
    known = tag("datalist", *options, id="runs")
    return tag("form", *fields, button, known, method="get", action="/compare", class_="tools")


def _compared(store: Store, first: RunRow, second: RunRow) -> Iterator[Markup]:
    yield tag("div", *_sides(store, first, second), class_="cards two")
    yield tag("h2", "Outcomes")
    yield from _outcomes(store, first, second)
    yield tag("h2", "Measured")
    sides = (Side(given=run.id, runs=[run]) for run in (first, second))
    try:
        compared = compare_sides(store, *sides)
    except InputError as error:
        yield tag("p", str(error))
        return
    yield from _measured(compared)


def _sides(store: Store, first: RunRow, second: RunRow) -> Iterator[Markup]:
    for letter, run in (("A", first), ("B", second)):
        counts = counts_of(store, run)
        took = ""
        if run.started is not None and run.ended is not None:
            took = f" · took {duration(run.ended - run.started)}"
        yield tag(
            "div",
            tag("p", f"{letter}: ", tag("a", run.id, href=run_address(run.id))),
            bar(counts),
            tag("p", f"{in_words(counts)}{took}", class_="soft"),
            class_="card",
        )


def _outcomes(store: Store, first: RunRow, second: RunRow) -> Iterator[Markup]:
    found = store.differences(first.id, second.id, limit=_MOST_LINES)
    if not found.rows:
        yield tag("p", "What both have came out alike.")
        return
    if found.total > len(found.rows):
        yield tag("p", f"The first {len(found.rows)} of {found.total:,}:", class_="soft")
    rows = [_difference(second, one) for one in found.rows]
    yield table("Tasks that came out otherwise", _OUTCOMES, rows)


def _difference(run: RunRow, one: Difference) -> Markup:
    link = tag("a", cut(one.key, 160), href=run_address(run.id, "task", task=one.key))
    times = ("" if took is None else duration(took) for took in one[3:])
    return tag(
        "tr",
        tag("th", link, scope="row", class_="k"),
        outcome(one.before),
        outcome(one.after),
        *(tag("td", words, class_="n") for words in times),
    )


def _measured(compared: Compared) -> Iterator[Markup]:
    counts = ", ".join(f"{count} {verdict}" for verdict, count in compared.counts.items() if count)
    yield tag(
        "p",
        tag("b", compared.verdict.value, class_=_TONES[compared.verdict]),
        f": {counts}, of {len(compared.lines):,} series",
    )
    for remark in compared.remarks:
        yield notice(remark)
    rows = [_line(line) for line in compared.lines[:_MOST_LINES]]
    yield table("What was measured, the worst first", _MEASURES, rows)


def _line(line: Line) -> Markup:
    series, result = line.series, line.result
    between = ""
    if result.interval:
        between = f"{share(result.interval[0])} to {share(result.interval[1])}"
    return tag(
        "tr",
        tag("th", cut(series.metric, 80), scope="row"),
        tag("td", cut(place(series), 120)),
        tag("td", result.verdict.value, class_=_TONES[result.verdict]),
        tag("td", amount(result.before), class_="n"),
        tag("td", amount(result.after), class_="n"),
        tag("td", cut(series.unit, 20), class_="p"),
        tag("td", share(result.change), class_="n"),
        tag("td", between, class_="n"),
        tag("td", cut(result.reason, 200), class_="w"),
    )
