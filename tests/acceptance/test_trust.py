"""Strangers, Ctrl-C and killed ranks: nothing hangs, and nothing is left behind."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.acceptance.conftest import require
from tests.acceptance.harness import Project
from tests.acceptance.leftovers import (
    check_that_nothing_is_left,
    wait_for_text,
)


def test_a_stranger_is_dropped_and_the_run_goes_on(project: Project, temporary: Path) -> None:
    project.write(
        {
            "test_stranger.py": """
                import json
                import os
                import socket
                import stat
                import struct
                import tempfile
                from pathlib import Path

                import pytest


                def message(**header):
                    head = json.dumps(header).encode()
                    return struct.pack("!II", len(head), 0) + head


                @pytest.mark.parametrize(
                    "words",
                    [
                        message(kind="stop", at_once=True),
                        message(kind="hello", rank=1, nonce="a") + message(kind="answer", proof="b"),
                        b"GET / HTTP/1.1\\r\\n\\r\\n",
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
                        line.connect(f"/proc/self/fd/{place}/coordinator")
                        os.close(place)
                        line.sendall(words)
                        line.shutdown(socket.SHUT_WR)
                        answer = b"".join(iter(lambda: line.recv(4096), b""))
                        assert b"secret" not in answer


                @pytest.mark.parallel(2)
                def test_pair(comm):
                    assert comm.allreduce(1) == 2
            """
        }
    )
    outcome = project.pytest(
        *("-p", "no:randomly"), ranks=2, environment={"TMPDIR": str(temporary)}
    )
    assert outcome.exit_code == pytest.ExitCode.OK, str(outcome)
    assert outcome.counts() == {"passed": 5}, str(outcome)
    assert "rankwise: dropped a connection: " in outcome.errors, str(outcome)
    check_that_nothing_is_left(project, temporary)


WAITING = """
    import os
    import time
    from pathlib import Path

    import pytest


    def test_before():
        pass


    def wait(rank=0):
        new = Path(f"pid-{rank}.new")
        new.write_text(str(os.getpid()))
        new.rename(f"pid-{rank}")
        time.sleep(120)


    @pytest.mark.parallel(2)
    def test_waits_on_two_ranks(comm):
        comm.barrier()
        wait(comm.rank)


    def test_waits_on_one_rank():
        wait()
"""


@pytest.mark.parametrize("name", ["two_ranks", "one_rank"])
def test_ctrl_c_ends_all_ranks_with_a_summary(project: Project, temporary: Path, name: str) -> None:
    project.write({"test_waiting.py": WAITING})
    outcome = project.pytest(
        *("-p", "no:randomly", "-k", f"before or {name}"),
        ranks=2,
        environment={"TMPDIR": str(temporary)},
        interrupt_when=project.folder / "pid-0",
    )
    assert outcome.exit_code == pytest.ExitCode.INTERRUPTED, str(outcome)
    assert outcome.verdicts == {"test_before": "passed"}, str(outcome)
    assert outcome.output.count("! KeyboardInterrupt !") == 1, str(outcome)
    assert "= 1 passed, 1 deselected in" in outcome.output, str(outcome)
    check_that_nothing_is_left(project, temporary)


def test_ctrl_c_ends_all_ranks_of_an_mpi_that_leaves_no_time_for_a_summary(
    tmp_path: Path, temporary: Path
) -> None:
    project = Project(tmp_path, require("openmpi5"))
    project.write({"test_waiting.py": WAITING})
    outcome = project.pytest(
        *("-k", "two_ranks"),
        ranks=2,
        environment={"TMPDIR": str(temporary)},
        interrupt_when=project.folder / "pid-0",
    )
    assert outcome.exit_code != pytest.ExitCode.OK, str(outcome)
    check_that_nothing_is_left(project, temporary)


@pytest.mark.parametrize(("mpi", "rank"), [("mpich", 0), ("mpich", 1), ("openmpi5", 0)])
def test_a_killed_rank_takes_everything_with_it(
    tmp_path: Path, temporary: Path, mpi: str, rank: int
) -> None:
    project = Project(tmp_path, require(mpi))
    project.write({"test_waiting.py": WAITING})
    with ThreadPoolExecutor() as pool:
        run = pool.submit(
            project.pytest,
            *("-k", "two_ranks"),
            ranks=2,
            environment={"TMPDIR": str(temporary)},
        )
        pids = [int(wait_for_text(project.folder / f"pid-{number}")) for number in range(2)]
        os.kill(pids[rank], signal.SIGKILL)
        outcome = run.result()
    assert outcome.exit_code != pytest.ExitCode.OK, str(outcome)
    assert outcome.reports == [], str(outcome)
    check_that_nothing_is_left(project, temporary)


def test_two_runs_at_once_in_one_folder_do_not_disturb_each_other(
    project: Project, tmp_path: Path
) -> None:
    project.write(
        {
            "test_meeting.py": """
                import os
                import time
                from pathlib import Path

                import pytest


                @pytest.mark.parallel(2)
                def test_both_runs_are_here(comm, mpi_tmp_path):
                    (mpi_tmp_path / f"mine-{comm.rank}").touch()
                    Path(f"here-{os.environ['RUN']}-{comm.rank}").touch()
                    deadline = time.monotonic() + 50
                    while len(list(Path().glob("here-*"))) < 4:
                        assert time.monotonic() < deadline
                        time.sleep(0.01)
                    comm.barrier()
                    assert len(list(mpi_tmp_path.iterdir())) == 2


                @pytest.mark.parametrize("number", range(20))
                @pytest.mark.parallel(2)
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
                each.pytest,
                *("-p", "no:randomly", "--scheduler=dynamic"),
                ranks=2,
                environment={
                    "RUN": str(number),
                    "RANKWISE_TEST_RECORD": str(tmp_path / f"record-{number}"),
                },
            )
            for number, each in enumerate(projects)
        ]
        outcomes = [run.result() for run in runs]
    for number, outcome in enumerate(outcomes):
        assert outcome.exit_code == pytest.ExitCode.OK, str(outcome)
        assert "21 passed in" in outcome.output, str(outcome)
        reports = (tmp_path / f"record-{number}").read_text().splitlines()
        assert len(reports) == 21 * 3, str(outcome)


def test_a_temporary_folder_may_have_a_long_name(project: Project) -> None:
    project.write({"test_one.py": "def test_one(): pass"})
    long = project.folder / ("x" * 100)
    long.mkdir()
    outcome = project.pytest(ranks=2, environment={"TMPDIR": str(long)})
    assert outcome.exit_code == pytest.ExitCode.OK, str(outcome)
    assert outcome.counts() == {"passed": 1}, str(outcome)
    check_that_nothing_is_left(project, long)
