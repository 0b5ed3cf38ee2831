"""Drives a run to its end: starts what can start, takes in what has ended."""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Empty
from typing import Any

from rankwise.backends.base import (
    Attempt,
    Backend,
    BackendFacts,
    Submission,
    Update,
    Updates,
    claim_of,
    not_run,
)
from rankwise.engine.queue import Hopeless, Queue, Queued, in_thousandths
from rankwise.engine.reuse import Inheritance, Known, Reusing
from rankwise.engine.runs import has_submitted, start_children, start_submitted
from rankwise.engine.verdict import (
    _WORTH_ANOTHER_TRY,
    CANCELLED_CODE,
    Functions,
    RunEnd,
    RunVerdict,
    _in_words,
    _outcome,
    keep,
    measure,
)
from rankwise.errors import ComputeFailure, InputError
from rankwise.plan import RuntimeChoice, Task, shortfall
from rankwise.records import AttemptEnd, read_processes
from rankwise.runtimes.base import PreparedRuntime
from rankwise.runtimes.preparing import Making
from rankwise.store import AttemptRow, Outcome, ResultRow, State, Store
from rankwise.store.rows import Event, Kind, Observer

_WAIT_SECONDS = 0.5
# How often what is to end is told so, until it has ended.
_CANCEL_SECONDS = 0.5
# How long backends may take to look, before a look goes without them.
_LOOK_SECONDS = 180.0
# How often to look whether an attempt has submitted something.
_SUBMITTED_SECONDS = 2.0


@dataclass(slots=True, kw_only=True)
class _Running:
    attempt: Attempt
    number: int
    waiting: Queued


