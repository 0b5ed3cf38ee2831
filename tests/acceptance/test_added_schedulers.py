"""Schedulers of other packages, found by entry point."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.harness import Project
from tests.acceptance.pools import run_pool

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
    known += ", backwards, forgetful"
    assert f"no scheduler has the name 'clever' (there are {known})" in outcome.errors
