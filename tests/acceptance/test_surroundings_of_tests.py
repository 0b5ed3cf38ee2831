"""Odd surroundings of a run: where its files are, what it may open, what it inherits."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.awkward import AWKWARD, TWO_TESTS, awkward_project, folder_of_length
from tests.acceptance.conftest import require
from tests.acceptance.harness import Project
from tests.acceptance.inner import run_pytest
from tests.acceptance.jobs import opened
from tests.acceptance.leftovers import check_that_nothing_is_left
from tests.notebooks.books import write_notebook

# How ranks come to be, and what starts them.
STARTS = {
    "pool": (None, ("--n-workers=2",)),
    "shell": (None, ("--n-workers=2", "--scheduler=shell")),
    "cold": (None, ("--n-workers=2", "--no-warm-start")),
    "mpirun": (2, ()),
}

# What a careless machine or a careful person may have set.
ODD_VARIABLES = {
    "PYTHONWARNINGS": "error",
    "PYTHONDEVMODE": "1",
    "PYTHONSAFEPATH": "1",
    "PYTHONUTF8": "0",
    "PYTHONCOERCECLOCALE": "0",
    "LC_ALL": "C",
    "HOME": "/no/such/place",
    "TZ": ":no/such/zone",
}


@pytest.mark.parametrize(
    ("mpi", "how"), [*(("mpich", how) for how in STARTS), ("openmpi5", "pool")]
)
def test_tests_run_where_names_of_folders_are_long_and_awkward(
    temporary: Path, mpi: str, how: str
) -> None:
    project = awkward_project(temporary, mpi)
    project.write(TWO_TESTS)
    ranks, words = STARTS[how]
    # With what is in it, either is longer than the address of a socket may be.
    for length in (90, 200):
        place = folder_of_length(temporary / str(length), max(length, len(str(temporary)) + 60))
        said = run_pytest(project, *words, ranks=ranks, environment={"TMPDIR": str(place)})
        assert said.exit_code == 0, said
        assert said.counts() == {"passed": 2}, said
        assert "Traceback" not in said.errors, said
        check_that_nothing_is_left(project, place)


@pytest.mark.parametrize("how", ["plain", "pool"])
def test_notebooks_run_where_names_of_folders_are_long_and_awkward(
    temporary: Path, how: str
) -> None:
    place = folder_of_length(temporary / "temporary", 200)
    project = awkward_project(temporary)
    write_notebook(project.folder / "book.ipynb", "import tempfile", "print(tempfile.mkdtemp())")
    words = ("--notebooks", "book.ipynb", *(STARTS["pool"][1] if how == "pool" else ()))
    said = run_pytest(project, *words, ranks=None, environment={"TMPDIR": str(place)})
    assert said.exit_code == 0, said
    assert said.verdicts == {"notebook": "passed"}, said
    check_that_nothing_is_left(project, place)


def test_a_job_runs_where_names_of_folders_are_long_and_awkward(temporary: Path) -> None:
    place = folder_of_length(temporary / "temporary", 200)
    with opened(temporary / AWKWARD / "shop") as shop:
        shop.variables["TMPDIR"] = str(place)
        shop.write(
            "job.yaml",
            """\
            type: PytorchJob
            name: job
            worker:
              spec:
                command: mktemp
            process_count_per_instance: 2
            """,
        )
        said = shop.rankwise("run", "job.yaml")
        assert said.exit_code == 0, said
        shop.wait_until_empty()
    assert list(place.glob("rankwise-*")) == []


# Runs pytest several times in one process: with each argument as the words of a command line.
SEVERAL_RUNS = """
import gc, os, sys
import mpi4py, pytest

def state():
    names = [name for name in os.environ if not name.startswith("PYTEST_")]
    rc = mpi4py.rc.initialize, mpi4py.rc.finalize
    # What finds the plugin's own modules comes with the first import of it, and stays.
    finders = [repr(finder) for finder in sys.meta_path if "_OwnModules" not in repr(finder)]
    return gc.isenabled(), sorted(names), rc, finders

