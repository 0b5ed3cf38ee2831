"""What breaks on a cluster while tests run there: no test is lost, and every verdict is true."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from cluster import Cluster

from tests.acceptance.conftest import require
from tests.acceptance.harness import Project
from tests.acceptance.inner import run_pytest
from tests.acceptance.leftovers import wait_until_gone
from tests.slurm.inner_suites import (
    NOTE,
    disturbing,
    jobs_of,
    node_folders,
    run_slurm,
    wait_for,
)

OTHERS = """
import pytest, rankwise

@pytest.mark.parametrize("number", range(3))
@rankwise.mark.parallel(2)
def test_other(comm, number):
    assert comm.allreduce(1) == 2
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project(tmp_path, require("mpich"))
    made.write({"notes.py": NOTE, "test_others.py": OTHERS})
    return made


def test_ranks_that_die_or_ask_for_too_much_are_reports_of_their_tests(
    project: Project, slurm: Cluster
) -> None:
    project.write(
        {
            "test_deaths.py": """
            import os, signal, time
            import pytest, rankwise

            @rankwise.mark.parallel(2)
            def test_signal(comm):
                print("still here", flush=True)
                if comm.rank == 1:
                    os.kill(os.getpid(), signal.SIGSEGV)
                comm.barrier()

            @rankwise.mark.parallel(2)
            def test_memory(comm):
                if comm.rank == 0:
                    hoard = b"x" * (1200 << 20)
                    time.sleep(30)
                comm.barrier()

            @rankwise.mark.parallel(2)
            @pytest.mark.timeout(1)
            def test_deadlock(comm):
                if comm.rank == 0:
                    time.sleep(60)
                comm.barrier()

            @rankwise.mark.parallel(2)
            def test_exit(comm):
                os._exit(7)

            @rankwise.mark.parallel(2)
            def test_own_step(comm):
                import subprocess
                step = f"{os.environ['SLURM_JOB_ID']}.{os.environ['SLURM_STEP_ID']}"
                if comm.rank == 0:
                    subprocess.run(["scancel", step], check=True)
                time.sleep(30)
            """
        }
    )
    outcome = run_slurm(project, slurm)
    assert outcome.exit_code == 1, outcome
    assert outcome.counts() == {"passed": 3, "failed": 5}, outcome
    assert "rank 1 of 2 was killed by SIGSEGV (segmentation fault) in call" in outcome.output
    assert "still here" in outcome.output
    why = r"rank 0 of 2 was killed: its job step is out of memory \(\d+ MB used, 800 MB allowed\)"
    assert re.search(why, outcome.output)
    assert "exceeded its time limit of 1 s in call" in outcome.output
    assert "time.sleep(60)" in outcome.output
    assert "exited with code 7" in outcome.output
    assert "the job step of this test was ended from outside (scancel)" in outcome.output


def test_a_step_out_of_memory_is_ended_by_slurm_if_ranks_start_from_nothing(
    project: Project, slurm: Cluster
) -> None:
    project.write(
        {
            "test_others.py": """
            import time, rankwise

            @rankwise.mark.parallel(2)
            def test_memory(comm):
                if comm.rank == 0:
                    hoard = b"x" * (1200 << 20)
                    time.sleep(30)
                comm.barrier()

            def test_after():
                pass
            """
        }
    )
    outcome = run_slurm(project, slurm, "--no-warm-start", workers=2)
    assert outcome.counts() == {"failed": 1, "passed": 1}, outcome
    assert "memory" in outcome.output


@pytest.mark.parametrize("scheduler", ["slurm", "slurm-pool"])
def test_a_cancelled_job_ends_the_run_and_the_test_says_so(
    project: Project, slurm: Cluster, scheduler: str
) -> None:
    project.write(
        {
            "test_a.py": """
            import time, rankwise
            from notes import sign

            @rankwise.mark.parallel(4)
            def test_long(comm):
                sign("running")
                time.sleep(60)
            """
        }
    )

    def cancel() -> None:
        slurm.run("scancel", *jobs_of(slurm, project))

    with disturbing(project, cancel, when="running"):
        outcome = run_slurm(project, slurm, scheduler=scheduler)
    assert outcome.exit_code == 1, outcome
    assert outcome.verdicts == {"test_long": "failed"}, outcome
    assert "was cancelled (Slurm says CANCELLED" in outcome.output, outcome
    assert "while this test ran" in outcome.output
    assert "3 tests were not run" in outcome.output


@pytest.mark.parametrize("scheduler", ["slurm", "slurm-pool"])
def test_a_lost_node_is_a_crash_of_its_test_and_the_others_go_on(
    project: Project, own_slurm: Cluster, scheduler: str
) -> None:
    first, lost, *_ = own_slurm.nodes
    project.write(
        {
            "test_a.py": f"""
            import os, time, rankwise
            from notes import note, sign

            @rankwise.mark.parallel(6)
            def test_over_two_nodes(comm):
                nodes = comm.gather(os.environ["SLURMD_NODENAME"])
                if comm.rank == 0:
                    assert sorted(set(nodes)) == {[first, lost]}
                    sign("running")
                time.sleep(60)

            @rankwise.mark.parallel(6)
            def test_again_on_six(comm):
                assert comm.allreduce(1) == 6
                note(os.environ["SLURMD_NODENAME"])
            """
        }
    )
    with disturbing(project, lambda: own_slurm.kill(lost), when="running"):
        outcome = run_slurm(
            project, own_slurm, "--policy=sequential", scheduler=scheduler, workers=6, lost=lost
        )
    assert outcome.counts() == {"passed": 4, "failed": 1}, outcome
    assert outcome.verdicts["test_over_two_nodes"] == "failed"
    assert f"was lost with node {lost} in call" in outcome.output
    assert set((project.folder / "notes.txt").read_text().split()) == {first}


