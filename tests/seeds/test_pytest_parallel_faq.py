"""The readme of pytest_parallel: its Slurm scheduler, questions, notes and future work."""

from __future__ import annotations

import pytest
from cluster import Cluster

from tests.acceptance.harness import Project
from tests.seeds.readme_example import check, notes
from tests.seeds.sentences import sentence
from tests.seeds.typed import type_line
from tests.slurm.inner_suites import jobs_of, wait_for

README = "pytest_parallel"


# Slurm

SLURM = "pytest --n-workers=4 --scheduler=slurm test_pytest_parallel.py"
OPTIONS = {
    "--slurm-options": "--time=00:30:00 --qos=my_queue",
    "--slurm-additional-cmds": "source my_env.sh",
}
# Notes what the job is, and waits until the controller has reported another test.
OF_THE_JOB = """
    import os
    import subprocess
    import time
    from pathlib import Path

    import pytest_parallel
    from notes import note

    def test_job():
        job = os.environ["SLURM_JOB_ID"]
        asked = ["squeue", "--noheader", "--job", job, "-o%l %q %C"]
        note(*subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split())
        note(os.environ.get("OF_MY_ENV", "nothing"), os.environ.get("OF_THE_TERMINAL", "nothing"))

    @pytest_parallel.mark.parallel(2)
    def test_waits_for_a_report(comm):
        deadline = time.monotonic() + 60
        while not Path("reported").exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
"""
REPORTED = """
    from pathlib import Path

    def pytest_runtest_logreport(report):
        if "test_job" in report.nodeid and report.when == "teardown":
            Path("reported").touch()
"""


@pytest.fixture
def cluster(slurm_with_accounting: Cluster) -> Cluster:
    """A Slurm with the QOS that the readme names."""
    run = slurm_with_accounting.run
    if "my_queue" not in run("sacctmgr", "--noheader", "show", "qos", "format=name"):
        run("sacctmgr", "--immediate", "add", "qos", "my_queue")
        run("sacctmgr", "--immediate", "modify", "account", "root", "set", "qos+=my_queue")
        run("sacctmgr", "--immediate", "modify", "user", "root", "set", "qos+=my_queue")
    return slurm_with_accounting


@sentence(README, ran=SLURM)
def test_slurm_takes_care_of_the_scheduling(example: Project, cluster: Cluster) -> None:
    """The SLURM scheduler: SLURM takes care of the scheduling."""
    check(type_line(example, SLURM, **cluster.variables), "scheduler slurm", "(submitted)")
    wait_for("the job to be gone", lambda: jobs_of(cluster, example) == [])


@sentence(
    README,
    ran=" ".join(["pytest …", *(f'{name}="{value}"' for name, value in OPTIONS.items())]),
)
@sentence(
    README,
    ran="pytest … --slurm-additional-cmds=…",
    said="--slurm-additional-cmds: commands to be executed before the tests.",
)
@sentence(
    README,
    ran=SLURM,
    said="Each time the master receives a report, it treats it immediately.",
)
def test_the_job_is_submitted_with_the_options(example: Project, cluster: Cluster) -> None:
    """--slurm-options: options for sbatch, such as "--time=00:30:00 --qos=my_queue"."""
    example.write({"test_job.py": OF_THE_JOB, "conftest.py": REPORTED})
    example.write({"my_env.sh": "export OF_MY_ENV=sourced\n"})
    given = " ".join(f'{name}="{value}"' for name, value in OPTIONS.items())
    line = f"{SLURM} {given}".replace("test_pytest_parallel", "test_job")
    variables = {**cluster.variables, "OF_THE_TERMINAL": "exported"}
    outcome = type_line(example, line, **variables)
    assert outcome.counts() == {"passed": 2}, outcome
    assert notes(example) == [["30:00", "my_queue", "4"], ["sourced", "exported"]]


REFUSED = """\
--slurm-options="--ntasks=2"
--slurm-srun-options="--mem-per-cpu=4GBb"
"""


