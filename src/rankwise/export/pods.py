"""Pods that run a part of a job: one container with its command, and its code beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rankwise.compute.kubernetes.layout import label
from rankwise.compute.kubernetes.quantities import quantities
from rankwise.errors import InputError
from rankwise.export.code_map import COPY, SOURCE, WORK, CodeMap
from rankwise.export.contract import Job
from rankwise.export.lines import escaped
from rankwise.export.placement import scheduling, security, volumes
from rankwise.launch.request import RoleRequest
from rankwise.plan import Resources
from rankwise.site.choices import KUBERNETES


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one pod of a job runs."""

    role: RoleRequest
    container: str
    """The name that the operator looks for."""
    command: Sequence[str] = ()
    """Empty: what the image, or the operator, starts."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Beside those of the document."""
    resources: Resources = Resources()
    is_privileged: bool = False
    """Whether it runs as whoever the image says: sshd must be root."""


def labels_of(job: Job) -> dict[str, str]:
    """Give the labels by which what belongs to a job is found."""
    labels = {"app.kubernetes.io/managed-by": "rankwise", "app.kubernetes.io/instance": job.name}
    if kept := label(job.model.name):
        labels["app.kubernetes.io/name"] = kept
    return {**labels, **job.compute.kubernetes.labels}


def metadata_of(job: Job) -> dict[str, Any]:
    """Give the name of a job, and what it is known by."""
    noted = {
        "rankwise/experiment": job.model.experiment_name,
        "rankwise/description": job.model.description,
        "rankwise/tags": json.dumps(dict(job.model.tags)) if job.model.tags else "",
    }
    annotations = {name: text for name, text in noted.items() if text}
    namespace = job.compute.kubernetes.namespace
    return {
        "name": job.name,
        **({"namespace": namespace} if namespace else {}),
        "labels": labels_of(job),
        **({"annotations": annotations} if annotations else {}),
    }


def image_of(job: Job, role: RoleRequest) -> str:
    """Give the image of a role; raises InputError if nobody says which."""
    if job.wish.image:
        return job.wish.image
    runtime = role.runtime
    if runtime.kind == "container" and not runtime.image.endswith(".sif"):
        return runtime.image
    if job.compute.kubernetes.image:
        return job.compute.kubernetes.image
    place = job.document.place(("environment",), runtime.name)
    what = (
        f"`{runtime.name}` is a file for apptainer"
        if runtime.image
        else f"`{runtime.name}` has no image"
    )
    raise InputError(
        f'{place}: {what}, and pods need one: say --image IMAGE, or image = "…" under '
        f'[runtime."{runtime.name}"] in rankwise.toml'
    )


def variables_of(job: Job, more: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """Give the variables of a container; secrets come from an object of that name."""
    said = {**(more or {}), **job.request.environment}
    plain = [{"name": name, "value": escaped(value)} for name, value in said.items()]
    secret = [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": secrets_name(job), "key": name}}}
        for name in job.request.secrets
    ]
    return plain + secret


def secrets_name(job: Job) -> str:
    """Name the Secret that a job expects."""
    return f"{job.name}-secrets"


def requirements_of(job: Job, resources: Resources) -> dict[str, Any]:
    """Give requests and limits, which are the same: what is claimed is there, and no more is."""
    limits = quantities(resources, job.compute.kubernetes.gpu_resource)
    return {"requests": limits, "limits": dict(limits)} if limits else {}


def template_of(job: Job, part: Part, code: CodeMap | None) -> dict[str, Any]:
    """Make the template of a pod."""
    site = job.compute.kubernetes
    image = {"image": image_of(job, part.role)}
    if job.compute.backend == KUBERNETES:
        image["imagePullPolicy"] = site.pull_policy
    pod, own = ({}, {}) if part.is_privileged else security(job.compute)
    found, mounts = volumes(site)
    container: dict[str, Any] = {"name": part.container, **image}
    if part.command:
        container["command"] = list(part.command)
    if folder := work_folder(job, code):
        container["workingDir"] = folder
    if variables := variables_of(job, part.variables):
        container["env"] = variables
    if resources := requirements_of(job, part.resources):
        container["resources"] = resources
    spec: dict[str, Any] = {}
    if code is not None:
        seen = {"name": "source", "mountPath": SOURCE, "readOnly": True}
        copy = {"name": "code", "mountPath": WORK}
        # Before anything starts, and on every pod: ranks may be started by a launcher elsewhere.
        command = ["/bin/sh", "-c", COPY]
        shown = {"name": "code", **image, "command": command, "volumeMounts": [seen, copy]}
        spec["initContainers"] = [{**shown, **own}]
        mounts = [copy, *mounts]
        found = [code.volume, {"name": "code", "emptyDir": {}}, *found]
    if mounts:
        container["volumeMounts"] = mounts
    spec["containers"] = [{**container, **own}]
    if found:
        spec["volumes"] = found
    metadata = {"labels": labels_of(job)}
    if site.annotations:
        metadata["annotations"] = dict(site.annotations)
    return {"metadata": metadata, "spec": {**spec, **pod, **scheduling(site)}}


def work_folder(job: Job, code: CodeMap | None) -> str:
    """Give the folder in which commands run; empty: that of the image."""
    return WORK if code is not None else job.code_in_image
