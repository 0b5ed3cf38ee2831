"""A batch system as a backend: a job for each attempt, or an array for equal ones."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from rankwise import records
from rankwise.backends import base
from rankwise.backends.base import Attempt, Submission, Update, Updates
from rankwise.backends.batch import submitting
from rankwise.backends.batch.states import QueueWatch, judge
from rankwise.backends.batch.system import (
    FORGOTTEN,
    BatchNode,
    BatchSystem,
    Cause,
    Ending,
    JobState,
    Phase,
    open_system,
)
from rankwise.documents.site_models import ComputeConfig
from rankwise.errors import ComputeFailure
from rankwise.files import open_left
from rankwise.machine import shortfall
from rankwise.plan import Resources
from rankwise.records import AttemptEnd

# Of files: often at first, as short tasks end soon, and then more and more rarely.
_LOOK_SECONDS, _LATEST_LOOK_SECONDS = 0.05, 0.5
# How long files of another machine may take to be seen here, after their writer has ended.
_FILE_SECONDS = 5.0
# How long a runner that is asked to end may take, before all of its job is killed.
_END_SECONDS = 20.0
_WORD_LINES, _WORD_BYTES = 40, 20_000


@dataclass(slots=True, kw_only=True)
class _InQueue:
    attempt: Attempt
    job_id: str
    state: JobState | None = None
    state_of: float = 0.0
    """When it was asked for."""
    ready: submitting.ReadyJob | None = None
    """None: another client has sent it."""
    is_with_pilot: bool = False
    """Whether the job is one that it shares with others."""
    has_started: bool = False
    has_run: bool = False
    """Whether the batch system has called its job running since it last waited."""
    claimed_at: float | None = None
    """When its claim was first seen."""
    is_back: bool = False
    """Whether its job waits once more, after it had begun."""
    over_since: float | None = None
    """Since when the batch system has been done with it, while its end has not been seen."""
    asked_to_end: float | None = None
    end: AttemptEnd | None = None
    """What its runner says, as long as that is not enough."""
    end_since: float = 0.0

    def has_file(self, name: str) -> bool:
        """Return whether its folder has a file; asked often, and a Path takes ten times as long."""
        return os.path.exists(f"{self.attempt.folder}/{name}")  # noqa: PTH110  see above

    def look_for_claim(self) -> None:
        """Note when its claim was first seen: its runner has begun."""
        if self.claimed_at is None and self.has_file(records.CLAIM):
            self.claimed_at = time.monotonic()

    @property
    def has_begun(self) -> bool:
        """Return whether its job had begun when the batch system was asked for its state.

        A short stay on a node falls between two questions: then only the claim shows it.
        """
        return self.has_run or (self.claimed_at is not None and self.claimed_at < self.state_of)


class BatchBackend(base.ActiveBackend):
    """Sends attempts to a batch system; they outlive the client."""

    def __init__(
        self, choice: ComputeConfig, updates: Updates, secrets: Collection[str] = ()
    ) -> None:
        self._system: BatchSystem = open_system(choice)
        super().__init__(choice.name, updates, who=self._system.title)
        self._choice, self._settings = choice, choice.batch
        self._notes = submitting.SubmitNotes(system=self._system, backend=choice.backend)
        # What this client runs in is not the job's: it may itself be a job.
        plain = self._system.plain_environment()
        plain = {name: value for name, value in plain.items() if name not in secrets}
        most = self._settings.max_queued
        sending = submitting.Sending(self._notes, most=most, environment=plain)
        self._sending: submitting.Sending | submitting.PilotSending = sending
        self._pilots: submitting.PilotSending | None = None
        if self._settings.mode == "pilot":
            self._sending = self._pilots = submitting.PilotSending(sending, self._notes)
        self._watch = QueueWatch(self._system, self._wake)
        self._submitted: list[Submission] = []
        """What `look` sends. The engine's own, not the thread's."""
        self._watched: dict[str, _InQueue] = {}
        self._unanswered = ""
        """Why the state of a job that left the queue is not known; empty: it is."""
        self._told: dict[str, set[str]] = {}
        """What was reported of each job since it last ran."""
        self._has_asked = False
        self._look_pause = _LOOK_SECONDS

    # What there is

    @cached_property
    def _nodes(self) -> Sequence[BatchNode]:
        return self._system.nodes()

    def facts(self) -> base.BackendFacts:
        """Return what all nodes have together; the queue takes whatever comes."""
        capacity = self._capacity(self._known_nodes())
        return base.BackendFacts(capacity=capacity, room=base.UNLIMITED, sends_together=True)

    def _capacity(self, nodes: Sequence[BatchNode]) -> Resources:
        if not nodes:
            # There is no answer, or no such partition: the submit will say.
            return base.UNLIMITED
        found = sum((node.resources for node in nodes), Resources())
        return self._choice.capacity(found)

    def place(self, folder: Path) -> Path:
        """Return a folder that all nodes see."""
        if not self._settings.shared:
            return folder
        # The digest keeps stores of several users or checkouts apart.
        *above, run, task, number = folder.parts
        store = hashlib.sha256("/".join(above).encode()).hexdigest()[:8]
        return Path(self._settings.shared) / f"rankwise-{store}" / run / task / number

    # Sending

    def submit(self, job: Submission) -> None:
        """Take an attempt; `look` sends it, with others like it."""
        self._submitted.append(job)

    def look(self) -> None:
        """Send what was submitted, and report what is over and that this was all."""
        # Taken here, in the engine's thread, which also fills it.
        jobs, self._submitted = self._submitted, []
        self._order(lambda: self._make_ready(jobs))
        super().look()

    def _make_ready(self, jobs: Sequence[Submission]) -> None:
        nodes = self._known_nodes()
        for job in jobs:
            try:
                self._sending.add(self._ready_job(job, nodes))
            except Exception as failure:  # Whatever it is, a run waits for its end.
                self._finish(job.attempt, base.not_run(base.words_of(failure)))

    def _ready_job(self, job: Submission, nodes: Sequence[BatchNode]) -> submitting.ReadyJob:
        task = job.task
        if reason := shortfall(task.resources, self._capacity(nodes)):
            raise ComputeFailure(reason)
        if nodes and task.nodes > len(nodes):
            raise ComputeFailure(f"needs {task.nodes} nodes, found {len(nodes)}")
        return submitting.make_ready(job, nodes, self._choice, self._system)

    def _known_nodes(self) -> Sequence[BatchNode]:
        with contextlib.suppress(ComputeFailure):
            return self._nodes
        return ()

    def _watch_again(self, attempt: Attempt, job_id: str) -> bool:
        """Watch an attempt that another client has sent, unless it never came to that."""
        if not job_id and (job_id := self._notes.find(attempt.folder)):
            self._tell(Update(attempt=attempt, job_id=job_id))
        elif not job_id:
            self._notes.take_back(attempt)
            if records.abandon(attempt.folder):
                self._remove_secrets(attempt)
                return False
        self._watched[attempt.marker] = one = _InQueue(
            attempt=attempt,
            job_id=job_id,
            is_with_pilot=self._notes.pilot_of(attempt) is not None,
            # Without a number, the system has had it and has forgotten it.
            over_since=None if job_id else time.monotonic(),
        )
        one.look_for_claim()
        self._has_asked = False
        return True

    # Watching

    def _do_due(self) -> float | None:
        """Send what waits, and see what is over; soon again, as long as there is something."""
        self._send()
        self._ask()
        self._look()
        if not self._watched and not self._sending:
            return None
        # Files are looked at more often than the system is asked: a look costs nothing there.
        pause = self._look_pause
        self._look_pause = min(pause * 1.2, _LATEST_LOOK_SECONDS)
        return pause

    def _send(self) -> None:
        for sent in self._sending.send(len(self._watched)):
            # Dropped before it was sent, refused, or in the queue from now on.
            attempt = sent.ready.attempt
            if sent.is_dropped:
                self._drop(attempt)
                continue
            if sent.refusal:
                self._finish(attempt, base.not_run(sent.refusal))
                continue
            self._watched[attempt.marker] = _InQueue(
                attempt=attempt,
                job_id=sent.job_id,
                ready=sent.ready,
                is_with_pilot=self._pilots is not None,
            )
            self._tell(Update(attempt=attempt, job_id=sent.job_id))
            self._watch.trouble = ""  # It has just answered.
            self._watch.hurry()

    def _ask(self) -> None:
        """Apply the states of all jobs, if there is a new answer."""
        ids = [one.job_id for one in self._watched.values() if one.job_id]
        answer = self._watch.look(ids, is_awaited=not self._has_asked)
        self._has_asked = self._has_asked or bool(ids)
        trouble = self._watch.trouble or self._unanswered
        away = f"{self._system.title} does not answer; waiting: {trouble}" if trouble else ""
        self._note_trouble(self._sending.trouble or away)
        if answer is None:
            return
        self._unanswered = ""
        for one in list(self._watched.values()):
            # Sent after the question: the answer cannot have it.
            if one.job_id not in answer.ids:
                continue
            one.state_of = answer.asked_at
            if one.job_id in answer.states:
                self._note_state(one, answer.states[one.job_id])
            else:
                self._ask_past(one)
            is_newer = one.end is not None and answer.asked_at > one.end_since
            if one.end is not None and is_newer and self._goes_on_without(one):
                self._finish(one.attempt, one.end)

    def _ask_past(self, one: _InQueue) -> None:
        if one.state is not None and one.state.is_over:
            return
        try:
            found = self._system.past(one.job_id)
        except ComputeFailure as failure:
            self._unanswered = str(failure)
            return  # The next time, perhaps.
        self._note_state(one, found or FORGOTTEN)

    def _note_state(self, one: _InQueue, state: JobState) -> None:
        """Note the state of a job, and report what is new about it."""
        one.state = state
        if state.is_over:
            one.over_since = one.over_since or time.monotonic()
            if self._pilots is not None:
                self._pilots.note_over(one.job_id)
            return
        # It may have been over: a requeued job comes back to life.
        one.over_since = None
        if state.is_waiting:
            self._note_waiting(one, state)
        elif state.phase is not Phase.STARTING:
            if one.is_back:
                one.claimed_at = None  # That claim was put aside, or soon will be.
            one.has_run, one.is_back = True, False
            self._told.pop(one.job_id, None)
            # A running pilot says nothing about each of its tasks: their claims do.
            if not one.has_started and not one.is_with_pilot:
                self._note_start(one)

    def _note_waiting(self, one: _InQueue, state: JobState) -> None:
        if one.has_begun and not one.is_back:
            one.is_back, one.has_run, one.has_started = True, False, False
            if one.ready is not None:
                # The job has removed them when it first began, and reads them once more.
                submitting.write_secrets(one.ready)
        why = f": {state.reason}" if state.reason else ""
        if one.is_back:
            self._tell_of_job(one, f"was put back into the queue{why}")
        elif why:
            self._tell_of_job(one, f"is pending{why}")

    def _tell_of_job(self, one: _InQueue, text: str) -> None:
        """Report something about a job once, however many attempts share it."""
        told = self._told.setdefault(one.job_id, set())
        if text not in told:
            told.add(text)
            text = f"{self._system.title} job {one.job_id} {text}"
            self._tell(Update(attempt=one.attempt, text=text))

    def _note_start(self, one: _InQueue) -> None:
        one.has_started = True
        self._tell(Update(attempt=one.attempt, has_started=True))

    def _goes_on_without(self, one: _InQueue) -> bool:
        """Return whether a pilot runs on after one of its tasks: then only the task has ended.

        A pilot that was put back into the queue begins again with what it still has.
        """
        is_running = one.state is not None and one.state.phase is Phase.RUNNING
        return one.is_with_pilot and is_running and not self._notes.is_with_pilot(one.attempt)

    def _look(self) -> None:
        """Find out which attempts are over, from their files and the states of their jobs."""
        now = time.monotonic()
        for one in list(self._watched.values()):
            one.look_for_claim()
            end = records.read_end(one.attempt.folder) if one.has_file("end.json") else None
            if end is not None and base.is_conclusive(end):
                self._note_start(one)
                self._finish(one.attempt, end)
            elif one.over_since is not None:
                self._judge_over(one, end, now)
            elif end != one.end:
                # None: the job was put back into the queue, and has begun again.
                one.end, one.end_since = end, now
                self._watch.hurry()
            elif one.is_with_pilot:
                self._look_at_pilot(one)
            self._insist_on_end(one, now)

    def _look_at_pilot(self, one: _InQueue) -> None:
        """Find out whether a pilot has begun with an attempt, or dropped it on request."""
        if one.has_started:
            return
        if one.state is not None and one.state.is_waiting:
            if one.asked_to_end is not None and one.state_of > one.asked_to_end:
                self._notes.withdraw(one.attempt)
                self._drop(one.attempt)
        elif one.claimed_at is not None:
            self._note_start(one)
        elif one.asked_to_end is not None and not self._notes.is_with_pilot(one.attempt):
            self._drop(one.attempt)

    def _drop(self, attempt: Attempt) -> None:
        """End an attempt that neither the queue nor a pilot has."""
        # If it was sent all the same, it finds that it is not wanted.
        records.abandon(attempt.folder)
        self._finish(attempt, base.cancelled())

    def _judge_over(self, one: _InQueue, end: AttemptEnd | None, now: float) -> None:
        has_begun = one.has_file(records.CLAIM)
        if one.is_with_pilot and not has_begun and self._send_again(one):
            return
        assert one.over_since is not None
        if end is None and has_begun and now < one.over_since + _FILE_SECONDS:
            return  # Its record may not have arrived yet.
        words = _words(one.attempt.folder, self._notes.log_name)
        verdict = judge(
            end,
            self._system.explain(one.state or FORGOTTEN, words),
            system=self._system.title,
            job_id=one.job_id,
            words=words,
            has_begun=has_begun,
            is_wanted=one.asked_to_end is not None,
        )
        self._finish(one.attempt, verdict)

    def _send_again(self, one: _InQueue) -> bool:
        """Send an attempt to another pilot if its own ended before it began with it."""
        # Ended by a user, or broken: another pilot would end in the same way.
        cause = one.state.cause if one.state is not None else Cause.FORGOTTEN
        by_others = (Cause.CANCELLED, Cause.FAILED, Cause.FORGOTTEN)
        is_to_blame = cause in by_others or one.asked_to_end is not None
        if is_to_blame or one.ready is None or not self._notes.is_with_pilot(one.attempt):
            return False
        self._notes.take_back(one.attempt)
        del self._watched[one.attempt.marker]
        self._sending.add(one.ready)
        return True

    def _finish(self, attempt: Attempt, end: AttemptEnd) -> None:
        self._watched.pop(attempt.marker, None)
        self._remove_secrets(attempt)
        self._look_pause = _LOOK_SECONDS
        self._tell(Update(attempt=attempt, end=end))

    def _remove_secrets(self, attempt: Attempt) -> None:
        """Remove the values of secrets that the job has not read."""
        try:
            submitting.remove_secrets(attempt)
        except OSError as error:
            text = f"the values of secrets could not be removed: {error.filename}: {error.strerror}"
            self._tell(Update(attempt=attempt, text=text))

    # Ending

    def _end(self, attempt: Attempt) -> None:
        """End an attempt: with SIGTERM if it runs, at once if it waits."""
        if self._sending.drop(attempt):
            self._drop(attempt)
            return
        # One of which it is not known whether it was sent is asked again.
        one = self._watched.get(attempt.marker)
        if one is not None and one.asked_to_end is None:
            one.asked_to_end = time.monotonic()
            self._watch.hurry()
            self._end_job(one, Ending.GENTLY)

    def _insist_on_end(self, one: _InQueue, now: float) -> None:
        """Kill what does not end after SIGTERM."""
        if one.asked_to_end is not None and now > one.asked_to_end + _END_SECONDS:
            one.asked_to_end = now
            self._end_job(one, Ending.NOW)

    def _end_job(self, one: _InQueue, ending: Ending) -> None:
        if one.is_with_pilot:
            # The job has other tasks too: its pilot ends this one.
            self._notes.ask_to_end(one.attempt)
            return
        try:
            if one.job_id:
                self._system.cancel(one.job_id, ending)
        except ComputeFailure as failure:
            self._tell(Update(text=f"could not be cancelled, trying again: {failure}"))

    def close(self) -> None:
        """End the pilots: the run is over."""
        self._is_closed = True
        # The thread may wait for an answer that is not wanted any more.
        self._system.close()
        super().close()
        if self._pilots is not None:
            self._pilots.close()


def _words(folder: Path, log: str) -> list[str]:
    """Return the last lines of a job's own output, not of its processes."""
    lines: list[str] = []
    for name in (log, submitting.LOG):
        with contextlib.suppress(OSError):
            with open_left(folder / name) as file:
                file.seek(0, 2)
                # Only the end: such a file may have gigabytes.
                file.seek(max(0, file.tell() - _WORD_BYTES))
                text = file.read().decode(errors="replace")
            lines += [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-_WORD_LINES:]
