"""The runner: starts the processes of one attempt, waits for them, ends them, writes the outcome.

The records of a process are in processes/NAME: start.json, end.json and its output.
What all of them use over time is in usage.json, beside `processes`: for those on another node, in
their own folders.
"""

from __future__ import annotations

import os
import select
import time

from .files import Records, claim, discard, own_command, read_record, say, shared_memory, temporary
from .machine import machine_reading, usage_for
from .order import BAD_ORDER, read_order
from .outcome import (
    AT_ONCE_SECONDS,
    CANCELLED,
    END_FIELDS,
    RECORD_SECONDS,
    MissingRanks,
    RankRecords,
    failed,
    judge,
    outcome,
)
from .output import OutputStream, Redactor, drop_secrets
from .placeholders import check_secrets, prepare
from .processes import (
    CANCEL_SIGNALS,
    ENDING_SIGNALS,
    OUR_FAULT,
    OUR_IGNORED,
    PR_SET_CHILD_SUBREAPER,
    SWEEP_SECONDS,
    UNHEEDED_SIGNALS,
    Child,
    be_prompt,
    empty,
    prctl,
    reaped,
    send,
    signal,
    signal_name,
    sweep,
    wake_up_by_signals,
)
from .rank import enter_node

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from .limits import Limits
    from .order import Order, ProcessOrder

# How often the records of ranks are read. They are on a disk that nodes may share.
LOOK_SECONDS = 0.25
# How long records are tried to be written while that fails.
PATIENCE_SECONDS = 15.0
TIMED_OUT = 124


class RunningProcess(Child):
    """One process of the order."""

    def __init__(self, order: Order, about: ProcessOrder) -> None:
        self.name = about.name
        super().__init__(f"{order.folder}/processes/{self.name}", about.data(), order.log_bytes)
        self.about = about
        # The words that start something on its node; none: it is the runner's own.
        self.reach: Sequence[str] = ()
        # A pipe to what runs it on its node. Nothing is written to it: its end is the order to end.
        self.line = -1
        # Whether what runs it on its node has written how it ended.
        self.has_own_records = False

    def note_end(self, status: int, usage: Any) -> None:
        super().note_end(status, usage)
        assert self.end is not None
        self.hang_up()
        if self.reach:
            self.end = self._end_on_its_node() or {**self.end, "is_lost": True}

    def _end_on_its_node(self) -> dict[str, Any] | None:
        deadline = time.monotonic() + RECORD_SECONDS
        while not (record := read_record(f"{self.folder}/end.json", *END_FIELDS)):
            if time.monotonic() > deadline or self.is_ended_by_us:
                return None
            time.sleep(0.1)
        # On its node it is not known who has sent a signal: what we have not ordered is not ours.
        self.has_own_records = not self.is_ended_by_us
        return {**record, "by_us": self.is_ended_by_us}

    def ask_to_end(self) -> None:
        """Have it end by itself, if it does."""
        self.is_ended_by_us = True
        if self.reach:
            self.hang_up()
        else:
            send(self.pid, signal.SIGTERM)

    def hang_up(self) -> None:
        """Close the pipe to what runs it on its node, which ends it then."""
        if self.line >= 0:
            os.close(self.line)
            self.line = -1

    def kill(self) -> None:
        """Have it killed; srun kills what it has started when it is asked to end."""
        send(self.pid, signal.SIGTERM if self.reach else signal.SIGKILL)


