"""Commands whose processes need not find each other: one on each instance."""

from __future__ import annotations

from rankwise.launch.assembly import assemble, commanding_role, process_of, unused_commands
from rankwise.launch.derive import instances_of
from rankwise.launch.line import Prepared
from rankwise.launch.request import Facts, JobRequest
from rankwise.plan import Process, Task


def plain_task(request: JobRequest, facts: Facts) -> Task:
    """Plan a command that runs once on each instance, and knows the number of its node."""
    del facts  # Nothing is derived from the machine.
    role = commanding_role(request)
    instances, notes = instances_of(request, None)
    prepared = Prepared(line=role.command)
    processes, told = [], [*notes, *unused_commands(request, role)]
    for node in range(instances):
        process, said = process_of(
            request,
            role,
            prepared,
            Process(
                name=f"{role.name}-{node}",
                role=role.name,
                node=node,
                command="",
                rank=node,
                resources=role.resources,
            ),
            who={"NODE_RANK": str(node)},
        )
        processes.append(process)
        told += said
    return assemble(
        request, processes, nodes=instances, resources=role.resources * instances, notes=told
    )
