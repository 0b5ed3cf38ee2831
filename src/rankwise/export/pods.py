"""Pods of exported jobs: placement, code, and notes on what is lost."""

from __future__ import annotations

import base64
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rankwise.backends.kubernetes import objects
from rankwise.documents.jobs import CommandJob
from rankwise.documents.site_models import KUBERNETES, ComputeConfig
from rankwise.errors import InputError
from rankwise.export.base import OUTPUTS_FOLDER, ExportJob, Object, given, unique
from rankwise.export.commands import escaped
from rankwise.files import files_of_code
from rankwise.launch.jobs import RoleRequest
from rankwise.plan import Resources

SOURCE = "/rankwise/source"
"""Where a container sees the ConfigMap, below which the code has a folder of its own."""
FOLDER = "code"
"""That folder: what else Kubernetes puts beside it stays out of the copy."""
WORK = "/rankwise/code"
"""Where a container works, in a copy that it may change."""
# A ConfigMap shows its files as links: -L copies what they lead to.
COPY = f"cp -RL {SOURCE}/{FOLDER}/. {WORK}/"
# Kubernetes takes 1 MiB for all of an object, and what is not text grows by a third.
_MOST_BYTES = 900_000
_LONGEST_KEY = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeMap:
    """A ConfigMap, and the volume by which a pod sees it."""

    object: Object
    volume: dict[str, Any]


def code_map(job: ExportJob) -> CodeMap | None:
    """Put the code of a job into a ConfigMap; None: the image has it, or there is none to put.

    Raises InputError if it does not fit.
    """
    if job.code_in_image or not job.code:
        return None
    folder = Path(job.code)
    texts: dict[str, str] = {}
    others: dict[str, str] = {}
    items: list[dict[str, Any]] = []
    total, taken = 0, set[str]()
    for path, content, is_program in _files(folder):
        key = unique(_key(path), taken)
        # Text stays readable in the file; what is no text has a field of its own.
        try:
            texts[key] = content.decode()
            total += len(content)
        except UnicodeDecodeError:
            others[key] = base64.b64encode(content).decode()
            total += len(others[key])
        mode = {"mode": 0o755} if is_program else {}
        items.append({"key": key, "path": f"{FOLDER}/{path}", **mode})
        if total > _MOST_BYTES:
            raise InputError(
                f"{job.at(job.code_field)}: {folder} has more than the {_MOST_BYTES // 1000} kB "
                "that fit into a ConfigMap: name what is not code in its .rankwiseignore, or build "
                "an image with it and say --image IMAGE --code-in-image FOLDER"
            )
    if not items:
        return None
    name = f"{job.name}-code"
    made = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {**metadata_of(job), "name": name},
        **given(data=texts, binaryData=others),
    }
    volume = {"name": "source", "configMap": {"name": name, "items": items}}
    return CodeMap(object=made, volume=volume)


def _files(folder: Path) -> Iterator[tuple[str, bytes, bool]]:
    for path in files_of_code(folder):
        name = path.relative_to(folder).as_posix()
        try:
            yield name, path.read_bytes(), os.access(path, os.X_OK)
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}") from error


def _key(path: str) -> str:
    """Name a file as a key of a ConfigMap may be named."""
    # The end of a path tells more than its beginning.
    fit = re.sub(r"[^A-Za-z0-9._-]", "_", path)[-_LONGEST_KEY:]
    # Kubernetes refuses keys that begin with two dots: such names are its own in a volume.
    return f"file{fit}" if fit.startswith("..") else fit


def _user(compute: ComputeConfig) -> dict[str, Any]:
    """Return the field of a pod that says who runs in it; nothing where the image decides."""
    user = compute.kubernetes.user if compute.backend == KUBERNETES else None
    # The group of files, too: volumes that are mounted belong to root otherwise.
    who = dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup"), user)
    return {"securityContext": who} if user is not None else {}


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
    """Whether it runs as the user of the image: sshd must be root."""


def labels_of(job: ExportJob) -> dict[str, str]:
    """Return the labels by which what belongs to a job is found."""
    labels = {**objects.MANAGER, "app.kubernetes.io/instance": job.name}
    if kept := objects.label(job.model.name):
        labels["app.kubernetes.io/name"] = kept
    return {**labels, **job.compute.kubernetes.labels}


def metadata_of(job: ExportJob) -> dict[str, Any]:
    """Return the name of a job, and what it is known by."""
    noted = {
        "rankwise/experiment": job.model.experiment_name,
        "rankwise/description": job.model.description,
        "rankwise/tags": json.dumps(dict(job.model.tags)) if job.model.tags else "",
    }
    return given(
        name=job.name,
        namespace=job.compute.kubernetes.namespace,
        labels=labels_of(job),
        annotations=given(**noted),
    )


def image_of(job: ExportJob, role: RoleRequest) -> str:
    """Return the image of a role; raises InputError if neither it nor the site file has one."""
    runtime = role.runtime
    is_file = runtime.image.endswith(".sif")
    # The command line wins, then the document; the site file has one for what has none.
    own = runtime.image if runtime.kind == "container" and not is_file else ""
    if image := job.options.image or own or job.compute.kubernetes.image:
        return image
    what = "is a file for apptainer" if runtime.image else "has no image"
    raise InputError(
        f"{job.document.place(('environment',), runtime.name)}: `{runtime.name}` {what}, and pods "
        'need one: say --image IMAGE, or image = "…" under '
        f'[runtime."{runtime.name}"] in rankwise.toml'
    )


