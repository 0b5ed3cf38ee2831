"""The example that every user of pytest_parallel knows."""

from __future__ import annotations

import pytest

from tests.acceptance.harness import Project

EXAMPLE = """
    import pytest_parallel

    @pytest_parallel.mark.parallel(2)
    def test_A(comm):
      if comm.rank == 1: assert False

    def test_B():
      assert True

    @pytest_parallel.mark.parallel(3)
    def test_C(comm):
      assert comm.size == 3

    def test_D():
      assert False
"""


def test_four_ranks_give_the_same_verdicts_with_every_mpi_and_scheduler(
    project_on_each_mpi: Project, scheduler: str
) -> None:
    project_on_each_mpi.write({"test_example.py": EXAMPLE})
    outcome = project_on_each_mpi.pytest(f"--scheduler={scheduler}", ranks=4)
    assert outcome.exit_code == pytest.ExitCode.TESTS_FAILED, outcome
    assert outcome.verdicts == {
        "test_A": "failed",
        "test_B": "passed",
        "test_C": "passed",
        "test_D": "failed",
    }
    assert "rank 1 of 2" in outcome.output, outcome
    assert ">     if comm.rank == 1: assert False" in outcome.output, outcome
    assert "rank 0" not in outcome.output, outcome
    assert f"4 ranks, {_NAMES[project_on_each_mpi.mpi.name]}" in outcome.output, outcome


_NAMES = {
    "mpich": "MPICH",
    "openmpi4": "Open MPI 4",
    "openmpi5": "Open MPI 5",
    "debian-openmpi": "Open MPI 4",
    "impi": "Intel MPI",
}


def test_one_rank_skips_what_is_too_large_with_every_mpi_and_scheduler(
    project_on_each_mpi: Project, scheduler: str
) -> None:
    project_on_each_mpi.write({"test_example.py": EXAMPLE})
    outcome = project_on_each_mpi.pytest(f"--scheduler={scheduler}", "-rs", ranks=1)
    assert outcome.exit_code == pytest.ExitCode.TESTS_FAILED, outcome
    assert outcome.verdicts == {
        "test_A": "skipped",
        "test_B": "passed",
        "test_C": "skipped",
        "test_D": "failed",
    }
    assert "needs 2 ranks, has 1" in outcome.output, outcome
    assert "needs 3 ranks, has 1" in outcome.output, outcome
