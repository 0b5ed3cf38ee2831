"""Export for Kubeflow: Trainer, training operator v1, MPI operator."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Any

from rankwise.backends.kubernetes.objects import scheduling, site_volumes
from rankwise.errors import InputError
from rankwise.export import pods
from rankwise.export.base import Exported, ExportJob, Object, given
from rankwise.export.commands import HOSTFILES, for_shell, mpi_line, torch_line, with_dollars
from rankwise.plan import Resources

HOSTFILE = "/etc/mpi/hostfile"
"""Where the operators of Kubeflow put the file of hosts."""


def mpi_operator(job: ExportJob) -> Exported:
    """Write an MPIJob; raises InputError for other kinds of jobs."""
    if job.request.kind != "mpi":
        others = "" if job.request.kind == "plain" else "`--to kubeflow-v1` or "
        who = f"{others}`--to kubernetes` takes this one"
        raise InputError(f"{job.at('type')}: the MPI operator runs MPI jobs only; {who}")
    code = pods.code_map(job)
    more = {
        # A launcher that is there first fails to reach the workers, and the job with it.
        "launcherCreationPolicy": "WaitForWorkersReady",
        # Whose MPI the image is taken to have, by the options of the launcher.
        "mpiImplementation": (
            "MPICH" if job.launch is not None and job.launch.dialect == "hydra" else "OpenMPI"
        ),
    }
    notes = ["the image must have sshd: the operator starts it on the workers"]
    spec = _mpi_spec(job, code, more)
    return _exported(job, code, ("kubeflow.org/v2beta1", "MPIJob"), spec, notes=notes)


def _exported(
    job: ExportJob,
    code: pods.CodeMap | None,
    kind: tuple[str, str],
    spec: Object,
    *,
    losses: Iterable[str] = (),
    notes: Iterable[str] = (),
) -> Exported:
    """Put together an object, that of its code, and the losses and notes of both."""
    version, name = kind
    made = {"apiVersion": version, "kind": name, "metadata": pods.metadata_of(job), "spec": spec}
    return Exported(
        name=job.name,
        objects=[*([code.object] if code else []), made],
        losses=[*pods.common_losses(job, code), *losses],
        notes=[*pods.common_notes(job, code), *notes],
    )


def _mpi_spec(job: ExportJob, code: pods.CodeMap | None, more: Object) -> Object:
    """Return what an MPIJob of either operator has: one launcher, and workers."""
    launcher, worker = _mpi_parts(job)
    return {
        "slotsPerWorker": job.counts.per_instance,
        "runPolicy": pods.run_policy(job),
        **more,
        "mpiReplicaSpecs": {
            "Launcher": _replicas(1, pods.template_of(job, launcher, code)),
            "Worker": _replicas(job.counts.instances, pods.template_of(job, worker, code)),
        },
    }


def _mpi_parts(job: ExportJob) -> tuple[pods.Part, pods.Part]:
    """Return what the launcher runs, and what is there on the workers."""
    hosts = dict.fromkeys(HOSTFILES, HOSTFILE)
    at_nodes = job.request.common
    is_one = at_nodes is job.role
    launcher = pods.Part(
        role=job.role,
        container="mpi",
        command=for_shell(mpi_line(job, HOSTFILE)),
        variables=hosts,
        # A document that has no workers says of its launcher what each node needs.
        resources=Resources() if is_one else job.role.resources,
        is_privileged=True,
    )
    worker = pods.Part(
        # A worker that names no runtime has that of the launcher.
        role=job.role if at_nodes.runtime.kind == "current" else at_nodes,
        container="mpi",
        resources=at_nodes.resources,
        is_privileged=True,
    )
    return launcher, worker


def _replicas(count: int, template: dict[str, Any], restart: str = "Never") -> dict[str, Any]:
    """Return so many pods of a template."""
    return {"replicas": count, "restartPolicy": restart, "template": template}


TORCH, MPI = "torch-distributed", "deepspeed-distributed"
"""The runtimes that are installed with the Trainer, one for each way to find each other."""
_CONTAINER = "node"
"""What the Trainer calls the container in which commands run."""
_MANAGER = "rankwise/export"
# The Trainer sets these itself, with PET_ before the name: that is where torchrun looks.
_RESERVED = ("NNODES", "NPROC_PER_NODE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
_TRAINER_VARIABLES = {name: f"$PET_{name}" for name in ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK")}
# What a pod may be told beside its runtime.
_PATCHED = ("serviceAccountName", "imagePullSecrets", "nodeSelector", "tolerations")


def kubeflow_trainer(job: ExportJob) -> Exported:
    """Write a TrainJob; raises InputError for kinds that the Trainer has no runtimes for."""
    kind = job.request.kind
    if kind == "tensorflow":
        raise InputError(
            f"{job.at('type')}: the Trainer has no TensorFlow jobs; `--to kubeflow-v1` makes a "
            "TFJob, `--to kubernetes` needs no operator"
        )
    code = pods.code_map(job)
    line, notes = _line(job)
    hosts = dict.fromkeys(HOSTFILES, HOSTFILE) if kind == "mpi" else {}
    # With one of these variables, the webhook of the Trainer refuses the whole TrainJob.
    reserved = _reserved(job)
    trainer = given(
        image=pods.image_of(job, job.role),
        command=for_shell(_in_folder(job, code) + line),
        numNodes=job.counts.instances,
        numProcPerNode=job.counts.per_instance,
        env=[one for one in pods.variables_of(job, hosts) if one["name"] not in reserved],
        resourcesPerNode=pods.requirements_of(job, job.request.common.resources),
    )
    runtime = job.options.runtime or (MPI if kind == "mpi" else TORCH)
    spec = given(
        runtimeRef={"name": runtime},
        trainer=trainer,
        activeDeadlineSeconds=pods.deadline(job),
        runtimePatches=_patches(job, code),
    )
    notes += [f"the cluster must have the runtime {runtime}; another one: --runtime NAME"]
    if kind == "mpi":
        notes += ["the image must have what the runtime starts on its nodes: sshd, as that user"]
    object_kind = ("trainer.kubeflow.org/v1alpha1", "TrainJob")
    return _exported(job, code, object_kind, spec, losses=_losses(job, code), notes=notes)


def _line(job: ExportJob) -> tuple[str, list[str]]:
    match job.request.kind:
        case "mpi":
            return mpi_line(job, HOSTFILE), []
        case "pytorch":
            return torch_line(job, _TRAINER_VARIABLES)
    # A single command has one node, and finds the number that it would have here.
    return f"export NODE_RANK=0\n{job.role.command}", []


def _in_folder(job: ExportJob, code: pods.CodeMap | None) -> str:
    """Return the lines that go where the code is; a TrainJob has no field for that."""
    if code is None:
        return f"cd {shlex.quote(job.code_in_image)} || exit\n" if job.code_in_image else ""
    if job.request.kind == "mpi":
        # The other nodes are given no command in which they could copy it.
        return f"cd {pods.SOURCE}/{pods.FOLDER} || exit\n"
    return f"{pods.COPY} && cd {pods.WORK} || exit\n"


def _patches(job: ExportJob, code: pods.CodeMap | None) -> list[dict[str, Any]]:
    """Return what the pods of the runtime get beside what it says itself."""
    site = job.compute.kubernetes
    found, mounts = site_volumes(site)
    if code is not None:
        found = [code.volume, *found]
        mounts = [{"name": "source", "mountPath": pods.SOURCE, "readOnly": True}, *mounts]
        if job.request.kind != "mpi":
            found.append({"name": "code", "emptyDir": {}})
            mounts.append({"name": "code", "mountPath": pods.WORK})
    where = scheduling(site)
    containers = [{"name": _CONTAINER, "volumeMounts": mounts}] if found else []
    pod = {name: where[name] for name in _PATCHED if name in where}
    pod |= given(volumes=found, containers=containers)
    if not pod:
        return []
    # Only the MPI runtime has a pod of its own for the launcher.
    names = ("launcher", _CONTAINER) if job.request.kind == "mpi" else (_CONTAINER,)
    jobs = [{"name": name, "template": {"spec": {"template": {"spec": pod}}}} for name in names]
    changed = {"template": {"spec": {"replicatedJobs": jobs}}}
    return [{"manager": _MANAGER, "trainingRuntimeSpec": changed}]


def _reserved(job: ExportJob) -> list[str]:
    """Name the variables of the document that a TrainJob is refused with."""
    names = [f"PET_{name}" for name in _RESERVED]
    return [name for name in names if name in job.request.environment]


def _losses(job: ExportJob, code: pods.CodeMap | None) -> list[str]:
    losses = [
        job.loss(f"environment_variables.{name}", "the Trainer sets it itself")
        for name in _reserved(job)
    ]
    if job.request.restart.most:
        losses.append(job.loss("restart", "the runtime decides when a TrainJob starts again"))
    # There is one trainer for all pods, and the launcher is the first of its nodes.
    at_nodes = job.request.common
    if at_nodes is not job.role and job.role.resources != at_nodes.resources:
        path = job.limits_field(job.role.name)
        losses.append(job.loss(path, "a TrainJob has the same limits for all its nodes"))
    if code is not None and job.request.kind == "mpi":
        losses.append(
            job.loss(job.code_field, f"{pods.SOURCE}/{pods.FOLDER}, its folder there, is read-only")
        )
    lost = scheduling(job.compute.kubernetes).keys() - set(_PATCHED)
    losses += [
        f"{job.compute.place}: {name}: a TrainJob has no field for it" for name in sorted(lost)
    ]
    return losses


# The operator writes TF_CONFIG with names of its own for the roles.
_TF_ROLES = {
    "chief": "Chief",
    "worker": "Worker",
    "parameter_server": "PS",
    "evaluator": "Evaluator",
}
# The operator numbers pods, not processes, and calls that RANK.
_OPERATOR_VARIABLES = {"NODE_RANK": "$RANK", "RANK": "$RANK"}


def kubeflow_v1(job: ExportJob) -> Exported:
    """Write the job of the kind that the training operator has for it."""
    code = pods.code_map(job)
    losses, notes = list[str](), list[str]()
    match job.request.kind:
        case "mpi":
            kind, spec = "MPIJob", _mpi_spec(job, code, {})
        case "pytorch":
            kind, spec = "PyTorchJob", _pytorch(job, code, losses, notes)
        case "tensorflow":
            kind, spec = "TFJob", _tensorflow(job, code, losses, notes)
        case _:
            raise InputError(
                f"{job.at('type')}: the training operator has no kind for a single command; "
                "`--to kubernetes` makes a Job of it"
            )
    return _exported(job, code, ("kubeflow.org/v1", kind), spec, losses=losses, notes=notes)


def _pytorch(
    job: ExportJob, code: pods.CodeMap | None, losses: list[str], notes: list[str]
) -> dict[str, Any]:
    """Return the spec of a PyTorchJob, and add what is lost and what people must know."""
    line, said = torch_line(job, _OPERATOR_VARIABLES)
    notes += said
    part = pods.Part(
        role=job.role,
        container="pytorch",
        command=for_shell(line),
        resources=job.role.resources,
    )
    template = pods.template_of(job, part, code)
    restart = _restart(job, losses)
    # The first pod is the master; all run the same.
    specs = {"Master": _replicas(1, template, restart)}
    if job.counts.instances > 1:
        specs["Worker"] = _replicas(job.counts.instances - 1, template, restart)
    if job.request.success != "chief":
        _say_success(job, "a PyTorchJob has succeeded when its master has", losses, notes)
    return {
        # A text there, because it may also be `auto` or `gpu`.
        "nprocPerNode": str(job.counts.per_instance),
        "runPolicy": pods.run_policy(job),
        "pytorchReplicaSpecs": specs,
    }


def _tensorflow(
    job: ExportJob, code: pods.CodeMap | None, losses: list[str], notes: list[str]
) -> dict[str, Any]:
    """Return the spec of a TFJob, and add what is lost and what people must know."""
    specs, restart = {}, _restart(job, losses)
    for role in job.request.roles:
        part = pods.Part(
            role=role,
            container="tensorflow",
            command=for_shell(with_dollars(role.command, ("TF_CONFIG",))),
            resources=role.resources,
        )
        usual = job.counts.instances if role.name == "worker" else 1
        count = usual if role.replicas is None else role.replicas
        specs[_TF_ROLES[role.name]] = _replicas(count, pods.template_of(job, part, code), restart)
    spec: dict[str, Any] = {"runPolicy": pods.run_policy(job)}
    if job.request.success != "chief" and "Chief" in specs:
        _say_success(job, "a TFJob with a chief has succeeded when that has", losses, notes)
    elif job.request.success != "chief":
        # Without it, the operator calls the job a success when worker 0 has ended.
        spec["successPolicy"] = "AllWorkers"
    return {**spec, "tfReplicaSpecs": specs}


def _say_success(job: ExportJob, when: str, losses: list[str], notes: list[str]) -> None:
    """Say when a job has succeeded there: a loss if the document wants it otherwise."""
    said = f"{when}, whatever the others do then"
    # What the document leaves open may be otherwise there; what it says must not get lost silently.
    if "success" in job.model.model_fields_set:
        losses.append(job.loss("success", said))
    else:
        notes.append(said)


def _restart(job: ExportJob, losses: list[str]) -> str:
    if not job.request.restart.most:
        return "Never"
    losses.append(
        job.loss("restart.scope", "a pod that fails is restarted by itself, not all together")
    )
    return "OnFailure"
