"""Reads the logs of a run, those that are there and those that are still to come."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from rankwise.cli.options import refresh
from rankwise.errors import InputError
from rankwise.logs import LogFollower, LogLine
from rankwise.records import ClaimState, claim_of, process_folders
from rankwise.reports.terminal.console import has_colours
from rankwise.reports.terminal.live import Labels, label_width
from rankwise.store import AttemptRow, EventRow, RunRow, Store
from rankwise.store.store import driver_of
from rankwise.wording import listed

_PAUSE_SECONDS = 0.1
# A write for each line is slow, and all lines at once may not fit into memory.
_LINES_AT_ONCE = 1000
# So often we look whether a client still drives the run; after so many times in vain, none does.
_LOOK_SECONDS = 2.0
_MOST_LOOKS = 3
# With more tasks than this, labels are not set in one column.
_MOST_ALIGNED = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which of the logs are wanted."""

    rank: int | None = None
    process: str | None = None
    task: str | None = None
    attempt: int | None = None

    @property
    def is_one_process(self) -> bool:
        return self.rank is not None or self.process is not None


class Reader:
    """Writes logs of a run to the standard output."""

    def __init__(self, store: Store, run: RunRow, choice: Choice) -> None:
        self._store = store
        self._run = run
        self._choice = choice
        self._follower = LogFollower()
        self._followed: dict[tuple[str, int], Path] = {}
        self._last_event = 0
        self._has_written = False
        count = 1 if choice.task is not None else sum(store.counts(run.id).values())
        self._labels = Labels(
            width=self._label_width() if count <= _MOST_ALIGNED else 0,
            is_coloured=has_colours(sys.stdout),
            with_tasks=count > 1,
            are_shown=count > 1 or not choice.is_one_process,
        )

    def read(self) -> None:
        """Write what is there; raises InputError if what was asked for is not."""
        attempts = self._attempts()
        for attempt in attempts:
            self._add(attempt)
            self._end(attempt.task, attempt.number)
        if not attempts:
            print(f"{self._run.id} has started nothing yet", file=sys.stderr)
        elif not self._has_written and self._choice.is_one_process:
            self._refuse(attempts)

    def follow(self) -> None:
        """Write what is there and what is still to come, until the run is over."""
        # What earlier events tell is in the tables.
        while events := self._store.events_after(self._run.id, self._last_event):
            self._last_event = events[-1].id
        for attempt in self._attempts():
            self._add(attempt)
            if attempt.state.is_over:
                self._end(attempt.task, attempt.number)
        # The end of the run is an event that only a client stores: without one, none would come.
        looked, vain = time.monotonic(), 0
        while not self._store.run(self._run.id).state.is_over and vain < _MOST_LOOKS:
            if not self._write_news():
                time.sleep(_PAUSE_SECONDS)
            if time.monotonic() - looked > _LOOK_SECONDS:
                looked = time.monotonic()
                vain = 0 if self._is_alive() else vain + 1
        # What was written between the last look and the end of the run.
        while self._write_news():
            pass
        self._write(self._follower.finish_all())
        if vain == _MOST_LOOKS:
            print(f"no client drives this run: rankwise resume {self._run.id}", file=sys.stderr)

    def _write_news(self) -> bool:
        """Write what has come since; return whether there was anything."""
        events = self._store.events_after(self._run.id, self._last_event)
        for event in events:
            self._last_event = event.id
            self._take(event)
        lines = self._follower.poll()
        self._write(lines)
        return bool(events or lines)

    def _attempts(self) -> list[AttemptRow]:
        """Return the attempts that are wanted of those that there are."""
        if self._choice.task is not None:
            self._store.task_row(self._run.id, self._choice.task)
        found = self._store.attempts(self._run.id, self._choice.task)
        if self._choice.attempt is None:
            # They come in order, so that the last attempt of each task is what stays.
            return list({attempt.task: attempt for attempt in found}.values())
        wanted = [attempt for attempt in found if attempt.number == self._choice.attempt]
        if found and not wanted:
            most = max(attempt.number for attempt in found)
            why = f"{self._run.id}: there is no attempt {self._choice.attempt}; the last is {most}"
            raise InputError(why)
        return wanted

    def _take(self, event: EventRow) -> None:
        task, number = event.body.get("task", ""), event.body.get("attempt", 0)
        if event.kind == "attempt_ended":
            self._end(task, number)
        elif event.kind == "attempt_begun" and self._choice.task in (None, task):
            for attempt in self._store.attempts(self._run.id, task):
                if attempt.number == number and self._choice.attempt in (None, number):
                    self._add(attempt)

    def _add(self, attempt: AttemptRow) -> None:
        names = self._names(attempt.task)
        self._followed[attempt.task, attempt.number] = attempt.folder
        self._follower.add(attempt.folder, wanted=lambda name: names is None or name in names)

    def _end(self, task: str, number: int) -> None:
        if (folder := self._followed.pop((task, number), None)) is not None:
            self._write(self._follower.finish(folder))

    def _names(self, task: str) -> set[str] | None:
        """Return the names of the processes that are wanted of a task; None: all."""
        if self._choice.process is not None:
            return {self._choice.process, self._choice.process.replace(" ", "-")}
        rank = self._choice.rank
        if rank is None:
            return None
        # Ranks that a launcher has started have logs by number, those of a document by name.
        processes = self._store.task(self._run.id, task).processes
        return {f"rank-{rank}", *(one.name for one in processes if one.rank == rank)}

    def _is_alive(self) -> bool:
        """Return whether more is to come: a client drives the run, or a runner is at work."""
        if driver_of(self._store.run_folder(self._run.id)) is not None:
            return True
        # Without a client, nothing else would store that attempts have ended.
        refresh(self._store, self._run)
        return any(claim_of(folder) is ClaimState.HELD for folder in self._followed.values())

    def _write(self, lines: Iterable[LogLine]) -> None:
        waiting: Iterator[LogLine] = iter(lines)
        while some := list(islice(waiting, _LINES_AT_ONCE)):
            sys.stdout.write("".join(map(self._labels.line, some)))
            self._has_written = True
        sys.stdout.flush()

    def _refuse(self, attempts: Iterable[AttemptRow]) -> None:
        """Say which processes there are, if not the one that was asked for."""
        known: dict[str, None] = {}
        wanted: set[str] = set()
        for attempt in attempts:
            known |= dict.fromkeys(place.name for place in process_folders(attempt.folder))
            wanted |= self._names(attempt.task) or set()
        who = self._choice.process or f"rank {self._choice.rank}"
        if known.keys().isdisjoint(wanted):
            names = listed(list(known), most=10) or "none yet"
            raise InputError(f"{self._run.id} has no log of {who}; there is {names}")
        print(
            f"{who} has written nothing, or its launcher has passed it on: "
            f"rankwise logs {self._run.id}",
            file=sys.stderr,
        )

    def _label_width(self) -> int:
        if self._choice.task is not None:
            return label_width([self._store.task(self._run.id, self._choice.task)])
        rows = self._store.task_rows(self._run.id, bodies=True)
        return label_width([row.body for row in rows if row.body is not None])
