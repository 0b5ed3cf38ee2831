"""Drives runs on a compute that does what a test says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

from rankwise.backends.base import Attempt, BackendFacts, Submission, Update
from rankwise.engine.drive import Drive
from rankwise.engine.verdict import RunEnd
from rankwise.errors import ComputeFailure
from rankwise.node.files import give_up
from rankwise.plan import Plan, Process, Resources, Restart, RuntimeChoice, Task
from rankwise.records import abandon, end_of
from rankwise.runtimes.base import PreparedRuntime
from rankwise.store import Store
from rankwise.store.rows import Event

Ends = Callable[[Submission], tuple[str, int]]


class FakeUpdates(SimpleQueue[Update]):
    """Has an attempt end whenever it is waited for."""

    def __init__(self, compute: FakeCompute) -> None:
        self._compute = compute

    def get(self, block: bool = True, timeout: float | None = None) -> Update:
        if timeout:
            self._compute.end_first()
        return super().get(block, timeout)


class FakeCompute:
    """Ends every attempt as soon as it is waited for, in the way that `ends` says."""

    def __init__(self, ends: Ends, cores: float = 2) -> None:
        self._ends = ends
        self._cores = cores
        self.updates = FakeUpdates(self)
        self.submitted: list[str] = []
        self.cancelled: list[str] = []
        self._running: dict[str, tuple[Attempt, Callable[[], None]]] = {}
        self.most_at_once = 0

    def facts(self) -> BackendFacts:
        own = Resources(cores=self._cores)
        return BackendFacts(capacity=own, room=own)

    def submit(self, job: Submission) -> None:
        self.submitted.append(job.task.key)
        folder = job.attempt.folder
        # As a runner does before anything else: what is older than its claim is not its work.
        give_up(folder)
        outcome, code = self._ends(job)
        if outcome == "refused":
            raise ComputeFailure("no room")
        self._running[job.attempt.marker] = job.attempt, lambda: end(folder, outcome, code)
        self.most_at_once = max(self.most_at_once, len(self._running))
        self.updates.put(Update(attempt=job.attempt, job_id="7", has_started=True))

    def place(self, folder: Path) -> Path:
        return folder

    def adopt(self, attempt: Attempt, job_id: str) -> None:
        if abandon(attempt.folder):
            self.updates.put(Update(attempt=attempt, is_absent=True))
        else:
            self._running[attempt.marker] = attempt, lambda: None

    def end_first(self) -> None:
        """Have the attempt end that has run for longest."""
        if self._running:
            attempt, act = self._running.pop(next(iter(self._running)))
            act()
            self.updates.put(Update(attempt=attempt, end=end_of(attempt.folder)))

    def cancel(self, attempt: Attempt) -> None:
        self.cancelled.append(attempt.label)

    def look(self) -> None:
        self.updates.put(Update(has_looked=True))

    def close(self) -> None:
        """There is nothing to keep."""


def end(folder: Path, outcome: str, code: int) -> None:
    if outcome == "lost":
        return
    record = {"outcome": outcome, "exit_code": code, "reason": f"it {outcome}"}
    (folder / "end.json").write_text(json.dumps(record))


def task(key: str, *needs: str, cores: float = 0, most: int = 0) -> Task:
    return Task(
        key=key,
        processes=(Process(name="worker-0", role="worker", command="true"),),
        needs=needs,
        resources=Resources(cores=cores),
        restart=Restart(most=most),
    )


def always(outcome: str, code: int = 0) -> Ends:
    return lambda job: (outcome, code)


def drive(
    store: Store, compute: FakeCompute, *tasks: Task, run: str = ""
) -> tuple[RunEnd, list[Event]]:
    run = run or store.create_run(Plan(name="p", kind="k", tasks=tasks), "", now=0.0)
    events: list[Event] = []
    one = Drive(
        store,
        run,
        list(store.task_rows(run, bodies=True)),
        {"local": compute},
        compute.updates,
        prepare=prepared,
        observer=events.append,
        secrets={},
    )
    return one.go(), events


def prepared(choice: RuntimeChoice) -> PreparedRuntime:
    return PreparedRuntime()


def states(store: Store) -> dict[str, str]:
    return {row.key: str(row.state) for row in store.task_rows("p-1")}
