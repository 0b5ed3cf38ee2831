"""Ranks that a launcher starts are recorded one by one, and found when they are to blame."""

from __future__ import annotations

import ast
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rankwise import node
from rankwise.node.order import NodeOrder, Order
from rankwise.node.outcome import aborting_rank, doubts
from rankwise.node.rank import rank_from
from tests.node.test_runner import RUNNER, Attempt, process, python, without_privileges

AT_ONCE = "at almost the same time, and may have been first"
FOREVER = "while :; do sleep 0.1; done"


def launcher(line: str, **more: object) -> dict[str, Any]:
    return process("launcher", line, role="launcher", **more)


def rank(number: int, line: str) -> str:
    """Start a rank as a launcher does."""
    return f"RANK={number} rankwise-rank sh -c '{line}'"


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"OMPI_COMM_WORLD_RANK": "3", "PMIX_RANK": "3", "RANK": "9"}, 3),
        ({"PMIX_RANK": "4"}, 4),
        ({"PMI_RANK": "5", "SLURM_PROCID": "1"}, 5),
        ({"RANK": "6", "SLURM_PROCID": "0"}, 6),
        ({"SLURM_PROCID": "7"}, 7),
        ({"RANK": "", "SLURM_PROCID": "x"}, None),
        ({}, None),
    ],
)
def test_the_number_is_the_launchers(variables: dict[str, str], expected: int | None) -> None:
    assert rank_from(variables) == expected


def test_a_rank_is_recorded(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, launcher(rank(3, "echo hello")))
    assert attempt.run()["outcome"] == "passed"
    begin, end = attempt.begin("rank-3"), attempt.end("rank-3")
    about = {"name": "rank-3", "role": "rank", "node": 0, "rank": 3}
    own = {name: begin[name] for name in ("pid", "watched_by")}
    assert begin == {**about, **own, "started": end["started"]}
    assert (end["exit_code"], end["signal"], end["by_us"], end["log_lost"]) == (0, None, False, 0)
    assert end["peak_memory"] > 0
    assert end["started"] < end["ended"]


def test_output_passes_through(tmp_path: Path) -> None:
    attempt = Attempt(
        tmp_path, launcher(rank(0, "echo out; echo err >&2; cat") + " <<END\nin\nEND")
    )
    attempt.run()
    assert attempt.log("launcher") == "out\nerr\nin\n"
    names = {path.name for path in (attempt.folder / "processes" / "rank-0").iterdir()}
    assert names == {"start.json", "end.json"}


def test_a_rank_may_have_its_own_log(tmp_path: Path) -> None:
    attempt = Attempt(
        tmp_path,
        launcher(rank(0, "echo the $TOKEN; echo err >&2")),
        environment={"RANKWISE_RANK_OUTPUT": "own"},
        secrets=["TOKEN"],
    )
    attempt.secrets = {"TOKEN": "hunter2"}
    attempt.run()
    assert attempt.log("launcher") == ""
    assert attempt.log("rank-0") == "the ***\nerr\n"


def test_a_long_log_of_a_rank_is_cut(tmp_path: Path) -> None:
    attempt = Attempt(
        tmp_path,
        launcher(rank(0, "seq 100000")),
        environment={"RANKWISE_RANK_OUTPUT": "own"},
        log_bytes=10_000,
    )
    attempt.run()
    assert attempt.log("rank-0", ".first").startswith("1\n2\n3\n")
    assert attempt.log("rank-0").endswith("\n99999\n100000\n")
    assert attempt.end("rank-0")["log_lost"] > 500_000


def test_descriptors_are_inherited(tmp_path: Path) -> None:
    line = f"exec 9>message; export PMI_FD=9; {rank(0, 'echo hello >&9')}"
    attempt = Attempt(tmp_path, launcher(line))
    attempt.run()
    assert (attempt.folder / "nodes/node0/message").read_text() == "hello\n"


