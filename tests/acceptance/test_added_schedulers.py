"""Schedulers of other packages, found by entry point."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.harness import Outcome, Project
from tests.acceptance.inner import run_pytest
from tests.acceptance.leftovers import wait_until_gone
from tests.acceptance.pools import run_pool
from tests.backends.places import wait_until
from tests.support.plugins import spool

# Not more than the contract: it knows of rankwise only what a scheduler is given.
BACKWARDS = """
    from rankwise.pytest_plugin.schedulers import Assignment


    class Backwards:
        \"\"\"One test at a time, the last one first.\"\"\"

        one_by_one = True

        def __init__(self, tests, *, width, pace, domains):
            assert len(domains) == width
            self.sizes = {test.index: test.size for test in tests}
            self.waiting = [test.index for test in tests]
            self.free = set()

        def release(self, ranks):
            self.free.update(ranks)

        def put_back(self, case):
            self.waiting.append(case)

        def take(self):
            if not self.waiting or len(self.free) < self.sizes[self.waiting[-1]]:
                return None
            case = self.waiting.pop()
            ranks = tuple(sorted(self.free)[: self.sizes[case]])
            self.free.difference_update(ranks)
            return Assignment(cases=(case,), ranks=ranks)


    class Forgetful(Backwards):
        def take(self):
            return super().take() if len(self.waiting) > 1 else None
"""

SUITE = """
    from rankwise import mark


    def test_first():
        pass


    @mark.parallel(2)
    def test_second(comm):
        assert comm.allreduce(1) == 2


    def test_third():
        assert False
"""

VERDICTS = {"test_first": "passed", "test_second": "passed", "test_third": "failed"}


@pytest.fixture
def project_with_schedulers(project: Project) -> Project:
    """A suite beside an installed package that has two schedulers."""
    project.write(
        {
            "queues.py": BACKWARDS,
            "queues-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: queues\nVersion: 1.0\n",
            "queues-1.0.dist-info/entry_points.txt": """
                [rankwise.schedulers]
                backwards = queues:Backwards
                forgetful = queues:Forgetful
            """,
            "test_suite.py": SUITE,
        }
    )
    return project


@pytest.mark.parametrize("option", ["--scheduler", "--policy"])
def test_an_added_scheduler_orders_the_tests_of_a_pool(
    project_with_schedulers: Project, temporary: Path, option: str
) -> None:
    outcome = run_pool(project_with_schedulers, temporary, "-v", f"{option}=backwards")
    assert outcome.verdicts == VERDICTS, str(outcome)
    assert outcome.exit_code == pytest.ExitCode.TESTS_FAILED, str(outcome)
    assert "scheduler pool, policy backwards" in outcome.output
    assert list(outcome.verdicts) == ["test_third", "test_second", "test_first"]


def test_an_added_scheduler_orders_the_tests_under_mpirun(project_with_schedulers: Project) -> None:
    outcome = project_with_schedulers.pytest("--scheduler=backwards", ranks=2)
    assert outcome.verdicts == VERDICTS, str(outcome)
    assert list(outcome.verdicts) == ["test_third", "test_second", "test_first"]


def test_a_run_fails_for_tests_that_a_scheduler_never_starts(
    project_with_schedulers: Project, temporary: Path
) -> None:
    outcome = run_pool(
        project_with_schedulers,
        temporary,
        *("--scheduler=forgetful", "--deselect=test_suite.py::test_third"),
    )
    assert outcome.exit_code == pytest.ExitCode.TESTS_FAILED, str(outcome)
    assert outcome.verdicts == {"test_second": "passed"}
    assert "test_suite.py::test_first" in outcome.output


def test_a_scheduler_that_is_not_installed_is_a_usage_error(
    project_with_schedulers: Project,
) -> None:
    outcome = project_with_schedulers.pytest("--scheduler=clever", ranks=None)
    assert outcome.exit_code == pytest.ExitCode.USAGE_ERROR, str(outcome)
    known = "sequential, static, dynamic, pool, shell, slurm, slurm-pool, batch, batch-pool"
    others = "other packages add backwards, forgetful"
    said = f"there is no scheduler `clever`; there are {known}; {others}"
    assert said in outcome.errors


# Tests in a job of a batch system that another package has added

BATCH_SCHEDULERS_SUITE = """
import os
import pytest, rankwise

@pytest.mark.parametrize("number", range(3))
@rankwise.mark.parallel(2)
def test_two(comm, number):
    assert comm.allreduce(1) == 2
    # All of it is in the job.
    assert os.environ["SPOOL_JOB"] == "1"

@rankwise.mark.parallel(1, exclusive="numa")
def test_one(comm):
    # The last of the cores, as the map says.
    assert os.sched_getaffinity(0) == {int(os.environ["LAST_CORE"])}

@rankwise.mark.parallel(2)
def test_failing(comm):
    print("said by", comm.rank)
    assert comm.rank == 0
