"""Jobs for tests: those of the documents that must run as they are, and small ones."""

from __future__ import annotations

from typing import Any

from rankwise.launch.jobs import Facts, JobRequest, RoleRequest
from rankwise.launch.mpiexec import Family
from rankwise.plan import Resources, Task, show

MPIRUN = (
    "mpirun -np 16 --hostfile AZUREML_MPI_HOSTFILE -bind-to none -map-by slot "
    "-x NCCL_DEBUG=INFO -x LD_LIBRARY_PATH -x PATH -mca pml ob1 -mca btl ^openib python train.py"
)
MPIRUN_OF_KUBERNETES = (
    "mpirun -np 16 --allow-run-as-root -bind-to none -map-by slot "
    "-x LD_LIBRARY_PATH -x PATH -mca pml ob1 -mca btl ^openib python train.py"
)
HOROVODRUN = "horovodrun -np 16 --hostfile AZUREML_MPI_HOSTFILE python train.py"
TORCH_LAUNCH = (
    "python -m torch.distributed.launch --nproc_per_node 4 --nnodes 4 --node_rank NODE_RANK "
    "--master_addr MASTER_ADDR --master_port MASTER_PORT --use_env python train.py"
)

RANK = "'<folder of the attempt>/bin/rankwise-rank'"
HOSTFILE = "<folder of the attempt>/hostfile"
MASTER = "<address of node 0>"
PORT = "<free port master of node 0>"


def mpi_job(
    command: str,
    *,
    launcher: Resources | None = None,
    worker: Resources | None = None,
    **more: Any,
) -> JobRequest:
    roles = (
        RoleRequest(
            name="launcher", command=command, code="/p/src", resources=launcher or Resources()
        ),
        RoleRequest(name="worker", code="/p/src", resources=worker or Resources()),
    )
    return JobRequest(kind="mpi", name="sample-mpi-job", roles=roles, **more)


def torch_job(command: str, *, worker: Resources | None = None, **more: Any) -> JobRequest:
    role = RoleRequest(
        name="worker", command=command, code="/p/src", resources=worker or Resources()
    )
    return JobRequest(kind="pytorch", name="sample-pytorch-job", roles=(role,), **more)


def role(name: str, replicas: int | None = None, **more: Any) -> RoleRequest:
    return RoleRequest(name=name, replicas=replicas, **{"command": "python train.py", **more})


def facts(family: Family = "openmpi4", cores: int = 2) -> Facts:
    return Facts(cores=cores, mpi_family=family)


def command_of(task: Task, process: int = 0) -> str:
    """Return a command as people see it."""
    command = task.processes[process].command
    assert isinstance(command, str)
    return show(command)


def environment_of(task: Task, process: int = 0) -> dict[str, str]:
    environment = task.processes[process].environment
    return {name: show(value) for name, value in environment.items()}
