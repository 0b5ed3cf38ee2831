"""What checks read, for how long, and how it is quoted."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import json
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from rankwise.files import open_left, read_left
from rankwise.plan import Check, Task
from rankwise.records import CLAIM, LOGS, ORDER, PROCESSES, read_processes
from rankwise.safe_text import harmless
from rankwise.store.rows import ProcessRow


class TooLong(Exception):
    """It took longer than it may."""


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise TooLong inside after so many seconds; only the main thread can be told in time."""
    # Signals arrive in the main thread only: in another one, the limit of the caller must do.
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(number: int, frame: FrameType | None) -> None:
        raise TooLong(f"it took longer than {seconds:g} s")

    # A pattern may take hours in C, where only a signal is heard.
    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


STREAMS = ("output", "stdout", "stderr")
_MOST_BYTES = 100_000_000
# The kernel's clock for files runs behind by a few milliseconds.
_CLOCK_SECONDS = 0.05


class Missing(Exception):
    """What a check is to look at is not there; the message says what and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedText:
    """One text that is looked at."""

    name: str
    """As people find it: `rank-0/output.log`, or a file's path."""
    text: str
    lost: int = 0
    """Bytes that were left out of it, because there were too many."""


@dataclass(slots=True, kw_only=True)
class AttemptOutput:
    """What one attempt has left."""

    task: Task
    folder: Path
    started: float | None = None
    """When the attempt did: what is older is none of its work."""
    redact: Callable[[str], str] = str
    """Keeps the values of secrets out of what is quoted; to be asked before anything is cut."""
    _processes: list[ProcessRow] | None = field(default=None)
    _logs: dict[tuple[str, str], CheckedText] = field(default_factory=dict)

    def sources(self, check: Check) -> list[tuple[Check, list[CheckedText]]]:
        """Return what a check looks at, in groups that must each pass it; raises Missing."""
        # Without a rank, all output counts together: any process may have written it.
        if not check.rank:
            return [(check, self._of(check.on, None))]
        return [
            (dataclasses.replace(check, what=_for_rank(check.what, one)), self._of(check.on, one))
            for one in self.ranks(check)
        ]

    def files(self, check: Check) -> list[tuple[str, Path]]:
        """Return the files that a check of files is about, as written and as they are."""
        # With `rank: all`, each rank has a file of its own, by `{rank}` in the name.
        ranks = self.ranks(check) if check.rank else [None]
        names = [_for_rank(check.what, number) for number in ranks]
        return [(name, self.file(name)) for name in names]

    def file(self, name: str) -> Path:
        """Find a file that the attempt has written; raises Missing."""
        # The first node's is meant, where several have it: it is where a launcher runs.
        for folder in self.work_folders():
            path = folder / name
            if path.exists():
                self._refuse_old(name, path)
                return path
        folders = ", ".join(map(str, self.work_folders()[:1]))
        raise Missing(f"there is no {name} in {folders}{_beside(self.work_folders()[0] / name)}")

    def work_folders(self) -> list[Path]:
        """Return the folders in which processes worked, node by node, and that of the attempt."""
        try:
            nodes = json.loads(read_left(self.folder / ORDER))["nodes"]
            found = [Path(node["folder"]) for node in nodes]
        except (OSError, ValueError, LookupError, TypeError):
            found = []
        if not found and self.task.folder:
            found = [Path(self.task.folder)]
        return list(dict.fromkeys([*found, self.folder]))

    def ranks(self, check: Check) -> list[int]:
        """Return the ranks that a check is about: those that there should have been."""
        if check.rank != "all":
            return [int(check.rank)]
        # Not from the records: a rank that left none must not drop out of the check.
        known = {one.rank for one in self.task.processes if one.rank is not None}
        return list(range(max(len(known), self.task.width, 1)))

    def redact_on(self, on: str) -> Callable[[str], str]:
        """Return what keeps secrets out of quotes from there; out of logs, the runner has."""
        return str if on in STREAMS else self.redact

    def logs(self) -> dict[str, Path]:
        """Return the log of each process."""
        names = [one.name for one in self._all()]
        return {name: self.folder / PROCESSES / name / LOGS[-1] for name in names}

    def _of(self, on: str, rank: int | None) -> list[CheckedText]:
        if on not in STREAMS:
            name = _for_rank(on, rank)
            return [CheckedText(name=name, text=read_text(self.file(name)))]
        found = [one for one in self._all() if rank is None or one.rank == rank]
        if not found:
            who = "no process" if rank is None else f"no rank {rank}"
            raise Missing(f"there was {who} that could have written anything")
        return [self._log(one, on) for one in found]

    def _all(self) -> list[ProcessRow]:
        if self._processes is None:
            self._processes = read_processes(self.folder)
        return self._processes

    def _log(self, process: ProcessRow, stream: str) -> CheckedText:
        key = process.name, stream
        if key not in self._logs:
            names = [name.replace("output", stream, 1) for name in LOGS]
            place = self.folder / PROCESSES / process.name
            parts = [place / name for name in names]
            apart = [place / LOGS[-1].replace("output", one, 1) for one in STREAMS[1:]]
            if stream != STREAMS[0] and not any(part.exists() for part in (*parts, *apart)):
                # Not the same as having written nothing: it may all be in the one log.
                raise Missing(f"{process.name} has no {names[-1]}: its streams were not kept apart")
            text = "".join(read_text(part) for part in parts if part.exists())
            self._logs[key] = CheckedText(
                name=f"{process.name}/{names[-1]}", text=text, lost=process.log_lost
            )
        return self._logs[key]

    def _began(self) -> float | None:
        """Return when the attempt began, by the clock of the files, perhaps that of a server."""
        try:
            return (self.folder / CLAIM).stat().st_mtime
        except OSError:
            return self.started

    def _refuse_old(self, name: str, path: Path) -> None:
        """Raise Missing for what was there before: it says nothing about this attempt."""
        status = path.stat()
        # A copy may keep the time of its original, but not the time when it was made.
        newest = max(status.st_mtime, status.st_ctime)
        began = self._began()
        if began is not None and newest < began - _CLOCK_SECONDS:
            age = began - newest
            raise Missing(
                f"{path} was not written: the one that is there is {age:.1f} s older than the start"
            )