def test_the_launcher_sees_the_exit_code(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, launcher(f"{rank(0, 'exit 9')}; echo $?"))
    attempt.run()
    assert attempt.log("launcher") == "9\n"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_the_launcher_sees_the_signal(tmp_path: Path, number: signal.Signals) -> None:
    code = (
        "import os, subprocess; "
        f"print(subprocess.run(['rankwise-rank', 'sh', '-c', 'kill -{number} $$']).returncode)"
    )
    attempt = Attempt(tmp_path, process("launcher", python(code)), environment={"RANK": "2"})
    end = attempt.run()
    assert attempt.log("launcher") == f"{-number}\n"
    assert attempt.end("rank-2")["signal"] == number
    assert (end["outcome"], end["culprit"], end["signal"]) == ("crashed", "rank-2", number)
    assert end["exit_code"] == 128 + number


def test_a_command_that_cannot_be_started_says_why(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, launcher("RANK=1 rankwise-rank nonesuch; exit 1"))
    end = attempt.run()
    assert (end["culprit"], end["exit_code"]) == ("rank-1", 127)
    assert end["reason"] == (
        "rank 1 exited with code 127: cannot start 'nonesuch': No such file or directory"
    )
    assert "cannot start 'nonesuch'" in attempt.log("launcher")


@pytest.mark.parametrize("to_group", [False, True])
def test_signals_are_passed_on_once(tmp_path: Path, to_group: bool) -> None:
    code = (
        "import signal, time\n"
        "got = []\n"
        "signal.signal(signal.SIGUSR1, lambda *_: got.append(1))\n"
        "signal.signal(signal.SIGTERM, lambda *_: got.append(2))\n"
        "open('ready', 'w').close()\n"
        "while 2 not in got: time.sleep(0.01)\n"
        "time.sleep(0.5); print(got); raise SystemExit(5)"
    )
    start = (
        "import os, signal, subprocess, sys, time\n"
        f"job = subprocess.Popen(['rankwise-rank', *{python(code)!r}], start_new_session=True)\n"
        "while not os.path.exists('ready'): time.sleep(0.01)\n"
        f"send = {'os.killpg' if to_group else 'os.kill'}\n"
        "send(job.pid, signal.SIGUSR1); time.sleep(0.5); send(job.pid, signal.SIGTERM)\n"
        "sys.exit(job.wait())"
    )
    attempt = Attempt(tmp_path, process("launcher", python(start)), environment={"RANK": "0"})
    end = attempt.run()
    assert attempt.log("launcher") == "[1, 2]\n"
    # It was told to end, but not by the runner, which has ordered nothing.
    assert (attempt.end("rank-0")["told"], attempt.end("rank-0")["by_us"]) == (15, False)
    assert (end["culprit"], end["exit_code"]) == ("launcher", 5)


def test_a_rank_dies_with_its_wrapper(tmp_path: Path) -> None:
    start = (
        "import os, subprocess, sys, time\n"
        "job = subprocess.Popen(['rankwise-rank', 'sh', '-c', 'echo $$ > pid; exec sleep 3600'])\n"
        "while not (os.path.exists('pid') and open('pid').read()): time.sleep(0.01)\n"
        "job.kill()\n"
        "while os.path.exists(f'/proc/{int(open(\"pid\").read())}'): time.sleep(0.01)\n"
        "sys.exit(3)"
    )
    attempt = Attempt(tmp_path, process("launcher", python(start)), environment={"RANK": "0"})
    end = attempt.run()
    assert (end["culprit"], end["exit_code"]) == ("launcher", 3)
    record = attempt.end("rank-0")
    assert (record["exit_code"], record["signal"], record["by_us"]) == (None, 9, False)


def test_what_a_rank_wrote_last_is_kept_when_its_launcher_kills_it(tmp_path: Path) -> None:
    line = "yes | head -c 50000 | tr -d '\n'; echo the last words; touch written; exec sleep 3600"
    start = (
        "import os, subprocess, sys, time\n"
        f"jobs = [subprocess.Popen(['rankwise-rank', 'sh', '-c', {line!r}])]\n"
        "while not os.path.exists('written'): pass\n"
        "jobs[0].kill()\n"
    )
    attempt = Attempt(
        tmp_path,
        process("launcher", python(start)),
        environment={"RANK": "0", "RANKWISE_RANK_OUTPUT": "own"},
    )
    end = attempt.run()
    assert (end["outcome"], end["culprit"]) == ("crashed", "rank-0")
    assert attempt.log("rank-0").endswith("the last words\n")
    record = attempt.end("rank-0")
    assert (record["signal"], record["told"], record["by_us"]) == (9, 9, False)


