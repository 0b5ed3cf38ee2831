"""`rankwise plan --on` a Kubernetes: every example of a job, in words and as pods."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Said
from tests.export.exporting import DOCUMENTS, EXAMPLES

Rankwise = Callable[..., Said]
# With a pod for the launcher of MPI, and one for each parameter server.
NODES = {
    "mpi/amlcompute.yaml": (5, 16),
    "mpi/command-job.yaml": (3, 4),
    "mpi/horovodrun.yaml": (5, 16),
    "mpi/k8s.yaml": (5, 16),
    "pytorch/command-job.yaml": (2, 4),
    "pytorch/k8s.yaml": (4, 16),
    "pytorch/launch.yaml": (4, 16),
    "tensorflow/command-job.yaml": (2, 2),
    "tensorflow/k8s.yaml": (6, 6),
    "tensorflow/multiworker.yaml": (4, 4),
    "tensorflow/parameter-server.yaml": (6, 6),
}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_an_example_is_planned_for_a_cluster(
    rankwise: Rankwise, project: Path, document: str
) -> None:
    folder = document.partition("/")[0]
    shutil.copytree(EXAMPLES / folder, project / folder)
    nodes, processes = NODES[document]
    said = rankwise("plan", document, "--on", "k8s")
    assert said.code == 0, said.err
    lines = [line.strip() for line in said.out.splitlines()]
    assert f"compute  k8s, {nodes} nodes, {processes} processes" in lines
    assert any(line.startswith("runtime  ") and f"{folder}-jobs:1" in line for line in lines)
    assert any("python train.py" in line for line in lines)
    if folder == "mpi":
        assert f"launcher 0 on node {nodes - 1}" in lines
    # What is written has a pod for each node; without a launcher's, one more that looks after them.
    written = rankwise("export", document, "--to", "kubernetes", "--on", "k8s")
    assert written.code == 0, written.err
    pods = [int(count) for count in re.findall(r"(?m)^  completions: (\d+)$", written.out)]
    assert sum(pods) == nodes + (folder != "mpi")
