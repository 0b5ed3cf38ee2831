"""How many ranks a test gets: marks of every kind, in every place, and the command line."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.acceptance.harness import Project
from tests.acceptance.inner import noted, read_ledger, run_pytest

PLACES = """
    import pytest
    import pytest_parallel
    import rankwise
    from ledger import note

    pytestmark = pytest.mark.parallel(2)

    @pytest.fixture(autouse=True)
    def size_is_noted(request, comm, mpi_ranks):
        assert comm.size == mpi_ranks
        note(f"{request.node.name} {comm.size}")

    def test_module_mark():
        pass

    @rankwise.mark.parallel(3)
    def test_function_mark():
        pass

    @pytest_parallel.mark.parallel(n_procs=3)
    def test_seed_spelling():
        pass

    @pytest.mark.parallel(nprocs=3)
    def test_mpi_pytest_spelling():
        pass

    @pytest.mark.parallel
    def test_mpi_pytest_bare():
        pass

    @pytest.mark.mpi(ranks=3)
    def test_isolate_mpi_spelling(mpi_ranks):
        assert mpi_ranks == 3

    @pytest.mark.mpi(ranks=[1, 3], timeout=10, unit="s")
    def test_isolate_mpi_list(mpi_ranks):
        pass

    @rankwise.mark.parallel_from_context
    def test_from_context():
        pass

    @rankwise.mark.parallel([1, 3])
    @pytest.mark.parametrize("letter", ["a", "b"])
    def test_list(letter):
        pass

    @pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.parallel(1)), 2])
    def test_marked_parameter(size, comm):
        assert comm.size == size

    @rankwise.mark.parallel(4)
    class TestClass:
        def test_class_mark(self):
            pass

        @rankwise.mark.parallel(1)
        def test_method_mark(self):
            pass

        class TestInner:
            def test_inner(self):
                pass
"""
SIZES = {
    "test_module_mark": 2,
    "test_function_mark": 3,
    "test_seed_spelling[3]": 3,
    "test_mpi_pytest_spelling": 3,
    "test_mpi_pytest_bare": 3,
    "test_isolate_mpi_spelling": 3,
    "test_isolate_mpi_list[1]": 1,
    "test_isolate_mpi_list[3]": 3,
    "test_from_context": 4,
    "test_list[1-a]": 1,
    "test_list[3-a]": 3,
    "test_list[1-b]": 1,
    "test_list[3-b]": 3,
    "test_marked_parameter[1]": 1,
    "test_marked_parameter[2]": 2,
    "test_class_mark": 4,
    "test_method_mark": 1,
    "test_inner": 4,
}


@pytest.mark.usefixtures("installed_plugins")
def test_marks_of_every_kind_and_place_give_the_size(project: Project, scheduler: str) -> None:
    project.write({"test_places.py": PLACES})
    outcome = run_pytest(project, f"--scheduler={scheduler}", "--strict-markers", ranks=4)
    assert outcome.counts() == {"passed": len(SIZES)}, outcome
    assert Counter(noted(project)) == {f"{name} {size}": size for name, size in SIZES.items()}
    assert len(set(read_ledger(project))) == sum(SIZES.values()), "a rank ran a test twice"


UNMARKED = """
    import pytest, rankwise
    from ledger import note

    def test_unmarked():
        note("unmarked")

    def test_unmarked_comm(comm):
        note("unmarked comm")
        assert (comm.rank, comm.size) == (0, 1)
        assert comm.bcast("alone") == "alone"

    class TestClass:
        @pytest.mark.parametrize("number", range(20))
        def test_unmarked(self, number):
            note(f"unmarked {number}")

    @rankwise.mark.parallel([1, 2])
    def test_list_without_arguments():
        note("list")

    @rankwise.mark.parallel(2)
    def test_without_comm():
        note("without comm")

    @rankwise.mark.parallel(2)
    def test_late_comm(request):
        assert request.getfixturevalue("comm").size == 2
