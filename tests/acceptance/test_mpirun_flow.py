"""A rank that ends the run or just ends is never mistaken for success, nor waited for."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.acceptance.harness import Outcome, Project
from tests.acceptance.inner import read_ledger, run_pytest
from tests.acceptance.leftovers import check_that_nothing_is_left

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
            # To end takes longer than the grace for ranks that wait in a test.
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


# A rank that leaves a test before the others: what they are told, and how long they may go on

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


# A suite that has none of our marks runs under mpirun as if rankwise were not installed

SAYS_SO = "rankwise: no test has a rankwise mark, so each of the 2 ranks runs every test"

CONFTEST = """
    import pytest
    from ledger import RANK, note

    def pytest_configure(config):
        config.option.xmlpath = f"junit-{RANK}.xml"

    def pytest_runtest_logreport(report):
        note(f"{report.nodeid} {report.when} {report.outcome}")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(session, exitstatus):
        note(f"exit {int(exitstatus)}")

    @pytest.fixture(scope="session", autouse=True)
    def session_fixture():
        note("session begins")
        yield
        note("session ends")
"""
UNMARKED = """
    import gc
    import unittest
    import pytest
    from mpi4py import MPI
    from ledger import RANK, note

    world = MPI.COMM_WORLD
    KEPT = ["by this module"]

    def test_surroundings(request):
        note(f"a worker: {hasattr(request.config, 'workerinput')}")
        note(f"found: {any(one is globals() for one in gc.get_referrers(KEPT))}")
        note(f"frozen: {gc.get_freeze_count()}")

    def test_collective(tmp_path):
        assert world.allreduce(1) == 2
        assert world.bcast(str(tmp_path)) is not None

    @pytest.fixture
    def on_rank_0():
        if RANK:
            pytest.skip("not here")

    def test_on_rank_0(on_rank_0):
        pass

    @pytest.mark.skipif(RANK == 0, reason="not here")
    def test_fails_on_rank_1():
        assert RANK == 0

    @pytest.mark.parametrize("number", range(RANK + 1))
    def test_differs(number):
        pass

    def test_leaves_messages():
        world.isend("later", dest=1 - RANK, tag=3)

    def test_finds_messages():
        assert world.recv(source=1 - RANK, tag=3) == "later"

    class Test(unittest.TestCase):
        def test_barrier(self):
            world.Barrier()
