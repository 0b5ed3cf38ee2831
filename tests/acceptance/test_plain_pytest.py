"""Without mpirun we stay out of the way, also in a pytest that a test of ours starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.acceptance.awkward import AWKWARD, TWO_TESTS, awkward_project, folder_of_length
from tests.acceptance.conftest import require
from tests.acceptance.harness import Project
from tests.acceptance.inner import run_pytest
from tests.acceptance.jobs import opened
from tests.acceptance.leftovers import check_that_nothing_is_left
from tests.notebooks.books import write_notebook

# Written at the very end of a run: what has been imported by then.
NOTE_MODULES = """
    import json
    import sys
    from pathlib import Path


    def pytest_unconfigure():
        Path("modules.json").write_text(json.dumps(sorted(sys.modules)))
"""

MIXED = """
    import pytest


    def test_unmarked():
        pass


    @pytest.mark.parallel(2)
    def test_pair(comm):
        raise AssertionError("it must not run on one rank")


    @pytest.mark.parallel([1, 3])
    def test_list(mpi_ranks):
        assert mpi_ranks == 1
"""


def test_plain_pytest_imports_nothing_for_running_on_ranks(project: Project) -> None:
    project.write({"conftest.py": NOTE_MODULES, "test_mixed.py": MIXED})
    outcome = project.pytest("-rs", "-p", "no:randomly", ranks=None)
    assert outcome.exit_code == pytest.ExitCode.OK, str(outcome)
    assert outcome.verdicts == {
        "test_unmarked": "passed",
        "test_pair": "skipped",
        "test_list[1]": "passed",
        "test_list[3]": "skipped",
    }, str(outcome)
    for size in (2, 3):
        reason = f"needs {size} ranks, has 1 rank: run it with mpirun -np {size} pytest"
        assert reason in outcome.output, str(outcome)
    assert "rankwise:" not in outcome.output, str(outcome)
    modules = json.loads((project.folder / "modules.json").read_text())
    assert "rankwise.pytest_plugin.plugin" in modules
    for name in (
        "mpi4py",
        "rankwise.pytest_plugin.workers",
        "rankwise.pytest_plugin.worker_session",
        "rankwise.pytest_plugin.runtest",
        "rankwise.pytest_plugin.mpirun",
        "rankwise.pytest_plugin.mpirun_coordinator",
        "rankwise.pytest_plugin.output",
        "rankwise.pytest_plugin.rank_status",
        "multiprocessing",
    ):
        assert [found for found in modules if f"{found}.".startswith(f"{name}.")] == []


def test_comm_of_one_rank_needs_no_mpirun(project: Project) -> None:
    project.write(
        {
            "test_alone.py": """
                import pytest

                SEEN = []


                @pytest.mark.parametrize("number", range(40))
                @pytest.mark.parallel(1)
                def test_marked(comm, number):
                    assert (comm.size, comm.allreduce(7)) == (1, 7)
                    SEEN.append(comm)


                def test_unmarked(comm, mpi_ranks):
                    assert comm.size == mpi_ranks == 1
                    SEEN.append(comm)


                def test_earlier_ones_are_freed():
                    assert len(SEEN) == 41
                    assert not any(SEEN[:20])
            """
        }
    )
    outcome = project.pytest("-p", "no:randomly", ranks=None)
    assert outcome.exit_code == pytest.ExitCode.OK, str(outcome)
    assert outcome.counts() == {"passed": 42}, str(outcome)


def test_importing_the_package_imports_no_pytest(project: Project) -> None:
    code = "import sys, rankwise; print(sorted({'pytest', 'mpi4py'} & set(sys.modules)))"
    outcome = project.run([str(project.mpi.python), "-c", code])
    assert (outcome.exit_code, outcome.output.strip()) == (0, "[]"), str(outcome)


@pytest.mark.usefixtures("installed_plugins")
@pytest.mark.parametrize("mpi", ["mpich", "openmpi5"])
def test_a_pytest_within_a_test_is_a_plain_one(project: Project, mpi: str) -> None:
    project.mpi = require(mpi)
    project.write(
        {
            "test_outer.py": """
                import subprocess
                import sys

                import pytest

                INNER = '''
                import pytest


                @pytest.mark.parallel(2)
                def test_pair(comm):
                    pass


                def test_alone(comm):
                    assert comm.size == 1
                '''


                @pytest.mark.parallel(2)
                def test_in_a_process_of_its_own(comm, tmp_path):
                    (tmp_path / "test_inner.py").write_text(INNER)
                    command = [sys.executable, "-m", "pytest", "-v", "--rootdir=.", "."]
                    done = subprocess.run(
                        command, cwd=tmp_path, capture_output=True, text=True, timeout=60
                    )
                    assert "1 passed, 1 skipped" in done.stdout, done
                    assert "rankwise:" not in done.stdout, done
                    comm.barrier()


                @pytest.mark.parallel(2)
                def test_in_the_same_process(comm, pytester):
                    pytester.makepyfile(INNER)
                    if comm.rank == 1:
                        result = pytester.runpytest_inprocess()
                        result.assert_outcomes(passed=1, skipped=1)
                    comm.barrier()
            """
        }
    )
    outcome = project.pytest("-p", "pytester", ranks=2)
    assert outcome.exit_code == pytest.ExitCode.OK, str(outcome)
    assert outcome.counts() == {"passed": 2}, str(outcome)


def test_a_program_can_run_pytest_twice_on_its_ranks(project: Project) -> None:
    project.write(
        {
            "test_pair.py": """
                import pytest


                @pytest.mark.parallel(2)
                def test_pair(comm):
                    assert comm.allreduce(1) == 2
            """,
            "twice.py": """
                import sys

                import pytest

                codes = [pytest.main(["-p", "rankwise_test_recorder"]) for _ in range(2)]
                sys.exit(any(codes))
            """,
        }
    )
    outcome = project.run(
        [str(project.mpi.mpiexec), "-n", "2", str(project.mpi.python), "twice.py"]
    )
    assert outcome.exit_code == pytest.ExitCode.OK, str(outcome)
    assert outcome.output.count("1 passed in") == 2, str(outcome)


# Odd surroundings of a run: where its files are, what it may open, what it inherits

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
    """Return the command that runs pytest, in the place of "$@" of a line of bash."""
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