class Drive:
    """One run, being driven. Nobody else may drive it meanwhile: see `engine.lock`."""

    def __init__(
        self,
        store: Store,
        run: str,
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
        self._computes = computes
        self._updates = updates
        self._observer = observer
        self._secrets = secrets
        self._functions = functions
        self._making = Making(prepare)
        self._parked: list[tuple[RuntimeChoice, Queued]] = []
        """Those whose runtime is being made."""
        self._inheritance = Inheritance(store, run)
        self._known = Known(store, run)
        self._reusing = Reusing(store, run, self._inheritance)
        self._flights: dict[str, _Running] = {}
        self._look_at = self._cancel_at = 0.0
        self._sending: set[str] = set()
        """Computes that are to send what was submitted."""
        # One compute may have several names: what runs there is counted once, under the first.
        first = {id(computes[name]): name for name in reversed(list(computes))}
        self._pools = {name: first[id(compute)] for name, compute in computes.items()}
        self._facts = {name: computes[name].facts() for name in first.values()}
        self._tally = RunVerdict()
        self._is_cancelled = False
        self.is_cancel_wanted = False
        """Set by whoever wants it to end; a signal handler may."""
        self._culprit = ""
        """Whose failure ends the run, as the plan says."""
        self._is_ending = False
        self._queue = Queue(())

    def go(self) -> RunEnd:
        """Go on until every task is over."""
        self._store.run_started(self._run, now=time.time())
        self._tell("run started")
        self._take_up()
        while self._queue or self._flights or self._parked:
            if not self._is_cancelled and self._is_unwanted():
                self._is_cancelled = True
                self._start_no_more("cancelled")
            if self._culprit and not self._is_ending and not self._is_cancelled:
                self._is_ending = True
                self._start_no_more(self._why_over)
            self._insist_on_ends()
            self._start_what_fits()
            if self._flights:
                self._wait(_WAIT_SECONDS)
            elif self._parked:
                self._making.wait(_WAIT_SECONDS)
        self._close()
        return self._finish()

    def look(self) -> bool:
        """Take in what has ended meanwhile, start nothing; tell whether everything is over."""
        try:
            self._take_up()
            self._have_looked()
        finally:
            self._close()
        if self._queue or self._flights:
            return False
        self._finish()
        return True

    def _have_looked(self) -> None:
        """Have all computes of what runs say what is over by now."""
        asked = {flight.waiting.compute for flight in self._flights.values()}
        for name in asked:
            self._computes[name].look()
        answers, deadline = 0, time.monotonic() + _LOOK_SECONDS
        while answers < len(asked) and (left := deadline - time.monotonic()) > 0:
            for update in self._arrived(left):
                answers += update.has_looked
                self._take_in(update)

    def _close(self) -> None:
        """Give back what computes have had for the run, and take in what they still tell."""
        for name in self._facts:
            self._computes[name].close()
        for update in self._arrived(0.0):
            self._take_in(update)

    def _is_unwanted(self) -> bool:
        return self.is_cancel_wanted or self._store.wanted(self._run) == "cancel"

    def _start_no_more(self, why: str) -> None:
        """Have all be over that waits; what runs is told to end."""
        self._tell("notice", reason=f"{why}: what runs is being ended")
        self._fetch_parked(all_of_them=True)
        self._give_up(self._queue.give_up_all(self._why_over))

    @property
    def _why_over(self) -> str:
        """Return why nothing more is started; empty: it is."""
        if self._is_ending:
            return f"fail-fast: {self._culprit} did not pass"
        return "the run was cancelled" if self._is_cancelled else ""

    def _insist_on_ends(self) -> None:
        """Have all that runs end, if it is to, again and again until it has."""
        if self._why_over and time.monotonic() >= self._cancel_at:
            self._cancel_at = time.monotonic() + _CANCEL_SECONDS
            for flight in self._flights.values():
                self._computes[flight.waiting.compute].cancel(flight.attempt)

    # Beginning, for the first time or again

    def _take_up(self) -> None:
        """Find out what is still to be done, and what runners are doing already."""
        waiting: dict[str, Queued] = {}
        passed, skipped, failed = [], [], []
        names: set[str] = set()
        widths: dict[str, int] = {}
        unwanted: list[Hopeless] = []
        for row in self._store.task_rows(self._run, bodies=True):
            self._tally.know(row.body)
            _note_width(widths, row.body)
            if row.state.is_over:
                self._tally.count(row.key, row.state, row.exit_code, row.reason)
            names.update(row.body.secrets if row.body is not None else ())
            if row.state is State.PASSED:
                passed.append(row.key)
            elif row.state is State.SKIPPED:
                skipped.append(row.key)
            elif row.state.is_over:
                failed.append(row)
                if row.body is not None:
                    self._note_culprit(row.body, row.state)
            elif row.body is not None and row.body.skip:
                is_well = row.body.is_optional
                unwanted.append(Hopeless(key=row.key, reason=row.body.skip, is_well=is_well))
            else:
                assert row.body is not None
                waiting[row.key] = self._waiting(row.body)
        self._store.keep_out(self._secrets[name] for name in names if name in self._secrets)
        open_ones = [row for row in self._store.attempts(self._run) if not row.state.is_over]
        in_flight = {row.task: waiting.pop(row.task) for row in open_ones}
        free = {name: in_thousandths(one.room) for name, one in self._facts.items()}
        self._queue = Queue(waiting.values(), passed=passed, free=free, widths=widths)
        with self._at_once():
            for one in unwanted:
                self._leave_out(one)
        self._give_up(self._queue.idle)
        for key in skipped:
            self._give_up(self._queue.skipped(key))
        for row in failed:
            self._give_up(self._queue.failed(row.key, _in_words(row.state)))
        for attempt in open_ones:
            self._adopt(attempt, in_flight[attempt.task])

    def _leave_out(self, one: Hopeless) -> None:
        """Have a task be over that does not run, and those that wait for it."""
        self._give_up([one])
        if one.is_well:
            self._give_up(self._queue.skipped(one.key))
        else:
            self._give_up(self._queue.failed(one.key, _in_words(State.NOT_RUN)))

    def _waiting(self, task: Task) -> Queued:
        pool = self._pools[task.compute]
        return Queued(
            key=task.key,
            needs=task.needs,
            when=task.when,
            submits=task.submits,
            compute=pool,
            claim=in_thousandths(claim_of(task, self._facts[pool].capacity)),
            lane=task.lane,
            is_optional=task.is_optional,
            is_checked=bool(task.checks or task.results or task.measuring),
            calls_functions=task.calls_functions,
        )

    def _adopt(self, row: AttemptRow, waiting: Queued) -> None:
        """Watch what another client has started, unless it never came to that."""
        attempt = self._attempt(row.task, row.number, row.marker, row.folder)
        self._fly(attempt, row.number, waiting)
        if self._functions == "leave" and self._starts_something(waiting, attempt):
            return
        self._computes[waiting.compute].adopt(attempt, row.job_id or "")
        if row.state is State.RUNNING:
            self._tell("task started", task=row.task, attempt=row.number, folder=row.folder)

    def _put_back(self, flight: _Running) -> None:
        """Have a task wait again whose attempt was never started."""
        reason = "the client was ended before it could start it"
        outcome = Outcome(state=State.NOT_RUN, ended=time.time(), reason=reason)
        self._store.attempt_ended(self._run, flight.waiting.key, flight.number, outcome)
        self._queue.put_back(flight.waiting)
        if self._why_over:
            self._give_up(self._queue.give_up_all(self._why_over))

    def _attempt(self, task: str, number: int, marker: str, folder: Path) -> Attempt:
        return Attempt(label=f"{self._run}/{task}/{number}", marker=marker, folder=folder)

    # Starting

    def _fetch_parked(self, *, all_of_them: bool = False) -> None:
        """Have those wait in the queue again whose runtime is there, or cannot be had."""
        parked, self._parked = self._parked, []
        for choice, waiting in parked:
            if all_of_them or self._making.is_over(choice):
                self._queue.put_back(waiting)
            else:
                self._parked.append((choice, waiting))

    def _start_what_fits(self) -> None:
        self._fetch_parked()
        while (waiting := self._queue.take()) is not None:
            self._start(waiting)
        for name in self._sending:
            self._computes[name].look()
        self._sending.clear()
        if not self._flights:
            # What does not fit into an empty machine never will.
            self._leave_out_misfits()

    def _leave_out_misfits(self) -> None:
        while (waiting := self._queue.take_any()) is not None:
            capacity = self._computes[waiting.compute].facts().capacity
            claim = dataclasses.replace(waiting.claim, cores=waiting.claim.cores / 1000)
            reason = shortfall(claim, capacity) or "needs more than there is"
            is_well = waiting.is_optional
            self._leave_out(Hopeless(key=waiting.key, reason=reason, is_well=is_well))

    def _start(self, waiting: Queued) -> None:
        task = self._store.task(self._run, waiting.key)
        if waiting.is_optional:
            # A compute with a queue of its own takes anything, and would refuse it.
            capacity = self._computes[waiting.compute].facts().capacity
            if reason := shortfall(task.resources, capacity):
                self._leave_out(Hopeless(key=waiting.key, reason=reason, is_well=True))
                return
        try:
            if self._is_taken_over(task):
                return
        except InputError as error:
            self._leave_out(Hopeless(key=waiting.key, reason=str(error)))
            return
        facts = self._facts[waiting.compute]
        if not facts.makes_runtimes and not self._making.is_over(task.runtime):
            self._parked.append((task.runtime, waiting))
            return
        number = self._store.task_row(self._run, waiting.key).attempts + 1
        own = self._store.run_folder(self._run) / task.key / str(number)
        folder = self._computes[waiting.compute].place(own)
        attempt = self._attempt(task.key, number, f"rw-{secrets.token_hex(8)}", folder)
        # The intent first: whatever happens next, it can be found out whether it was carried out.
        self._store.begin_attempt(
            self._run, task.key, marker=attempt.marker, folder=folder, now=time.time()
        )
        try:
            self._submit(attempt, task, facts)
        except ComputeFailure as failure:
            self._end(waiting, number, not_run(str(failure)))
            return
        self._fly(attempt, number, waiting)
        if facts.sends_together:
            self._sending.add(waiting.compute)

    def _is_taken_over(self, task: Task) -> bool:
        """Let a task have passed as it did before, if nothing has changed since."""
        digest, earlier = self._reusing.earlier(task)
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
            self._reusing.link_artifacts(task, earlier)
            self._tally.count(task.key, State.PASSED, 0)
            self._tell("task over", task=task.key, state=State.PASSED, exit_code=0, reason=reason)
            self._give_up(self._queue.passed(task.key))
        return True

    def _submit(self, attempt: Attempt, task: Task, facts: BackendFacts) -> None:
        missing = [name for name in task.secrets if name not in self._secrets]
        if missing:
            raise ComputeFailure(
                f"no value for the secret {missing[0]}: set it in the environment, and resume"
            )
        try:
            attempt.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ComputeFailure(f"{attempt.folder}: {error.strerror}") from error
        made = PreparedRuntime() if facts.makes_runtimes else self._making.made(task.runtime)
        task, runtime = self._inheritance.given_to(task, made)
        job = Submission(
            attempt=attempt,
            task=self._known.filled_in(task),
            runtime=runtime,
            secrets={name: self._secrets[name] for name in task.secrets},
        )
        self._computes[task.compute].submit(job)

    def _fly(self, attempt: Attempt, number: int, waiting: Queued) -> None:
        self._flights[attempt.marker] = _Running(attempt=attempt, number=number, waiting=waiting)
        self._queue.enter(waiting)

    def _land(self, flight: _Running) -> None:
        del self._flights[flight.attempt.marker]
        self._queue.leave(flight.waiting)

    # Ending

    def _wait(self, seconds: float) -> None:
        """Wait for what computes tell, and take it in."""
        if time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + _SUBMITTED_SECONDS
            for flight in self._flights.values():
                self._start_submitted(flight)
        # What was just started is told already: that is nothing to be waited for.
        count = len(self._flights)
        for update in self._arrived(0.0):
            self._take_in(update)
        if len(self._flights) == count:
            for update in self._arrived(seconds):
                self._take_in(update)

    def _arrived(self, seconds: float) -> Iterator[Update]:
        """Wait for an update; return it, and those that have arrived behind it."""
        with contextlib.suppress(Empty):
            yield self._updates.get(timeout=seconds)
            while True:
                yield self._updates.get_nowait()

    def _take_in(self, update: Update) -> None:
        """Write down and tell what a compute has told."""
        flight = self._flights.get(update.attempt.marker) if update.attempt else None
        if flight is None:
            if update.text:
                self._tell("notice", reason=update.text)
            return
        if update.is_absent:
            self._land(flight)
            self._put_back(flight)
        elif update.end is not None:
            self._land(flight)
            self._take_in_end(flight, update.end)
        else:
            self._note(flight, update)

    def _note(self, flight: _Running, update: Update) -> None:
        """Write down and tell what has become of an attempt that is not over."""
        task, number = flight.waiting.key, flight.number
        is_new = False
        with self._store.together():
            if update.job_id:
                self._store.attempt_submitted(
                    self._run, task, number, job_id=update.job_id, now=time.time()
                )
            if update.has_started:
                is_new = self._store.attempt_started(self._run, task, number, now=time.time())
            if update.silence is not None:
                self._store.attempt_silent(self._run, task, update.silence)
            if update.text:
                self._store.attempt_waits(self._run, task, update.text)
        if is_new:
            folder = flight.attempt.folder
            self._tell("task started", task=task, attempt=number, folder=folder)
        if update.text:
            self._tell("notice", task=task, attempt=number, reason=update.text)

    def _take_in_end(self, flight: _Running, end: AttemptEnd) -> None:
        waiting, folder = flight.waiting, flight.attempt.folder
        self._start_submitted(flight)
        tests: Sequence[ResultRow] = ()
        if waiting.is_checked:
            end, tests = self._judge(flight, folder, end)
        if end.outcome == State.PASSED:
            self._reusing.note_outputs(self._store.task(self._run, waiting.key), folder)
        self._end(waiting, flight.number, end, folder, tests)

    def _judge(
        self, flight: _Running, folder: Path, end: AttemptEnd
    ) -> tuple[AttemptEnd, Sequence[ResultRow]]:
        """Say how an attempt has ended after all, and keep what it has measured."""
        # Most tasks have neither checks nor measurements.
        from rankwise.checks.judge import judge

        task = self._store.task(self._run, flight.waiting.key)
        if task.calls_functions and self._functions == "refuse" and end.outcome == State.PASSED:
            reason = "cancelled before it was judged"
            end = dataclasses.replace(
                end, outcome=State.CANCELLED, exit_code=CANCELLED_CODE, reason=reason
            )
        redact = self._redact_for(task)
        end, tests = judge(task, folder, end, redact=redact)
        measured = measure(task, folder, end, redact=redact)
        keep(self._store, self._run, task, flight.number, measured)
        return measured.end, tests

    def _redact_for(self, task: Task) -> Callable[[str], str]:
        """Return what keeps the values of a task's secrets out of what is quoted.

        Where one is not known, as to who looks from another shell, nothing can be quoted.
        """
        unknown = [name for name in task.secrets if name not in self._secrets]
        if not unknown:
            return self._store.redact
        instead = f"(left out, as the value of the secret {unknown[0]} is not known here)"
        return lambda text: instead if text else ""

    def _starts_something(self, waiting: Queued, attempt: Attempt) -> bool:
        """Return whether the end of an attempt has programs run: only the driver of the run may."""
        return waiting.calls_functions or waiting.submits or has_submitted(attempt.folder)

    def _start_submitted(self, flight: _Running) -> None:
        """Start what an attempt has submitted: what it starts itself ends with it."""
        if self._functions != "call":
            return
        for said in start_submitted(flight.attempt.folder):
            self._tell("notice", task=flight.waiting.key, attempt=flight.number, reason=said)

    def _end(
        self,
        waiting: Queued,
        number: int,
        end: AttemptEnd,
        folder: Path | None = None,
        tests: Sequence[ResultRow] = (),
    ) -> None:
        """Write down how an attempt ended, and what follows from it."""
        processes = read_processes(folder) if folder is not None else []
        state = State(end.outcome)
        if state is State.PASSED and waiting.submits and self._functions == "call":
            # Before it is written down: once more does no harm, never would.
            start_children(self._store, self._run)
        if state is State.CANCELLED and self._is_ending:
            end = dataclasses.replace(end, reason=self._why_over)
        # All of it or nothing: a client that is killed in between must not start it again.
        with self._at_once():
            self._store.attempt_ended(self._run, waiting.key, number, _outcome(end), processes)
            self._store.add_results(self._run, waiting.key, number, tests)
            self._tell(
                "attempt ended",
                task=waiting.key,
                attempt=number,
                state=state,
                exit_code=end.exit_code,
                reason=end.reason,
                culprit=end.culprit or "",
                folder=folder,
            )
            if not self._why_over and self._is_worth_another_try(waiting.key, end):
                self._queue.put_back(waiting)
                return
            if state in _WORTH_ANOTHER_TRY:
                self._note_culprit(self._store.task(self._run, waiting.key), state)
            self._over(waiting.key, state, end.exit_code, end.reason)
            if state is State.PASSED:
                self._give_up(self._queue.passed(waiting.key))
            else:
                self._give_up(self._queue.failed(waiting.key, _in_words(state)))

    def _note_culprit(self, task: Task, state: State) -> None:
        if task.ends_run and state in _WORTH_ANOTHER_TRY and not self._is_cancelled:
            self._culprit = self._culprit or task.key

    def _is_worth_another_try(self, key: str, end: AttemptEnd) -> bool:
        if State(end.outcome) not in _WORTH_ANOTHER_TRY:
            return False
        restart = self._store.task(self._run, key).restart
        codes = restart.on_exit_codes
        if not restart.most or (codes and end.exit_code not in codes):
            return False
        tries = [row for row in self._store.attempts(self._run, key) if row.state != State.NOT_RUN]
        return len(tries) <= restart.most

    def _give_up(self, tasks: Iterable[Hopeless]) -> None:
        state = State.CANCELLED if self._is_cancelled else State.NOT_RUN
        for task in tasks:
            is_well = task.is_well and not self._is_cancelled
            self._over(task.key, State.SKIPPED if is_well else state, None, task.reason)

    def _over(self, key: str, state: State, exit_code: int | None, reason: str) -> None:
        self._store.task_over(
            self._run, key, state, reason=reason, exit_code=exit_code, now=time.time()
        )
        self._tally.count(key, state, exit_code, reason)
        self._tell("task over", task=key, state=state, exit_code=exit_code, reason=reason)

    def _finish(self) -> RunEnd:
        counts = self._store.counts(self._run)
        # What had ended before it could be cancelled has ended well, or not, all the same.
        is_cancelled = counts[State.CANCELLED] and not self._culprit
        state = State.CANCELLED if is_cancelled else self._tally.state_of_run(counts)
        code = CANCELLED_CODE if state is State.CANCELLED else self._tally.exit_code
        why = self._tally.nothing_ran if state is State.NOT_RUN else ""
        self._store.run_ended(self._run, state, exit_code=code, reason=why, now=time.time())
        self._tell("run over", state=state, exit_code=code, reason=why, counts=counts)
        return RunEnd(state=state, exit_code=code, counts=counts)

    @contextlib.contextmanager
    def _at_once(self) -> Iterator[None]:
        """Write all of it at once, and tell of it afterwards: whoever listens may be slow."""
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
        details["reason"] = self._store.redact(details.get("reason", ""))
        self._observer(Event(kind=kind, run=self._run, time=time.time(), **details))


def _note_width(widths: dict[str, int], task: Task | None) -> None:
    """Note how wide the lane of a task is; of several who say, the narrowest counts."""
    if task is not None and task.lane and task.lane_width:
        widths[task.lane] = min(widths.get(task.lane, task.lane_width), task.lane_width)
