"""Whatever a test does to its process, the run goes on and the reports are right."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.acceptance.harness import Project
from tests.acceptance.pools import run_pool

# What tests do to their process


def test_a_hundred_megabytes_of_output_are_no_burden(
    project: Project, temporary: Path, crew: str
) -> None:
    project.write(
        {
            "test_output.py": """
                import os
                import sys

                import pytest
                from rankwise import mark

                LINE = "x" * 99 + "\\n"


                def print_much():
                    for _ in range(100):
                        sys.stdout.write(LINE * 10**4)


                @mark.parallel(2)
                def test_prints_much(comm):
                    if comm.rank == 1:
                        print_much()


                @mark.parallel(2)
                def test_prints_much_and_fails(comm):
                    if comm.rank == 1:
                        print_much()
                    assert comm.rank == 0, "after all that"


                @mark.parallel(2)
                def test_prints_much_and_crashes(comm):
                    if comm.rank == 1:
                        print_much()
                        print("the last words", flush=True)
                        os.abort()
                    comm.Barrier()


                @mark.parallel(2)
                def test_afterwards(comm):
                    assert comm.allreduce(1) == 2
            """
        }
    )
    outcome = run_pool(project, temporary, f"--scheduler={crew}", "--show-capture=no", limit=120.0)
    assert outcome.exit_code == pytest.ExitCode.TESTS_FAILED, str(outcome)[-5000:]
    assert outcome.verdicts == {
        "test_prints_much": "passed",
        "test_prints_much_and_fails": "failed",
        "test_prints_much_and_crashes": "failed",
        "test_afterwards": "passed",
    }, str(outcome)[-5000:]
    assert "after all that" in outcome.output
    assert "rank 1 of 2 was killed by SIGABRT" in outcome.output


# Each leaves its process in a state in which the next test would not like to find it.
DISTURBANCES = {
    "closes its output": "os.close(1); os.close(2)",
    "closes its input": "os.close(0)",
    "replaces its streams": "sys.stdout = sys.stderr = None",
    "goes elsewhere": "os.chdir('/')",
    "goes where nothing is": "os.chdir(tempfile.mkdtemp()); os.rmdir(os.getcwd())",
    "clears its environment": "os.environ.clear()",
    "changes its environment": (
        "os.environ.update(PMI_RANK='7', PMI_SIZE='9', OMPI_COMM_WORLD_RANK='7', TMPDIR='/none', "
        "PATH='', PYTHONPATH='', RANKWISE_WORLD='99')"
    ),
    "ignores SIGTERM and SIGINT": (
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.signal(signal.SIGINT, signal.SIG_IGN)"
    ),
    "ignores SIGCHLD": "signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
    "blocks all signals": "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())",
    "has a low recursion limit": "sys.setrecursionlimit(sys.getrecursionlimit() // 2)",
    "has a mask": "os.umask(0o777)",
    "starts a program": "subprocess.Popen(['sleep', '1000'])",
    "starts a program that reads along": (
        "subprocess.Popen(['sleep', '1000'], close_fds=False, start_new_session=True)"
    ),
    "starts a copy": "os.fork() or time.sleep(1000)",
    "starts a thread": "threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()",
    "starts a thread that is waited for": (
        "threading.Thread(target=time.sleep, args=(1,)).start()"
    ),
    "becomes a group": "os.setpgid(0, 0)",
    "sets an alarm": "signal.alarm(1000)",
    "lowers the limit of files": (
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))"
    ),
    "disables garbage collection": "gc.disable()",
    "switches faulthandler off": "faulthandler.disable()",
    "forgets its modules": "sys.modules.pop('mpi4py.MPI', None); sys.modules.pop('json', None)",
}


_DISTURBING = """
import faulthandler, gc, os, resource, signal, subprocess, sys, tempfile, threading, time

import pytest
from rankwise import mark


def disturb(name):
    exec(DISTURBANCES[name])


@pytest.mark.parametrize("name", DISTURBANCES)
@mark.parallel(2)
@pytest.mark.filterwarnings("ignore")
def test_disturbing(comm, name):
    disturb(name)


@mark.parallel(2)
def test_pair(comm):
    assert comm.allreduce(1) == 2


@pytest.mark.parametrize("number", range(4))
def test_alone(number):
    print("something")


def test_wrong():
    assert "apples" == "pears"


@mark.parallel(2)
def test_wrong_on_one_rank(comm):
    assert comm.rank == 0, "only rank zero is right"
