"""`MPI.COMM_WORLD` in a test has the ranks of that test, whatever runs beside it or ran before."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.conftest import require
from tests.acceptance.harness import Outcome, Project
from tests.acceptance.inner import noted, run_pytest
from tests.acceptance.pools import run_pool
from tests.seeds.sentences import sentence

_TWO_UNMARKED = {
    "test_side_by_side.py": """
    from mpi4py.MPI import COMM_WORLD

    def test_a():
        assert COMM_WORLD.allreduce(1) == 3

    def test_b():
        assert COMM_WORLD.allreduce(2) == 3
    """
}

_SIZES = {
    "library.py": """
    from mpi4py import MPI
    from mpi4py.MPI import COMM_WORLD

    class Solver:
        comm = MPI.COMM_WORLD

        def __init__(self, comm=MPI.COMM_WORLD):
            self.own = comm

    def sizes():
        return {MPI.COMM_WORLD.size, COMM_WORLD.Get_size(), Solver.comm.size, Solver().own.size}

    def total(value):
        return COMM_WORLD.allreduce(value)
    """,
    "test_sizes.py": """
    import pickle

    import pytest
    from library import sizes, total
    from mpi4py import MPI

    @pytest.mark.parametrize("number", range(6))
    def test_alone(number):
        assert sizes() == {1}
        assert total(number) == number

    @pytest.mark.parallel(2)
    @pytest.mark.parametrize("number", range(6))
    def test_pair(comm, number):
        assert sizes() == {2}
        assert comm.rank == MPI.COMM_WORLD.rank
        assert total(10 ** number) == 2 * 10 ** number
        assert MPI.Comm.Compare(comm, MPI.COMM_WORLD) == MPI.CONGRUENT
        assert MPI.COMM_WORLD.Get_name() == "MPI_COMM_WORLD"
        assert MPI.COMM_WORLD.Get_attr(MPI.TAG_UB) >= 32767
        assert pickle.loads(pickle.dumps(MPI.COMM_WORLD)) is MPI.COMM_WORLD
        assert pickle.loads(pickle.dumps(MPI.Intracomm(MPI.COMM_WORLD))) == MPI.COMM_WORLD

    @pytest.mark.parallel(2)
    @pytest.mark.parametrize("number", range(3))
    def test_pair_without_comm(number):
        assert sizes() == {2}
        assert total(10 ** number) == 2 * 10 ** number

    @pytest.mark.parallel(4)
    def test_all(comm):
        assert sizes() == {4}
        assert total(comm.rank) == 6
    """,
}

_SIZE_AT_IMPORT = {
    "conftest.py": """
    from mpi4py import MPI

    SIZE = MPI.COMM_WORLD.Get_size()
    """,
    "test_imported.py": """
    import unittest
    import pytest
    from conftest import SIZE
    from mpi4py import MPI

    def test_sizes():
        assert SIZE == MPI.COMM_WORLD.Get_size() == 1

    @pytest.mark.skipif(MPI.COMM_WORLD.Get_size() < 2, reason="needs two")
    def test_pair():
        assert MPI.COMM_WORLD.allreduce(1) == 2

    @unittest.skipIf(MPI.COMM_WORLD.Get_size() < 2, "needs two")
    class TestPairs(unittest.TestCase):
        def test_two(self):
            assert MPI.COMM_WORLD.Get_size() == 2
    """,
}

# What one test leaves in its COMM_WORLD, and a later one that must not find it.
_LEFT_BEHIND = {
    "test_left_behind.py": """
    import pytest
    from mpi4py import MPI
    from mpi4py.MPI import COMM_WORLD

    def test_message_to_itself():
        COMM_WORLD.isend("left", dest=0, tag=3)

    @pytest.mark.parametrize("number", range(20))
    def test_no_message_from_itself(number):
        assert not COMM_WORLD.iprobe()

    @pytest.mark.parallel(2)
    @pytest.mark.parametrize("number", range(3))
    def test_message(number):
        if COMM_WORLD.rank == 0:
            COMM_WORLD.isend("left", dest=1, tag=3)
        COMM_WORLD.Barrier()

    @pytest.mark.parallel(2)
    @pytest.mark.parametrize("number", range(100))
    def test_no_message(number):
        if COMM_WORLD.rank == 0:
            COMM_WORLD.send(number, dest=1, tag=3)
        else:
            assert COMM_WORLD.recv(source=0) == number

    @pytest.mark.parallel(2)
    @pytest.mark.xfail(strict=True)
    def test_root_leaves_early():
        if COMM_WORLD.rank == 0:
            COMM_WORLD.bcast("stale", root=0)
        raise AssertionError

    @pytest.mark.parallel(2)
    @pytest.mark.parametrize("number", range(40))
    def test_broadcast(number):
        assert COMM_WORLD.bcast(number if COMM_WORLD.rank == 0 else None, root=0) == number

    @pytest.mark.parallel([1, 2])
    def test_handler_and_name():
        COMM_WORLD.Set_errhandler(MPI.ERRORS_ARE_FATAL)
        COMM_WORLD.Set_name("mine")

    @pytest.mark.parallel([1, 2])
    @pytest.mark.parametrize("number", range(20))
    def test_usual_handler_and_name(number):
        assert COMM_WORLD.Get_errhandler() == MPI.ERRORS_RETURN
        assert COMM_WORLD.Get_name() == "MPI_COMM_WORLD"

    @pytest.mark.parallel([1, 2])
    @pytest.mark.parametrize("how", ["Free", "Disconnect"])
    def test_frees_it(how):
        getattr(MPI.COMM_WORLD, how)()

    @pytest.mark.parallel([1, 2])
    @pytest.mark.parametrize("number", range(20))
    def test_not_freed(comm, number):
        assert MPI.COMM_WORLD.allreduce(1) == comm.size
    """
}

_FIXTURES = {
    "test_fixtures.py": """
    import pytest
    from ledger import note
    from mpi4py.MPI import COMM_WORLD

    @pytest.fixture(scope="session")
    def of_the_session():
        size = COMM_WORLD.size
        note(f"session up {size}")
        yield COMM_WORLD
        note(f"session down {size} {COMM_WORLD.allreduce(1)}")

    @pytest.fixture(scope="module")
    def of_the_module():
        size = COMM_WORLD.allreduce(1)
        note(f"module up {size}")
        yield COMM_WORLD
        note(f"module down {size} {COMM_WORLD.allreduce(1)}")

    @pytest.fixture
    def of_the_test(comm):
        assert COMM_WORLD.allreduce(1) == comm.size
        yield COMM_WORLD
        assert COMM_WORLD.allreduce(1) == comm.size

    @pytest.mark.parallel(2)
    def test_pair(of_the_session, of_the_module, of_the_test):
        assert of_the_session.size == of_the_module.size == of_the_test.size == 2

    @pytest.mark.parametrize("number", range(3))
    def test_alone(of_the_module, of_the_test, number):
        assert of_the_module.allreduce(1) == of_the_test.allreduce(1) == 1
    """,
    "test_late.py": """
    from mpi4py.MPI import COMM_WORLD

    def test_alone():
        assert COMM_WORLD.size == 1
    """,
    "conftest.py": """
    from mpi4py import MPI

    def pytest_sessionfinish(session):
        if MPI.Is_initialized():
            assert MPI.COMM_WORLD.size == 2
    """,
}


def test_imports_of_an_unmarked_suite_see_one_rank_as_in_plain_pytest(
    project_on_both: Project, temporary: Path
) -> None:
    project_on_both.write(_SIZE_AT_IMPORT)
    plain = run_pytest(project_on_both, ranks=None)
    assert plain.counts() == {"passed": 1, "skipped": 2}
    assert run_pool(project_on_both, temporary).counts() == plain.counts()


def test_unmarked_tests_do_not_answer_each_other(project_on_both: Project, temporary: Path) -> None:
    project_on_both.write(_TWO_UNMARKED)
    outcome = run_pool(project_on_both, temporary)
    assert outcome.verdicts == {"test_a": "failed", "test_b": "failed"}, outcome
    assert "assert 1 == 3" in outcome.output, outcome


@pytest.mark.parametrize("scheduler", ["sequential", "static", "dynamic"])
def test_comm_world_has_the_ranks_of_the_test_under_mpirun(
    project: Project, scheduler: str
) -> None:
    project.write(_SIZES)
    outcome = run_pytest(project, f"--scheduler={scheduler}", "--test-timeout=20", ranks=4)
    assert outcome.counts() == {"passed": 16}, outcome
    assert outcome.exit_code == 0, outcome


def test_comm_world_has_the_ranks_of_the_test(
    project_on_each_mpi: Project, temporary: Path
) -> None:
    project_on_each_mpi.write(_SIZES)
    outcome = run_pool(project_on_each_mpi, temporary, "--test-timeout=20", workers="4")
    assert outcome.counts() == {"passed": 16}, outcome
    assert outcome.exit_code == 0, outcome


@sentence(
    "pytest_parallel",
    ran="pytest --n-workers=… --world",
    said="Hybrid schedulers: processes are reused among tests of the same communicator size.",
)
def test_worlds_of_exact_size_keep_their_comm_world(project: Project, temporary: Path) -> None:
    project.write(_SIZES)
    outcome = run_pool(project, temporary, "--world", "--test-timeout=20", workers="4")
    assert outcome.counts() == {"passed": 16}, outcome


@pytest.mark.parametrize("options", [(), ("--world",)], ids=" ".join)
def test_what_a_test_leaves_in_comm_world_is_not_found_by_another(
    project_on_both: Project, temporary: Path, options: tuple[str, ...]
) -> None:
    project_on_both.write(_LEFT_BEHIND)
    outcome = run_pool(
        project_on_both, temporary, "--policy=sequential", "--test-timeout=20", *options
    )
    assert set(outcome.counts()) == {"passed", "xfailed"}, outcome
    assert outcome.exit_code == 0, outcome


def test_fixtures_see_the_same_comm_world_when_they_are_torn_down(
    project: Project, temporary: Path
) -> None:
    project.write(_FIXTURES)
    outcome = run_pool(project, temporary, "--policy=sequential", "--test-timeout=20")
    assert outcome.counts() == {"passed": 5}, outcome
    assert outcome.exit_code == 0, outcome
    lives = [f"{scope} {what}" for scope in ("module", "session") for what in ("down 2 2", "up 2")]
    assert sorted(noted(project)) == sorted(2 * lives), outcome


_C_CODE = {
    "test_c_code.py": """
    import ctypes

    import pytest
    from rankwise.launch.mpiexec import loaded_library

    # What the constant is in MPICH's mpi.h.
    MPI_COMM_WORLD = 0x44000000

    @pytest.mark.parallel(2)
    @pytest.mark.timeout(2)
    def test_c_code(comm):
        library = ctypes.CDLL(loaded_library())
        solve = library.MPI_Barrier
        solve(MPI_COMM_WORLD)
    """
}
_HINT = (
    "The test has 2 of the 3 ranks of its world. MPI.COMM_WORLD of mpi4py has the same 2,\n"
    "but C code that uses MPI_COMM_WORLD waits for all 3"
)


def test_a_hang_in_c_code_that_uses_the_whole_world_comes_with_a_hint(
    project: Project, temporary: Path
) -> None:
    project.write(_C_CODE)
    outcome = run_pool(project, temporary, workers="3")
    assert outcome.verdicts == {"test_c_code": "failed"}, outcome
    assert _HINT in outcome.output, outcome
    outcome = run_pool(project, temporary, "--world", workers="3")
    assert outcome.verdicts == {"test_c_code": "passed"}, outcome


def test_the_hint_is_there_under_mpirun_too(project: Project) -> None:
    project.write(_C_CODE)
    outcome = run_pytest(project, ranks=3)
    assert _HINT in outcome.errors, outcome


def test_a_repeated_test_has_a_fresh_comm_world(project: Project, temporary: Path) -> None:
    project.write(
        {
            "test_flaky.py": """
            import pytest
            from mpi4py.MPI import COMM_WORLD

            attempts = []

            @pytest.mark.parallel(2)
            def test_third_time_lucky():
                attempts.append(len(attempts))
                if COMM_WORLD.rank == 0:
                    COMM_WORLD.send(len(attempts), dest=1)
                else:
                    assert len(attempts) == 3
                    assert COMM_WORLD.recv(source=0) == 3
            """
        }
    )
    options = ("-p", "rerunfailures", "--reruns=3", "--test-timeout=20")
    outcome = run_pool(project, temporary, *options)
    assert "1 passed, 2 rerun" in outcome.output, outcome
    assert outcome.exit_code == 0, outcome


def test_abort_of_comm_world_ends_its_test_alone(project_on_both: Project, temporary: Path) -> None:
    project_on_both.write(
        {
            "test_abort.py": """
            import pytest
            from mpi4py.MPI import COMM_WORLD

            @pytest.mark.parallel(2)
            def test_abort():
                if COMM_WORLD.rank == 0:
                    COMM_WORLD.Abort(3)
                COMM_WORLD.Barrier()

            @pytest.mark.parallel([1, 2, 3])
            def test_beside(comm):
                assert COMM_WORLD.allreduce(1) == comm.size
            """
        }
    )
    outcome = run_pool(project_on_both, temporary, "--test-timeout=20", workers="3")
    assert outcome.counts() == {"failed": 1, "passed": 3}, outcome
    assert outcome.verdicts["test_abort"] == "failed", outcome


def test_the_leak_check_looks_at_the_comm_world_of_the_test(
    project: Project, temporary: Path
) -> None:
    project.write(
        {
            "test_leaks.py": """
            import pytest
            from mpi4py import MPI
            from mpi4py.MPI import COMM_WORLD

            @pytest.mark.parallel([1, 2])
            def test_message(comm):
                COMM_WORLD.isend("left", dest=comm.size - 1, tag=5)

            @pytest.mark.parallel([1, 2])
            def test_handler():
                COMM_WORLD.Set_errhandler(MPI.ERRORS_ARE_FATAL)

            @pytest.mark.parallel([1, 2])
            def test_communicator():
                MPI.COMM_WORLD.Dup()

            @pytest.mark.parallel([1, 2])
            def test_freed():
                COMM_WORLD.Free()

            @pytest.mark.parallel([1, 2])
            def test_clean(comm):
                assert MPI.COMM_WORLD.size == COMM_WORLD.size == comm.size
                MPI.COMM_WORLD.Dup().Free()
            """
        }
    )
    outcome = run_pool(project, temporary, "--leak-check", workers="3")
    found = {name for name, verdict in outcome.verdicts.items() if verdict != "passed"}
    leaks = ("message", "handler", "communicator")
    assert found == {f"test_{what}[{size}]" for what in leaks for size in (1, 2)}, outcome
    assert "with tag 5 on MPI.COMM_WORLD, never received" in outcome.output, outcome


# What a test leaves behind harms no other, and `--leak-check` names it

SUITE = {
    "test_leaks.py": """
        from mpi4py import MPI
        from rankwise import mark


        @mark.parallel(2)
        def test_message(comm):
            if comm.rank == 0:
                comm.send("left", dest=1, tag=7)


        @mark.parallel(2)
        def test_communicator(comm):
            comm.Dup()


        @mark.parallel(2)
        def test_handler(comm):
            MPI.COMM_WORLD.Set_errhandler(MPI.ERRORS_ARE_FATAL)


        @mark.parallel(2, world=True)
        def test_message_in_the_world(comm):
            if comm.rank == 0:
                MPI.COMM_WORLD.send("left", dest=1, tag=9)


        @mark.parallel(2, world=True)
        def test_orderly(comm):
            comm.Dup().Free()
            comm.Barrier()
            assert not MPI.COMM_WORLD.iprobe()
            assert not comm.iprobe()
            assert MPI.COMM_WORLD.Get_errhandler() != MPI.ERRORS_ARE_FATAL
    """
}
LEFT = {
    "test_message": "a message from rank 0 with tag 7 on comm, never received",
    "test_communicator": "a communicator from Dup, never freed",
    "test_handler": "another error handler on MPI.COMM_WORLD",
    "test_message_in_the_world": "a message from rank 0 with tag 9 on MPI.COMM_WORLD",
}


def test_what_tests_leave_behind_does_not_harm_later_tests(
    project_on_both: Project, temporary: Path, crew: str
) -> None:
    project_on_both.write(SUITE)
    options = (f"--scheduler={crew}", "--policy=sequential")
    outcome = run_pool(project_on_both, temporary, *options)
    assert outcome.counts() == {"passed": 5}, str(outcome)


def test_the_check_names_it(project_on_both: Project, temporary: Path, crew: str) -> None:
    project_on_both.write(SUITE)
    options = (f"--scheduler={crew}", "--policy=sequential", "--leak-check")
    outcome = run_pool(project_on_both, temporary, *options)
    expected = {**dict.fromkeys(LEFT, "error in teardown"), "test_orderly": "passed"}
    assert outcome.verdicts == expected, str(outcome)
    for left in LEFT.values():
        assert outcome.output.count(f"the test leaves behind: {left}") == 1, str(outcome)


def test_the_check_works_under_mpirun_too(project: Project) -> None:
    project.write(SUITE)
    outcome = run_pytest(project, "--leak-check", ranks=2)
    assert outcome.exit_code == pytest.ExitCode.TESTS_FAILED, str(outcome)
    for left in LEFT.values():
        assert f"the test leaves behind: {left}" in outcome.output, str(outcome)


# A missing or mismatched MPI is explained once, with the command that mends it

# Python loads it at its start from the project's folder: mpi4py is as good as not installed.
HIDE_MPI4PY = """
    import sys

    sys.modules["mpi4py"] = None