"""


def test_unmarked_tests_run_once_and_marked_ones_need_no_comm(
    project: Project, scheduler: str
) -> None:
    project.write({"test_unmarked.py": UNMARKED})
    outcome = run_pytest(project, f"--scheduler={scheduler}", ranks=3)
    assert outcome.counts() == {"passed": 26}, outcome
    expected = Counter({"list": 3, "without comm": 2, "unmarked": 1, "unmarked comm": 1})
    expected.update(f"unmarked {number}" for number in range(20))
    assert Counter(noted(project)) == expected


def test_nprocs_overrides_every_mark_but_leaves_unmarked_tests_alone(project: Project) -> None:
    project.write(
        {
            "test_sizes.py": """
            import pytest, rankwise

            @rankwise.mark.parallel(3)
            def test_number(comm):
                assert comm.size == 2

            @rankwise.mark.parallel([1, 4])
            def test_list(comm):
                assert comm.size == 2

            @pytest.mark.mpi(ranks=4)
            def test_mpi(mpi_ranks):
                assert mpi_ranks == 2

            @rankwise.mark.parallel_from_context
            def test_context(comm):
                assert comm.size == 2

            def test_unmarked(comm):
                assert comm.size == 1
            """
        }
    )
    outcome = run_pytest(project, "--nprocs=2", ranks=3)
    assert outcome.verdicts == {
        "test_number": "passed",
        "test_list[2]": "passed",
        "test_mpi": "passed",
        "test_context": "passed",
        "test_unmarked": "passed",
    }, outcome
    for wrong in ("0", "-1", "two"):
        outcome = run_pytest(project, f"--nprocs={wrong}", ranks=None)
        assert outcome.exit_code == pytest.ExitCode.USAGE_ERROR, outcome
        assert "--nprocs" in outcome.errors, outcome


BAD_MARKS = {
    "parallel(0)": "must be a positive whole number, not 0",
    "parallel(-2)": "must be a positive whole number, not -2",
    "parallel(1.5)": "must be a positive whole number, not 1.5",
    "parallel('2')": "must be a positive whole number, not '2'",
    "parallel(True)": "must be a positive whole number, not True",
    "parallel(None)": "must be a positive whole number, not None",
    "parallel([2, 0])": "must be a positive whole number, not 0",
    "parallel([])": "has an empty list of numbers of ranks",
    "parallel(2, 3)": "has unknown arguments: 3",
    "parallel(2, size=3)": "has unknown arguments: `size`",
    "parallel(2, nprocs=2)": "gives the number of ranks more than once",
    "mpi(2)": "has unknown arguments: 2",
    "mpi(ranks=2, colour='red')": "has unknown arguments: `colour`",
    "mpi(ranks='many')": "must be a positive whole number, not 'many'",
    "parallel_from_context(2)": "has unknown arguments: 2",
}


def test_a_mark_that_makes_no_sense_is_a_collection_error_that_names_the_test(
    project: Project,
) -> None:
    files = {
        f"test_bad_{number}.py": f"""
        import pytest

        @pytest.mark.{mark}
        def test_bad_{number}(request):
            pass
        """
        for number, mark in enumerate(BAD_MARKS)
    }
    in_class = """
        import pytest

        @pytest.mark.parallel(0)
        class TestBad:
            def test_method(self):
                pass
        """
    project.write({**files, "test_class.py": in_class, "test_good.py": "def test_good(): pass"})
    outcome = run_pytest(project, ranks=2)
    assert outcome.exit_code == pytest.ExitCode.INTERRUPTED, outcome
    assert outcome.reports == [], outcome
    for number, problem in enumerate(BAD_MARKS.values()):
        (line,) = [
            line
            for line in outcome.output.splitlines()
            if line.startswith(f"test_bad_{number}.py::test_bad_{number}: ")
        ]
        assert problem in line, line
    assert "test_class.py::TestBad::test_method: " in outcome.output, outcome
    assert f"{len(BAD_MARKS) + 1} errors" in outcome.output, outcome
    alone = run_pytest(project, ranks=None)
    assert alone.exit_code == pytest.ExitCode.INTERRUPTED, alone
    assert f"{len(BAD_MARKS) + 1} errors" in alone.output, alone


def test_tests_too_large_are_skipped_with_a_reason_without_mpirun_too(project: Project) -> None:
    project.write(
        {
            "test_sizes.py": """
            import rankwise
            from ledger import note

            @rankwise.mark.parallel([1, 2])
            def test_list(comm):
                note(comm.size)
                assert comm.allgather(comm.rank) == [0]

            @rankwise.mark.parallel_from_context
            def test_context(comm):
                assert comm.size == 1
            """
        }
    )
    outcome = run_pytest(project, "-rs", ranks=None)
    assert outcome.verdicts == {
        "test_list[1]": "passed",
        "test_list[2]": "skipped",
        "test_context": "passed",
    }, outcome
    assert "needs 2 ranks, has 1 rank" in outcome.output, outcome
    assert noted(project) == ["1"]


@pytest.mark.parametrize(
    ("ranks", "options"),
    [
        *((None, ()), (2, ()), (None, ("--n-workers=2",))),
        (None, ("--n-workers=2", "--scheduler=shell")),
    ],
    ids=str,
)
def test_too_few_ranks_are_an_error_where_that_is_asked_for(
    project: Project, ranks: int | None, options: tuple[str, ...]
) -> None:
    project.write(
        {
            "test_sizes.py": """
                import pytest
                from ledger import note

                @pytest.mark.parallel(3)
                def test_three(comm):
                    note("never")

                def test_one():
                    pass
            """
        }
    )
    outcome = run_pytest(project, "--too-few=error", *options, ranks=ranks)
    assert outcome.verdicts == {"test_three": "error in setup", "test_one": "passed"}, outcome
    assert outcome.exit_code == pytest.ExitCode.TESTS_FAILED, outcome
    assert f"needs 3 ranks, has {2 if ranks or options else 1} rank" in outcome.output, outcome
    assert noted(project) == []
    outcome = run_pytest(project, "--too-few=skip", *options, ranks=ranks)
    assert outcome.verdicts == {"test_three": "skipped", "test_one": "passed"}, outcome
    assert outcome.exit_code == pytest.ExitCode.OK, outcome


def test_tests_are_selected_by_their_number_of_ranks(project: Project) -> None:
    project.write(
        {
            "test_sizes.py": """
                import pytest

                @pytest.mark.parallel([2, 3])
                def test_many():
                    pass

                @pytest.mark.parallel(nprocs=3)
                def test_three():
                    pass

                def test_one():
                    pass
            """
        }
    )
    selected = {
        "parallel[3]": {"test_many[3]", "test_three"},
        "parallel[match]": {"test_many[2]"},
        "parallel[1] or parallel[2]": {"test_one", "test_many[2]"},
    }
    for expression, names in selected.items():
        outcome = run_pytest(project, "--strict-markers", "-m", expression, ranks=2)
        assert set(outcome.verdicts) == names, str(outcome)


# Marks that no decorator gives: hooks of conftests and plugins add, replace and remove them

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


_OF_PYTEST_MPI = """
    from pathlib import Path
    import pytest

    @pytest.mark.mpi
    def test_mpi(mpi_file_name, mpi_tmpdir, mpi_tmp_path, comm):
        assert len(set(comm.allgather(mpi_file_name))) == 1
        assert Path(mpi_file_name).parent.is_dir()
        # pytest-mpi gives a `py.path.local`, as `tmpdir` is.
        if comm.rank == 0:
            mpi_tmpdir.join("written").write("by rank 0")
        comm.barrier()
        assert (mpi_tmp_path / "written").read_text() == mpi_tmpdir.join("written").read()

    @pytest.mark.mpi(min_size=3)
    def test_three():
        pass

    @pytest.mark.mpi_skip
    def test_skip():
        pass

    @pytest.mark.mpi_break
    def test_break():
        pass

    @pytest.mark.mpi_xfail
    def test_xfail():
        from mpi4py import MPI
        assert MPI.COMM_WORLD.size == 1

    def test_unmarked():
        pass