"""


def run_disturbed(
    project: Project, temporary: Path, crew: str, disturbances: Mapping[str, str]
) -> dict[str, str]:
    """Run tests that disturb their process before others; gives the verdicts on the former."""
    project.write({"test_disturbing.py": f"DISTURBANCES = {dict(disturbances)!r}\n{_DISTURBING}"})
    outcome = run_pool(project, temporary, f"--scheduler={crew}", "--policy=sequential")
    verdicts = outcome.verdicts
    found = {name: verdicts.pop(f"test_disturbing[{name}]") for name in disturbances}
    assert verdicts == {
        "test_pair": "passed",
        **{f"test_alone[{number}]": "passed" for number in range(4)},
        "test_wrong": "failed",
        "test_wrong_on_one_rank": "failed",
    }, str(outcome)
    assert len(outcome.reports) == (7 + len(disturbances)) * 3, str(outcome)
    assert outcome.exit_code == pytest.ExitCode.TESTS_FAILED, str(outcome)
    assert "assert 'apples' == 'pears'" in outcome.output
    assert "only rank zero is right" in outcome.output
    return found


@pytest.mark.parametrize("name", DISTURBANCES)
def test_a_test_that_disturbs_its_process_disturbs_no_other_on_a_pool(
    project: Project, temporary: Path, name: str
) -> None:
    verdicts = run_disturbed(project, temporary, "pool", {name: DISTURBANCES[name]})
    assert verdicts == {name: "passed"}


def test_tests_that_disturb_their_fresh_processes_disturb_no_other(
    project_on_both: Project, temporary: Path
) -> None:
    verdicts = run_disturbed(project_on_both, temporary, "shell", DISTURBANCES)
    assert verdicts == dict.fromkeys(DISTURBANCES, "passed")


def test_what_breaks_pytest_itself_breaks_no_other_fresh_process(
    project: Project, temporary: Path
) -> None:
    """pytest cannot capture any more, and says so: in that test, and nowhere else."""
    closing = {"closes its streams": "sys.stdout.close(); sys.stderr.close()"}
    verdicts = run_disturbed(project, temporary, "shell", closing)
    assert verdicts == {"closes its streams": "error in teardown"}


def test_a_rank_that_closes_all_its_files_is_named_as_lost(
    project_on_both: Project, temporary: Path, crew: str
) -> None:
    project = project_on_both
    project.write(
        {
            "test_closing.py": """
                import os
                import time

                import pytest
                from rankwise import mark


                @pytest.mark.parametrize("number", range(3))
                def test_before(number):
                    pass


                @mark.parallel(2)
                def test_closes_all_files(comm):
                    if comm.rank == 1:
                        os.closerange(3, 256)
                        time.sleep(1000)
                    comm.Barrier()


                @mark.parallel(2)
                def test_pair(comm):
                    assert comm.allreduce(1) == 2
            """
        }
    )
    outcome = run_pool(project, temporary, f"--scheduler={crew}", "--policy=sequential")
    assert outcome.verdicts == {
        **{f"test_before[{number}]": "passed" for number in range(3)},
        "test_closes_all_files": "failed",
        "test_pair": "passed",
    }, str(outcome)
    assert "E   rank 1 of 2 was lost" in outcome.output, str(outcome)


def test_a_test_that_ends_its_mpiexec_again_and_again_is_given_up(
    project: Project, temporary: Path, crew: str
) -> None:
    """No rank can be blamed for it, and to start it again for ever would be a hang."""
    project.write(
        {
            "test_mpiexec.py": """
                import os
                import signal
                import time
                from pathlib import Path


                def launchers():
                    for entry in Path("/proc").iterdir():
                        try:
                            words = (entry / "cmdline").read_text().split(chr(0))
                            environment = (entry / "environ").read_text()
                        except OSError:
                            continue
                        if "mpiexec" in words[0] and os.environ["RANKWISE_TEST_RECORD"] in environment:
                            yield int(entry.name)


                def test_before():
                    pass


                def test_kills_mpiexec():
                    for pid in launchers():
                        os.kill(pid, signal.SIGKILL)
                    time.sleep(30)


                def test_after():
                    pass
            """
        }
    )
    outcome = run_pool(project, temporary, f"--scheduler={crew}", "--policy=sequential")
    assert outcome.verdicts == {
        "test_before": "passed",
        "test_kills_mpiexec": "failed",
        "test_after": "passed",
    }, str(outcome)
