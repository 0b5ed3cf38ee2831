"""TrainJob of trainer.kubeflow.org/v1alpha1, which names a runtime that the cluster has."""

from __future__ import annotations

from typing import Any

from rankwise.errors import InputError
from rankwise.export.code_map import COPY, FOLDER, SOURCE, WORK, CodeMap, code_map
from rankwise.export.contract import Exported, Job
from rankwise.export.lines import HOSTFILES, for_shell, mpi_line, torch_line
from rankwise.export.mpi_operator import HOSTFILE
from rankwise.export.placement import scheduling, volumes
from rankwise.export.pods import image_of, metadata_of, requirements_of, variables_of
from rankwise.export.remarks import common_losses, common_notes, deadline
from rankwise.launch.derive import instance_role

TORCH, MPI = "torch-distributed", "deepspeed-distributed"
"""The runtimes that are installed with the Trainer, one for each way to find each other."""
_CONTAINER = "node"
"""What the Trainer calls the container in which commands run."""
_MANAGER = "rankwise/export"
_RESERVED = ("NNODES", "NPROC_PER_NODE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
_KNOWN_AS = {name: f"$PET_{name}" for name in ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK")}
# What a pod may be told beside its runtime.
_PATCHED = ("serviceAccountName", "imagePullSecrets", "nodeSelector", "tolerations")


def kubeflow_trainer(job: Job) -> Exported:
    """Write a TrainJob; raises InputError for kinds that the Trainer has no runtimes for."""
    kind = job.request.kind
    if kind == "tensorflow":
        raise InputError(
            f"{job.at('type')}: the Trainer has no TensorFlow jobs; `--to kubeflow-v1` makes a "
            "TFJob, `--to kubernetes` needs no operator"
        )
    metadata = metadata_of(job)
    code = code_map(job, metadata)
    line, notes = _line(job)
    hosts = dict.fromkeys(HOSTFILES, HOSTFILE) if kind == "mpi" else {}
    trainer: dict[str, Any] = {
        "image": image_of(job, job.role),
        "command": for_shell(_in_folder(job, code) + line),
        "numNodes": job.counts.instances,
        "numProcPerNode": job.counts.per_instance,
    }
    variables = [one for one in variables_of(job, hosts) if one["name"] not in _reserved(job)]
    if variables:
        trainer["env"] = variables
    if resources := requirements_of(job, instance_role(job.request).resources):
        trainer["resourcesPerNode"] = resources
    runtime = job.wish.runtime or (MPI if kind == "mpi" else TORCH)
    spec: dict[str, Any] = {"runtimeRef": {"name": runtime}, "trainer": trainer}
    if (seconds := deadline(job)) is not None:
        spec["activeDeadlineSeconds"] = seconds
    if patches := _patches(job, code):
        spec["runtimePatches"] = patches
    made = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": metadata,
        "spec": spec,
    }
    return Exported(
        name=job.name,
        objects=[*([code.object] if code else []), made],
        losses=[*common_losses(job, code), *_losses(job, code)],
        notes=[*common_notes(job, code), *notes, *_notes(job, runtime)],
    )


def _line(job: Job) -> tuple[str, list[str]]:
    match job.request.kind:
        case "mpi":
            return mpi_line(job, HOSTFILE), []
        case "pytorch":
            return torch_line(job, _KNOWN_AS)
    return f"export NODE_RANK=0\n{job.role.command}", []


def _in_folder(job: Job, code: CodeMap | None) -> str:
    """Give the lines that go where the code is; a TrainJob has no field for that."""
    if code is None:
        return f"cd {job.code_in_image} || exit\n" if job.code_in_image else ""
    if job.request.kind == "mpi":
        # The other nodes are given no command in which they could copy it.
        return f"cd {SOURCE}/{FOLDER} || exit\n"
    return f"{COPY} && cd {WORK} || exit\n"


def _patches(job: Job, code: CodeMap | None) -> list[dict[str, Any]]:
    """Give what the pods of the runtime get beside what it says itself."""
    site = job.compute.kubernetes
    found, mounts = volumes(site)
    if code is not None:
        found = [code.volume, *found]
        mounts = [{"name": "source", "mountPath": SOURCE, "readOnly": True}, *mounts]
        if job.request.kind != "mpi":
            found.append({"name": "code", "emptyDir": {}})
            mounts.append({"name": "code", "mountPath": WORK})
    where = scheduling(site)
    pod: dict[str, Any] = {name: where[name] for name in _PATCHED if name in where}
    if found:
        pod["volumes"] = found
        pod["containers"] = [{"name": _CONTAINER, "volumeMounts": mounts}]
    if not pod:
        return []
    names = ("launcher", _CONTAINER) if job.request.kind == "mpi" else (_CONTAINER,)
    jobs = [{"name": name, "template": {"spec": {"template": {"spec": pod}}}} for name in names]
    changed = {"template": {"spec": {"replicatedJobs": jobs}}}
    return [{"manager": _MANAGER, "trainingRuntimeSpec": changed}]


def _reserved(job: Job) -> list[str]:
    """Name the variables of the document that a TrainJob is refused with."""
    names = [f"PET_{name}" for name in _RESERVED]
    return [name for name in names if name in job.request.environment]


def _losses(job: Job, code: CodeMap | None) -> list[str]:
    losses = [
        job.loss(f"environment_variables.{name}", "the Trainer sets it itself")
        for name in _reserved(job)
    ]
    if job.request.restart.most:
        losses.append(job.loss("restart", "the runtime decides when a TrainJob starts again"))
    at_nodes = instance_role(job.request)
    if at_nodes is not job.role and job.role.resources != at_nodes.resources:
        path = job.limits_field(job.role.name)
        losses.append(job.loss(path, "a TrainJob has the same limits for all its nodes"))
    if code is not None and job.request.kind == "mpi":
        losses.append(
            job.loss(job.code_field, f"{SOURCE}/{FOLDER}, its folder there, is read-only")
        )
    lost = scheduling(job.compute.kubernetes).keys() - set(_PATCHED)
    losses += [
        f"{job.compute.place}: {name}: a TrainJob has no field for it" for name in sorted(lost)
    ]
    return losses


def _notes(job: Job, runtime: str) -> list[str]:
    notes = [f"the cluster must have the runtime {runtime}; another one: --runtime NAME"]
    if job.request.kind == "mpi":
        notes.append("the image must have what the runtime starts on its nodes: sshd, as that user")
    return notes
