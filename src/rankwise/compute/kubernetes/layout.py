"""Which pods a task has: who is in them, and what each claims. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from rankwise.plan import Resources, Task

HEAD = "head"
"""What the first pod is called where no role of the task is in it."""
_WORKER = "worker"
# Room for the number of a pod, and for what Kubernetes puts behind its name.
_MOST_LETTERS = 63
_MOST_FOR_JOBS = 50
# The head of a task has nothing to do but to look after the others.
HEAD_CLAIM = Resources(cores=0.05, memory=64 << 20)
HEAD_LIMIT = Resources(cores=1, memory=512 << 20)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Pods that are alike: an Indexed Job."""

    role: str
    nodes: tuple[int, ...]
    """Which node of the task each of them is, by its index; none: it is no node, but a head."""
    claim: Resources = Resources()
    """Of one pod."""

    @property
    def count(self) -> int:
        return max(1, len(self.nodes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The pods of a task.

    The runner is in the head, and starts what runs in the others. It is the task's only node, the
    launcher's own, or else a small pod beside those of the task, so that no process of theirs
    takes it along when it uses too much memory.
    """

    head: Group
    others: tuple[Group, ...] = ()

    @property
    def pods(self) -> int:
        return self.head.count + sum(group.count for group in self.others)


def layout_of(task: Task) -> Layout:
    """Say which pods a task has."""
    roles = _roles(task)
    if task.nodes == 1:
        return Layout(head=Group(role=roles[0], nodes=(0,), claim=task.resources))
    nodes: dict[str, list[int]] = {}
    for node, role in roles.items():
        nodes.setdefault(role, []).append(node)
    claims = _claims(task, nodes)
    groups = [
        Group(role=role, nodes=tuple(where), claim=claims[role]) for role, where in nodes.items()
    ]
    own = next((group for group in groups if _is_launcher(group, task)), None)
    others = tuple(group for group in groups if group is not own)
    return Layout(head=own or Group(role=HEAD, nodes=(), claim=HEAD_CLAIM), others=others)


def _roles(task: Task) -> dict[int, str]:
    """Name each node after the first process there; launchers start ranks where there is none."""
    found = {process.node: process.role for process in reversed(task.processes)}
    return {node: found.get(node, _WORKER) for node in range(task.nodes)}


def _is_launcher(group: Group, task: Task) -> bool:
    """Tell whether a node is there for the launcher of the others alone: the last of the task."""
    return group.role == "launcher" and group.nodes == (task.nodes - 1,)


def _claims(task: Task, nodes: Mapping[str, list[int]]) -> dict[str, Resources]:
    """Share out what a task claims: what processes do not claim is that of nodes without any."""
    if len(nodes) == 1:
        [(role, where)] = nodes.items()
        return {role: _part(task.resources, len(where))}
    claims, left, bare = {}, task.resources, []
    for role, where in nodes.items():
        own = [process.resources for process in task.processes if process.node in where]
        if not own:
            bare.append(role)
            continue
        total = sum(own, Resources())
        claims[role], left = _part(total, len(where)), left - total
    count = sum(len(nodes[role]) for role in bare)
    return claims | {role: _part(left, count) for role in bare}


def _part(whole: Resources, count: int) -> Resources:
    return Resources(
        cores=whole.cores / count, memory=whole.memory // count, gpus=whole.gpus // count
    )


def job_name(attempt: str, role: str) -> str:
    """Name the Job of a role; its pods are called so as well, with their numbers."""
    return dns_name(f"{attempt}-{role}", _MOST_FOR_JOBS)


def service_name(attempt: str) -> str:
    """Name the Service under which the pods of an attempt are known, and what else it has."""
    return dns_name(attempt, _MOST_FOR_JOBS)


def dns_name(text: str, most: int = _MOST_LETTERS) -> str:
    """Make a name that Kubernetes takes; what has to be cut is told apart by a digest."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    if not name or not name[0].isalpha():
        name = f"rw-{name}".strip("-")
    if len(name) > most:
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        name = f"{name[: most - 9].rstrip('-')}-{digest}"
    return name


def label(text: str) -> str:
    """Make a value that Kubernetes takes for a label."""
    value = re.sub(r"[^A-Za-z0-9_.-]+", "-", text)[:_MOST_LETTERS]
    return value.strip("-_.")
