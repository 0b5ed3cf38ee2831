"""A cluster for tests: an API server in memory, and a stand-in for the kubelet."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from containers import Podman

from tests.kubernetes.api_server import Cluster, Server, Thing
from tests.kubernetes.container_kubelet import ContainerKubelet
from tests.kubernetes.kubelet import Kubelet

_PROGRAMS = ("unshare", "setpriv", "mount", "hostname")


@cache
def obstacle() -> str | None:
    """Say why pods cannot be processes here, or None if they can."""
    if missing := [name for name in _PROGRAMS if shutil.which(name) is None]:
        return f"no {missing[0]} is installed"
    if os.getuid() != 0:
        return "only root may give processes mounts of their own"
    tried = subprocess.run(
        ["unshare", "-mup", "--fork", "--mount-proc", "true"], capture_output=True, check=False
    )
    return None if tried.returncode == 0 else "namespaces are not permitted here"


@dataclass(kw_only=True)
class StandIn:
    """A cluster, as tests see it."""

    cluster: Cluster
    server: Server
    kubelet: Kubelet
    folder: Path

    def table(self, more: str = "user = 0") -> str:
        """Return the table of a site file; root, since this Python may be in root's home."""
        return (
            f'backend = "kubernetes"\nkubeconfig = "{self.folder}/kubeconfig"\n'
            f'image = "here:1"\nmount = "{self.folder}/rankwise"\n{more}\n'
        )

    def left(self) -> list[str]:
        """Name all that is still there."""
        kinds = ("jobs", "pods", "services", "configmaps", "secrets")
        return [f"{kind}/{name}" for kind in kinds for name in self.cluster.things[kind]]

    def made(self, kind: str) -> list[Thing]:
        """Return everything of a kind that was ever made."""
        return [
            thing
            for _, what, event, thing in self.cluster.history
            if what == kind and event == "ADDED"
        ]


@contextlib.contextmanager
def standing_in(path: str = "", engine: Podman | None = None) -> Iterator[StandIn]:
    """Have a cluster; `path` is where its image has its commands. With an engine, an image it is."""
    # Not in the tests' own folders: what is in there is looked through for secrets.
    with tempfile.TemporaryDirectory(prefix="rankwise-pods-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        cluster = Cluster()
        server = Server(cluster)
        server.kubeconfig(folder / "kubeconfig")
        here = path or f"{Path(sys.executable).parent}:/usr/bin:/bin"
        pods = folder / "pods"
        kubelet = (
            Kubelet(cluster, pods, path=here)
            if engine is None
            else ContainerKubelet(cluster, pods, engine)
        )
        try:
            yield StandIn(cluster=cluster, server=server, kubelet=kubelet, folder=folder)
        finally:
            kubelet.close()
            server.close()
