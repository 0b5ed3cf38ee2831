"""Drives a run to its end: starts the tasks that can start, and records how they end."""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from queue import Empty
from typing import Any

from rankwise.backends import base
from rankwise.backends.base import Attempt, Backend, Submission, Update, Updates
from rankwise.engine.queue import GivenUp, Queue, Queued
from rankwise.engine.reuse import EarlierTasks
from rankwise.engine.runs import start_children, start_submitted, submitted
from rankwise.engine.verdict import CANCELLED_CODE, FAILURES, Functions, RunEnd, RunVerdict, measure
from rankwise.errors import ComputeFailure, InputError
from rankwise.machine import shortfall
from rankwise.plan import Resources, RuntimeChoice, Task, claim_of
from rankwise.records import AttemptEnd, read_processes
from rankwise.runtimes.base import PreparedRuntime
from rankwise.runtimes.preparing import SLOW_KINDS, Preparing
from rankwise.store import AttemptRow, Outcome, ResultRow, State, Store, TaskRow
from rankwise.store.rows import Event, Kind, Observer

_WAIT_SECONDS = 0.5
# A backend may not hear a cancel, or lose it: it is repeated until the attempt has ended.
_CANCEL_SECONDS = 0.5
# How long backends may take to look, before a look goes without them.
_LOOK_SECONDS = 180.0
# How often to look whether an attempt has submitted something.
_SUBMITTED_SECONDS = 2.0
_Runtimes = dict[RuntimeChoice, PreparedRuntime]


@dataclass(slots=True, kw_only=True)
class _Running:
    """An attempt that is under way, from its submit to its end."""

    attempt: Attempt
    number: int
    queued: Queued
    task: Task
    has_started: bool = False


