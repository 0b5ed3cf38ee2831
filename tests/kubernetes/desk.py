"""A compute with a cluster for tests behind it, and tasks for it."""

from __future__ import annotations

import secrets
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from rankwise.backends.base import Attempt, Submission, Updates
from rankwise.backends.kubernetes.backend import KubernetesBackend
from rankwise.documents.site import find_site
from rankwise.documents.site_models import ComputeConfig
from rankwise.plan import Process, Task
from rankwise.runtimes.base import PreparedRuntime
from tests.backends.places import Watching
from tests.kubernetes.kubelet import wait_until
from tests.kubernetes.standing_in import StandIn

INDEX = "batch.kubernetes.io/job-completion-index"


class Desk:
    """A compute, and tasks for it."""

    def __init__(self, folder: Path, cluster: StandIn, more: str = "") -> None:
        self.folder = folder
        self.run = f"run-{secrets.token_hex(4)}"
        (folder / "code").mkdir(exist_ok=True)
        (folder / "rankwise.toml").write_text(f"[compute.k8s]\n{cluster.table()}{more}\n")
        self.choice: ComputeConfig = find_site(folder).compute("k8s")
        updates: Updates = SimpleQueue()
        self.compute = KubernetesBackend(self.choice, updates)
        self.watching = Watching(self.compute, updates)

    def submit(self, command: str, *, nodes: int = 1, **more: Any) -> Attempt:
        marker = f"rw-{secrets.token_hex(8)}"
        attempt = Attempt(label=f"{self.run}/task/1", marker=marker, folder=self.folder / marker)
        attempt.folder.mkdir()
        processes = tuple(
            Process(name=f"worker-{node}", role="worker", node=node, command=command)
            for node in range(nodes)
        )
        task = Task(
            key="task",
            processes=processes,
            nodes=nodes,
            code=str(self.folder / "code"),
            folder=str(self.folder),
            compute="k8s",
            **more,
        )
        self.compute.submit(Submission(attempt=attempt, task=task, runtime=PreparedRuntime()))
        return attempt

    def told(self) -> str:
        return "\n".join(news.text for news in self.watching.news)


def pod_of(cluster: StandIn, attempt: Attempt, role: str, index: int = 0) -> str:
    """Wait for a pod that runs, and name it."""
    found: list[str] = []

    def is_there() -> bool:
        found[:] = [
            name
            for name, pod in cluster.cluster.things["pods"].items()
            if pod["metadata"]["labels"]["rankwise.dev/attempt"] == attempt.marker
            and pod["metadata"]["labels"]["rankwise.dev/role"] == role
            and pod["metadata"]["labels"][INDEX] == str(index)
            and pod["status"]["phase"] == "Running"
        ]
        return bool(found)

    wait_until(is_there)
    return found[0]
