"""The readme of pytest_parallel: quick start, marks, installation and schedulers."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from environments import PYTHON, ROOT, RUNTIMES

from tests.acceptance.conftest import require_environment
from tests.acceptance.harness import Outcome, Project
from tests.acceptance.test_seed_example import EXAMPLE
from tests.seeds.readme_example import check, notes
from tests.seeds.sentences import sentence
from tests.seeds.typed import type_line

README = "pytest_parallel"
LINE = "mpirun -np 4 pytest --color=yes -vv test_pytest_parallel.py"


@sentence(README, ran=LINE)
@sentence(
    README,
    ran=LINE,
    said="Tests with @pytest_parallel.mark.parallel(N) run in parallel on N processes.",
)
@sentence(
    README,
    ran=LINE,
    said="Every test is reported as if it ran on the master; other ranks do not log.",
)
def test_the_first_command_gives_the_output_that_is_shown(example: Project) -> None:
    """You can run the tests with MPI, and the following output will be produced."""
    outcome = type_line(example, LINE)
    check(outcome, "rank 1 of 2", "\x1b[31m", "test_A[2] \x1b[31mFAILED")
    assert outcome.output.count("test session starts") == 1, outcome
    assert "2 failed" in outcome.output, outcome


@sentence(README, ran="mpirun -np 1 pytest --color=yes test_pytest_parallel.py")
def test_what_is_too_large_is_skipped(example: Project) -> None:
    """If there are not enough MPI processes to run some tests, they will be skipped."""
    outcome = type_line(example, "mpirun -np 1 pytest --color=yes test_pytest_parallel.py")
    assert outcome.verdicts == {
        "test_A[2]": "skipped",
        "test_B": "passed",
        "test_C[3]": "skipped",
        "test_D": "failed",
    }, outcome
    assert "2 skipped" in outcome.output, outcome


COMM = """
    import pytest_parallel
    from mpi4py import MPI

    @pytest_parallel.mark.parallel(3)
    def test_sends(comm):
        assert comm.size == 3
        assert MPI.Comm.Compare(comm, MPI.COMM_WORLD) != MPI.IDENT
        inside = MPI.Group.Intersection(comm.group, MPI.COMM_WORLD.group)
        assert MPI.Group.Compare(inside, comm.group) == MPI.IDENT
        comm.isend("of another test", dest=(comm.rank + 1) % 3)

    @pytest_parallel.mark.parallel(3)
    def test_hears_nothing_of_it(comm):
        comm.barrier()
        assert not comm.iprobe()

    @pytest_parallel.mark.parallel([2,4])
    def test_param(comm):
      print(comm.size)
"""


@pytest.fixture(scope="module")
def of_comm(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    from tests.acceptance.conftest import require

    project = Project(tmp_path_factory.mktemp("comm"), require("mpich"))
    project.write({"test_comm.py": COMM})
    outcome = type_line(project, "mpirun -np 4 pytest -rP test_comm.py")
    assert outcome.exit_code == pytest.ExitCode.OK, outcome
    return outcome


@sentence(README, ran="mpirun -np 4 pytest -rP test_comm.py")
@sentence(
    README,
    ran="mpirun -np 4 pytest -rP test_comm.py",
    said="n_procs is an integer: the size of the communicator that the test gets.",
)
def test_comm_is_the_tests_own(of_comm: Outcome) -> None:
    """comm is a sub-communicator of MPI.COMM_WORLD that is unique to each test."""
    assert of_comm.verdicts["test_sends[3]"] == "passed", of_comm
    assert of_comm.verdicts["test_hears_nothing_of_it[3]"] == "passed", of_comm


@sentence(README, ran="mpirun -np 4 pytest -rP test_comm.py")
def test_a_list_of_sizes_runs_the_test_on_each(of_comm: Outcome) -> None:
    """n_procs can be a list: the test runs two times, with comm of size 2 and of size 4."""
    for size in (2, 4):
        assert of_comm.verdicts[f"test_param[{size}]"] == "passed", of_comm
        _, _, printed = of_comm.output.partition(f"test_param[{size}] ___")
        assert next(line for line in printed.splitlines() if line.isdecimal()) == str(size)


# Installation


@pytest.fixture
def fresh(project: Project, tmp_path: Path) -> Path:
    """A virtual environment with an MPI and pytest, and a git that knows where the project is."""
    require_environment("mpi4py")
    uv = [str(project.mpi.python.parent / "uv"), "--quiet"]
    folder = tmp_path / "fresh"
    subprocess.run([*uv, "venv", "--python", PYTHON, str(folder)], check=True)
    (packages,) = folder.glob("lib/python3*/site-packages")
    (mpi,) = RUNTIMES["mpi4py"].folder.glob("lib/python3*/site-packages")
    (packages / "mpi.pth").write_text(f"{mpi}\n")
    project.write({"test_pytest_parallel.py": EXAMPLE})
    return folder


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables by which git takes the folder drop-in for the repository of the readme."""
    folder = tmp_path_factory.mktemp("upstream") / "repository"
    shutil.copytree(ROOT / "drop-in", folder, ignore=shutil.ignore_patterns("__pycache__"))
    who = ["-c", "user.name=ada", "-c", "user.email=ada@example.org"]
    for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message", "all"]):
        subprocess.run(["git", *who, *words], cwd=folder, check=True)
    return {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.{folder.as_uri()}.insteadOf",
        "GIT_CONFIG_VALUE_0": "https://github.com/onera/pytest_parallel.git",
    }


