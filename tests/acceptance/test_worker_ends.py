"""Every end of a worker that was not asked for is a failure, whenever it comes."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from xml.etree import ElementTree

import psutil
import pytest

from tests.acceptance.harness import Outcome, Project
from tests.acceptance.inner import run_pytest
from tests.acceptance.leftovers import processes_of, wait_for_text, wait_until_gone
from tests.acceptance.pools import run_pool

# MPI_Abort

ABORTING = """
    from mpi4py import MPI
    from rankwise import mark


    def test_before():
        pass


    @mark.parallel(2)
    def test_one_of_two(comm):
        if comm.rank == 1:
            MPI.COMM_WORLD.Abort(0)


    @mark.parallel(2)
    def test_both(comm):
        MPI.COMM_WORLD.Abort(4)


    def test_alone():
        MPI.COMM_WORLD.Abort(3)


    @mark.parallel(2)
    def test_after(comm):
        assert comm.allreduce(1) == 2
"""


def test_a_test_that_calls_abort_fails_whichever_rank_and_code(
    project_on_both: Project, temporary: Path, crew: str
) -> None:
    project_on_both.write({"test_aborting.py": ABORTING})
    outcome = run_pool(project_on_both, temporary, f"--scheduler={crew}")
    assert outcome.exit_code == pytest.ExitCode.TESTS_FAILED, str(outcome)
    assert outcome.verdicts == {
        "test_before": "passed",
        "test_one_of_two": "failed",
        "test_both": "failed",
        "test_alone": "failed",
        "test_after": "passed",
    }, str(outcome)


def test_without_captured_output_an_abort_fails_the_run_too(
    project: Project, temporary: Path, crew: str
) -> None:
    project.write({"test_aborting.py": ABORTING})
    outcome = run_pool(
        project, temporary, f"--scheduler={crew}", "--capture=no", "-k", "test_one_of_two"
    )
    assert outcome.exit_code == pytest.ExitCode.TESTS_FAILED, str(outcome)
    assert outcome.verdicts["test_one_of_two"] in ("failed", "error in teardown"), str(outcome)


# Between tests, and after the last one

IDLE = """
    import os
    import sys
    import threading
    import time
    from pathlib import Path

    STARTED = Path("started")


    def end_when_idle(thread):
        while not STARTED.exists() or "receive" not in functions_of(thread):
            time.sleep(0.005)
        os._exit(5)


    def functions_of(thread):
        frame = sys._current_frames()[thread]
        while frame is not None:
            yield frame.f_code.co_name
            frame = frame.f_back


    def test_leaves_a_thread():
        arguments = [threading.get_ident()]
        threading.Thread(target=end_when_idle, args=arguments, daemon=True).start()


    def test_beside():
        if not STARTED.exists():
            STARTED.touch()
            time.sleep(20)
"""


def test_a_rank_that_ends_between_two_tests_is_an_error_of_the_last_one(
    project: Project, temporary: Path
) -> None:
    project.write({"test_idle.py": IDLE})
    # Then no worker is given several tests at once.
    outcome = run_pool(project, temporary, "--maxfail=9")
    assert outcome.exit_code == pytest.ExitCode.TESTS_FAILED, str(outcome)
    assert outcome.verdicts == {
        "test_leaves_a_thread": "error in teardown",
        "test_beside": "passed",
    }, str(outcome)
    assert "exited with code 5" in outcome.output, str(outcome)
    assert "between two tests" in outcome.output, str(outcome)


ENDING = """
    import atexit
    import os

    from mpi4py import MPI
    from rankwise import mark


    def crash():
        os.write(2, b"the last words of this rank\\n")
        os.abort()


    def leave():
        os.write(2, b"SUMMARY: LeakSanitizer: 16 bytes leaked\\n")
        os._exit(23)


    @mark.parallel(2)
    def test_exit_handler(comm):
        if comm.rank == 1:
            atexit.register(crash)


    @mark.parallel(2)
    def test_exit_code(comm):
        atexit.register(leave)


    @mark.parallel(2)
    def test_finalize(comm):
        if comm.rank == 1:
            key = MPI.Comm.Create_keyval(delete_fn=lambda *_: crash())
            MPI.COMM_SELF.Set_attr(key, 1)


    @mark.parallel(2)
    def test_session_finish(comm, pytestconfig):
        pytestconfig.leaves = comm.rank == 1
"""

ENDING_HOOKS = """
    import os


    def pytest_sessionfinish(session):
        if getattr(session.config, "leaves", False):
            os._exit(0)
