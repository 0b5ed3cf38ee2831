"""The command of a job for Azure ML, which writes the `mpirun` itself.

So that of the document is taken apart: what can be said by variables is, and the rest is told.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rankwise.errors import InputError
from rankwise.export.azureml_mpi import without_launcher
from rankwise.export.contract import Job
from rankwise.export.lines import torch_words, with_dollars
from rankwise.launch.command import read_command
from rankwise.spec.command_job import CommandJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A command, and what belongs to it."""

    command: str
    distribution: dict[str, Any] | None = None
    variables: dict[str, str] = field(default_factory=dict)
    losses: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def command_of(job: Job) -> Line:
    """Give the command of a job; `${{inputs.NAME}}` stays in it, since Azure ML knows that too."""
    match job.request.kind:
        case "mpi":
            return _mpi(job)
        case "pytorch":
            return _pytorch(job)
        case "tensorflow":
            return _tensorflow(job)
    return Line(command=_written(job))


def _written(job: Job) -> str:
    """Give the command as the document has it."""
    if isinstance(job.model, CommandJob):
        return job.model.command
    return next(role.command for role in job.raw.roles if role.name == job.role.name)


def _mpi(job: Job) -> Line:
    distribution = {"type": "mpi", "process_count_per_instance": job.counts.per_instance}
    command = _written(job)
    if job.request.generate_launcher and job.launch is None:
        return Line(command=command, distribution=distribution)
    launch = read_command(command, environment=job.raw.environment).launch
    found = without_launcher(command, launch) if launch is not None else None
    if launch is None or found is None:
        raise InputError(
            f"{job.at('launcher.spec.command')}: Azure ML writes the mpirun itself, and it "
            "is not clear which program this starts: write it as `mpirun OPTIONS PROGRAM`"
        )
    program, variables, lost = found
    losses = []
    if lost:
        options = ", ".join(f"`{option}`" for option in lost)
        losses.append(
            job.loss("launcher.spec.command", f"{options}: Azure ML writes the mpirun itself")
        )
    if launch.processes is not None and launch.processes != job.counts.processes:
        losses.append(
            job.loss(
                "launcher.spec.command",
                f"{launch.processes} ranks: Azure ML starts the same number on each node, "
                f"{job.counts.processes} in all",
            )
        )
    return Line(
        command=program,
        distribution=distribution,
        variables=variables,
        losses=tuple(losses),
        notes=(f"{launch.launcher} is left out of the command: Azure ML writes it itself",),
    )


def _pytorch(job: Job) -> Line:
    command, notes = torch_words(_written(job), job.launch)
    # A launcher in the command starts the processes of a node, and runs once on each.
    count = 1 if job.launch is not None else job.counts.per_instance
    distribution = {"type": "pytorch", "process_count_per_instance": count}
    return Line(command=command, distribution=distribution, notes=tuple(notes))


def _tensorflow(job: Job) -> Line:
    names = {role.name for role in job.request.roles}
    for name in ("chief", "evaluator"):
        if name in names:
            raise InputError(f"{job.at(name)}: Azure ML has no {name} in TensorFlow jobs")
    commands = {role.command for role in job.request.roles}
    if len(commands) > 1:
        raise InputError(
            f"{job.at('parameter_server.spec.command')}: all processes of an Azure ML job "
            "run the same command: have the program look at TF_CONFIG for what it is"
        )
    replicas = {role.name: role.replicas for role in job.request.roles}
    distribution: dict[str, Any] = {
        "type": "tensorflow",
        "worker_count": replicas["worker"] or job.counts.instances,
    }
    if servers := replicas.get("parameter_server", 0) or ("parameter_server" in replicas):
        distribution["parameter_server_count"] = int(servers)
    return Line(command=with_dollars(_written(job), ("TF_CONFIG",)), distribution=distribution)
