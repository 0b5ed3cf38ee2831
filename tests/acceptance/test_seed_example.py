"""The example that every user of pytest_parallel knows."""

from __future__ import annotations

import os
import subprocess
import zipfile
from pathlib import Path

import pytest
from environments import ROOT

from rankwise.runtimes.uv import find_uv, settings_for_uv
from tests.acceptance.harness import Project
from tests.acceptance.inner import noted, run_pytest
from tests.acceptance.leftovers import check_that_nothing_is_left
from tests.seeds.sentences import sentence

EXAMPLE = """
    import pytest_parallel

    @pytest_parallel.mark.parallel(2)
    def test_A(comm):
      if comm.rank == 1: assert False

    def test_B():
      assert True

    @pytest_parallel.mark.parallel(3)
    def test_C(comm):
      assert comm.size == 3

    def test_D():
      assert False
"""


@sentence(
    "pytest_parallel",
    ran="mpirun -np 4 pytest --scheduler=…, with each MPI",
    said="It is used with OpenMPI, Intel MPI and MPICH.",
)
def test_four_ranks_give_the_same_verdicts_with_every_mpi_and_scheduler(
    project_on_each_mpi: Project, scheduler: str
) -> None:
    project_on_each_mpi.write({"test_example.py": EXAMPLE})
    outcome = project_on_each_mpi.pytest(f"--scheduler={scheduler}", ranks=4)
    assert outcome.exit_code == pytest.ExitCode.TESTS_FAILED, outcome
    assert outcome.verdicts == {
        "test_A[2]": "failed",
        "test_B": "passed",
        "test_C[3]": "passed",
        "test_D": "failed",
    }
    assert "rank 1 of 2" in outcome.output, outcome
    assert ">     if comm.rank == 1: assert False" in outcome.output, outcome
    assert "rank 0" not in outcome.output, outcome
    assert f"4 ranks, {_NAMES[project_on_each_mpi.mpi.name]}" in outcome.output, outcome


_NAMES = {
    "mpich": "MPICH",
    "openmpi4": "Open MPI 4",
    "openmpi5": "Open MPI 5",
    "debian-openmpi": "Open MPI 4",
    "impi": "Intel MPI",
}


def test_one_rank_skips_what_is_too_large_with_every_mpi_and_scheduler(
    project_on_each_mpi: Project, scheduler: str
) -> None:
    project_on_each_mpi.write({"test_example.py": EXAMPLE})
    outcome = project_on_each_mpi.pytest(f"--scheduler={scheduler}", "-rs", ranks=1)
    assert outcome.exit_code == pytest.ExitCode.TESTS_FAILED, outcome
    assert outcome.verdicts == {
        "test_A[2]": "skipped",
        "test_B": "passed",
        "test_C[3]": "skipped",
        "test_D": "failed",
    }
    assert "needs 2 ranks, has 1" in outcome.output, outcome
    assert "needs 3 ranks, has 1" in outcome.output, outcome


def test_ids_are_those_of_pytest_parallel_where_its_marks_are_used(project: Project) -> None:
    project.write(
        {
            "test_ids.py": """
            import pytest
            import pytest_parallel
            import rankwise
            from pytest_parallel.mark import parallel

            @pytest_parallel.mark.parallel(2)
            def test_one(comm): pass

            @pytest.mark.parametrize("val", [3, 4])
            @pytest_parallel.mark.parallel(2)
            def test_below(comm, val): pass

            @parallel([1, 2])
            @pytest.mark.parametrize("val", [3, 4])
            def test_above(comm, val): pass

            @pytest_parallel.mark.parallel(1)
            class TestClass:
                @pytest.mark.parametrize("val", [3])
                def test_it(self, val): pass

            @rankwise.mark.parallel(2)
            def test_ours(comm): pass

            @rankwise.mark.parallel([1, 2])
            @pytest.mark.parametrize("val", [3])
            def test_our_list(comm, val): pass
            """
        }
    )
    theirs = (
        *("test_one[2]", "test_below[2-3]", "test_below[2-4]", "TestClass::test_it[3-1]"),
        *("test_above[3-1]", "test_above[3-2]", "test_above[4-1]", "test_above[4-2]"),
    )
    ours = ("test_ours", "test_our_list[1-3]", "test_our_list[2-3]")
    outcome = project.pytest("--n-workers=2", ranks=None)
    assert outcome.verdicts == dict.fromkeys((*theirs, *ours), "passed"), outcome
    outcome = project.pytest("--n-workers=2", "--deselect=test_ids.py::test_one[2]", ranks=None)
    assert "test_one[2]" not in outcome.verdicts, outcome


PLUGIN = """
    import pytest_parallel

    @pytest_parallel.mark.parallel(2)
    def test_two(comm):
        assert comm.allreduce(1) == 2

    @pytest_parallel.mark.parallel(1, exclusive_numa_domain="cpu")
    def test_domain(comm):
        assert comm.size == 1
"""


