"""Folders with jobs for pods, and what these jobs do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.kubernetes.standing_in import StandIn

_BIN = Path(sys.executable).parent
SECRET = "correct-horse-battery-staple"
MPI_JOB = """\
name: mpi
type: MpiJob
launcher:
  spec:
    command: mpirun -np 4 --hostfile AZUREML_MPI_HOSTFILE python ranks.py
    code: {path: ./src}
    environment: azureml:pytorch-1.7:1
worker:
  spec: {environment: azureml:pytorch-1.7:1}
compute: {type: AksCompute, target: my-aks-cluster, instance_count: 2}
"""
RANKS = """\
import os
from pathlib import Path
from mpi4py import MPI
world = MPI.COMM_WORLD
places = world.gather((os.uname().nodename, os.environ["RANKWISE_NODE"]))
if world.rank == 0:
    print("ranks:", world.size, "in", len(set(places)), "pods", all(a == b for a, b in places))
Path(f"rank-{world.rank}.txt").write_text("was here")
"""
TORCH_JOB = """\
name: {name}
type: PytorchJob
worker:
  spec:
    command: python {program}
    code: {{path: ./src}}
compute: {{target: k8s, instance_count: {count}}}
"""
FAILING = """\
import os, sys, time
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)
if os.environ["RANK"] == "1":
    time.sleep(1)
    sys.exit(7)
time.sleep(300)
"""
TENSORFLOW = """\
import json, os, socket, time
told = json.loads(os.environ["TF_CONFIG"])
kind, index = told["task"]["type"], told["task"]["index"]
host, port = told["cluster"][kind][index].split(":")
server = socket.create_server((host, int(port)))
if kind == "ps":
    while True:
        line, _ = server.accept()
        line.sendall(b"42")
        line.close()
host, port = told["cluster"]["ps"][0].split(":")
for _ in range(300):
    try:
        line = socket.create_connection((host, int(port)))
        break
    except OSError:
        time.sleep(0.1)
print(f"the answer is {line.recv(2).decode()}, the token {os.environ['TOKEN']}", flush=True)
"""
TENSORFLOW_JOB = """\
name: tf
type: TensorflowJob
secrets: [TOKEN]
compute: {{target: k8s}}
parameter_server:
  num_replicas: 1
  spec: {{command: python tf.py, code: {{path: ./src}}}}
worker:
  num_replicas: {workers}
  spec: {{command: python tf.py, code: {{path: ./src}}}}
"""


class Shop:
    """A folder with jobs, and the command."""

    def __init__(self, folder: Path, cluster: StandIn) -> None:
        self.folder = folder
        self.cluster = cluster
        (folder / "src").mkdir()
        (folder / "rankwise.toml").write_text(f"[compute.k8s]\n{cluster.table()}")

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [_BIN / "rankwise", *arguments],
            cwd=self.folder,
            env={**os.environ, "TOKEN": SECRET},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def call(self, *arguments: str) -> tuple[int, str]:
        process = self.start(*arguments)
        said, _ = process.communicate(timeout=150)
        return process.returncode, said

    def attempt(self, run: str, task: str) -> Path:
        return self.folder / ".rankwise" / "runs" / run / task / "1"
