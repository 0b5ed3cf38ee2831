"""What all pages share: the request, addresses, the frame, and the top of pages of a run."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

from markupsafe import Markup

from rankwise.reports.failures import seconds_of
from rankwise.reports.palette import TONES, URGENCY
from rankwise.reports.rendering import environment, render
from rankwise.store import AttemptRow, ProcessRow, RunRow, State, Store, TaskRow
from rankwise.store.rows import OPEN, RED
from rankwise.store.store import driver_of
from rankwise.wording import duration

_LONGEST = 300
_LONGEST_NAME = 5000
# The number of a row must stay an integer that SQLite takes.
_MOST_PAGES = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRequest:
    """One question: a path, what follows it, and when it was asked."""

    path: str = "/"
    query: Mapping[str, str] = field(default_factory=dict)
    run: str = ""
    now: float = 0.0
    seen: int = 0
    """The newest event of the run, or of all, from before the page is made."""
    form: str = ""
    """The word that our own forms send along."""

    def text(self, name: str) -> str:
        """Return what was written in a field, without what no field has."""
        return self.query.get(name, "").replace("\0", "")[:_LONGEST].strip()

    def name(self, name: str) -> str:
        """Return the name of something that is there, as it is."""
        return self.query.get(name, "")[:_LONGEST_NAME]

    def number(self, name: str, *, default: int = 1, least: int = 1) -> int:
        """Return a number; what is none is the default."""
        given = self.query.get(name, "")
        # Not isdigit alone: it takes digits that int does not.
        if not (given.isascii() and given.isdigit() and len(given) < 10):
            return default
        return min(max(int(given), least), _MOST_PAGES)

    def choice(self, name: str, choices: Collection[str], default: str) -> str:
        """Return one of several words; anything else is the default."""
        given = self.query.get(name, "")
        return given if given in choices else default

    def has_any(self, names: Iterable[str]) -> bool:
        """Return whether something was written in one of these fields."""
        return any(self.text(name) for name in names)

    def without(self, names: Iterable[str]) -> str:
        """Return the address of the same page without these parameters."""
        return self.link(**dict.fromkeys(names))

    def link(self, **changes: str | int | None) -> str:
        """Return the address of the same page with other parameters; None leaves one out."""
        kept: dict[str, str | int | None] = {**self.query, **changes}
        return address(self.path, **kept)


def address(path: str, /, **query: str | int | None) -> str:
    """Put an address together; parameters that are empty are left out."""
    given = {name: str(value) for name, value in query.items() if value not in (None, "")}
    # What is no Unicode could not be asked for.
    written = urlencode(given, errors="replace")
    return f"{path}?{written}" if written else path


def run_address(run: str, part: str = "", /, **query: str | int | None) -> str:
    """Return the address of a run's page."""
    base = f"/runs/{quote(run, safe='', errors='replace')}"
    return address(f"{base}/{part}" if part else base, **query)


