"""Marks that no decorator gives: hooks of conftests and plugins add, replace and remove them."""

from __future__ import annotations

import pytest

from tests.acceptance.harness import Project
from tests.acceptance.inner import run_pytest

# Each test asserts the size that it has after all hooks.
SUITE = {
    "conftest.py": """
        import pytest

        def pytest_itemcollected(item):
            if "itemcollected" in item.name:
                item.add_marker(pytest.mark.parallel(2))

        def pytest_pycollect_makeitem(collector, name, obj):
            if name == "test_made":
                obj.pytestmark = [pytest.mark.parallel(2)]

        def pytest_collection_modifyitems(items):
            for item in items:
                if "modified" in item.name:
                    item.add_marker(pytest.mark.parallel(2))
                if "too_large" in item.name:
                    item.add_marker("parallel")
                if "replaced" in item.name:
                    item.add_marker(pytest.mark.parallel(1), append=False)
                if "removed" in item.name:
                    item.own_markers[:] = [m for m in item.own_markers if m.name != "parallel"]
    """,
    "test_top.py": """
        import unittest
        import pytest

        def test_itemcollected(comm):
            assert comm.allreduce(1) == 2

        def test_made(comm):
            assert comm.allreduce(1) == 2

        def test_modified(comm, mpi_ranks):
            assert comm.allreduce(1) == mpi_ranks == 2

        def test_too_large(comm):
            assert comm.size == 3

        @pytest.mark.parallel(2)
        def test_replaced(comm):
            assert comm.size == 1

        @pytest.mark.parallel([1, 2])
        def test_list_replaced(comm, mpi_ranks):
            assert comm.size == mpi_ranks == 1

        @pytest.mark.parallel(2)
        def test_removed(comm):
            assert comm.size == 1

        class Test(unittest.TestCase):
            def test_modified(self):
                from mpi4py import MPI
                assert MPI.COMM_WORLD.size == 2
    """,
    "below/conftest.py": """
        import pytest

        @pytest.hookimpl(trylast=True)
        def pytest_collection_modifyitems(items):
            for item in items:
                if "below" in item.name:
                    item.add_marker(pytest.mark.mpi(ranks=2))

        @pytest.hookimpl(wrapper=True)
        def pytest_collection(session):
            return (yield)
    """,
    "below/test_below.py": """
        def test_below(comm):
            assert comm.allreduce(1) == 2
    """,
}
PASSED = (
    *("test_itemcollected", "test_made", "test_modified", "test_replaced", "test_removed"),
    *("test_list_replaced[1]", "test_list_replaced[2]", "Test::test_modified", "test_below"),
)


@pytest.mark.parametrize("how", ["pool", "shell", "mpirun"])
def test_marks_of_every_hook_of_the_collection_count(project: Project, how: str) -> None:
    project.write(SUITE)
    if how == "mpirun":
        outcome = run_pytest(project, "-rs", ranks=2)
    else:
        outcome = run_pytest(project, "-rs", "--n-workers=2", f"--scheduler={how}", ranks=None)
    assert outcome.verdicts == {**dict.fromkeys(PASSED, "passed"), "test_too_large": "skipped"}, (
        outcome
    )
    assert "needs 3 ranks, has 2" in outcome.output, outcome


def test_marks_that_a_conftest_adds_select_tests_by_size(project: Project) -> None:
    project.write(SUITE)
    outcome = run_pytest(
        project, "--strict-markers", "-m", "parallel[2]", "--n-workers=2", ranks=None
    )
    expected = {"test_itemcollected", "test_made", "test_modified", "Test::test_modified"}
    # pytest has selected before it calls hooks that want to be last.
    assert set(outcome.verdicts) == expected, outcome
    assert outcome.exit_code == pytest.ExitCode.OK, outcome


def test_a_list_that_comes_too_late_to_make_tests_of_it_is_an_error(project: Project) -> None:
    project.write(
        {
            "conftest.py": """
            import pytest

            def pytest_collection_modifyitems(items):
                for item in items:
                    item.add_marker(pytest.mark.parallel([1, 2]))
            """,
            "test_it.py": "def test_it(): pass",
        }
    )
    for arguments, ranks in ((["--n-workers=2"], None), ([], 2)):
        outcome = run_pytest(project, *arguments, ranks=ranks)
        assert outcome.exit_code == pytest.ExitCode.USAGE_ERROR, outcome
        assert "test_it.py::test_it: @mark.parallel([1, 2])" in outcome.errors, outcome
        assert "give one number" in outcome.errors, outcome


def test_a_mark_that_is_added_when_tests_run_fails_the_test(project: Project) -> None:
    project.write(
        {
            "conftest.py": """
            import pytest

            def pytest_runtest_setup(item):
                if "hook" in item.name:
                    item.add_marker(pytest.mark.parallel(2))
            """,
            "test_it.py": """
            import pytest

            @pytest.fixture
            def two_ranks(request):
                request.node.add_marker(pytest.mark.parallel(2))

            def test_fixture(two_ranks):
                pass

            def test_hook():
                pass

            @pytest.mark.parallel(2)
            def test_same(two_ranks):
                pass

            @pytest.mark.parallel(3)
            def test_too_large(two_ranks):
                pass
            """,
        }
    )
    for arguments, ranks in ((["--n-workers=2"], None), ([], 2)):
        outcome = run_pytest(project, *arguments, ranks=ranks)
        assert outcome.verdicts == {
            "test_fixture": "failed",
            "test_hook": "failed",
            "test_same": "passed",
            "test_too_large": "skipped",
        }, outcome
        assert "@mark.parallel(2) was added after the collection" in outcome.output, outcome
        assert "pytest_collection_modifyitems" in outcome.output, outcome
