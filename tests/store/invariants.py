"""What must be true of every store at every moment, whatever was done to its writers."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

from rankwise.store.database import Database
from rankwise.store.rows import RunRow
from rankwise.store.store import FILE, Store


def check_store(folder: Path) -> None:
    """Open a store afresh and check all that is in it."""
    database = Database(folder / FILE, "mode=rw", patience=30.0)
    try:
        assert database.rows("PRAGMA integrity_check") == [("ok",)]
        assert database.rows("PRAGMA foreign_key_check") == []
    finally:
        database.close()
    with Store.open(folder) as store:
        runs = store.runs(1_000_000)
        numbers = Counter((run.name, run.number) for run in runs)
        assert set(numbers.values()) <= {1}
        for run in runs:
            check_run(store, run)


def check_run(store: Store, run: RunRow) -> None:
    events = store.events_after(run.id, limit=1_000_000)
    times = Counter(
        (event.kind, event.body.get("task"), event.body.get("attempt")) for event in events
    )
    assert set(times.values()) <= {1}, "each thing happens once"
    assert all(one.id < next_one.id for one, next_one in pairwise(events))
    assert run.id == f"{run.name}-{run.number}"
    assert events[0].kind == "run_created"

    tasks = list(store.task_rows(run.id))
    assert [task.position for task in tasks] == list(range(events[0].body["tasks"]))
    assert sum(store.counts(run.id).values()) == len(tasks)
    assert run.state.is_over == (("run_ended", None, None) in times) == (run.ended is not None)
    if run.state.is_over:
        assert all(task.state.is_over for task in tasks)

    for task in tasks:
        attempts = store.attempts(run.id, task.key)
        assert [attempt.number for attempt in attempts] == list(range(1, task.attempts + 1))
        assert all(attempt.state.is_over for attempt in attempts[:-1]), "one at a time"
        assert task.state.is_over == (("task_over", task.key, None) in times)
        assert task.state.is_over == (task.ended is not None)
        if task.state.is_over:
            assert all(attempt.state.is_over for attempt in attempts)
        for attempt in attempts:
            has_ended = ("attempt_ended", task.key, attempt.number) in times
            assert attempt.state.is_over == has_ended == (attempt.ended is not None)
            if not has_ended:
                assert store.processes(run.id, task.key, attempt.number) == []