def variables_of(job: ExportJob, more: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """Return the variables of a container; secrets come from an object of that name."""
    # The document may name another file of hosts than the operator's.
    said = {**(more or {}), **job.request.environment}
    plain = [{"name": name, "value": escaped(value)} for name, value in said.items()]
    secret = [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": f"{job.name}-secrets", "key": name}}}
        for name in job.request.secrets
    ]
    return plain + secret


def requirements_of(job: ExportJob, resources: Resources) -> dict[str, Any]:
    """Return requests and limits, which are the same: what is claimed is there, and no more is."""
    limits = objects.quantities(resources, job.compute.kubernetes.gpu_resource)
    return {"requests": limits, "limits": dict(limits)} if limits else {}


def template_of(job: ExportJob, part: Part, code: CodeMap | None) -> dict[str, Any]:
    """Make the template of a pod."""
    site = job.compute.kubernetes
    # Without a site file, the cluster's own default for pulling counts.
    policy = site.pull_policy if job.compute.backend == KUBERNETES else ""
    image = given(image=image_of(job, part.role), imagePullPolicy=policy)
    own = {} if part.is_privileged else {"securityContext": objects.RESTRICTED}
    pod = {} if part.is_privileged else _user(job.compute)
    found, mounts = objects.site_volumes(site)
    before: list[dict[str, Any]] = []
    if code is not None:
        seen = {"name": "source", "mountPath": SOURCE, "readOnly": True}
        copy = {"name": "code", "mountPath": WORK}
        # Before anything starts, and on every pod: ranks may be started by a launcher elsewhere.
        shown = {"command": ["/bin/sh", "-c", COPY], "volumeMounts": [seen, copy]}
        before = [{"name": "code", **image, **shown, **own}]
        mounts = [copy, *mounts]
        found = [code.volume, {"name": "code", "emptyDir": {}}, *found]
    settings = given(
        command=list(part.command),
        workingDir=WORK if code is not None else job.code_in_image,
        env=variables_of(job, part.variables),
        resources=requirements_of(job, part.resources),
        volumeMounts=mounts,
    )
    containers = [{"name": part.container, **image, **settings, **own}]
    spec = given(initContainers=before, containers=containers, volumes=found)
    metadata = given(labels=labels_of(job), annotations=dict(site.annotations))
    return {"metadata": metadata, "spec": {**spec, **pod, **objects.scheduling(site)}}


def run_policy(job: ExportJob) -> dict[str, Any]:
    """Return what the operators of Kubeflow have for restarts, limits and pods that have ended."""
    return {
        # Pods that have ended keep their logs; the rest, such as parameter servers, is ended.
        "cleanPodPolicy": "Running",
        "backoffLimit": job.request.restart.most,
        **given(activeDeadlineSeconds=deadline(job)),
    }


def deadline(job: ExportJob) -> int | None:
    """Return the time limit in whole seconds; None: there is none."""
    # Rounded up, and one at least: a job that keeps its limit must not be ended.
    return None if job.request.timeout is None else max(1, math.ceil(job.request.timeout))


def common_losses(job: ExportJob, code: CodeMap | None) -> Iterator[str]:
    """Say what no operator can be told."""
    if job.request.restart.on_exit_codes:
        yield job.loss("restart.on_exit_codes", "it is restarted after every failure")
    if job.request.timeout is not None and job.request.restart.most:
        field = "limits.timeout" if isinstance(job.model, CommandJob) else "timeout"
        yield job.loss(field, "it counts for all attempts together, not for each")
    yield from losses_of_data(job)
    yield from job.losses_of_code()
    if code is None and not job.code_in_image:
        why = "none is given: commands run in the working folder of the image"
        yield job.loss(job.code_field, why)


def losses_of_data(job: ExportJob) -> Iterator[str]:
    """Say what goes in and comes out that no cluster knows of."""
    model = job.model
    for name, said in model.inputs.items():
        if said.path and "://" not in said.path and not said.path.startswith("azureml:"):
            why = f"`{said.path}` is a path here: have it in the image or a volume"
            yield job.loss(f"inputs.{name}", why)
        elif said.path:
            yield job.loss(f"inputs.{name}", f"`{said.path}` is not fetched there")
    if isinstance(model, CommandJob):
        for name, output in model.outputs.items():
            where = output.path or f"{OUTPUTS_FOLDER}/outputs/{name}"
            yield job.loss(f"outputs.{name}", f"`{where}` is of the pod and lost with it")
        for field in model.without_effect():
            yield job.loss(field, "only Azure ML has it")


def common_notes(job: ExportJob, code: CodeMap | None) -> Iterator[str]:
    """Say what people must do, and how the job's numbers came about."""
    if code is not None:
        yield f"code: {job.code} is in the ConfigMap {job.name}-code, and each pod gets a copy"
    elif job.code_in_image:
        yield f"code: {job.code_in_image} of the image"
    if job.request.secrets:
        values = " ".join(f'--from-literal={name}="${name}"' for name in job.request.secrets)
        namespace = job.compute.kubernetes.namespace
        where = f" -n {namespace}" if namespace else ""
        secret = f"secret generic{where} {job.name}-secrets"
        yield f"before it is applied: kubectl create {secret} {values}"
    yield from stand_in_notes(job)
    yield from job.counts.notes


def stand_in_notes(job: ExportJob) -> Iterator[str]:
    """Say which cluster it is written for, if not the one that was named."""
    if job.compute.name != job.request.compute:
        yield (
            f'compute "{job.request.compute}" is not in the site file: "{job.compute.name}", the '
            "only Kubernetes there, is used instead"
        )
