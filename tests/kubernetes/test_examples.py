"""The documents of examples/jobs for Kubernetes, in pods, with the real frameworks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from environments import RUNTIMES, why_unavailable

from tests.acceptance.test_job_examples import EXAMPLES, LEARNED, RUNTIME_OF_FOLDER
from tests.backends.places import need
from tests.kubernetes.kubelet import wait_until
from tests.kubernetes.standing_in import obstacle, standing_in

_SECONDS = 400


_HEAVY = pytest.mark.full_length


@pytest.mark.parametrize(
    "kind",
    ["mpi", *(pytest.param(kind, marks=_HEAVY) for kind in ("pytorch", "tensorflow"))],
)
def test_an_example_learns_in_pods(tmp_path: Path, kind: str) -> None:
    """As it is written, and as the site file of the examples says: only the image is ours."""
    runtime = RUNTIMES[RUNTIME_OF_FOLDER[kind]]
    need(obstacle() or why_unavailable(runtime))
    folder = tmp_path / kind
    shutil.copytree(EXAMPLES / kind, folder)
    with standing_in(f"{runtime.folder}/bin:/usr/bin:/bin") as cluster:
        site = folder / "rankwise.toml"
        _, _, rest = site.read_text().partition("[compute.k8s]")
        told = [line for line in rest.splitlines() if line.startswith("gpus")]
        table = cluster.table("\n".join(["user = 0", *told]))
        site.write_text(f"[compute.k8s]\n{table}")
        done = subprocess.run(
            [Path(sys.executable).parent / "rankwise", "run", "k8s.yaml", "--on", "k8s"],
            cwd=folder,
            env=os.environ,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert LEARNED.search(done.stdout), done.stdout
        wait_until(lambda: cluster.left() == [])
