from __future__ import annotations

import pytest

from rankwise.launch.jobs import task_for
from rankwise.plan import Resources
from tests.launch.samples import (
    MASTER,
    PORT,
    RANK,
    TORCH_LAUNCH,
    command_of,
    environment_of,
    facts,
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
