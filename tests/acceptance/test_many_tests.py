"""Thousands of communicators, one after the other: an MPI has far fewer than that at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.acceptance.conftest import require
from tests.acceptance.harness import Project
from tests.lengths import part

# One in ten is on one rank: its communicator is made and freed in another way.
SUITE = """
    import os
    import pytest

    TENTH = int(os.environ["TESTS"]) // 10

    @pytest.mark.parallel(2)
    @pytest.mark.parametrize("number", range(9 * TENTH))
    def test_two(comm, number, seen):
        seen.append(comm.py2f())
        assert comm.size == 2

    @pytest.mark.parametrize("number", range(TENTH))
    def test_one(comm, number, seen):
        seen.append(comm.py2f())
        assert comm.size == 1
"""

# A communicator's number in Fortran is its place in MPI's table, which is used again once free.
CONFTEST = """
    import json
    import os
    from pathlib import Path
    import pytest

    NUMBERS = []

    @pytest.fixture
    def seen():
        return NUMBERS

    def pytest_sessionfinish():
        rank = os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK"))
        found = {"tests": len(NUMBERS), "communicators": len(set(NUMBERS))}
        Path(f"rank-{rank}.json").write_text(json.dumps(found))
"""


@pytest.mark.parametrize(
    ("mpi", "scheduler", "tests"),
    [
        ("mpich", "sequential", part(200, 10_000)),
        ("mpich", "static", part(200, 10_000)),
        ("mpich", "dynamic", part(2_200, 10_000)),
        ("openmpi5", "dynamic", part(200, 10_000)),
    ],
)
def test_thousands_of_tests_pass_and_leave_no_communicators_behind(
    tmp_path: Path, mpi: str, scheduler: str, tests: int
) -> None:
    project = Project(tmp_path, require(mpi))
    project.write({"test_many.py": SUITE, "conftest.py": CONFTEST})
    outcome = project.pytest(
        *("-p", "no:randomly", "-q", f"--scheduler={scheduler}"),
        ranks=2,
        limit=280.0,
        environment={"TESTS": str(tests)},
    )
    assert outcome.exit_code == pytest.ExitCode.OK, outcome
    assert f"{tests} passed" in outcome.output, outcome
    assert len(outcome.verdicts) == tests
    ranks = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2)]
    assert sum(rank["tests"] for rank in ranks) == tests + 9 * tests // 10
    assert all(rank["communicators"] < 100 for rank in ranks), ranks


def test_ever_new_groups_of_ranks_leave_no_communicators_behind(
    tmp_path: Path,
) -> None:
    """Which ranks run a test together depends on who is free, and so on how long tests take."""
    project = Project(tmp_path, require("mpich"))
    suite = """
        import time
        import pytest

        @pytest.mark.parallel([2, 3, 4, 5])
        @pytest.mark.parametrize("number", range(250))
        def test_it(comm, number, seen):
            seen.append(comm.py2f())
            assert comm.allreduce(1) == comm.size
            time.sleep(number * 7919 % 13 / 2000)
    """
    project.write({"test_groups.py": suite, "conftest.py": CONFTEST})
    outcome = project.pytest("-p", "no:randomly", "-q", "--scheduler=dynamic", ranks=9, limit=200.0)
    assert outcome.exit_code == pytest.ExitCode.OK, outcome
    assert "1000 passed" in outcome.output, outcome
    ranks = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(9)]
    assert sum(rank["tests"] for rank in ranks) == 250 * (2 + 3 + 4 + 5)
    assert all(rank["communicators"] < 400 for rank in ranks), ranks