class Runner:
    """All processes of an attempt, from their start to the end of the last one.

    One that fails ends all: the others may end by themselves for a while (`grace`), are then asked
    to, and killed if that does not help within `grace` again.
    """

    def __init__(self, order: Order, awake: int) -> None:
        self.processes = [RunningProcess(order, about) for about in order.processes]
        awaited = [process for process in self.processes if process.about.is_awaited]
        self._awaited = awaited or self.processes
        self._is_spoken_for = any(one.speaks_for_ranks for one in order.processes)
        # What ends it before its time: `failed`, `timed out`, `cancelled`.
        self.cause = ""
        self.signals: list[int] = []
        self._order = order
        self._awake = awake
        self._records = Records()
        names = [process.name for process in self.processes]
        self._ranks = RankRecords(f"{order.folder}/processes", names)
        self._missing = MissingRanks(self._ranks, order, lambda: bool(self._failures(is_over=True)))
        self._poll = select.poll()
        self._poll.register(awake, select.POLLIN)
        self._streams: dict[int, OutputStream] = {}
        self._limit = self._next_beat = self._next_look = float("inf")
        # When the patience with those that still run ends.
        self._deadline: float | None = None
        self._is_ending = False
        self._before: dict[str, Any] | None = None
        self._usage = usage_for(order, order.folder)
        self._limits: Limits | None = None

    def start(self, secrets: Mapping[str, str]) -> None:
        """Start all processes, or none if the attempt is cancelled already."""
        order = self._order
        self._before = machine_reading() if order.is_measured else None
        # All before the first one starts: after a wrong mark, none of them must run.
        prepared = prepare(order)
        if order.has_limits:
            from .limits import Limits

            self._limits = Limits(order)
            self._order = self._limits.begin()
            for process, about in zip(self.processes, self._order.processes, strict=True):
                process.about = about
        # Once for all of them: to spell a long key in many ways takes long.
        redactor = Redactor(list(secrets.values()))
        fixed = {**secrets, "RANKWISE_SECRETS": ",".join(secrets)} if secrets else {}
        for process, (command, variables) in zip(self.processes, prepared, strict=True):
            if self.signals:
                self.cause = "cancelled"
                process.is_ended_by_us = True
                process.fail("it was cancelled before it started")
            else:
                self._start(process, command, {**variables, **fixed}, redactor)
            self._note_start(process)
        be_prompt()
        now = time.monotonic()
        if order.timeout is not None:
            self._limit = now + order.timeout
        self._next_beat, self._next_look = now, now + LOOK_SECONDS

    def _start(
        self,
        process: RunningProcess,
        command: Sequence[str],
        environment: dict[str, str],
        redactor: Redactor,
    ) -> None:
        order, about = self._order, process.about
        process.reach = order.nodes[about.node].reach or ()
        if not process.reach:
            process.start(
                command, environment, lambda: enter_node(order, about, environment), redactor
            )
            return
        there, process.line = os.pipe()

        def connect() -> None:
            os.setsid()
            os.dup2(there, 0)

        own = [*own_command(), "remote", order.folder, process.name]
        process.start([*process.reach, *own, *command], environment, connect, None)
        os.close(there)

    def _note_start(self, process: RunningProcess) -> None:
        if not process.reach or process.end:
            self._records.put(f"{process.folder}/start.json", process.start_record())
        for stream in process.streams:
            self._streams[stream.source] = stream
            self._poll.register(stream.source, select.POLLIN)
        self._note_end(process)

    def _note_end(self, process: RunningProcess) -> None:
        self._forget_closed()
        if process.end and not process.has_own_records:
            self._records.put(f"{process.folder}/end.json", process.end)

    def wait(self) -> None:
        """Wait until all have ended, or the patience with them has."""
        while running := self._running():
            self._pump()
            self._reap()
            now = time.monotonic()
            self._show_life(now)
            if self._is_ending and self._deadline is not None and now >= self._deadline:
                for process in running:
                    process.is_ended_by_us = True
                return
            self._decide(now)

    def finish(self, *, is_reaper: bool) -> dict[str, Any]:
        """Kill what is left, write all records but the last, and return the attempt's outcome."""
        self._reap_killed()
        if not self.cause:
            self._end_all(time.monotonic(), "")
        if left := sweep(self._order.marker, is_reaper=is_reaper):
            say(f"could not kill {', '.join(map(str, left))}")
        for stream in list(self._streams.values()):
            stream.drain()
            stream.close()
        self._usage.close()
        if self._before is not None:
            readings = {"before": self._before, "after": machine_reading()}
            self._records.put(f"{self._order.folder}/conditions.json", readings)
        self._ranks.look()
        end = self._judge()
        if self._limits:
            end = self._limits.explain(end)
        self._ranks.complete(self._records, end)
        return end

    def _running(self) -> list[RunningProcess]:
        return [process for process in self.processes if process.end is None]

    def _pump(self) -> None:
        """Wait until something happens, and take what processes have written."""
        times = [self._next_beat, self._next_look, self._limit, self._usage.due]
        times.append(self._deadline or self._next_beat)
        seconds = max(0.0, min(times) - time.monotonic())
        # Rounded up: the loop would spin through the last millisecond.
        for descriptor, _ in self._poll.poll(seconds * 1000 + 1):
            if descriptor == self._awake:
                empty(self._awake)
                continue
            self._streams[descriptor].pump()
        self._forget_closed()

    def _forget_closed(self) -> None:
        closed = [number for number, stream in self._streams.items() if stream.source < 0]
        for descriptor in closed:
            self._poll.unregister(descriptor)
            del self._streams[descriptor]

    def _reap(self) -> None:
        for pid, status, usage in reaped():
            process = next((one for one in self._running() if one.pid == pid), None)
            if process:  # Others are orphans, which the kernel gives to us.
                process.note_end(status, usage)
                self._note_end(process)

    def _reap_killed(self) -> None:
        """Kill the groups that did not end when asked, and wait for the processes of the order."""
        for process in self._running():
            process.kill()
        deadline = time.monotonic() + SWEEP_SECONDS
        while self._running() and time.monotonic() < deadline:
            self._reap()
            time.sleep(0.005)
        for process in self._running():
            process.give_up()
            self._note_end(process)

    def _show_life(self, now: float) -> None:
        if now >= self._next_beat:
            self._records.retry()
            self._usage.write()
            self._next_beat = now + self._order.heartbeat
        if now >= self._usage.due:
            self._usage.look()
        if now >= self._next_look:
            self._ranks.look()
            self._next_look = now + LOOK_SECONDS

    def _decide(self, now: float) -> None:
        """See whether it is time to end the processes."""
        if self.signals:
            self._end_all(now, "cancelled")
            if len(self.signals) > 1:
                self._deadline = now  # A user who asks twice does not want to wait.
        elif now >= self._limit:
            self._end_all(now, "timed out")
        elif all(process.end for process in self._awaited):
            self._end_all(now, "")
        elif self._is_ending:
            return
        elif not self._failures():
            self._deadline = None  # A rank that had failed was started again.
        elif self._deadline is None:
            self._deadline = now + self._order.grace
        elif now >= self._deadline:
            self._end_all(now, "failed")

    def _failures(self, *, is_over: bool = False) -> list[dict[str, Any]]:
        """Return the records of what has failed, or was ended without our order."""
        vital = [process for process in self.processes if process.about.is_vital]
        own = [{**one.end, "who": one.name} for one in vital if one.end and failed(one.end)]
        return own if self._is_spoken_for else own + self._ranks.failures(is_over=is_over)

    def _is_cancelled_too(self, record: Mapping[str, Any]) -> bool:
        """Return whether the cancel itself ended a process: batch systems signal all processes."""
        if self._order.nodes[0].reach is None:
            return False
        is_signalled = record.get("told") or record["signal"] in ENDING_SIGNALS
        return is_signalled or record["ended"] >= time.time() - AT_ONCE_SECONDS

    def _end_all(self, now: float, cause: str) -> None:
        """Ask all that run to end; only once, as the first cause is the one that counts.

        Without a cause, what was waited for has ended.
        """
        if self._is_ending:
            return
        is_over = not cause
        if is_over:
            self._missing.wait()
        self._missing.note(is_over=is_over)
        failures = self._failures()
        if cause == "cancelled":
            failures = [one for one in failures if not self._is_cancelled_too(one)]
        self.cause = "failed" if failures else cause
        self._is_ending = True
        self._ranks.is_ordered = True
        # It is over already: only the patience counts from here on.
        self._limit = float("inf")
        self._deadline = now + self._order.grace
        for process in self._running():
            process.ask_to_end()

    def _judge(self) -> dict[str, Any]:
        """Return the outcome: of what ended the attempt from outside, or of its processes."""
        if self.cause == "timed out":
            reason = f"the time limit of {self._order.timeout:g} s was reached"
            return outcome("timed out", TIMED_OUT, reason)
        if self.cause == "cancelled":
            number = self.signals[0]
            return outcome("cancelled", CANCELLED, f"by signal {number}{signal_name(number)}")
        failures = self._failures(is_over=True)
        return judge(self._ranks, failures, is_spoken_for=self._is_spoken_for)

    def close(self, end: Mapping[str, Any]) -> None:
        """Write the attempt's end, after everything else."""
        # A client that sees the end reads all other records at once.
        self._records.insist(PATIENCE_SECONDS)
        self._records.put(f"{self._order.folder}/end.json", end)
        self._records.insist(PATIENCE_SECONDS)


