"""How an attempt ends: who waits for whom, who is ended, and who is to blame."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.node.test_runner import RUNNER, Attempt, process, python, wait_until

FOREVER = "while :; do sleep 0.1; done"
# Says when it is ready for a signal, and lives on.
STUBBORN = "trap '' TERM; touch ready; while :; do sleep 0.1; done"
READY = "nodes/node0/ready"


def test_one_failure_ends_the_others(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, process("worker-0", FOREVER), process("worker-1", "exit 7"))
    end = attempt.run()
    assert (end["outcome"], end["exit_code"], end["culprit"]) == ("failed", 7, "worker-1")
    other = attempt.end("worker-0")
    assert (other["exit_code"], other["signal"], other["by_us"]) == (None, signal.SIGTERM, True)
    assert attempt.end("worker-1")["by_us"] is False


def test_the_others_may_first_end_by_themselves(tmp_path: Path) -> None:
    tidy = "while ! [ -e failed ]; do sleep 0.05; done; sleep 0.2; echo tidy"
    attempt = Attempt(
        tmp_path,
        process("worker-0", tidy),
        process("worker-1", "touch failed; exit 7"),
        grace=60.0,
    )
    assert attempt.run()["exit_code"] == 7
    assert attempt.log("worker-0") == "tidy\n"
    assert attempt.end("worker-0")["exit_code"] == 0
    assert attempt.end("worker-0")["by_us"] is False


def test_one_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    attempt = Attempt(
        tmp_path,
        process("worker-0", STUBBORN),
        process("worker-1", "while ! [ -e ready ]; do sleep 0.05; done; exit 7"),
    )
    assert attempt.run()["culprit"] == "worker-1"
    assert attempt.end("worker-0")["signal"] == signal.SIGKILL
    assert attempt.end("worker-0")["by_us"] is True


def test_the_first_failure_is_to_blame(tmp_path: Path) -> None:
    second = "while ! [ -e failed ]; do sleep 0.05; done; sleep 0.2; exit 8"
    attempt = Attempt(
        tmp_path,
        process("worker-0", second),
        process("worker-1", "touch failed; exit 7"),
        grace=60.0,
    )
    end = attempt.run()
    assert (end["culprit"], end["exit_code"]) == ("worker-1", 7)
    assert attempt.end("worker-0")["exit_code"] == 8


def test_those_that_nobody_waits_for_are_ended_when_the_others_are_done(tmp_path: Path) -> None:
    attempt = Attempt(
        tmp_path, process("ps-0", FOREVER, is_awaited=False), process("worker-0", "true")
    )
    assert attempt.run()["outcome"] == "passed"
    assert attempt.end("ps-0")["by_us"] is True


def test_one_that_nobody_waits_for_may_end_early(tmp_path: Path) -> None:
    attempt = Attempt(
        tmp_path,
        process("ps-0", "true", is_awaited=False),
        process("worker-0", "while ! [ -e ../../processes/ps-0/end.json ]; do sleep 0.05; done"),
    )
    assert attempt.run()["outcome"] == "passed"


def test_its_failure_counts_all_the_same(tmp_path: Path) -> None:
    attempt = Attempt(
        tmp_path, process("ps-0", "exit 5", is_awaited=False), process("worker-0", FOREVER)
    )
    assert attempt.run()["culprit"] == "ps-0"


def test_a_failure_that_does_not_matter_does_not(tmp_path: Path) -> None:
    attempt = Attempt(
        tmp_path,
        process("evaluator-0", "exit 5", is_vital=False),
        process("worker-0", "while ! [ -e ../../processes/*/end.json ]; do sleep 0.05; done"),
    )
    assert attempt.run()["outcome"] == "passed"
    assert attempt.end("evaluator-0")["exit_code"] == 5


def test_a_time_limit_ends_it(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, process("worker-0", STUBBORN), timeout=1.5)
    end = attempt.run()
    assert (end["outcome"], end["exit_code"], end["culprit"]) == ("timed out", 124, None)
    assert end["reason"] == "the time limit of 1.5 s was reached"


def test_a_failure_before_the_time_limit_stays_a_failure(tmp_path: Path) -> None:
    attempt = Attempt(
        tmp_path,
        process("worker-0", STUBBORN),
        process("worker-1", "while ! [ -e ready ]; do sleep 0.05; done; exit 7"),
        timeout=2.0,
        grace=3.0,
    )
    assert attempt.run()["outcome"] == "failed"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_runner_cancels_it(tmp_path: Path, number: signal.Signals) -> None:
    # With any other order of steps this would take an hour.
    line = "trap 'echo told; exit 0' TERM; touch ready; while :; do sleep 0.1; done"
    attempt = Attempt(tmp_path, process("worker-0", line), grace=3600.0)
    job = attempt.start()
    attempt.wait_for(READY)
    job.send_signal(number)
    end = attempt.wait(job)
    assert (end["outcome"], end["exit_code"], end["culprit"]) == ("cancelled", 130, None)
    assert end["reason"] == f"by signal {number} ({number.name})"
    assert attempt.log("worker-0").endswith("told\n")


def test_whoever_cancels_twice_does_not_wait(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, process("worker-0", STUBBORN), grace=3600.0)
    job = attempt.start()
    attempt.wait_for(READY)
    # Two of one kind might arrive as one.
    job.terminate()
    job.send_signal(signal.SIGINT)
    assert attempt.wait(job)["outcome"] == "cancelled"
    assert attempt.end("worker-0")["signal"] == signal.SIGKILL


def test_nothing_starts_if_it_is_cancelled_before(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, process("worker-0", "touch ran"), secrets=["TOKEN"])
    read, write = os.pipe()
    # It waits for its secrets, and is cancelled meanwhile.
    job = subprocess.Popen(
        [sys.executable, "-I", "-S", RUNNER, "run", attempt.folder],
        stdin=read,
        stderr=subprocess.DEVNULL,
    )
    os.close(read)
    attempt.wait_for("claim")
    job.terminate()
    with os.fdopen(write, "w") as pipe:
        json.dump({"TOKEN": "x"}, pipe)
    assert attempt.wait(job)["outcome"] == "cancelled"
    assert attempt.end("worker-0")["by_us"] is True
    assert not (attempt.folder / "nodes" / "node0" / "ran").exists()


def test_daemons_do_not_outlive_it(tmp_path: Path) -> None:
    daemon = "setsid sh -c 'trap \"\" TERM; touch ready; sleep 3600' </dev/null >/dev/null 2>&1 &"
    attempt = Attempt(
        tmp_path, process("worker-0", f"{daemon} while ! [ -e ready ]; do sleep 0.05; done")
    )
    assert attempt.run()["outcome"] == "passed"  # It looks for leftovers itself.


def test_daemons_that_forget_their_environment_do_not_outlive_it(tmp_path: Path) -> None:
    daemon = "env -i setsid sh -c 'echo $$ > pid; sleep 3600' </dev/null >/dev/null 2>&1 &"
    attempt = Attempt(
        tmp_path, process("worker-0", f"{daemon} while ! [ -s pid ]; do sleep 0.05; done")
    )
    attempt.run()
    assert not psutil.pid_exists(int((attempt.folder / "nodes/node0/pid").read_text()))


def test_a_process_that_forks_while_it_is_killed_is_killed(tmp_path: Path) -> None:
    code = (
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "open('ready', 'w').close()\n"
        # Not for ever: if it did get away, nobody could catch it.
        "for _ in range(2000):\n"
        "    if os.fork():\n"
        "        time.sleep(0.02); os._exit(0)\n"
        "    os.setsid()\n"
    )
    attempt = Attempt(
        tmp_path,
        process("worker-0", python(code), is_vital=False),
        process("worker-1", "while ! [ -e ready ]; do sleep 0.05; done; sleep 0.2"),
    )
    assert attempt.run()["outcome"] == "passed"


def test_processes_die_with_a_runner_that_is_killed(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, process("worker-0", ["sleep", "3600"]))
    job = attempt.start()
    attempt.wait_for("processes/worker-0/start.json")
    job.kill()
    job.wait()
    wait_until(lambda: not attempt.leftovers())
    assert not (attempt.folder / "end.json").exists()


def test_the_claim_is_locked_while_it_runs(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, process("worker-0", "while ! [ -e go ]; do sleep 0.05; done"))
    job = attempt.start()
    attempt.wait_for("processes/worker-0/start.json")
    with (attempt.folder / "claim").open() as claim:
        assert json.load(claim)["pid"] == job.pid
        with pytest.raises(BlockingIOError):
            fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        (attempt.folder / "nodes" / "node0" / "go").touch()
        attempt.wait(job)
        fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert list(attempt.folder.glob("claim.*")) == []


def test_an_attempt_that_was_given_up_is_not_started(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, process("worker-0", "touch ran"))
    (attempt.folder / "claim").touch()
    assert attempt.start().wait() == 3
    assert "another process has taken" in attempt.trouble()
    assert sorted(path.name for path in attempt.folder.iterdir()) == [
        *("claim", "order.json", "runner.log")
    ]


def test_one_of_many_runners_takes_an_attempt(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, process("worker-0", "echo $$ >> ran; sleep 0.2"))
    jobs = [attempt.start() for _ in range(6)]
    assert sorted(job.wait() for job in jobs) == [0, 3, 3, 3, 3, 3]
    assert len((attempt.folder / "nodes/node0/ran").read_text().split()) == 1


def test_the_end_is_written_last(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, process("worker-0", "exit 7"), process("worker-1", FOREVER))
    attempt.run()
    paths = [*attempt.folder.glob("processes/*/*"), attempt.folder / "end.json"]
    assert max(paths, key=lambda path: path.stat().st_mtime_ns).name == "end.json"
    assert list(attempt.folder.rglob("*.new")) == []
