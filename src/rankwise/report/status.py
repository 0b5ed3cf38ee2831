"""How a run stands, gathered from the store and, for what still runs, from its runners' records."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

from rankwise.records import read_processes
from rankwise.store import ProcessRow, ResultRow, RunRow, State, Store, TaskRow

# More tasks than this are counted, and only those named that people look for.
_MOST_TASKS = 40
_BUSY = (State.RUNNING, State.SUBMITTING)
_RED = tuple(state for state in State if state.is_over and not state.is_green)


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
    """The process that drives it; None: nobody does."""
    children: Sequence[RunRow] = ()
    """Runs that its stages have submitted, and that go on by themselves."""

    @property
    def total(self) -> int:
        return sum(self.counts.values())


def status_of(
    store: Store, run: RunRow, *, driver: int | None, with_all: bool = False
) -> RunStatus:
    """Find out how a run stands; with all of its tasks, however many, if asked."""
    counts = store.counts(run.id)
    total = sum(counts.values())
    if with_all or total <= _MOST_TASKS:
        tasks = list(store.task_rows(run.id))
    else:
        half = _MOST_TASKS // 2
        red = islice(store.tasks_in(run.id, _RED), half)
        tasks = list(chain(islice(store.tasks_in(run.id, _BUSY), half), red))
    processes = _processes(store, tasks[0]) if total == 1 else []
    return RunStatus(
        run=run,
        counts=counts,
        tasks=tasks,
        processes=processes,
        results=store.results(run.id),
        driver=driver,
        children=store.children(run.id),
    )


def _processes(store: Store, task: TaskRow) -> Sequence[ProcessRow]:
    attempts = store.attempts(task.run, task.key)
    if not attempts:
        return []
    known = store.processes(task.run, task.key, attempts[-1].number)
    return known or read_processes(attempts[-1].folder)


def run_data(run: RunRow) -> dict[str, Any]:
    """Make plain data of a run, for JSON."""
    return dataclasses.asdict(run)


def status_data(status: RunStatus) -> dict[str, Any]:
    """Make plain data of how a run stands, for JSON."""
    tasks = [dataclasses.asdict(task) for task in status.tasks]
    for task in tasks:
        del task["body"], task["run"]
    return {
        **run_data(status.run),
        "driver": status.driver,
        "counts": {str(state): count for state, count in status.counts.items() if count},
        "tasks": tasks,
        "results": {
            task: [dataclasses.asdict(one) for one in results]
            for task, results in status.results.items()
        },
        "processes": [dataclasses.asdict(one) for one in status.processes],
        "children": [run_data(child) for child in status.children],
    }