def run_order(folder: str, given: Mapping[str, str] | None = None) -> int:
    """Run an order to its end, and return the exit code.

    The values of secrets are given, or read from the standard input.
    """
    started = time.time()
    try:
        order = read_order(folder)
        signals: list[int] = []
        for number in UNHEEDED_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
            OUR_IGNORED.append(number)
        for number in CANCEL_SIGNALS:
            signal.signal(number, lambda number, _: signals.append(number))
        # From here on, a signal cancels the attempt, also if no process has started yet.
        runner = Runner(order, wake_up_by_signals())
        runner.signals = signals
        lock = claim(folder)
    except BAD_ORDER as error:
        say(f"cannot use {folder}/order.json: {error!r}")
        return OUR_FAULT
    if lock is None:
        say(f"another process has taken {folder}")
        return OUR_FAULT
    # Orphans of our processes become our children, so that the sweep finds all of them.
    is_reaper = prctl(PR_SET_CHILD_SUBREAPER, 1)
    end: dict[str, Any] = outcome("failed", OUR_FAULT, "")
    try:
        secrets = check_secrets(order, given)
        runner.start(secrets)
        runner.wait()
        end = runner.finish(is_reaper=is_reaper)
        drop_secrets(f"{folder}/exports", list(secrets.values()))
    except Exception as error:  # Whatever it is, a client waits for an outcome.
        end["reason"] = f"the runner could not go on: {error}"
        import traceback

        traceback.print_exc()
        sweep(order.marker, is_reaper=is_reaper)
    place = temporary(order.marker)
    for path in (shared_memory(order.marker), place, f"{place}.folder"):
        discard(path)
    runner.close({**end, "started": started, "ended": time.time()})
    return int(end["exit_code"]) & 0xFF or int(end["outcome"] != "passed")
