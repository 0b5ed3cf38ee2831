"""A batch system that comes by an entry point: its table, arrays, pilots, and bad days."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from rankwise.backends.base import Attempt, Submission, Updates
from rankwise.backends.batch import backend as batch_backend
from rankwise.backends.batch import states, system
from rankwise.backends.batch.backend import BatchBackend
from rankwise.backends.batch.slurm import Slurm
from rankwise.backends.batch.submitting import SubmitNotes
from rankwise.backends.batch.system import BatchJob, BatchSystem, Ending, JobState, Phase
from rankwise.documents.site import find_site
from rankwise.documents.site_models import BatchConfig, ComputeConfig, SlurmConfig
from rankwise.errors import InputError
from rankwise.node import batch as node_batch
from rankwise.node.dialect import Dialect
from rankwise.plan import Process, Task
from rankwise.runtimes.base import PreparedRuntime
from tests.backends.places import PLACES, Place, Watching, output_of, wait_until
from tests.support.plugins import importable, write_distribution


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    with PLACES["spool"](tmp_path) as made:
        made.prepare()
        for name, value in made.variables.items():
            monkeypatch.setenv(name, value)
        yield made


def write_table(place: Place, more: str) -> None:
    (place.folder / "rankwise.toml").write_text(f"[compute.it]\n{place.table}\n{more}\n")


def spool_of(place: Place) -> Path:
    return place.folder / "spool"


def numbers_of(watching: Watching) -> set[str]:
    return {news.job_id for news in watching.news if news.job_id}


def test_equal_attempts_are_submitted_as_one_array(place: Place) -> None:
    compute = place.open()
    watching = Watching(compute, place.updates)
    attempts = [place.attempt(compute) for _ in range(3)]
    for number, attempt in enumerate(attempts):
        compute.submit(place.job(attempt, f"echo {number}; exit {number}"))
    ends = watching.until_over(*attempts)
    compute.close()
    assert [end.exit_code for end in ends] == [0, 1, 2]
    assert [output_of(attempt) for attempt in attempts] == ["0\n", "1\n", "2\n"]
    assert numbers_of(watching) == {"1_0", "1_1", "1_2"}


def test_a_pilot_carries_out_many_attempts_in_one_job(place: Place) -> None:
    write_table(place, 'mode = "pilot"\npilot_idle = 0')
    compute = place.open()
    watching = Watching(compute, place.updates)
    attempts = [place.attempt(compute) for _ in range(3)]
    for attempt in attempts:
        compute.submit(place.job(attempt, "echo $RANKWISE_SPOOL_JOB"))
    ends = watching.until_over(*attempts)
    compute.close()
    assert [end.outcome for end in ends] == ["passed"] * 3
    assert {output_of(attempt) for attempt in attempts} == {"1\n"}


class KeeperStandIn:
    """Stands in for the part of a pilot that starts runners; what it starts ends at once."""

    agent: node_batch.Pilot
    end: Mapping[str, object]

    def __init__(self, name: str, cores: int, command: Sequence[str]) -> None:
        del command
        self.name, self.cores = name, cores
        self.output, self._told = os.pipe()
        self._ended: list[str] = []

    def say(self, word: str, folder: str) -> None:
        assert word == "start"
        (Path(folder) / "end.json").write_text(json.dumps(self.end))
        self._ended.append(folder)
        os.write(self._told, b"!")

    def ended(self) -> list[str]:
        os.read(self.output, 1)
        if not self._ended:
            self.agent.end()
            return []
        # So that it is heard once more, when the end of the order has been taken in.
        os.write(self._told, b"!")
        return [self._ended.pop()]

    def hang_up(self) -> None:
        self.process = subprocess.Popen("true")


class AllocationStandIn:
    names = ("here",)

    def __init__(self, dialect: object) -> None:
        del dialect

    def cores(self) -> list[int]:
        return [4]


def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a pilot without a batch system."""
    monkeypatch.setattr(node_batch, "read_dialect", lambda: None)
    monkeypatch.setattr(node_batch, "write_placement", lambda *_: None)
    monkeypatch.setattr(node_batch, "BatchAllocation", AllocationStandIn)
    monkeypatch.setattr(node_batch, "PilotNode", KeeperStandIn)


