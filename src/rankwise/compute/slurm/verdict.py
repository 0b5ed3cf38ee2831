"""How an attempt ended, from what its runner has written and what Slurm says. Pure.

The runner knows better, unless it was ended itself: then only Slurm knows by whom.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from rankwise.records import AttemptEnd
from rankwise.slurm.answers import JobState
from rankwise.store import State

TIMED_OUT_CODE, CANCELLED_CODE, KILLED_CODE, LOST_CODE = 124, 130, 137, 1
_TERM, _KILL = 15, 9
# What slurmstepd writes into the output of a job: the only word where nobody keeps accounts.
_MEMORY_WORDS = re.compile(
    r"[Ee]xceeded (?:job )?memory limit|oom[-_]kill|Out [Oo]f [Mm]emory|OUT_OF_MEMORY"
)
_CANCELLED_WORDS = re.compile(
    r"\*\*\* (?:JOB|STEP) \S+ ON \S+ CANCELLED AT \S+(?: DUE TO ([A-Z ]+?))? \*\*\*"
)
_STATE_OF_CAUSE = {
    "TIME LIMIT": "TIMEOUT",
    "PREEMPTION": "PREEMPTED",
    "NODE FAILURE": "NODE_FAIL",
    "JOB NOT ENDING WITH SIGNALS": "NODE_FAIL",
}


def is_clear(end: AttemptEnd) -> bool:
    """Tell whether a runner's word is enough: nobody but the task's own processes ended it."""
    match State(end.outcome):
        case State.CANCELLED | State.LOST:
            return False
        case State.CRASHED:
            return end.signal not in (_TERM, _KILL)
    return True


def judge(
    end: AttemptEnd | None,
    job: JobState | None,
    *,
    job_id: str,
    words: Sequence[str] = (),
    has_begun: bool = True,
    is_wanted: bool = False,
) -> AttemptEnd:
    """Say how an attempt ended whose job is over.

    `job` is None if Slurm has forgotten it; `words` are the lines of the job's own output;
    `is_wanted` tells that we have cancelled it ourselves.
    """
    if end is not None and is_clear(end):
        return end
    state = _state(job, words)
    who = f"Slurm job {job_id}" if job_id else "Slurm job"
    started: dict[str, Any] = {}
    if end is not None:
        started = {"started": end.started, "ended": end.ended}
    if state == "OUT_OF_MEMORY":
        said = next((line for line in words if _MEMORY_WORDS.search(line)), "")
        reason = f"out of memory: {who} used more than it had asked for"
        return AttemptEnd(
            outcome=State.CRASHED,
            exit_code=KILLED_CODE,
            signal=_KILL,
            culprit=end.culprit if end is not None else None,
            reason=f"{reason} ({said})" if said else reason,
            **started,
        )
    if state in ("TIMEOUT", "DEADLINE"):
        reason = f"{who} reached the time limit that it has in Slurm"
        return AttemptEnd(
            outcome=State.TIMED_OUT, exit_code=TIMED_OUT_CODE, reason=reason, **started
        )
    if is_wanted and (end is None or end.outcome == State.CANCELLED):
        return AttemptEnd(
            outcome=State.CANCELLED, exit_code=CANCELLED_CODE, reason="cancelled", **started
        )
    if state in ("CANCELLED", "REVOKED"):
        reason = f"{who} was cancelled in Slurm{_by_whom(job)}, not by rankwise"
        return AttemptEnd(
            outcome=State.CANCELLED, exit_code=CANCELLED_CODE, reason=reason, **started
        )
    if state in _LOST:
        return AttemptEnd(
            outcome=State.LOST,
            exit_code=LOST_CODE,
            reason=f"{who} {_LOST[state]}{_on(job)}",
            **started,
        )
    if end is not None:
        return end
    if not has_begun and state not in ("", "COMPLETED"):
        return _never_begun(who, job, words)
    return _without_a_word(who, state, words)


_LOST = {
    "NODE_FAIL": "lost a node",
    "BOOT_FAIL": "was given a node that did not boot",
    "PREEMPTED": "had to make way for another job (preempted)",
}


def _state(job: JobState | None, words: Sequence[str]) -> str:
    """Give Slurm's word for the end; what stands in the output is more exact than `FAILED`."""
    state = job.state if job is not None else ""
    if state in ("", "FAILED", "CANCELLED", "COMPLETED"):
        if any(_MEMORY_WORDS.search(line) for line in words):
            return "OUT_OF_MEMORY"
        causes = [found[1] for line in words if (found := _CANCELLED_WORDS.search(line))]
        named = [_STATE_OF_CAUSE[cause] for cause in causes if cause in _STATE_OF_CAUSE]
        if named:
            return named[-1]
        if causes and not state:
            return "CANCELLED"
    return state


def _by_whom(job: JobState | None) -> str:
    reason = job.reason if job is not None else ""
    return f" ({reason})" if reason else ""


def _on(job: JobState | None) -> str:
    return f": {job.nodes}" if job is not None and job.nodes else ""


def _never_begun(who: str, job: JobState | None, words: Sequence[str]) -> AttemptEnd:
    """Say why nothing was started: something before our part has failed."""
    said = words[-1] if words else (job.reason if job is not None else "")
    reason = f"{who} ended before anything was started"
    return AttemptEnd(
        outcome=State.NOT_RUN,
        exit_code=LOST_CODE,
        reason=f"{reason}: {said}" if said else reason,
    )


def _without_a_word(who: str, state: str, words: Sequence[str]) -> AttemptEnd:
    knows = f"Slurm says {state}" if state else "Slurm has forgotten it"
    reason = f"{who} left no account of how it ended; {knows}"
    if words:
        reason += f": {words[-1]}"
    return AttemptEnd(outcome=State.LOST, exit_code=LOST_CODE, reason=reason)
