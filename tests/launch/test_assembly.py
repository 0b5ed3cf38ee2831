from __future__ import annotations

import pytest

from rankwise.errors import InputError
from rankwise.launch.jobs import JobRequest, RoleRequest, share, task_for
from rankwise.plan import Resources, Restart, RuntimeChoice
from tests.launch.samples import environment_of, role


def job(*roles: RoleRequest) -> JobRequest:
    return JobRequest(kind="tensorflow", name="j", roles=roles)


def test_what_the_document_says_is_in_the_task() -> None:
    restart = Restart(most=2, on_exit_codes=(7,))
    task = task_for(
        JobRequest(
            kind="plain",
            name="j",
            key="prepare",
            roles=(role("worker", code="/p/src"),),
            environment={"A": "b"},
            secrets=("TOKEN",),
            timeout=60.0,
            restart=restart,
            compute="cluster",
            folder="/p",
            tags={"team": "x"},
        )
    )
    assert task.key == "prepare"
    assert (task.code, task.folder, task.compute) == ("/p/src", "/p", "cluster")
    assert (task.environment, task.secrets, task.tags) == ({"A": "b"}, ("TOKEN",), {"team": "x"})
    assert (task.timeout, task.restart) == (60.0, restart)


def test_all_roles_have_one_code_folder() -> None:
    task = task_for(job(role("worker"), role("parameter_server", code="/a")))
    assert task.code == "/a"
    with pytest.raises(InputError) as raised:
        task_for(job(role("worker", code="/b"), role("parameter_server", code="/a")))
    assert "parameter_server has /a, worker has /b" in str(raised.value)


def test_all_roles_have_one_runtime_whatever_it_is_called() -> None:
    one = RuntimeChoice(name="azureml:a", kind="uv", python="3.11")
    other = RuntimeChoice(name="azureml:b", kind="uv", python="3.11")
    different = RuntimeChoice(name="azureml:c", kind="uv", python="3.12")
    assert task_for(job(role("worker", runtime=one), role("chief", runtime=other))).runtime == one
    assert task_for(job(role("worker"), role("chief", runtime=other))).runtime == other
    with pytest.raises(InputError, match=r"`azureml:c`, `azureml:a`"):
        task_for(job(role("worker", runtime=one), role("chief", runtime=different)))


def test_a_job_without_a_command_is_an_error() -> None:
    for request in (job(), job(role("worker", command=" "))):
        with pytest.raises(InputError, match="no role has a command"):
            task_for(request)


def test_variables_that_say_who_a_process_is_win_and_that_is_told() -> None:
    request = JobRequest(
        kind="plain", name="j", roles=(role("worker"),), environment={"NODE_RANK": "9"}
    )
    task = task_for(request)
    assert environment_of(task) == {"NODE_RANK": "0"}
    assert task.notes == (
        "variables: NODE_RANK is set for each process: '9' of the document is not used",
    )


def test_shares_are_equal() -> None:
    assert share(Resources(cores=3, memory=10, gpus=4), 4) == Resources(
        cores=0.75, memory=2, gpus=1
    )
