"""Tests on the nodes of a real Slurm: every kind of scheduler, MPI and option."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from cluster import Cluster

from tests.acceptance.awkward import TWO_TESTS, awkward_project, folder_of_length
from tests.acceptance.conftest import require
from tests.acceptance.harness import Project
from tests.acceptance.inner import run_pytest
from tests.acceptance.leftovers import short_folder
from tests.seeds.sentences import sentence
from tests.slurm.inner_suites import NOTE, jobs_of, notes_of, run_slurm, wait_for

SUITE = """
import os
import pytest, rankwise
from notes import note

def where(name, comm=None):
    rank = comm.rank if comm is not None else 0
    place = [os.environ[n] for n in ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURMD_NODENAME")]
    note(name, rank, *place, os.getpid())

@pytest.mark.parametrize("number", range(4))
@rankwise.mark.parallel(2)
def test_two(comm, number):
    assert comm.allreduce(1) == 2
    where(f"two{number}", comm)

@rankwise.mark.parallel(6)
def test_six(comm):
    assert comm.allreduce(1) == 6
    where("six", comm)

def test_one():
    where("one")

@rankwise.mark.parallel(2)
def test_failing(comm):
    print("said by", comm.rank)
    assert comm.rank == 0
"""
COUNTS = {"passed": 6, "failed": 1}


def make_project(folder: Path, mpi: str = "mpich") -> Project:
    made = Project(folder, require(mpi))
    made.write({"notes.py": NOTE, "test_suite.py": SUITE})
    return made


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return make_project(tmp_path)


def places(project: Project) -> dict[str, list[list[str]]]:
    """Return where each rank of each test was: job, step, node, process."""
    found: dict[str, list[list[str]]] = {}
    for line in notes_of(project):
        name, _, *place = line.split()
        found.setdefault(name, []).append(place)
    return found


@sentence(
    "pytest_parallel",
    ran="pytest --n-workers=6 --scheduler=slurm",
    said="To each test corresponds a job step, launched with srun.",
)
def test_every_test_is_a_step_of_its_own(project: Project, slurm: Cluster) -> None:
    outcome = run_slurm(project, slurm, workers=6)
    assert outcome.counts() == COUNTS, outcome
    assert outcome.exit_code == 1
    assert "scheduler slurm, policy dynamic" in outcome.output
    assert "said by 1" in outcome.output
    found = places(project)
    steps = [{place[1] for place in ranks} for ranks in found.values()]
    assert all(len(one) == 1 for one in steps)
    assert len(set.union(*steps)) == len(found) == 6
    assert len({place[2] for place in found["six"]}) == 2
    (job,) = {place[0] for ranks in found.values() for place in ranks}
    assert f"job {job} (submitted)" in outcome.output
    assert "NumTasks=6" in slurm.run("scontrol", "show", "job", job)


def test_a_pool_uses_its_ranks_again(project: Project, slurm_with_accounting: Cluster) -> None:
    outcome = run_slurm(project, slurm_with_accounting, scheduler="slurm-pool", workers=6)
    assert outcome.counts() == COUNTS, outcome
    found = places(project)
    assert len({place[1] for ranks in found.values() for place in ranks}) == 1
    used = {place[3] for ranks in found.values() for place in ranks}
    assert used == {place[3] for place in found["six"]}


@pytest.mark.parametrize("scheduler", ["slurm", "slurm-pool"])
def test_open_mpi_talks_to_slurm_by_pmix(tmp_path: Path, slurm: Cluster, scheduler: str) -> None:
    project = make_project(tmp_path, "debian-openmpi")
    # Nodes that are one machine would take each other's shared memory for their own.
    network = {"OMPI_MCA_btl": "tcp,self"}
    outcome = run_slurm(project, slurm, scheduler=scheduler, workers=6, environment=network)
    assert outcome.counts() == COUNTS, outcome


@pytest.mark.parametrize("scheduler", ["slurm", "slurm-pool"])
def test_an_allocation_that_is_there_is_used(
    project: Project, slurm_with_accounting: Cluster, scheduler: str
) -> None:
    variables = shlex.join(
        f"{name}={value}"
        for name, value in {
            "PYTHONPATH": str(project.folder),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "RANKWISE_TEST_RECORD": str(project.folder / ".salloc"),
        }.items()
    )
    line = f"env {variables} {project.mpi.python} -m pytest -p rankwise -p rankwise_test_recorder"
    salloc = ["salloc", "--ntasks=6", "bash", "-c", f"{line} --scheduler={scheduler}; true"]
    outcome = project.run(salloc, environment=slurm_with_accounting.variables)
    assert "1 failed, 6 passed" in outcome.output, outcome
    (job,) = {place[0] for ranks in places(project).values() for place in ranks}
    assert f"Granted job allocation {job}" in outcome.errors
    assert f"job {job} (found)" in outcome.output
    assert jobs_of(slurm_with_accounting, project) == []


@sentence(
    "pytest_parallel",
    ran="pytest --scheduler=slurm --no-slurm-export-env",
    said="--slurm-export-env: should the job use the environment of the terminal?",
)
def test_the_job_has_the_environment_that_was_asked_for(project: Project, slurm: Cluster) -> None:
    project.write(
        {
            "test_suite.py": """
            import os
            from notes import note

            def test_environment():
                note(*(os.environ.get(name, "-") for name in ("OF_TERMINAL", "OF_COMMANDS", "OF_FILE")))
            """,
            "env.sh": "export OF_COMMANDS=sourced\n",
            "job.sh": "#!/bin/bash\n#SBATCH --comment=mine\nexport OF_FILE=filed\n",
        }
    )
    terminal = {"OF_TERMINAL": "typed"}
    commands = f"--slurm-additional-cmds=source {project.folder}/env.sh"
    outcome = run_slurm(project, slurm, commands, workers=1, environment=terminal)
    assert outcome.exit_code == 0, outcome
    # A login has no variables of ours, so the tests are found in another way.
    usual = f"PYTHONPATH={project.folder} RANKWISE_TEST_RECORD={project.folder}/.record"
    found = f"--slurm-init-cmds=export {usual} PYTEST_DISABLE_PLUGIN_AUTOLOAD=1"
    outcome = run_slurm(
        project,
        slurm,
        *("--no-slurm-export-env", f"--slurm-file={project.folder}/job.sh", found),
        workers=1,
        scheduler="slurm-pool",
        environment=terminal,
    )
    assert outcome.exit_code == 0, outcome
    assert notes_of(project) == ["typed sourced -", "- - filed"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--slurm-options=--ntasks=4"], "the number of tasks is that of --n-workers, because"),
        (["--slurm-options=-n4 --time=1"], "'-n4' in --slurm-options"),
        (["--slurm-file=job.sh"], "'--ntasks=3' in job.sh"),
        (["--slurm-options=--array=1-3"], "one allocation"),
        (["--slurm-options=--qos='x"], "cannot be read"),
        (["--slurm-file=nowhere.sh"], "nowhere.sh"),
        (["--slurm-options=--partition=none"], "invalid partition"),
        (["--slurm-srun-options=--mem-per-cpu=4GBb"], "Invalid --mem-per-cpu specification"),
    ],
)
def test_options_that_cannot_be_are_refused_with_the_reason(
    project: Project, slurm: Cluster, arguments: list[str], words: str
) -> None:
    project.write({"job.sh": "#!/bin/bash\n#SBATCH --ntasks=3\n"})
    outcome = run_slurm(project, slurm, *arguments)
    assert outcome.exit_code == 4, outcome
    assert words in outcome.errors, outcome
    assert "Traceback" not in outcome.errors


def test_a_job_that_waits_says_why_and_not_for_ever(project: Project, slurm: Cluster) -> None:
    outcome = run_slurm(project, slurm, "--slurm-options=--partition=closed", "--slurm-wait=1")
    assert outcome.exit_code == 4, outcome
    assert re.search(r"rankwise: job \d+ waits: PartitionDown", outcome.output)
    assert "has not started within 1 s (--slurm-wait)" in outcome.errors


def test_ctrl_c_gives_the_allocation_back(project: Project, slurm: Cluster) -> None:
    project.write(
        {
            "test_suite.py": """
            import time
            from notes import sign

            def test_long():
                sign("running")
                time.sleep(60)
            """
        }
    )
    outcome = project.pytest(
        *("-p", "rankwise", "--scheduler=slurm", "--n-workers=2"),
        ranks=None,
        environment={**slurm.variables, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        interrupt_when=project.folder / "running",
    )
    assert outcome.exit_code == 2, outcome
    wait_for("the job to be gone", lambda: jobs_of(slurm, project) == [])


def test_a_detached_run_reports_into_a_file(project: Project, slurm: Cluster) -> None:
    outcome = run_pytest(
        project,
        *("--scheduler=slurm-pool", "--n-workers=6", "--detach", "--junitxml=report.xml"),
        ranks=None,
        environment=slurm.variables,
    )
    assert outcome.exit_code == 0, outcome
    said = re.search(r"job (\d+) runs the tests; its report will be in (.*)", outcome.output)
    assert said is not None, outcome
    wait_for("the job to be over", lambda: jobs_of(slurm, project) == [])
    report = Path(said[2]).read_text()
    assert "1 failed, 6 passed" in report
    assert f"job {said[1]} (found)" in report
    assert 'tests="7"' in (project.folder / "report.xml").read_text()


@pytest.mark.parametrize("source", ["file", "variable"])
def test_a_detached_run_does_not_detach_again_wherever_the_option_comes_from(
    tmp_path: Path, slurm: Cluster, source: str
) -> None:
    project = Project(tmp_path, require("mpich"))
    options = "--scheduler=slurm-pool --n-workers=2 --detach"
    project.write(
        {
            "pytest.ini": f"[pytest]\naddopts = {options if source == 'file' else ''}\n",
            # Jobs that submit jobs would never end.
            "conftest.py": """
                from pathlib import Path

                started = Path(__file__).with_name("started.txt")
                with started.open("a") as file:
                    file.write("x")
                assert len(started.read_text()) < 20
            """,
            "test_one.py": "def test_one(): pass",
        }
    )
    variables = {"PYTEST_ADDOPTS": options} if source == "variable" else {}
    words = ("test_one.py",) if source == "file" else ("--", "test_one.py")
    said = run_pytest(project, *words, ranks=None, environment={**slurm.variables, **variables})
    assert said.exit_code == 0, said
    wait_for("the job to be over", lambda: jobs_of(slurm, project) == [])
    (report,) = tmp_path.glob("pytest-*.out")
    assert "1 passed" in report.read_text()


@pytest.mark.parametrize("scheduler", ["slurm", "slurm-pool"])
def test_tests_run_on_nodes_where_names_of_folders_are_long_and_awkward(
    slurm: Cluster, scheduler: str
) -> None:
    with short_folder() as folder:
        project = awkward_project(folder)
        project.write(TWO_TESTS)
        variables = {"TMPDIR": str(folder_of_length(folder / "temporary", 200))}
        said = run_slurm(project, slurm, scheduler=scheduler, workers=2, environment=variables)
    assert said.exit_code == 0, said
    assert said.counts() == {"passed": 2}, said


def test_mpiexec_can_take_the_place_of_srun(project: Project, slurm: Cluster) -> None:
    outcome = run_slurm(project, slurm, "--no-use-srun", "--slurm-options=--nodes=1", workers=2)
    assert outcome.counts() == {"passed": 5, "failed": 1, "skipped": 1}, outcome
