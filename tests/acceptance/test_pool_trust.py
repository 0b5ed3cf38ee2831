"""A pool that can be trusted: whatever a test does to its process, the run and the machine are well."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from tests.acceptance.conftest import require
from tests.acceptance.harness import Outcome, Project
from tests.acceptance.inner import run_pytest
from tests.acceptance.leftovers import (
    check_that_nothing_is_left,
    processes_of,
    short_folder,
    wait_for_text,
    wait_until_gone,
)

MPIS = ("mpich", "openmpi5")
CREWS = ("pool", "shell")
# Every rank is gone so long after the controller at the latest; as long again for a busy machine.
PROMISED_SECONDS = 5.0
SLACK_SECONDS = 5.0


@pytest.fixture
def temporary() -> Iterator[Path]:
    with short_folder() as folder:
        yield folder


@pytest.fixture(params=MPIS)
def project_on_both(request: pytest.FixtureRequest, tmp_path: Path) -> Project:
    """A folder for an inner test-suite, with each of two MPIs that have little in common."""
    return Project(tmp_path, require(request.param))


@pytest.fixture(params=CREWS)
def crew(request: pytest.FixtureRequest) -> str:
    """Each way of starting ranks in turn."""
    name: str = request.param
    return name


def run(
    project: Project,
    temporary: Path,
    *arguments: str,
    workers: str = "2",
    ranks: int | None = None,
    limit: float = 60.0,
) -> Outcome:
    """Run the project on a pool; it must leave nothing behind."""
    outcome = run_pytest(
        project,
        *(f"--n-workers={workers}", *arguments),
        ranks=ranks,
        limit=limit,
        environment={"TMPDIR": str(temporary)},
    )
    try:
        check_that_nothing_is_left(project, temporary)
    except AssertionError as left:
        raise AssertionError(f"left behind: {left}\n{outcome}") from None
    return outcome


# The controller's end

WAITING = """
    import os
    import subprocess
    import time
    from pathlib import Path

    from rankwise import mark


    def test_before():
        pass


    def here(comm):
        new = Path(f"here-{comm.rank}.new")
        new.write_text(str(os.getpid()))
        new.rename(f"here-{comm.rank}")


    @mark.parallel(2)
    def test_spins(comm):
        here(comm)
        while True:
            pass


    @mark.parallel(2)
    def test_holds_the_lock(comm):
        here(comm)
        sum(range(10**12))


    @mark.parallel(2)
    def test_waits_in_mpi(comm):
        here(comm)
        comm.recv(source=1 - comm.rank)


    @mark.parallel(2)
    def test_waits_for_a_program(comm):
        here(comm)
        subprocess.run(["sleep", "1000"])


    @mark.parallel(2)
    def test_sleeps(comm):
        here(comm)
        time.sleep(1000)
