"""What a process has written, and writes: the page, and the stream that goes on with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from pathlib import Path

from rankwise.errors import InputError
from rankwise.records import LOGS, PROCESSES, process_folders
from rankwise.report.ansi import as_markup
from rankwise.report.facts import cut
from rankwise.report.markup import Markup, tag
from rankwise.report.words import label, listed, size
from rankwise.store import AttemptRow, RunRow, State, Store
from rankwise.web.ask import Ask, run_address
from rankwise.web.feed import Feed
from rankwise.web.page import Page, notice, void
from rankwise.web.readers import Readers
from rankwise.web.run_frame import framed
from rankwise.web.streams import message
from rankwise.web.tails import Position, Tail, tail_of

_LOOK_SECONDS = 0.3
# So many looks without a word, and the browser is told that we are still there.
_LOOKS_IN_SILENCE = 40
_MOST_PROCESSES = 200
_MOST_LINES = 1000
_CHUNK_BYTES = 256 * 1024
_LONGEST_LINE = 4000
_TELLING = (State.RUNNING, State.FAILED, State.CRASHED, State.TIMED_OUT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """The log that is meant."""

    run: RunRow
    attempt: AttemptRow
    process: str
    names: tuple[str, ...]
    """All processes of the attempt that have one."""

    @property
    def place(self) -> Path:
        return self.attempt.folder / PROCESSES / self.process

    @property
    def choice(self) -> dict[str, str | int | None]:
        """How an address names it."""
        number = self.attempt.number
        return {"task": self.attempt.task, "attempt": number, "process": self.process}


def log_of(store: Store, ask: Ask) -> Log | None:
    """Find the log that is meant; None: nothing was started yet. InputError: there is none such.

    Only names that are there are taken, so that none leads out of the attempt's folder.
    """
    run = store.run(ask.run)
    task = ask.name("task") or _telling(store, run)
    if not task:
        return None
    store.task_row(run.id, task)
    attempts = {attempt.number: attempt for attempt in store.attempts(run.id, task)}
    if not attempts:
        return None
    number = ask.number("attempt", default=max(attempts))
    if number not in attempts:
        raise InputError(f"{run.id}: task {task!r} has no attempt {number}")
    attempt = attempts[number]
    names = tuple(place.name for place in process_folders(attempt.folder))
    if not names:
        return None
    process = ask.name("process") or _speaker(attempt, names)
    if process not in names:
        known = listed(list(names), most=10)
        raise InputError(f"{run.id}: there is no log of {process!r}, but of {known}")
    return Log(run=run, attempt=attempt, process=process, names=names)


def _telling(store: Store, run: RunRow) -> str:
    """Choose the task that people look for: one that runs or has failed, or else the first."""
    for state in _TELLING:
        if (row := next(store.tasks_in(run.id, (state,)), None)) is not None:
            return row.key
    tried = (row for row in store.task_rows(run.id) if row.attempts)
    first = next(tried, None)
    return first.key if first is not None else ""


def _speaker(attempt: AttemptRow, names: tuple[str, ...]) -> str:
    """Choose the process that people look for: who is to blame, or who has written anything."""
    if attempt.culprit in names:
        return attempt.culprit
    for name in names[:_MOST_PROCESSES]:
        log = attempt.folder / PROCESSES / name / LOGS[-1]
        if log.exists() and log.stat().st_size:
            return name
    return names[0]


def log_page(store: Store, ask: Ask) -> Page:
    """Show the end of a log."""
    found = log_of(store, ask)
    if found is None:
        run = store.run(ask.run)
        words = tag("p", "Nothing was started yet, so nobody has written anything.")
        return framed(store, ask, run, "Logs", tag("h2", "Logs"), words)
    is_over = found.attempt.state.is_over
    lines, position, before = tail_of(found.place, is_over=is_over)
    stream = None
    if not is_over:
        stream = run_address(found.run.id, "log-stream", **found.choice, at=str(position))
    shown = tag(
        "pre",
        Markup("".join(f"{line_markup(line)}\n" for line in lines)),
        id="log",
        class_="log",
        tabindex="0",
        role="log" if stream else None,
        aria_label=f"Output of {label(found.process)}",
        aria_live="off" if stream else None,
        data_stream=stream,
    )
    return framed(
        store,
        ask,
        found.run,
        "Log",
        tag("h2", f"Log of {label(found.process)}, {cut(found.attempt.task, 120)}"),
        *_processes(found, ask),
        tag("p", *_words(found, before, bool(lines)), class_="soft"),
        *([_follow()] if stream else []),
        shown,
        is_live=False,
    )


def _words(found: Log, before: int, has_lines: bool) -> Iterator[Markup | str]:
    if not has_lines:
        yield "Nothing was written" + ("" if found.attempt.state.is_over else " yet") + ". "
    if before:
        yield f"The end of it; {size(before)} come before this. "
    yield tag("a", "All of it", href=run_address(found.run.id, "log-file", **found.choice))
    if found.attempt.number > 1:
        yield f" · attempt {found.attempt.number}"


def _follow() -> Markup:
    """Offer to stay at the end; only for those who have scripts."""
    box = Markup('<input type="checkbox" id="follow" checked>')
    return tag("p", tag("label", box, " Stay at the end"), class_="follow", hidden=True)


def _processes(found: Log, ask: Ask) -> Iterator[Markup]:
    names = found.names[:_MOST_PROCESSES]
    if len(found.names) > 1:
        links = (
            tag(
                "a",
                label(name),
                href=ask.link(**{**found.choice, "process": name}),
                aria_current="true" if name == found.process else None,
            )
            for name in names
        )
        yield tag("nav", *links, aria_label="Processes", class_="ranks", tabindex="0")
    if len(found.names) > len(names):
        yield notice(f"The first {len(names)} of {len(found.names)} processes are named here.")
        yield _other(found, ask)


def _other(found: Log, ask: Ask) -> Markup:
    """Ask for a process by its name, where there are too many to be listed."""
    kept = {name: value for name, value in found.choice.items() if name != "process"}
    hidden = (
        void("input", type="hidden", name_=name, value=str(value)) for name, value in kept.items()
    )
    field = void("input", type="text", name_="process", value=found.process, autocomplete="off")
    named = tag("label", tag("span", "Process"), field)
    button = tag("button", "Show", type="submit")
    return tag("form", *hidden, named, button, method="get", action=ask.path, class_="tools")


def line_markup(line: str) -> Markup:
    """Make markup of a line of a log."""
    return as_markup(line, most=_LONGEST_LINE)


async def log_stream(
    readers: Readers, feed: Feed, found: Log, position: Position
) -> AsyncGenerator[bytes, None]:
    """Go on with a log from where a page has ended, until its process has."""
    tail = Tail(found.place, position)
    silent = 0
    while not feed.is_closed:
        # Before the log is read: what was written last is then in it.
        is_over = await readers.ask(lambda desk: _is_over(desk.store, found))
        lines = await asyncio.to_thread(tail.read)
        if is_over and not lines:
            lines = tail.rest()
        if lines or tail.skipped:
            yield _news(tail, lines)
            silent = 0
        elif is_over:
            yield message("over", "", tail.given)
            return
        else:
            silent += 1
            if silent % _LOOKS_IN_SILENCE == 0:
                yield b": alive\n\n"
        if not is_over:
            await asyncio.sleep(_LOOK_SECONDS)


def _news(tail: Tail, lines: list[str]) -> bytes:
    left_out = max(0, len(lines) - _MOST_LINES)
    words = []
    if tail.skipped or left_out:
        many = size(tail.skipped) if tail.skipped else f"{left_out} lines"
        words.append(tag("i", f"… {many} left out …", class_="soft"))
    words += map(line_markup, lines[-_MOST_LINES:])
    return message("lines", words, tail.given)


def _is_over(store: Store, found: Log) -> bool:
    attempts = store.attempts(found.run.id, found.attempt.task)
    states = {attempt.number: attempt.state for attempt in attempts}
    return states.get(found.attempt.number, State.LOST).is_over


async def log_file(found: Log) -> AsyncGenerator[bytes, None]:
    """Give all that is kept of a log, a piece at a time."""
    for name in LOGS:
        offset = 0
        while data := await asyncio.to_thread(_piece, found.place / name, offset):
            yield data
            offset += len(data)


def _piece(path: Path, offset: int) -> bytes:
    try:
        with path.open("rb", buffering=0) as file:
            file.seek(offset)
            return file.read(_CHUNK_BYTES)
    except OSError:
        return b""