"""

TESTS = """
    import pytest


    def test_without_comm():
        pass


    @pytest.mark.parallel(1)
    def test_with_comm(comm):
        pass
"""

# Far more than any of these takes: what is refused must not hang.
LIMIT = 45.0


def check_refusal(outcome: Outcome, *parts: str) -> None:
    """Check that one rank has said all of this, that none ran a test, and that it is an error."""
    assert outcome.exit_code == pytest.ExitCode.USAGE_ERROR, str(outcome)
    assert outcome.reports == [], str(outcome)
    assert outcome.errors.count("ERROR: ") == 1, str(outcome)
    for part in parts:
        assert part in outcome.errors, str(outcome)
    assert "Traceback" not in outcome.errors, str(outcome)


def test_mpirun_without_mpi4py_says_how_to_install_it(project: Project) -> None:
    project.write({"test_some.py": TESTS, "sitecustomize.py": HIDE_MPI4PY})
    outcome = project.pytest(ranks=2, limit=LIMIT)
    check_refusal(outcome, "mpi4py is not installed", 'pip install "rankwise[mpi]"')


def test_mpi4py_without_a_library_says_how_to_install_one(project: Project) -> None:
    project.write({"test_some.py": TESTS})
    missing = str(project.folder / "libmpi.so.12")
    outcome = project.pytest(ranks=2, limit=LIMIT, environment={"MPI4PY_LIBMPI": missing})
    check_refusal(outcome, "finds no MPI library", missing, "pip install mpich")


@pytest.mark.parametrize(
    ("launcher", "library", "parts"),
    [
        ("mpich", "openmpi5", ("mpirun of MPICH or Intel", "mpi4py uses Open MPI 5")),
        ("openmpi5", "mpich", ("mpirun of Open MPI", "mpi4py uses MPICH")),
    ],
)
def test_the_mpirun_of_another_mpi_is_refused(
    tmp_path: Path, launcher: str, library: str, parts: tuple[str, ...]
) -> None:
    project = Project(tmp_path, require(library))
    project.write({"test_some.py": TESTS})
    outcome = project.run(
        [str(require(launcher).mpiexec), "-n", "2", str(project.mpi.python), "-m", "pytest"],
        limit=LIMIT,
    )
    check_refusal(outcome, *parts, "`which -a mpirun mpiexec`", "`pip install mpich`")


def test_without_mpirun_only_tests_with_comm_need_mpi4py(project: Project) -> None:
    project.write({"test_some.py": TESTS, "sitecustomize.py": HIDE_MPI4PY})
    outcome = project.pytest(ranks=None)
    assert outcome.exit_code == pytest.ExitCode.TESTS_FAILED, str(outcome)
    assert outcome.verdicts == {
        "test_without_comm": "passed",
        "test_with_comm": "error in setup",
    }, str(outcome)
    assert "mpi4py is not installed" in outcome.output, str(outcome)
    assert 'pip install "rankwise[mpi]"' in outcome.output, str(outcome)
    assert "mpi.py:" not in outcome.output, str(outcome)
