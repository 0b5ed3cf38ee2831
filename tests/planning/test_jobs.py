"""Plans of jobs: computes, runtimes, folders of code, and the MPI of this machine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rankwise.documents.load import starter
from rankwise.errors import InputError
from rankwise.plan import Resources
from rankwise.planning import plan_from

_JOB = """\
type: MpiJob
launcher:
  spec:
    command: mpirun -np 2 python train.py
    environment: azureml:pytorch-1.7:1
    code:
      path: ./source
compute:
  target: gpu-cluster
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "source").mkdir()
    (tmp_path / "job.yaml").write_text(_JOB)
    return tmp_path / "job.yaml"


def test_strict_errors_name_the_place_in_the_document(job: Path) -> None:
    with pytest.raises(InputError) as found:
        plan_from([job], strict=True)
    compute, runtime = str(found.value).splitlines()
    assert compute.startswith(f'{job}:9:11: compute "gpu-cluster" is not in')
    assert runtime.startswith(f'{job}:5:18: runtime "azureml:pytorch-1.7:1" is not in')


@pytest.mark.parametrize("target", ["gpu-clutser", "nothing-like-it"])
def test_a_compute_beside_those_that_the_site_file_has_is_a_mistake(job: Path, target: str) -> None:
    (job.parent / "rankwise.toml").write_text('[compute.gpu-cluster]\nbackend = "local"\n')
    job.write_text(_JOB.replace("gpu-cluster", target))
    with pytest.raises(InputError) as found:
        plan_from([job])
    said = str(found.value)
    assert said.startswith(f'{job}:9:11: compute "{target}" is not in ')
    assert 'there are "gpu-cluster" and "local"' in said
    assert ('did you mean "gpu-cluster"?' in said) == (target == "gpu-clutser")


def test_this_machine_does_not_stand_in_for_its_own_name_misspelt(job: Path) -> None:
    job.write_text(_JOB.replace("gpu-cluster", "localq"))
    with pytest.raises(
        InputError, match=r'job.yaml:9:11: compute "localq" .* did you mean "local"'
    ):
        plan_from([job])


def test_a_misspelt_runtime_is_a_mistake_and_not_the_current_python(job: Path) -> None:
    site = '[compute.gpu-cluster]\nbackend = "local"\n[runtime."azureml:pytorch-1.8:1"]\ncurrent = true\n'
    (job.parent / "rankwise.toml").write_text(site)
    with pytest.raises(
        InputError, match=r'job.yaml:5:18: runtime "azureml:pytorch-1.7:1" .* did you'
    ):
        plan_from([job])


def test_a_misspelt_name_on_the_command_line_is_said_to_be_there(job: Path) -> None:
    (job.parent / "rankwise.toml").write_text('[compute.gpu-cluster]\nbackend = "local"\n')
    with pytest.raises(InputError, match=r'^--on gpu-clutser: compute "gpu-clutser" is not in'):
        plan_from([job], on="gpu-clutser")


@pytest.mark.parametrize(
    "text",
    [
        _JOB.partition("compute:")[0],
        "type: command\ncommand: hostname\n",
        "type: Sweep\ncommand: hostname\nparameters: {a: [1]}\n",
        "type: Suite\ntests: [hostname]\n",
        "type: Pipeline\nstages: {a: {run: hostname}}\n",
    ],
)
def test_a_document_without_a_compute_runs_on_that_of_the_defaults(job: Path, text: str) -> None:
    site = '[compute.here]\nbackend = "local"\n[defaults]\ncompute = "here"\n'
    (job.parent / "rankwise.toml").write_text(site)
    job.write_text(text)
    assert {task.compute for task in plan_from([job])[0].tasks} == {"here"}
    (job.parent / "rankwise.toml").unlink()
    assert {task.compute for task in plan_from([job])[0].tasks} == {"local"}


def test_a_compute_that_a_stage_takes_from_its_matrix_is_looked_up_too(job: Path) -> None:
    (job.parent / "rankwise.toml").write_text('[compute.gpu-cluster]\nbackend = "local"\n')
    job.write_text(
        "type: Pipeline\nstages:\n  a:\n    run: hostname\n    on: ${{matrix.where}}\n"
        "    matrix: {where: [gpu-cluster, gpu-clutser]}\n"
    )
    with pytest.raises(InputError, match=r'job.yaml:5:9: compute "gpu-clutser" is not in'):
        plan_from([job])


def test_a_missing_folder_of_code_is_found_before_anything_runs(job: Path) -> None:
    (job.parent / "source").rmdir()
    with pytest.raises(InputError) as found:
        plan_from([job])
    source = job.parent / "source"
    assert str(found.value) == f"{job}:7:13: the code folder does not exist: {source}"
    source.touch()
    with pytest.raises(InputError, match="is a file, not a folder"):
        plan_from([job])


def test_a_success_that_the_launcher_decides_is_in_the_plan(job: Path) -> None:
    plan, _ = plan_from([job])
    assert not plan.tasks[0].processes[0].speaks_for_ranks
    job.write_text(_JOB + "success: launcher\n")
    plan, _ = plan_from([job])
    assert plan.tasks[0].processes[0].speaks_for_ranks


def test_the_workers_of_an_mpi_job_are_its_nodes(job: Path) -> None:
    job.write_text(f"{_JOB}worker: {{num_replicas: 2}}\n")
    (task,) = plan_from([job])[0].tasks
    assert (task.nodes, task.width) == (2, 2)