@pytest.mark.parametrize("finds_plugins", [True, False])
def test_the_plugin_has_the_name_that_the_document_exports(
    project: Project, finds_plugins: bool
) -> None:
    project.write({"test_it.py": PLUGIN})
    environment = {"PYTEST_PLUGINS": "pytest_parallel.plugin"}
    if not finds_plugins:
        environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    for arguments, ranks in ((["--n-workers=2"], None), ([], 2)):
        outcome = project.pytest(*arguments, ranks=ranks, environment=environment)
        assert outcome.verdicts == {"test_two[2]": "passed", "test_domain[1]": "passed"}, outcome
        assert outcome.exit_code == pytest.ExitCode.OK, outcome
        assert "arning" not in outcome.output, outcome


def test_a_numa_domain_that_is_not_known_is_an_error_that_names_it(project: Project) -> None:
    project.write({"test_it.py": PLUGIN.replace("cpu", "die")})
    outcome = project.pytest("--n-workers=2", ranks=None)
    assert outcome.exit_code == pytest.ExitCode.INTERRUPTED, outcome
    assert '`exclusive_numa_domain` must be "core", "l3", "numa", "socket", ' in outcome.output


EXACT_WORLDS = """
    import pytest_parallel
    from mpi4py import MPI
    from ledger import note

    @pytest_parallel.mark.parallel(2)
    def test_two(comm):
        assert comm.size == MPI.COMM_WORLD.size
        assert MPI.COMM_WORLD.allreduce(1) == 2

    @pytest_parallel.mark.parallel(3)
    def test_three(comm):
        assert MPI.COMM_WORLD.allreduce(1) == 3

    def test_alone():
        note("alone")

    def test_fails():
        assert False
"""


def test_rank_0_of_mpirun_starts_the_workers_of_shell(
    project_on_each_mpi: Project, temporary: Path
) -> None:
    project = project_on_each_mpi
    project.write({"test_it.py": EXACT_WORLDS})
    environment = {"TMPDIR": str(temporary)}
    outcome = run_pytest(project, "--scheduler=shell", ranks=4, environment=environment)
    check_that_nothing_is_left(project, temporary)
    assert outcome.verdicts == {
        "test_two[2]": "passed",
        "test_three[3]": "passed",
        "test_alone": "passed",
        "test_fails": "failed",
    }, outcome
    assert outcome.exit_code == pytest.ExitCode.TESTS_FAILED, outcome
    assert outcome.output.count("test session starts") == 1, outcome
    assert "rankwise: 4 workers, " in outcome.output, outcome
    said = "rankwise: rank 0 of the launcher's 4 starts the workers, the other ranks have ended"
    assert said in outcome.output, outcome
    assert noted(project).count("alone") == 1


def test_the_number_of_workers_counts_and_not_that_of_mpirun(
    project_on_both: Project, temporary: Path
) -> None:
    project = project_on_both
    project.write({"test_it.py": EXACT_WORLDS})
    environment = {"TMPDIR": str(temporary)}
    arguments = ("-rs", "--n-workers=2", "--deselect=test_it.py::test_fails")
    outcome = run_pytest(project, *arguments, ranks=4, environment=environment)
    check_that_nothing_is_left(project, temporary)
    assert outcome.verdicts == {
        "test_two[2]": "passed",
        "test_three[3]": "skipped",
        "test_alone": "passed",
    }, outcome
    assert outcome.exit_code == pytest.ExitCode.OK, outcome
    assert "rankwise: 2 workers, " in outcome.output, outcome
    assert "needs 3 ranks, has 2" in outcome.output, outcome
    # Open MPI binds the ranks of an mpirun of two to a core each.
    outcome = run_pytest(project, "--n-workers=auto", "-k", "alone", ranks=2)
    cores = len(os.sched_getaffinity(0))
    assert f"rankwise: {cores} worker" in outcome.output, outcome


def test_ctrl_c_ends_workers_that_rank_0_of_mpirun_has_started(
    project_on_both: Project, temporary: Path
) -> None:
    project = project_on_both
    project.write(
        {
            "test_it.py": """
            import time
            from pathlib import Path

            def test_long():
                Path("begun").touch()
                time.sleep(600)
            """
        }
    )
    command = [str(project.mpi.mpiexec), "-n", "2", str(project.mpi.python), "-m", "pytest"]
    outcome = project.run(
        [*command, "--n-workers=2"],
        interrupt_when=project.folder / "begun",
        environment={"TMPDIR": str(temporary)},
    )
    assert outcome.exit_code != 0, outcome
    check_that_nothing_is_left(project, temporary)


@pytest.mark.usefixtures("package_index")
def test_only_its_own_wheel_has_the_name_that_another_project_has_too(tmp_path: Path) -> None:
    command = [*(find_uv() or []), "build", "--wheel", "--quiet", "--out-dir", str(tmp_path)]
    for folder, name in ((ROOT, "rankwise"), (ROOT / "drop-in", "rankwise_pytest_parallel")):
        subprocess.run(
            [*command, str(folder)],
            env={**os.environ, **settings_for_uv(os.environ)},
            check=True,
            timeout=120,
        )
        (wheel,) = tmp_path.glob(f"{name}-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            tops = {one.partition("/")[0] for one in archive.namelist()}
        packages = {one for one in tops if not one.endswith(".dist-info")}
        assert packages == {"rankwise" if folder == ROOT else "pytest_parallel"}
