"""How jobs stand: one poller for all of them, and what is made of their ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from rankwise.backends import base
from rankwise.backends.batch.system import BatchSystem, Cause, JobState
from rankwise.records import AttemptEnd
from rankwise.store import State

# The exit code of `timeout` in coreutils.
_TIMED_OUT_CODE = 124


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
    `is_wanted` means that we have cancelled it ourselves.
    """
    if end is not None and base.is_conclusive(end):
        return end
    who = f"{system} job {job_id}" if job_id else f"{system} job"
    times = base.times_of(end)
    if job.cause is Cause.OUT_OF_MEMORY:
        reason = f"out of memory: {who} used more than it had asked for"
        reason += f" ({job.line})" if job.line else ""
        return base.out_of_memory(reason, end.culprit if end is not None else None, **times)
    if job.cause is Cause.TIME_LIMIT:
        reason = f"{who} reached its time limit in {system}"
        code = _TIMED_OUT_CODE
        return AttemptEnd(outcome=State.TIMED_OUT, exit_code=code, reason=reason, **times)
    # Before the system's own cause: after our cancel, it says `cancelled` as well.
    if is_wanted and (end is None or end.outcome == State.CANCELLED):
        return base.cancelled(**times)
    if job.cause is Cause.CANCELLED:
        by = f" ({job.reason})" if job.reason else ""
        return base.cancelled(f"{who} was cancelled in {system}{by}, not by rankwise", **times)
    if job.cause in _LOST:
        where = f": {job.nodes}" if job.nodes else ""
        return base.lost(f"{who} {_LOST[job.cause]}{where}", **times)
    if end is not None:
        return end
    last = f": {words[-1]}" if words else ""
    if not has_begun and job.cause not in (Cause.FORGOTTEN, Cause.COMPLETED):
        # A module, the site's own lines, or the batch system itself has failed before our part.
        last = last or (f": {job.reason}" if job.reason else "")
        return base.not_run(f"{who} ended before anything was started{last}")
    is_known = job.cause is not Cause.FORGOTTEN
    knows = f"{system} says {job.word}" if is_known else f"{system} has forgotten it"
    return base.lost(f"{who} left no record of how it ended; {knows}{last}")


_LOST = {
    Cause.NODE_LOST: "lost a node",
    Cause.NODE_NOT_BOOTED: "was given a node that did not boot",
    Cause.PREEMPTED: "had to make way for another job (preempted)",
}


SOONEST_SECONDS, LATEST_SECONDS = 0.5, 15.0
_SLOWER = 1.5
# Longer than a command of a batch system may take: an answer that comes later is not waited for.
_GIVE_UP_SECONDS = 120.0


class QueueQuery:
    """One call of `states`, in a thread: it takes long to find that there is no answer."""

    def __init__(self, system: BatchSystem, ids: Sequence[str], poke: Callable[[], None]) -> None:
        self.asked_at = time.monotonic()
        self.ids = ids
        """The jobs that were asked for; others may have been sent meanwhile."""
        self.states: Mapping[str, JobState] = {}
        self.failure: Exception | None = None
        self._system, self._poke = system, poke
        self.is_open = True
        self.thread = threading.Thread(target=self._ask, daemon=True)
        self.thread.start()

    def _ask(self) -> None:
        try:
            self.states = self._system.states(self.ids)
        except Exception as error:
            # Also a defect in the batch system's own code: its jobs are not over because of it.
            self.failure = error
        self.is_open = False
        self._poke()


class QueueWatch:
    """Asks the batch system in the background, for all jobs at once; `poke` reports an answer.

    The more often the answer is the same, the longer until it is asked again.
    """

    def __init__(self, system: BatchSystem, poke: Callable[[], None]) -> None:
        self.trouble = ""
        """Why there was no answer; empty: there was."""
        self._system, self._poke = system, poke
        self._pause = SOONEST_SECONDS
        self._next = 0.0
        self._query: QueueQuery | None = None
        self._last: Mapping[str, JobState] = {}

    def hurry(self) -> None:
        """Ask soon: something has changed, or will."""
        self._pause = SOONEST_SECONDS
        self._next = min(self._next, time.monotonic() + SOONEST_SECONDS)

    def look(self, job_ids: Iterable[str], *, is_awaited: bool = False) -> QueueQuery | None:
        """Return a query with a new answer; None: there is none yet. If it is awaited, ask now."""
        now = time.monotonic()
        ids = list(dict.fromkeys(job_ids))
        # One question at a time: a controller that is slow must not be asked twice.
        if ids and (is_awaited or (self._query is None and now >= self._next)):
            self._query = QueueQuery(self._system, ids, self._poke)
            if is_awaited:
                self._query.thread.join(_GIVE_UP_SECONDS)
        return self._take(self._query, now) if self._query is not None else None

    def _take(self, query: QueueQuery, now: float) -> QueueQuery | None:
        # Its thread cannot be ended; its answer, if it comes, is dropped.
        if query.is_open:
            if now > query.asked_at + _GIVE_UP_SECONDS:
                self._query = None
                self._note_trouble("there is no answer", now)
            return None
        self._query = None
        if query.failure is not None:
            self._note_trouble(base.words_of(query.failure), now)
            return None
        # The more often nothing has changed, the longer until the next question.
        is_same = query.states == self._last
        self._pause = min(self._pause * _SLOWER, LATEST_SECONDS) if is_same else SOONEST_SECONDS
        self._last, self.trouble, self._next = query.states, "", now + self._pause
        return query

    def _note_trouble(self, text: str, now: float) -> None:
        self.trouble = text
        # A controller in trouble is asked less and less often, down to once in 15 s.
        self._pause = min(max(self._pause, 1.0) * _SLOWER, LATEST_SECONDS)
        self._next = now + self._pause
