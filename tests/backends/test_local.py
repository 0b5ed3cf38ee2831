"""What the local compute gives to attempts, and takes back."""

from __future__ import annotations

import errno
import functools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NoReturn

import psutil
import pytest

from rankwise import node, records
from rankwise.backends import local as starter_module
from rankwise.backends.base import Attempt, Submission, Updates
from rankwise.backends.local import LocalBackend, Starter, StarterGone
from rankwise.backends.orders import compiled_node, start_words
from rankwise.errors import ComputeFailure
from rankwise.plan import Process, Resources, Task
from rankwise.runtimes.base import PreparedRuntime
from tests.backends.places import Watching
from tests.node.test_runner import RUNNER, process, wait_until
from tests.node.test_runner import Attempt as RunAttempt


def job(folder: Path, name: str, *, gpus: int = 1) -> Submission:
    """Make a job that runs until it is let go."""
    place = folder / name
    place.mkdir()
    claim = Resources(cores=1, gpus=gpus)
    line = f"while ! [ -e {place}/go ]; do sleep 0.05; done"
    one = Process(name="worker-0", role="worker", command=line, resources=claim)
    # With a limit, so that nothing is left of a test that fails.
    task = Task(key=name, folder=str(place), processes=(one,), resources=claim, timeout=120.0)
    attempt = Attempt(label=f"run/{name}/1", marker=f"rw-{name}", folder=place)
    return Submission(attempt=attempt, task=task, runtime=PreparedRuntime())


def started(compute: LocalBackend, one: Submission) -> str:
    """Start a job, and give the GPUs that its process sees."""
    compute.submit(one)
    wait_until(lambda: records.claim_of(one.attempt.folder) is not records.ClaimState.FREE)
    order = json.loads((one.attempt.folder / "order.json").read_text())
    return str(order["processes"][0]["environment"].get("CUDA_VISIBLE_DEVICES"))


def let_go(watching: Watching, *jobs: Submission) -> None:
    for one in jobs:
        (one.attempt.folder / "go").touch()
        watching.until_over(one.attempt)


def test_a_resuming_client_does_not_give_out_gpus_that_are_in_use(tmp_path: Path) -> None:
    capacity = Resources(cores=4, gpus=3)
    queues: list[Updates] = [SimpleQueue(), SimpleQueue()]
    first, second = (LocalBackend(capacity, one, gpus=("0", "1", "2")) for one in queues)
    watching = Watching(second, queues[1])
    before = job(tmp_path, "before", gpus=2)
    assert started(first, before) == "0,1"
    assert watching.is_there(before.attempt, "")
    after = job(tmp_path, "after")
    assert started(second, after) == "2"
    let_go(watching, before)
    last = job(tmp_path, "last", gpus=2)
    assert started(second, last) == "0,1"
    let_go(watching, after, last)
    for one in (first, second):
        one.close()


def test_a_failure_in_the_thread_is_reported_once_and_does_not_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    updates: Updates = SimpleQueue()
    compute = LocalBackend(Resources(cores=1), updates)
    watching = Watching(compute, updates)
    one = job(tmp_path, "one", gpus=0)
    started(compute, one)

    def mistake(folder: Path) -> NoReturn:
        raise KeyError("odd")

    with monkeypatch.context() as patch:
        patch.setattr(records, "end_of", mistake)
        (one.attempt.folder / "go").touch()
        wait_until(lambda: watching.hear(0.1) != [] or any(news.text for news in watching.news))
        watching.hear(1.5)
    [end] = watching.until_over(one.attempt)
    compute.close()
    assert end.outcome == "passed"
    told = [news.text for news in watching.news if news.text]
    assert told == ["this machine: KeyError('odd'); trying again"]


def test_a_client_without_free_file_descriptors_sees_the_end_of_its_attempts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(pid: int) -> NoReturn:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    updates: Updates = SimpleQueue()
    compute = LocalBackend(Resources(cores=1), updates)
    watching = Watching(compute, updates)
    one = job(tmp_path, "one", gpus=0)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pidfd_open", none_left)
        started(compute, one)
    assert watching.look() == []
    (one.attempt.folder / "go").touch()
    [end] = watching.until_over(one.attempt)
    compute.close()
    assert end.outcome == "passed"


# What starts runners on this machine: fast, and never in their way

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


def attempt_in(folder: Path, line: str, **more: Any) -> RunAttempt:
    folder.mkdir(exist_ok=True)
    # A test that fails ends no attempt: it ends by itself.
    return RunAttempt(folder, process("worker-0", line), **{"timeout": 60.0, **more})


def let_go_starter(attempt: RunAttempt) -> None:
    place = Path(attempt.order["nodes"][0]["folder"])
    wait_until(place.exists)
    (place / "go").touch()


def is_over(attempt: RunAttempt) -> bool:
    return (attempt.folder / "end.json").exists()


def test_runners_share_nothing_with_each_other_nor_with_their_starter(tmp_path: Path) -> None:
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
    let_go_starter(attempt)
    wait_until(lambda: is_over(attempt))
    assert attempt.end()["outcome"] == "passed"


def test_the_starter_ends_with_a_client_that_is_killed(tmp_path: Path) -> None:
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
    let_go_starter(attempt)
    wait_until(lambda: is_over(attempt))


def test_a_killed_starter_is_started_again(tmp_path: Path) -> None:
    starter = Starter()
    for number in range(3):
        attempt = attempt_in(tmp_path / str(number), "true")
        starter.start(attempt.folder, {})
        wait_until(functools.partial(is_over, attempt))
        own = process_of(starter)
        own.kill()
        psutil.wait_procs([own])
    starter.close()


def test_a_starter_that_dies_during_a_request_is_an_error(
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
        attempt=Attempt(label="run/two/1", marker="rw-two", folder=folder),
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


def test_a_runner_that_cannot_be_forked_is_an_error_with_the_reason(tmp_path: Path) -> None:
    line = json.dumps({"start": str(tmp_path), "secrets": {}})
    command = [sys.executable, "-c", NO_ROOM]
    told = subprocess.run(
        command, input=f"{line}\n" * 2, capture_output=True, text=True, check=True
    )
    assert told.stdout == f"started -{errno.EAGAIN}\n" * 2


def test_a_folder_that_cannot_be_written_to_is_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Starter().start(tmp_path / "nowhere", {})


def test_ctrl_c_at_the_terminal_does_not_end_the_starter(tmp_path: Path) -> None:
    attempt = attempt_in(tmp_path, "true")
    starter = Starter()
    starter.start(attempt.folder, {})
    own = process_of(starter)
    assert os.getsid(own.pid) == own.pid != os.getsid(0)
    starter.close()


# The runner that is started is compiled, and is always the present one


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    compiled_node.cache_clear()
    yield tmp_path
    compiled_node.cache_clear()


def test_the_compiled_runner_is_made_once_and_runs(cache: Path) -> None:
    made = compiled_node()
    assert made.parent == cache / "rankwise" / "nodes"
    done = subprocess.run(start_words(sys.executable, made), capture_output=True, check=False)
    assert done.returncode == 2
    assert b"usage: run FOLDER" in done.stderr
    before = made.stat().st_mtime_ns
    compiled_node.cache_clear()
    assert compiled_node() == made
    assert made.stat().st_mtime_ns == before


def test_without_a_cache_folder_the_runner_starts_from_source(cache: Path) -> None:
    (cache / "rankwise").touch()
    assert compiled_node() == Path(str(node.__file__)).parent
