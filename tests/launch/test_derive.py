from __future__ import annotations

import pytest

from rankwise.errors import InputError
from rankwise.launch.commandline import read_command
from rankwise.launch.jobs import Counts, Facts, JobRequest, counts
from rankwise.plan import Resources
from tests.launch.samples import mpi_job, role, torch_job


def found(request: JobRequest, cores: int = 8) -> Counts:
    launch = read_command(request.roles[0].command).launch
    return counts(request, Facts(cores=cores), launch)


@pytest.mark.parametrize(
    ("request_", "instances", "per_instance", "notes"),
    [
        (
            mpi_job("mpirun -np 16 ./a", instance_count=4),
            4,
            4,
            ["4 processes per instance: -np 16 over 4 instances"],
        ),
        (
            mpi_job("mpirun -np 10 ./a", instance_count=4),
            4,
            3,
            [
                "3 processes per instance: -np 10 over 4 instances (not even: not all places are taken)"
            ],
        ),
        (mpi_job("mpirun ./a", instance_count=2, process_count_per_instance=3), 2, 3, []),
        (
            mpi_job("mpirun -np 16 ./a", worker=Resources(gpus=4)),
            4,
            4,
            [
                "4 instances: -np 16 with 4 GPUs each",
                "4 processes per instance: -np 16 over 4 instances",
            ],
        ),
        (
            mpi_job("mpirun ./a", instance_count=2),
            2,
            4,
            ["4 processes per instance: one for each of 4 cores"],
        ),
        (
            mpi_job("mpirun ./a", instance_count=2, worker=Resources(gpus=3)),
            2,
            3,
            ["3 processes per instance: one for each of 3 GPUs"],
        ),
        (
            mpi_job("mpirun ./a", instance_count=2, worker=Resources(cores=1.5)),
            2,
            2,
            ["2 processes per instance: one for each of 2 cores"],
        ),
        (
            mpi_job("mpirun ./a", instance_count=99),
            99,
            1,
            ["1 process per instance: one for each of 1 core"],
        ),
        (mpi_job("mpirun -ppn 2 ./a"), 1, 2, ["2 processes per instance: as the command says"]),
        (
            mpi_job("srun -n 6 ./a", instance_count=2),
            2,
            3,
            ["3 processes per instance: -n 6 over 2 instances"],
        ),
        (
            torch_job("torchrun --nnodes 2 --nproc-per-node 3 a.py"),
            2,
            3,
            [
                "2 instances: as many nodes as the command asks for",
                "3 processes per instance: --nproc_per_node 3",
            ],
        ),
        (
            torch_job("torchrun a.py", instance_count=2),
            2,
            1,
            ["1 process per instance: torchrun starts one unless --nproc_per_node says otherwise"],
        ),
        (
            torch_job(
                "torchrun --nproc-per-node gpu a.py", instance_count=2, worker=Resources(gpus=2)
            ),
            2,
            2,
            ["2 processes per instance: one for each of 2 GPUs"],
        ),
        (
            torch_job("torchrun --nproc-per-node auto a.py", instance_count=2),
            2,
            4,
            ["4 processes per instance: one for each of 4 cores"],
        ),
        (torch_job("python a.py"), 1, 8, ["8 processes per instance: one for each of 8 cores"]),
    ],
)
def test_counts_are_derived_and_told(
    request_: JobRequest, instances: int, per_instance: int, notes: list[str]
) -> None:
    result = found(request_)
    assert (result.instances, result.per_instance) == (instances, per_instance)
    assert list(result.notes) == notes


def test_replicas_of_workers_are_instances() -> None:
    request = JobRequest(kind="pytorch", name="j", roles=(role("worker", 3),))
    assert found(request).instances == 3
    assert found(request).notes[0] == "3 instances: num_replicas of worker"


def test_more_processes_than_places_are_told() -> None:
    request = mpi_job("mpirun -np 16 ./a", instance_count=4, process_count_per_instance=2)
    assert found(request).notes == (
        "oversubscribed: -np 16 on 4 instances with 2 processes each is 8 more than there are places",
    )


def test_a_command_that_says_otherwise_than_the_document_is_told() -> None:
    request = torch_job("torchrun --nproc-per-node 4 a.py", process_count_per_instance=2)
    assert found(request).notes == (
        "process_count_per_instance is 2, but the command asks for 4 on each node",
    )


def test_a_command_that_would_wait_for_more_nodes_is_an_error() -> None:
    request = torch_job("torchrun --nnodes 4 a.py", instance_count=2)
    with pytest.raises(InputError) as raised:
        found(request)
    assert str(raised.value) == (
        "sample-pytorch-job: the command waits for 4 nodes (--nnodes), and there are 2 instances: "
        "set `instance_count: 4` or --nnodes 2"
    )


def test_a_command_that_wants_fewer_nodes_is_told() -> None:
    request = torch_job("torchrun --nnodes 1 a.py", instance_count=2)
    assert found(request).notes[-1] == (
        "the command wants 1 node (--nnodes), and it runs on each of 2 instances"
    )
    elastic = torch_job("torchrun --nnodes 1:4 a.py", instance_count=2)
    assert len(found(elastic).notes) == 1


@pytest.mark.parametrize(
    "request_",
    [
        mpi_job("mpirun -np 999999999 ./a"),
        mpi_job("mpirun -np 999999999 ./a", worker=Resources(gpus=1)),
        mpi_job("mpirun ./a", instance_count=0),
        mpi_job("mpirun ./a", process_count_per_instance=0),
        torch_job("torchrun --nnodes 99999999 a.py"),
    ],
)
def test_sizes_that_cannot_be_are_errors(request_: JobRequest) -> None:
    with pytest.raises(InputError):
        found(request_)
