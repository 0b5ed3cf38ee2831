"""How many instances and processes a job has, where the document does not say.

Instances: `instance_count`, else the replicas of the workers, else the nodes that the command asks
for, else its processes over the GPUs of each, else 1. Processes of each instance:
`process_count_per_instance`, else the command's processes over the instances, else those that it
asks for on each node, else one for each GPU of an instance, else one for each of its cores.

What a job claims of a machine is what its roles claim. Where they claim no cores, the job has none
to its name (`Resources.cores` is 0), and whoever shares out a machine counts its processes instead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rankwise.errors import InputError
from rankwise.launch.command import Launch, count_in
from rankwise.launch.request import Facts, JobRequest, RoleRequest

_MOST_INSTANCES = 10_000
MOST_PROCESSES = 100_000
"""More than that are a slip of the pen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """The size of a job, and how it was found."""

    instances: int
    per_instance: int
    notes: tuple[str, ...] = ()

    @property
    def processes(self) -> int:
        return self.instances * self.per_instance


def instance_role(request: JobRequest) -> RoleRequest:
    """Give the role of which there is one replica on each instance."""
    return next((role for role in request.roles if role.name == "worker"), request.roles[0])


def counts(request: JobRequest, facts: Facts, launch: Launch | None) -> Counts:
    """Find out how large a job is; raises InputError if it is larger than anything."""
    instances, said = instances_of(request, launch)
    per_instance, derived = _per_instance(request, facts, launch, instances)
    found = Counts(
        instances=instances,
        per_instance=per_instance,
        notes=(*said, *derived, *_conflicts(request, launch, instances, per_instance)),
    )
    if found.processes > MOST_PROCESSES:
        raise InputError(
            f"{request.name}: {instances} instances with {per_instance} processes each are more "
            f"than {MOST_PROCESSES} processes: check `-np` and `process_count_per_instance`"
        )
    return found


def instances_of(request: JobRequest, launch: Launch | None) -> tuple[int, tuple[str, ...]]:
    """Find out how many instances there are, with a note if it was derived."""
    count, note = _instances(request, launch)
    if count < 1:
        raise InputError(
            f"{request.name}: {count} instances cannot run anything: ask for 1 at least"
        )
    if count > _MOST_INSTANCES:
        raise InputError(
            f"{request.name}: {count} instances are more than {_MOST_INSTANCES}: check "
            "`instance_count`, `num_replicas` and the numbers in the command"
        )
    return count, (f"{_many(count, 'instance')}: {note}",) if note else ()


def _instances(request: JobRequest, launch: Launch | None) -> tuple[int, str]:
    if request.instance_count is not None:
        return request.instance_count, ""
    role = instance_role(request)
    if role.replicas is not None:
        return role.replicas, f"num_replicas of {role.name}"
    if launch is not None and launch.nodes is not None:
        return launch.nodes[1], "as many nodes as the command asks for"
    gpus = role.resources.gpus
    if launch is not None and launch.processes is not None and gpus:
        count = math.ceil(launch.processes / gpus)
        return count, f"{_np(launch)} with {_many(gpus, 'GPU')} each"
    return 1, ""


def _per_instance(
    request: JobRequest, facts: Facts, launch: Launch | None, instances: int
) -> tuple[int, tuple[str, ...]]:
    said = request.process_count_per_instance
    if said is not None:
        if said < 1:
            raise InputError(
                f"{request.name}: `process_count_per_instance: {said}` runs nothing: ask for 1 at "
                "least"
            )
        return said, ()
    count, why = _derived_per_instance(request, facts, launch, instances)
    return count, (f"{_many(count, 'process')} per instance: {why}",)


def _derived_per_instance(
    request: JobRequest, facts: Facts, launch: Launch | None, instances: int
) -> tuple[int, str]:
    gpus, cores = _equipment(request, facts, instances)
    by_gpus = gpus, f"one for each of {_many(gpus, 'GPU')}"
    by_cores = cores, f"one for each of {_many(cores, 'core')}"
    if launch is not None:
        if launch.processes is not None:
            return _share(launch, launch.processes, instances)
        wanted = launch.processes_per_node
        if (number := count_in(wanted)) is not None:
            return (
                number,
                f"--nproc_per_node {number}" if launch.is_torch else "as the command says",
            )
        if wanted in ("gpu", "auto") and gpus:
            return by_gpus
        if launch.is_torch and wanted is None:
            return 1, f"{launch.launcher} starts one unless --nproc_per_node says otherwise"
    return by_gpus if gpus else by_cores


def _equipment(request: JobRequest, facts: Facts, instances: int) -> tuple[int, int]:
    """Give the GPUs and cores of one instance."""
    claimed = instance_role(request).resources
    cores = math.ceil(claimed.cores) or facts.cores // instances
    return claimed.gpus, max(cores, 1)


def _share(launch: Launch, processes: int, instances: int) -> tuple[int, str]:
    count = math.ceil(processes / instances)
    uneven = " (not even: not all places are taken)" if processes % instances else ""
    return count, f"{_np(launch)} over {_many(instances, 'instance')}{uneven}"


def _conflicts(
    request: JobRequest, launch: Launch | None, instances: int, per_instance: int
) -> list[str]:
    """Tell where the document and its command disagree."""
    if launch is None:
        return []
    places = instances * per_instance
    notes = []
    if launch.processes is not None and launch.processes > places:
        notes.append(
            f"oversubscribed: {_np(launch)} on {_many(instances, 'instance')} with "
            f"{_many(per_instance, 'process')} each is {launch.processes - places} more than there "
            "are places"
        )
    wanted = count_in(launch.processes_per_node)
    said = request.process_count_per_instance
    if wanted is not None and said is not None and wanted != said:
        notes.append(
            f"process_count_per_instance is {said}, but the command asks for {wanted} on each node"
        )
    return notes + _conflicting_nodes(request, launch, instances)


def _conflicting_nodes(request: JobRequest, launch: Launch, instances: int) -> list[str]:
    if launch.nodes is None or not launch.is_torch:
        return []
    least, most = launch.nodes
    if least > instances:
        raise InputError(
            f"{request.name}: the command waits for {least} nodes (--nnodes), and there are "
            f"{_many(instances, 'instance')}: set `instance_count: {least}` or --nnodes {instances}"
        )
    if most < instances:
        wanted, there_are = _many(most, "node"), _many(instances, "instance")
        return [f"the command wants {wanted} (--nnodes), and it runs on each of {there_are}"]
    return []


def _np(launch: Launch) -> str:
    return f"-n {launch.processes}" if launch.dialect == "srun" else f"-np {launch.processes}"


def _many(count: int, what: str) -> str:
    plural = f"{what}es" if what.endswith("s") else f"{what}s"
    return f"{count} {what if count == 1 else plural}"
