"""A pool leaves nothing behind, in whichever way it ends."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from tests.acceptance.harness import Project
from tests.acceptance.inner import run_pytest
from tests.acceptance.leftovers import (
    check_that_nothing_is_left,
    processes_of,
    wait_for_text,
    wait_until_gone,
)
from tests.acceptance.pools import run_pool

# Every rank is gone so long after the controller at the latest; as long again for a busy machine.
PROMISED_SECONDS = 5.0
SLACK_SECONDS = 5.0


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
                import os
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
                        # The name of the folder may be too long for an address.
                        place = os.open(folder, os.O_RDONLY)
                        line.connect(f"/proc/self/fd/{{place}}/{door}")
                        os.close(place)
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
    outcome = run_pool(project, temporary, f"--scheduler={crew}")
    assert outcome.exit_code == pytest.ExitCode.OK, str(outcome)
    assert outcome.counts() == {"passed": 8}, str(outcome)
    assert "rankwise: dropped " in outcome.output, str(outcome)
