from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise.errors import InputError
from rankwise.launch.commandline import read_command
from rankwise.launch.jobs import (
    Counts,
    Facts,
    JobRequest,
    Kind,
    RoleRequest,
    counts,
    task_for,
    with_inputs,
)
from rankwise.launch.mpiexec import Family
from rankwise.plan import Resources, Restart, RuntimeChoice, body_of, task_of
from tests.launch.samples import (
    TORCH_LAUNCH,
    command_of,
    environment_of,
    facts,
    mpi_job,
    role,
    torch_job,
)
from tests.launch.test_commandline import FAMILIES, LINES

KINDS: tuple[Kind, ...] = ("mpi", "pytorch", "tensorflow", "plain")
COUNTS = st.none() | st.integers(-1, 4)
ROLES = st.builds(
    RoleRequest,
    name=st.sampled_from(["launcher", "worker", "chief", "parameter_server", "evaluator"]),
    replicas=COUNTS,
    command=LINES,
    resources=st.builds(Resources, cores=st.integers(0, 3), gpus=st.integers(0, 3)),
)
REQUESTS = st.builds(
    JobRequest,
    kind=st.sampled_from(KINDS),
    name=st.just("job"),
    roles=st.lists(ROLES, max_size=3, unique_by=lambda role: role.name).map(tuple),
    instance_count=COUNTS,
    process_count_per_instance=COUNTS,
    success=st.sampled_from([None, "all", "chief"]),
    generate_launcher=st.booleans(),
)


def test_a_task_goes_through_data_and_back() -> None:
    task = task_for(torch_job(TORCH_LAUNCH, instance_count=4), facts())
    assert task_of(body_of(task)) == task


def test_the_same_request_gives_the_same_task() -> None:
    request = torch_job(TORCH_LAUNCH, instance_count=4)
    assert task_for(request, facts()) == task_for(dataclasses.replace(request), facts())


def test_inputs_are_filled_in_before_anything_is_read() -> None:
    request = torch_job("torchrun --nproc-per-node ${{inputs.n}} a.py", inputs={"n": "3"})
    assert task_for(request, facts()).notes[0] == "3 processes per instance: --nproc_per_node 3"


@settings(deadline=None)
@given(REQUESTS, st.sampled_from(FAMILIES), st.integers(1, 4))
def test_any_request_gives_a_task_or_an_input_error(
    request: JobRequest, family: Family, cores: int
) -> None:
    try:
        task = task_for(request, Facts(cores=cores, mpi_family=family))
    except InputError:
        return
    names = [process.name for process in task.processes]
    assert len(set(names)) == len(names)
    assert any(process.is_awaited for process in task.processes)
    assert all(0 <= process.node < task.nodes for process in task.processes)


# assembly


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


def test_a_role_with_a_code_folder_of_its_own_works_there() -> None:
    kind: Kind = "tensorflow"
    roles = (role("chief", code="/a"), role("worker", code="/a"))
    servers = role("parameter_server", code="/b")
    task = task_for(JobRequest(kind=kind, name="j", roles=(*roles, servers)))
    assert task.code == "/a"
    assert [one.code for one in task.processes] == ["", "", "/b"]


def test_a_role_with_another_runtime_has_its_own_whatever_they_are_called() -> None:
    one = RuntimeChoice(name="azureml:a", kind="uv", python="3.11")
    same = RuntimeChoice(name="azureml:b", kind="uv", python="3.11")
    other = RuntimeChoice(name="azureml:c", kind="uv", python="3.12")
    roles = (role("chief", runtime=same), role("worker", runtime=one))
    servers = role("parameter_server", runtime=other)
    task = task_for(JobRequest(kind="tensorflow", name="j", roles=(*roles, servers)))
    assert task.runtime == one
    assert [process.runtime for process in task.processes] == [None, None, other]
    assert task_of(body_of(task)) == task


def test_limits_are_those_of_a_replica() -> None:
    amount = Resources(cores=2, memory=8 << 30, gpus=4)
    limit = Resources(cores=2, memory=8 << 30)
    task = task_for(torch_job("python a.py", worker=amount, is_limited=True))
    # Its ranks share what the replica may use, as they do in a pod.
    assert task.node_limits == limit
    assert {process.limits for process in task.processes} == {None}
    task = task_for(mpi_job("mpirun a", launcher=amount, worker=amount * 2, is_limited=True))
    assert (task.node_limits, task.processes[0].limits) == (limit * 2, limit)
    servers = role("parameter_server", resources=amount)
    request = JobRequest(
        kind="tensorflow", name="j", roles=(role("worker"), servers), is_limited=True
    )
    task = task_for(request)
    assert [process.limits for process in task.processes] == [Resources(), limit]
    assert task_of(body_of(task)) == task
    task = task_for(torch_job("python a.py", worker=amount))
    assert task.node_limits is None


