"""A rank that ends the run or just ends is never mistaken for success, nor waited for."""

from __future__ import annotations

import pytest

from tests.acceptance.harness import Project
from tests.acceptance.inner import run_pytest

# A run that waits for the time limit of a test, which is 600 s, is over this.
LIMIT_SECONDS = 120


ENDS = {
    "pytest.exit": ("pytest.exit('enough', 7)", 7, "enough"),
    "KeyboardInterrupt": ("raise KeyboardInterrupt", 2, "test_it.py:8"),
    "SIGINT": ("signal.raise_signal(signal.SIGINT)", 2, "test_it.py:8"),
}


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("ranks", [None, 2], ids=["pool", "mpirun"])
def test_a_rank_that_ends_the_run_is_not_waited_for(
    project: Project, how: str, rank: int, ranks: int | None
) -> None:
    end, exit_code, said = ENDS[how]
    check_end(project, f"if comm.rank == {rank}: {end}", exit_code, said, ranks)


def test_a_rank_that_ends_the_run_is_not_waited_for_with_another_mpi(
    project_on_both: Project,
) -> None:
    check_end(project_on_both, "if comm.rank == 1: pytest.exit('enough', 7)", 7, "enough")


def check_end(
    project: Project, line: str, exit_code: int, said: str, ranks: int | None = 2
) -> None:
    project.write(
        {
            "test_it.py": f"""
            import signal
            import pytest
            import rankwise

            @rankwise.mark.parallel(2)
            def test_end(comm):
                comm.barrier()
                {line}
                comm.barrier()

            @rankwise.mark.parallel(2)
            def test_after(comm): pass
            """
        }
    )
    words = ("--rank-grace=1", *(() if ranks else ("--n-workers=2", "--policy=sequential")))
    outcome = run_pytest(project, *words, ranks=ranks, limit=LIMIT_SECONDS)
    # Where rank 0 hangs, MPICH's mpiexec kills it, and at times has the exit code of that.
    killed = {9} if ranks and project.mpi.name == "mpich" else set()
    assert outcome.exit_code in {exit_code, *killed}, str(outcome)
    assert said in outcome.output + outcome.errors, str(outcome)
    assert "test_after" not in outcome.verdicts, str(outcome)


IN_TEST = """
    import os
    import rankwise

    def test_first():
        assert os.getpid() == 0, "not this one"

    @rankwise.mark.parallel(2)
    def test_end(comm):
        comm.barrier()
        if comm.rank == {rank}: os._exit(0)

    @rankwise.mark.parallel(2)
    def test_after(comm): pass
"""
IN_COLLECTIVE = IN_TEST.replace("os._exit(0)", "os._exit(0)\n        comm.barrier()")
IN_FIXTURE = """
    import os
    import pytest
    import rankwise
    from ledger import RANK

    @pytest.fixture(scope="session")
    def ending():
        yield
        if RANK == {rank}: os._exit(0)

    @rankwise.mark.parallel(2)
    def test_end(comm, ending): pass
"""


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    "suite", [IN_TEST, IN_COLLECTIVE, IN_FIXTURE], ids=["test", "collective", "session fixture"]
)
def test_a_rank_that_ends_without_a_word_fails_the_run_and_its_test_is_named(
    project: Project, suite: str, rank: int
) -> None:
    project.write({"test_it.py": suite.format(rank=rank)})
    outcome = run_pytest(project, "--rank-grace=1", ranks=2, limit=LIMIT_SECONDS)
    assert outcome.exit_code != pytest.ExitCode.OK, str(outcome)
    assert "test_it.py::test_end" in outcome.output + outcome.errors, str(outcome)
    if suite is not IN_FIXTURE:
        assert "not this one" in outcome.output + outcome.errors, str(outcome)


@pytest.mark.parametrize(
    ("end", "exit_code", "said"),
    [("pytest.exit('enough', 7)", 7, "enough"), ("raise KeyboardInterrupt", 2, "test_it.py:10")],
)
def test_a_rank_that_ends_the_run_after_the_last_test_is_heard(
    project: Project, end: str, exit_code: int, said: str
) -> None:
    project.write(
        {
            # To end takes longer than the grace for those who wait in a test.
            "conftest.py": """
                import time
                from ledger import RANK

                def pytest_sessionfinish():
                    time.sleep(2 * RANK)
            """,
            "test_it.py": f"""
                import time
                import pytest
                import rankwise
                from ledger import RANK

                @pytest.fixture(scope="session")
                def ending():
                    yield
                    time.sleep(RANK)
                    if RANK == 1: {end}

                @rankwise.mark.parallel(2)
                def test_end(comm, ending): pass
            """,
        }
    )
    outcome = run_pytest(project, "--rank-grace=0.5", ranks=2, limit=LIMIT_SECONDS)
    assert outcome.exit_code == exit_code, str(outcome)
    assert said in outcome.output, str(outcome)
    assert "(rank 1)" in outcome.output, str(outcome)


NO_ROOM = """
    import os, tempfile

    def no_room(*_, **__):
        raise OSError(28, "No space left on device")

    if os.environ["PMI_RANK"] == "0":
        tempfile.mkdtemp = no_room
"""
NO_WAY = """
    import os
    from rankwise.pytest_plugin.connections import Address

    def no_way(*_, **__):
        raise TimeoutError("timed out")

    if os.environ["PMI_RANK"] == "1":
        Address.connect = no_way
"""


@pytest.mark.parametrize(
    ("obstacle", "said"),
    [
        (NO_ROOM, "rank 0 cannot be called by the others: [Errno 28] No space left on device"),
        (NO_WAY, "rank 1 cannot reach rank 0: timed out"),
    ],
    ids=["no room", "no way"],
)
def test_ranks_that_cannot_reach_each_other_say_so_and_end(
    project: Project, obstacle: str, said: str
) -> None:
    project.write(
        {
            "obstacle.py": obstacle,
            "test_it.py": """
                import rankwise

                @rankwise.mark.parallel(2)
                def test_pair(comm): pass
            """,
        }
    )
    outcome = run_pytest(project, "-p", "obstacle", ranks=2, limit=LIMIT_SECONDS)
    assert outcome.exit_code == pytest.ExitCode.USAGE_ERROR, str(outcome)
    assert said in outcome.errors, str(outcome)
    assert "Traceback" not in outcome.errors, str(outcome)
