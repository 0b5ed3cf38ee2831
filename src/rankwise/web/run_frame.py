"""What is at the top of all pages of a run: how it stands, what can be done, and its parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rankwise.engine.session import driver_of
from rankwise.report.facts import cut
from rankwise.report.markup import Markup, joined, tag
from rankwise.report.outcomes import TONES, moment
from rankwise.report.words import duration
from rankwise.store import RunRow, State, Store
from rankwise.web.ask import Ask, run_address
from rankwise.web.counts import counts_of
from rankwise.web.page import Page, live, notice, void
from rankwise.web.states import bar, in_words, legend

_MATRIX = "Matrix"
_MOST_KNOWN = 500
# Plans do not change.
_with_needs: dict[tuple[str, str, float], bool] = {}
_NOTES = {
    "cancel": "The run was asked to end. Its processes have some seconds to do so.",
    "again": "This is the new run of the same document.",
}


def framed(
    store: Store,
    ask: Ask,
    run: RunRow,
    title: str,
    *content: str,
    is_live: bool = True,
    interval: float = 1.0,
) -> Page:
    """Put the top of a run's pages above one of them."""
    seen = store.last_event(run.id)
    counts = counts_of(store, run)
    parts = [
        live("banner", _banner(run, counts, ask)),
        *([notice(_NOTES[ask.text("note")], "busy")] if ask.text("note") in _NOTES else []),
        _actions(store, run, ask),
        _parts(store, run, ask),
        *content,
    ]
    changes = run_address(run.id, "changes", seen=seen)
    return Page(
        title=f"{title} of {run.id}" if title else f"{run.id}: {run.state}",
        content=joined(parts),
        changes=changes if is_live and not run.state.is_over else "",
        interval=interval,
        said=f"{run.id} {run.state}: {progress_of(counts)}",
    )


def progress_of(counts: Mapping[State, int]) -> str:
    """Say how far a run has come."""
    total = sum(counts.values())
    done = sum(count for state, count in counts.items() if state.is_over)
    if done < total:
        return f"{done:,} of {total:,} done, {100 * done // total} %"
    return in_words(counts)


def _banner(run: RunRow, counts: Mapping[State, int], ask: Ask) -> Markup:
    about = " · ".join(one for one in (run.kind, run.experiment, run.source) if one)
    facts = [progress_of(counts), f"begun {moment(run.started or run.created)}"]
    said = tag("p", " · ".join(facts), *_duration(run, ask), class_="said")
    reason = [tag("p", cut(run.reason), class_="said")] if run.reason else []
    return tag(
        "div",
        tag("p", about, class_="eyebrow"),
        tag("h1", f"{run.id} ", tag("span", str(run.state), class_="verdict")),
        said,
        *reason,
        bar(counts),
        legend(counts),
        class_=f"banner {TONES[run.state]}",
    )


def _duration(run: RunRow, ask: Ask) -> Iterator[Markup]:
    if run.started is None:
        return
    if run.ended is not None:
        yield Markup(f" · took {duration(run.ended - run.started)}")
    elif not run.state.is_over:
        so_far = duration(max(0.0, ask.now - run.started))
        yield joined([" · for ", tag("span", so_far, data_since=f"{run.started:.3f}")])


def _actions(store: Store, run: RunRow, ask: Ask) -> Markup:
    """Offer what can be done; a second click makes sure that it is meant."""
    forms = []
    if not run.state.is_over and run.wanted is None:
        sure = "Its processes are ended. What has passed stays so."
        forms.append(_form(run, ask, "cancel", "End this run", sure=sure, yes="Yes, end it"))
    if run.source:
        sure = f"{run.source} is run as it is now, in the background."
        forms.append(_form(run, ask, "again", "Run again", sure=sure, yes="Yes, run it"))
    parts = [live("nobody", *_undriven(store, run)), *forms]
    return tag("div", *parts, class_="actions")


def _undriven(store: Store, run: RunRow) -> Iterator[Markup]:
    if not run.state.is_over and driver_of(store.run_folder(run.id)) is None:
        yield tag(
            "p",
            "Nobody drives this run: what runs goes on, nothing new is started. To go on:  ",
            tag("code", f"rankwise resume {run.id}"),
            class_="notice warn",
        )
    elif run.wanted == "cancel" and not run.state.is_over:
        yield notice("It is being ended.")


def _form(run: RunRow, ask: Ask, action: str, words: str, *, sure: str, yes: str) -> Markup:
    form = tag(
        "form",
        tag("p", sure),
        void("input", type="hidden", name_="form", value=ask.form),
        tag("button", yes, type="submit", class_=action),
        method="post",
        action=run_address(run.id, action),
    )
    return tag("details", tag("summary", words), form, class_="action", id=f"{action}-form")


def _parts(store: Store, run: RunRow, ask: Ask) -> Markup:
    parts = {"": "Tasks"}
    if store.result_counts(run.id):
        parts["tests"] = "Tests"
    parts["failures"] = "Failures"
    if has_graph(store, run):
        parts["graph"] = "Graph"
    if run.kind == _MATRIX:
        parts["matrix"] = "Matrix"
    parts |= {"timeline": "Timeline", "logs": "Logs", "document": "Document"}
    links = [
        tag(
            "a",
            name,
            href=run_address(run.id, part),
            aria_current="page" if ask.path == run_address(run.id, part) else None,
        )
        for part, name in parts.items()
    ]
    links.append(tag("a", "Report", href=run_address(run.id, "report")))
    return tag("nav", *links, aria_label="Parts of this run", class_="tabs")


def has_graph(store: Store, run: RunRow) -> bool:
    """Tell whether tasks of a run need each other."""
    key = (str(store.path), run.id, run.created)
    if key not in _with_needs:
        while len(_with_needs) >= _MOST_KNOWN:
            _with_needs.pop(next(iter(_with_needs)), None)
        _with_needs[key] = store.has_needs(run.id)
    return _with_needs[key]