@pytest.mark.parametrize(
    ("end", "doubt", "is_begun_again"),
    [
        ({"outcome": "crashed", "signal": signal.SIGTERM}, 1e9, True),
        ({"outcome": "cancelled", "signal": None}, 1e9, True),
        ({"outcome": "lost", "signal": None}, 1e9, True),
        ({"outcome": "crashed", "signal": signal.SIGTERM}, 0.0, False),
        ({"outcome": "crashed", "signal": signal.SIGSEGV}, 1e9, False),
        ({"outcome": "failed", "signal": None}, 1e9, False),
        ({"outcome": "passed", "signal": None}, 1e9, False),
    ],
)
def test_a_pilot_that_is_ended_right_after_a_task_begins_again_with_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    end: Mapping[str, object],
    doubt: float,
    is_begun_again: bool,
) -> None:
    """A batch system that puts a job back ends one process after the other, the pilot last."""
    stand_in(monkeypatch)
    monkeypatch.setattr(node_batch, "read_order", lambda folder: None)
    monkeypatch.setattr(node_batch, "DOUBT_SECONDS", doubt, raising=False)
    for inner in ("inbox", "taken", "attempt"):
        (tmp_path / inner).mkdir()
    order = {"folder": str(tmp_path / "attempt"), "nodes": 1, "cores": 1}
    (tmp_path / "inbox" / "1-rw-1").write_text(json.dumps(order))
    KeeperStandIn.end = end
    KeeperStandIn.agent = agent = node_batch.Pilot(tmp_path, 1e9)
    agent.run()
    assert (tmp_path / "taken" / "1-rw-1").exists() == is_begun_again


def test_an_order_that_cannot_be_read_does_not_end_the_pilot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(folder: str) -> None:
        if folder.endswith("bad"):
            raise FileNotFoundError(f"{folder}/order.json")

    stand_in(monkeypatch)
    monkeypatch.setattr(node_batch, "read_order", read)
    for inner in ("inbox", "taken", "bad", "good"):
        (tmp_path / inner).mkdir()
    for number, name in enumerate(("bad", "good")):
        order = {"folder": str(tmp_path / name), "nodes": 1, "cores": 4}
        (tmp_path / "inbox" / f"{number}-rw-{number}").write_text(json.dumps(order))
    KeeperStandIn.end = {"outcome": "passed", "signal": None}
    KeeperStandIn.agent = agent = node_batch.Pilot(tmp_path, 1e9)
    agent.run()
    ends = {
        name: json.loads((tmp_path / name / "end.json").read_text()) for name in ("bad", "good")
    }
    assert ends["good"]["outcome"] == "passed"
    assert ends["bad"]["outcome"] == "lost"
    assert "the pilot cannot begin with it: FileNotFoundError" in ends["bad"]["reason"]
    assert list((tmp_path / "taken").iterdir()) == []


def test_variables_of_the_system_are_not_passed_on(place: Place) -> None:
    compute = place.open()
    attempt = place.attempt(compute)
    compute.submit(place.job(attempt, "env | grep ^SPOOL_ || echo none; echo $RANKWISE_SPOOL_JOB"))
    Watching(compute, place.updates).until_over(attempt)
    compute.close()
    assert output_of(attempt) == "none\n1\n"