"""

END_OF_PROCESS = "after its last test, at the end of the process"
ENDS = {
    "test_exit_handler": ("rank 1 of 2 was killed by SIGABRT", "the last words of this rank"),
    "test_exit_code": ("ended with exit code 23", "SUMMARY: LeakSanitizer: 16 bytes leaked"),
    "test_finalize": ("rank 1 of 2 was killed by SIGABRT", "the last words of this rank"),
    "test_session_finish": ("rank 1 of 2 exited with code 0", ""),
}


def check_end(outcome: Outcome, name: str) -> None:
    how, said = ENDS[name]
    assert outcome.exit_code == pytest.ExitCode.TESTS_FAILED, str(outcome)
    assert outcome.verdicts == {name: "error in teardown"}, str(outcome)
    assert how in outcome.output, str(outcome)
    assert END_OF_PROCESS in outcome.output, str(outcome)
    assert said in outcome.output, str(outcome)


@pytest.mark.parametrize("name", ENDS)
def test_a_rank_that_ends_badly_after_its_last_test_is_an_error_of_that_test(
    project: Project, temporary: Path, crew: str, name: str
) -> None:
    project.write({"test_ending.py": ENDING, "conftest.py": ENDING_HOOKS})
    check_end(run_pool(project, temporary, f"--scheduler={crew}", "-k", name), name)


# Limits

ANSWERED_AT_ONCE = """
    import rankwise.pytest_plugin.workers.controller as controller

    # So long the controller used to wait, whatever the time limit.
    controller._GOODBYE_SECONDS = 0.5
"""


def test_a_rank_that_hangs_in_finalize_is_ended_at_the_time_limit_with_its_stack(
    project: Project, temporary: Path, crew: str
) -> None:
    project.write(
        {
            "test_hang.py": """
                import time

                from mpi4py import MPI
                from rankwise import mark


                def wait_for_ever(*_):
                    time.sleep(1000)


                @mark.parallel(2)
                def test_hang(comm):
                    if comm.rank == 1:
                        key = MPI.Comm.Create_keyval(delete_fn=wait_for_ever)
                        MPI.COMM_SELF.Set_attr(key, 1)
            """
        }
    )
    outcome = run_pool(project, temporary, f"--scheduler={crew}", "--test-timeout=2")
    assert outcome.exit_code == pytest.ExitCode.TESTS_FAILED, str(outcome)
    assert outcome.verdicts == {"test_hang": "error in teardown"}, str(outcome)
    assert f"exceeded its time limit of 2 s {END_OF_PROCESS}" in outcome.output, str(outcome)
    assert "in wait_for_ever" in outcome.output, str(outcome)


def test_fixtures_of_a_session_may_take_their_time_to_be_torn_down(
    project: Project, temporary: Path
) -> None:
    project.write(
        {
            "conftest.py": ANSWERED_AT_ONCE,
            "test_slow.py": """
                import time
                from pathlib import Path

                import pytest


                @pytest.fixture(scope="session")
                def server():
                    yield
                    time.sleep(2)
                    Path("torn-down").touch()


                def test_server(server):
                    pass
            """,
        }
    )
    outcome = run_pool(project, temporary)
    assert outcome.exit_code == pytest.ExitCode.OK, str(outcome)
    assert (project.folder / "torn-down").exists(), str(outcome)


# Notes the processes of each test, and counts those that are still there.
COUNTING = """
    import os
    from pathlib import Path


    def note_process():
        with Path("processes").open("a") as file:
            file.write(f"{os.getpid()}\\n")


    def count_processes():
        return sum(map(is_there, Path("processes").read_text().split()))


    def is_there(number):
        try:
            return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False
