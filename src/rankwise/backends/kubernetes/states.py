"""The states of pods, and what they say about an attempt: pure functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rankwise.backends import base
from rankwise.backends.kubernetes import objects
from rankwise.records import AttemptEnd
from rankwise.store import State

# Reasons to wait: images are tried again for a while, all others never succeed.
PULLING = ("ErrImagePull", "ImagePullBackOff")
REFUSED = (
    *("InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError", "RegistryUnavailable"),
    *("CreateContainerError", "RunContainerError", "ImageInspectError"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodState:
    """How one pod stands."""

    name: str
    attempt: str = ""
    part: str = ""
    role: str = ""
    index: int = 0
    phase: str = ""
    address: str = ""
    node: str = ""
    reason: str = ""
    """Of the pod itself: `Evicted`, `NodeLost`, …"""
    message: str = ""
    unschedulable: str = ""
    """Why, as the scheduler says it."""
    disrupted: str = ""
    """What ends it, if neither we nor it did: preemption, eviction, a node that is gone."""
    waiting: str = ""
    waiting_message: str = ""
    is_running: bool = False
    exit_code: int | None = None
    signal: int | None = None
    exit_reason: str = ""
    """Of the container: `OOMKilled`, `Error`, `Completed`, …"""
    exit_message: str = ""
    is_deleted: bool = False
    """Whether its deletion was requested."""
    is_gone: bool = False
    """Whether the API does not know it any more."""

    @property
    def is_over(self) -> bool:
        return self.is_gone or self.phase in ("Succeeded", "Failed")

    @property
    def who(self) -> str:
        """Return the name that a process of its role would have."""
        return f"{self.role}-{self.index}"


Pods = Sequence[PodState]


def read_pod(pod: Mapping[str, Any]) -> PodState:
    """Return the state of a pod from the API."""
    metadata, status = pod.get("metadata") or {}, pod.get("status") or {}
    labels = metadata.get("labels") or {}
    annotations = metadata.get("annotations") or {}
    # A label since Kubernetes 1.28, before that an annotation only.
    index = labels.get(_INDEX, annotations.get(_INDEX, "0"))
    return PodState(
        name=metadata.get("name", ""),
        attempt=labels.get(objects.MARKER, ""),
        part=labels.get(objects.PART, ""),
        role=labels.get(objects.ROLE, ""),
        index=int(index) if str(index).isdecimal() else 0,
        phase=status.get("phase") or "",
        address=status.get("podIP") or "",
        node=(pod.get("spec") or {}).get("nodeName") or "",
        reason=status.get("reason") or "",
        message=status.get("message") or "",
        is_deleted=bool(metadata.get("deletionTimestamp")),
        **_conditions(status.get("conditions") or ()),
        **_container(status.get("containerStatuses") or ()),
    )


_INDEX = "batch.kubernetes.io/job-completion-index"


def _conditions(conditions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    found = {}
    for one in conditions:
        if one.get("type") == "PodScheduled" and one.get("status") == "False":
            found["unschedulable"] = one.get("message") or one.get("reason") or ""
        if one.get("type") == "DisruptionTarget" and one.get("status") == "True":
            found["disrupted"] = _joined(one.get("reason"), one.get("message"))
    return found


def _container(statuses: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    # Clusters may inject containers of their own, such as proxies.
    own = next((one for one in statuses if one.get("name") == objects.CONTAINER), None)
    state = (own or {}).get("state") or {}
    if waiting := state.get("waiting"):
        return {
            "waiting": waiting.get("reason") or "",
            "waiting_message": waiting.get("message") or "",
        }
    if ended := state.get("terminated"):
        return {
            "exit_code": ended.get("exitCode"),
            "signal": ended.get("signal") or None,
            "exit_reason": ended.get("reason") or "",
            "exit_message": (ended.get("message") or "").strip(),
        }
    return {"is_running": "running" in state}


def is_complete(job: Mapping[str, Any]) -> bool:
    """Return whether all pods of a Job have succeeded, as the API sees it."""
    return _condition(job, "Complete") is not None


def failure_of(job: Mapping[str, Any]) -> str:
    """Return why a Job has failed, as the API says it; empty: it has not."""
    failed = _condition(job, "Failed")
    return _joined(failed.get("reason") or "Failed", failed.get("message")) if failed else ""


def _condition(job: Mapping[str, Any], kind: str) -> Mapping[str, Any] | None:
    conditions = (job.get("status") or {}).get("conditions") or ()
    holds = (one for one in conditions if one.get("type") == kind and one.get("status") == "True")
    return next(holds, None)


def _joined(reason: str | None, message: str | None) -> str:
    """Return a reason and its message, of which either may be missing."""
    return f"{reason or ''}: {message or ''}".strip(": ")


_NONE: Mapping[str, str] = {}
# Reasons of pods that a kubelet or the scheduler has ended.
_TAKEN_AWAY = ("Evicted", "Preempting", "NodeLost", "Shutdown", "NodeShutdown", "Terminated")


def judge(
    end: AttemptEnd | None,
    pods: Pods,
    *,
    is_wanted: bool = False,
    is_out_of_memory: bool = False,
    said: Sequence[str] = (),
    lost: Mapping[str, str] = _NONE,
) -> AttemptEnd:
    """Return how an attempt ended that is over.

    `is_wanted`: we have cancelled it ourselves. `is_out_of_memory`: the kernel has killed something
    in a pod for want of memory. `said`: the last lines of the head's log that are no records.
    `lost`: the pods that were gone before their head released them, the first one first, with what
    the head saw of it.
    """
    if end is not None and base.is_conclusive(end):
        if not lost or end.outcome != State.PASSED:
            return end
        # The runner did not notice: what ran in that pod may not have come to its end.
        reason = f"pod {next(iter(lost))} was gone before its time"
        end = dataclasses.replace(end, outcome=State.LOST, exit_code=base.LOST_CODE, reason=reason)
    if end is not None and not _is_understood(end):
        said, end = (*said, f"its end is {end.outcome!r} with exit code {end.exit_code}"), None
    times = base.times_of(end)
    # First of all causes: processes of other pods fail because this one is gone.
    if (pod := _first(pods, lambda one: one.exit_reason == "OOMKilled")) is not None:
        reason = f"out of memory: {pod.who} used more than its limit (OOMKilled, pod {pod.name})"
        return base.out_of_memory(reason, pod.who, **times)
    # The kernel may kill one process of a pod and leave the container running.
    if is_out_of_memory and end is not None and end.exit_code == base.KILLED_CODE:
        reason = f"out of memory: {end.culprit or 'a process'} used more than its pod may have"
        return base.out_of_memory(reason, end.culprit, **times)
    if is_wanted:
        return base.cancelled(**times)
    return _ended_by_others(end, pods, lost, times) or end or _without_a_record(pods, said)


def _ended_by_others(
    end: AttemptEnd | None, pods: Pods, lost: Mapping[str, str], times: Mapping[str, Any]
) -> AttemptEnd | None:
    """Return the end that Kubernetes knows the cause of; None: it knows none."""
    if lost and _first(pods, _is_head_deleted) is None:
        return _lost_pod(pods, lost, times)
    if (pod := _first(pods, is_taken_away)) is not None:
        return base.lost(_taken_away(pod), **times)
    if end is not None and end.outcome != State.CANCELLED:
        return end
    if (pod := _first(pods, lambda one: one.exit_code == objects.NO_PYTHON)) is not None:
        return base.not_run(pod.exit_message or "the image has no Python 3.10 or newer")
    if (pod := _first(pods, _is_head_deleted)) is not None:
        return base.cancelled(f"pod {pod.name} was deleted, not by rankwise", **times)
    if (pod := _first(pods, _is_deleted)) is not None:
        return _lost_pod(pods, {pod.name: ""}, times)
    # After all causes from outside: those explain a refusal, too.
    if end is None and (reason := refusal(pods)):
        return base.not_run(reason)
    return None


def _is_understood(end: AttemptEnd) -> bool:
    """Return whether what is written down is an end, and no success that contradicts itself."""
    if end.outcome == State.PASSED:
        return end.exit_code == 0
    return end.outcome in {state.value for state in State if state.is_over}


def refusal(pods: Pods) -> str:
    """Return why pods will never start; empty: they may."""
    for pod in pods:
        if pod.waiting in REFUSED:
            return f"pod {pod.name} cannot start: {_joined(pod.waiting, pod.waiting_message)}"
        # Failed for a reason, and without a container: its node has refused it.
        is_there = pod.phase != "Failed" or not pod.reason or pod.exit_code is not None
        if not is_there and not is_taken_away(pod):
            return f"pod {pod.name} was not admitted: {_joined(pod.reason, pod.message)}"
    return ""


def pull_trouble(pods: Pods) -> str:
    """Return why an image does not arrive, which is tried again; empty: all is well."""
    if (pod := _first(pods, lambda one: one.waiting in PULLING)) is None:
        return ""
    return f"the image cannot be pulled: {_joined(pod.waiting, pod.waiting_message)}"


def hold_up(pods: Pods) -> str:
    """Return what pods wait for, as the scheduler says it; empty: for nothing special."""
    pods = [pod for pod in pods if pod.unschedulable and not pod.is_over]
    if not pods:
        return ""
    more = f" (and {len(pods) - 1} more)" if len(pods) > 1 else ""
    return f"{pods[0].who}{more} is unschedulable: {pods[0].unschedulable}"


def _first(pods: Pods, is_one: Callable[[PodState], bool]) -> PodState | None:
    return next((pod for pod in pods if is_one(pod)), None)


def _lost_pod(pods: Pods, lost: Mapping[str, str], times: Mapping[str, Any]) -> AttemptEnd:
    """Return the end of a task that lost a pod, with the pod and why it was gone.

    The other pods of its Job end with it: it is the one that Kubernetes has a reason for, or else
    the one that was gone first.
    """
    known = {pod.name: pod for pod in pods}
    # In the order in which the head lost them.
    gone = [known[name] for name in lost if name in known]
    pod = _first(gone, is_taken_away) or next(iter(gone), None)
    if pod is None:
        name, words = next(iter(lost.items()))
        return base.lost(f"pod {name} is gone: {words}", **times)
    if is_taken_away(pod):
        reason = _taken_away(pod)
    elif _is_deleted(pod):
        reason = f"pod {pod.name} was deleted, not by rankwise"
    else:
        left = "" if pod.exit_code is None else f", exit code {pod.exit_code} {pod.exit_reason}"
        says = f"Kubernetes says: {pod.phase or 'nothing'}{left}"
        reason = f"pod {pod.name} is gone: {lost[pod.name]}; {says}"
    return base.lost(f"{pod.who}: {reason}", culprit=pod.who, **times)


def _is_deleted(pod: PodState) -> bool:
    return pod.is_deleted or pod.is_gone


def _is_head_deleted(pod: PodState) -> bool:
    """Return whether the task as a whole was ended from outside."""
    return pod.part != objects.OTHER_PART and _is_deleted(pod)


def is_taken_away(pod: PodState) -> bool:
    """Return whether Kubernetes has ended a pod, and says why."""
    return pod.reason in _TAKEN_AWAY or bool(pod.disrupted)


def _taken_away(pod: PodState) -> str:
    on = f" on {pod.node}" if pod.node else ""
    words = pod.disrupted or _joined(pod.reason, pod.message)
    return f"pod {pod.name}{on} was taken away: {words}"


def _without_a_record(pods: Pods, said: Sequence[str]) -> AttemptEnd:
    # The others leave because their head is gone.
    pods = sorted(pods, key=lambda pod: pod.part == objects.OTHER_PART)
    ended = [pod for pod in pods if pod.exit_code not in (None, 0)]
    if not pods:
        knows = "Kubernetes has forgotten it"
    elif ended:
        pod = ended[0]
        knows = f"pod {pod.name} exited with code {pod.exit_code}"
        knows += f" ({pod.exit_reason})" if pod.exit_reason not in ("", "Error") else ""
    else:
        knows = f"pod {pods[0].name} is {pods[0].phase or 'gone'}"
    # Of what a container wrote, frames are for us.
    lines = (line.strip() for pod in ended for line in pod.exit_message.splitlines())
    words = [*said, *(line for line in lines if line and not line.startswith("{"))]
    last = words[-1] if words else ""
    reason = f"it left no record of how it ended; {knows}"
    return base.lost(f"{reason}: {last}" if last else reason)