"""
CRASH = """
import os
import rankwise

@rankwise.mark.parallel(2)
def test_crash(comm):
    os.kill(os.getpid(), 11)

@rankwise.mark.parallel(2)
def test_after(comm):
    assert comm.allreduce(1) == 2
"""


@pytest.fixture
def queue(project: Project, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Queue]:
    folder = tmp_path_factory.mktemp("batch")
    with spool(folder / "installed") as variables:
        site = f'[compute.it]\nbackend = "spool"\nfolder = "{folder}/spool"\n'
        project.write({"rankwise.toml": site})
        yield Queue(project, folder / "spool", variables)


class Queue:
    """The batch system of one test."""

    def __init__(self, project: Project, folder: Path, variables: dict[str, str]) -> None:
        self.project = project
        self.folder = folder
        self.variables = variables

    def run(self, *arguments: str) -> Outcome:
        """Run the project's tests there; afterwards nothing of the run is left."""
        outcome = run_pytest(
            self.project, *arguments, ranks=None, environment=self.variables, limit=100.0
        )
        wait_until_gone(self.project)
        wait_until("jobs are over", lambda: not self.states() & {"WAIT", "RUN"})
        return outcome

    def states(self) -> set[str]:
        return {file.read_text() for file in self.folder.glob("jobs/*/*.state")}


@pytest.mark.parametrize("scheduler", ["batch", "batch-pool"])
def test_tests_run_in_one_job_of_the_system(project: Project, queue: Queue, scheduler: str) -> None:
    project.write({"test_suite.py": BATCH_SCHEDULERS_SUITE})
    last = str(max(os.sched_getaffinity(0)))
    queue.variables = {**queue.variables, "LAST_CORE": last}
    bind = f"--bind=map:{','.join([last] * 4)}"
    outcome = queue.run(f"--scheduler={scheduler}", "--on=it", "--n-workers=4", bind)
    assert outcome.counts() == {"passed": 4, "failed": 1}, outcome
    assert outcome.exit_code == 1
    assert "said by 1" in outcome.output
    assert "job 1 (submitted)" in outcome.output
    assert queue.states() == {"DONE"}
    # Batch systems show the environment of a job to others: the secret of the run is not in it.
    [job] = queue.folder.glob("jobs/1/job.json")
    assert json.loads(job.read_text())["environment"]["RANKWISE_LINE"].startswith("/")
    assert list(project.folder.glob(".rankwise-*")) == []


def test_a_rank_that_crashes_ends_its_test_only(project: Project, queue: Queue) -> None:
    project.write({"test_suite.py": CRASH})
    outcome = queue.run("--scheduler=batch-pool", "--on=it", "--n-workers=2")
    assert outcome.counts() == {"passed": 1, "failed": 1}, outcome
    assert "SIGSEGV" in outcome.output


def test_a_job_that_cannot_start_the_tests_is_an_error(project: Project, queue: Queue) -> None:
    project.write({"test_suite.py": BATCH_SCHEDULERS_SUITE})
    site = project.folder / "rankwise.toml"
    site.write_text(site.read_text() + 'init = ["exit 3"]\n')
    outcome = queue.run("--scheduler=batch-pool", "--on=it", "--n-workers=2")
    assert "job 1 has failed (Spool says FAIL) before the tests could start" in outcome.errors
    assert outcome.exit_code not in (0, 5)


def test_a_client_that_is_killed_leaves_no_job_behind(project: Project, queue: Queue) -> None:
    line = "import pathlib, time; pathlib.Path('running').touch(); time.sleep(60)"
    project.write({"test_a.py": f"def test_long():\n    {line}\n"})
    path = os.pathsep.join([queue.variables["PYTHONPATH"], str(project.folder)])
    variables = {**os.environ, "PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [str(project.mpi.python), "-m", "pytest", "-p", "rankwise", "-p", "no:cacheprovider"]
    client = subprocess.Popen(
        [*command, "--scheduler=batch-pool", "--on=it", "--n-workers=2"],
        cwd=project.folder,
        env=variables,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until("the test runs", (project.folder / "running").exists, 60.0)
    finally:
        client.send_signal(signal.SIGKILL)
        client.wait()
    wait_until("the job is over", lambda: not queue.states() & {"WAIT", "RUN"})
    wait_until_gone(project)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--n-workers=2"], "needs --on=NAME"),
        (["--on=it"], "needs --n-workers=N"),
        (["--on=elsewhere", "--n-workers=2"], "has no batch system of this name"),
    ],
)
def test_what_is_missing_is_said(
    project: Project, queue: Queue, arguments: list[str], complaint: str
) -> None:
    project.write({"test_suite.py": BATCH_SCHEDULERS_SUITE})
    outcome = queue.run("--scheduler=batch", *arguments)
    assert complaint in outcome.output + outcome.errors
    assert outcome.exit_code == 4
