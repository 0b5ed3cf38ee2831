"""Events for programs."""

from __future__ import annotations

import io
import json
from pathlib import Path

from rankwise.reports.terminal.live import JsonView, QuietView
from rankwise.store import State
from rankwise.store.rows import Event


def test_every_event_is_a_line_of_json_without_what_is_empty() -> None:
    stream = io.StringIO()
    view = JsonView(stream)
    view.event(Event(kind="run started", run="job-1", time=1.5))
    view.event(
        Event(
            kind="attempt ended",
            run="job-1",
            time=2.5,
            task="train",
            attempt=1,
            state=State.FAILED,
            exit_code=0,
            reason="größer\nthan",
            culprit="rank-3",
            folder=Path("/runs/job-1/train/1"),
        )
    )
    counts: dict[str, int] = {State.PASSED: 3, State.FAILED: 0}
    view.event(Event(kind="run over", run="job-1", time=3.5, state="passed", counts=counts))
    view.lines([])
    view.ending(3)
    view.refresh()
    view.close()
    assert [json.loads(line) for line in stream.getvalue().splitlines()] == [
        {"kind": "run started", "run": "job-1", "time": 1.5},
        {
            "kind": "attempt ended",
            "run": "job-1",
            "time": 2.5,
            "task": "train",
            "attempt": 1,
            "state": "failed",
            "exit_code": 0,
            "reason": "größer\nthan",
            "culprit": "rank-3",
            "folder": "/runs/job-1/train/1",
        },
        {
            "kind": "run over",
            "run": "job-1",
            "time": 3.5,
            "state": "passed",
            "counts": {"passed": 3},
        },
    ]


def test_who_wants_quiet_still_hears_what_ctrl_c_does() -> None:
    stream = io.StringIO()
    view = QuietView(stream)
    view.event(Event(kind="run started", run="job-1", time=1.5))
    view.lines([])
    assert stream.getvalue() == ""
    view.ending(2)
    view.refresh()
    view.close()
    assert stream.getvalue().startswith("rankwise: ending 2 processes")
