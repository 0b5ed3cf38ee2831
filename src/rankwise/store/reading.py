"""From the columns of a table to its row class."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rankwise.store.bodies import task_of
from rankwise.store.database import Row
from rankwise.store.rows import AttemptRow, EventRow, ProcessRow, RunRow, TaskRow, columns_of
from rankwise.store.states import State

_RUN = columns_of(RunRow)
_TASK = columns_of(TaskRow)
_TASK_ALONE = tuple(name for name in _TASK if name != "body")
_ATTEMPT = columns_of(AttemptRow)
_PROCESS = columns_of(ProcessRow)
_EVENT = columns_of(EventRow)

SELECT_RUNS = f"SELECT {', '.join(_RUN)} FROM runs"
SELECT_TASKS = f"SELECT {', '.join(_TASK_ALONE)} FROM tasks"
SELECT_TASKS_WITH_BODIES = f"SELECT {', '.join(_TASK)} FROM tasks"
SELECT_ATTEMPTS = f"SELECT {', '.join(_ATTEMPT)} FROM attempts"
SELECT_PROCESSES = f"SELECT {', '.join(_PROCESS)} FROM processes"
SELECT_EVENTS = f"SELECT {', '.join(_EVENT)} FROM events"


def read_run(row: Row) -> RunRow:
    """Read what SELECT_RUNS gave."""
    named = _named(_RUN, row)
    named["state"] = State(named["state"])
    named["tags"] = json.loads(named["tags"])
    named["notices"] = tuple(json.loads(named["notices"]))
    return RunRow(**named)


def read_task(row: Row) -> TaskRow:
    """Read what SELECT_TASKS gave."""
    named = _named(_TASK_ALONE, row)
    named["state"] = State(named["state"])
    return TaskRow(**named)


def read_task_with_body(row: Row) -> TaskRow:
    """Read what SELECT_TASKS_WITH_BODIES gave."""
    named = _named(_TASK, row)
    named["state"] = State(named["state"])
    named["body"] = task_of(named["body"])
    return TaskRow(**named)


def read_attempt(row: Row) -> AttemptRow:
    """Read what SELECT_ATTEMPTS gave."""
    named = _named(_ATTEMPT, row)
    named["state"] = State(named["state"])
    named["folder"] = Path(named["folder"])
    return AttemptRow(**named)


def read_process(row: Row) -> ProcessRow:
    """Read what SELECT_PROCESSES gave."""
    named = _named(_PROCESS, row)
    named["by_us"] = bool(named["by_us"])
    return ProcessRow(**named)


def read_event(row: Row) -> EventRow:
    """Read what SELECT_EVENTS gave."""
    named = _named(_EVENT, row)
    named["body"] = json.loads(named["body"])
    return EventRow(**named)


def _named(columns: tuple[str, ...], row: Row) -> dict[str, Any]:
    return dict(zip(columns, row, strict=True))