"""


def controller_of(project: Project) -> psutil.Process:
    """Find the process that has started all others."""
    [found] = [process for process in processes_of(project) if process.ppid() == os.getpid()]
    return found


@pytest.mark.parametrize(
    "name", ["test_spins", "test_holds_the_lock", "test_waits_in_mpi", "test_waits_for_a_program"]
)
def test_no_rank_outlives_a_killed_controller(
    project_on_both: Project, temporary: Path, crew: str, name: str
) -> None:
    project = project_on_both
    project.write({"test_waiting.py": WAITING})
    with ThreadPoolExecutor() as pool:
        inner = pool.submit(
            run_pytest,
            project,
            *("--n-workers=2", f"--scheduler={crew}", "-k", f"before or {name}"),
            ranks=None,
            environment={"TMPDIR": str(temporary)},
        )
        for rank in range(2):
            wait_for_text(project.folder / f"here-{rank}")
        controller_of(project).send_signal(signal.SIGKILL)
        outcome = inner.result()
    wait_until_gone(project, PROMISED_SECONDS + SLACK_SECONDS)
    assert outcome.exit_code == -signal.SIGKILL, str(outcome)
    assert list(temporary.glob("rankwise-*")) == [], str(outcome)


@pytest.mark.parametrize("name", ["test_spins", "test_waits_in_mpi", "test_sleeps"])
def test_ctrl_c_ends_the_run_with_a_summary_of_what_ran(
    project_on_both: Project, temporary: Path, crew: str, name: str
) -> None:
    project = project_on_both
    project.write({"test_waiting.py": WAITING})
    outcome = project.pytest(
        *("-p", "rankwise", "--n-workers=2", "--policy=sequential", f"--scheduler={crew}"),
        *("-k", f"before or {name}"),
        ranks=None,
        environment={"TMPDIR": str(temporary), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        interrupt_when=project.folder / "here-1",
    )
    assert outcome.exit_code == pytest.ExitCode.INTERRUPTED, str(outcome)
    assert outcome.verdicts == {"test_before": "passed"}, str(outcome)
    assert outcome.output.count("! KeyboardInterrupt !") == 1, str(outcome)
    assert "= 1 passed, 4 deselected in" in outcome.output, str(outcome)
    check_that_nothing_is_left(project, temporary)


# Neighbours


def test_two_runs_at_once_in_one_folder_do_not_disturb_each_other(
    project: Project, tmp_path: Path, temporary: Path, crew: str
) -> None:
    project.write(
        {
            "test_meeting.py": """
                import os
                import signal
                import time
                from pathlib import Path

                import pytest
                from rankwise import mark


                @mark.parallel(2)
                def test_both_runs_are_here(comm, mpi_tmp_path):
                    (mpi_tmp_path / f"mine-{comm.rank}").touch()
                    Path(f"here-{os.environ['RUN']}-{comm.rank}").touch()
                    deadline = time.monotonic() + 50
                    while len(list(Path().glob("here-*"))) < 4:
                        assert time.monotonic() < deadline
                        time.sleep(0.01)
                    comm.barrier()
                    assert len(list(mpi_tmp_path.iterdir())) == 2


                @mark.parallel(2)
                def test_crash_in_one_of_them(comm):
                    if os.environ["RUN"] == "1" and comm.rank == 1:
                        os.kill(os.getpid(), signal.SIGKILL)
                    comm.barrier()


                @pytest.mark.parametrize("number", range(10))
                @mark.parallel(2)
                def test_pair(comm, number):
                    assert comm.allreduce(1) == 2
            """
        }
    )
    # The other one knows the same folder, but keeps its own record.
    projects = [project, Project(tmp_path, project.mpi)]
    with ThreadPoolExecutor() as pool:
        runs = [
            pool.submit(
                run_pytest,
                each,
                *("--n-workers=2", f"--scheduler={crew}"),
                ranks=None,
                environment={
                    "TMPDIR": str(temporary),
                    "RUN": str(number),
                    "RANKWISE_TEST_RECORD": str(tmp_path / f"record-{number}"),
                },
            )
            for number, each in enumerate(projects)
        ]
        well, crashed = [each.result() for each in runs]
    assert well.exit_code == pytest.ExitCode.OK, str(well)
    assert "= 12 passed in" in well.output, str(well)
    assert crashed.exit_code == pytest.ExitCode.TESTS_FAILED, str(crashed)
    assert "= 1 failed, 11 passed in" in crashed.output, str(crashed)
    for number in range(2):
        assert len((tmp_path / f"record-{number}").read_text().splitlines()) == 12 * 3
    check_that_nothing_is_left(project, temporary)


@pytest.mark.parametrize("door", ["controller", "warm", "cold"])
def test_a_stranger_at_a_door_is_dropped_and_the_run_goes_on(
    project: Project, temporary: Path, crew: str, door: str
) -> None:
    project.write(
        {
            "test_stranger.py": f"""
                import json
                import socket
                import stat
                import struct
                import tempfile
                from pathlib import Path

                import pytest
                from rankwise import mark


                def message(**header):
                    head = json.dumps(header).encode()
                    return struct.pack("!II", len(head), 0) + head


                def errand(text):
                    return struct.pack("!I", len(text)) + text


                @pytest.mark.parametrize(
                    "words",
                    [
                        message(kind="finish"),
                        message(kind="hello", name=0, nonce="a") + message(kind="answer", proof="b"),
                        errand(b"0\\0PMI_RANK=0\\0RANKWISE_SECRET=guessed"),
                        errand(b"0"),
                        b"GET / HTTP/1.1\\r\\n\\r\\n",
                        b"\\xff" * 64,
                        b"",
                    ],
                )
                def test_stranger(words):
                    [folder] = Path(tempfile.gettempdir()).glob("rankwise-*")
                    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
                    with socket.socket(socket.AF_UNIX) as line:
                        line.settimeout(20)
                        line.connect(str(folder / "{door}"))
                        line.sendall(words)
                        line.shutdown(socket.SHUT_WR)
                        answer = b""
                        # Hung up on before all was read: that is an answer too.
                        try:
                            answer = b"".join(iter(lambda: line.recv(4096), b""))
                        except ConnectionResetError:
                            pass
                        assert b"secret" not in answer


                @mark.parallel(2)
                def test_pair(comm):
                    assert comm.allreduce(1) == 2
            """
        }
    )
    outcome = run(project, temporary, f"--scheduler={crew}")
    assert outcome.exit_code == pytest.ExitCode.OK, str(outcome)
    assert outcome.counts() == {"passed": 8}, str(outcome)


# What tests do to their process


def test_a_hundred_megabytes_of_output_are_no_burden(
    project_on_both: Project, temporary: Path, crew: str
) -> None:
    project = project_on_both
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
    outcome = run(project, temporary, f"--scheduler={crew}", "--show-capture=no", limit=120.0)
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
    outcome = run(project, temporary, f"--scheduler={crew}", "--policy=sequential")
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
    outcome = run(project, temporary, f"--scheduler={crew}", "--policy=sequential")
    assert outcome.verdicts == {
        **{f"test_before[{number}]": "passed" for number in range(3)},
        "test_closes_all_files": "failed",
        "test_pair": "passed",
    }, str(outcome)
    assert "E   rank 1 of 2 was lost" in outcome.output, str(outcome)


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


@pytest.mark.parametrize("policy", ["dynamic", "static", "sequential"])
@pytest.mark.parametrize("start", ["warm", "cold"])
def test_verdicts_do_not_depend_on_how_ranks_are_started(
    project_on_both: Project, temporary: Path, crew: str, policy: str, start: str
) -> None:
    project = project_on_both
    project.write({"test_mixed.py": MIXED})
    cold = ["--no-warm-start"] if start == "cold" else []
    outcome = run(project, temporary, f"--scheduler={crew}", f"--policy={policy}", *cold)
    assert outcome.verdicts == MIXED_VERDICTS, str(outcome)
    assert outcome.exit_code == pytest.ExitCode.TESTS_FAILED, str(outcome)
    assert "rank 1 of 2 was killed by SIGSEGV (segmentation fault) in call" in outcome.output


def test_a_pool_can_be_started_by_an_mpirun_of_one(
    project_on_both: Project, temporary: Path, crew: str
) -> None:
    project = project_on_both
    project.write({"test_mixed.py": MIXED})
    outcome = run(project, temporary, f"--scheduler={crew}", ranks=1)
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
    outcome = run(project, temporary, workers="auto")
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
                assert rank == MPI.COMM_WORLD.rank


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
                assert early == (MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size)


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
    outcome = run(project, temporary, f"--scheduler={crew}")
    assert outcome.verdicts == {"test_alone": "passed", "test_pair": "passed"}, str(outcome)
    assert outcome.exit_code == pytest.ExitCode.OK, str(outcome)
    assert outcome.output.count("ranks import the tests themselves") == 1, str(outcome)
