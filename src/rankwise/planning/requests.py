"""From a checked document to what it asks for, with the names in it looked up."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rankwise.launch.request import JobRequest, Kind, RoleRequest
from rankwise.plan import Resources, Restart, later
from rankwise.site import Site
from rankwise.spec.command_job import (
    CommandJob,
    MpiDistribution,
    PytorchDistribution,
    TensorflowDistribution,
)
from rankwise.spec.documents import Document
from rankwise.spec.models import Job, MpiJob, PytorchJob, RoleJob, TensorflowJob
from rankwise.spec.roles import Code, CommandSpec, Replicas, ResourceLimits, Role

_KINDS: Mapping[type[RoleJob], Kind] = {
    MpiJob: "mpi",
    PytorchJob: "pytorch",
    TensorflowJob: "tensorflow",
}
_ROLES = ("launcher", "chief", "worker", "parameter_server", "evaluator")


def compute_of(document: Document) -> str:
    """Name the compute that a document wants."""
    model = document.model
    assert isinstance(model, RoleJob | CommandJob)
    return model.compute.target


def runtimes_of(document: Document) -> set[str]:
    """Name the runtimes that a document wants."""
    model = document.model
    if isinstance(model, CommandJob):
        return {model.environment}
    return {role.spec.environment for role in _roles(model).values()}


def code_of(document: Document) -> list[tuple[str, Path]]:
    """Name the folders of code that a document wants, as it writes them and as they are."""
    model = document.model
    folder = document.path.absolute().parent
    codes = (
        [model.code]
        if isinstance(model, CommandJob)
        else [role.spec.code for role in _roles(model).values()]
    )
    return [(str(code.path), folder / code.path) for code in codes if code is not None]


def request_of(document: Document, site: Site, *, key: str, compute: str) -> JobRequest:
    """Say what a document asks for."""
    model = document.model
    folder = document.path.absolute().parent
    assert isinstance(model, Job)
    details = (
        _of_command(model, site, folder)
        if isinstance(model, CommandJob)
        else _of_roles(model, site, folder)
    )
    return JobRequest(
        key=key,
        name=model.name,
        compute=compute,
        environment=model.environment_variables,
        inputs={name: given.text for name, given in model.inputs.items()},
        secrets=tuple(model.secrets),
        restart=_restart(model),
        folder=str(folder),
        tags=model.tags,
        **details,
    )


def _of_roles(model: object, site: Site, folder: Path) -> dict[str, Any]:
    assert isinstance(model, RoleJob)
    return {
        "kind": _KINDS[type(model)],
        "roles": tuple(_role(name, role, site, folder) for name, role in _roles(model).items()),
        "instance_count": model.compute.instance_count,
        "process_count_per_instance": getattr(model, "process_count_per_instance", None),
        # All is what every launcher takes for granted.
        "success": model.success.value if isinstance(model, _WITH_SUCCESS) else None,
        "timeout": model.timeout,
    }


_WITH_SUCCESS = MpiJob | PytorchJob | TensorflowJob


def _roles(model: object) -> dict[str, Role]:
    found = {name: getattr(model, name, None) for name in _ROLES}
    return {name: role for name, role in found.items() if isinstance(role, Role)}


def _role(name: str, role: Role, site: Site, folder: Path) -> RoleRequest:
    return RoleRequest(
        name=name,
        replicas=getattr(role, "num_replicas", None) if isinstance(role, Replicas) else None,
        command=role.spec.command if isinstance(role.spec, CommandSpec) else "",
        code=_code(role.spec.code, folder),
        runtime=site.runtime(role.spec.environment),
        resources=_resources(role.limits),
    )


def _of_command(model: CommandJob, site: Site, folder: Path) -> dict[str, Any]:
    distribution = model.distribution
    runtime = site.runtime(model.environment)
    command = model.command
    for name, output in model.outputs.items():
        place = str(folder / output.path) if output.path else f"{later('folder')}/outputs/{name}"
        command = command.replace(f"${{{{outputs.{name}}}}}", place)

    def role(name: str, replicas: int | None = None) -> RoleRequest:
        return RoleRequest(
            name=name,
            replicas=replicas,
            command=command,
            code=_code(model.code, folder),
            runtime=runtime,
        )

    details: dict[str, Any] = {
        "instance_count": model.resources.instance_count,
        "timeout": model.limits.timeout,
    }
    match distribution:
        case MpiDistribution(process_count_per_instance=count):
            roles: tuple[RoleRequest, ...] = (role("launcher"),)
            details |= {"kind": "mpi", "generate_launcher": True}
            details["process_count_per_instance"] = count
        case PytorchDistribution(process_count_per_instance=count):
            roles = (role("worker"),)
            details |= {"kind": "pytorch", "process_count_per_instance": count}
        case TensorflowDistribution(worker_count=workers, parameter_server_count=servers):
            roles = (role("worker", workers),)
            if servers:
                roles += (role("parameter_server", servers),)
            details["kind"] = "tensorflow"
        case None:
            roles = (role("worker"),)
            details["kind"] = "plain"
    return {**details, "roles": roles}


def _code(code: Code | None, folder: Path) -> str:
    return str(folder / code.path) if code is not None else ""


def _resources(limits: ResourceLimits) -> Resources:
    return Resources(cores=limits.cpu or 0, memory=limits.memory or 0, gpus=limits.gpu or 0)


def _restart(model: Job) -> Restart:
    if model.restart is None:
        return Restart()
    return Restart(most=model.restart.max, on_exit_codes=tuple(model.restart.on_exit_codes))
