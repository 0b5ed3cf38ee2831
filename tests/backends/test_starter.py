"""What starts runners on this machine: fast, and never in their way."""

from __future__ import annotations

import errno
import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import psutil
import pytest

from rankwise.backends import local as starter_module
from rankwise.backends.base import Attempt as ComputeAttempt
from rankwise.backends.base import Submission
from rankwise.backends.local import LocalBackend, Starter, StarterGone
from rankwise.errors import ComputeFailure
from rankwise.plan import Process, Resources, Task
from rankwise.runtimes.base import PreparedRuntime
from tests.node.test_runner import RUNNER, Attempt, process, wait_until

WAIT = "while ! test -e go; do sleep 0.02; done"
# As on a machine that has no room for another process.
NO_ROOM = f"""
import os, runpy, sys
def fork():
    raise OSError(11, "no more")
os.fork = fork
sys.argv = ["runner", "starter"]
runpy.run_path({str(RUNNER)!r}, run_name="__main__")
"""


def process_of(starter: Starter) -> psutil.Process:
    assert starter.process is not None
    return psutil.Process(starter.process.pid)


def attempt_in(folder: Path, line: str, **more: Any) -> Attempt:
    folder.mkdir(exist_ok=True)
    # A test that fails lets nobody go: it ends by itself.
    return Attempt(folder, process("worker-0", line), **{"timeout": 60.0, **more})


def let_go(attempt: Attempt) -> None:
    place = Path(attempt.order["nodes"][0]["folder"])
    wait_until(place.exists)
    (place / "go").touch()


def is_over(attempt: Attempt) -> bool:
    return (attempt.folder / "end.json").exists()


def test_runners_share_nothing_with_each_other_nor_with_who_started_them(tmp_path: Path) -> None:
    line = "echo $$ $TOKEN; ps -o sid= -p $PPID; readlink /proc/$PPID/fd/0"
    attempts = [attempt_in(tmp_path / str(number), line, secrets=["TOKEN"]) for number in range(3)]
    starter = Starter()
    pids = [
        starter.start(one.folder, {"TOKEN": f"secret-{number}"})
        for number, one in enumerate(attempts)
    ]
    wait_until(lambda: all(map(is_over, attempts)))
    starter.close()
    assert len(set(pids)) == 3
    for pid, one in zip(pids, attempts, strict=True):
        [first, session, source] = one.log("worker-0").splitlines()
        assert first.endswith(" ***")
        assert (int(session), source) == (pid, os.devnull)
        assert one.end()["outcome"] == "passed"
        assert "secret-" not in one.trouble()


def test_runners_outlive_what_has_started_them(tmp_path: Path) -> None:
    attempt = attempt_in(tmp_path, WAIT)
    starter = Starter()
    pid = starter.start(attempt.folder, {})
    own = process_of(starter)
    starter.close()
    assert not own.is_running()
    assert psutil.pid_exists(pid)
    let_go(attempt)
    wait_until(lambda: is_over(attempt))
    assert attempt.end()["outcome"] == "passed"


def test_it_ends_with_a_client_that_is_killed(tmp_path: Path) -> None:
    text = (
        "import sys, time\nfrom pathlib import Path\n"
        "from rankwise.backends.local import Starter\n"
        "starter = Starter()\nstarter.start(Path(sys.argv[1]), {})\n"
        "print(starter.process.pid, flush=True)\ntime.sleep(60)\n"
    )
    attempt = attempt_in(tmp_path, WAIT)
    line = [sys.executable, "-c", text, str(attempt.folder)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        own = int(client.stdout.readline())
        client.kill()
    wait_until(lambda: not psutil.pid_exists(own))
    assert not is_over(attempt)
    let_go(attempt)
    wait_until(lambda: is_over(attempt))


def test_one_that_was_killed_is_started_anew(tmp_path: Path) -> None:
    starter = Starter()
    for number in range(3):
        attempt = attempt_in(tmp_path / str(number), "true")
        starter.start(attempt.folder, {})
        wait_until(functools.partial(is_over, attempt))
        own = process_of(starter)
        own.kill()
        psutil.wait_procs([own])
    starter.close()


def test_one_that_dies_while_it_is_asked_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = [sys.executable, "-c", "import sys; sys.stdin.readline()"]
    monkeypatch.setattr(
        starter_module,
        "_start",
        lambda: subprocess.Popen(silent, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0),
    )
    attempt = attempt_in(tmp_path / "one", "true")
    with pytest.raises(StarterGone):
        Starter().start(attempt.folder, {})
    # The compute makes sure that it does not run after all.
    compute = LocalBackend(Resources(cores=1), SimpleQueue())
    folder = tmp_path / "two"
    folder.mkdir()
    job = Submission(
        attempt=ComputeAttempt(label="run/two/1", marker="rw-two", folder=folder),
        task=Task(
            key="two",
            folder=str(tmp_path),
            processes=(Process(name="worker-0", role="worker", command=("true",)),),
        ),
        runtime=PreparedRuntime(),
    )
    with pytest.raises(ComputeFailure, match="the process that starts runners was lost"):
        compute.submit(job)
    assert (folder / "claim").exists()


def test_a_machine_that_has_no_room_for_a_process_says_so(tmp_path: Path) -> None:
    line = json.dumps({"start": str(tmp_path), "secrets": {}})
    command = [sys.executable, "-c", NO_ROOM]
    told = subprocess.run(
        command, input=f"{line}\n" * 2, capture_output=True, text=True, check=True
    )
    assert told.stdout == f"started -{errno.EAGAIN}\n" * 2


def test_a_folder_that_cannot_be_written_to_is_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Starter().start(tmp_path / "nowhere", {})


def test_an_interrupt_at_the_terminal_is_not_its_business(tmp_path: Path) -> None:
    attempt = attempt_in(tmp_path, "true")
    starter = Starter()
    starter.start(attempt.folder, {})
    own = process_of(starter)
    assert os.getsid(own.pid) == own.pid != os.getsid(0)
    starter.close()