"""
_ALL = {"mpi": "passed", "three": "skipped", "xfail": "passed"}
_ALL |= {"skip": "passed", "break": "passed", "unmarked": "passed"}


@pytest.mark.parametrize(
    ("option", "differs"),
    [
        ((), {}),
        (("--with-mpi",), {"skip": "skipped", "break": "skipped", "xfail": "xfailed"}),
        (
            ("--only-mpi",),
            dict.fromkeys(("skip", "break", "xfail", "unmarked"), "skipped"),
        ),
    ],
    ids=str,
)
@pytest.mark.parametrize("way", ["pool", "mpirun"])
def test_marks_and_options_of_pytest_mpi_mean_what_they_mean_there(
    project: Project, way: str, option: tuple[str, ...], differs: dict[str, str]
) -> None:
    project.write({"test_of_pytest_mpi.py": _OF_PYTEST_MPI})
    how = ("--n-workers=2",) if way == "pool" else ()
    outcome = run_pytest(project, "--strict-markers", *how, *option, ranks=None if how else 2)
    assert outcome.verdicts == {f"test_{name}": one for name, one in (_ALL | differs).items()}
    assert outcome.exit_code == 0, outcome


def test_a_conftest_may_have_the_options_of_pytest_mpi_itself(project: Project) -> None:
    conftest = """
        def pytest_addoption(parser):
            parser.addoption("--with-mpi", action="store_true")
    """
    project.write({"conftest.py": conftest, "test_of_pytest_mpi.py": _OF_PYTEST_MPI})
    outcome = run_pytest(project, "--with-mpi", "--n-workers=2", ranks=None)
    assert outcome.verdicts["test_skip"] == "passed", outcome
    assert outcome.verdicts["test_xfail"] == "passed", outcome


@pytest.mark.parametrize("name", ["PYTEST_MPI_MAX_NPROCS", "MPI_PYTEST_MAX_NPROCS"])
def test_mpi_pytest_bounds_the_number_of_ranks_by_a_variable(project: Project, name: str) -> None:
    project.write(
        {
            "test_many.py": """
                import pytest

                @pytest.mark.parallel([2, 3])
                def test_many(): pass

                @pytest.mark.parallel_from_context
                def test_all(comm): assert comm.size == 4
            """
        }
    )
    words = {"3": "3 passed", "2": f"3 ranks are more than {name}=2", "two": f"{name}=two is not a"}
    for most, said in words.items():
        outcome = run_pytest(project, "--n-workers=4", ranks=None, environment={name: most})
        assert said in str(outcome)
        usage = pytest.ExitCode.USAGE_ERROR
        assert outcome.exit_code == (usage if "passed" not in said else pytest.ExitCode.OK), outcome


_OF_TESTFLO = """
    import unittest

    import pytest
    from ledger import note

    class Two(unittest.TestCase):
        N_PROCS = 2

        def setUp(self):
            self.total = self.comm.allreduce(self.comm.rank + 1)

        def test_total(self):
            from mpi4py import MPI
            assert self.total == 3
            assert MPI.COMM_WORLD.size == self.comm.size
            note("total")

        def test_fails(self):
            assert self.comm.rank == 0

        @pytest.mark.parallel(1)
        def test_marked(self):
            assert self.total == 1

        @unittest.skip("not now")
        def test_skipped(self):
            pass

    class Inherited(Two):
        pass

    class Five(unittest.TestCase):
        N_PROCS = 5

        def test_too_large(self):
            note("never")

    class One(unittest.TestCase):
        N_PROCS = 1

        def test_alone(self):
            assert self.comm.size == 1

    class Serial(unittest.TestCase):
        N_PROCS = 0

        def test_has_no_comm(self):
            assert not hasattr(self, "comm")

    class TestNone:
        N_PROCS = 2

        def test_is_no_test_case(self, mpi_ranks):
            assert mpi_ranks == 1
