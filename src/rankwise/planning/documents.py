"""From documents to one plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rankwise.errors import InputError
from rankwise.plan import REPORTED, Plan, Task
from rankwise.planning.contract import Ask
from rankwise.planning.images import with_image
from rankwise.planning.kinds import planner_for
from rankwise.planning.selection import Selection, select
from rankwise.site import find_site
from rankwise.spec.documents import Document, load

_SEPARATOR = "\n---\n"


def plan_from(
    paths: Sequence[Path],
    *,
    strict: bool = False,
    on: str | None = None,
    choice: Mapping[str, object] | None = None,
    wanted: Selection | None = None,
) -> tuple[Plan, str]:
    """Make a plan of documents, and give their text with it.

    `on` is the compute to take instead of those in the documents, `choice` what else the command
    line says, `wanted` which of the tasks. Raises InputError with every mistake in all of them.
    """
    documents = _load_all(paths)
    tasks: list[Task] = []
    notices: list[str] = []
    taken: set[str] = set()
    for document in documents:
        site = find_site(document.path.absolute().parent)
        ask = Ask(site=site, on=on, is_strict=strict, choice=choice or {})
        planned = planner_for(document.model)(document, ask)
        notices += [notice for notice in planned.notices if notice not in notices]
        tasks += _renamed([with_image(task, site) for task in planned.tasks], taken)
    chosen, said = select(tasks, wanted or Selection())
    notices += said
    first = documents[0].model
    kinds = {document.model.type for document in documents}
    others = len(documents) - 1
    plan = Plan(
        name=first.name + (f"-and-{others}-more" if others else ""),
        kind=kinds.pop() if len(kinds) == 1 else "several",
        tasks=tuple(chosen),
        experiment=first.experiment_name,
        source=str(documents[0].path.absolute()),
        notices=tuple(notices),
        tags={**_repository(chosen, documents[0].path), **_wishes(documents), **first.tags},
    )
    return plan, _SEPARATOR.join(document.text for document in documents)


def _repository(tasks: Iterable[Task], path: Path) -> dict[str, str]:
    """Say what was measured: only what measures is compared with other commits."""
    if not any(task.measuring for task in tasks):
        return {}
    from rankwise.metrics.conditions import git_of

    return git_of(path.absolute().parent)


def _wishes(documents: Iterable[Document]) -> dict[str, str]:
    """Have a run remember what is to follow it, whoever is there at its end."""
    wishes = {getattr(document.model, "report", "") for document in documents}
    return {REPORTED: "when-complete"} if "when-complete" in wishes else {}


def _load_all(paths: Sequence[Path]) -> list[Document]:
    documents, complaints = [], []
    for path in paths:
        try:
            documents.append(load(path))
        except InputError as error:
            complaints.append(str(error))
    if complaints:
        raise InputError("\n".join(complaints))
    return documents


def _renamed(tasks: Sequence[Task], taken: set[str]) -> list[Task]:
    """Give tasks other keys where another document has them already, and take their keys."""
    keys = {}
    for task in tasks:
        key, number = task.key, 1
        while key in taken:
            number += 1
            key = f"{task.key}-{number}"
        taken.add(key)
        keys[task.key] = key
    if all(old == new for old, new in keys.items()):
        return list(tasks)
    return [
        dataclasses.replace(
            task, key=keys[task.key], needs=tuple(keys[need] for need in task.needs)
        )
        for task in tasks
    ]
