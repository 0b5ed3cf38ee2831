"""MPIJob of kubeflow.org/v2beta1: the MPI operator starts sshd on workers, then the launcher."""

from __future__ import annotations

from typing import Any

from rankwise.errors import InputError
from rankwise.export.code_map import code_map
from rankwise.export.contract import Exported, Job
from rankwise.export.lines import HOSTFILES, for_shell, mpi_line
from rankwise.export.pods import Part, metadata_of, template_of
from rankwise.export.remarks import common_losses, common_notes, run_policy
from rankwise.launch.derive import instance_role
from rankwise.launch.request import RoleRequest
from rankwise.plan import Resources

HOSTFILE = "/etc/mpi/hostfile"
"""Where the operators of Kubeflow put the file of hosts."""


def mpi_operator(job: Job) -> Exported:
    """Write an MPIJob; raises InputError for other kinds of jobs."""
    refuse_others(job, "the MPI operator")
    metadata = metadata_of(job)
    code = code_map(job, metadata)
    launcher, worker = mpi_parts(job, container="mpi")
    made = {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": metadata,
        "spec": {
            "slotsPerWorker": job.counts.per_instance,
            "runPolicy": run_policy(job),
            "launcherCreationPolicy": "WaitForWorkersReady",
            "mpiImplementation": _implementation(job),
            "mpiReplicaSpecs": {
                "Launcher": replicas(1, template_of(job, launcher, code)),
                "Worker": replicas(job.counts.instances, template_of(job, worker, code)),
            },
        },
    }
    return Exported(
        name=job.name,
        objects=[*([code.object] if code else []), made],
        losses=list(common_losses(job, code)),
        notes=[
            *common_notes(job, code),
            "the image must have sshd: the operator starts it on the workers",
        ],
    )


def refuse_others(job: Job, whose: str) -> None:
    """Raise InputError if a job is no MPI job."""
    if job.request.kind != "mpi":
        others = "" if job.request.kind == "plain" else "`--to kubeflow-v1` or "
        who = f"{others}`--to kubernetes` takes this one"
        raise InputError(f"{job.at('type')}: {whose} runs MPI jobs only; {who}")


def mpi_parts(job: Job, *, container: str) -> tuple[Part, Part]:
    """Give what the launcher runs, and what is there on the workers."""
    hosts = dict.fromkeys(HOSTFILES, HOSTFILE)
    at_nodes = instance_role(job.request)
    is_one = at_nodes is job.role
    launcher = Part(
        role=job.role,
        container=container,
        command=for_shell(mpi_line(job, HOSTFILE)),
        variables=hosts,
        # A document that has no workers says of its launcher what each node needs.
        resources=Resources() if is_one else job.role.resources,
        is_privileged=True,
    )
    worker = Part(
        role=_with_runtime(at_nodes, job.role),
        container=container,
        resources=at_nodes.resources,
        is_privileged=True,
    )
    return launcher, worker


def replicas(count: int, template: dict[str, Any], restart: str = "Never") -> dict[str, Any]:
    """Give so many pods of a template."""
    return {"replicas": count, "restartPolicy": restart, "template": template}


def _with_runtime(role: RoleRequest, other: RoleRequest) -> RoleRequest:
    """Give the role whose runtime counts: one that names none has that of the launcher."""
    return role if role.runtime.kind != "current" else other


def _implementation(job: Job) -> str:
    """Say whose MPI the image is taken to have, by the options of the launcher."""
    return "MPICH" if job.launch is not None and job.launch.dialect == "hydra" else "OpenMPI"
