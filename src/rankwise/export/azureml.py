"""The command job of Azure ML, version 2: one command, and how its processes find each other."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from typing import Any

from rankwise.errors import InputError
from rankwise.export.azureml_command import command_of
from rankwise.export.contract import Exported, Job
from rankwise.plan import Resources
from rankwise.spec.command_job import CommandJob
from rankwise.spec.parts import Input, Output
from rankwise.spec.written import Scalar

SCHEMA = "https://azuremlschemas.azureedge.net/latest/commandJob.schema.json"
_PASSED_ON = ("identity", "services", "queue_settings")


def azureml(job: Job) -> Exported:
    """Write a command job; raises InputError if it would become another one."""
    line = command_of(job)
    made: dict[str, Any] = {
        "$schema": SCHEMA,
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
        "inputs": {name: _input(job, given) for name, given in job.model.inputs.items()},
        "compute": f"azureml:{job.request.compute.removeprefix('azureml:')}",
        "resources": {"instance_count": job.counts.instances},
        "distribution": line.distribution,
    }
    if job.request.timeout is not None:
        made["limits"] = {"timeout": math.ceil(job.request.timeout)}
    if isinstance(job.model, CommandJob):
        made |= _of_command_job(job, job.model, made["resources"])
    return Exported(
        name=job.name,
        objects=[{name: value for name, value in made.items() if value}],
        losses=[*line.losses, *_losses(job)],
        notes=[*line.notes, *job.counts.notes],
    )


def _environment(job: Job) -> str | dict[str, str]:
    """Name the environment: as the document does, or by its image."""
    runtime = job.role.runtime
    image = job.wish.image or (runtime.image if runtime.kind == "container" else "")
    if image:
        return {"image": image}
    if runtime.name.startswith("azureml:"):
        return runtime.name
    place = job.document.place(("environment",), runtime.name)
    raise InputError(
        f"{place}: Azure ML has no environment `{runtime.name}`: name one that it has, such as "
        "`azureml:NAME:VERSION` or `azureml:NAME@latest`, or say --image IMAGE"
    )


def _path(job: Job, path: str) -> str:
    """Write a path of the document for a file in another folder; addresses stay as they are."""
    if "://" in path or path.startswith("azureml:"):
        return path
    whole = job.document.path.absolute().parent / path
    return os.path.relpath(whole, job.wish.beside.absolute())


def _input(job: Job, given: Input) -> str | dict[str, str]:
    if given.value is not None:
        return str(given.value)
    fields = {"type": given.type, "path": _path(job, given.path), "mode": given.mode}
    return {name: value for name, value in fields.items() if value}


def _output(output: Output) -> dict[str, str]:
    fields = {"type": output.type or "uri_folder", "path": output.path, "mode": output.mode}
    return {name: value for name, value in fields.items() if value}


def _of_command_job(job: Job, model: CommandJob, resources: Mapping[str, Any]) -> dict[str, Any]:
    """Give what only command jobs say, which is Azure ML's own."""
    asked = model.resources
    more = {
        "instance_type": asked.instance_type,
        "shm_size": asked.shm_size,
        "docker_args": asked.docker_args,
    }
    return {
        "outputs": {name: _output(output) for name, output in model.outputs.items()},
        "resources": {**resources, **{name: value for name, value in more.items() if value}},
        **{name: _plain(getattr(model, name)) for name in _PASSED_ON},
    }


def _plain(value: Any) -> Any:
    """Make plain data of what was only read."""
    match value:
        case Mapping():
            return {str(name): _plain(entry) for name, entry in value.items()}
        case list() | tuple():
            return [_plain(entry) for entry in value]
        case Scalar():
            return value.value
    return value


def _losses(job: Job) -> Iterator[str]:
    for role in job.request.roles:
        if role.resources != Resources():
            yield job.loss(
                job.limits_field(role.name),
                f"`{job.request.compute}` decides how large its machines are",
            )
    if job.request.secrets:
        names = ", ".join(job.request.secrets)
        yield job.loss("secrets", f"{names}: have the program ask the workspace's key vault")
    if job.request.restart.most:
        yield job.loss("restart", "Azure ML does not start a command job again")
    if job.request.success in ("launcher", "chief"):
        yield job.loss("success", "a command job has succeeded when all its processes have")