@sentence(README, ran=f"{SLURM} {REFUSED.splitlines()[0]}")
@sentence(
    README,
    ran=f"{SLURM} {REFUSED.splitlines()[1]}, and =300M",
    said="--slurm-srun-options: options for srun, such as --mem-per-cpu (4GBb is a slip).",
)
def test_options_of_srun_and_a_number_of_tasks(example: Project, cluster: Cluster) -> None:
    """Do not specify --ntasks: the value given by --n-workers is used."""
    ntasks, slip = REFUSED.splitlines()
    outcome = type_line(example, f"{SLURM} {ntasks}", **cluster.variables)
    assert outcome.exit_code == pytest.ExitCode.USAGE_ERROR, outcome
    assert "--n-workers" in outcome.errors, outcome
    outcome = type_line(example, f"{SLURM} {slip}", **cluster.variables)
    assert outcome.exit_code == pytest.ExitCode.USAGE_ERROR, outcome
    assert "Invalid --mem-per-cpu specification" in outcome.errors, outcome
    memory = """
        import os
        import subprocess

        def test_memory():
            step = f"{os.environ['SLURM_JOB_ID']}.{os.environ['SLURM_STEP_ID']}"
            asked = ["scontrol", "show", "step", step]
            said = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
            assert "mem=300M" in said
    """
    example.write({"test_memory.py": memory})
    line = f"{SLURM} {slip}".replace("4GBb", "300M").replace("pytest_parallel.py", "memory.py")
    outcome = type_line(example, line, **cluster.variables)
    assert outcome.counts() == {"passed": 1}, outcome


# Questions


WORLD = """
    import pytest_parallel
    from mpi4py import MPI

    def my_algo_implicitly_using_MPI_COMM_WORLD():
        assert MPI.COMM_WORLD.allreduce(1) == 2

    def my_other_algo_implicitly_using_MPI_COMM_WORLD():
        assert MPI.COMM_WORLD.allreduce(1) == 3

    @pytest_parallel.mark.parallel(2)
    def test_{first}(comm):
      assert comm.size == MPI.COMM_WORLD.size
      my_algo_implicitly_using_MPI_COMM_WORLD()

    @pytest_parallel.mark.parallel(3)
    def test_fail_one_rank(comm):
      # `comm` is unused but you currently need to write it down anyway
      my_other_algo_implicitly_using_MPI_COMM_WORLD()

    @pytest_parallel.mark.parallel(3)
    def test_without_comm():
      my_other_algo_implicitly_using_MPI_COMM_WORLD()
"""
ISOLATED = "mpirun -np 4 pytest --scheduler=shell test_pytest_parallel.py"


@sentence(README, ran=ISOLATED)
@sentence(README, ran=ISOLATED, said="comm is unused, but you currently need to write it down.")
@sentence(
    README,
    ran="mpirun -np 4 pytest test_pytest_parallel.py",
    said="With code that only uses MPI.COMM_WORLD, process-reuse schedulers will not work.",
)
def test_each_test_has_a_comm_world_of_its_size(example: Project) -> None:
    """My code only uses MPI.COMM_WORLD: the process-isolate schedulers can be used.

    The second test has the name of the first, as in the readme; so there is one with another name too.
    """
    verdicts = {"test_fail_one_rank[3]": "passed", "test_without_comm[3]": "passed"}
    for first in ("fail_one_rank", "first"):
        example.write({"test_pytest_parallel.py": WORLD.format(first=first)})
        outcome = type_line(example, ISOLATED)
        assert outcome.verdicts == verdicts, outcome
        verdicts["test_first[2]"] = "passed"
    outcome = type_line(example, ISOLATED.replace("--scheduler=shell ", ""))
    verdicts["test_first[2]"] = "passed"
    assert outcome.verdicts == verdicts, outcome


CONTEXT = """
    import pytest_parallel
    from mpi4py import MPI

    @pytest_parallel.mark.parallel_from_context
    def test_of_context(comm):
        assert comm.size == 3

    @pytest_parallel.mark.parallel(2)
    def test_of_two(comm):
        print("size", comm.size)
"""