BY_PIP = 'pip install "git+https://github.com/onera/pytest_parallel.git"'
MANUALLY = """\
(mkdir install_dir && cd install_dir && git clone https://github.com/onera/pytest_parallel.git)
export PYTHONPATH=install_dir/pytest_parallel:$PYTHONPATH
export PYTEST_PLUGINS=pytest_parallel.plugin
"""
DROP_IN = "the folder drop-in, beside an installed rankwise,"


def try_out(project: Project, fresh: Path, lines: str, variables: dict[str, str]) -> None:
    """Install rankwise, run the lines, then the example with what is installed by then."""
    install = [str(project.mpi.python.parent / "uv"), "--quiet", "pip", "install"]
    target = ["--python", str(fresh / "bin" / "python"), str(ROOT)]
    subprocess.run([*install, *target], check=True)
    # The pip of another Python, because that of a new environment takes long to install.
    pip = fresh / "bin" / "pip"
    pip.write_text(f'#!/bin/sh\nexec {PYTHON} -m pip --python {fresh}/bin/python "$@" >&2\n')
    pip.chmod(0o755)
    programs = RUNTIMES["mpi4py"].folder / "bin"
    outcome = type_line(
        project,
        f"PATH={fresh / 'bin'}:{programs}:$PATH\n{lines}\n{LINE}",
        PYTEST_ADDOPTS="-p rankwise_test_recorder",
        PYTEST_DISABLE_PLUGIN_AUTOLOAD="",
        **variables,
    )
    check(outcome, "4 ranks, Open MPI")


@sentence(README, ran=MANUALLY.strip().replace("\n", " ; "), stand_in=DROP_IN)
@pytest.mark.usefixtures("package_index")
def test_a_clone_on_the_path_is_enough(
    project: Project, fresh: Path, upstream: dict[str, str]
) -> None:
    """To install manually: clone, export PYTHONPATH and PYTEST_PLUGINS."""
    try_out(project, fresh, MANUALLY, upstream)


@sentence(README, ran=BY_PIP, stand_in=DROP_IN)
@pytest.mark.usefixtures("package_index")
def test_pip_installs_it_from_its_repository(
    project: Project, fresh: Path, upstream: dict[str, str]
) -> None:
    """pip install "git+https://…" installs it."""
    try_out(project, fresh, BY_PIP, upstream)


# Schedulers that reuse processes


REUSE = """
    import os

    import pytest
    import pytest_parallel
    from notes import note

    note("loaded", os.getpid())

    @pytest_parallel.mark.parallel(2)
    def test_pair(comm):
        note("ran", os.getpid())

    @pytest.mark.parametrize("number", range(999))
    def test_fast(number):
        if number < 99:
            note("ran", os.getpid())
"""


@sentence(README, ran="mpirun -np 4 pytest test_pytest_parallel.py, of 1000 tests")
@sentence(
    README,
    ran="mpirun -np 4 pytest test_pytest_parallel.py, of 1000 tests",
    said="The Python environment is loaded once and for all, for 1000 tests of 1 millisecond too.",
)
def test_processes_are_used_by_several_tests(example: Project) -> None:
    """mpirun -np 4 pytest test_pytest_parallel.py uses its 4 processes for all tests."""
    example.write({"test_pytest_parallel.py": REUSE})
    outcome = type_line(example, "mpirun -np 4 pytest test_pytest_parallel.py")
    assert outcome.counts() == {"passed": 1000}, outcome
    found = notes(example)
    loaded = [pid for what, pid in found if what == "loaded"]
    ran = [pid for what, pid in found if what == "ran"]
    assert len(loaded) == len(set(loaded)) == 4
    assert set(ran) <= set(loaded)
    assert len(ran) == 101 > len(set(ran))