"""


def test_idle_worlds_of_exact_size_do_not_pile_up(project: Project, temporary: Path) -> None:
    project.write(
        {
            "counting.py": COUNTING,
            "test_sizes.py": """
                import time

                from counting import count_processes, note_process
                from rankwise import mark


                @mark.parallel([2, 3, 4, 5, 6], world=True)
                def test_world(comm):
                    note_process()


                def test_last():
                    deadline = time.monotonic() + 20
                    while (count := count_processes()) > 18 and time.monotonic() < deadline:
                        time.sleep(0.05)
                    assert count <= 18  # three for each worker
            """,
        }
    )
    outcome = run_pool(project, temporary, "--policy=sequential", workers="6")
    assert outcome.counts() == {"passed": 6}, str(outcome)
    assert len((project.folder / "processes").read_text().split()) == 20, str(outcome)


def test_ranks_that_hang_in_finalize_do_not_pile_up(project: Project, temporary: Path) -> None:
    project.write(
        {
            "counting.py": COUNTING,
            "test_hang.py": """
                import time

                import pytest
                from counting import count_processes, note_process
                from mpi4py import MPI
                from rankwise import mark


                @mark.parallel(2)
                @pytest.mark.parametrize("number", range(6))
                def test_hang(comm, number):
                    note_process()
                    comm.Barrier()
                    key = MPI.Comm.Create_keyval(delete_fn=lambda *_: time.sleep(1000))
                    MPI.COMM_SELF.Set_attr(key, 1)
                    # Two for each worker and the world that made it more, and those of this test.
                    assert count_processes() <= 8
            """,
        }
    )
    outcome = run_pool(project, temporary, "--scheduler=shell", "--test-timeout=6")
    assert outcome.counts() == {"error in teardown": 6}, str(outcome)


def test_a_fixture_of_a_session_that_has_no_end_is_an_error_at_the_time_limit(
    project: Project, temporary: Path, crew: str
) -> None:
    project.write(
        {
            "conftest.py": ANSWERED_AT_ONCE,
            "test_endless.py": """
                import time

                import pytest
                from rankwise import mark


                @pytest.fixture(scope="session")
                def server():
                    yield
                    time.sleep(1000)


                @mark.parallel(2)
                def test_server(server, comm):
                    pass
            """,
        }
    )
    outcome = run_pool(project, temporary, f"--scheduler={crew}", "--test-timeout=2")
    assert outcome.exit_code == pytest.ExitCode.TESTS_FAILED, str(outcome)
    assert outcome.verdicts == {"test_server": "error in teardown"}, str(outcome)
    assert "exceeded its time limit of 2 s" in outcome.output, str(outcome)
    assert "time.sleep(1000)" in outcome.output, str(outcome)


def test_a_world_that_does_not_start_has_a_limit_also_without_a_template(
    project: Project, temporary: Path
) -> None:
    real = project.mpi.mpiexec
    project.write(
        {
            "mpiexec": f"""
                #!/bin/sh
                case "$*" in *--version*) exec {real} "$@" ;; esac
                echo "waits for a node"
                exec sleep 1000
            """,
            "conftest.py": """
                import rankwise.pytest_plugin.workers.pool as pool

                pool._START_SECONDS = 1.0
            """,
            "test_nothing.py": "def test_nothing(): pass",
        }
    )
    (project.folder / "mpiexec").chmod(0o755)
    outcome = run_pytest(
        project,
        *("--n-workers=2", "--no-warm-start"),
        ranks=None,
        limit=60.0,
        environment={
            "TMPDIR": str(temporary),
            "RANKWISE_MPIEXEC": str(project.folder / "mpiexec"),
        },
    )
    assert outcome.exit_code == pytest.ExitCode.USAGE_ERROR, str(outcome)
    assert "could not be started within 1 s" in outcome.errors, str(outcome)
    assert "waits for a node" in outcome.errors, str(outcome)
    wait_until_gone(project)


@pytest.mark.parametrize("trouble", ["sleep 1000", "false"], ids=["hangs", "fails"])
def test_worlds_that_do_not_start_side_by_side_count_as_one_try(
    project: Project, temporary: Path, trouble: str
) -> None:
    real = project.mpi.mpiexec
    project.write(
        {
            "mpiexec": f"""
                #!/bin/sh
                case "$*" in *--version*) exec {real} "$@" ;; esac
                for number in 1 2 3 4; do
                    if mkdir try$number 2>/dev/null; then exec {trouble}; fi
                done
                exec {real} "$@"
            """,
            "conftest.py": """
                import rankwise.pytest_plugin.workers.pool as pool

                # The first try has a quarter of it.
                pool._START_SECONDS = 8.0
            """,
            "test_alone.py": """
                import pytest


                @pytest.mark.parametrize("number", range(4))
                def test_alone(number):
                    pass
            """,
        }
    )
    (project.folder / "mpiexec").chmod(0o755)
    outcome = run_pytest(
        project,
        *("--n-workers=4", "--scheduler=shell"),
        ranks=None,
        limit=60.0,
        environment={
            "TMPDIR": str(temporary),
            "RANKWISE_MPIEXEC": str(project.folder / "mpiexec"),
        },
    )
    assert outcome.exit_code == pytest.ExitCode.OK, str(outcome)
    wait_until_gone(project)


# Processes that ranks are started by


def test_a_killed_mpiexec_fails_the_run_though_its_tests_run_again(
    project: Project, temporary: Path
) -> None:
    project.write(
        {
            "test_mpiexec.py": """
                import os
                import time
                from pathlib import Path

                from rankwise import mark


                @mark.parallel(2)
                def test_pair(comm):
                    if comm.rank == 0 and not Path("here").exists():
                        Path("here").touch()
                        time.sleep(30)
            """
        }
    )
    junit = project.folder / "junit.xml"
    with ThreadPoolExecutor() as pool:
        inner = pool.submit(run_pool, project, temporary, f"--junitxml={junit}")
        wait_for_text(project.folder / "here")
        [mpiexec] = [one for one in processes_of(project) if "mpiexec" in one.name()]
        mpiexec.kill()
        outcome = inner.result()
    assert outcome.exit_code == pytest.ExitCode.TESTS_FAILED, str(outcome)
    assert outcome.verdicts == {"test_pair": "passed"}, str(outcome)
    assert "rankwise: ERROR: a world of 2 ranks: all 2 ranks were ended from outside" in (
        outcome.output
    ), str(outcome)
    assert "started again, because they ran there: test_mpiexec.py::test_pair" in (
        outcome.output
    ), str(outcome)
    # There are CIs that read this file and nothing else.
    suite = ElementTree.parse(junit).getroot()[0]
    assert (suite.get("tests"), suite.get("errors")) == ("2", "1"), str(outcome)
    [error] = suite.iterfind("./testcase[@classname='rankwise'][@name='session']/error")
    assert "all 2 ranks were ended from outside" in str(error.get("message")), str(outcome)


STUBBORN = """
    import signal
    import time
    from pathlib import Path

    from rankwise import mark


    @mark.parallel(2)
    def test_stubborn(comm):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        Path(f"here-{comm.rank}").touch()
        while Path("wait").exists():
            time.sleep(0.05)
