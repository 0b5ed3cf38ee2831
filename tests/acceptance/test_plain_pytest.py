"""Without mpirun we stay out of the way, also in a pytest that a test of ours starts."""

from __future__ import annotations

import json

import pytest

from tests.acceptance.conftest import require
from tests.acceptance.harness import Project

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
