"""Pages and streams of logs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from markupsafe import Markup

from rankwise.errors import InputError
from rankwise.files import open_left
from rankwise.logs import TAIL_BYTES, LogTail
from rankwise.records import LOGS, PROCESSES, process_folders
from rankwise.reports.markup import as_markup
from rankwise.reports.rendering import environment
from rankwise.store import AttemptRow, RunRow, State, Store
from rankwise.web.events import ALIVE, Feed, message
from rankwise.web.pages import PageContent, PageRequest, framed, run_address
from rankwise.web.store_access import Readers
from rankwise.wording import listed, size

# Output that comes faster than a page can show it is not followed word for word.
_MOST_BEHIND = 512 * 1024


@dataclass(frozen=True, slots=True)
class LogPosition:
    """How far a log was read: which file, and how much of it."""

    inode: int = 0
    offset: int = 0

    def __str__(self) -> str:
        return f"{self.inode}.{self.offset}"

    @classmethod
    def read(cls, text: str) -> LogPosition:
        """Read what `str` wrote; anything else is the beginning."""
        inode, _, offset = text.partition(".")
        if text.isascii() and inode.isdigit() and offset.isdigit() and len(text) < 40:
            return cls(int(inode), int(offset))
        return cls()


class Tail(LogTail):
    """Reads on in the log of one process from where a browser has come to."""

    def __init__(self, place: Path, position: LogPosition) -> None:
        super().__init__(place, position.inode, position.offset, most_behind=_MOST_BEHIND)
        self._held = 0

    @property
    def given(self) -> LogPosition:
        """How far lines were given: who goes on from here misses nothing."""
        return LogPosition(self._inode, max(0, self._offset - self._held))

    def new_lines(self) -> list[str]:
        """Return the lines that have come since; none: there are none now."""
        self.skipped = 0
        data = self.read()
        # What comes after the last end of a line is held back.
        *whole, rest = data.rsplit(b"\n", 1)
        self._held = len(rest) + (0 if whole or self.skipped else self._held)
        return self.lines.feed(data)


def tail_of(place: Path, *, is_over: bool) -> tuple[list[str], LogPosition, int]:
    """Return the last lines of a log, how far that is, and how many bytes come before them.

    A line that has not ended is given only if the process has: it would be torn in two.
    """
    try:
        status = (place / LOGS[-1]).stat()
    except OSError:
        return [], LogPosition(), 0
    first = max(0, status.st_size - TAIL_BYTES)
    tail = Tail(place, LogPosition(status.st_ino, first))
    whole = tail.new_lines() + (tail.lines.flush() if is_over else [])
    before = first
    # Parts that were moved away come before what is on the page.
    for older in LOGS[:-1]:
        with contextlib.suppress(OSError):
            before += (place / older).stat().st_size
    if first and len(whole) > 1:
        # The first one has lost its beginning.
        del whole[0]
    return whole, tail.given, before


_LOOK_SECONDS = 0.3
# So many looks without a word, and the browser is told that we are still there.
_LOOKS_IN_SILENCE = 40
_MOST_PROCESSES = 200
_MOST_LINES = 1000
# A download must not need as much memory as the log is long.
_CHUNK_BYTES = 256 * 1024
# Progress bars make lines of megabytes, which browsers are slow with.
_LONGEST_LINE = 4000
# In this order: what runs now tells most.
_TELLING = (State.RUNNING, State.FAILED, State.CRASHED, State.TIMED_OUT)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOnPage:
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


def log_of(store: Store, ask: PageRequest) -> LogOnPage | None:
    """Find the log that is meant; None: nothing was started yet. InputError: there is none such.

    Only names that are there are taken, so that none leads out of the attempt's folder.
    """
    run = store.run(ask.run)
    task = ask.name("task") or _telling(store, run)
    if not task:
        return None
    # Raises if there is no such task.
    store.task_row(run.id, task)
    attempts = {attempt.number: attempt for attempt in store.attempts(run.id, task)}
    if not attempts:
        return None
    number = ask.number("attempt", default=max(attempts))
    if number not in attempts:
        raise InputError(f"{run.id}: task {task!r} has no attempt {number}")
    attempt = attempts[number]
    if not (names := tuple(place.name for place in process_folders(attempt.folder))):
        return None
    process = ask.name("process") or _speaker(attempt, names)
    if process not in names:
        known = listed(list(names), most=10)
        raise InputError(f"{run.id}: there is no log of {process!r}, but of {known}")
    return LogOnPage(run=run, attempt=attempt, process=process, names=names)


def _telling(store: Store, run: RunRow) -> str:
    """Choose the task that people look for: one that runs or has failed, or else the first."""
    telling = (row for state in _TELLING for row in store.tasks_in(run.id, (state,)))
    tried = (row for row in store.task_rows(run.id) if row.attempts)
    return next((row.key for row in chain(telling, tried)), "")


def _speaker(attempt: AttemptRow, names: tuple[str, ...]) -> str:
    """Choose the process that people look for: the culprit, or the first that wrote anything."""
    if attempt.culprit in names:
        return attempt.culprit
    for name in names[:_MOST_PROCESSES]:
        log = attempt.folder / PROCESSES / name / LOGS[-1]
        if log.exists() and log.stat().st_size:
            return name
    return names[0]


def log_page(store: Store, ask: PageRequest) -> PageContent:
    """Show the end of a log."""
    found = log_of(store, ask)
    if found is None:
        return framed(store, ask, "Logs", "log", found=None)
    is_over = found.attempt.state.is_over
    lines, position, before = tail_of(found.place, is_over=is_over)
    stream = run_address(ask.run, "log-stream", **found.choice, at=str(position))
    shown: dict[str, Any] = {"lines": lines, "before": before}
    shown["stream"] = None if is_over else stream
    # The stream brings what is new: a page that is replaced would lose the reader's place.
    return framed(store, ask, "Log", "log", is_live=False, found=found, **shown)


def line_markup(line: str) -> Markup:
    """Make markup of a line of a log."""
    return as_markup(line, most=_LONGEST_LINE)


async def log_stream(
    readers: Readers, feed: Feed, found: LogOnPage, position: LogPosition
) -> AsyncGenerator[bytes, None]:
    """Go on with a log from where a page has ended, until its process has."""
    tail = Tail(found.place, position)
    silent = 0
    yield ALIVE
    while not feed.is_closed:
        # Before the log is read: what was written last is then in it.
        is_over = await readers.ask(lambda thread: _is_over(thread.store, found))
        lines = await asyncio.to_thread(tail.new_lines)
        if is_over and not lines:
            lines = tail.lines.flush()
        if lines or tail.skipped:
            yield _news(tail, lines)
            silent = 0
        elif is_over:
            yield message("over", "", tail.given)
            return
        else:
            silent += 1
            if silent % _LOOKS_IN_SILENCE == 0:
                yield ALIVE
        if not is_over:
            await asyncio.sleep(_LOOK_SECONDS)


def _news(tail: Tail, lines: list[str]) -> bytes:
    left_out = max(0, len(lines) - _MOST_LINES)
    words = []
    if tail.skipped or left_out:
        many = size(tail.skipped) if tail.skipped else f"{left_out} lines"
        words.append(Markup('<i class="soft">… {} left out …</i>').format(many))
    words += map(line_markup, lines[-_MOST_LINES:])
    return message("lines", words, tail.given)


def _is_over(store: Store, found: LogOnPage) -> bool:
    attempts = store.attempts(found.run.id, found.attempt.task)
    # One that is not there any more has nothing more to say.
    return all(one.state.is_over for one in attempts if one.number == found.attempt.number)


async def log_file(found: LogOnPage) -> AsyncGenerator[bytes, None]:
    """Return all that is kept of a log, a piece at a time."""
    for name in LOGS:
        offset = 0
        while data := await asyncio.to_thread(_piece, found.place / name, offset):
            yield data
            offset += len(data)


def _piece(path: Path, offset: int) -> bytes:
    with contextlib.suppress(OSError), open_left(path) as file:
        file.seek(offset)
        return file.read(_CHUNK_BYTES)
    return b""


environment().globals.update(line_markup=line_markup)