def test_a_job_without_a_command_is_an_error() -> None:
    for request in (job(), job(role("worker", command=" "))):
        with pytest.raises(InputError, match="no role has a command"):
            task_for(request)


def test_variables_that_number_a_process_win_over_the_documents() -> None:
    request = JobRequest(
        kind="plain", name="j", roles=(role("worker"),), environment={"NODE_RANK": "9"}
    )
    task = task_for(request)
    assert environment_of(task) == {"NODE_RANK": "0"}
    assert task.notes == (
        "variables: NODE_RANK is set for each process: '9' of the document is not used",
    )


def test_shares_are_equal() -> None:
    assert Resources(cores=3, memory=10, gpus=4).share(4) == Resources(cores=0.75, memory=2, gpus=1)


# derive


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
def test_counts_are_derived_with_a_note(
    request_: JobRequest, instances: int, per_instance: int, notes: list[str]
) -> None:
    result = found(request_)
    assert (result.instances, result.per_instance) == (instances, per_instance)
    assert list(result.notes) == notes


def test_replicas_of_workers_are_instances() -> None:
    request = JobRequest(kind="pytorch", name="j", roles=(role("worker", 3),))
    assert found(request).instances == 3
    assert found(request).notes[0] == "3 instances: num_replicas of worker"


def test_a_note_says_that_there_are_more_processes_than_places() -> None:
    request = mpi_job("mpirun -np 16 ./a", instance_count=4, process_count_per_instance=2)
    assert found(request).notes == (
        "oversubscribed: -np 16 on 4 instances with 2 processes each is 8 more than there are places",
    )


def test_a_note_says_that_command_and_document_differ() -> None:
    request = torch_job("torchrun --nproc-per-node 4 a.py", process_count_per_instance=2)
    assert found(request).notes == (
        "process_count_per_instance is 2, but the command wants 4 on each node",
    )


def test_a_command_that_would_wait_for_more_nodes_is_an_error() -> None:
    request = torch_job("torchrun --nnodes 4 a.py", instance_count=2)
    with pytest.raises(InputError) as raised:
        found(request)
    assert str(raised.value) == (
        "sample-pytorch-job: the command waits for 4 nodes (--nnodes), and there are 2 instances: "
        "set `instance_count: 4` or --nnodes 2"
    )


def test_a_note_says_that_a_command_wants_fewer_nodes() -> None:
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


# inputs


def job_inputs(command: str, **inputs: str) -> JobRequest:
    return torch_job(command, inputs=inputs)


def filled(command: str, **inputs: str) -> str:
    return with_inputs(job_inputs(command, **inputs)).roles[0].command


def test_inputs_stand_in_commands() -> None:
    assert (
        filled("a --lr ${{inputs.lr}} ${{ inputs.data-set }}", **{"lr": "0.1", "data-set": "/d"})
        == "a --lr 0.1 /d"
    )


def test_inputs_stand_in_variables() -> None:
    role = RoleRequest(name="worker", command="a")
    request = JobRequest(
        kind="pytorch",
        name="j",
        roles=(role,),
        inputs={"lr": "1"},
        environment={"A": "x${{inputs.lr}}"},
    )
    assert with_inputs(request).environment == {"A": "x1"}


def test_an_unknown_input_is_named_with_the_nearest() -> None:
    with pytest.raises(InputError) as raised:
        filled("a ${{inputs.learning_rat}}", learning_rate="1", data="x")
    assert str(raised.value) == (
        "sample-pytorch-job: the command of worker: `${{inputs.learning_rat}}` is unknown: "
        "did you mean `learning_rate`?"
    )


def test_an_unknown_input_that_is_like_none_is_answered_with_all() -> None:
    with pytest.raises(InputError, match=r"there is `inputs\.data`, `inputs\.lr`"):
        filled("a ${{inputs.zzz}}", data="x", lr="1")
    with pytest.raises(InputError, match="add it under `inputs:`"):
        filled("a ${{inputs.zzz}}")


def test_all_unknown_references_are_reported_at_once() -> None:
    request = dataclasses.replace(
        job_inputs("a ${{inputs.x}} ${{outputs.y}}"), environment={"V": "${{inputs.z}}"}
    )
    with pytest.raises(InputError) as raised:
        with_inputs(request)
    assert len(str(raised.value).splitlines()) == 3
    assert "`${{outputs.y}}` is unknown: add it under `inputs:`" in str(raised.value)


def test_other_braces_are_the_shells() -> None:
    assert filled("a ${X} $((1+1)) {{b}}") == "a ${X} $((1+1)) {{b}}"


@settings(deadline=None)
@given(st.text(max_size=40))
def test_filling_in_is_idempotent_and_raises_nothing_but_input_errors(command: str) -> None:
    try:
        once = filled(command, x="1")
    except InputError:
        return
    assert filled(once, x="1") == once


# plain


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
