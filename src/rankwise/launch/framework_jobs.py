"""Jobs of torch.distributed and TensorFlow."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rankwise.errors import InputError
from rankwise.launch.commandline import read_command
from rankwise.launch.jobs import (
    Counts,
    Facts,
    JobRequest,
    PlannedProcess,
    RoleRequest,
    assemble,
    commanding_role,
    counts,
    instances_of,
    process_of,
    unused_commands,
)
from rankwise.launch.rewriting import PreparedLine, prepare
from rankwise.plan import Resources, Task, later

# What TensorFlow calls each role, in the order of ranks: the chief is the first.
_TYPES = {"chief": "chief", "worker": "worker", "parameter_server": "ps", "evaluator": "evaluator"}
# Parameter servers and evaluators take part in no collective operation.
_RANKED = ("chief", "worker")
# Each is told about all the others, so that what is written grows with the square.
_MOST_MEMBERS = 2_000


@dataclass(frozen=True, slots=True)
class _Member:
    """One process to be."""

    role: RoleRequest
    index: int
    node: int
    rank: int | None

    @property
    def type(self) -> str:
        return _TYPES[self.role.name]

    @property
    def address(self) -> str:
        port = f"port:{self.role.name}-{self.index}@{self.node}"
        return f"{later(f'address:{self.node}')}:{later(port)}"


def tensorflow_task(request: JobRequest, facts: Facts) -> Task:
    """Plan a TensorFlow job; its replicas go to the nodes in turn, or each has one of its own."""
    commanding_role(request)
    instances, derived = instances_of(request, None)
    replicas = sum(_replicas(role, instances) for role in request.roles)
    if replicas > _MOST_MEMBERS:
        raise InputError(
            f"{request.name}: {replicas} replicas are more than {_MOST_MEMBERS}: check "
            "`num_replicas`"
        )
    members = list(_members(request, instances, has_pods=facts.has_pods))
    if not any(member.rank == 0 for member in members):
        raise InputError(f"{request.name}: there is neither a chief nor a worker: add `worker:`")
    success, notes = request.success or "all", [*derived]
    if request.success is None and {"chief", "ps"} <= {member.type for member in members}:
        success = "chief"
        notes.append("success: chief: workers of a chief with parameter servers never end")
    planned = [
        process_of(
            request,
            member.role,
            PreparedLine(line=member.role.command),
            member.index,
            who={"TF_CONFIG": _configuration(member, members)},
            node=member.node,
            rank=member.rank,
            # What is not awaited is ended with the rest: parameter servers never end by themselves.
            is_awaited=member.rank == 0 or (success == "all" and member.rank is not None),
            limits=request.limits(member.role.resources),
        )
        for member in members
    ]
    resources = sum((member.role.resources for member in members), Resources())
    nodes = len(members) if facts.has_pods else instances
    return assemble(request, planned, nodes=nodes, resources=resources, notes=notes)


def _members(request: JobRequest, instances: int, *, has_pods: bool) -> Iterator[_Member]:
    roles = {role.name: role for role in request.roles if role.command.strip()}
    rank = count = 0
    for name in filter(roles.get, _TYPES):
        is_ranked = name in _RANKED
        for index in range(_replicas(roles[name], instances)):
            # Without pods, ranks go to the nodes in turn, and each other role begins at the first.
            place = count if has_pods else (rank if is_ranked else index) % instances
            yield _Member(roles[name], index, place, rank if is_ranked else None)
            rank, count = rank + is_ranked, count + 1


def _replicas(role: RoleRequest, instances: int) -> int:
    """Return how many there are; workers that do not say so are one on each instance."""
    if role.replicas is not None:
        return role.replicas
    return instances if role.name == "worker" else 1


def _configuration(member: _Member, members: list[_Member]) -> str:
    """Write TF_CONFIG; an evaluator is told about the cluster, but is no part of it."""
    cluster: dict[str, list[str]] = {}
    for other in members:
        if other.type != "evaluator":
            cluster.setdefault(other.type, []).append(other.address)
    task = {"type": member.type, "index": member.index}
    # Escaped, the marks of `later` would not be found when they are to be filled in.
    return json.dumps({"cluster": cluster, "task": task}, ensure_ascii=False)


def pytorch_task(request: JobRequest, facts: Facts) -> Task:
    """Plan a PyTorch job.

    A command that starts ranks itself (torchrun, torch.distributed.launch) runs once on each node.
    Of any other, there is a process for each rank, with the variables that torch goes by.
    """
    role = commanding_role(request, "worker")
    reading = read_command(role.command, facts.mpi_family, request.environment)
    found = counts(request, facts, reading.launch)
    if reading.launch is not None or reading.starts_ranks:
        # On several nodes, each mpirun would have a rank 0 of its own.
        is_clear = found.instances == 1 or (reading.launch is not None and reading.launch.is_torch)
        prepared = prepare(role.command, reading, facts.mpi_family, wrap=is_clear)
        planned = list(_launchers(request, role, prepared, found))
    else:
        prepared = PreparedLine(line=role.command)
        planned = list(_ranks(request, role, prepared, found))
    return assemble(
        request,
        planned,
        nodes=found.instances,
        width=found.processes,
        resources=role.resources * found.instances,
        node_limits=request.limits(role.resources),
        notes=[*found.notes, *unused_commands(request, role), *prepared.notes],
    )


def _launchers(
    request: JobRequest, role: RoleRequest, prepared: PreparedLine, found: Counts
) -> Iterator[PlannedProcess]:
    for node in range(found.instances):
        who = {**_meeting_point(request, found), "NODE_RANK": str(node)}
        yield process_of(
            request,
            role,
            prepared,
            node,
            who=who,
            defaults=_defaults(request, prepared, found, {**request.environment, **who}),
            node=node,
            is_awaited=request.success != "chief" or node == 0,
        )


def _ranks(
    request: JobRequest, role: RoleRequest, prepared: PreparedLine, found: Counts
) -> Iterator[PlannedProcess]:
    for rank in range(found.processes):
        # As torchrun numbers them: one node after the other.
        node, local_rank = divmod(rank, found.per_instance)
        yield process_of(
            request,
            role,
            prepared,
            rank,
            who={
                **_meeting_point(request, found),
                "NODE_RANK": str(node),
                "RANK": str(rank),
                "LOCAL_RANK": str(local_rank),
                "LOCAL_WORLD_SIZE": str(found.per_instance),
            },
            node=node,
            rank=rank,
            is_awaited=request.success != "chief" or rank == 0,
            resources=role.resources.share(found.per_instance),
        )


def _meeting_point(request: JobRequest, found: Counts) -> dict[str, str]:
    """Return the variables that are the same everywhere; the document may name another place."""
    # Node and port are chosen when the attempt starts: a plan for later cannot know them.
    variables = {"MASTER_ADDR": later("address:0"), "MASTER_PORT": later("port:master@0")}
    kept = {name: value for name, value in variables.items() if name not in request.environment}
    return {**kept, "WORLD_SIZE": str(found.processes)}


def _defaults(
    request: JobRequest, prepared: PreparedLine, found: Counts, known: Mapping[str, str]
) -> dict[str, str]:
    """Return what torch's launchers take for options that the command does not have."""
    if prepared.launch is None or not prepared.launch.is_torch:
        return {}
    # An option in the command wins over these: torchrun looks at its PET_ variables last.
    defaults = {f"PET_{name}": known[name] for name in ("NODE_RANK", "MASTER_ADDR", "MASTER_PORT")}
    defaults["PET_NNODES"] = str(found.instances)
    if request.process_count_per_instance is not None:
        defaults["PET_NPROC_PER_NODE"] = str(found.per_instance)
    return defaults
