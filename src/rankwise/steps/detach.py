"""Submits a stage of a pipeline as a run of its own, for which the pipeline does not wait."""

from __future__ import annotations

import dataclasses
import os
import time
from argparse import Namespace
from pathlib import Path

from rankwise.engine.reuse import INHERITED
from rankwise.engine.runs import check_secrets
from rankwise.plan import NOTIFIED
from rankwise.planning import plan_from
from rankwise.steps import parser_about_run
from rankwise.store import Store

_STAGE = "stage"


def main() -> None:
    """Do what the command line says."""
    parser = parser_about_run("detach", "Submit the tasks of a stage as a run of its own.")
    parser.add_argument("source", help="the document")
    parser.add_argument("stage", help="its stage")
    parser.add_argument("--on", default=None, help="compute")
    parser.add_argument("--force", action="store_true", help="run also what has not changed")
    given = parser.parse_args()
    with Store.open(Path(given.store)) as store:
        run = _submitted(store, given.run, given.stage)
        if run is None:
            run = _submit(store, given)
    # The engine has it driven: what we start here ends with this attempt.
    print(f"submitted as {run}; it goes on by itself:  rankwise status {run}")


def _submitted(store: Store, parent: str, stage: str) -> str | None:
    """Return the run that an earlier try has made, so that there is one only."""
    found = [run.id for run in store.children(parent) if run.tags.get(_STAGE) == stage]
    return found[0] if found else None


def _submit(store: Store, given: Namespace) -> str:
    names = os.environ.get(INHERITED, "").split()
    inherited = {name: os.environ[name] for name in names if name in os.environ}
    choice = {"only": given.stage, "environment": inherited, "force": given.force}
    plan, text = plan_from([Path(given.source)], on=given.on, choice=choice)
    check_secrets(plan.tasks)
    tags = {**plan.tags, _STAGE: given.stage}
    if notified := store.run(given.run).tags.get(NOTIFIED):
        # A message is sent when the work is done as well, not only when it is submitted.
        tags[NOTIFIED] = notified
    plan = dataclasses.replace(plan, name=f"{plan.name}-{given.stage}", tags=tags)
    return store.create_run(plan, text, now=time.time(), parent=given.run)
