"""Export for Azure ML."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rankwise.documents.common import Input
from rankwise.documents.jobs import CommandJob
from rankwise.documents.written import plain_data
from rankwise.errors import InputError
from rankwise.export.base import Exported, ExportJob, given
from rankwise.export.commands import torch_words, with_dollars, without_launcher
from rankwise.launch.commandline import read_command
from rankwise.launch.jobs import differ
from rankwise.plan import Resources


@dataclass(frozen=True, slots=True, kw_only=True)
class AzureCommand:
    """A command, and what belongs to it."""

    command: str
    distribution: dict[str, Any] | None = None
    variables: dict[str, str] = field(default_factory=dict)
    losses: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def command_of(job: ExportJob) -> AzureCommand:
    """Return the command of a job; `${{inputs.NAME}}` stays in it: Azure ML knows that too."""
    match job.request.kind:
        case "mpi":
            return _mpi(job)
        case "pytorch":
            return _pytorch(job)
        case "tensorflow":
            return _tensorflow(job)
    return AzureCommand(command=_written(job))


def _written(job: ExportJob) -> str:
    """Return the command as the document has it."""
    if isinstance(job.model, CommandJob):
        return job.model.command
    return next(role.command for role in job.raw.roles if role.name == job.role.name)


def _mpi(job: ExportJob) -> AzureCommand:
    distribution = {"type": "mpi", "process_count_per_instance": job.counts.per_instance}
    # As it is written, with `${{inputs.NAME}}`, which Azure ML fills in by itself.
    command = _written(job)
    if job.request.generate_launcher and job.launch is None:
        return AzureCommand(command=command, distribution=distribution)
    launch = read_command(command, environment=job.raw.environment).launch
    # Two launchers, that of Azure ML and that of the command, would start ranks of ranks.
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
        losses.append(f"{options}: Azure ML writes the mpirun itself")
    if launch.processes is not None and launch.processes != job.counts.processes:
        losses.append(
            f"{launch.processes} ranks: Azure ML starts the same number on each node, "
            f"{job.counts.processes} in all"
        )
    return AzureCommand(
        command=program,
        distribution=distribution,
        variables=variables,
        losses=tuple(job.loss("launcher.spec.command", loss) for loss in losses),
        notes=(f"{launch.launcher} is left out of the command: Azure ML writes it itself",),
    )


def _pytorch(job: ExportJob) -> AzureCommand:
    command, notes = torch_words(_written(job), job.launch)
    # A launcher in the command starts the processes of a node, and runs once on each.
    count = 1 if job.launch is not None else job.counts.per_instance
    distribution = {"type": "pytorch", "process_count_per_instance": count}
    return AzureCommand(command=command, distribution=distribution, notes=tuple(notes))


def _tensorflow(job: ExportJob) -> AzureCommand:
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
    if "parameter_server" in replicas:
        distribution["parameter_server_count"] = replicas["parameter_server"] or 1
    command = with_dollars(_written(job), ("TF_CONFIG",))
    return AzureCommand(command=command, distribution=distribution)


# Fields of Azure ML that mean nothing here, and go back to it as they were read.
_PASSED_ON = ("identity", "services", "queue_settings")


def azureml(job: ExportJob) -> Exported:
    """Write a command job; raises InputError if it would become another one."""
    line = command_of(job)
    made: dict[str, Any] = {
        "$schema": "https://azuremlschemas.azureedge.net/latest/commandJob.schema.json",
        "type": "command",
        # A name may be used once only, so that Azure ML is left to find one.
        "display_name": getattr(job.model, "display_name", "") or job.model.name,
        "experiment_name": job.model.experiment_name,
        "description": job.model.description,
        "tags": dict(job.model.tags),
        "code": _path(job, job.code or "."),
        "command": line.command,
        "environment": _environment(job),
        "environment_variables": {**line.variables, **job.raw.environment},
        "inputs": {name: _input(job, said) for name, said in job.model.inputs.items()},
        "compute": f"azureml:{job.request.compute.removeprefix('azureml:')}",
        "resources": {"instance_count": job.counts.instances},
        "distribution": line.distribution,
    }
    if job.request.timeout is not None:
        # In whole seconds; rounded down, a job that keeps its limit could be ended.
        made["limits"] = {"timeout": math.ceil(job.request.timeout)}
    if isinstance(job.model, CommandJob):
        made |= _of_command_job(job, job.model, made["resources"])
    return Exported(
        name=job.name,
        objects=[given(**made)],
        losses=[*line.losses, *_losses(job)],
        notes=[*line.notes, *job.counts.notes],
    )


def _environment(job: ExportJob) -> str | dict[str, str]:
    """Name the environment: as the document does, or by its image."""
    runtime = job.role.runtime
    image = job.options.image or (runtime.image if runtime.kind == "container" else "")
    # The name of an environment is Azure ML's own; an image needs no registration there.
    if image:
        return {"image": image}
    if runtime.name.startswith("azureml:"):
        return runtime.name
    place = job.document.place(("environment",), runtime.name)
    raise InputError(
        f"{place}: Azure ML has no environment `{runtime.name}`: name one that it has, such as "
        "`azureml:NAME:VERSION` or `azureml:NAME@latest`, or say --image IMAGE"
    )


def _path(job: ExportJob, path: str) -> str:
    """Write a path of the document for a file in another folder; addresses stay as they are."""
    if "://" in path or path.startswith("azureml:"):
        return path
    # Azure ML takes paths from the folder of the file that it reads.
    whole = job.document.path.absolute().parent / path
    return os.path.relpath(whole, job.options.beside.absolute())


def _input(job: ExportJob, said: Input) -> str | dict[str, str]:
    if said.value is not None:
        return str(said.value)
    return given(type=said.type, path=_path(job, said.path), mode=said.mode)


def _of_command_job(
    job: ExportJob, model: CommandJob, resources: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what only command jobs say, which is Azure ML's own."""
    asked = model.resources
    more = given(
        instance_type=asked.instance_type, shm_size=asked.shm_size, docker_args=asked.docker_args
    )
    outputs = {
        name: given(type=one.type or "uri_folder", path=one.path, mode=one.mode)
        for name, one in model.outputs.items()
    }
    return {
        "outputs": outputs,
        "resources": {**resources, **more},
        **{name: plain_data(getattr(model, name)) for name in _PASSED_ON},
    }


def _losses(job: ExportJob) -> Iterator[str]:
    yield from job.losses_of_code()
    for role in job.request.roles:
        if differ(role.runtime, job.role.runtime):
            yield job.loss(f"{role.name}.spec.environment", "it has that of the first")
        if role.resources != Resources():
            why = f"`{job.request.compute}` decides how large its machines are"
            yield job.loss(job.limits_field(role.name), why)
    if job.request.secrets:
        names = ", ".join(job.request.secrets)
        yield job.loss("secrets", f"{names}: have the program ask the workspace's key vault")
    if job.request.restart.most:
        yield job.loss("restart", "Azure ML does not start a command job again")
    if job.request.success in ("launcher", "chief"):
        yield job.loss("success", "a command job has succeeded when all its processes have")
