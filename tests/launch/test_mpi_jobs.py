from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rankwise.errors import InputError
from rankwise.launch.jobs import JobRequest, task_for
from rankwise.launch.mpi_jobs import mpi_variables
from rankwise.launch.mpiexec import Family
from rankwise.plan import Resources, RuntimeChoice, Task, show
from tests.launch.samples import (
    HOROVODRUN,
    HOSTFILE,
    MPIRUN,
    MPIRUN_OF_KUBERNETES,
    RANK,
    command_of,
    environment_of,
    facts,
    mpi_job,
    role,
)

SLOTS = "".join(f"<host of node {node}> slots=4\n" for node in range(4))
COLONS = "".join(f"<host of node {node}>:4\n" for node in range(4))
REPEATED = "".join(f"<host of node {node}>\n" * 4 for node in range(4))


@pytest.mark.parametrize(
    ("family", "options", "hosts"),
    [
        (
            "openmpi4",
            "-bind-to none -map-by slot -x NCCL_DEBUG=INFO -x LD_LIBRARY_PATH -x PATH -mca pml ob1 -mca btl ^openib",
            SLOTS,
        ),
        (
            "openmpi5",
            "--bind-to none --map-by slot -x NCCL_DEBUG=INFO -x LD_LIBRARY_PATH -x PATH -mca pml ob1 -mca btl ^openib",
            SLOTS,
        ),
        ("mpich", "-bind-to none -genv NCCL_DEBUG=INFO", COLONS),
        ("intel", "-bind-to none -map-by slot -genv NCCL_DEBUG=INFO", COLONS),
        (
            "unknown",
            "--bind-to none --map-by slot -x NCCL_DEBUG=INFO -x LD_LIBRARY_PATH -x PATH -mca pml ob1 -mca btl ^openib",
            REPEATED,
        ),
    ],
)
def test_the_mpi_job_of_the_documents_is_planned(family: Family, options: str, hosts: str) -> None:
    task = task_for(mpi_job(MPIRUN, instance_count=4), facts(family))
    assert (
        command_of(task)
        == f"mpirun -np 16 --hostfile '{HOSTFILE}' {options} {RANK} python train.py"
    )
    assert {name: show(text) for name, text in task.files.items()} == {"hostfile": hosts}
    assert environment_of(task) == {
        "AZUREML_MPI_HOSTFILE": HOSTFILE,
        "RANKWISE_HOSTFILE": HOSTFILE,
        "RANKWISE_RANK_OUTPUT": "own",
    }
    assert task.notes[0] == "4 processes per instance: -np 16 over 4 instances"
    assert task.notes[-1] == "words: `AZUREML_MPI_HOSTFILE` in the command replaced by the value"


def test_there_is_one_launcher_on_the_first_of_all_nodes() -> None:
    task = task_for(mpi_job(MPIRUN, instance_count=4), facts())
    assert task.nodes == 4
    assert task.code == "/p/src"
    (launcher,) = task.processes
    assert (launcher.name, launcher.role, launcher.node) == ("launcher-0", "launcher", 0)
    assert launcher.rank is None
    assert launcher.is_awaited
    assert launcher.is_vital


def test_horovodrun_has_the_file_of_hosts_that_it_reads_with_every_mpi() -> None:
    task = task_for(mpi_job(HOROVODRUN, instance_count=4), facts("mpich"))
    assert command_of(task) == f"horovodrun -np 16 --hostfile '{HOSTFILE}' {RANK} python train.py"
    assert show(task.files["hostfile"]) == SLOTS


def test_the_mpi_job_on_kubernetes_is_planned() -> None:
    request = mpi_job(
        MPIRUN_OF_KUBERNETES,
        launcher=Resources(cores=1, memory=2 << 30),
        worker=Resources(gpus=4),
    )
    task = task_for(request, facts("openmpi4"))
    assert task.nodes == 4
    assert task.notes == (
        "4 instances: -np 16 with 4 GPUs each",
        "4 processes per instance: -np 16 over 4 instances",
    )
    assert command_of(task) == MPIRUN_OF_KUBERNETES.replace("python", f"{RANK} python")
    assert task.resources == Resources(cores=1, memory=2 << 30, gpus=16)
    assert task.processes[0].resources == Resources(cores=1, memory=2 << 30)


def test_ranks_of_another_environment_than_their_mpirun_are_refused_but_in_pods() -> None:
    request = mpi_job(MPIRUN, instance_count=2)
    worker = replace(
        request.roles[1], runtime=RuntimeChoice(name="b", kind="uv"), place="job.yaml:9:18"
    )
    request = replace(request, roles=(request.roles[0], worker))
    with pytest.raises(InputError) as refused:
        task_for(request, facts())
    said = str(refused.value)
    assert said.startswith("job.yaml:9:18: the ranks of an MPI job run in the environment of the ")
    assert "not `b`; name the same `environment` in each role, or run the job on Kub" in said
    task = task_for(request, replace(facts(), has_pods=True))
    assert task.runtime == worker.runtime
    assert [process.runtime for process in task.processes] == [RuntimeChoice()]


def test_a_job_without_limits_claims_nothing() -> None:
    task = task_for(mpi_job(MPIRUN, instance_count=4), facts())
    assert task.resources == Resources()