PAGE_ROWS = 50
FILES = {
    "report.css": ("rankwise.reports", "templates", "text/css"),
    "live.css": ("rankwise.web", "static", "text/css"),
    "live.js": ("rankwise.web", "static", "text/javascript"),
}
"""What pages load beside themselves: package, folder, and type of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageContent:
    """What one page shows."""

    title: str
    content: Markup
    changes: str = ""
    """The address of the stream that tells when to ask again; empty: it will not change."""
    interval: float = 1.0
    """How many seconds to wait at least between two looks."""
    said: str = ""
    """What people hear who do not see it, when it changes."""


@cache
def static_file(name: str) -> tuple[bytes, str, str]:
    """Return one of FILES, its type, and a word that is another one when it changes."""
    package, folder, kind = FILES[name]
    data = (resources.files(package) / folder / name).read_bytes()
    return data, kind, hashlib.sha256(data).hexdigest()[:12]


def _static(name: str) -> str:
    return f"/static/{name}?v={static_file(name)[2]}"


def whole(page: PageContent, ask: PageRequest, store: str) -> str:
    """Put the frame around a page."""
    return render("web/page", page=page, ask=ask, store=store)


def offset(ask: PageRequest, *, size: int = PAGE_ROWS) -> int:
    """Return how many rows come before the page that is asked for."""
    return (ask.number("page") - 1) * size


def problem(title: str, words: str) -> PageContent:
    """Say why there is no such page."""
    return PageContent(title=title, content=render("web/problem", title=title, words=words))


def elapsed(one: RunRow | TaskRow | AttemptRow | ProcessRow) -> str:
    """Say how long something took; nothing where that is not known."""
    seconds = seconds_of(one)
    return "" if seconds is None else duration(seconds)


_Counts = Mapping[State, int]
_Known = TypeVar("_Known")
_MOST_KNOWN = 2000
# Of all threads: single operations on a dictionary need no lock.
_known: dict[tuple[str, str, str, float], Any] = {}


def _remembered(what: str, store: Store, run: RunRow, ask: Callable[[str], _Known]) -> _Known:
    """Return what does not change any more, and ask for it only once."""
    # A store that was removed and made again may have the same ids, but not the same times.
    key = (what, str(store.path), run.id, run.created)
    found: _Known | None = _known.get(key)
    if found is None:
        found = ask(run.id)
        # The oldest goes first; another thread may have removed it just now.
        while len(_known) >= _MOST_KNOWN:
            _known.pop(next(iter(_known)), None)
        _known[key] = found
    return found


def counts_of(store: Store, run: RunRow) -> _Counts:
    """Count the tasks of a run."""
    is_over = run.state.is_over
    return _remembered("counts", store, run, store.counts) if is_over else store.counts(run.id)


CHOICES = {
    "": "any outcome",
    "open": "not over yet",
    "red": "not green",
    **{str(state): str(state) for state in State},
}
"""What can be chosen in a filter, and how it is called there."""


def states_of(choice: str) -> Collection[State]:
    """Return the states that a choice stands for; none: it does not matter."""
    groups: Mapping[str, Collection[State]] = {"open": OPEN, "red": RED}
    return groups.get(choice, tuple(state for state in State if state == choice))


def by_urgency(counts: _Counts) -> list[tuple[State, int]]:
    """Return the states that there are, what is wrong first."""
    found = [(state, count) for state, count in counts.items() if count]
    return sorted(found, key=lambda one: URGENCY[one[0]])


def in_words(counts: _Counts) -> str:
    """Say how many are in which state."""
    return ", ".join(f"{count:,} {state}" for state, count in by_urgency(counts))


# What is done grows from the left, what waits is at the right.
_DRAWN = ("good", "bad", "warn", "busy", "idle")


def spans_of(counts: _Counts) -> Iterator[tuple[str, float, float]]:
    """Divide a bar that is 1000 wide among the states: the tone, the left end and the width."""
    total, left = sum(counts.values()), 0.0
    for state, count in sorted(by_urgency(counts), key=lambda one: _DRAWN.index(TONES[one[0]])):
        width = 1000 * count / total
        yield TONES[state], left, width
        left += width


def progress_of(counts: _Counts, *, is_brief: bool = False) -> str:
    """Say how far a run has come; in brief beside a bar, which shows the rest."""
    done, total = sum(counts[state] for state in counts if state.is_over), sum(counts.values())
    if done == total:
        return "" if is_brief and total < 2 else in_words(counts)
    return f"{done:,} of {total:,}" + ("" if is_brief else f" done, {100 * done // total}%")


_MATRIX = "Matrix"
_NOTES = {
    "cancel": "The run was asked to end. Its processes have some seconds to do so.",
    "again": "This is the new run of the same document.",
}


def framed(
    store: Store,
    ask: PageRequest,
    title: str,
    template: str,
    *,
    is_live: bool = True,
    interval: float = 1.0,
    **content: Any,
) -> PageContent:
    """Fill in one of the templates that extend that of a run; InputError: there is no such run."""
    run = store.run(ask.run)
    counts = counts_of(store, run)
    made = render(
        f"web/{template}",
        ask=ask,
        run=run,
        counts=counts,
        note=_NOTES.get(ask.text("note"), ""),
        is_driven=run.state.is_over or driver_of(store.run_folder(run.id)) is not None,
        tabs=_tabs(store, run),
        **content,
    )
    changes = run_address(run.id, "changes", seen=ask.seen)
    return PageContent(
        title=f"{title} of {run.id}" if title else f"{run.id}: {run.state}",
        content=made,
        changes=changes if is_live and not run.state.is_over else "",
        interval=interval,
        said=f"{run.id} {run.state}: {progress_of(counts)}",
    )


def _tabs(store: Store, run: RunRow) -> dict[str, str]:
    # Only what has something to show has a tab.
    tabs = {"": "Tasks"}
    if store.result_counts(run.id):
        tabs["tests"] = "Tests"
    tabs["failures"] = "Failures"
    if _remembered("needs", store, run, store.has_needs):
        tabs["graph"] = "Graph"
    if run.kind == _MATRIX:
        tabs["matrix"] = "Matrix"
    return tabs | {"timeline": "Timeline", "logs": "Logs", "document": "Document"}


# What templates of pages may call beside what those of reports may.
_CALLED = (address, by_urgency, elapsed, in_words, progress_of, run_address, spans_of)
environment().globals.update({one.__name__: one for one in _CALLED}, static=_static)