for number, words in enumerate(sys.argv[1:]):
    before = state()
    code = pytest.main(["-p", "rankwise", "-p", "rankwise_test_recorder", *words.split()])
    assert state() == before, (before, state())
    print(f"run {number}: exit {int(code)}", flush=True)
"""


@pytest.mark.parametrize("mpi", ["mpich", "openmpi5"])
def test_pytest_runs_several_times_in_one_process_with_workers_and_without(
    tmp_path: Path, mpi: str
) -> None:
    project = Project(tmp_path, require(mpi))
    project.write(
        {
            "several.py": SEVERAL_RUNS,
            # Here the controller loads MPI, too.
            "conftest.py": "from mpi4py.MPI import COMM_WORLD\nCOMM_WORLD.rank",
            "test_all.py": """
                import gc
                import pytest
                from mpi4py import MPI

                def test_one(comm):
                    assert gc.isenabled()
                    assert comm.allreduce(1) == 1

                @pytest.mark.parallel(2)
                def test_two(comm):
                    assert comm.allreduce(1) == 2

                def test_mpi_is_at_work():
                    assert MPI.Is_initialized()
                    assert MPI.COMM_WORLD.Get_size() >= 1
            """,
        }
    )
    # Without workers MPI is started in this process, and workers cannot be copies of it any more.
    runs = (
        "--n-workers=2",
        "--n-workers=2 --scheduler=shell",
        "--n-workers=2",
        "",
        "--n-workers=2",
    )
    said = project.run(
        [str(project.mpi.python), "several.py", *runs],
        environment={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "OMP_NUM_THREADS": "1"},
    )
    assert said.exit_code == 0, said
    assert [line for line in said.output.splitlines() if line.startswith("run ")] == [
        f"run {number}: exit 0" for number in range(len(runs))
    ], said
    passed = [test for test, when, outcome in said.reports if (when, outcome) == ("call", "passed")]
    assert passed.count("test_all.py::test_one") == 5, said
    assert passed.count("test_all.py::test_two") == 4, said


def in_a_shell(project: Project, line: str, *words: str) -> list[str]:
    """Give the command that runs pytest, in the place of "$@" of a line of bash."""
    pytest_words = ("-m", "pytest", "-p", "rankwise", "-p", "rankwise_test_recorder", *words)
    return ["bash", "-c", line, "bash", str(project.mpi.python), *pytest_words]


@pytest.mark.parametrize("how", ["pool", "shell"])
def test_tests_run_with_a_closed_stdin_and_few_open_files(
    project: Project, temporary: Path, how: str
) -> None:
    project.write(TWO_TESTS)
    words = in_a_shell(project, 'ulimit -n 64; umask 000; exec "$@" <&-', *STARTS[how][1])
    variables = {"TMPDIR": str(temporary), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **ODD_VARIABLES}
    said = project.run(words, environment=variables)
    assert said.exit_code == 0, said
    assert said.counts() == {"passed": 2}, said
    check_that_nothing_is_left(project, temporary)


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_run_without_streams_fails_as_without_workers_and_leaves_nothing(
    project: Project, temporary: Path, closed: str
) -> None:
    """Pytest itself cannot do without them."""
    project.write(TWO_TESTS)
    said = project.run(
        in_a_shell(project, f'exec "$@" {closed}', "--n-workers=2"),
        environment={"TMPDIR": str(temporary), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )
    assert said.exit_code != 0, said
    assert "/src/rankwise/" not in said.errors, said
    check_that_nothing_is_left(project, temporary)


def test_a_run_that_can_write_no_files_says_so(project: Project, temporary: Path) -> None:
    project.write(TWO_TESTS)
    said = project.run(
        in_a_shell(project, 'ulimit -f 0; exec "$@"', "--n-workers=2"),
        environment={"TMPDIR": str(temporary), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )
    assert said.exit_code == 4, said
    assert "the files of this run have no place" in said.errors, said
    assert "Traceback" not in said.errors, said
    assert list(temporary.iterdir()) == []
