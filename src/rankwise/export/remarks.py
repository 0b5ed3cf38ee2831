"""What is said of a job that goes to Kubernetes, whichever operator takes it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from rankwise.export.code_map import CodeMap
from rankwise.export.contract import Job
from rankwise.export.gathering import OUTPUTS_FOLDER
from rankwise.export.pods import secrets_name
from rankwise.spec.command_job import CommandJob


def run_policy(job: Job) -> dict[str, Any]:
    """Give what the operators of Kubeflow have for restarts, limits and the pods of a job's end."""
    policy: dict[str, Any] = {
        # Those that have ended keep their logs; the rest, such as parameter servers, is ended.
        "cleanPodPolicy": "Running",
        "backoffLimit": job.request.restart.most,
    }
    if (seconds := deadline(job)) is not None:
        policy["activeDeadlineSeconds"] = seconds
    return policy


def deadline(job: Job) -> int | None:
    """Give the time limit in whole seconds; None: there is none."""
    return None if job.request.timeout is None else max(1, math.ceil(job.request.timeout))


def common_losses(job: Job, code: CodeMap | None) -> Iterator[str]:
    """Say what no operator can be told."""
    if job.request.restart.on_exit_codes:
        yield job.loss("restart.on_exit_codes", "it is restarted after every failure")
    if job.request.timeout is not None and job.request.restart.most:
        field = "limits.timeout" if isinstance(job.model, CommandJob) else "timeout"
        yield job.loss(field, "it counts for all attempts together, not for each")
    yield from losses_of_data(job)
    if code is None and not job.code_in_image:
        yield job.loss(
            job.code_field, "none is given: commands run in the working folder of the image"
        )


def losses_of_data(job: Job) -> Iterator[str]:
    """Say what goes in and comes out that no cluster knows of."""
    model = job.model
    for name, given in model.inputs.items():
        if given.path and "://" not in given.path and not given.path.startswith("azureml:"):
            yield job.loss(
                f"inputs.{name}", f"`{given.path}` is a path here: have it in the image or a volume"
            )
        elif given.path:
            yield job.loss(f"inputs.{name}", f"nobody fetches `{given.path}` there")
    if isinstance(model, CommandJob):
        for name, output in model.outputs.items():
            where = output.path or f"{OUTPUTS_FOLDER}/outputs/{name}"
            yield job.loss(f"outputs.{name}", f"`{where}` is of the pod and lost with it")
        for field in model.without_effect():
            yield job.loss(field, "only Azure ML has it")


def common_notes(job: Job, code: CodeMap | None) -> Iterator[str]:
    """Say what people must do, and how the job's numbers came about."""
    if code is not None:
        yield f"code: {job.code} is in the ConfigMap {job.name}-code, and each pod gets a copy"
    elif job.code_in_image:
        yield f"code: {job.code_in_image} of the image"
    if job.request.secrets:
        values = " ".join(f'--from-literal={name}="${name}"' for name in job.request.secrets)
        namespace = job.compute.kubernetes.namespace
        where = f" -n {namespace}" if namespace else ""
        secret = f"secret generic{where} {secrets_name(job)}"
        yield f"before it is applied: kubectl create {secret} {values}"
    yield from stand_in_notes(job)
    yield from job.counts.notes


def stand_in_notes(job: Job) -> Iterator[str]:
    """Say which cluster it is written for, if not the one that was named."""
    if job.compute.name != job.request.compute:
        yield (
            f'compute "{job.request.compute}" is not in the site file: "{job.compute.name}", the '
            "only Kubernetes there, stands in for it"
        )