def test_the_rank_is_to_blame_whatever_its_launcher_says(tmp_path: Path) -> None:
    line = f"{rank(0, FOREVER)} & {rank(3, 'sleep 0.3; exit 7')}; kill $!; wait; exit 1"
    attempt = Attempt(tmp_path, launcher(line), grace=60.0)
    end = attempt.run()
    assert (end["outcome"], end["exit_code"], end["culprit"]) == ("failed", 7, "rank-3")
    assert end["reason"] == "rank 3 exited with code 7"
    assert attempt.end("rank-0")["told"] == signal.SIGTERM


def test_the_first_of_several_ranks_is_to_blame(tmp_path: Path) -> None:
    line = f"{rank(1, 'sleep 0.6; exit 8')} & {rank(0, 'exit 7')} & wait; exit 1"
    end = Attempt(tmp_path, launcher(line), grace=60.0).run()
    assert (end["exit_code"], end["culprit"]) == (7, "rank-0")


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        # The time at which it ended, exit code, signal.
        ([(2.0, 7, None), (1.0, 8, None)], 1),
        ([(1.00, 14, None), (1.01, 7, None), (1.02, 14, None)], 0),
        ([(1.01, None, 6), (1.00, None, 6), (1.02, None, 11)], 1),
        ([(1.00, 14, None), (1.01, None, 9)], 0),
    ],
)
def test_the_rank_whose_end_is_recorded_first_is_to_blame(
    tmp_path: Path, ends: list[tuple[float, int | None, int | None]], expected: int
) -> None:
    attempt = Attempt(tmp_path, launcher("exit 1"))
    for number, (ended, code, by) in enumerate(ends):
        folder = attempt.folder / "processes" / f"rank-{number}"
        folder.mkdir(parents=True)
        record = {"exit_code": code, "signal": by, "by_us": False, "ended": ended}
        (folder / "end.json").write_text(json.dumps(record))
    assert attempt.run()["culprit"] == f"rank-{expected}"


@pytest.mark.parametrize(
    ("later", "doubt"),
    [
        ([], ""),
        ([(1.1, 7, None)], ""),
        ([(2.0, 8, None)], ""),
        (
            [(1.2, 8, None)],
            f"; rank 1 exited with code 8 {AT_ONCE}",
        ),
        (
            [(1.2, 8, None), (1.1, None, 11)],
            f"; rank 2 was ended by signal 11 (SIGSEGV), and 1 more failed {AT_ONCE}",
        ),
    ],
)
def test_it_is_said_if_the_order_of_failures_is_not_certain(
    later: list[tuple[float, int | None, int | None]], doubt: str
) -> None:
    ends = [(1.0, 7, None), *later]
    records = [
        {"ended": time, "exit_code": code, "signal": number, "who": f"rank-{index}"}
        for index, (time, code, number) in enumerate(ends)
    ]
    assert doubts(records[0], records) == doubt


def signalled(number: int, name: str = "TERM") -> str:
    """Wait for a rank, and send a signal to what watches it."""
    code = (
        "import json, os, pathlib, signal, time\n"
        f"path = pathlib.Path('../../processes/rank-{number}/start.json')\n"
        "while not path.exists(): time.sleep(0.01)\n"
        f"os.kill(json.loads(path.read_text())['watched_by'], signal.SIG{name})\n"
    )
    return f"{sys.executable} -c {shlex.quote(code)}"