@sentence(README, ran="mpirun -np 3 pytest --nprocs=3")
@sentence(
    README,
    ran="mpirun -np 3 pytest, and pytest --n-workers=3",
    said="@pytest_parallel.mark.parallel_from_context: as many processes as the command line says.",
)
def test_the_command_line_says_how_many_processes(example: Project) -> None:
    """No fixed number of processes: use that of the command line instead of the test's."""
    example.write({"test_context.py": CONTEXT})
    mpirun = "mpirun -np 3 pytest -rP test_context.py"
    for line in (mpirun, "pytest --n-workers=3 -rP test_context.py"):
        outcome = type_line(example, line)
        assert outcome.counts() == {"passed": 2}, outcome
        assert "size 2" in outcome.output, outcome
    outcome = type_line(example, f"{mpirun} --nprocs=3")
    assert outcome.counts() == {"passed": 2}, outcome
    assert "size 3" in outcome.output, outcome


DEADLOCK = """
    import pytest_parallel

    @pytest_parallel.mark.parallel(2)
    def test_deadlock(comm):
        if comm.rank == 0:
            comm.recv(source=1)

    @pytest_parallel.mark.parallel(2)
    def test_after(comm):
        comm.barrier()
"""


@sentence(README, ran="pytest --n-workers=2 --scheduler=shell --test-timeout=3 test_deadlock.py")
@sentence(
    README,
    ran="pytest --n-workers=2 --scheduler=shell --test-timeout=3 test_deadlock.py",
    said="My test suite deadlocks. How do I pinpoint the test at fault?",
)
def test_a_deadlock_is_ended_and_named(example: Project) -> None:
    """A solution that we need to implement is timeouts for the process-isolate schedulers."""
    example.write({"test_deadlock.py": DEADLOCK})
    line = "pytest --n-workers=2 --scheduler=shell --test-timeout=3 test_deadlock.py"
    outcome = type_line(example, line)
    assert outcome.verdicts == {"test_deadlock[2]": "failed", "test_after[2]": "passed"}, outcome
    assert "comm.recv(source=1)" in outcome.output, outcome


@sentence(
    README,
    ran="mpirun -np 1 pytest --n-workers=4 --scheduler=shell test_pytest_parallel.py",
)
def test_shell_may_be_started_by_mpirun(example: Project) -> None:
    """On some systems, mpi4py without mpirun does not work (MPI_INIT failed): use mpirun -np 1."""
    line = "mpirun -np 1 pytest --n-workers=4 --scheduler=shell test_pytest_parallel.py"
    check(type_line(example, line), "4 workers, ", "scheduler shell")
    check(type_line(example, line.removeprefix("mpirun -np 1 ")), "scheduler shell")


# Future work


EXCLUSIVE = """
    import time

    import pytest
    import pytest_parallel
    from notes import note

    def noted(name):
        note("begin", name)
        time.sleep(0.05)
        note("end", name)

    @pytest.mark.parametrize("number", range(4))
    def test_other(number):
        noted("other")

    @pytest_parallel.mark.parallel(4, exclusive_numa_domain='cpu')
    def test_fills_the_machine(comm):
        noted("fills")

    @pytest_parallel.mark.parallel(1, exclusive_numa_domain='cpu')
    def test_alone(comm):
        noted("alone")
"""


@sentence(
    README,
    ran="pytest --n-workers=4: @pytest_parallel.mark.parallel(4, exclusive_numa_domain='cpu')",
)
def test_an_exclusive_test_has_its_domain_alone(example: Project) -> None:
    """Reserve more procs than declared: parallel(4, exclusive_numa_domain='cpu')."""
    example.write({"test_exclusive.py": EXCLUSIVE})
    outcome = type_line(example, "pytest --n-workers=4 test_exclusive.py")
    assert outcome.counts() == {"passed": 6}, outcome
    running: list[str] = []
    for what, name in notes(example):
        if what == "end":
            running.remove(name)
        else:
            running.append(name)
        assert "alone" not in running or running == ["alone"]
        assert "fills" not in running or set(running) == {"fills"}