def read_text(path: Path) -> str:
    """Read a file, whatever is in it; raises Missing if that cannot be."""
    try:
        with open_left(path, follows_links=True) as file:
            if os.fstat(file.fileno()).st_size > _MOST_BYTES:
                raise Missing(f"{path} has more than {_MOST_BYTES} bytes, and is not read")
            return file.read().decode(errors="replace").replace("\r\n", "\n")
    except OSError as error:
        raise Missing(f"{path} cannot be read: {error.strerror}") from error


def _for_rank(name: str, rank: int | None) -> str:
    return name if rank is None else name.replace("{rank}", str(rank))


def _beside(path: Path) -> str:
    """Say what is there instead."""
    try:
        names = sorted(one.name for one in path.parent.iterdir() if one.name[0] != ".")
    except OSError:
        return f": there is no folder {path.parent}"
    if not names:
        return ", which is empty"
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return f"; there is {', '.join(names[:8])}{more}"


_MOST_LINES = 5
_LONGEST_LINE = 200
# Among so many of the last lines, one is looked for that is like what was wanted.
_MOST_COMPARED = 500
_COMPARISONS = {
    "equals": "equals",
    "less_than": "is less than",
    "greater_than": "is greater than",
    "approx": "is about",
}


def describe(check: Check) -> str:
    """Say what a check wants: `regex 'rank (\\d+) of 4', 4 times on stdout`."""
    match check.kind:
        case "exit_code":
            return f"exit code {' or '.join(map(str, check.codes))}"
        case "exists":
            return f"exists {check.what}{_of_rank(check)}"
        case "python":
            return f"python {Path(check.what).name}"
        case "json":
            value = repr(check.value) if isinstance(check.value, str) else _json(check.value)
            wanted = f" {_COMPARISONS[check.compare]} {value}" if check.compare else " is there"
            return f"json {check.what}{wanted}{_where(check)}"
    wanted = shown(check.what)
    return f"{check.kind} '{wanted}'{_how_often(check)}{_where(check)}"


def _json(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value}"


def _how_often(check: Check) -> str:
    if check.kind == "absent":
        return ""
    least, most = check.least, check.most
    if most is None:
        return f", at least {times(least)}" if least != 1 else ""
    if least == most:
        return f", {times(least)}"
    return f", {least} to {most} times" if least else f", at most {times(most)}"


def times(count: int) -> str:
    """Say how often."""
    return "once" if count == 1 else f"{count} times"


def _where(check: Check) -> str:
    if check.on not in STREAMS:
        return f" in {check.on}{_of_rank(check)}"
    return ("" if check.on == "output" else f" on {check.on}") + _of_rank(check)


def _of_rank(check: Check) -> str:
    if not check.rank:
        return ""
    return " on every rank" if check.rank == "all" else f" on rank {check.rank}"


def shown(text: str) -> str:
    """Make a text fit for one line of any terminal."""
    safe = harmless(text[: _LONGEST_LINE + 1].expandtabs(4).replace("\n", "\\n"))
    return safe if len(safe) <= _LONGEST_LINE else safe[:_LONGEST_LINE] + "…"


def quote(lines: Iterable[str]) -> str:
    """Put lines under a message."""
    return "".join(f"\n  | {shown(line)}" for line in lines)


def last_lines(sources: Sequence[CheckedText]) -> list[str]:
    """Return the last lines that say something, of the first source that has any."""
    told = ([line for line in one.text.splitlines() if line.strip()] for one in sources)
    return next(filter(None, told), [])[-_MOST_LINES:]


def most_like(wanted: str, sources: Sequence[CheckedText]) -> list[str]:
    """Return the lines that are most like what was wanted; where none is, the last ones."""
    lines = [line for source in sources for line in source.text.splitlines()[-_MOST_COMPARED:]]
    short = {line[:_LONGEST_LINE]: line for line in lines if line.strip()}
    near = difflib.get_close_matches(wanted[:_LONGEST_LINE], list(short)[-_MOST_COMPARED:], n=3)
    return [short[one] for one in near] or last_lines(sources)


def first_lines(lines: Sequence[str]) -> list[str]:
    """Return the first few, and say how many more there are."""
    more = len(lines) - _MOST_LINES
    return [*lines[:_MOST_LINES], *([f"… and {more} more"] if more > 0 else [])]


def names_of(sources: Sequence[CheckedText]) -> str:
    """Name what was looked at."""
    if len(sources) > 2:
        return f"{sources[0].name} and {len(sources) - 1} more logs"
    return " and ".join(source.name for source in sources)
