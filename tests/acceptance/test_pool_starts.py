"""However the ranks of a pool are started, the verdicts are the same."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.acceptance.harness import Project
from tests.acceptance.pools import run_pool
from tests.seeds.sentences import sentence

# Ways to start

MIXED = """
    import os
    import signal

    import pytest
    from rankwise import mark


    def test_alone():
        pass


    @mark.parallel(2)
    def test_pair(comm):
        assert comm.allreduce(1) == 2


    @mark.parallel(2, world=True)
    def test_world_of_two(comm):
        from mpi4py import MPI

        assert MPI.COMM_WORLD.size == 2
        assert MPI.COMM_WORLD.allreduce(MPI.COMM_WORLD.rank) == 1


    @mark.parallel(2)
    def test_crash(comm):
        if comm.rank == 1:
            os.kill(os.getpid(), signal.SIGSEGV)
        comm.Barrier()


    def test_wrong():
        assert "apples" == "pears"


    @pytest.mark.skip(reason="not today")
    def test_skipped():
        pass
"""
MIXED_VERDICTS = {
    "test_alone": "passed",
    "test_pair": "passed",
    "test_world_of_two": "passed",
    "test_crash": "failed",
    "test_wrong": "failed",
    "test_skipped": "skipped",
}


@sentence(
    "pytest_parallel",
    ran="make test: `--scheduler=pool` and `shell`",
    said="Future work: add the process-isolate scheduler to the CI.",
)
@pytest.mark.parametrize(
    ("policy", "start"),
    [
        ("dynamic", "warm"),
        ("static", "warm"),
        ("sequential", "warm"),
        ("dynamic", "cold"),
        # A scheduler does not know how ranks are started.
        pytest.param("static", "cold", marks=pytest.mark.full_length),
        pytest.param("sequential", "cold", marks=pytest.mark.full_length),
    ],
)
def test_verdicts_do_not_depend_on_how_ranks_are_started(
    project_on_both: Project, temporary: Path, crew: str, policy: str, start: str
) -> None:
    project = project_on_both
    project.write({"test_mixed.py": MIXED})
    cold = ["--no-warm-start"] if start == "cold" else []
    outcome = run_pool(project, temporary, f"--scheduler={crew}", f"--policy={policy}", *cold)
    assert outcome.verdicts == MIXED_VERDICTS, str(outcome)
    assert outcome.exit_code == pytest.ExitCode.TESTS_FAILED, str(outcome)
    assert "rank 1 of 2 was killed by SIGSEGV (segmentation fault) in call" in outcome.output


def test_a_pool_can_be_started_by_an_mpirun_of_one(
    project_on_both: Project, temporary: Path, crew: str
) -> None:
    project = project_on_both
    project.write({"test_mixed.py": MIXED})
    outcome = run_pool(project, temporary, f"--scheduler={crew}", ranks=1)
    assert outcome.verdicts == MIXED_VERDICTS, str(outcome)
    assert outcome.exit_code == pytest.ExitCode.TESTS_FAILED, str(outcome)


def test_there_are_as_many_workers_as_cores(project: Project, temporary: Path) -> None:
    project.write(
        {
            "test_workers.py": """
                import os

                from rankwise import mark


                def test_alone():
                    pass


                # Asked for here: a rank may be kept on one core.
                CORES = len(os.sched_getaffinity(0))


                @mark.parallel(CORES)
                def test_everyone(comm):
                    assert comm.allreduce(1) == CORES
            """
        }
    )
    outcome = run_pool(project, temporary, workers="auto")
    cores = len(os.sched_getaffinity(0))
    assert f"rankwise: {cores} worker" in outcome.output, str(outcome)
    assert outcome.exit_code == pytest.ExitCode.OK, str(outcome)
    assert outcome.counts() == {"passed": 2}, str(outcome)


# Modules that use MPI as soon as they are loaded

IMPORTS = {
    "a module": {
        "test_early.py": """
            from mpi4py import MPI
            from rankwise import mark

            rank = MPI.COMM_WORLD.rank
            size = MPI.COMM_WORLD.Get_size()


            def test_alone():
                assert rank < size
                assert MPI.COMM_WORLD.size == 1


            @mark.parallel(2, world=True)
            def test_pair(comm):
                assert rank == MPI.COMM_WORLD.rank == comm.rank
                assert size == MPI.COMM_WORLD.size == comm.size
                assert comm.allreduce(rank) == 1
        """
    },
    "a conftest": {
        "conftest.py": """
            import pytest
            from mpi4py import MPI

            rank = MPI.COMM_WORLD.rank
            size = MPI.COMM_WORLD.Get_size()

            @pytest.fixture
            def early():
                return rank, size
        """,
        "test_late.py": """
            from mpi4py import MPI
            from rankwise import mark


            def test_alone(early):
                assert early[0] < early[1]
                assert MPI.COMM_WORLD.size == 1


            @mark.parallel(2, world=True)
            def test_pair(comm, early):
                assert early == (comm.rank, comm.size)
                assert comm.allreduce(early[0]) == 1
        """,
    },
}


@pytest.mark.parametrize("place", IMPORTS)
def test_modules_may_use_mpi_as_soon_as_they_are_loaded(
    project_on_both: Project, temporary: Path, crew: str, place: str
) -> None:
    project = project_on_both
    project.write(IMPORTS[place])
    outcome = run_pool(project, temporary, f"--scheduler={crew}")
    assert outcome.verdicts == {"test_alone": "passed", "test_pair": "passed"}, str(outcome)
    assert outcome.exit_code == pytest.ExitCode.OK, str(outcome)
    assert outcome.output.count("ranks import the tests themselves") == 1, str(outcome)


@pytest.mark.parametrize("start", [(), ("--no-warm-start",)], ids=["warm", "cold"])
def test_workers_have_the_options_of_the_interpreter(
    project: Project, temporary: Path, start: tuple[str, ...]
) -> None:
    project.write(
        {
            "test_flags.py": """
                import sys


                def test_flags():
                    if __debug__ or "error::UserWarning" not in sys.warnoptions:
                        raise ValueError(f"{__debug__} {sys.warnoptions}")
            """
        }
    )
    interpreter = [str(project.mpi.python), "-O", "-W", "error::UserWarning"]
    outcome = project.run(
        [*interpreter, *("-m", "pytest", "-p", "rankwise", "--n-workers=1"), *start],
        environment={"TMPDIR": str(temporary), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )
    assert outcome.exit_code == pytest.ExitCode.OK, str(outcome)
    assert "1 passed" in outcome.output, str(outcome)


THREADED = """
    import threading
    import time

    from mpi4py import MPI
    from rankwise import mark

    threading.Thread(target=threading.Event().wait, daemon=True, name="busy").start()
    # The programs that mpiexec starts are there by now, and wait for their processes.
    time.sleep(1.0)


    def test_alone():
        pass


    @mark.parallel(2)
    def test_pair(comm):
        assert comm.allreduce(1) == 2