"""


def run_without(project: Project, *arguments: str) -> Outcome:
    """Run the tests as if rankwise were not installed."""
    environment = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
    (project.folder / "ledger.txt").unlink(missing_ok=True)
    return project.pytest(*arguments, ranks=2, environment=environment)


def take_junit_files(project: Project) -> dict[str, list[tuple[str | None, list[str]]]]:
    """Return what each JUnit file says of each test, and remove the files."""
    found = {}
    for path in project.folder.glob("junit-*.xml"):
        cases = ElementTree.parse(path).iter("testcase")
        found[path.name] = [(one.get("name"), [child.tag for child in one]) for one in cases]
        path.unlink()
    return {name: sorted(cases) for name, cases in found.items()}


def test_every_rank_runs_every_test_as_without_rankwise(project_on_both: Project) -> None:
    project = project_on_both
    skipped = "import pytest\npytest.skip('not here', allow_module_level=True)\n"
    files = {"conftest.py": CONFTEST, "test_it.py": UNMARKED, "test_skipped.py": skipped}
    project.write(files)
    outcome = run_pytest(project, "-v", "-rs", ranks=2)
    found = sorted(read_ledger(project))
    reports = take_junit_files(project)
    usual = run_without(project, "-v", "-rs")
    assert found == sorted(read_ledger(project)), f"{outcome}\n{usual}"
    assert reports == take_junit_files(project)
    assert outcome.exit_code == usual.exit_code == pytest.ExitCode.TESTS_FAILED, outcome
    assert outcome.output.count(SAYS_SO) == 1, outcome
    for line in ("test session starts", "short test summary", "FAILED test_it.py", "not here"):
        assert outcome.output.count(line) == usual.output.count(line), f"{outcome}\n{usual}"


def test_collection_errors_and_no_tests_are_as_without_rankwise(project: Project) -> None:
    cases = (
        {"test_it.py": "raise ValueError('broken')"},
        {"test_it.py": "def test_it(): pass", "test_broken.py": "import nowhere"},
        {"test_it.py": "", "test_broken.py": ""},
    )
    for files in cases:
        project.write(files)
        outcome = run_pytest(project, ranks=2)
        usual = run_without(project)
        assert outcome.exit_code == usual.exit_code != 0, f"{outcome}\n{usual}"
        assert outcome.reports == usual.reports == [], f"{outcome}\n{usual}"


def test_an_option_of_rankwise_gives_each_test_to_one_rank(project: Project) -> None:
    project.write(
        {
            "test_it.py": """
            from ledger import note

            def test_it():
                note("ran")
            """
        }
    )
    for option in ("--scheduler=sequential", "--leak-check", "--test-timeout=60", "--nprocs=2"):
        outcome = run_pytest(project, option, ranks=2)
        assert outcome.exit_code == pytest.ExitCode.OK, outcome
        assert len(read_ledger(project)) == 1, outcome
        assert SAYS_SO not in outcome.output, outcome


def test_a_mark_on_a_test_that_is_not_selected_counts(project: Project) -> None:
    project.write(
        {
            "test_it.py": """
            import pytest
            from ledger import note

            def test_it():
                note("ran")

            @pytest.mark.parallel(2)
            def test_marked():
                pass
            """
        }
    )
    outcome = run_pytest(project, "-k", "test_it and not marked", ranks=2)
    assert outcome.exit_code == pytest.ExitCode.OK, outcome
    assert len(read_ledger(project)) == 1, outcome


def test_marks_on_one_rank_only_are_an_error(project: Project) -> None:
    project.write(
        {
            "test_it.py": """
            import pytest
            from ledger import RANK

            @pytest.mark.skipif(False, reason="") if RANK else pytest.mark.parallel(1)
            def test_it():
                pass
            """
        }
    )
    outcome = run_pytest(project, ranks=2)
    assert outcome.exit_code == pytest.ExitCode.USAGE_ERROR, outcome
    assert "rank 1 of 2: no test with a rankwise mark was collected" in outcome.errors


def test_without_mpi4py_only_marked_tests_are_refused(project: Project) -> None:
    project.write(
        {
            "mpi4py.py": "raise ImportError('not installed here')",
            "test_it.py": """
            from ledger import note

            def test_it():
                note("ran")
            """,
        }
    )
    outcome = run_pytest(project, ranks=2)
    assert outcome.exit_code == pytest.ExitCode.OK, outcome
    assert sorted(read_ledger(project)) == [(0, "ran"), (1, "ran")], outcome
    project.write({"test_it.py": "import pytest\n@pytest.mark.parallel(2)\ndef test_it(): pass"})
    outcome = run_pytest(project, ranks=2)
    assert outcome.exit_code == pytest.ExitCode.USAGE_ERROR, outcome
    assert outcome.errors.count("mpi4py") >= 1, outcome
    assert Path(project.folder / "ledger.txt").exists() is False


# What a library in C does: it knows only the constant.
IN_C = """
    import ctypes
    import pytest
    from mpi4py import MPI
    from rankwise.launch.mpiexec import loaded_library

    # What the constant is in MPICH's mpi.h.
    WORLD = 0x44000000
    solve = ctypes.CDLL(loaded_library()).MPI_Barrier

    @pytest.mark.parallel(2)
    def test_marked():
        assert solve(WORLD) == 0

    def test_unmarked():
        solve(WORLD)
"""


def test_a_hang_in_a_collective_of_an_unmarked_test_names_the_mark_and_the_option(
    project: Project,
) -> None:
    project.write({"test_it.py": IN_C})
    for arguments, ranks in ((["--n-workers=2"], None), ([], 2)):
        outcome = run_pytest(project, "--test-timeout=2", *arguments, ranks=ranks)
        assert outcome.exit_code != 0, outcome
        said = outcome.output + outcome.errors
        assert "exceeded its time limit of 2 s in call" in said, outcome
        assert "The test has 1 of the 2 ranks of its world." in said, outcome
        assert "--world" in said, outcome
        assert "@rankwise.mark.parallel(n)" in said, outcome
