"""Jobs of torch.distributed: one launcher on each node, or the ranks themselves."""

from __future__ import annotations

from collections.abc import Mapping

from rankwise.launch.assembly import assemble, commanding_role, process_of, share, unused_commands
from rankwise.launch.command import Reading, read_command
from rankwise.launch.derive import Counts, counts
from rankwise.launch.line import Prepared, prepare
from rankwise.launch.request import Facts, JobRequest, RoleRequest
from rankwise.plan import Process, Task, later

MASTER_ADDRESS = later("address:0")
MASTER_PORT = later("port:master@0")


def pytorch_task(request: JobRequest, facts: Facts) -> Task:
    """Plan a PyTorch job.

    A command that starts ranks itself (torchrun, torch.distributed.launch) runs once on each node.
    Of any other, there is a process for each rank, with the variables that torch goes by.
    """
    role = commanding_role(request, "worker")
    said = {**request.environment, **role.environment}
    reading = read_command(role.command, facts.mpi_family, said)
    found = counts(request, facts, reading.launch)
    if reading.launch is not None or reading.starts_ranks:
        processes, notes = _launchers(request, role, reading, found, facts)
    else:
        processes, notes = _ranks(request, role, found)
    return assemble(
        request,
        processes,
        nodes=found.instances,
        width=found.processes,
        resources=role.resources * found.instances,
        notes=[*found.notes, *unused_commands(request, role), *notes],
    )


def _launchers(
    request: JobRequest, role: RoleRequest, reading: Reading, found: Counts, facts: Facts
) -> tuple[list[Process], list[str]]:
    # On several nodes, each mpirun would have a rank 0 of its own.
    is_clear = found.instances == 1 or (reading.launch is not None and reading.launch.is_torch)
    prepared = prepare(role.command, reading, facts.mpi_family, wrap=is_clear)
    said = {**request.environment, **role.environment}
    processes, notes = [], [*prepared.notes]
    for node in range(found.instances):
        who = {**_meeting_point(request, role, found), "NODE_RANK": str(node)}
        process, told = process_of(
            request,
            role,
            prepared,
            Process(
                name=f"{role.name}-{node}",
                role=role.name,
                node=node,
                command="",
                is_awaited=request.success != "chief" or node == 0,
                resources=role.resources,
            ),
            who=who,
            defaults=_defaults(request, prepared, found, {**said, **who}),
        )
        processes.append(process)
        notes += told
    return processes, notes


def _ranks(
    request: JobRequest, role: RoleRequest, found: Counts
) -> tuple[list[Process], list[str]]:
    prepared = Prepared(line=role.command)
    processes: list[Process] = []
    notes: list[str] = []
    for rank in range(found.processes):
        node, local_rank = divmod(rank, found.per_instance)
        process, told = process_of(
            request,
            role,
            prepared,
            Process(
                name=f"{role.name}-{rank}",
                role=role.name,
                node=node,
                command="",
                rank=rank,
                is_awaited=request.success != "chief" or rank == 0,
                resources=share(role.resources, found.per_instance),
            ),
            who={
                **_meeting_point(request, role, found),
                "NODE_RANK": str(node),
                "RANK": str(rank),
                "LOCAL_RANK": str(local_rank),
                "LOCAL_WORLD_SIZE": str(found.per_instance),
            },
        )
        processes.append(process)
        notes += told
    return processes, notes


def _meeting_point(request: JobRequest, role: RoleRequest, found: Counts) -> dict[str, str]:
    """Give the variables that are the same everywhere; the document may name another place."""
    said = {**request.environment, **role.environment}
    variables = {"MASTER_ADDR": MASTER_ADDRESS, "MASTER_PORT": MASTER_PORT}
    kept = {name: value for name, value in variables.items() if name not in said}
    return {**kept, "WORLD_SIZE": str(found.processes)}


def _defaults(
    request: JobRequest, prepared: Prepared, found: Counts, known: Mapping[str, str]
) -> dict[str, str]:
    """Give what torch's launchers take for options that the command does not have."""
    if prepared.launch is None or not prepared.launch.is_torch:
        return {}
    defaults = {
        "PET_NNODES": str(found.instances),
        "PET_NODE_RANK": known["NODE_RANK"],
        "PET_MASTER_ADDR": known["MASTER_ADDR"],
        "PET_MASTER_PORT": known["MASTER_PORT"],
    }
    if request.process_count_per_instance is not None:
        defaults["PET_NPROC_PER_NODE"] = str(found.per_instance)
    return defaults
