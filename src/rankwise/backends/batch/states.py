"""How jobs stand: one poller for all of them, and what is made of their ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rankwise.backends.base import KILLED_CODE, cancelled, is_clear, lost, not_run, words_of
from rankwise.backends.batch.system import BatchSystem, Cause, JobState
from rankwise.records import AttemptEnd
from rankwise.store import State

_TIMED_OUT_CODE, _KILL = 124, 9


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
            outcome=State.TIMED_OUT, exit_code=_TIMED_OUT_CODE, reason=reason, **started
        )
    if is_wanted and (end is None or end.outcome == State.CANCELLED):
        return cancelled(**started)
    if job.cause is Cause.CANCELLED:
        by = f" ({job.reason})" if job.reason else ""
        reason = f"{who} was cancelled in {system}{by}, not by rankwise"
        return cancelled(reason, **started)
    if job.cause in _LOST:
        where = f": {job.nodes}" if job.nodes else ""
        reason = f"{who} {_LOST[job.cause]}{where}"
        return lost(reason, **started)
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
    return not_run(f"{reason}: {said}" if said else reason)


def _without_a_word(who: str, system: str, job: JobState, words: Sequence[str]) -> AttemptEnd:
    is_known = job.cause is not Cause.FORGOTTEN
    knows = f"{system} says {job.word}" if is_known else f"{system} has forgotten it"
    reason = f"{who} left no account of how it ended; {knows}"
    if words:
        reason += f": {words[-1]}"
    return lost(reason)


SOONEST_SECONDS, LATEST_SECONDS = 0.5, 15.0
_SLOWER = 1.5
# Longer than any command of a batch system may take.
_GIVE_UP_SECONDS = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueAnswer:
    """What a batch system has said of jobs."""

    asked_at: float
    ids: Collection[str]
    """Those that it was asked for; others may have been sent meanwhile."""
    states: Mapping[str, JobState]


class _Question:
    """One call of `states`, in a thread: it takes long to find that there is no answer."""

    def __init__(self, system: BatchSystem, ids: Sequence[str], poke: Callable[[], None]) -> None:
        self.asked_at = time.monotonic()
        self.ids = ids
        self.answer: Mapping[str, JobState] = {}
        self.failure: Exception | None = None
        self._system, self._poke = system, poke
        self.is_open = True
        self.thread = threading.Thread(target=self._ask, daemon=True)
        self.thread.start()

    def _ask(self) -> None:
        try:
            self.answer = self._system.states(self.ids)
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

    def look(self, job_ids: Iterable[str], *, is_awaited: bool = False) -> QueueAnswer | None:
        """Return a new answer; None: there is none yet. If it is awaited, ask now."""
        now = time.monotonic()
        ids = list(dict.fromkeys(job_ids))
        if ids and (is_awaited or (self._question is None and now >= self._next)):
            self._question = _Question(self._system, ids, self._poke)
            if is_awaited:
                self._question.thread.join(_GIVE_UP_SECONDS)
        return self._take(self._question, now) if self._question is not None else None

    def _take(self, question: _Question, now: float) -> QueueAnswer | None:
        if question.is_open:
            if now > question.asked_at + _GIVE_UP_SECONDS:
                self._question = None
                self._note_trouble("there is no answer", now)
            return None
        self._question = None
        if question.failure is not None:
            self._note_trouble(words_of(question.failure), now)
            return None
        self._note(question.answer, now)
        return QueueAnswer(asked_at=question.asked_at, ids=question.ids, states=question.answer)

    def _note(self, found: Mapping[str, JobState], now: float) -> None:
        is_same = found == self._last
        self._pause = min(self._pause * _SLOWER, LATEST_SECONDS) if is_same else SOONEST_SECONDS
        self._last, self.trouble, self._next = found, "", now + self._pause

    def _note_trouble(self, text: str, now: float) -> None:
        self.trouble = text
        self._pause = min(max(self._pause, 1.0) * _SLOWER, LATEST_SECONDS)
        self._next = now + self._pause