def test_a_controller_that_restarts_and_a_node_that_drains_harm_no_job(
    project: Project, own_slurm: Cluster
) -> None:
    project.write(
        {
            "test_a.py": """
            import rankwise
            from notes import await_sign, sign

            @rankwise.mark.parallel(6)
            def test_meanwhile(comm):
                sign("running")
                await_sign("back")
            """
        }
    )

    def restart() -> None:
        own_slurm.run(
            "scontrol", "update", f"NodeName={own_slurm.nodes[1]}", "State=DRAIN", "Reason=trial"
        )
        controller = own_slurm.daemons.pop("slurmctld")
        controller.terminate()
        controller.wait()
        (project.folder / "back").touch()
        own_slurm.start_controller()

    with disturbing(project, restart, when="running"):
        outcome = run_slurm(project, own_slurm, "--policy=sequential", workers=6)
    assert outcome.exit_code == 0, outcome
    assert outcome.counts() == {"passed": 4}, outcome


@pytest.mark.parametrize("moment", ["pending", "running"])
def test_a_client_that_is_killed_leaves_no_allocation_behind(
    project: Project, slurm: Cluster, moment: str
) -> None:
    project.write(
        {
            "test_a.py": """
            import time
            from notes import sign

            def test_long():
                sign("running")
                time.sleep(60)
            """
        }
    )
    options = ["--begin=now+3"] if moment == "pending" else []
    command = [str(project.mpi.python), "-m", "pytest", "-p", "rankwise", "-p", "no:cacheprovider"]
    command += ["--scheduler=slurm", "--n-workers=2", "test_a.py"]
    variables = {**os.environ, **slurm.variables, "PYTHONPATH": str(project.folder)}
    variables |= {"RANKWISE_TEST_RECORD": f"{project.folder}/.record"}
    variables |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    client = subprocess.Popen(
        [*command, f"--slurm-options={' '.join(options)}"],
        cwd=project.folder,
        env=variables,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        if moment == "pending":
            wait_for("the job to be there", lambda: jobs_of(slurm, project))
        else:
            wait_for("the test to run", (project.folder / "running").exists)
    finally:
        client.send_signal(signal.SIGKILL)
        client.wait()
    wait_for("the job to be gone", lambda: jobs_of(slurm, project) == [])
    wait_until_gone(project)
    assert not [path for path in node_folders(slurm) if path.owner() != "root"]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_client_that_is_killed_at_its_sbatch_leaves_nothing_behind(
    project: Project, slurm: Cluster, when: str
) -> None:
    """An sbatch that comes first on PATH kills who calls it, and may do its work first."""
    submit = '/usr/bin/env sbatch "$@"' if when == "after" else ":"
    trap = project.folder / "bin" / "sbatch"
    trap.parent.mkdir()
    script = (
        f"#!/bin/sh\nPATH=${{PATH#*:}}\n{submit}\ntouch {project.folder}/called\nkill -9 $PPID\n"
    )
    trap.write_text(script)
    trap.chmod(0o755)
    before = node_folders(slurm)
    path = f"{trap.parent}{os.pathsep}{os.environ['PATH']}"
    outcome = run_pytest(
        project,
        *("--scheduler=slurm", "--n-workers=2"),
        ranks=None,
        limit=60.0,
        environment={**slurm.variables, "PATH": path},
    )
    assert outcome.exit_code == -signal.SIGKILL, outcome
    assert (project.folder / "called").exists()
    wait_until_gone(project)
    wait_for("the job to be gone", lambda: jobs_of(slurm, project) == [], 60)
    wait_for("the folders to be gone", lambda: node_folders(slurm) <= before)


# Slurm counts in minutes.
@pytest.mark.full_length
def test_a_step_that_meets_slurms_time_limit_is_a_report_of_its_test(
    project: Project, slurm: Cluster
) -> None:
    project.write(
        {
            "test_long.py": """
            import time, rankwise

            @rankwise.mark.parallel(2)
            def test_long(comm):
                time.sleep(300)
            """
        }
    )
    outcome = run_slurm(project, slurm, "--slurm-srun-options=--time=1", limit=200.0)
    assert outcome.exit_code == 1, outcome
    assert outcome.counts() == {"passed": 3, "failed": 1}, outcome
    assert "time limit" in outcome.output, outcome


HANGS_IN_FINALIZE = """
import time
import rankwise
from mpi4py import MPI

def wait_for_ever(*_):
    time.sleep(1000)

@rankwise.mark.parallel(2)
def test_hang(comm):
    if comm.rank == 1:
        key = MPI.Comm.Create_keyval(delete_fn=wait_for_ever)
        MPI.COMM_SELF.Set_attr(key, 1)
"""


@pytest.mark.parametrize("scheduler", ["slurm", "slurm-pool"])
def test_a_rank_that_hangs_in_finalize_is_ended_at_the_time_limit_of_tests(
    project: Project, slurm: Cluster, scheduler: str
) -> None:
    project.write({"test_hang.py": HANGS_IN_FINALIZE})
    outcome = run_slurm(project, slurm, "--test-timeout=2", "test_hang.py", scheduler=scheduler)
    assert outcome.exit_code == pytest.ExitCode.TESTS_FAILED, str(outcome)
    assert outcome.verdicts == {"test_hang": "error in teardown"}, str(outcome)
    words = "exceeded its time limit of 2 s after its last test, at the end of the process"
    assert words in outcome.output, str(outcome)
    assert "in wait_for_ever" in outcome.output, str(outcome)
