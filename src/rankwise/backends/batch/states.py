"""How jobs stand: one poller for all of them, and what is made of their ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rankwise.backends.batch.system import BatchSystem, Cause, JobState
from rankwise.errors import ComputeFailure
from rankwise.records import AttemptEnd
from rankwise.store import State

TIMED_OUT_CODE, CANCELLED_CODE, KILLED_CODE, LOST_CODE = 124, 130, 137, 1
_TERM, _KILL = 15, 9


def is_clear(end: AttemptEnd) -> bool:
    """Return whether a runner's word is enough: nobody but the task's own processes ended it."""
    match State(end.outcome):
        case State.CANCELLED | State.LOST:
            return False
        case State.CRASHED:
            return end.signal not in (_TERM, _KILL)
        case State.FAILED:
            # A shell says in this way that its command was ended by one of them.
            return end.exit_code not in (128 + _TERM, 128 + _KILL)
    return True


def judge(
    end: AttemptEnd | None,
    job: JobState,
    *,
    system: str,
    job_id: str,
    words: Sequence[str] = (),
    has_begun: bool = True,
    is_wanted: bool = False,
) -> AttemptEnd:
    """Return how an attempt ended whose job is over.

    `system` is the title of the batch system; `words` are the lines of the job's own output;
    `is_wanted` tells that we have cancelled it ourselves.
    """
    if end is not None and is_clear(end):
        return end
    who = f"{system} job {job_id}" if job_id else f"{system} job"
    started: dict[str, Any] = {}
    if end is not None:
        started = {"started": end.started, "ended": end.ended}
    if job.cause is Cause.OUT_OF_MEMORY:
        reason = f"out of memory: {who} used more than it had asked for"
        return AttemptEnd(
            outcome=State.CRASHED,
            exit_code=KILLED_CODE,
            signal=_KILL,
            culprit=end.culprit if end is not None else None,
            reason=f"{reason} ({job.line})" if job.line else reason,
            **started,
        )
    if job.cause is Cause.TIME_LIMIT:
        reason = f"{who} reached the time limit that it has in {system}"
        return AttemptEnd(
            outcome=State.TIMED_OUT, exit_code=TIMED_OUT_CODE, reason=reason, **started
        )
    if is_wanted and (end is None or end.outcome == State.CANCELLED):
        return AttemptEnd(
            outcome=State.CANCELLED, exit_code=CANCELLED_CODE, reason="cancelled", **started
        )
    if job.cause is Cause.CANCELLED:
        by = f" ({job.reason})" if job.reason else ""
        reason = f"{who} was cancelled in {system}{by}, not by rankwise"
        return AttemptEnd(
            outcome=State.CANCELLED, exit_code=CANCELLED_CODE, reason=reason, **started
        )
    if job.cause in _LOST:
        where = f": {job.nodes}" if job.nodes else ""
        reason = f"{who} {_LOST[job.cause]}{where}"
        return AttemptEnd(outcome=State.LOST, exit_code=LOST_CODE, reason=reason, **started)
    if end is not None:
        return end
    if not has_begun and job.cause not in (Cause.FORGOTTEN, Cause.COMPLETED):
        return _never_begun(who, job, words)
    return _without_a_word(who, system, job, words)


_LOST = {
    Cause.NODE_LOST: "lost a node",
    Cause.NODE_NOT_BOOTED: "was given a node that did not boot",
    Cause.PREEMPTED: "had to make way for another job (preempted)",
}


def _never_begun(who: str, job: JobState, words: Sequence[str]) -> AttemptEnd:
    """Say why nothing was started: something before our part has failed."""
    said = words[-1] if words else job.reason
    reason = f"{who} ended before anything was started"
    return AttemptEnd(
        outcome=State.NOT_RUN,
        exit_code=LOST_CODE,
        reason=f"{reason}: {said}" if said else reason,
    )


def _without_a_word(who: str, system: str, job: JobState, words: Sequence[str]) -> AttemptEnd:
    is_known = job.cause is not Cause.FORGOTTEN
    knows = f"{system} says {job.word}" if is_known else f"{system} has forgotten it"
    reason = f"{who} left no account of how it ended; {knows}"
    if words:
        reason += f": {words[-1]}"
    return AttemptEnd(outcome=State.LOST, exit_code=LOST_CODE, reason=reason)


SOONEST_SECONDS, LATEST_SECONDS = 0.5, 15.0
_SLOWER = 1.5
# Longer than any command of a batch system may take.
_GIVE_UP_SECONDS = 120.0

_Answer = tuple[float, Mapping[str, JobState]]


class _Question:
    """One call of `states`, in a thread: it takes long to find that there is no answer."""

    def __init__(self, system: BatchSystem, ids: Sequence[str], poke: Callable[[], None]) -> None:
        self.asked_at = time.monotonic()
        self.answer: Mapping[str, JobState] = {}
        self.failure: Exception | None = None
        self._system, self._ids, self._poke = system, ids, poke
        self.is_open = True
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def _ask(self) -> None:
        try:
            self.answer = self._system.states(self._ids)
        except Exception as error:
            # Also a mistake in the batch system's own code: its jobs are not over because of it.
            self.failure = error
        self.is_open = False
        self._poke()


class QueueWatch:
    """Asks the batch system in the background, for all jobs at once, and pokes who is to hear.

    The more often the answer is the same, the longer until it is asked again.
    """

    def __init__(self, system: BatchSystem, poke: Callable[[], None]) -> None:
        self.trouble = ""
        """What was said instead of an answer; empty: all is well."""
        self._system, self._poke = system, poke
        self._pause = SOONEST_SECONDS
        self._next = 0.0
        self._question: _Question | None = None
        self._last: Mapping[str, JobState] = {}

    def hurry(self) -> None:
        """Ask soon: something has changed, or is about to."""
        self._pause = SOONEST_SECONDS
        self._next = min(self._next, time.monotonic() + SOONEST_SECONDS)

    def look(self, job_ids: Iterable[str]) -> _Answer | None:
        """Return a new answer, with the time when it was asked for; None: there is none yet."""
        now = time.monotonic()
        if self._question is not None:
            return self._take(self._question, now)
        ids = list(dict.fromkeys(job_ids))
        if ids and now >= self._next:
            self._question = _Question(self._system, ids, self._poke)
        return None

    def ask_now(self, job_ids: Iterable[str]) -> _Answer | None:
        """Ask and wait for the answer; None: there is none."""
        self._question = None
        now = time.monotonic()
        try:
            found = self._system.states(list(dict.fromkeys(job_ids)))
        except ComputeFailure as failure:
            self._note_trouble(str(failure), now)
            return None
        self._note(found, time.monotonic())
        return now, found

    def _take(self, question: _Question, now: float) -> _Answer | None:
        if question.is_open:
            if now > question.asked_at + _GIVE_UP_SECONDS:
                self._question = None
                self._note_trouble("there is no answer", now)
            return None
        self._question = None
        if question.failure is not None:
            self._note_trouble(str(question.failure) or repr(question.failure), now)
            return None
        self._note(question.answer, now)
        return question.asked_at, question.answer

    def _note(self, found: Mapping[str, JobState], now: float) -> None:
        is_same = found == self._last
        self._pause = min(self._pause * _SLOWER, LATEST_SECONDS) if is_same else SOONEST_SECONDS
        self._last, self.trouble, self._next = found, "", now + self._pause

    def _note_trouble(self, text: str, now: float) -> None:
        self.trouble = text
        self._pause = min(max(self._pause, 1.0) * _SLOWER, LATEST_SECONDS)
        self._next = now + self._pause