@pytest.mark.parametrize("name", ["TERM", "HUP", "KILL"])
def test_a_rank_that_is_ended_from_outside_has_failed_whatever_its_launcher_says(
    tmp_path: Path, name: str
) -> None:
    line = f"{rank(0, 'exit 0')}; {rank(1, FOREVER)} & {signalled(1, name)}; wait; exit 0"
    attempt = Attempt(tmp_path, launcher(line))
    end = attempt.run()
    number = int(getattr(signal, f"SIG{name}"))
    assert (end["outcome"], end["exit_code"], end["culprit"]) == ("crashed", 128 + number, "rank-1")
    assert end["reason"].endswith(", not by rankwise")
    record = attempt.end("rank-1")
    assert (record["exit_code"], record["signal"], record["by_us"]) == (None, number, False)


def test_a_rank_that_dies_of_its_launcher_has_failed_also_if_it_dies_later(tmp_path: Path) -> None:
    dying = f'trap "sleep 0.5; exit 1" TERM; touch began; {FOREVER}'
    line = f"{rank(1, dying)} & while ! [ -e began ]; do sleep 0.05; done; kill $!; exit 0"
    end = Attempt(tmp_path, launcher(line)).run()
    assert (end["outcome"], end["exit_code"], end["culprit"]) == ("failed", 1, "rank-1")


def test_a_launcher_that_fails_names_the_rank_that_was_ended_before(tmp_path: Path) -> None:
    line = f"{rank(1, FOREVER)} & {signalled(1)}; wait; exit 9"
    end = Attempt(tmp_path, launcher(line), grace=60.0).run()
    assert (end["culprit"], end["exit_code"]) == ("launcher", 9)
    assert end["reason"] == (
        "launcher exited with code 9; rank 1 was ended by signal 15 (SIGTERM), not by rankwise"
    )


def test_a_rank_that_its_launcher_leaves_behind_is_ended_by_the_runner(tmp_path: Path) -> None:
    line = f"{rank(0, 'touch began; ' + FOREVER)} & while ! [ -e began ]; do sleep 0.05; done"
    attempt = Attempt(tmp_path, launcher(line))
    assert attempt.run()["outcome"] == "passed"
    record = attempt.end("rank-0")
    assert (record["signal"], record["by_us"]) == (signal.SIGKILL, True)


def test_a_rank_that_the_runner_ends_is_ended_by_the_runner(tmp_path: Path) -> None:
    line = f"trap : TERM; {rank(0, FOREVER)} & wait; wait"
    attempt = Attempt(tmp_path, launcher(line), grace=60.0)
    job = attempt.start()
    attempt.wait_for("processes/rank-0/start.json")
    job.terminate()
    assert attempt.wait(job)["outcome"] == "cancelled"
    record = attempt.end("rank-0")
    assert (record["signal"], record["told"], record["by_us"]) == (15, 15, True)


def test_ranks_that_fail_because_another_is_gone_are_not_to_blame(tmp_path: Path) -> None:
    said = "[node0:00000] *** An error occurred in Socket closed"
    first = rank(1, f'echo "{said}"; exit 14')
    line = f"{first}; {rank(0, 'exit 7')}; exit 14"
    end = Attempt(tmp_path, launcher(line), grace=60.0).run()
    assert (end["culprit"], end["exit_code"]) == ("rank-0", 7)
    assert end["reason"] == "rank 0 exited with code 7"


def test_a_launcher_that_does_not_mind_is_ended(tmp_path: Path) -> None:
    line = f"{rank(0, 'exit 7')} & {FOREVER}"
    attempt = Attempt(tmp_path, launcher(line))
    end = attempt.run()
    assert (end["outcome"], end["exit_code"], end["culprit"]) == ("failed", 7, "rank-0")
    assert attempt.end("launcher")["by_us"] is True


def test_a_launcher_that_calls_it_a_success_is_not_believed(tmp_path: Path) -> None:
    end = Attempt(tmp_path, launcher(f"{rank(0, 'exit 7')}; exit 0")).run()
    assert (end["outcome"], end["exit_code"], end["culprit"]) == ("failed", 7, "rank-0")


def test_a_launcher_that_speaks_for_its_ranks_is_believed(tmp_path: Path) -> None:
    line = rank(1, "exit 9") + "; sleep 0.5; true"
    end = Attempt(tmp_path, launcher(line, speaks_for_ranks=True)).run()
    assert (end["outcome"], end["exit_code"]) == ("passed", 0)