ORDERED = """
    import time

    import pytest_parallel
    from notes import note

    @pytest_parallel.mark.parallel(2)
    def test_A(comm):
        note("begin", "A", comm.rank)
        time.sleep(0.1)
        note("end", "A", comm.rank)

    def test_B():
        note("begin", "B", 0)
        note("end", "B", 0)

    @pytest_parallel.mark.parallel(3)
    def test_C(comm):
        note("begin", "C", comm.rank)
        time.sleep(0.1)
        note("end", "C", comm.rank)
"""


@sentence(README, ran="mpirun -np 4 pytest --scheduler=sequential test_pytest_parallel.py")
@sentence(
    README,
    ran="mpirun -np 4 pytest test_pytest_parallel.py",
    said="The sequential scheduler is the default one.",
)
def test_sequential_takes_each_test_in_order(example: Project) -> None:
    """sequential takes each test in order, one by one, on as many processes as it needs."""
    line = "mpirun -np 4 pytest --scheduler=sequential test_pytest_parallel.py"
    check(type_line(example, line), "scheduler sequential")
    check(type_line(example, line.replace("--scheduler=sequential ", "")), "scheduler sequential")
    example.write({"test_ordered.py": ORDERED})
    outcome = type_line(example, "mpirun -np 4 pytest --scheduler=sequential test_ordered.py")
    assert outcome.counts() == {"passed": 3}, outcome
    found = notes(example)
    # Only ranks of one test may be ahead of each other.
    assert [name for _, name, _ in found] == ["A"] * 4 + ["B"] * 2 + ["C"] * 6


@sentence(README, ran="mpirun -np 4 pytest --scheduler=sequential -v test_pytest_parallel.py")
@sentence(
    README,
    ran="mpirun -np 4 pytest --scheduler=sequential -v test_pytest_parallel.py",
    said="A segfault of a process that is reused may not point directly to the faulty test.",
)
def test_sequential_finds_which_test_is_at_fault(example: Project) -> None:
    """With segfaults, running tests sequentially allows to find which test is at fault."""
    crash = "\n    def test_E():\n      import os, signal; os.kill(os.getpid(), signal.SIGSEGV)\n"
    example.write({"test_pytest_parallel.py": EXAMPLE + crash + "\n    def test_F(): pass\n"})
    line = "mpirun -np 4 pytest --scheduler=sequential -v test_pytest_parallel.py"
    outcome = type_line(example, line)
    assert outcome.exit_code != 0
    names = [word for word in outcome.output.split() if "::test_" in word]
    assert names[-1] == "test_pytest_parallel.py::test_E", outcome


TOGETHER = """
    import time
    from pathlib import Path

    import pytest_parallel

    @pytest_parallel.mark.parallel(2)
    def test_A(comm):
        Path("A").touch()

    def test_B():
        deadline = time.monotonic() + 40
        while not Path("A").exists():
            assert time.monotonic() < deadline, "A waits for B"
            time.sleep(0.02)

    @pytest_parallel.mark.parallel(3)
    def test_C(comm):
        assert comm.size == 3

    def test_D():
        pass
"""


@sentence(README, ran="mpirun -np 4 pytest --scheduler=static test_pytest_parallel.py")
@sentence(
    README,
    ran="mpirun -np 4 pytest --scheduler=static test_pytest_parallel.py",
    said="Processes wait for a long test of their step, whereas they could do meaningful work.",
)
def test_static_uses_idle_processes(example: Project) -> None:
    """static tries to distribute tests to minimize the number of idle processes.

    B is beside C in the first step, and waits for A of the second: no process waits for B.
    """
    line = "mpirun -np 4 pytest --scheduler=static test_pytest_parallel.py"
    check(type_line(example, line), "scheduler static")
    example.write({"test_together.py": TOGETHER})
    outcome = type_line(example, "mpirun -np 4 pytest --scheduler=static test_together.py")
    assert outcome.counts() == {"passed": 4}, outcome


