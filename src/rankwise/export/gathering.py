"""From a document to a job that can be exported: names looked up, counts derived."""

from __future__ import annotations

import dataclasses

from rankwise.errors import InputError
from rankwise.export.contract import Job, Wish
from rankwise.export.names import name_for
from rankwise.launch.assembly import commanding_role
from rankwise.launch.command import Launch, read_command
from rankwise.launch.derive import Counts, counts, instances_of
from rankwise.launch.inputs import with_inputs
from rankwise.launch.request import Facts, JobRequest
from rankwise.plan import fill_in
from rankwise.planning.requests import code_of, compute_of, request_of
from rankwise.site import Site
from rankwise.spec.documents import Document
from rankwise.spec.models import Job as JobModel

OUTPUTS_FOLDER = "/tmp/rankwise"
"""Where a pod has what on this machine is the folder of an attempt."""


def gather(document: Document, site: Site, wish: Wish, taken: set[str]) -> Job:
    """Make a job of a document; `taken` are the names that others in the same file have.

    Raises InputError if it is no job, or asks for what cannot be.
    """
    model = document.model
    if not isinstance(model, JobModel):
        raise InputError(
            f"{document.path}: a {model.type} cannot be exported, only a job; to send its tasks "
            "to a cluster: rankwise run --on NAME"
        )
    for written, folder in code_of(document):
        if not folder.is_dir():
            place = document.place(("path", "code"), written)
            raise InputError(f"{place}: there is no folder {folder}")
    compute = wish.on or compute_of(document)
    raw = request_of(document, site, key=model.name, compute=compute)
    request = _with_outputs(with_inputs(raw))
    role = commanding_role(request, "launcher", "worker")
    launch = read_command(role.command, environment=request.environment).launch
    if request.kind == "pytorch" and launch is not None and not launch.is_torch:
        raise InputError(
            f"{document.place(('command',), role.command)}: {launch.launcher} in a PyTorch job "
            "cannot be exported: write an MpiJob, or have torchrun start the processes"
        )
    return Job(
        document=document,
        model=model,
        request=request,
        raw=raw,
        counts=_counts(request, launch),
        launch=launch,
        role=role,
        name=name_for(model.name, taken),
        site=site,
        wish=wish,
    )


def _counts(request: JobRequest, launch: Launch | None) -> Counts:
    """Find out how large a job is; nothing is known of machines that nobody has asked."""
    if request.kind in ("mpi", "pytorch"):
        return counts(request, Facts(), launch)
    instances, notes = instances_of(request, None)
    return Counts(instances=instances, per_instance=1, notes=notes)


def _with_outputs(request: JobRequest) -> JobRequest:
    """Put a folder of the pod in the place of that of the attempt."""
    roles = tuple(
        dataclasses.replace(role, command=fill_in(role.command, lambda _: OUTPUTS_FOLDER))
        for role in request.roles
    )
    return dataclasses.replace(request, roles=roles)
