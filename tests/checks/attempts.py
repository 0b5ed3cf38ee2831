"""Folders of attempts, as runners leave them."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path

from rankwise.checks.judge import judge
from rankwise.plan import Check, Process, Task
from rankwise.records import AttemptEnd


def make_attempt(folder: Path, ranks: Mapping[int, str], *, lost: int = 0) -> Path:
    """Make the folder of an attempt whose ranks have written this."""
    attempt = folder / "attempt"
    for number, text in ranks.items():
        place = attempt / "processes" / f"worker-{number}"
        place.mkdir(parents=True)
        about = {"name": place.name, "role": "worker", "rank": number}
        (place / "start.json").write_text(json.dumps(about))
        (place / "end.json").write_text(json.dumps({"exit_code": 0, "log_lost": lost}))
        (place / "output.log").write_text(text)
    (folder / "work").mkdir()
    order = {"nodes": [{"folder": str(folder / "work")}]}
    (attempt / "order.json").write_text(json.dumps(order))
    return attempt


def judged(
    attempt: Path, *checks: Check, outcome: str = "passed", code: int = 0, results: str = ""
) -> AttemptEnd:
    """Judge an attempt that has just ended, as its runner says."""
    count = len(list((attempt / "processes").iterdir()))
    task = Task(
        key="t",
        processes=tuple(
            Process(name=f"worker-{number}", role="worker", command="true", rank=number)
            for number in range(count)
        ),
        checks=checks,
        results=results,
    )
    reason = "" if outcome == "passed" else "worker-0 exited with code"
    end = AttemptEnd(outcome=outcome, exit_code=code, reason=reason, started=time.time() - 5)
    return judge(task, attempt, end)[0]
