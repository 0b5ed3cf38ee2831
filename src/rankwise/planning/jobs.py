"""From a document of one job to its task."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from rankwise.compute.capacity import machine
from rankwise.compute.slurm.script import node_of
from rankwise.errors import InputError
from rankwise.launch.jobs import task_for
from rankwise.launch.mpiexec import Family
from rankwise.launch.request import Facts, JobRequest
from rankwise.plan import Task
from rankwise.planning.contract import Ask, Planned
from rankwise.planning.mpi_here import family_for, has_mpi4py
from rankwise.planning.requests import code_of, compute_of, request_of, runtimes_of
from rankwise.site import ComputeChoice, Site
from rankwise.site.choices import KUBERNETES, SLURM
from rankwise.spec.command_job import CommandJob
from rankwise.spec.documents import Document


def plan_job(document: Document, ask: Ask) -> Planned:
    """Plan a job, which is one task."""
    compute = ask.on or compute_of(document)
    _check_code(document)
    notices = []
    if ask.on is None and (found := _cluster_for(document, ask.site)) is not None:
        notices.append(
            f'compute "{compute}" is not in the site file: "{found}" stands in for it, the only '
            "Kubernetes cluster there"
        )
        compute = found
    notices += _check_names(document, ask, compute)
    request = request_of(document, ask.site, key=document.model.name, compute=compute)
    if isinstance(document.model, CommandJob):
        notices += [
            f"{document.path}: `{field}` has no effect here"
            for field in document.model.without_effect()
        ]
    return Planned(tasks=[task_of(request, ask.site)], notices=notices)


def _cluster_for(document: Document, site: Site) -> str | None:
    """Name the cluster that is meant by a kind of compute which is always one of Kubernetes."""
    kind = getattr(getattr(document.model, "compute", None), "type", "")
    return site.stand_in(compute_of(document), KUBERNETES) if kind in _ON_KUBERNETES else None


_FAMILIES: Mapping[str, Family] = {
    "openmpi4": "openmpi4",
    "openmpi5": "openmpi5",
    "mpich": "mpich",
    "intel": "intel",
}
_ON_KUBERNETES = ("AksCompute", "AksCluster")


def task_of(request: JobRequest, site: Site) -> Task:
    """Plan what is asked for, with what is known about where it is to run."""
    return task_for(request, facts_for(request, site))


def facts_for(request: JobRequest, site: Site) -> Facts:
    """Look up what a job must know about where it is to run."""
    choice = site.compute(request.compute)
    if choice.backend == SLURM:
        # As many nodes as it wants, each with what a node of the cluster has.
        count = request.instance_count or 1
        node = node_of(choice) or machine()
        facts = Facts(cores=max(1, int(node.cores)) * count, gpus=node.gpus * count)
    elif choice.backend == KUBERNETES:
        # Nothing is asked for a plan: only what is told is known of it.
        return Facts(
            cores=max(1, int(choice.cores or 1)),
            gpus=choice.gpus or 0,
            has_pods=True,
            mpi_family=_FAMILIES.get(choice.kubernetes.mpi, "unknown"),
        )
    else:
        capacity = choice.capacity(machine())
        facts = Facts(cores=max(1, int(capacity.cores)), gpus=capacity.gpus)
    if request.kind == "mpi":
        facts = dataclasses.replace(
            facts,
            mpi_family=family_for(request),
            has_mpi4py=has_mpi4py(request),
            srun_plugin=_srun_plugin(choice),
        )
    return facts


def _srun_plugin(choice: ComputeChoice) -> str | None:
    starter, _, plugin = choice.slurm.mpi.partition("-")
    return plugin if choice.backend == SLURM and starter == "srun" else None


def _check_names(document: Document, ask: Ask, compute: str) -> tuple[str, ...]:
    return ask.site.check(
        computes={compute: document.place(("target", "compute"), compute)},
        runtimes={name: document.place(("environment",), name) for name in runtimes_of(document)},
        is_strict=ask.is_strict,
    )


def _check_code(document: Document) -> None:
    """Raise InputError if there is no folder where the code should be."""
    for written, folder in code_of(document):
        if not folder.is_dir():
            what = "is a file, not a folder" if folder.exists() else "is not there"
            place = document.place(("path", "code"), written)
            raise InputError(f"{place}: the folder of the code {what}: {folder}")
