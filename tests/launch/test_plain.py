from __future__ import annotations

from rankwise.launch.jobs import JobRequest, task_for
from rankwise.plan import Resources
from tests.launch.samples import command_of, environment_of, role


def test_a_plain_command_runs_once_on_each_instance() -> None:
    worker = role("main", command="echo NODE_RANK $NODE_RANK", resources=Resources(cores=2))
    task = task_for(JobRequest(kind="plain", name="j", roles=(worker,), instance_count=2))
    assert task.nodes == 2
    assert [process.name for process in task.processes] == ["main-0", "main-1"]
    assert [process.node for process in task.processes] == [0, 1]
    assert command_of(task, 1) == "echo 1 $NODE_RANK"
    assert environment_of(task, 1) == {"NODE_RANK": "1"}
    assert task.resources == Resources(cores=4)


def test_a_plain_command_that_says_nothing_runs_once() -> None:
    task = task_for(JobRequest(kind="plain", name="j", roles=(role("main"),)))
    assert len(task.processes) == 1
    assert task.notes == ()
