from __future__ import annotations

import json
from typing import Any

import pytest

from rankwise.errors import InputError
from rankwise.launch.jobs import JobRequest, RoleRequest, task_for
from rankwise.plan import Resources, Task, show
from tests.launch.samples import (
    MASTER,
    PORT,
    RANK,
    TORCH_LAUNCH,
    command_of,
    environment_of,
    facts,
    role,
    torch_job,
)


def test_the_launch_of_the_documents_runs_once_on_each_node() -> None:
    task = task_for(torch_job(TORCH_LAUNCH, instance_count=4), facts())
    assert task.nodes == 4
    assert [process.name for process in task.processes] == [f"worker-{n}" for n in range(4)]
    assert [process.node for process in task.processes] == [0, 1, 2, 3]
    assert all(process.rank is None for process in task.processes)
    for node in range(4):
        assert command_of(task, node) == (
            "python -m torch.distributed.launch --nproc_per_node 4 --nnodes 4 "
            f"--node_rank {node} --master_addr {MASTER} --master_port {PORT} --use_env --no_python "
            f"{RANK} python train.py"
        )
    assert task.notes == (
        "4 processes per instance: --nproc_per_node 4",
        (
            "compatibility: no-python: `python train.py` names a program, which torch.distributed.launch "
            "takes for a script: --no_python added"
        ),
        "words: `MASTER_ADDR`, `MASTER_PORT`, `NODE_RANK` in the command replaced by the value",
    )


def test_a_launcher_has_the_variables_of_its_node() -> None:
    task = task_for(torch_job(TORCH_LAUNCH, instance_count=4), facts())
    assert environment_of(task, 2) == {
        "MASTER_ADDR": MASTER,
        "MASTER_PORT": PORT,
        "NODE_RANK": "2",
        "WORLD_SIZE": "16",
        "PET_NNODES": "4",
        "PET_NODE_RANK": "2",
        "PET_MASTER_ADDR": MASTER,
        "PET_MASTER_PORT": PORT,
        "RANKWISE_RANK_OUTPUT": "own",
    }