def test_variables_of_the_system_are_not_passed_on_to_other_nodes(place: Place) -> None:
    compute = place.open()
    attempt = place.attempt(compute)
    line = "echo $RANKWISE_NODE $(env | grep ^SPOOL_ | sort)"
    workers = (
        Process(name="worker-0", role="worker", command=line),
        Process(
            name="worker-1",
            role="worker",
            command=line,
            node=1,
            environment={"SPOOL_OF_THE_TASK": "1"},
        ),
    )
    compute.submit(place.job(attempt, "", processes=workers, nodes=2))
    [end] = Watching(compute, place.updates).until_over(attempt)
    compute.close()
    assert end.outcome == "passed", end
    assert output_of(attempt) == "localhost\n"
    # What the task has said itself is not the system's, whatever it is called.
    assert output_of(attempt, "worker-1") == "there SPOOL_OF_THE_TASK=1\n"


def test_cancelling_an_attempt_removes_its_waiting_job(place: Place) -> None:
    compute = place.open()
    watching = Watching(compute, place.updates)
    # Each slot is taken, so the last one waits.
    running = [place.attempt(compute) for _ in range(4)]
    for attempt in running:
        compute.submit(place.job(attempt, "echo begun; exec sleep 300"))
    for attempt in running:
        watching.until_written(attempt, "begun")
    waiting = place.attempt(compute)
    compute.submit(place.job(waiting, "echo never"))
    wait_for_number(watching, 5)
    compute.cancel(waiting)
    [end] = watching.until_over(waiting)
    assert (end.outcome, output_of(waiting)) == ("cancelled", "")
    for attempt in running:
        compute.cancel(attempt)
    ends = watching.until_over(*running)
    compute.close()
    assert [end.outcome for end in ends] == ["cancelled"] * 4


def wait_for_number(watching: Watching, count: int) -> None:
    watching.compute.look()

    def has_them() -> bool:
        assert watching.hear(0.05) == []
        return len(numbers_of(watching)) >= count

    wait_until(f"{count} jobs have a number", has_them)


def test_no_attempt_is_lost_or_submitted_twice_while_the_system_does_not_answer(
    place: Place,
) -> None:
    compute = place.open()
    watching = Watching(compute, place.updates)
    first, second = place.attempt(compute), place.attempt(compute)
    go_on = place.folder / "go-on"
    line = f"echo begun; while ! test -e {go_on}; do sleep 0.05; done"
    compute.submit(place.job(first, line))
    watching.until_written(first, "begun")
    (spool_of(place) / "away").touch()
    compute.submit(place.job(second, "echo second"))
    compute.look()

    def has_said_so() -> bool:
        assert watching.hear(0.05) == []
        return any("Spool does not answer" in news.text for news in watching.news)

    wait_until("the trouble is told", has_said_so)
    (spool_of(place) / "away").unlink()
    go_on.touch()
    ends = watching.until_over(first, second)
    compute.close()
    assert [end.outcome for end in ends] == ["passed", "passed"]
    assert any(news.text == "Spool answers again" for news in watching.news)
    assert len(list((spool_of(place) / "jobs").iterdir())) == 2


def test_submitting_waits_while_the_queue_is_full(place: Place) -> None:
    compute = place.open()
    watching = Watching(compute, place.updates)
    (spool_of(place) / "full").touch()
    attempt = place.attempt(compute)
    compute.submit(place.job(attempt, "echo later"))
    compute.look()

    def has_said_so() -> bool:
        assert watching.hear(0.05) == []
        return any("waiting for room in the queue" in news.text for news in watching.news)

    wait_until("the trouble is told", has_said_so)
    (spool_of(place) / "full").unlink()
    [end] = watching.until_over(attempt)
    compute.close()
    assert end.outcome == "passed"


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        ("slotz = 3", "unknown field `slotz`: did you mean `slots`?"),
        (
            'slots = "many"',
            "rankwise.toml:5: `compute.it.slots` must be a whole number, not 'many'",
        ),
        ('mode = "pilots"', "`compute.it.mode` must be `job` or `pilot`, not 'pilots'"),
        ('partition = "gpu"', "unknown field `partition`"),
    ],
)
def test_a_table_is_checked_as_its_system_declares_it(
    place: Place, monkeypatch: pytest.MonkeyPatch, more: str, complaint: str
) -> None:
    monkeypatch.chdir(place.folder)
    place.table = place.table.replace("\nslots = 4", "")
    write_table(place, f"\n{more}")
    with pytest.raises(InputError) as raised:
        find_site(place.folder)
    assert complaint in str(raised.value)


