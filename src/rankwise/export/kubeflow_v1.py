"""Jobs of kubeflow.org/v1, of the training operator: PyTorchJob, TFJob and MPIJob."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rankwise.errors import InputError
from rankwise.export.code_map import CodeMap, code_map
from rankwise.export.contract import Exported, Job
from rankwise.export.lines import for_shell, torch_line, with_dollars
from rankwise.export.mpi_operator import mpi_parts, replicas
from rankwise.export.pods import Part, metadata_of, template_of
from rankwise.export.remarks import common_losses, common_notes, run_policy
from rankwise.launch.request import RoleRequest

_VERSION = "kubeflow.org/v1"
_TF_ROLES = {
    "chief": "Chief",
    "worker": "Worker",
    "parameter_server": "PS",
    "evaluator": "Evaluator",
}
# The operator numbers pods, not processes, and calls that RANK.
_KNOWN_AS = {"NODE_RANK": "$RANK", "RANK": "$RANK"}


def kubeflow_v1(job: Job) -> Exported:
    """Write the job of the kind that the training operator has for it."""
    metadata = metadata_of(job)
    code = code_map(job, metadata)
    match job.request.kind:
        case "mpi":
            kind, spec, losses, notes = _mpi(job, code)
        case "pytorch":
            kind, spec, losses, notes = _pytorch(job, code)
        case "tensorflow":
            kind, spec, losses, notes = _tensorflow(job, code)
        case _:
            raise InputError(
                f"{job.at('type')}: the training operator has no kind for a single command; "
                "`--to kubernetes` makes a Job of it"
            )
    made = {"apiVersion": _VERSION, "kind": kind, "metadata": metadata, "spec": spec}
    return Exported(
        name=job.name,
        objects=[*([code.object] if code else []), made],
        losses=[*common_losses(job, code), *losses],
        notes=[*common_notes(job, code), *notes],
    )


_Parts = tuple[str, Mapping[str, Any], list[str], list[str]]
"""The kind, its spec, what is lost, and what people must know."""


def _mpi(job: Job, code: CodeMap | None) -> _Parts:
    launcher, worker = mpi_parts(job, container="mpi")
    specs = {
        "Launcher": replicas(1, template_of(job, launcher, code)),
        "Worker": replicas(job.counts.instances, template_of(job, worker, code)),
    }
    spec = {
        "slotsPerWorker": job.counts.per_instance,
        "runPolicy": run_policy(job),
        "mpiReplicaSpecs": specs,
    }
    return "MPIJob", spec, [], []


def _pytorch(job: Job, code: CodeMap | None) -> _Parts:
    line, notes = torch_line(job, _KNOWN_AS)
    part = Part(
        role=job.role,
        container="pytorch",
        command=for_shell(line),
        resources=job.role.resources,
    )
    template = template_of(job, part, code)
    restart = _restart(job)
    # The first pod is the master; all run the same.
    specs = {"Master": replicas(1, template, restart)}
    if job.counts.instances > 1:
        specs["Worker"] = replicas(job.counts.instances - 1, template, restart)
    losses = []
    if job.request.success != "chief":
        said = "a PyTorchJob has succeeded when its master has, whatever the others do then"
        if "success" in job.model.model_fields_set:
            losses.append(job.loss("success", said))
        else:
            notes.append(said)
    if job.request.restart.most:
        losses.append(job.loss("restart.scope", _ONE_BY_ONE))
    spec = {
        "nprocPerNode": str(job.counts.per_instance),
        "runPolicy": run_policy(job),
        "pytorchReplicaSpecs": specs,
    }
    return "PyTorchJob", spec, losses, notes


_ONE_BY_ONE = "a pod that fails is restarted by itself, not all together"


def _tensorflow(job: Job, code: CodeMap | None) -> _Parts:
    specs, restart = {}, _restart(job)
    for role in job.request.roles:
        part = Part(
            role=role,
            container="tensorflow",
            command=for_shell(with_dollars(role.command, ("TF_CONFIG",))),
            resources=role.resources,
        )
        count = _count(job, role)
        specs[_TF_ROLES[role.name]] = replicas(count, template_of(job, part, code), restart)
    spec: dict[str, Any] = {"runPolicy": run_policy(job)}
    losses, notes = list[str](), list[str]()
    if job.request.success != "chief" and "Chief" in specs:
        said = "a TFJob with a chief has succeeded when that has, whatever the others do then"
        if "success" in job.model.model_fields_set:
            losses.append(job.loss("success", said))
        else:
            notes.append(said)
    elif job.request.success != "chief":
        spec["successPolicy"] = "AllWorkers"
    if job.request.restart.most:
        losses.append(job.loss("restart.scope", _ONE_BY_ONE))
    return "TFJob", {**spec, "tfReplicaSpecs": specs}, losses, notes


def _count(job: Job, role: RoleRequest) -> int:
    if role.replicas is not None:
        return role.replicas
    return job.counts.instances if role.name == "worker" else 1


def _restart(job: Job) -> str:
    return "OnFailure" if job.request.restart.most else "Never"
