from __future__ import annotations

import dataclasses

from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise.errors import InputError
from rankwise.launch.jobs import Facts, JobRequest, Kind, RoleRequest, task_for
from rankwise.launch.mpiexec import Family
from rankwise.plan import Resources, task_from_data, to_data
from tests.launch.samples import TORCH_LAUNCH, facts, torch_job
from tests.launch.test_command import FAMILIES, LINES

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
    assert task_from_data(to_data(task)) == task


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
