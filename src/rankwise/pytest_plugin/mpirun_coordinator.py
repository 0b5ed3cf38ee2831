"""The process between the ranks of an `mpirun`. It uses the standard library only."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from rankwise.pytest_plugin import rank_status
from rankwise.pytest_plugin.connections import Exchange, Header, Name, listen_on_host, pair
from rankwise.pytest_plugin.rank_status import AFTER, HangWatch, Overdue, RankStatus, StatusFiles
from rankwise.pytest_plugin.schedulers.base import ScheduledTest
from rankwise.pytest_plugin.schedulers.dispatcher import (
    Dispatcher,
    RunningTest,
    ScheduledSuite,
    make_dispatcher,
)
from rankwise.pytest_plugin.stacks import (
    Stack,
    ask_for_stacks,
    describe_ranks,
    describe_stacks,
    hint_at_world,
    is_alive,
)

# The rank that says what the suite is, and reports.
_REPORTER = 0

# It has no terminal of its own to ask, and the output may go to a file.
_WIDTH = 80
_SHOWN_TESTS = 20
_PLACES = {"closing": "in closing fixtures after", "ending": "at the end of the process after"}
# Ranks that are told to end need no longer.
_ABORT_SECONDS = 5.0


class RunWatch:
    """Looks after the ranks, and ends the run when a test exceeds its time limit.

    Ranks of other machines cannot be seen or ended from here: then it only knows what ranks say.
    """

    def __init__(self, folder: str, width: int) -> None:
        self._is_one_machine = bool(folder)
        # Without a folder these are paths that cannot exist.
        where = Path(folder or os.devnull)
        self._files = [StatusFiles(where, str(rank)) for rank in range(width)]
        self._pids: dict[int, int] = {}
        self._watch: HangWatch[str] = HangWatch()
        self._names: list[str] = []
        self._root = Path()
        self._dispatcher: Dispatcher | None = None
        self._failures: dict[str, str] = {}
        self._has_ended = False
        self._has_told = False
        """Whether the reporter knows of ranks that do not come to their end."""
        self._kill_at: float | None = None
        self._lost: dict[int, str] = {}
        """Ranks that have ended without a word, and where; a launcher may end all others then."""

    @property
    def grace(self) -> float:
        return self._watch.grace

    def begin(self, header: Header, tests: list[list[Any]], dispatcher: Dispatcher) -> None:
        """Learn what the tests are."""
        self._watch = HangWatch([test[3] for test in tests], grace=header["grace"])
        self._names = [test[4] for test in tests]
        self._root = Path(header["root"])
        self._dispatcher = dispatcher

    def note(self, rank: int, header: Header) -> None:
        """Take in what a rank says about itself, or a failure that rank 0 has reported."""
        match header["kind"]:
            case "here" if self._is_one_machine:
                self._pids[rank] = int(header["pid"])
            case "rank_failed":
                self._watch.rank_failed(header["case"], rank, header["text"])
            case "repeats":
                self._watch.rank_repeats(header["case"], rank)
            case "noted":
                self._failures[header["test"]] = header["text"]

    def look(self) -> tuple[Header, bytes] | None:
        """End the run if a test exceeds its limit.

        After the last test the reporter is free to do that: return what it is to be told.
        """
        if self._dispatcher is None:
            return None
        if self._has_ended:
            if self._kill_at is not None and time.monotonic() > self._kill_at:
                self._kill()
            return None
        moments = {
            rank: moment
            for rank, files in enumerate(self._files)
            if (moment := files.read_status()) is not None
        }
        # A rank that failed in a test that is over puts no other one under the grace.
        self._watch.forget_all_but(self._running())
        overdue = self._watch.find(list(moments.values()))
        if not overdue or self._has_told:
            return None
        one = overdue[0]
        # While the reporter itself is in a test, or has to end, only this process can report.
        if one.phase in AFTER and self._dispatcher.finished and _REPORTER not in moments:
            self._has_told = True
            return self._tell(one, moments)
        self._end(one, moments)
        return None

    def _tell(self, one: Overdue, moments: Mapping[int, RankStatus]) -> tuple[Header, bytes]:
        """Say which ranks do not come to their end, and where they are."""
        header = {
            "kind": "overdue",
            "case": one.case,
            "phase": one.phase,
            "seconds": one.seconds,
            "limit": self._watch.limits[one.case],
            "name": self._names[one.case],
            "ranks": sorted(moments),
        }
        return header, json.dumps(self._stacks(moments)).encode()

    def _stacks(self, ranks: Iterable[int]) -> dict[int, Stack]:
        """Ask ranks where they are."""
        known = [rank for rank in ranks if rank in self._pids]
        return ask_for_stacks({one: (self._pids[one], self._files[one].stacks) for one in known})

    def _end(self, one: Overdue, moments: Mapping[int, RankStatus]) -> None:
        running = self._running().get(one.case)
        self._has_ended = True
        _print(
            [
                *("", _title(f"rankwise: {self._names[one.case]} was stopped", "=")),
                *self._explain(one, running, moments),
                *self._sum_up(one.case),
            ]
        )
        self._kill()

    def _kill(self, *, but: int | None = None) -> None:
        self._kill_at = None
        for rank, pid in self._pids.items():
            if rank != but:
                with contextlib.suppress(OSError):
                    # On Windows any signal ends a process at once.
                    os.kill(pid, getattr(signal, "SIGKILL", signal.SIGTERM))

    # Ranks that leave

    def where(self, rank: int) -> str:
        """Return which test a rank is at, as far as that is known."""
        moment = self._files[rank].read_status()
        if moment is not None and self._names:
            phase = _PLACES.get(moment.phase, f"in {moment.phase} of")
            return f" {phase} {self._names[moment.case]}"
        running_tests = self._running().values()
        cases = [running.case for running in running_tests if rank in running.at_it]
        return f" in {self._names[cases[0]]}" if cases else ""

    def note_lost(self, rank: int) -> None:
        """Learn that a process has ended: ranks that wait for it in a test get the grace."""
        self._lost[rank] = self.where(rank)
        for case, running in self._running().items():
            if rank in running.at_it:
                text = "its process has ended (os._exit, or exit of a C library)"
                self._watch.rank_failed(case, rank, text)

    def give_up(self, rank: int, reason: str) -> None:
        """Report that a rank has ended the run and others wait; soon it, or else we, end them."""
        self._has_ended = True
        self._kill_at = time.monotonic() + _ABORT_SECONDS
        stacks = self._stacks(one for one in self._pids if one != rank)
        size = len(self._files)
        who = describe_ranks([rank], size)
        _print(
            [
                *("", _title(f"rankwise: {who} has ended the run: {reason}", "=")),
                f"E   the others did not end within {self.grace:g} s",
                *("", _title("where the others wait", "-")),
                *describe_stacks(stacks, size, self._root),
                *self._sum_up(None),
            ]
        )

    def report_lost(self) -> None:
        """Report that the rank is gone that would have reported."""
        if self._has_ended:
            return
        self._has_ended = True
        size = len(self._files)
        lost = self._lost or {_REPORTER: self.where(_REPORTER)}
        lines = ["", _title(f"rankwise: {describe_ranks(list(lost), size)} exited", "=")]
        for rank, where in lost.items():
            words = "exited unexpectedly (os._exit, a signal, or exit of a C library)"
            lines.append(f"E   {describe_ranks([rank], size)} {words}{where}")
        _print([*lines, *self._sum_up(None)])

    def end_others(self) -> None:
        """Let no rank wait for one that is gone: kill each that does not end by itself."""
        deadline = time.monotonic() + _ABORT_SECONDS
        others = [pid for rank, pid in self._pids.items() if rank != _REPORTER]
        while any(map(is_alive, others)) and time.monotonic() < deadline:
            time.sleep(0.05)
        self._kill(but=_REPORTER)

    def _running(self) -> dict[int, RunningTest]:
        if self._dispatcher is None:
            return {}
        found = self._dispatcher.running_tests(range(len(self._files)))
        return {running.case: running for running in found}

    def _explain(
        self, one: Overdue, running: RunningTest | None, moments: Mapping[int, RankStatus]
    ) -> list[str]:
        ranks = list(running.workers) if running is not None else sorted(moments)
        places = {rank: place for place, rank in enumerate(ranks)}
        size = len(ranks)
        texts = self._watch.failures_of(one.case)
        if one.why == "grace":
            who = describe_ranks([places[rank] for rank in texts if rank in places], size)
            headline = rank_status.describe_grace(who, self._watch.grace)
        else:
            limit = self._watch.limits[one.case]
            headline = rank_status.describe_overdue(self._names[one.case], limit, one.phase)
        lines = [f"E   {headline}"]
        for rank, text in sorted(texts.items()):
            if rank in places:
                who = describe_ranks([places[rank]], size)
                lines += ["", _title(f"{who} failed first", "-"), text]
        done = running.bodies if running is not None else {}
        found = self._stacks(rank for rank in ranks if rank not in done)
        stacks = {places[rank]: stack for rank, stack in found.items()}
        title = "where the others wait" if texts else "where every rank is"
        lines += ["", _title(title, "-"), *describe_stacks(stacks, size, self._root)]
        hint = hint_at_world(stacks, size, len(self._files))
        if hint and one.why == "limit" and one.phase not in AFTER:
            lines += ["", _title("what it may wait for", "-"), hint]
        return lines

    def _sum_up(self, ended: int | None) -> list[str]:
        if self._dispatcher is None:
            return []
        lines = []
        for name, text in self._failures.items():
            lines += ["", _title(f"{name} failed before", "="), text]
        others = [self._names[case] for case in sorted(self._running()) if case != ended]
        not_run = [self._names[case] for case in self._dispatcher.not_started()]
        failed = len(self._failures)
        counts = (
            f"{int(ended is not None)} stopped, {failed} failed, "
            f"{self._dispatcher.completed - failed} passed or skipped, "
            f"{len(others)} not finished, {len(not_run)} not run: all ranks are stopped"
        )
        return [
            *(*lines, *_list("not finished", others), *_list("not run", not_run)),
            *("", _title(counts, "=")),
            "To run the other tests as well, use `pytest --n-workers=N` instead of mpirun.",
        ]


def _print(lines: list[str]) -> None:
    # The terminal may be gone.
    with contextlib.suppress(OSError):
        print("\n".join(lines), file=sys.stderr, flush=True)


def _list(title: str, names: list[str]) -> list[str]:
    if not names:
        return []
    shown = [f"  {name}" for name in names[:_SHOWN_TESTS]]
    if len(names) > _SHOWN_TESTS:
        shown.append(f"  … and {len(names) - _SHOWN_TESTS} more")
    return ["", f"{title}:", *shown]


def _title(text: str, line: str) -> str:
    return f" {text} ".center(_WIDTH, line)


_LOOK_SECONDS = 0.2
_GOODBYE_SECONDS = 1.0
# pytest's exit code for a run that was interrupted.
_INTERRUPTED = 2


class _AbortRequest(NamedTuple):
    """A rank has ended the run by itself, and wants all the others to end."""

    rank: int
    since: float
    reason: str
    code: int


class Coordinator:
    """Connects `width` ranks and a dispatcher; rank 0 says what the suite is."""

    def __init__(
        self, listener: socket.socket, secret: str, *, width: int, folder: str = ""
    ) -> None:
        self._width = width
        self._watch = RunWatch(folder, width)
        self._lines = Exchange(
            listener,
            secret,
            is_expected=lambda name: type(name) is int and 0 <= name < width,
            on_message=self._take,
            on_gone=self._gone,
            on_stranger=lambda reason: _print([f"rankwise: dropped a connection: {reason}"]),
        )
        self._dispatcher: Dispatcher | None = None
        self._closed = False
        self._has_reporter = False
        self._departed: set[Name] = set()
        """Ranks that have said goodbye: who has not and is gone was ended by something else."""
        self._abort_request: _AbortRequest | None = None
        self._has_reporter_stopped = False
        """Whether the reporter has left the tests: then it waits for no rank in one of them."""

    def tether(self, lifeline: socket.socket) -> None:
        """End when this line ends: the process at its other side is gone then."""
        self._lines.tether(lifeline, self._end)

    def run(self) -> None:
        """Serve until the reporter or the lifeline is gone, then hang up."""
        while not self._closed:
            is_awake = self._dispatcher is not None or self._abort_request is not None
            self._lines.step(_LOOK_SECONDS if is_awake else None)
            if told := self._watch.look():
                self._lines.send(_REPORTER, *told)
            self._abort_if_due()
        self._hear_goodbye()
        is_orderly = _REPORTER in self._departed or not self._has_reporter
        if is_orderly:
            # The others wait for what comes next, or for this.
            self._share({"kind": "finish"}, b"")
            self._share({"kind": "over"}, b"")
            self._lines.flush()
        else:
            self._watch.report_lost()
        # Closed lines are what ranks that wait for a message see: most end by themselves then.
        self._lines.close()
        if not is_orderly:
            self._watch.end_others()

    def _hear_goodbye(self) -> None:
        """Read what the reporter has sent before it hung up."""
        deadline = time.monotonic() + _GOODBYE_SECONDS
        while self._lines.has(_REPORTER) and _REPORTER not in self._departed:
            self._lines.step(0.05)
            if time.monotonic() > deadline:
                return

    def _abort_if_due(self) -> None:
        """Let a rank end all the others if it has ended the run and the reporter waits for it."""
        request = self._abort_request
        if request is None or time.monotonic() - request.since <= self._watch.grace:
            return
        self._abort_request = None
        self._watch.give_up(request.rank, request.reason)
        # The rank calls MPI_Abort, by which the launcher also ends ranks of other machines.
        self._lines.send(request.rank, {"kind": "abort", "code": request.code})
        self._lines.flush()

    def _end(self) -> None:
        self._closed = True

    def _gone(self, rank: Name) -> None:
        if rank == _REPORTER:
            self._closed = True
            return
        left = rank in self._departed
        where = "" if left else self._watch.where(int(rank))
        header = {"kind": "gone", "rank": rank, "lost": not left, "where": where}
        self._lines.send(_REPORTER, header)
        if not left and self._dispatcher is not None:
            self._watch.note_lost(int(rank))

    def _take(self, rank: Name, header: Header, body: bytes) -> None:
        assert isinstance(rank, int), f"{rank!r} is no rank"
        dispatcher = self._dispatcher
        self._has_reporter = self._has_reporter or rank == _REPORTER
        match header["kind"]:
            case "begin":
                dispatcher = self._dispatcher = self._begin(header, json.loads(body))
            case "here" | "rank_failed" | "repeats" | "noted":
                self._watch.note(rank, header)
            case "done" if dispatcher is not None:
                dispatcher.done(rank, header, body)
            case "logged" if dispatcher is not None:
                dispatcher.logged(header["case"])
            case "stopped" if dispatcher is not None:
                dispatcher.halt(header)
            case "stop" if dispatcher is not None:
                self._abort_request = None
                self._has_reporter_stopped |= header.get("at_once", False)
                dispatcher.stop(at_once=header.get("at_once", False))
            case "stop":
                self._share({"kind": "finish"}, b"")
            case "share":
                self._share({**header, "kind": header["what"]}, body)
            case _:
                self._pass_on(rank, header, body)
        # Each message may make the dispatcher decide something, also for other ranks.
        while dispatcher is not None and dispatcher.outbox:
            self._lines.send(*dispatcher.outbox.popleft())

    def _begin(self, header: Header, tests: list[list[Any]]) -> Dispatcher:
        """Start with the first tests."""
        cases = [
            ScheduledTest(
                index=index,
                size=self._width if exclusive and not header["aligned"] else size,
                seconds=seconds,
                exclusive=exclusive,
                ranks=size,
            )
            for index, (size, seconds, _, _, _, exclusive) in enumerate(tests)
        ]
        dispatcher = make_dispatcher(
            header["scheduler"],
            ScheduledSuite(cases=cases, groups=[test[2] for test in tests]),
            width=self._width,
            careful=header["careful"],
            strict=header["strict"],
            maxfail=header["maxfail"],
            domains=header["domains"],
        )
        self._watch.begin(header, tests, dispatcher)
        dispatcher.begin()
        return dispatcher

    def _pass_on(self, rank: int, header: Header, body: bytes) -> None:
        """Pass on to the reporter what is for it alone."""
        if header["kind"] == "bye":
            self._departed.add(rank)
        if header["kind"] == "interrupt" and self._dispatcher is not None:
            # The reporter may be in a long test, or have much to report before it knows.
            self._dispatcher.stop()
            if not self._has_reporter_stopped:
                code = _INTERRUPTED if header["code"] is None else int(header["code"])
                request = _AbortRequest(rank, time.monotonic(), header["reason"], code)
                self._abort_request = self._abort_request or request
        self._lines.send(_REPORTER, {**header, "rank": rank}, body)

    def _share(self, header: Header, body: bytes) -> None:
        """Send to every rank but the reporter, also those that have yet to connect."""
        for rank in range(self._width):
            if rank != _REPORTER:
                self._lines.send(rank, header, body)


def serve(descriptor: int) -> None:
    """Serve a run, as the process at the other end of the line `descriptor` says."""
    with socket.socket(fileno=descriptor) as line:
        # Not what a module of the user's may have set for all new sockets.
        line.settimeout(None)
        # Rank 0 sends this when MPI has started: only then it is known where the ranks are.
        message, descriptors, _, _ = socket.recv_fds(line, 4096, 1)
        if message:
            _serve(line, socket.socket(fileno=descriptors[0]), json.loads(message))


def serve_by_pipes() -> None:
    """Serve a run as the standard input says, and print where: Windows passes no sockets on."""
    if not (message := sys.stdin.readline()):
        return
    settings = json.loads(message)
    listener, address = listen_on_host(settings["host"])
    print(json.dumps(asdict(address)), flush=True)
    line, end = pair()

    def await_end() -> None:
        with end:
            sys.stdin.read()

    # No selector there waits for a pipe.
    threading.Thread(target=await_end, daemon=True).start()
    with line:
        _serve(line, listener, settings)


def _serve(line: socket.socket, listener: socket.socket, settings: Mapping[str, Any]) -> None:
    folder = settings["folder"]
    with listener:
        coordinator = Coordinator(
            listener, settings["secret"], width=settings["width"], folder=folder
        )
        coordinator.tether(line)
        try:
            coordinator.run()
        finally:
            # Leave nothing behind, also if rank 0 was killed before it could tidy up.
            if folder:
                shutil.rmtree(folder, ignore_errors=True)
