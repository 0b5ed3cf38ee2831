"""A rank that leaves a test before the others: what they are told, and how long they may go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.harness import Outcome, Project
from tests.acceptance.inner import run_pytest
from tests.acceptance.leftovers import check_that_nothing_is_left

STARTS: dict[str, tuple[int | None, tuple[str, ...]]] = {
    "pool": (None, ("--n-workers=2",)),
    "mpirun": (2, ()),
}


def run(project: Project, temporary: Path, how: str, *words: str) -> Outcome:
    ranks, start = STARTS[how]
    environment = {"TMPDIR": str(temporary)}
    said = run_pytest(project, *start, *words, ranks=ranks, environment=environment)
    check_that_nothing_is_left(project, temporary)
    return said


@pytest.mark.parametrize("how", STARTS)
def test_a_failure_in_the_teardown_of_one_rank_ends_the_wait_of_the_others(
    project: Project, temporary: Path, how: str
) -> None:
    project.write(
        {
            "test_all.py": """
                import pytest

                @pytest.fixture
                def shared(comm):
                    yield
                    if comm.rank == 1:
                        raise ValueError("this is why")
                    comm.barrier()

                @pytest.mark.parallel(2)
                def test_two(shared):
                    pass
            """
        }
    )
    said = run(project, temporary, how, "--rank-grace=1", "--test-timeout=100")
    assert said.exit_code != 0, said
    shown = said.output + said.errors
    assert "rank 1 of 2 failed, and the others did not end within 1 s" in shown, said
    assert "ValueError: this is why" in shown, said
    if how == "pool":
        assert said.verdicts == {"test_two": "error in teardown"}, said


@pytest.mark.parametrize("how", STARTS)
def test_a_failed_attempt_does_not_limit_the_time_of_the_next_one(
    project: Project, temporary: Path, how: str
) -> None:
    project.write(
        {
            "test_all.py": """
                import time
                import pytest

                attempts = []

                @pytest.mark.flaky(reruns=1)
                @pytest.mark.parallel(2)
                def test_two(comm):
                    attempts.append(1)
                    if len(attempts) > 1:
                        time.sleep(2.5)
                    else:
                        assert comm.rank == 0
            """
        }
    )
    words = ("-p", "pytest_rerunfailures", "--rank-grace=1")
    said = run(project, temporary, how, *words)
    assert said.exit_code == 0, said
    assert "1 passed, 1 rerun" in said.output, said


def test_a_leak_is_not_blamed_on_the_test_after_one_whose_teardown_fails(
    project: Project, temporary: Path
) -> None:
    project.write(
        {
            "test_all.py": """
                import pytest

                @pytest.fixture
                def broken():
                    yield
                    raise ValueError("on all ranks")

                @pytest.mark.parallel(2)
                def test_a(comm, broken):
                    comm.Dup()

                @pytest.mark.parallel(2)
                def test_b(comm):
                    pass
            """
        }
    )
    said = run(project, temporary, "pool", "--leak-check", "--policy=sequential")
    assert said.verdicts == {"test_a": "error in teardown", "test_b": "passed"}, said


@pytest.mark.parametrize("how", STARTS)
def test_a_time_limit_for_all_new_sockets_does_not_count_for_those_of_the_run(
    project: Project, temporary: Path, how: str
) -> None:
    project.write(
        {
            "impatient.py": "import socket\nsocket.setdefaulttimeout(0.001)",
            "test_all.py": """
                import time
                import pytest

                @pytest.mark.parallel(2)
                def test_two(comm):
                    time.sleep(0.2)
                    assert comm.allreduce(1) == 2
            """,
        }
    )
    said = run(project, temporary, how, "-p", "impatient")
    assert said.exit_code == 0, said
    assert said.verdicts == {"test_two": "passed"}, said