def test_outputs_may_be_written_with_blanks_around_their_names(job: Path) -> None:
    job.write_text(
        "type: command\ncommand: run ${{ outputs.model }} ${{outputs.model}}\noutputs: {model: {path: m}}\n"
    )
    (task,) = plan_from([job])[0].tasks
    assert task.processes[0].command == f"run {job.parent}/m {job.parent}/m"


@pytest.mark.parametrize(
    "text",
    [
        "type: Pipeline\nworkspace: ~nosuchuser/work\nstages: {a: x}\n",
        "type: Pipeline\nstages: {a: {deploy: {from: x, to: ~nosuchuser/y}}}\n",
        "type: Matrix\nruntimes: {a: {python: ~nosuchuser/bin/python}}\ntests: [echo]\n",
    ],
)
def test_the_home_of_a_user_who_is_not_there_is_a_folder_of_that_name(job: Path, text: str) -> None:
    job.write_text(text)
    assert plan_from([job])[0].tasks


@pytest.mark.parametrize(
    "text",
    [
        "type: Suite\nfolder: NAME\ntests: [x]\n",
        "type: Suite\ntests: [NAME.py]\n",
        "type: command\ncommand: x\ncode: NAME\n",
        "type: Matrix\nruntimes: {a: current}\ntests: [NAME.ipynb]\n",
    ],
)
def test_a_file_that_cannot_be_looked_at_is_a_mistake_of_the_document(job: Path, text: str) -> None:
    job.write_text(text.replace("NAME", 300 * "a"))
    # From Python 3.14 on, pathlib takes it for one that is not there.
    with pytest.raises(InputError, match=rf"^{job}.*aaa"):
        plan_from([job])


# What is said of the MPI that a job would find

REMEDY = 'pip install "rankwise[mpi]"'


def notices(folder: Path, name: str) -> str:
    path = folder / "first.yaml"
    path.write_text(starter(name))
    plan, _ = plan_from([path])
    return "\n".join(plan.notices)


@pytest.mark.parametrize("name", ["MpiJob", "Sweep", "PytorchJob"])
def test_the_extra_that_brings_an_mpi_is_named_where_there_is_none(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = tmp_path / "bin"
    bare.mkdir()
    monkeypatch.setattr("sys.executable", str(bare / "python"))
    monkeypatch.setenv("PATH", str(bare))
    assert (REMEDY in notices(tmp_path, name)) == (name != "PytorchJob")
    mpirun = bare / "mpirun"
    mpirun.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 5.0.0'\n")
    mpirun.chmod(0o755)
    assert REMEDY not in notices(tmp_path, name)


_SERVERS = """\
type: TensorflowJob
worker:
  num_replicas: 2
  spec:
    command: python train.py
    code: ./source
    environment: a
    resource_limits: {memory: 1Gi}
parameter_server:
  spec:
    command: python serve.py
    ADDED
"""
_BOTH = '[runtime.a]\ncurrent = true\n[runtime.b]\nrequirements = ["x"]\n'


def test_a_role_that_names_no_environment_and_no_code_has_those_of_the_others(job: Path) -> None:
    (job.parent / "rankwise.toml").write_text(_BOTH + '[defaults]\nruntime = "b"\n')
    job.write_text(_SERVERS.replace("ADDED", ""))
    (task,) = plan_from([job])[0].tasks
    assert task.runtime.name == "a"
    assert {(one.runtime, one.code) for one in task.processes} == {(None, "")}


def test_a_role_may_have_an_environment_and_code_of_its_own(job: Path) -> None:
    (job.parent / "rankwise.toml").write_text(_BOTH)
    (job.parent / "other").mkdir()
    job.write_text(_SERVERS.replace("ADDED", "environment: b\n    code: ./other"))
    (task,) = plan_from([job])[0].tasks
    own = [(one.runtime.name if one.runtime else "", one.code) for one in task.processes]
    assert own == [("", ""), ("", ""), ("b", str(job.parent / "other"))]


def test_the_ranks_of_an_mpi_job_have_the_environment_of_their_launcher(job: Path) -> None:
    (job.parent / "rankwise.toml").write_text(_BOTH)
    job.write_text(_JOB.replace("azureml:pytorch-1.7:1", "a") + "worker: {spec: {environment: b}}")
    with pytest.raises(InputError, match=r"job.yaml:10:30: the ranks of an MPI job run in the env"):
        plan_from([job])


@pytest.mark.parametrize(
    ("site", "how"),
    [
        ('[compute.here]\nbackend = "local"\n', "a cgroup of each replica|an rlimit for"),
        ('[compute.here]\nbackend = "slurm"\n', "an rlimit for the memory of each process"),
        ('[compute.here]\nbackend = "ssh"\nhosts = ["a"]\n', "if the machine there allows it"),
        ('[compute.here]\nbackend = "local"\nenforce_limits = false\n', ""),
        ('[compute.here]\nbackend = "kubernetes"\nimage = "x"\n', ""),
    ],
)
def test_the_plan_says_how_limits_are_enforced(job: Path, site: str, how: str) -> None:
    (job.parent / "rankwise.toml").write_text(site)
    job.write_text(_SERVERS.replace("ADDED", "") + "compute: {target: here}\n")
    (task,) = plan_from([job])[0].tasks
    told = [note for note in task.notes if note.startswith("limits: ")]
    assert len(told) == bool(how)
    assert all(re.search(how, note) for note in told)
    limits = {process.limits for process in task.processes}
    assert limits == ({Resources(), Resources(memory=1 << 30)} if how else {None})
