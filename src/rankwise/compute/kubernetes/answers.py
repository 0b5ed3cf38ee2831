"""What the API says of pods and Jobs, as far as it matters. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rankwise.compute.kubernetes.manifests import CONTAINER, MARKER, PART, ROLE

# What no patience helps against, but for the first two: those are tried again a few times.
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
    """The scheduler's words."""
    disrupted: str = ""
    """Who ends it, if that is neither us nor itself: preemption, eviction, a node that is gone."""
    waiting: str = ""
    waiting_message: str = ""
    is_running: bool = False
    exit_code: int | None = None
    signal: int | None = None
    exit_reason: str = ""
    """Of the container: `OOMKilled`, `Error`, `Completed`, …"""
    exit_message: str = ""
    is_deleted: bool = False
    """Whether somebody has asked for its end."""
    is_gone: bool = False
    """Whether the API does not know it any more."""

    @property
    def is_over(self) -> bool:
        return self.is_gone or self.phase in ("Succeeded", "Failed")

    @property
    def who(self) -> str:
        """Name it as a process of its role would be named."""
        return f"{self.role}-{self.index}"


def read_pod(pod: Mapping[str, Any]) -> PodState:
    """Read a pod, as the API writes it."""
    metadata, status = pod.get("metadata") or {}, pod.get("status") or {}
    labels = metadata.get("labels") or {}
    annotations = metadata.get("annotations") or {}
    index = labels.get(_INDEX, annotations.get(_INDEX, "0"))
    return PodState(
        name=metadata.get("name", ""),
        attempt=labels.get(MARKER, ""),
        part=labels.get(PART, ""),
        role=labels.get(ROLE, ""),
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
            found["disrupted"] = f"{one.get('reason', '')}: {one.get('message', '')}".strip(": ")
    return found


def _container(statuses: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    own = next((one for one in statuses if one.get("name") == CONTAINER), None)
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


def failure_of(job: Mapping[str, Any]) -> str:
    """Say why a Job has failed, as the API does; empty: it has not."""
    for one in (job.get("status") or {}).get("conditions") or ():
        if one.get("type") == "Failed" and one.get("status") == "True":
            return f"{one.get('reason') or 'Failed'}: {one.get('message') or ''}".strip(": ")
    return ""
