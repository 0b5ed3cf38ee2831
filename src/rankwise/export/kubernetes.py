"""Plain objects of Kubernetes, the same that a compute of that kind makes: no operator is needed.

The runner of rankwise is in the pods here too. It finds the ranks' variables, ends all processes
when one has failed, and keeps the time limit.
"""

from __future__ import annotations

import dataclasses
import secrets
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rankwise.backends.base import Attempt, Submission
from rankwise.backends.kubernetes.delivery import copy_of_code, deliver
from rankwise.backends.kubernetes.objects import MARKER, objects_for
from rankwise.documents.site import Site
from rankwise.documents.site_models import KUBERNETES, ComputeConfig, Layer
from rankwise.errors import ComputeFailure, InputError
from rankwise.export.base import Exported, ExportJob
from rankwise.export.pods import image_of, losses_of_data, metadata_of, stand_in_notes
from rankwise.plan import RuntimeChoice, Task
from rankwise.planning.jobs import task_of
from rankwise.runtimes.base import PreparedRuntime


def kubernetes(job: ExportJob) -> Exported:
    """Write the objects of a job; raises InputError if its code does not fit."""
    choice = _choice(job)
    task = _task(job, choice)
    objects = _objects(job, choice, task)
    (service,) = (one for one in objects if one["kind"] == "Service")
    name, namespace = service["metadata"]["name"], choice.kubernetes.namespace
    where = f" -n {namespace}" if namespace else ""
    label = f"{MARKER}={service['metadata']['labels'][MARKER]}"
    folder = task.code or task.folder
    notes = [
        f"code: {job.code_in_image} of the image"
        if job.code_in_image
        else f"code: {folder} is in the ConfigMap {name}, and each pod gets a copy",
        *stand_in_notes(job),
        *task.notes,
        f"to remove all of it: kubectl delete{where} job,service,configmap,secret -l {label}",
    ]
    if job.request.secrets:
        values = [f'--from-literal=secret.{one}="${one}"' for one in job.request.secrets]
        key = '--from-literal=key="$(openssl rand -hex 32)"'
        made = " ".join([f"kubectl create secret generic{where} {name}", key, *values])
        notes.insert(0, f"before it is applied: {made}")
    losses = [*losses_of_data(job)]
    if job.request.restart.most:
        losses.insert(0, job.loss("restart", "it is not started again: that needs a client"))
    return Exported(name=job.name, objects=objects, losses=losses, notes=notes)


def _choice(job: ExportJob) -> ComputeConfig:
    """Return the table of the cluster in the site file, or defaults where there is none."""
    said = job.compute
    # Of a compute of another kind only the name is kept: its settings are of no cluster.
    choice = said if said.backend == KUBERNETES else ComputeConfig(name=said.name)
    site = choice.kubernetes
    noted = metadata_of(job).get("annotations", {})
    site = dataclasses.replace(site, annotations={**site.annotations, **noted})
    if job.code_in_image:
        site = dataclasses.replace(site, code="image", code_path=job.code_in_image)
    return dataclasses.replace(choice, backend=KUBERNETES, kubernetes=site)


def _task(job: ExportJob, choice: ComputeConfig) -> Task:
    """Plan the job for that cluster, with its images."""
    roles = []
    for role in job.request.roles:
        runtime = RuntimeChoice(name=role.runtime.name, kind="container", image=image_of(job, role))
        roles.append(dataclasses.replace(role, runtime=runtime))
    layer = Layer(file=job.site.file, computes={choice.name: choice})
    site = Site(file=job.site.file, layers=(layer, *job.site.layers))
    # In pods, the cluster enforces limits.
    request = dataclasses.replace(job.request, roles=tuple(roles), is_limited=False)
    return task_of(dataclasses.replace(request, compute=choice.name), site)


def _objects(job: ExportJob, choice: ComputeConfig, task: Task) -> list[dict[str, Any]]:
    # By this key the pods know each other. Where the job has secrets, too, the user creates the
    # object that holds both: values of secrets are in no file.
    key = None if job.request.secrets else {"key": secrets.token_hex(32)}
    # A copy of the code, as for a run: packed, it becomes a part of the ConfigMap.
    with TemporaryDirectory(prefix="rankwise-export-") as folder:
        attempt = Attempt(label=job.name, marker=job.name, folder=Path(folder))
        # Pods run in the image: nothing is to be put around their commands.
        sent = Submission(attempt=attempt, task=task, runtime=PreparedRuntime())
        try:
            code = copy_of_code(sent, choice.kubernetes)
            order, parts = deliver(sent, choice.kubernetes, code)
        except ComputeFailure as failure:
            raise InputError(f"{job.at(job.code_field)}: {failure}") from failure
    name = job.name
    return objects_for(task, choice, run=name, attempt=name, order=order, parts=parts, secrets=key)