"""
_OF_TWO = {"total": "passed", "fails": "failed", "marked": "passed", "skipped": "skipped"}
_IN_ALL_WAYS = {
    "One::test_alone": "passed",
    "Serial::test_has_no_comm": "passed",
    "TestNone::test_is_no_test_case": "passed",
    "Five::test_too_large": "skipped",
}


@pytest.mark.parametrize("way", ["pool", "shell", "mpirun", "plain"])
def test_a_test_case_says_its_number_of_ranks_as_for_testflo(project: Project, way: str) -> None:
    project.write({"test_of_testflo.py": _OF_TESTFLO})
    options = ("--n-workers=4", f"--scheduler={way}") if way in ("pool", "shell") else ()
    outcome = run_pytest(project, *options, ranks=4 if way == "mpirun" else None)
    of_two = _OF_TWO
    if way == "plain":
        of_two = {**dict.fromkeys(_OF_TWO, "skipped"), "marked": "passed"}
    expected = {
        f"{name}::test_{key}": one for name in ("Two", "Inherited") for key, one in of_two.items()
    }
    assert outcome.verdicts == {**expected, **_IN_ALL_WAYS}, outcome
    assert noted(project) == ([] if way == "plain" else ["total"] * 4), outcome
    if way != "plain":
        assert "rank 1 of 2" in outcome.output, outcome


def test_a_number_of_ranks_that_is_none_names_the_attribute(project: Project) -> None:
    case = "import unittest\nclass Test(unittest.TestCase):\n    N_PROCS = {}\n    def test_it(self): pass\n"
    for value, why in (("'four'", "not 'four'"), ("-1", "not -1"), ("[1, 2]", "give one number")):
        project.write({"test_it.py": case.format(value)})
        outcome = run_pytest(project, "--n-workers=2", ranks=None)
        assert outcome.exit_code == pytest.ExitCode.USAGE_ERROR, outcome
        assert f"test_it.py::Test::test_it: @mark.parallel(N_PROCS={value})" in outcome.errors
        assert why in outcome.errors, outcome