def test_a_launcher_that_speaks_for_its_ranks_names_the_one_that_failed(tmp_path: Path) -> None:
    line = rank(1, "exit 9") + "; sleep 0.5; exit 1"
    end = Attempt(tmp_path, launcher(line, speaks_for_ranks=True)).run()
    assert (end["outcome"], end["exit_code"], end["culprit"]) == ("failed", 9, "rank-1")


def test_a_launcher_that_fails_without_its_ranks_is_to_blame(tmp_path: Path) -> None:
    end = Attempt(tmp_path, launcher(f"{rank(0, 'exit 0')}; exit 9")).run()
    assert (end["exit_code"], end["culprit"]) == (9, "launcher")


def test_a_rank_that_is_started_again_is_recorded_again(tmp_path: Path) -> None:
    line = f"{rank(3, 'exit 7')} || {rank(3, 'exit 8')} || {rank(3, 'exit 0')}"
    attempt = Attempt(tmp_path, launcher(line), grace=60.0)
    assert attempt.run()["outcome"] == "passed"
    assert [attempt.end(name)["exit_code"] for name in ("rank-3", "rank-3.2", "rank-3.3")] == [
        7,
        8,
        0,
    ]


def test_the_last_start_of_a_rank_counts(tmp_path: Path) -> None:
    line = f"{rank(3, 'exit 7')} || {rank(3, 'exit 8')} || exit 1"
    end = Attempt(tmp_path, launcher(line), grace=60.0).run()
    assert (end["exit_code"], end["culprit"], end["reason"]) == (
        *(8, "rank-3.2", "rank 3.2 exited with code 8"),
    )


def test_torchrun_may_take_its_time_to_start_ranks_again(tmp_path: Path) -> None:
    counts = "TORCHELASTIC_MAX_RESTARTS=1 TORCHELASTIC_RESTART_COUNT"
    line = f"{counts}=0 {rank(0, 'exit 7')}; sleep 2; {counts}=1 {rank(0, 'exit 0')}"
    assert Attempt(tmp_path, launcher(line)).run()["outcome"] == "passed"


def test_a_rank_that_torchrun_does_not_start_again_is_to_blame(tmp_path: Path) -> None:
    counts = "TORCHELASTIC_MAX_RESTARTS=1 TORCHELASTIC_RESTART_COUNT"
    line = f"{counts}=0 {rank(0, 'exit 7')}; {counts}=1 {rank(0, 'exit 8')}; exit 1"
    assert Attempt(tmp_path, launcher(line), grace=60.0).run()["culprit"] == "rank-0.2"


def test_a_rank_that_was_to_be_started_again_and_was_not_has_failed(tmp_path: Path) -> None:
    counts = "TORCHELASTIC_MAX_RESTARTS=1 TORCHELASTIC_RESTART_COUNT=0"
    line = f"{counts} {rank(0, 'exit 7')} | cat"
    end = Attempt(tmp_path, launcher(line)).run()
    assert (end["outcome"], end["exit_code"], end["culprit"]) == ("failed", 7, "rank-0")


def test_ranks_that_come_back_as_fewer_were_started_again(tmp_path: Path) -> None:
    counts = "TORCHELASTIC_MAX_RESTARTS=1 TORCHELASTIC_RESTART_COUNT"
    line = f"{counts}=0 {rank(1, 'exit 7')}; {counts}=1 {rank(0, 'exit 0')}"
    assert Attempt(tmp_path, launcher(line)).run()["outcome"] == "passed"