"""


def test_a_template_with_threads_makes_no_ranks(project: Project, temporary: Path) -> None:
    project.write({"test_threaded.py": THREADED})
    outcome = run_pool(project, temporary, limit=60.0)
    assert outcome.verdicts == {"test_alone": "passed", "test_pair": "passed"}, str(outcome)
    assert outcome.exit_code == pytest.ExitCode.OK, str(outcome)
    assert "threads were started while the tests were collected (busy)" in outcome.output


# What keeps workers from being started, and what does not


def test_the_folder_of_the_tests_may_have_a_name_that_is_not_text(
    project: Project, temporary: Path
) -> None:
    folder = os.fsdecode(b"caf\xe9 of 'old'")
    project.write({f"{folder}/test_it.py": "def test_alone():\n    pass\n"})
    # The cache of pytest itself cannot keep such names.
    outcome = run_pool(project, temporary, "-p", "no:cacheprovider")
    assert outcome.exit_code == pytest.ExitCode.OK, str(outcome)
    assert outcome.counts() == {"passed": 1}, str(outcome)


def test_an_address_that_this_machine_does_not_have_is_refused_and_leaves_nothing(
    project: Project, temporary: Path
) -> None:
    project.write({"test_it.py": "def test_alone():\n    pass\n"})
    outcome = run_pool(project, temporary, "--scheduler=slurm", "--slurm-address=203.0.113.7")
    assert outcome.exit_code == pytest.ExitCode.USAGE_ERROR, str(outcome)
    assert "ERROR: cannot listen on 203.0.113.7: " in str(outcome)
    assert "Traceback" not in str(outcome)


def test_the_end_of_the_supervisor_before_the_header_is_an_error_in_one_line(
    project: Project, temporary: Path
) -> None:
    project.write(
        {
            "conftest.py": """
                import os
                import signal
                import sys
                from pathlib import Path

                if "rankwise.pytest_plugin.workers.controller" in sys.modules:
                    own = os.getpid()
                    children = Path(f"/proc/{own}/task/{own}/children").read_text()
                    for child in children.split():
                        os.kill(int(child), signal.SIGKILL)
            """,
            "test_it.py": "def test_alone():\n    pass\n",
        }
    )
    outcome = run_pool(project, temporary)
    assert outcome.exit_code == pytest.ExitCode.USAGE_ERROR, str(outcome)
    assert "ERROR: the process that starts the ranks is gone" in str(outcome)
    assert "INTERNALERROR" not in str(outcome)


# Cores


@sentence(
    "pytest_parallel",
    ran="pytest --n-workers=… --scheduler=shell --bind=core",
    said="shell pins exactly one core per process, which is wrong with several threads in each.",
)
@pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="needs 2 cores, and this machine has one"
)
def test_each_rank_has_cores_of_its_own_and_as_many_threads(
    project_on_both: Project, temporary: Path, crew: str
) -> None:
    project_on_both.write(
        {
            "test_cores.py": """
                import os
                from rankwise import mark


                @mark.parallel(2)
                def test_a_core_each(comm):
                    mine = os.sched_getaffinity(0)
                    assert len(mine) == 1
                    assert len(set().union(*comm.allgather(mine))) == 2
                    assert os.environ["OMP_NUM_THREADS"] == "1"


                @mark.parallel(1, threads=2)
                def test_two_cores(comm):
                    assert len(os.sched_getaffinity(0)) == 2
                    assert os.environ["OMP_NUM_THREADS"] == "2"


                @mark.parallel(1, exclusive="node")
                def test_alone(comm):
                    assert len(os.sched_getaffinity(0)) == 1
            """
        }
    )
    outcome = run_pool(project_on_both, temporary, f"--scheduler={crew}", "--bind=core")
    assert outcome.counts() == {"passed": 3}, str(outcome)
    outcome = run_pool(project_on_both, temporary, f"--scheduler={crew}", "--bind=none")
    assert outcome.verdicts["test_a_core_each"] == "failed", str(outcome)
