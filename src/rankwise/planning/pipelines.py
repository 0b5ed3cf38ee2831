"""From a document of a pipeline to its tasks."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import string
from collections.abc import Mapping, Sequence
from pathlib import Path

from rankwise.errors import InputError
from rankwise.plan import Process, Reuse, Task, to_data
from rankwise.planning.contract import Ask, Planned
from rankwise.planning.stages import Scene, stage_tasks
from rankwise.planning.step_lines import detach_line
from rankwise.planning.targets import check_targets
from rankwise.spec.documents import Document
from rankwise.spec.mistakes import nearest
from rankwise.spec.pipeline import Pipeline, in_order, needs_of
from rankwise.spec.stages import Stage


def plan_pipeline(document: Document, ask: Ask) -> Planned:
    """Plan the stages, each with what it needs."""
    model = document.model
    assert isinstance(model, Pipeline)
    scene = Scene(document=document, model=model, ask=ask, workspace=_workspace(document, model))
    if only := ask.choice.get("only"):
        return _detached(scene, str(only))
    begin = ask.choice.get("from")
    first = _stages_from(document, str(begin)) if begin else None
    needs = needs_of(model.stages)
    tasks: list[Task] = []
    notices: list[str] = [*_check_names(scene)]
    keys: dict[str, tuple[str, ...]] = {}
    for name in in_order(needs):
        stage = model.stages[name]
        before = tuple(key for need in needs[name] for key in keys[need])
        planned = stage_tasks(scene, name, stage)
        own: Sequence[Task] = planned.tasks
        if stage.detach:
            own = [_submitting(scene, name, own)]
        is_taken = first is not None and name not in first
        own = [_linked(scene, one, stage, before, is_taken=is_taken) for one in own]
        keys[name] = tuple(one.key for one in own)
        tasks += own
        notices += [notice for notice in planned.notices if notice not in notices]
    check_targets(scene)
    return Planned(tasks=tasks, notices=notices)


def _stages_from(document: Document, name: str) -> set[str]:
    """Give a stage and all that come after it; raises InputError if there is none."""
    model = document.model
    assert isinstance(model, Pipeline)
    if name not in model.stages:
        meant = nearest(name, model.stages)
        hint = f"did you mean {meant!r}?" if meant else f"there are {', '.join(model.stages)}"
        raise InputError(f"{document.path}: there is no stage {name!r}; {hint}")
    needs = needs_of(model.stages)
    found = {name}
    for one in in_order(needs):
        if found & set(needs[one]):
            found.add(one)
    return found


def _workspace(document: Document, model: Pipeline) -> Path:
    written = string.Template(model.workspace).safe_substitute({**os.environ, **model.env})
    folder = document.path.absolute().parent / Path(written).expanduser()
    if folder.exists() and not folder.is_dir():
        place = document.place(("workspace",), model.workspace)
        raise InputError(f"{place}: the workspace is a file, not a folder: {folder}")
    return folder


def _check_names(scene: Scene) -> tuple[str, ...]:
    model, document = scene.model, scene.document
    stages = model.stages.values()
    computes = {name for name in (model.on, *(stage.on for stage in stages)) if name}
    if scene.ask.on:
        computes = {scene.ask.on}
    runtimes = {
        name for name in (model.environment, *(stage.environment for stage in stages)) if name
    }
    return scene.ask.site.check(
        computes={name: document.place(("on",), name) for name in computes if "${{" not in name},
        runtimes={
            name: document.place(("environment",), name) for name in runtimes if "${{" not in name
        },
        is_strict=scene.ask.is_strict,
    )


def _linked(
    scene: Scene, task: Task, stage: Stage, before: tuple[str, ...], *, is_taken: bool
) -> Task:
    """Put a task after those that its stage needs."""
    is_first = not task.needs
    return dataclasses.replace(
        task,
        needs=before if is_first else task.needs,
        when=stage.when if is_first else task.when,
        inherits=(*before, *task.inherits),
        reuse=_reuse(scene, task, stage, is_taken=is_taken),
    )


def _reuse(scene: Scene, task: Task, stage: Stage, *, is_taken: bool) -> Reuse | None:
    if is_taken:
        return Reuse(definition="", is_taken=True)
    if stage.inputs is None:
        return None
    said = {"source": str(scene.document.path.absolute()), "task": to_data(task)}
    digest = hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode())
    return Reuse(
        definition=digest.hexdigest(),
        inputs=tuple(stage.inputs),
        outputs=tuple(stage.outputs),
        folder=str(scene.workspace),
        is_wanted=not scene.ask.choice.get("force") and not scene.ask.choice.get("from"),
    )


def _submitting(scene: Scene, name: str, tasks: Sequence[Task]) -> Task:
    """Make the task that submits a stage, in the place of its own."""
    source = str(scene.document.path.absolute())
    line = detach_line(source, name, is_forced=bool(scene.ask.choice.get("force")))
    if scene.ask.on:
        line = (*line, "--on", scene.ask.on)
    return Task(
        key=name,
        processes=(Process(name="detach", role="detach", command=line),),
        folder=str(scene.workspace),
        environment=dict(scene.model.env),
        secrets=tuple(dict.fromkeys(secret for task in tasks for secret in task.secrets)),
        submits=True,
    )


def _detached(scene: Scene, name: str) -> Planned:
    """Plan one stage alone, with the variables that it would have had in its pipeline."""
    given = scene.ask.choice.get("environment")
    inherited: Mapping[str, str] = given if isinstance(given, Mapping) else {}
    planned = stage_tasks(scene, name, scene.model.stages[name])
    tasks = [
        dataclasses.replace(task, environment={**inherited, **task.environment})
        for task in planned.tasks
    ]
    return Planned(tasks=tasks, notices=planned.notices)