MPICH_ABORT = "application called MPI_Abort(MPI_COMM_WORLD, {}) - process {}"
OPEN_MPI_ABORT = "---\nMPI_ABORT was invoked on rank {} in communicator MPI_COMM_WORLD\n"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (f"Abort(3) on node 2 (rank 2 in comm 0): {MPICH_ABORT.format(3, 2)}", (2, 3)),
        ("application called MPI_Abort(comm=0x84000002, 256) - process 11", (11, 256)),
        (f"{MPICH_ABORT.format(-1, 0)}\n[cli_0]: readline failed", (0, -1)),
        (f"{OPEN_MPI_ABORT.format(2)}with errorcode 0.\n", (2, 0)),
        (f"{OPEN_MPI_ABORT.format(1)}  Proc: [[1,1],1]\n  Errorcode: 256\n", (1, 256)),
        (OPEN_MPI_ABORT.format(1), None),
        ("it says: MPI_ABORT was invoked on rank 2\nwith errorcode 0.\n", None),
        ("application called MPI_Abort(", None),
        ("", None),
    ],
)
def test_what_mpi_says_about_an_abort_is_read(
    tmp_path: Path, said: str, expected: tuple[int, int] | None
) -> None:
    (tmp_path / "output.log").write_text(f"first\n{said}")
    assert aborting_rank(f"{tmp_path}/output.log") == expected


def test_an_abort_of_which_only_the_lost_message_tells_has_failed(tmp_path: Path) -> None:
    said = (
        "[a:1] [[1,0],0] ORTE_ERROR_LOG: Data unpack in file /x/orte/util/show_help.c at line 501"
    )
    attempt = Attempt(tmp_path, launcher(f"{rank(0, 'exit 0')}; echo '{said}'"))
    end = attempt.run()
    assert (end["outcome"], end["exit_code"], end["culprit"]) == ("failed", 1, "launcher")
    assert "MPI_Abort" in end["reason"]


@pytest.mark.parametrize("output", ["through", "own"])
def test_the_rank_that_aborts_is_found_although_it_is_killed(tmp_path: Path, output: str) -> None:
    said = "Abort(3) on node 2 (rank 2 in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 3) - process 2"
    code = (
        "import os, subprocess, sys, time\n"
        f"job = subprocess.Popen(['rankwise-rank', 'sh', '-c', 'echo \"{said}\"; sleep 0.3; touch said; exec sleep 3600'])\n"
        "while not os.path.exists('said'): time.sleep(0.01)\n"
        "job.kill(); job.wait(); sys.exit(3)"
    )
    variables = {"RANK": "2", "RANKWISE_RANK_OUTPUT": output}
    attempt = Attempt(tmp_path, process("launcher", python(code)), environment=variables)
    end = attempt.run()
    assert (end["outcome"], end["exit_code"], end["culprit"]) == ("failed", 3, "rank-2")
    assert end["reason"] == "rank 2 exited with code 3: it called MPI_Abort"


def test_ranks_are_on_the_node_of_what_started_them(tmp_path: Path) -> None:
    # As Hydra does: every rank gets the variables and the folder of the node of mpiexec.
    about = "echo $RANKWISE_NODE $RANKWISE_NODE_RANK $HOSTNAME $(basename $PWD)"
    proxy = (
        "import os, subprocess; "
        "environment = {**os.environ, 'RANKWISE_NODE': 'node0', 'HOSTNAME': 'node0'}; "
        f"subprocess.run(['rankwise-rank', 'sh', '-c', '{about}'], env=environment, cwd='../node0')"
    )
    (tmp_path / "proxy.py").write_text(proxy)
    line = f"rankwise-node node1 {sys.executable} {tmp_path}/proxy.py"
    for number, prepare in enumerate((None, without_privileges)):
        (tmp_path / str(number)).mkdir()
        attempt = Attempt(
            tmp_path / str(number), launcher(line), nodes=2, environment={"RANK": "5"}
        )
        attempt.run(prepare)
        assert attempt.log("launcher") == "node1 1 node1 node1\n"
        assert attempt.begin("rank-5")["node"] == 1


def test_a_rank_without_a_number_is_recorded_too(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, launcher("rankwise-rank true"))
    attempt.run(RANK="")
    (path,) = (attempt.folder / "processes").glob("rank-pid*/start.json")
    assert json.loads(path.read_text())["rank"] is None


def test_without_a_folder_it_only_runs_the_command() -> None:
    told = subprocess.run(
        [sys.executable, "-I", "-S", RUNNER, "rank", "sh", "-c", "echo hello; exit 4"],
        env={name: value for name, value in os.environ.items() if name != "RANKWISE_FOLDER"},
        capture_output=True,
        check=False,
    )
    assert (told.returncode, told.stdout) == (4, b"hello\n")


