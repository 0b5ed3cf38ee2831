"""What a Kubernetes cluster needs to take our tasks, checked one by one."""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from rankwise.compute.contract import Attempt, Job
from rankwise.compute.finding import Finding
from rankwise.compute.kubernetes.client import Cluster
from rankwise.compute.kubernetes.compute import KubernetesCompute
from rankwise.compute.kubernetes.quantities import resources_of
from rankwise.errors import ComputeFailure
from rankwise.plan import Process, Resources, Task
from rankwise.records import AttemptEnd
from rankwise.runtime.contract import Prepared
from rankwise.site import ComputeChoice
from rankwise.store import State

NEEDED = (
    ("create", "jobs", "batch"),
    ("get", "jobs", "batch"),
    ("list", "jobs", "batch"),
    ("patch", "jobs", "batch"),
    ("delete", "jobs", "batch"),
    ("create", "configmaps", ""),
    ("get", "configmaps", ""),
    ("create", "secrets", ""),
    ("get", "secrets", ""),
    ("create", "services", ""),
    ("get", "services", ""),
    ("list", "pods", ""),
    ("watch", "pods", ""),
    ("get", "pods/log", ""),
)
"""What must be allowed in the namespace: verb, resource and group, as in the Role of the docs."""
_GOOD_TO_HAVE = (("list", "events", ""),)
_TRIAL_SECONDS = 120.0


def check_kubernetes(choice: ComputeChoice) -> Iterator[Finding]:
    """Look at everything, up to a small task of our own."""
    cluster = Cluster(choice.kubernetes)
    try:
        yield from _check(cluster, choice)
    finally:
        cluster.forget()


def _check(cluster: Cluster, choice: ComputeChoice) -> Iterator[Finding]:
    try:
        server = cluster.version()
    except ComputeFailure as failure:
        yield Finding(
            what=f"the cluster does not answer: {failure}",
            is_well=False,
            remedy="`kubectl get jobs` must work with the same kubeconfig and context",
        )
        return
    yield Finding(what=f"{server} answers, namespace {cluster.namespace}")
    yield _permissions(cluster)
    yield _nodes(cluster, choice)
    if choice.kubernetes.image:
        yield from _trial(choice)
    else:
        yield Finding(
            what="there is no image of its own, so nothing was tried",
            is_well=False,
            is_needed=False,
            remedy='write image = "…", for tasks whose environment is no image',
        )


def _permissions(cluster: Cluster) -> Finding:
    try:
        missing = [one for one in NEEDED if not cluster.may(*one)]
        wanted = [one for one in _GOOD_TO_HAVE if not cluster.may(*one)]
    except ComputeFailure as failure:
        return Finding(what=f"what is allowed is not told: {failure}", is_needed=False)
    if missing:
        return Finding(
            what=f"not allowed: {_listed(missing)}",
            is_well=False,
            remedy="apply the Role of the documentation (Kubernetes, what must be allowed)",
        )
    if wanted:
        return Finding(
            what=f"all that is needed is allowed, but not {_listed(wanted)}",
            is_well=False,
            is_needed=False,
            remedy="without it, why a quota keeps pods away is not told",
        )
    return Finding(what="all that is needed is allowed")


def _listed(wanted: list[tuple[str, str, str]]) -> str:
    return ", ".join(f"{verb} {resource}" for verb, resource, _ in wanted)


def _nodes(cluster: Cluster, choice: ComputeChoice) -> Finding:
    try:
        nodes = cluster.nodes()
    except ComputeFailure:
        return Finding(
            what="how many nodes there are is not told: what does not fit waits for the scheduler",
            is_needed=False,
        )
    found = sum((resources_of(one, choice.kubernetes.gpu_resource) for one in nodes), Resources())
    size = f"{found.cores:g} cores, {found.memory / 2**30:.1f} GiB of memory, {found.gpus} GPUs"
    return Finding(what=f"{len(nodes)} nodes: {size}")


def _trial(choice: ComputeChoice) -> Iterator[Finding]:
    """Run a small task in the image of the compute."""
    image = choice.kubernetes.image
    with tempfile.TemporaryDirectory(prefix="rankwise-doctor-") as folder:
        begun = time.monotonic()
        try:
            end = _run(choice, Path(folder))
        except ComputeFailure as failure:
            yield Finding(what=f"a task was refused: {failure}", is_well=False)
            return
        took = time.monotonic() - begun
    if end is None:
        yield Finding(
            what=f"a task has not run within {_TRIAL_SECONDS:g} s",
            is_well=False,
            is_needed=False,
            remedy="the cluster is busy, or will never run it: `kubectl get events` says more",
        )
    elif end.outcome == State.PASSED:
        yield Finding(what=f"a task ran in {image}, and was back after {took:.0f} s")
    else:
        yield Finding(
            what=f"a task in {image} ended as {end.outcome}: {end.reason}",
            is_well=False,
            remedy="the image must be there for the nodes, with /bin/sh and Python 3.10 or newer",
        )


def _run(choice: ComputeChoice, folder: Path) -> AttemptEnd | None:
    (folder / "code").mkdir()
    marker = f"rw-{secrets.token_hex(8)}"
    attempt = Attempt(label=f"doctor-{marker}/trial/1", marker=marker, folder=folder / "attempt")
    attempt.folder.mkdir()
    task = Task(
        key="trial",
        processes=(Process(name="worker-0", role="worker", command="true"),),
        code=str(folder / "code"),
        folder=str(folder),
        compute=choice.name,
    )
    compute = KubernetesCompute(choice)
    deadline = time.monotonic() + _TRIAL_SECONDS
    try:
        compute.submit(Job(attempt=attempt, task=task, runtime=Prepared()))
        while time.monotonic() < deadline:
            if compute.wait(0.5):
                return compute.end_of(attempt)
        compute.cancel(attempt)
        compute.wait(5.0)
        return None
    finally:
        compute.close()
