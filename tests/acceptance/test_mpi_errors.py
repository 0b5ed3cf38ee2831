"""A missing or mismatched MPI is explained once, with the command that mends it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.conftest import require
from tests.acceptance.harness import Outcome, Project

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
