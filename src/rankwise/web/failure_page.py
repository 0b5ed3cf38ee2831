"""Why a run is not green: who failed first, and what it wrote last."""

from __future__ import annotations

from rankwise.report.ansi import as_markup
from rankwise.report.explanation import Explanation, Group, explain_run
from rankwise.report.facts import cut
from rankwise.report.markup import Markup, joined, tag
from rankwise.report.outcomes import TONES
from rankwise.report.words import counted, fold, label
from rankwise.store import Store
from rankwise.web.ask import Ask, run_address
from rankwise.web.page import Page, live
from rankwise.web.run_frame import framed

_MOST = 10
_OPEN = 3
_LINES = 30
_MOST_NAMES = 20
_MOST_GROUPS = 30


def failure_page(store: Store, ask: Ask) -> Page:
    """Show the failures of a run."""
    run = store.run(ask.run)
    found = explain_run(store, run.id, most=_MOST, lines=_LINES)
    parts = [
        _failure(run.id, one, is_open=number < _OPEN) for number, one in enumerate(found.first)
    ]
    parts += [_group(run.id, group) for group in found.others[:_MOST_GROUPS]]
    if not parts:
        words = "Nothing is wrong." if run.state.is_over else "Nothing is wrong so far."
        parts = [tag("p", words)]
    # What a reader has unfolded stays so: it is not replaced behind their back every second.
    return framed(
        store,
        ask,
        run,
        "Failures",
        tag("h2", "What went wrong"),
        live("failures", *parts),
        interval=5.0,
    )


def _failure(run: str, one: Explanation, *, is_open: bool) -> Markup:
    content: list[Markup] = []
    for quote in one.quotes:
        lines = Markup("\n".join(as_markup(line) for line in quote.lines))
        content.append(tag("p", f"The last lines of {label(quote.process)}:", class_="soft"))
        content.append(tag("pre", lines, tabindex="0"))
    for fate, names in one.fates:
        content.append(tag("p", f"{fold(names)}: {fate}", class_="soft"))
    if one.command:
        content.append(tag("p", "The command:", class_="soft"))
        content.append(tag("pre", cut(one.command, 2000), tabindex="0"))
    links = [
        tag("a", "The task", href=run_address(run, "task", task=one.task)),
        tag("a", "Its log", href=run_address(run, "logs", task=one.task)),
    ]
    content.append(tag("p", joined([links[0], " · ", links[1]])))
    head = f"{cut(one.task, 200)}: {cut(one.reason)}" if one.reason else cut(one.task, 200)
    word = tag("b", str(one.state), class_=f"o {TONES[one.state]}")
    return tag("details", tag("summary", word, head), tag("div", *content), open=is_open)


def _group(run: str, group: Group) -> Markup:
    links = [
        tag("li", tag("a", cut(name, 120), href=run_address(run, "task", task=name)))
        for name in group.tasks[:_MOST_NAMES]
    ]
    if len(group.tasks) > _MOST_NAMES:
        more = run_address(run, state=str(group.state))
        words = f"and {len(group.tasks) - _MOST_NAMES:,} more"
        links.append(tag("li", tag("a", words, href=more)))
    word = tag("b", str(group.state), class_=f"o {TONES[group.state]}")
    head = f"{counted(len(group.tasks), 'task')}: {cut(group.reason) or group.state}"
    return tag("details", tag("summary", word, head), tag("div", tag("ul", *links)))