@sentence(README, ran="mpirun -np 4 pytest --scheduler=dynamic test_pytest_parallel.py")
@sentence(
    README,
    ran="mpirun -np 4 pytest --scheduler=dynamic test_together.py",
    said="It sends work to idle processes until all are busy, or not enough of them are ready.",
)
@sentence(
    README,
    ran="MPI4PY_RC_THREAD_LEVEL=single mpirun -np 4 pytest --scheduler=dynamic …",
    said="No thread level is required: MPI_THREAD_SINGLE is fine.",
)
@sentence(
    README,
    ran="mpirun -np 4 pytest --scheduler=dynamic test_pytest_parallel.py",
    said="Re-implementing the dynamic scheduler using sockets may make it more robust.",
)
def test_dynamic_starts_the_largest_tests_first(example: Project) -> None:
    """dynamic tries to schedule tests requiring the most processes first."""
    line = "mpirun -np 4 pytest --scheduler=dynamic test_pytest_parallel.py"
    check(type_line(example, line), "scheduler dynamic")
    single = """
    def test_mpi():
        from mpi4py import MPI
        assert MPI.Query_thread() == MPI.THREAD_SINGLE
        assert MPI.Comm.Get_parent() == MPI.COMM_NULL
    """
    example.write({"test_ordered.py": ORDERED + single})
    line = line.replace("test_pytest_parallel", "test_ordered")
    outcome = type_line(example, line, MPI4PY_RC_THREAD_LEVEL="single")
    assert outcome.counts() == {"passed": 4}, outcome
    begun = [name for what, name, _ in notes(example) if what == "begin"]
    assert begun.index("C") < begun.index("A")
    example.write({"test_together.py": TOGETHER})
    outcome = type_line(example, "mpirun -np 4 pytest --scheduler=dynamic test_together.py")
    assert outcome.counts() == {"passed": 4}, outcome


# Schedulers that isolate processes


ISOLATED = """
    import os

    import pytest_parallel
    from notes import note

    note("loaded", os.getpid())

    @pytest_parallel.mark.parallel(2)
    def test_two(comm):
        note("two", os.getpid())

    @pytest_parallel.mark.parallel(3)
    def test_crashes(comm):
        note("crashes", os.getpid())
        if comm.rank == 1:
            os.abort()
        comm.barrier()

    @pytest_parallel.mark.parallel(3)
    def test_three(comm):
        note("three", os.getpid())

    def test_one():
        note("one", os.getpid())
"""


@sentence(README, ran="pytest --n-workers=4 --scheduler=shell test_pytest_parallel.py")
@sentence(
    README,
    ran="pytest --n-workers=4 --scheduler=shell test_isolated.py",
    said="For a test of N processes, N MPI processes are launched just for this test.",
)
@sentence(
    README,
    ran="pytest --n-workers=4 --scheduler=shell test_isolated.py",
    said="Even if a test crashes, other tests are not impacted, and errors are reported correctly.",
)
@sentence(
    README,
    ran="pytest --n-workers=4 --scheduler=shell test_isolated.py",
    said="Each process loads the Python modules: if you have many fast tests, start-up times add up.",
)
@sentence(
    README,
    ran="pytest --n-workers=4 --scheduler=shell test_isolated.py",
    said="A process that crashed has sent no report: a crash report is created.",
)
def test_shell_starts_processes_for_each_test(example: Project) -> None:
    """The shell scheduler: you launch pytest directly, and specify --n-workers."""
    line = "pytest --n-workers=4 --scheduler=shell test_pytest_parallel.py"
    check(type_line(example, line), "4 workers, ", "scheduler shell")
    example.write({"test_isolated.py": ISOLATED})
    outcome = type_line(example, line.replace("pytest_parallel.py", "isolated.py"))
    assert outcome.verdicts == {
        "test_two[2]": "passed",
        "test_crashes[3]": "failed",
        "test_three[3]": "passed",
        "test_one": "passed",
    }, outcome
    assert "rank 1" in outcome.output, outcome
    assert "SIGABRT" in outcome.output, outcome
    found = notes(example)
    # All of them are copies of one process.
    assert found.pop(0)[0] == "loaded"
    assert sorted(name for name, _ in found) == sorted(
        ["two"] * 2 + ["crashes"] * 3 + ["three"] * 3 + ["one"]
    )
    assert len({pid for _, pid in found}) == 9


@sentence(README, ran="pytest --n-workers=4 --scheduler=shell --policy=static …")
@sentence(
    README,
    ran="pytest --n-workers=4 --scheduler=shell test_pytest_parallel.py",
    said="Why is shell static? We hope to also implement a dynamic scheduling strategy.",
)
def test_shell_has_both_strategies(example: Project) -> None:
    """The scheduling algorithm of shell is the same as that of the static scheduler."""
    line = "pytest --n-workers=4 --scheduler=shell test_pytest_parallel.py"
    check(type_line(example, line), "scheduler shell, policy dynamic")
    check(type_line(example, f"{line} --policy=static"), "scheduler shell, policy static")
