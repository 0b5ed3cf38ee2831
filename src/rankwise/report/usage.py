"""What the tasks of a run have used over time, of those whose report has room for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rankwise.records import Usage, read_usage
from rankwise.store import Store, TaskRow

_MOST_TASKS = 150
# Less than this is not looked at by runners.
_SHORTEST_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """What the last attempt of a task has used."""

    usage: Usage
    """On the first of its nodes."""
    cpu_seconds: float
    peak_memory: float
    """Those of all nodes together."""


def used_by_tasks(store: Store, run: str, rows: Sequence[TaskRow]) -> dict[str, Used]:
    """Read what tasks have used, as far as it is known; of many, what is not green comes first."""
    long = [
        row
        for row in rows
        if row.started is not None
        and row.ended is not None
        and row.ended - row.started >= _SHORTEST_SECONDS
    ]
    first = sorted(long, key=lambda row: row.state.is_green)[:_MOST_TASKS]
    folders = {one.task: one.folder for one in store.attempts(run)} if first else {}
    found = {row.key: read_usage(folders[row.key]) for row in first if row.key in folders}
    return {
        key: Used(
            usage=nodes[0],
            cpu_seconds=sum(one.cpu_seconds for one in nodes),
            peak_memory=sum(one.peak_memory for one in nodes),
        )
        for key, nodes in found.items()
        if nodes
    }