@pytest.mark.parametrize("family", ["openmpi4", "openmpi5", "mpich", "intel"])
def test_lines_without_a_file_of_hosts_find_it_by_a_variable(family: Family) -> None:
    variables = mpi_variables(family, {})
    assert HOSTFILE in map(show, variables.values())
    named = mpi_variables(family, {}, names_hosts=True)
    assert HOSTFILE not in map(show, named.values())


@pytest.mark.parametrize("family", ["openmpi4", "openmpi5", "mpich", "intel"])
def test_nodes_are_reached_by_a_program_of_ours(family: Family) -> None:
    variables = mpi_variables(family, {})
    assert "<folder of the attempt>/bin/rankwise-node" in map(show, variables.values())


def test_for_an_unknown_mpi_there_are_the_variables_of_all() -> None:
    unknown = mpi_variables("unknown", {})
    for family in ("openmpi4", "openmpi5", "mpich", "intel"):
        assert mpi_variables(family, {}).items() <= unknown.items()


def test_root_may_start_open_mpi_with_more_ranks_than_cores() -> None:
    variables = mpi_variables("openmpi4", {})
    assert variables["OMPI_ALLOW_RUN_AS_ROOT"] == "1"
    assert variables["OMPI_MCA_rmaps_base_oversubscribe"] == "1"
    assert variables["OMPI_MCA_hwloc_base_binding_policy"] == "none"


def test_the_variables_of_the_document_go_before_ours() -> None:
    request = mpi_job(MPIRUN, instance_count=1, environment={"OMPI_MCA_btl": "tcp,self"})
    assert task_for(request, facts()).environment["OMPI_MCA_btl"] == "tcp,self"


def test_counts_may_stand_in_variables_of_the_document() -> None:
    request = mpi_job("mpirun -np $N ./a", instance_count=2, environment={"N": "6"})
    assert task_for(request, facts()).notes[0] == "3 processes per instance: -np 6 over 2 instances"


def generated(command: str) -> str:
    worker = role("worker", command=command)
    request = JobRequest(
        kind="mpi",
        name="j",
        roles=(worker,),
        instance_count=2,
        process_count_per_instance=2,
        generate_launcher=True,
    )
    return command_of(task_for(request, facts()))


def test_the_mpiexec_of_a_plain_program_is_written() -> None:
    start = f"mpiexec -n 4 --hostfile '{HOSTFILE}' {RANK}"
    assert generated("python train.py --a 'b c'") == f"{start} python train.py --a 'b c'"


@pytest.mark.parametrize(
    "command",
    [
        "cd x && python a.py",
        "python a.py $RANK",
        "python a.py > log",
        "A=b python a.py",
        "exec ./a",
        "a < b",
        "a # b",
    ],
)
def test_what_a_shell_must_do_for_a_program_it_does_on_every_rank(command: str) -> None:
    assert generated(command) == f"mpiexec -n 4 --hostfile '{HOSTFILE}' {RANK} sh -c '{command}'"


def test_quotes_within_a_line_for_every_rank_stay_quotes() -> None:
    assert generated("a 'b' $C").endswith("sh -c 'a '\"'\"'b'\"'\"' $C'")


def test_no_mpiexec_is_written_before_another() -> None:
    assert generated("mpirun -np 2 ./a") == f"mpirun -np 2 {RANK} ./a"
    assert generated("mpirun ./a; mpirun ./b") == "mpirun ./a; mpirun ./b"


def test_a_lone_role_claims_for_each_instance() -> None:
    request = JobRequest(
        kind="mpi",
        name="j",
        roles=(role("worker", command="mpirun -np 4 ./a", resources=Resources(gpus=2)),),
        instance_count=2,
    )
    assert task_for(request, facts()).resources == Resources(gpus=4)


def test_a_script_that_starts_mpirun_itself_stays_as_it_is() -> None:
    task = task_for(mpi_job("./start.sh AZUREML_MPI_HOSTFILE", instance_count=2), facts())
    assert command_of(task) == f"./start.sh '{HOSTFILE}'"
    assert "RANKWISE_RANK_OUTPUT" not in task.processes[0].environment
    assert any(note.startswith("ranks: `./start.sh") for note in task.notes)


def test_a_note_names_a_command_that_is_not_used() -> None:
    roles = (role("launcher", command="mpirun -np 2 ./a"), role("worker", command="sshd"))
    task = task_for(JobRequest(kind="mpi", name="j", roles=roles, instance_count=1), facts())
    assert "the command of worker is not used: that of launcher is" in task.notes


BOX = RuntimeChoice(name="box", kind="container", image="mpi:1")


def in_box(command: str, **more: Any) -> Task:
    request = replace(mpi_job(command), **more)
    roles = tuple(replace(one, runtime=BOX) for one in request.roles)
    on_nodes = replace(facts("unknown"), has_machines=True, srun_plugin="pmix")
    return task_for(replace(request, roles=roles), on_nodes)


def test_in_a_container_the_mpirun_of_the_image_starts_all_ranks_on_one_node() -> None:
    task = in_box("mpirun -np 4 python train.py", instance_count=1)
    assert command_of(task) == f"mpirun -np 4 {RANK} python $RANKWISE_MPI4PY train.py"
    assert "srun: in a container, the image's own mpirun starts the ranks" in task.notes
    assert task.notes[-1].endswith("none waits for ever: if the image has mpi4py")


def test_ranks_in_containers_on_several_nodes_of_a_cluster_are_refused() -> None:
    with pytest.raises(InputError, match="there are 2 instances: set `instance_count: 1` and more"):
        in_box("mpirun -np 4 python train.py", instance_count=2)
