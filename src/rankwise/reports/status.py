"""How a run stands, and how long it may still take."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from rankwise.reports.failures import processes_of, seconds_of
from rankwise.store import ProcessRow, ResultRow, RunRow, State, Store, TaskRow
from rankwise.store.rows import RED

# Older runs say little about how long tasks take now.
_MOST_SEARCHED = 20


def durations_before(store: Store, run: RunRow) -> dict[str, float]:
    """Return how long the tasks took that passed in the run before this one."""
    for before in store.runs(_MOST_SEARCHED, name=run.name):
        if before.number < run.number and before.source == run.source and before.state.is_over:
            passed = store.tasks_in(before.id, (State.PASSED,))
            # What was taken over from another run took no time.
            known = {row.key: seconds_of(row) for row in passed if not row.origin}
            return {key: seconds for key, seconds in known.items() if seconds is not None}
    return {}


@dataclass(slots=True, kw_only=True)
class Forecast:
    """Learns what starts and ends, and says how long the rest takes."""

    waiting: int
    """How many tasks have not ended yet."""
    known: Mapping[str, float] = field(default_factory=dict)
    _running: dict[str, float] = field(default_factory=dict)
    _begun: float | None = None
    _spent: float = 0.0
    _over: int = 0

    def started(self, key: str, now: float) -> None:
        """Learn that a task has started."""
        self._begun = now if self._begun is None else self._begun
        # Another attempt of the same task does not begin its time again.
        self._running.setdefault(key, now)

    def over(self, key: str, now: float) -> None:
        """Learn that a task is over, however that came."""
        self.waiting -= 1
        begun = self._running.pop(key, None)
        # What was skipped never started, and says nothing about the rest.
        if begun is not None:
            self._spent += now - begun
            self._over += 1

    def seconds_left(self, now: float) -> float | None:
        """Estimate; None: nothing is known.

        Tasks that are not known are expected to be like those that are, and as many at a time as
        until now.
        """
        if self._begun is None or (not self._over and not self.known):
            return None
        known = sum(self.known.values()) / len(self.known) if self.known else None
        usual = self._spent / self._over if self._over else known or 0.0
        ages = {key: now - begun for key, begun in self._running.items()}
        of_running = [max(0.0, self.known.get(key, usual) - age) for key, age in ages.items()]
        others = max(0, self.waiting - len(ages))
        at_once = max(1.0, (self._spent + sum(ages.values())) / max(1e-3, now - self._begun))
        work = others * (usual if known is None else known) + sum(of_running)
        # The longest of those that run cannot be shared among more.
        return max(work / at_once, *of_running, 0.0)


# Of more tasks than this, only those are named that people look for; all are counted.
_MOST_TASKS = 40
_BUSY = (State.RUNNING, State.SUBMITTING)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """How a run stands."""

    run: RunRow
    counts: Mapping[State, int]
    tasks: Sequence[TaskRow]
    """All of them, or those that are running or not green."""
    processes: Sequence[ProcessRow] = ()
    """Those of the last attempt, where there is only one task."""
    results: Mapping[str, Sequence[ResultRow]] = field(default_factory=dict)
    """The single tests of tasks that run many."""
    driver: int | None = None
    """The process that drives it; None: there is none."""
    children: Sequence[RunRow] = ()
    """Runs that its stages have submitted, and that go on by themselves."""

    @property
    def total(self) -> int:
        return sum(self.counts.values())


def status_of(
    store: Store, run: RunRow, *, driver: int | None, with_all: bool = False
) -> RunStatus:
    """Find out how a run stands; with all of its tasks, however many, if asked."""
    # Counted by the store: a run may have more tasks than are worth reading.
    counts = store.counts(run.id)
    total, half = sum(counts.values()), _MOST_TASKS // 2
    if with_all or total <= _MOST_TASKS:
        tasks = list(store.task_rows(run.id))
    else:
        tasks = [one for some in (_BUSY, RED) for one in islice(store.tasks_in(run.id, some), half)]
    attempts = store.attempts(run.id) if total == 1 else []
    return RunStatus(
        run=run,
        counts=counts,
        tasks=tasks,
        processes=processes_of(store, attempts[-1]) if attempts else (),
        results=store.results(run.id),
        driver=driver,
        children=store.children(run.id),
    )


def status_data(status: RunStatus) -> dict[str, Any]:
    """Make plain data of how a run stands, for JSON."""
    tasks = [dataclasses.asdict(task) for task in status.tasks]
    for task in tasks:
        del task["body"], task["run"]
    return {
        **dataclasses.asdict(status.run),
        "driver": status.driver,
        "counts": {str(state): count for state, count in status.counts.items() if count},
        "tasks": tasks,
        "results": {
            task: [dataclasses.asdict(one) for one in results]
            for task, results in status.results.items()
        },
        "processes": [dataclasses.asdict(one) for one in status.processes],
        "children": [dataclasses.asdict(child) for child in status.children],
    }
