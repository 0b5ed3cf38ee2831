"""Jobs of TensorFlow: TF_CONFIG tells each process who it is, and where the others are.

Workers and the chief decide when the job is done. Parameter servers serve for ever, and an
evaluator waits for checkpoints that may no longer come: both are ended when the others are done,
and while those work, a failure of theirs is the job's. With a chief and parameter servers, workers
wait for work for ever too, so that the chief alone decides, unless `success` says otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from rankwise.errors import InputError
from rankwise.launch.assembly import assemble, commanding_role, process_of
from rankwise.launch.derive import instances_of
from rankwise.launch.line import Prepared
from rankwise.launch.request import Facts, JobRequest, RoleRequest
from rankwise.plan import Process, Resources, Task, later

# The order of ranks: the chief is the first.
_ORDER = ("chief", "master", "worker", "ps", "evaluator")
_TYPES = {"parameter_server": "ps"}
# Each is told about all the others.
_MOST_MEMBERS = 2_000
_RANKED = ("chief", "master", "worker")


@dataclass(frozen=True, slots=True)
class _Member:
    """One process to be."""

    role: RoleRequest
    type: str
    """The role, as TensorFlow calls it."""
    index: int
    node: int
    rank: int | None

    @property
    def name(self) -> str:
        return f"{self.role.name}-{self.index}"

    @property
    def address(self) -> str:
        return f"{later(f'address:{self.node}')}:{later(f'port:{self.name}@{self.node}')}"


def tensorflow_task(request: JobRequest, facts: Facts) -> Task:
    """Plan a TensorFlow job; its replicas go to the nodes in turn, or each has one of its own."""
    commanding_role(request)
    instances, derived = instances_of(request, None)
    replicas = sum(role.replicas or 0 for role in request.roles)
    if replicas > _MOST_MEMBERS:
        raise InputError(
            f"{request.name}: {replicas} replicas are more than {_MOST_MEMBERS}: check "
            "`num_replicas`"
        )
    members = list(_members(request, instances, has_pods=facts.has_pods))
    if not any(member.rank == 0 for member in members):
        raise InputError(f"{request.name}: there is neither a chief nor a worker: add `worker:`")
    success, why = _success(request, members)
    notes = [*derived, *why]
    processes = []
    for member in members:
        process, told = process_of(
            request,
            member.role,
            Prepared(line=member.role.command),
            Process(
                name=member.name,
                role=member.role.name,
                node=member.node,
                command="",
                rank=member.rank,
                is_awaited=_is_awaited(member, success),
                resources=member.role.resources,
            ),
            who={"TF_CONFIG": _configuration(member, members)},
        )
        processes.append(process)
        notes += told
    resources = sum((member.role.resources for member in members), Resources())
    nodes = len(members) if facts.has_pods else instances
    return assemble(request, processes, nodes=nodes, resources=resources, notes=notes)


def _members(request: JobRequest, instances: int, *, has_pods: bool) -> Iterator[_Member]:
    types = {role.name: _TYPES.get(role.name, role.name) for role in request.roles}
    roles = [role for role in request.roles if role.command.strip()]
    known = [role for role in roles if types[role.name] in _ORDER]
    known.sort(key=lambda role: _ORDER.index(types[role.name]))
    rank = count = 0
    for role in [*known, *(role for role in roles if role not in known)]:
        is_ranked = types[role.name] in _RANKED
        # A lone role that does not say how many it is has one on each instance.
        default = instances if role.name == "worker" else 1
        for index in range(default if role.replicas is None else role.replicas):
            place = count if has_pods else (rank if is_ranked else index) % instances
            yield _Member(role, types[role.name], index, place, rank if is_ranked else None)
            rank, count = rank + is_ranked, count + 1


def _configuration(member: _Member, members: list[_Member]) -> str:
    """Write TF_CONFIG; an evaluator is told about the cluster, but is no part of it."""
    cluster: dict[str, list[str]] = {}
    for other in members:
        if other.type != "evaluator":
            cluster.setdefault(other.type, []).append(other.address)
    task = {"type": member.type, "index": member.index}
    # The marks must stay as they are.
    return json.dumps({"cluster": cluster, "task": task}, ensure_ascii=False)


def _success(request: JobRequest, members: list[_Member]) -> tuple[str, list[str]]:
    if request.success is not None:
        return request.success, []
    types = {member.type for member in members}
    if {"chief", "ps"} <= types:
        return "chief", ["success: chief: workers of a chief with parameter servers never end"]
    return "all", []


def _is_awaited(member: _Member, success: str) -> bool:
    if success == "chief":
        return member.rank == 0
    return member.rank is not None
