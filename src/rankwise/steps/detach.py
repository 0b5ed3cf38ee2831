"""Submits a stage of a pipeline as a run of its own, for which the pipeline does not wait."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path

from rankwise.engine.reuse import INHERITED
from rankwise.engine.runs import check_secrets
from rankwise.plan import NOTIFIED
from rankwise.planning import plan_from
from rankwise.store import Store

_STAGE = "stage"


def detach_step(
    *, store: str, run_id: str, source: str, stage: str, on: str = "", force: bool = False
) -> None:
    """Submit the tasks of a stage as a run of its own, and say how to follow it."""
    with Store.open(Path(store)) as opened:
        # An earlier try may have made it: there is one only.
        earlier = (one.id for one in opened.children(run_id) if one.tags.get(_STAGE) == stage)
        run = next(earlier, "") or _submit(opened, run_id, Path(source), stage, on, force=force)
    # The engine has it driven: what we start here ends with this attempt.
    print(f"submitted as {run}; it goes on by itself:  rankwise status {run}")


def _submit(store: Store, parent: str, source: Path, stage: str, on: str, *, force: bool) -> str:
    names = os.environ.get(INHERITED, "").split()
    inherited = {name: os.environ[name] for name in names if name in os.environ}
    choice = {"only": stage, "environment": inherited, "force": force}
    plan, text = plan_from([source], on=on or None, choice=choice)
    check_secrets(plan.tasks)
    tags = {**plan.tags, _STAGE: stage}
    if notified := store.run(parent).tags.get(NOTIFIED):
        # A message is sent when the work is done as well, not only when it is submitted.
        tags[NOTIFIED] = notified
    plan = dataclasses.replace(plan, name=f"{plan.name}-{stage}", tags=tags)
    return store.create_run(plan, text, now=time.time(), parent=parent)
