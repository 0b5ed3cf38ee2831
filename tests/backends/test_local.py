"""What the local compute gives to attempts, and takes back."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from queue import SimpleQueue
from typing import NoReturn

import pytest

from rankwise import records
from rankwise.backends.base import Attempt, Submission, Updates
from rankwise.backends.local import LocalBackend
from rankwise.plan import Process, Resources, Task
from rankwise.runtimes.base import PreparedRuntime
from tests.backends.places import Watching
from tests.node.test_runner import wait_until


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


@pytest.mark.parametrize("is_old", [False, True])
def test_a_gpu_that_is_in_use_is_not_given_out_by_the_client_that_goes_on(
    tmp_path: Path, is_old: bool
) -> None:
    capacity = Resources(cores=4, gpus=3)
    queues: list[Updates] = [SimpleQueue(), SimpleQueue()]
    first, second = (LocalBackend(capacity, one, gpus=("0", "1", "2")) for one in queues)
    watching = Watching(second, queues[1])
    before = job(tmp_path, "before", gpus=2)
    assert started(first, before) == "0,1"
    order = before.attempt.folder / "order.json"
    if is_old:
        # Orders of older versions do not name the GPUs of the whole task.
        said = json.loads(order.read_text())
        del said["gpus"]
        said["version"] = 1
        order.write_text(json.dumps(said))
    assert watching.is_there(before.attempt, "")
    after = job(tmp_path, "after")
    assert started(second, after) == "2"
    let_go(watching, before)
    last = job(tmp_path, "last", gpus=2)
    assert started(second, last) == "0,1"
    let_go(watching, after, last)
    for one in (first, second):
        one.close()


def test_a_mistake_in_the_thread_is_told_once_and_does_not_end_the_watching(
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


def test_a_client_that_is_out_of_files_sees_the_end_of_what_it_has_started(
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