"""


def test_tests_do_not_see_the_secret_of_the_run(project_on_both: Project, temporary: Path) -> None:
    project_on_both.write(
        {
            "test_secret.py": """
                import os


                def test_secret():
                    assert "RANKWISE_SECRET" not in os.environ
            """
        }
    )
    outcome = run_pool(project_on_both, temporary, "--no-warm-start")
    assert outcome.exit_code == pytest.ExitCode.OK, str(outcome)


@pytest.mark.parametrize("start", ["--no-warm-start", "--n-workers=2"])
def test_nothing_outlives_a_killed_supervisor(
    project_on_both: Project, temporary: Path, start: str
) -> None:
    project = project_on_both
    project.write({"test_stubborn.py": STUBBORN, "wait": ""})
    with ThreadPoolExecutor() as pool:
        inner = pool.submit(
            run_pytest,
            project,
            *("--n-workers=2", start),
            ranks=None,
            environment={"TMPDIR": str(temporary)},
        )
        for rank in range(2):
            wait_for_text(project.folder / f"here-{rank}")
        supervisor_of(project).send_signal(signal.SIGKILL)
        outcome = inner.result()
    wait_until_gone(project)
    assert outcome.exit_code != pytest.ExitCode.OK, str(outcome)
    assert "the process that starts the ranks is gone" in outcome.output, str(outcome)


def supervisor_of(project: Project) -> psutil.Process:
    """Find the process that has started mpiexec."""
    [mpiexec] = [
        one
        for one in processes_of(project)
        if any(name in one.name() for name in ("mpiexec", "prterun", "mpirun"))
    ]
    found = mpiexec.parent()
    assert found is not None
    return found


# Processes that tests fork

FORKING = """
    import os
    import sys

    import pytest
    from rankwise import mark


    def exit_code_of(child):
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


    def test_child_returns():
        child = os.fork()
        if child:
            assert exit_code_of(child) == 70


    def test_child_calls_exit():
        child = os.fork()
        if not child:
            sys.exit(3)
        assert exit_code_of(child) == 3


    def test_child_fails():
        child = os.fork()
        assert child, "an assertion in the child"
        assert exit_code_of(child) == 70


    @pytest.fixture
    def forked():
        child = os.fork()
        yield child
        if child:
            assert exit_code_of(child) == 70


    def test_fixture_forks(forked):
        pass


    @mark.parallel(2)
    def test_pair(comm):
        child = os.fork()
        if child:
            assert exit_code_of(child) == 70
            assert comm.allreduce(1) == 2


    def test_parent_fails():
        if os.fork():
            raise ValueError("the parent's own failure")
"""


@pytest.mark.parametrize("how", ["pool", "shell", "mpirun"])
def test_a_forked_child_that_comes_back_out_of_a_test_reports_nothing(
    project: Project, temporary: Path, how: str
) -> None:
    project.write({"test_forking.py": FORKING})
    if how == "mpirun":
        outcome = run_pytest(project, ranks=2)
    else:
        outcome = run_pool(project, temporary, f"--scheduler={how}")
    assert outcome.exit_code == pytest.ExitCode.TESTS_FAILED, str(outcome)
    names = ["child_returns", "child_calls_exit", "child_fails", "fixture_forks", "pair"]
    assert outcome.verdicts == {
        **{f"test_{name}": "passed" for name in names},
        "test_parent_fails": "failed",
    }, str(outcome)
    assert len(outcome.reports) == 3 * 6, str(outcome)
    assert "INTERNALERROR" not in outcome.output, str(outcome)
    assert "came back out of the test and was ended" in outcome.output, str(outcome)
