"""How an attempt ended, from what its runner has written and what Kubernetes says. Pure.

The runner knows better, unless it was ended itself, or a pod was: then only Kubernetes knows why.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from rankwise.compute.kubernetes.answers import PULLING, REFUSED, PodState
from rankwise.compute.kubernetes.start import NO_PYTHON
from rankwise.records import AttemptEnd
from rankwise.store import State

CANCELLED_CODE, KILLED_CODE, LOST_CODE = 130, 137, 1
_TERM, _KILL = 15, 9


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
    pods: Sequence[PodState],
    *,
    is_wanted: bool = False,
    is_out_of_memory: bool = False,
    said: Sequence[str] = (),
) -> AttemptEnd:
    """Say how an attempt ended that is over.

    `is_wanted` tells that we have cancelled it ourselves, `is_out_of_memory` that the kernel has
    ended something in a pod for want of memory; `said` are the last lines of its head
    that are no records.
    """
    if end is not None and is_clear(end):
        return end
    started: dict[str, Any] = {}
    if end is not None:
        started = {"started": end.started, "ended": end.ended}
    if (pod := _first(pods, _is_out_of_memory)) is not None:
        reason = f"out of memory: {pod.who} used more than its limit (OOMKilled, pod {pod.name})"
        return AttemptEnd(
            outcome=State.CRASHED,
            exit_code=KILLED_CODE,
            signal=_KILL,
            culprit=pod.who,
            reason=reason,
            **started,
        )
    if is_out_of_memory and end is not None and end.signal == _KILL:
        reason = f"out of memory: {end.culprit or 'a process'} used more than its pod may have"
        return dataclasses.replace(end, reason=reason)
    if is_wanted:
        return AttemptEnd(
            outcome=State.CANCELLED, exit_code=CANCELLED_CODE, reason="cancelled", **started
        )
    if (pod := _first(pods, _is_taken_away)) is not None:
        return AttemptEnd(
            outcome=State.LOST, exit_code=LOST_CODE, reason=_taken_away(pod), **started
        )
    if end is not None and end.outcome != State.CANCELLED:
        return end
    if (pod := _first(pods, lambda one: one.exit_code == NO_PYTHON)) is not None:
        reason = pod.exit_message or "the image has no Python 3.10 or newer"
        return AttemptEnd(outcome=State.NOT_RUN, exit_code=LOST_CODE, reason=reason)
    if (pod := _first(pods, lambda one: one.is_deleted or one.is_gone)) is not None:
        reason = f"pod {pod.name} was deleted, not by rankwise"
        return AttemptEnd(
            outcome=State.CANCELLED, exit_code=CANCELLED_CODE, reason=reason, **started
        )
    return end or _without_a_word(pods, said)


def refusal(pods: Sequence[PodState]) -> str:
    """Say why pods will never start; empty: they may."""
    for pod in pods:
        if pod.waiting in REFUSED:
            return f"pod {pod.name} cannot start: {_in_words(pod)}"
        if pod.phase == "Failed" and pod.reason and pod.exit_code is None:
            words = f"{pod.reason}: {pod.message}".strip(": ")
            return f"pod {pod.name} was not admitted: {words}"
    return ""


def pull_trouble(pods: Sequence[PodState]) -> str:
    """Say why an image does not arrive, which is tried again; empty: all is well."""
    found = next((pod for pod in pods if pod.waiting in PULLING), None)
    return f"the image cannot be had: {_in_words(found)}" if found is not None else ""


def hold_up(pods: Sequence[PodState]) -> str:
    """Say what pods wait for, in the scheduler's words; empty: for nothing special."""
    pods = [pod for pod in pods if pod.unschedulable and not pod.is_over]
    if not pods:
        return ""
    more = f" (and {len(pods) - 1} more)" if len(pods) > 1 else ""
    return f"{pods[0].who}{more} is unschedulable: {pods[0].unschedulable}"


def _in_words(pod: PodState) -> str:
    return f"{pod.waiting}: {pod.waiting_message}".strip(": ")


def _first(pods: Sequence[PodState], is_one: Any) -> PodState | None:
    return next((pod for pod in pods if is_one(pod)), None)


def _is_out_of_memory(pod: PodState) -> bool:
    return pod.exit_reason == "OOMKilled"


def _is_taken_away(pod: PodState) -> bool:
    return pod.reason in ("Evicted", "NodeLost", "Shutdown", "NodeShutdown", "Terminated") or bool(
        pod.disrupted
    )


def _taken_away(pod: PodState) -> str:
    on = f" on {pod.node}" if pod.node else ""
    words = pod.disrupted or f"{pod.reason}: {pod.message}".strip(": ")
    return f"pod {pod.name}{on} was taken away: {words}"


def _words(pod: PodState) -> list[str]:
    """Give what a container has said last to people; frames are for us."""
    lines = [line.strip() for line in pod.exit_message.splitlines()]
    return [line for line in lines if line and not line.startswith("{")]


def _without_a_word(pods: Sequence[PodState], said: Sequence[str]) -> AttemptEnd:
    ended = [pod for pod in pods if pod.exit_code not in (None, 0)]
    if not pods:
        knows = "Kubernetes has forgotten it"
    elif ended:
        pod = ended[0]
        knows = f"pod {pod.name} left with exit code {pod.exit_code}"
        knows += f" ({pod.exit_reason})" if pod.exit_reason not in ("", "Error") else ""
    else:
        knows = f"pod {pods[0].name} is {pods[0].phase or 'gone'}"
    words = [*said, *(line for pod in ended for line in _words(pod))]
    last = words[-1] if words else ""
    reason = f"it left no account of how it ended; {knows}"
    return AttemptEnd(
        outcome=State.LOST, exit_code=LOST_CODE, reason=f"{reason}: {last}" if last else reason
    )
