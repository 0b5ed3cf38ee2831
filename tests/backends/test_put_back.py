"""A job that is put back into the queue: the client notices, however short its stay on a node was."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from rankwise.backends.base import Attempt, Submission, Updates
from rankwise.backends.batch import backend as batch_backend
from rankwise.backends.batch import states
from rankwise.backends.batch.backend import BatchBackend
from rankwise.backends.batch.system import BatchJob, BatchSystem, Ending, JobState, Phase
from rankwise.documents.site_models import ComputeConfig, SlurmConfig
from rankwise.node.dialect import Dialect
from rankwise.plan import Process, Task
from rankwise.runtimes.base import PreparedRuntime
from tests.backends.places import Watching

WAITS = JobState(phase=Phase.WAITING, reason="Resources")
WAITS_AGAIN = JobState(phase=Phase.WAITING, reason="BeginTime")
RUNS = JobState(phase=Phase.RUNNING)


class QueueStandIn(BatchSystem):
    """Answers with the state that the test wants."""

    title = "Queue"
    dialect = Dialect(system="Queue", job="QUEUE_JOB")
    state = WAITS

    def __init__(self, settings: Any = None) -> None:
        del settings

    def options(self, needs: object) -> Sequence[str]:
        del needs
        return ()

    def submit(self, job: BatchJob) -> str:
        del job
        return "7"

    def states(self, ids: Sequence[str]) -> Mapping[str, JobState]:
        return dict.fromkeys(ids, self.state)

    def find(self, name: str) -> str:
        del name
        return ""

    def cancel(self, job_id: str, ending: Ending) -> None:
        del job_id, ending

    def close(self) -> None:
        pass


class Watched:
    """A compute with one attempt in a queue, and what is told of it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
        self.queue = QueueStandIn()
        monkeypatch.setattr(batch_backend, "open_system", lambda choice: self.queue)
        monkeypatch.setattr(states, "SOONEST_SECONDS", 0.0)
        settings = SlurmConfig(mode=mode)  # type: ignore[arg-type]  # one of the modes
        choice = ComputeConfig(name="it", backend="slurm", batch=settings)
        updates: Updates = SimpleQueue()
        self.compute = BatchBackend(choice, updates)
        self.watching = Watching(self.compute, updates)
        self.attempt = Attempt(label="run-1/task/1", marker="rw-1", folder=folder)
        self.secrets = folder / "secrets.json"
        worker = Process(name="worker", role="worker", command="true")
        task = Task(
            key="task",
            processes=(worker,),
            folder=str(folder),
            compute="it",
            secrets=("TOKEN",),
        )
        self.compute.submit(
            Submission(
                attempt=self.attempt,
                task=task,
                runtime=PreparedRuntime(),
                secrets={"TOKEN": "hidden"},
            )
        )

    def hear(self, state: JobState, *, begins: bool = False) -> list[str]:
        """Have the batch system answer so for a while; return what the client says meanwhile."""
        self.queue.state = state
        self.watching.news.clear()
        if begins:
            self.begin()
        for _ in range(20):
            time.sleep(0.01)
            assert self.watching.look() == []
        return [news.text for news in self.watching.news if news.text]

    def begin(self) -> None:
        """Do what the job does when it begins: read the secrets, then claim the attempt."""
        self.secrets.unlink()
        (self.attempt.folder / "claim").write_text(json.dumps({"pid": 1}))


@pytest.fixture(params=["job", "pilot"])
def watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Watched:
    folder = tmp_path / "store" / "runs" / "run-1" / "task" / "1"
    folder.mkdir(parents=True)
    return Watched(folder, monkeypatch, request.param)


@pytest.mark.parametrize("is_seen_running", [True, False], ids=["seen running", "not seen running"])
def test_a_job_that_was_put_back_is_noticed_and_gets_its_secrets_again(
    watched: Watched, is_seen_running: bool
) -> None:
    assert watched.hear(WAITS) == ["Queue job 7 is pending: Resources"]
    if is_seen_running:
        assert watched.hear(RUNS, begins=True) == []
    told = watched.hear(WAITS_AGAIN, begins=not is_seen_running)
    # A question that was asked before it began may still be answered after that.
    assert told[-1] == "Queue job 7 was put back into the queue: BeginTime"
    assert len(told) <= 2
    assert json.loads(watched.secrets.read_text()) == {"TOKEN": "hidden"}
    # It says so once, and reads the secrets again when it begins again.
    watched.secrets.unlink()
    assert watched.hear(WAITS_AGAIN) == []
    assert not watched.secrets.exists()


def test_a_job_that_begins_while_the_question_is_under_way_was_not_put_back(
    watched: Watched,
) -> None:
    watched.hear(WAITS)
    asked = watched.queue.states

    def begin_meanwhile(ids: Sequence[str]) -> Mapping[str, JobState]:
        if watched.secrets.exists():
            watched.begin()
            return asked(ids)
        return dict.fromkeys(ids, RUNS)

    watched.queue.states = begin_meanwhile  # type: ignore[method-assign]  # for this test
    assert watched.hear(WAITS) == []
    assert not watched.secrets.exists()


def test_a_mistake_in_the_thread_is_told_once_and_does_not_end_the_watching(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = BatchBackend._look

    def mistake(self: BatchBackend) -> None:
        raise KeyError("odd")

    with monkeypatch.context() as patch:
        patch.setattr(BatchBackend, "_look", mistake)
        assert watched.hear(WAITS).count("it: KeyError('odd'); trying again") == 1
    assert BatchBackend._look is look
    (watched.attempt.folder / "end.json").write_text(
        json.dumps({"outcome": "passed", "exit_code": 0})
    )
    [end] = watched.watching.until_over(watched.attempt)
    watched.compute.close()
    assert end.outcome == "passed"


def test_a_job_that_is_sent_while_others_are_asked_for_is_not_taken_for_forgotten(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer leaves it out because the question did."""
    watched.hear(WAITS)
    folder = watched.attempt.folder.parent / "2"
    folder.mkdir()
    second = Attempt(label="run-1/task/2", marker="rw-2", folder=folder)
    is_asked, goes_on = threading.Event(), threading.Event()

    def slow(ids: Sequence[str]) -> Mapping[str, JobState]:
        is_asked.set()
        assert goes_on.wait(60)
        return dict.fromkeys(ids, WAITS)

    monkeypatch.setattr(watched.queue, "states", slow)
    monkeypatch.setattr(watched.queue, "submit", lambda job: "8")
    watched.compute.look()
    assert is_asked.wait(60)
    worker = Process(name="worker", role="worker", command="true")
    task = Task(key="task", processes=(worker,), folder=str(folder), compute="it")
    watched.compute.submit(Submission(attempt=second, task=task, runtime=PreparedRuntime()))
    assert watched.watching.look() == []
    goes_on.set()
    assert watched.hear(WAITS).count("Queue job 8 is pending: Resources") <= 1
    watched.compute.close()
