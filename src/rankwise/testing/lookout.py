"""Under mpirun: ends a run in which a test goes on for too long, and says which and why.

The processes are mpirun's, so none can be started again: the report is printed, and everything is
ended. It is printed from here, because rank 0 may be one of those that wait.
Standard library and this package only, as the switchboard.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from rankwise.testing.blackbox import BoxFiles, Moment
from rankwise.testing.dispatch import Dispatcher, Flight
from rankwise.testing.hang import ask_for_stacks, describe_stacks
from rankwise.testing.naming import describe_ranks
from rankwise.testing.watch import Overdue, find_overdue
from rankwise.testing.wire import Header

_WIDTH = 80
_SHOWN_TESTS = 20


class Lookout:
    """Looks after the ranks of one machine."""

    def __init__(self, folder: Path, width: int) -> None:
        self._boxes = [BoxFiles(folder, str(rank)) for rank in range(width)]
        self._pids: dict[int, int] = {}
        self._limits: list[float] = []
        self._names: list[str] = []
        self._grace = 0.0
        self._root = Path()
        self._stumbles: dict[int, tuple[float, dict[int, str]]] = {}
        self._failures: dict[str, str] = {}
        self._has_ended = False

    def begin(self, header: Header, body: bytes) -> None:
        """Learn what the tests are."""
        tests = json.loads(body)
        self._limits = [test[3] for test in tests]
        self._names = [test[4] for test in tests]
        self._grace = header["grace"]
        self._root = Path(header["root"])

    def note(self, rank: int, header: Header) -> None:
        """Take in what a rank says about itself, or a failure that rank 0 has reported."""
        match header["kind"]:
            case "here":
                self._pids[rank] = int(header["pid"])
            case "stumbled":
                _, texts = self._stumbles.setdefault(header["case"], (time.monotonic(), {}))
                texts[rank] = header["text"]
            case "noted":
                self._failures[header["test"]] = header["text"]

    def look(self, dispatcher: Dispatcher) -> None:
        """End the run if a test goes on for too long."""
        if self._has_ended:
            return
        moments = {
            rank: moment
            for rank, box in enumerate(self._boxes)
            if (moment := box.read_moment()) is not None
        }
        running = {flight.case for flight in dispatcher.flights(range(len(self._boxes)))}
        for case in self._stumbles.keys() - running:
            del self._stumbles[case]
        overdue = find_overdue(
            list(moments.values()),
            self._limits,
            {case: since for case, (since, _) in self._stumbles.items()},
            grace=self._grace,
            now=time.monotonic(),
        )
        if overdue:
            self._end(overdue[0], moments, dispatcher)

    def _end(self, one: Overdue, moments: Mapping[int, Moment], dispatcher: Dispatcher) -> None:
        self._has_ended = True
        flights = {flight.case: flight for flight in dispatcher.flights(range(len(self._boxes)))}
        flight = flights.get(one.case)
        lines = ["", _title(f"rankwise: {self._names[one.case]} is ended", "=")]
        lines += self._explain(one, flight, moments)
        lines += self._sum_up(one, dispatcher, sorted(flights))
        print("\n".join(lines), file=sys.stderr, flush=True)
        for pid in self._pids.values():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)

    def _explain(
        self, one: Overdue, flight: Flight | None, moments: Mapping[int, Moment]
    ) -> list[str]:
        ranks = list(flight.members) if flight is not None else sorted(moments)
        places = {rank: place for place, rank in enumerate(ranks)}
        size = len(ranks)
        _, texts = self._stumbles.get(one.case, (0.0, {}))
        if one.why == "grace":
            who = describe_ranks([places[rank] for rank in texts if rank in places], size)
            headline = f"{who} failed, and the others did not end within {self._grace:g} s"
        else:
            where = "in closing fixtures" if one.phase == "closing" else f"in {one.phase}"
            headline = f"no end after {self._limits[one.case]:g} s {where} (time limit)"
        lines = [f"E   {headline}"]
        for rank, text in sorted(texts.items()):
            if rank in places:
                who = describe_ranks([places[rank]], size)
                lines += ["", _title(f"{who} failed first", "-"), text]
        done = flight.bodies if flight is not None else {}
        waiting = [rank for rank in ranks if rank not in done and rank in self._pids]
        stacks = ask_for_stacks(
            {places[rank]: (self._pids[rank], self._boxes[rank].stacks) for rank in waiting}
        )
        title = "where the others wait" if texts else "where every rank is"
        return [*lines, "", _title(title, "-"), *describe_stacks(stacks, size, self._root)]

    def _sum_up(self, one: Overdue, dispatcher: Dispatcher, running: list[int]) -> list[str]:
        lines = []
        for name, text in self._failures.items():
            lines += ["", _title(f"{name} failed before", "="), text]
        others = [self._names[case] for case in running if case != one.case]
        not_run = [self._names[case] for case in dispatcher.not_started()]
        lines += _list("not finished", others)
        lines += _list("not run", not_run)
        failed = len(self._failures)
        return [
            *lines,
            "",
            _title(
                f"1 ended, {failed} failed, {dispatcher.completed - failed} passed or skipped, "
                f"{len(others)} not finished, {len(not_run)} not run: all ranks are ended now",
                "=",
            ),
            "`pytest --n-workers=N`, in the place of mpirun, goes on after such a test.",
        ]


def _list(title: str, names: list[str]) -> list[str]:
    if not names:
        return []
    shown = [f"  {name}" for name in names[:_SHOWN_TESTS]]
    if len(names) > _SHOWN_TESTS:
        shown.append(f"  … and {len(names) - _SHOWN_TESTS} more")
    return ["", f"{title}:", *shown]


def _title(text: str, line: str) -> str:
    return f" {text} ".center(_WIDTH, line)