def test_a_plain_script_has_a_process_for_each_gpu_of_each_instance() -> None:
    request = torch_job("python train.py", worker=Resources(gpus=4), instance_count=4)
    task = task_for(request, facts())
    assert task.notes == ("4 processes per instance: one for each of 4 GPUs",)
    assert task.resources == Resources(gpus=16)
    assert [process.name for process in task.processes] == [f"worker-{n}" for n in range(16)]
    assert [process.rank for process in task.processes] == list(range(16))
    assert [process.node for process in task.processes] == [n // 4 for n in range(16)]
    assert environment_of(task, 9) == {
        "MASTER_ADDR": MASTER,
        "MASTER_PORT": PORT,
        "WORLD_SIZE": "16",
        "LOCAL_WORLD_SIZE": "4",
        "NODE_RANK": "2",
        "RANK": "9",
        "LOCAL_RANK": "1",
    }
    assert command_of(task, 9) == "python train.py"
    assert task.processes[9].resources == Resources(gpus=1)


def test_words_are_those_of_the_process() -> None:
    request = torch_job("python a.py --rank RANK --local=LOCAL_RANK", process_count_per_instance=2)
    task = task_for(request, facts())
    assert [command_of(task, n) for n in range(2)] == [
        "python a.py --rank 0 --local=0",
        "python a.py --rank 1 --local=1",
    ]


def test_torchrun_needs_no_options_for_several_nodes() -> None:
    request = torch_job("torchrun train.py", instance_count=2, process_count_per_instance=3)
    task = task_for(request, facts())
    assert command_of(task) == f"torchrun --no_python {RANK} python -u train.py"
    environment = environment_of(task, 1)
    assert environment["PET_NNODES"] == "2"
    assert environment["PET_NODE_RANK"] == "1"
    assert environment["PET_NPROC_PER_NODE"] == "3"
    assert environment["WORLD_SIZE"] == "6"


def test_the_document_may_name_the_meeting_point() -> None:
    request = torch_job(
        "torchrun --master_port MASTER_PORT a.py",
        instance_count=2,
        environment={"MASTER_PORT": "29500"},
    )
    task = task_for(request, facts())
    assert "--master_port 29500 " in command_of(task)
    assert "MASTER_PORT" not in task.processes[0].environment
    assert environment_of(task)["PET_MASTER_PORT"] == "29500"
    assert environment_of(task)["MASTER_ADDR"] == MASTER


def test_defaults_for_torchrun_do_not_override_the_document() -> None:
    request = torch_job("torchrun a.py", instance_count=2, environment={"PET_NNODES": "1:2"})
    task = task_for(request, facts())
    assert "PET_NNODES" not in task.processes[0].environment


@pytest.mark.parametrize(
    "command", ["torchrun --frobnicate a.py", "bash -c 'torchrun a.py'", "accelerate launch a.py"]
)
def test_what_starts_ranks_itself_runs_once_on_each_node_even_if_not_understood(
    command: str,
) -> None:
    task = task_for(torch_job(command, instance_count=2, process_count_per_instance=4), facts())
    assert len(task.processes) == 2
    assert command_of(task) == command
    assert any(note.startswith("ranks: ") for note in task.notes)


def test_ranks_of_an_mpirun_on_each_of_several_nodes_are_not_wrapped() -> None:
    several = task_for(torch_job("mpirun -np 2 python a.py", instance_count=2), facts())
    assert command_of(several) == "mpirun -np 2 python a.py"
    assert len(several.processes) == 2
    alone = task_for(torch_job("mpirun -np 2 python a.py", instance_count=1), facts())
    assert command_of(alone) == f"mpirun -np 2 {RANK} python a.py"


def test_the_first_rank_alone_may_decide() -> None:
    request = torch_job("python a.py", process_count_per_instance=3, success="chief")
    awaited = [process.is_awaited for process in task_for(request, facts()).processes]
    assert awaited == [True, False, False]


# tensorflow


def job(*roles: RoleRequest, **more: Any) -> JobRequest:
    return JobRequest(kind="tensorflow", name="sample-tf-job", roles=roles, **more)


def configuration(task: Task, name: str) -> dict[str, Any]:
    process = next(process for process in task.processes if process.name == name)
    found: dict[str, Any] = json.loads(show(process.environment["TF_CONFIG"]))
    return found


def address(name: str, node: int) -> str:
    return f"<address of node {node}>:<free port {name} of node {node}>"


def test_mirrored_workers_know_each_other() -> None:
    task = task_for(job(role("worker", 4), instance_count=4), facts())
    assert task.nodes == 4
    assert task.notes == ()
    assert [process.name for process in task.processes] == [f"worker-{n}" for n in range(4)]
    assert [process.node for process in task.processes] == [0, 1, 2, 3]
    assert all(process.is_awaited and process.is_vital for process in task.processes)
    assert configuration(task, "worker-2") == {
        "cluster": {"worker": [address(f"worker-{n}", n) for n in range(4)]},
        "task": {"type": "worker", "index": 2},
    }


def test_parameter_servers_are_known_and_ended_when_the_workers_are_done() -> None:
    request = job(role("parameter_server", 2), role("worker", 4), instance_count=4)
    task = task_for(request, facts())
    assert configuration(task, "parameter_server-1") == {
        "cluster": {
            "worker": [address(f"worker-{n}", n) for n in range(4)],
            "ps": [address(f"parameter_server-{n}", n) for n in range(2)],
        },
        "task": {"type": "ps", "index": 1},
    }
    awaited = {process.name for process in task.processes if process.is_awaited}
    assert awaited == {f"worker-{n}" for n in range(4)}
    assert all(process.is_vital for process in task.processes)
    ranks = {process.name: process.rank for process in task.processes}
    assert ranks["worker-3"] == 3
    assert ranks["parameter_server-0"] is None


def test_the_job_on_kubernetes_has_an_instance_for_each_worker() -> None:
    request = job(
        role("parameter_server", 2, resources=Resources(cores=1)),
        role("worker", 4, resources=Resources(gpus=4)),
    )
    task = task_for(request, facts())
    assert task.nodes == 4
    assert task.notes == ("4 instances: num_replicas of worker",)
    assert task.resources == Resources(cores=2, gpus=16)
    assert [process.node for process in task.processes] == [0, 1, 2, 3, 0, 1]


def test_replicas_go_to_the_nodes_in_turn() -> None:
    task = task_for(job(role("worker", 5), role("chief", 1), instance_count=2), facts())
    assert [(process.name, process.node) for process in task.processes] == [
        ("chief-0", 0),
        ("worker-0", 1),
        ("worker-1", 0),
        ("worker-2", 1),
        ("worker-3", 0),
        ("worker-4", 1),
    ]
    assert [process.rank for process in task.processes] == list(range(6))


def test_workers_without_a_number_are_one_on_each_instance() -> None:
    task = task_for(job(role("worker"), instance_count=3), facts())
    assert len(task.processes) == 3


def test_an_evaluator_is_no_part_of_the_cluster_and_not_waited_for() -> None:
    task = task_for(job(role("worker", 1), role("evaluator"), instance_count=1), facts())
    evaluator = task.processes[-1]
    assert evaluator.name == "evaluator-0"
    assert not evaluator.is_awaited
    assert evaluator.is_vital
    assert configuration(task, "evaluator-0") == {
        "cluster": {"worker": [address("worker-0", 0)]},
        "task": {"type": "evaluator", "index": 0},
    }


@pytest.mark.parametrize(
    ("roles", "success", "awaited"),
    [
        (("chief", "worker"), None, {"chief-0", "worker-0"}),
        (("chief", "worker"), "chief", {"chief-0"}),
        (("chief", "worker", "parameter_server"), None, {"chief-0"}),
        (("chief", "worker", "parameter_server"), "all", {"chief-0", "worker-0"}),
        (("worker", "parameter_server"), "chief", {"worker-0"}),
    ],
)
def test_processes_that_decide_success_are_awaited(
    roles: tuple[str, ...], success: Any, awaited: set[str]
) -> None:
    request = job(*(role(name, 1) for name in roles), instance_count=1, success=success)
    task = task_for(request, facts())
    assert {process.name for process in task.processes if process.is_awaited} == awaited


def test_a_note_says_when_the_chief_alone_decides() -> None:
    request = job(role("chief", 1), role("worker", 1), role("parameter_server", 1))
    assert task_for(request, facts()).notes == (
        "1 instance: num_replicas of worker",
        "success: chief: workers of a chief with parameter servers never end",
    )


@pytest.mark.parametrize(
    "request_",
    [
        job(role("parameter_server", 2)),
        job(role("worker", 10**9)),
        job(role("worker", 10**9), instance_count=1),
        job(role("worker", None), instance_count=9000),
        job(role("worker", 0)),
    ],
)
def test_jobs_that_cannot_be_are_errors(request_: JobRequest) -> None:
    with pytest.raises(InputError):
        task_for(request_, facts())