def test_what_a_table_must_have_is_asked_for(place: Place) -> None:
    place.table = 'backend = "spool"'
    write_table(place, "")
    with pytest.raises(InputError, match=r"`folder` is missing in `compute.it`"):
        find_site(place.folder)


def test_a_misspelt_batch_system_is_an_error_with_the_right_name(place: Place) -> None:
    place.table = 'backend = "spoool"'
    write_table(place, "")
    with pytest.raises(
        InputError, match=r"`compute.it.backend` must be .*, not 'spoool'; did you mean `spool`"
    ):
        find_site(place.folder)


def test_a_system_that_cannot_be_loaded_says_why(tmp_path: Path) -> None:
    installed = tmp_path / "installed"
    points = {"rankwise.batch_systems": {"broken": "broken_system:Broken"}}
    write_distribution(installed, "broken", points)
    (tmp_path / "rankwise.toml").write_text('[compute.it]\nbackend = "broken"\n')
    with importable(installed), pytest.raises(InputError) as raised:
        find_site(tmp_path)
    assert "batch system `broken` cannot be loaded" in str(raised.value)
    assert "broken_system" in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1
    assert "broken_system" not in sys.modules


def test_the_worked_example_of_another_system_says_what_it_needs() -> None:
    text = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()
    [code] = [part for part in re.findall(r"```python\n(.*?)```", text, re.S) if "Lsf(" in part]
    names = {**vars(system), "dataclass": dataclass, "BatchConfig": BatchConfig}
    exec(textwrap.dedent(code), names)
    lsf = names["Lsf"](names["LsfSettings"](queue="long", options=("-P", "p")))
    slots = ["-n", "8", "-R", "span[ptile=4]"]
    assert lsf.options(system.Needs(nodes=2, cores=4)) == [*slots, "-q", "long", "-P", "p"]
    assert lsf.is_away("LSF is down. Please wait ...")
    assert lsf.dialect.is_own("LSB_JOBID")


# A job that is put back into the queue: the client notices, however short its stay on a node was

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
) -> Iterator[Watched]:
    folder = tmp_path / "store" / "runs" / "run-1" / "task" / "1"
    folder.mkdir(parents=True)
    made = Watched(folder, monkeypatch, request.param)
    yield made
    # Its questions follow each other without a pause: they would slow down the tests after it.
    made.compute.close()


@pytest.mark.parametrize("is_seen_running", [True, False], ids=["seen running", "not seen running"])
def test_a_requeued_job_is_reported_and_gets_its_secrets_again(
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


def test_a_job_that_starts_during_a_query_is_not_reported_as_requeued(
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


def test_a_failure_in_the_thread_is_reported_once_and_does_not_end_it(
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


def test_a_job_submitted_during_a_query_is_not_called_forgotten(
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


def test_an_order_that_its_pilot_takes_at_this_moment_is_still_with_the_pilot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = Attempt(label="run-1/task/1", marker="rw-1", folder=tmp_path / "attempt")
    notes = SubmitNotes(system=Slurm(), backend="slurm")
    notes.note(attempt, "rw-pilot", None, pilot=str(tmp_path), order="0001")
    for name in ("inbox", "taken"):
        (tmp_path / name).mkdir()
    order = tmp_path / "inbox" / "0001"
    order.touch()
    exists = Path.exists

    def exists_and_is_taken_then(path: Path) -> bool:
        found = exists(path)
        if exists(order):
            order.rename(tmp_path / "taken" / "0001")
        return found

    monkeypatch.setattr(Path, "exists", exists_and_is_taken_then)
    assert notes.is_with_pilot(attempt)