class Drive:
    """One run, being driven by this process and no other: see `engine.lock`."""

    def __init__(
        self,
        store: Store,
        run: str,
        rows: Sequence[TaskRow],
        computes: Mapping[str, Backend],
        updates: Updates,
        *,
        prepare: Callable[[RuntimeChoice], PreparedRuntime],
        observer: Observer,
        secrets: Mapping[str, str],
        functions: Functions = "call",
    ) -> None:
        self._store = store
        self._run = run
        self._rows = rows
        """All tasks with their bodies, until the queue is filled."""
        self._computes = computes
        self._updates = updates
        self._observer = observer
        self._secrets = secrets
        self._functions = functions
        self._preparing = Preparing(prepare)
        self._parked: list[tuple[RuntimeChoice, Queued]] = []
        """Tasks whose runtime is being prepared."""
        self._earlier = EarlierTasks(store, run)
        self._running: dict[str, _Running] = {}
        """By the markers of their attempts."""
        self._look_at, self._cancel_at = time.monotonic() + _SUBMITTED_SECONDS, 0.0
        self._remarks: set[str] = set()
        """What was said of measurements."""
        self._sending: set[str] = set()
        """Backends that are to send what was submitted."""
        # One backend may have several names: what runs there is counted once, under the first.
        first = {id(computes[name]): name for name in reversed(list(computes))}
        self._pools = {name: first[id(compute)] for name, compute in computes.items()}
        self._facts = {name: computes[name].facts() for name in first.values()}
        self._is_cancelled = False
        self.is_cancel_wanted = False
        """Set to have the run end; a signal handler may."""
        self._culprit = ""
        """The task whose failure ends the run, as the plan says."""
        self._is_ending = False

    def go(self) -> RunEnd:
        """Go on until every task is over."""
        self._store.run_started(self._run, now=time.time())
        self._tell("run started")
        self._take_up()
        while self._queue.waiting or self._running or self._parked:
            is_wanted = self.is_cancel_wanted or self._store.wanted(self._run) == "cancel"
            if is_wanted and not self._is_cancelled:
                self._is_cancelled = True
                self._start_no_more("cancelled")
            if self._culprit and not self._is_ending and not self._is_cancelled:
                self._is_ending = True
                self._start_no_more(self._why_over)
            self._repeat_cancel()
            self._start_what_fits()
            # Never for long: a cancel may come by way of the store, which wakes no thread.
            if self._running:
                self._wait(_WAIT_SECONDS)
            elif self._parked:
                self._preparing.wait(_WAIT_SECONDS)
        self._close()
        return self._finish()

    def look(self) -> bool:
        """Record what has ended meanwhile, start nothing; return whether everything is over."""
        try:
            self._take_up()
            self._ask_backends()
        finally:
            self._close()
        if self._queue.waiting or self._running:
            return False
        self._finish()
        return True

    def _ask_backends(self) -> None:
        """Have the backends of all that runs report what is over by now."""
        asked = {running.queued.compute for running in self._running.values()}
        for name in asked:
            self._computes[name].look()
        answers, deadline = 0, time.monotonic() + _LOOK_SECONDS
        while answers < len(asked) and (left := deadline - time.monotonic()) > 0:
            for update in self._arrived(left):
                answers += update.has_looked
                self._record(update)

    def _close(self) -> None:
        """Close the backends, and record what they still report."""
        for name in self._facts:
            self._computes[name].close()
        # An end that arrived meanwhile must not wait for the next `resume`.
        for update in self._arrived(0.0):
            self._record(update)

    def _start_no_more(self, why: str) -> None:
        """Cancel the run: what waits never starts, and what runs is ended."""
        self._tell("notice", reason=f"{why}: stopping what still runs")
        self._queue_parked(all_of_them=True)
        self._give_up(self._queue.give_up_all(self._why_over))

    @property
    def _why_over(self) -> str:
        """Return why nothing more is started; empty: more may be."""
        if self._is_ending:
            return f"fail-fast: {self._culprit} did not pass"
        return "the run was cancelled" if self._is_cancelled else ""

    def _repeat_cancel(self) -> None:
        """Cancel all that runs, if the run is to end, again and again until it has ended."""
        if self._why_over and time.monotonic() >= self._cancel_at:
            self._cancel_at = time.monotonic() + _CANCEL_SECONDS
            for running in self._running.values():
                self._computes[running.queued.compute].cancel(running.attempt)

    # Beginning, for the first time or again

    def _take_up(self) -> None:
        """Find out what is still to be done, and what runners are doing already."""
        rows, self._rows = self._rows, ()
        tasks = {row.key: row.body for row in rows if row.body is not None}
        self._verdict = RunVerdict(tasks.values())
        for row in rows:
            if row.state.is_over:
                self._verdict.count(row.key, row.state, row.exit_code, row.reason)
                self._note_culprit(tasks[row.key], row.state)
        names = {name for task in tasks.values() for name in task.secrets}
        # Before anything is stored: reasons quote output, in which values may stand.
        if names:
            self._store.keep_out(self._secrets[name] for name in names if name in self._secrets)
        # Read only if there can be some: a large run has as many attempts as tasks.
        attempts: list[AttemptRow] = []
        if any(row.attempts for row in rows if not row.state.is_over):
            attempts = [row for row in self._store.attempts(self._run) if not row.state.is_over]
        under_way = {attempt.task for attempt in attempts}
        self._queue = Queue(
            passed=[row.key for row in rows if row.state is State.PASSED],
            free={name: one.room for name, one in self._facts.items()},
            widths=_widths(tasks.values()),
            tasks=[
                self._queued(tasks[row.key])
                for row in rows
                if not (row.state.is_over or tasks[row.key].skip or row.key in under_way)
            ],
        )
        given_up = list(self._queue.idle)
        for row in rows:
            if row.state.is_over:
                given_up += self._queue.over(row.key, row.state)
            elif why := tasks[row.key].skip:
                is_well = tasks[row.key].is_optional
                given_up += self._queue.left_out(row.key, why, is_well=is_well)
        self._give_up(given_up)
        for attempt in attempts:
            self._adopt(attempt, tasks[attempt.task])

    def _queued(self, task: Task) -> Queued:
        pool = self._pools[task.compute]
        return Queued(
            key=task.key,
            needs=task.needs,
            when=task.when,
            compute=pool,
            claim=claim_of(task, self._facts[pool].capacity),
            lane=task.lane,
            is_optional=task.is_optional,
        )

    def _adopt(self, row: AttemptRow, task: Task) -> None:
        """Watch what another client has started, unless it was never started."""
        running = _Running(
            attempt=Attempt(
                label=f"{self._run}/{row.task}/{row.number}", marker=row.marker, folder=row.folder
            ),
            number=row.number,
            queued=self._queued(task),
            task=task,
            has_started=row.state is State.RUNNING,
        )
        self._watch(running)
        if self._functions == "leave" and (
            task.calls_functions or task.outputs or task.submits or submitted(row.folder)
        ):
            # Its end has programs run, and only the driver of a run may have that.
            return
        self._computes[running.queued.compute].adopt(running.attempt, row.job_id or "")
        if running.has_started:
            self._tell("task started", task=row.task, attempt=row.number, folder=row.folder)

    def _put_back(self, running: _Running) -> None:
        """Have a task wait again whose attempt was never started."""
        reason = "the client was ended before it could start it"
        outcome = Outcome(state=State.NOT_RUN, ended=time.time(), reason=reason)
        self._store.attempt_ended(self._run, running.task.key, running.number, outcome)
        self._queue.put_back(running.queued)
        if self._why_over:
            self._give_up(self._queue.give_up_all(self._why_over))

    # Starting

    def _queue_parked(self, *, all_of_them: bool = False) -> None:
        """Put tasks back into the queue whose runtime is ready, or cannot be had."""
        parked, self._parked = self._parked, []
        for choice, queued in parked:
            if all_of_them or self._preparing.is_over(choice):
                self._queue.put_back(queued)
            else:
                self._parked.append((choice, queued))

    def _start_what_fits(self) -> None:
        self._queue_parked()
        while (queued := self._queue.take()) is not None:
            self._start(queued)
        for name in self._sending:
            self._computes[name].look()
        self._sending.clear()
        # What does not fit into an empty machine never will.
        while not self._running and (misfit := self._queue.take_any()) is not None:
            self._leave_out_if_short(misfit, misfit.claim, otherwise="needs more than there is")

    def _leave_out_if_short(self, queued: Queued, claim: Resources, otherwise: str = "") -> bool:
        """End a task that needs more than its backend has; return whether it did."""
        capacity = self._computes[queued.compute].facts().capacity
        reason = shortfall(claim, capacity) or otherwise
        if reason:
            self._give_up(self._queue.left_out(queued.key, reason, is_well=queued.is_optional))
        return bool(reason)

    def _start(self, queued: Queued) -> None:
        row = self._store.task_row(self._run, queued.key, bodies=True)
        task, facts = row.body, self._facts[queued.compute]
        assert task is not None
        # A backend with a queue of its own takes anything, and would refuse it.
        if task.is_optional and self._leave_out_if_short(queued, task.resources):
            return
        try:
            if task.reuse is not None and self._is_taken_over(task):
                return
        except InputError as error:
            self._give_up(self._queue.left_out(task.key, str(error), is_well=False))
            return
        own = filter(None, map(attrgetter("runtime"), task.processes))
        runtimes = dict.fromkeys([task.runtime, *own], PreparedRuntime())
        for runtime in () if facts.makes_runtimes else runtimes:
            if runtime.kind in SLOW_KINDS and not self._preparing.is_over(runtime):
                self._parked.append((runtime, queued))
                return
        number = row.attempts + 1
        folder = self._computes[queued.compute].place(
            self._store.run_folder(self._run) / task.key / str(number)
        )
        label, marker = f"{self._run}/{task.key}/{number}", f"rw-{secrets.token_hex(8)}"
        attempt = Attempt(label=label, marker=marker, folder=folder)
        running = _Running(attempt=attempt, number=number, queued=queued, task=task)
        # The intent first: whatever happens next, it can be found out whether it was carried out.
        self._store.begin_attempt(
            self._run, task.key, marker=attempt.marker, folder=folder, now=time.time()
        )
        try:
            self._submit(running, runtimes, facts)
        # By the contract of backends, nothing was started then.
        except ComputeFailure as failure:
            self._end(running, base.not_run(str(failure)))
            return
        self._watch(running)
        if facts.sends_together:
            self._sending.add(queued.compute)

    def _is_taken_over(self, task: Task) -> bool:
        """Let a task have passed as it did before, if nothing has changed since."""
        digest, earlier = self._earlier.passed_before(task)
        if earlier is None:
            if digest:
                self._store.note_digest(self._run, task.key, digest)
            return False
        how = "unchanged since" if digest else "taken over from"
        reason = f"{how} {earlier.origin or earlier.run}"
        with self._at_once():
            if not self._store.take_over(
                self._run, task.key, earlier, reason=reason, now=time.time()
            ):
                return False
            self._earlier.link_artifacts(task, earlier)
            self._verdict.count(task.key, State.PASSED, 0)
            self._tell("task over", task=task.key, state=State.PASSED, exit_code=0, reason=reason)
            self._give_up(self._queue.over(task.key, State.PASSED))
        return True

    def _submit(self, running: _Running, made: _Runtimes, facts: base.BackendFacts) -> None:
        attempt, task = running.attempt, running.task
        missing = [name for name in task.secrets if name not in self._secrets]
        if missing:
            why = f"no value for the secret {missing[0]}: set it in the environment, and resume"
            raise ComputeFailure(why)
        try:
            attempt.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ComputeFailure(f"{attempt.folder}: {error.strerror}") from error
        values = {name: self._secrets[name] for name in task.secrets}
        if not facts.makes_runtimes:
            made = {one: self._preparing.prepared(one) for one in made}
        task, runtime = self._earlier.completed(task, made.pop(task.runtime))
        job = Submission(attempt=attempt, task=task, runtime=runtime, runtimes=made, secrets=values)
        self._computes[task.compute].submit(job)

    def _watch(self, running: _Running) -> None:
        # Counted also if it was adopted and does not fit: it runs already.
        self._running[running.attempt.marker] = running
        self._queue.enter(running.queued)

    # Ending

    def _wait(self, seconds: float) -> None:
        """Wait for updates from backends, and record them."""
        if time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + _SUBMITTED_SECONDS
            for running in self._running.values():
                self._start_submitted(running)
        # What was just started is reported already: that is nothing to be waited for.
        count = len(self._running)
        for update in self._arrived(0.0):
            self._record(update)
        if len(self._running) == count:
            for update in self._arrived(seconds):
                self._record(update)

    def _arrived(self, seconds: float) -> Iterator[Update]:
        """Wait for an update; return it, and those that have arrived behind it."""
        with contextlib.suppress(Empty):
            yield self._updates.get(timeout=seconds)
            while True:
                yield self._updates.get_nowait()

    def _record(self, update: Update) -> None:
        """Store an update, and tell the observer of it."""
        running = self._running.get(update.attempt.marker) if update.attempt else None
        if running is None:
            if update.text:
                self._tell("notice", reason=update.text)
            return
        if not update.is_absent and update.end is None:
            self._record_progress(running, update)
            return
        # Removed first: an update that comes after the end has no attempt any more.
        del self._running[running.attempt.marker]
        self._queue.leave(running.queued)
        if update.end is None:
            self._put_back(running)
        else:
            self._record_end(running, update.end)

    def _record_progress(self, running: _Running, update: Update) -> None:
        """Store what has become of an attempt that is not over."""
        task, number = running.task.key, running.number
        self._store.attempt_heard(
            self._run,
            task,
            number,
            job_id=update.job_id,
            has_started=update.has_started,
            waits=update.text,
            silence=update.silence,
            now=time.time(),
        )
        if update.has_started and not running.has_started:
            running.has_started = True
            self._tell("task started", task=task, attempt=number, folder=running.attempt.folder)
        if update.text:
            self._tell("notice", task=task, attempt=number, reason=update.text)

    def _record_end(self, running: _Running, end: AttemptEnd) -> None:
        """Judge how an attempt has ended, and store that."""
        task, folder = running.task, running.attempt.folder
        self._start_submitted(running)
        tests: Sequence[ResultRow] = ()
        if task.checks or task.results or task.measuring:
            end, tests = self._judge(running, end)
        if task.outputs:
            # Few tasks leave something for people.
            from rankwise.engine.verdict import copied_out

            redact = self._redact_for(task)
            end = copied_out(task, folder, running.attempt.label, end, redact)
        if task.reuse is not None and end.outcome == State.PASSED:
            try:
                self._earlier.note_outputs(task.reuse, folder)
            except (OSError, InputError) as error:
                reason = f"its outputs cannot be noted, so the next run makes them again: {error}"
                self._tell("notice", task=task.key, attempt=running.number, reason=reason)
        self._end(running, end, tests)

    def _judge(self, running: _Running, end: AttemptEnd) -> tuple[AttemptEnd, Sequence[ResultRow]]:
        """Return how an attempt has ended by its checks, and store what it has measured."""
        # Most tasks have neither checks nor measurements.
        from rankwise.checks.judge import judge

        task, folder = running.task, running.attempt.folder
        if task.calls_functions and self._functions == "refuse" and end.outcome == State.PASSED:
            reason = "cancelled before it was judged"
            end = dataclasses.replace(
                end, outcome=State.CANCELLED, exit_code=CANCELLED_CODE, reason=reason
            )
        redact = self._redact_for(task)
        end, tests = judge(task, folder, end, redact=redact)
        if task.measuring is None or end.outcome != State.PASSED:
            return end, tests
        found, conditions = measure(task, task.measuring.metrics, folder, end.started)
        # All cases of a sweep print the same: once is enough.
        for remark in sorted({*found.remarks} - self._remarks):
            self._remarks.add(remark)
            self._tell("notice", task=task.key, reason=f"{task.key}: {remark}")
        # A case that has measured nothing has failed, whatever its exit code.
        if found.faults:
            reason = "; ".join(map(redact, found.faults))
            return dataclasses.replace(end, outcome="failed", exit_code=1, reason=reason), tests
        if found.samples:
            case, key = task.measuring, (self._run, task.key, running.number)
            self._store.add_samples(
                *key, found.samples, case=case.case, trial=case.trial, conditions=conditions
            )
        return end, tests

    def _redact_for(self, task: Task) -> Callable[[str], str]:
        """Return what keeps the values of a task's secrets out of what is quoted.

        Where one is not known, as in another shell, nothing can be quoted.
        """
        unknown = [name for name in task.secrets if name not in self._secrets]
        if not unknown:
            return self._store.redact
        instead = f"(left out, as the value of the secret {unknown[0]} is not known here)"
        return lambda text: instead if text else ""

    def _start_submitted(self, running: _Running) -> None:
        """Start what an attempt has submitted: what it starts itself ends with it."""
        if self._functions == "call":
            for said in start_submitted(running.attempt.folder):
                self._tell("notice", task=running.task.key, attempt=running.number, reason=said)

    def _end(self, running: _Running, end: AttemptEnd, tests: Sequence[ResultRow] = ()) -> None:
        """Store how an attempt ended, and what follows from it."""
        task, folder = running.task, running.attempt.folder
        processes = read_processes(folder)
        state = State(end.outcome)
        if state is State.PASSED and task.submits and self._functions == "call":
            # Before the end is stored: to start them twice does no harm, to start them never does.
            start_children(self._store, self._run)
        if state is State.CANCELLED and self._is_ending:
            end = dataclasses.replace(end, reason=self._why_over)
        outcome = Outcome(
            state=state,
            started=end.started,
            ended=end.ended or time.time(),
            exit_code=end.exit_code,
            signal=end.signal,
            culprit=end.culprit,
            reason=end.reason,
        )
        # All of it or nothing: a client that is killed in between must not start it again.
        with self._at_once():
            self._store.attempt_ended(
                self._run, task.key, running.number, outcome, processes, tests=tests
            )
            self._tell(
                "attempt ended",
                task=task.key,
                attempt=running.number,
                state=state,
                exit_code=end.exit_code,
                reason=end.reason,
                culprit=end.culprit or "",
                folder=folder,
            )
            if not self._why_over and self._is_worth_another_try(task, end):
                self._queue.put_back(running.queued)
                return
            self._note_culprit(task, state)
            self._over(task.key, state, end.exit_code, end.reason)
            if given_up := self._queue.over(task.key, state):
                self._give_up(given_up)

    def _note_culprit(self, task: Task, state: State) -> None:
        if task.ends_run and state in FAILURES and not self._is_cancelled:
            self._culprit = self._culprit or task.key

    def _is_worth_another_try(self, task: Task, end: AttemptEnd) -> bool:
        codes = task.restart.on_exit_codes
        if not task.restart.most or end.outcome not in FAILURES:
            return False
        if codes and end.exit_code not in codes:
            return False
        # What never started is no try: a client was ended, or a backend refused it.
        attempts = self._store.attempts(self._run, task.key)
        return sum(row.state != State.NOT_RUN for row in attempts) <= task.restart.most

    def _give_up(self, tasks: Iterable[GivenUp]) -> None:
        state = State.CANCELLED if self._is_cancelled else State.NOT_RUN
        for task in tasks:
            is_well = task.is_well and not self._is_cancelled
            self._over(task.key, State.SKIPPED if is_well else state, None, task.reason)

    def _over(self, key: str, state: State, exit_code: int | None, reason: str) -> None:
        self._store.task_over(
            self._run, key, state, reason=reason, exit_code=exit_code, now=time.time()
        )
        self._verdict.count(key, state, exit_code, reason)
        self._tell("task over", task=key, state=state, exit_code=exit_code, reason=reason)

    def _finish(self) -> RunEnd:
        end = self._verdict.end(is_failed=bool(self._culprit))
        code, reason = end.exit_code, end.reason
        self._store.run_ended(self._run, end.state, exit_code=code, reason=reason, now=time.time())
        self._tell("run over", state=end.state, exit_code=code, reason=reason, counts=end.counts)
        return end

    @contextlib.contextmanager
    def _at_once(self) -> Iterator[None]:
        """Store all of it at once, and tell the observer afterwards, which may be slow."""
        events: list[Event] = []
        tell, self._observer = self._observer, events.append
        try:
            with self._store.together():
                yield
        finally:
            self._observer = tell
        for event in events:
            tell(event)

    def _tell(self, kind: Kind, **details: Any) -> None:
        if reason := details.get("reason"):
            details["reason"] = self._store.redact(reason)
        self._observer(Event(kind=kind, run=self._run, time=time.time(), **details))


def _widths(tasks: Iterable[Task]) -> dict[str, int]:
    """Return how many tasks of each lane may run; of several tasks that say, the least counts."""
    widths: dict[str, int] = {}
    for task in tasks:
        if task.lane and task.lane_width:
            widths[task.lane] = min(widths.get(task.lane, task.lane_width), task.lane_width)
    return widths
