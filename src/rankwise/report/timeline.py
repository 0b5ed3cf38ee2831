"""Runs as timelines: what ran when on which lanes, and what that says about the time it took."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterable, Sequence
from typing import Any

from rankwise.plan import Task
from rankwise.report.findings import Findings, Idle, findings
from rankwise.report.lanes import Bar, Claim, Timeline, pack
from rankwise.store import AttemptRow, State, Store

__all__ = ["Bar", "Findings", "Idle", "Timeline", "findings", "timeline_data", "timeline_of_run"]

# More lanes than this are no picture any more; each task has one then.
_MOST_LANES = 64


def timeline_of_run(store: Store, run_id: str, *, now: float | None = None) -> Timeline:
    """Make a timeline of the tasks of a run, as far as it has come.

    Lanes are cores, or nodes where tasks have several on a cluster; as many as were in use at once.
    Each attempt is a bar. Raises InputError if there is no such run.
    """
    run = store.run(run_id)
    until = run.ended if run.ended is not None else now if now is not None else time.time()
    zero = run.started if run.started is not None else run.created
    tasks = {row.key: row.body for row in store.task_rows(run.id, bodies=True) if row.body}
    attempts = [one for one in store.attempts(run.id) if one.started is not None]
    noun, widths = _measure(tasks.values())
    claims = [
        Claim(
            width=widths.get(one.task, 1),
            start=max(0.0, (one.started or zero) - zero),
            end=max(0.0, (one.ended if one.ended is not None else until) - zero),
        )
        for one in attempts
    ]
    if _peak(claims) > _MOST_LANES:
        noun = "slot"
        claims = [Claim(width=1, start=claim.start, end=claim.end) for claim in claims]
    lanes = pack(claims)
    bars = [
        Bar(
            lanes=place,
            start=claim.start,
            end=max(claim.start, claim.end),
            name=one.task,
            state=_state(one),
            note=f"attempt {one.number}" if one.number > 1 else "",
            needs=tasks[one.task].needs if one.task in tasks else (),
        )
        for one, claim, place in zip(attempts, claims, lanes, strict=True)
    ]
    count = 1 + max((lane for place in lanes for lane in place), default=0)
    has_needs = any(task.needs or task.lane_width for task in tasks.values())
    return Timeline(
        title=run.id,
        lanes=tuple(f"{noun} {number}" for number in range(count)),
        bars=sorted(bars, key=lambda bar: bar.start),
        end=max(0.0, until - zero),
        noun="task",
        lane_noun=noun,
        order="needs" if has_needs else "dynamic",
        is_over=run.ended is not None,
        begun=zero,
    )


def timeline_data(timeline: Timeline) -> dict[str, Any]:
    """Make plain data of a timeline and what it says, for JSON."""
    found = findings(timeline)
    names = ("makespan", "lower_bound", "efficiency", "busy", "idle", "advice")
    return {
        **dataclasses.asdict(timeline),
        "findings": {
            **{name: getattr(found, name) for name in names},
            "causes": {one.cause: one.seconds for one in found.causes},
            "longest": [bar.name for bar in found.longest],
        },
    }


def _measure(tasks: Iterable[Task]) -> tuple[str, dict[str, int]]:
    """Choose what lanes are, and find how many each task needs."""
    tasks = list(tasks)
    if any(task.nodes > 1 and task.compute != "local" for task in tasks):
        return "node", {task.key: max(1, task.nodes) for task in tasks}
    return "core", {task.key: _cores(task) for task in tasks}


def _cores(task: Task) -> int:
    return max(1, math.ceil(task.resources.cores or task.width or len(task.processes)))


def _peak(claims: Sequence[Claim]) -> int:
    """Find how many lanes are in use at once."""
    changes = sorted(
        change
        for claim in claims
        for change in ((claim.start, 1, claim.width), (claim.end, 0, -claim.width))
    )
    most = now = 0
    for _, _, change in changes:
        now += change
        most = max(most, now)
    return most


def _state(attempt: AttemptRow) -> State:
    return attempt.state if attempt.state.is_over else State.RUNNING