def test_a_rank_runs_although_nothing_can_be_recorded(tmp_path: Path) -> None:
    (tmp_path / "processes").write_text("a file")
    told = subprocess.run(
        [sys.executable, "-I", "-S", RUNNER, "rank", "sh", "-c", "echo hello; exit 4"],
        env={**os.environ, "RANKWISE_FOLDER": str(tmp_path), "RANK": "0"},
        capture_output=True,
        check=False,
    )
    assert (told.returncode, told.stdout) == (4, b"hello\n")
    assert b"gave up after" in told.stderr


def test_records_that_are_not_ours_are_left_alone(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, launcher("sleep 0.6"))
    for name, text in (("rank-7", "[]"), ("rank-8", "{}"), ("rank-9", "nonsense")):
        folder = attempt.folder / "processes" / name
        folder.mkdir(parents=True)
        (folder / "end.json").write_text(text)
    assert attempt.run()["outcome"] == "passed"


# What runs in a container, by the Python of its image.
INSIDE = (
    *("__main__", "start", "rank", "processes", "files", "order", "output"),
    *("limits", "outcome"),  # where there are limits
)


@pytest.mark.parametrize("name", INSIDE)
def test_what_runs_in_containers_is_written_for_python_3_8(name: str) -> None:
    text = Path(node.__file__).with_name(f"{name}.py").read_text()
    tree = ast.parse(text, feature_version=(3, 8))
    loaded = {one.module for one in tree.body if isinstance(one, ast.ImportFrom) and one.level}
    assert loaded <= {*INSIDE}
    # Newer than that, and used in modules beside these.
    newer = {"waitstatus_to_exitcode", "removeprefix", "removesuffix", "eventfd", "pidfd_open"}
    assert not newer & {one.attr for one in ast.walk(tree) if isinstance(one, ast.Attribute)}
    words = [word.arg for word in ast.walk(tree) if isinstance(word, ast.keyword)]
    assert "strict" not in words


def oldest_python() -> str:
    """Find the oldest Python from 3.8 on, here and where pyenv has them; at worst our own."""
    for minor in range(8, sys.version_info.minor):
        places = [*Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python3.{minor}")]
        for place in (shutil.which(f"python3.{minor}"), *map(str, places)):
            tried = [place or "", "-c", ""]
            if place and not subprocess.run(tried, capture_output=True, check=False).returncode:
                return place
    return sys.executable


@pytest.mark.parametrize(
    ("line", "code", "number"), [("echo of the rank; exit 7", 7, None), ("kill -11 $$", 139, 11)]
)
def test_a_process_in_a_container_and_its_ranks_are_recorded_by_an_old_python(
    tmp_path: Path, line: str, code: int, number: int | None
) -> None:
    node_order = NodeOrder(name="node0", address="127.0.0.1", folder=str(tmp_path))
    order = Order(
        marker="rw-1", folder=str(tmp_path), nodes=[node_order], processes=[], is_contained=True
    )
    order.write(tmp_path)
    own = [oldest_python(), "-I", "-S", str(Path(node.__file__).with_name("__main__.py"))]
    done = subprocess.run(
        [*own, "inside", str(tmp_path), "launcher-0", *own, "rank", "sh", "-c", line],
        env={"RANKWISE_FOLDER": str(tmp_path), "RANKWISE_RANK_OUTPUT": "own", "RANK": "3"},
        timeout=60,
        check=False,
    )
    assert done.returncode == code
    for place in ("rank-3", "launcher-0/inside"):
        end = json.loads((tmp_path / "processes" / place / "end.json").read_text())
        assert (end["exit_code"], end["signal"]) == (None if number else code, number), place
    if number is None:
        log = tmp_path / "processes/rank-3/output.log"
        assert log.read_text() == "of the rank\n"


def test_where_only_other_roles_are_in_containers_ranks_have_their_records(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, launcher(rank(1, "exit 5")), is_contained=True)
    end = attempt.run()
    assert (end["outcome"], end["culprit"], end["exit_code"]) == ("failed", "rank-1", 5)
