"""A suite that has none of our marks runs under mpirun as if rankwise were not installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.harness import Outcome, Project
from tests.acceptance.inner import read_ledger, run_pytest

SAYS_SO = "rankwise: no test has a mark of rankwise, so each of the 2 ranks runs every test"

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
    environment = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    (project.folder / "ledger.txt").unlink(missing_ok=True)
    return project.pytest(*arguments, ranks=2, environment=environment)


def test_every_rank_runs_every_test_as_without_rankwise(project_on_both: Project) -> None:
    project = project_on_both
    project.write({"conftest.py": CONFTEST, "test_it.py": UNMARKED})
    outcome = run_pytest(project, "-v", "-rs", ranks=2)
    found = sorted(read_ledger(project))
    reports = sorted(path.name for path in project.folder.glob("junit-*.xml"))
    for path in project.folder.glob("junit-*.xml"):
        path.unlink()
    usual = run_without(project, "-v", "-rs")
    assert found == sorted(read_ledger(project)), f"{outcome}\n{usual}"
    assert reports == sorted(path.name for path in project.folder.glob("junit-*.xml"))
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
    assert "rank 1 of 2: no test with a mark of rankwise was collected" in outcome.errors


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
        assert "no end after 2 s in call (time limit)" in said, outcome
        assert "The test has 1 of the 2 ranks of its world." in said, outcome
        assert "--world" in said, outcome
        assert "@rankwise.mark.parallel(n)" in said, outcome
