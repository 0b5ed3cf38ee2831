"""From one stage of a pipeline to its tasks."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rankwise.errors import InputError
from rankwise.launch.request import JobRequest, RoleRequest
from rankwise.plan import Process, Resources, Restart, Task, later
from rankwise.planning import scripts
from rankwise.planning.contract import Ask, Planned
from rankwise.planning.jobs import task_of
from rankwise.planning.step_lines import cache_lines, keep_line, step_line
from rankwise.spec.documents import Document, load
from rankwise.spec.pipeline import Pipeline
from rankwise.spec.stages import INCLUDED, Stage
from rankwise.spec.values import fit_name

_REFERENCE = re.compile(r"\$\{\{\s*([a-z]+)\.([^{}\s]*)\s*\}\}")
_TYPES = {"suite": "Suite", "sweep": "Sweep"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Where the stages of a pipeline are."""

    document: Document
    model: Pipeline
    ask: Ask
    workspace: Path


def stage_tasks(scene: Scene, name: str, stage: Stage) -> Planned:
    """Plan one stage: a task, or one for each cell of its matrix, or those of a document."""
    tasks: list[Task] = []
    notices: list[str] = []
    for cell, filled in _cells(stage):
        key = f"{name}.{cell}" if cell else name
        if stage.step in INCLUDED:
            planned = _included(scene, key, filled)
            tasks += planned.tasks
            notices += planned.notices
        else:
            tasks.append(_task(scene, name, cell, filled))
    return Planned(tasks=tasks, notices=notices)


def _cells(stage: Stage) -> Iterator[tuple[str, Stage]]:
    """Give the stage once for each combination of the matrix, with the values filled in."""
    taken: set[str] = set()
    for values in itertools.product(*stage.matrix.values()):
        cell = fit_name("-".join(values)) if values else ""
        name = next(
            one
            for one in itertools.chain([cell], (f"{cell}-{at}" for at in itertools.count(2)))
            if one not in taken
        )
        taken.add(name)
        yield name, _filled(stage, dict(zip(stage.matrix, values, strict=True)))


def _filled(stage: Stage, matrix: Mapping[str, str]) -> Stage:
    """Put values in for `${{…}}`, wherever it stands."""

    def value(found: re.Match[str]) -> str:
        match found[1]:
            case "matrix":
                return matrix[found[2]]
            case "artifacts":
                return later(f"artifacts:{found[2]}")
            case "run":
                return later("run")
        return found[0]

    def fill(data: object) -> object:
        if isinstance(data, str):
            return _REFERENCE.sub(value, data)
        if isinstance(data, dict):
            return {name: fill(each) for name, each in data.items()}
        if isinstance(data, list | tuple):
            return tuple(fill(each) for each in data)
        return data

    filled = {
        name: fill(getattr(stage, name))
        for name in ("run", "env", "job", "suite", "sweep", "on", "environment", "folder")
    }
    filled |= {name: fill(getattr(stage, name)) for name in ("inputs", "outputs", "artifacts")}
    for step in ("checkout", "runtime", "deploy", "report", "notify", "wait", "cache"):
        part = getattr(stage, step)
        if part is not None:
            own = {name: fill(getattr(part, name)) for name in type(part).model_fields}
            filled[step] = part.model_copy(update=own)
    return stage.model_copy(update=filled)


def _task(scene: Scene, name: str, cell: str, stage: Stage) -> Task:
    model = scene.model
    key = f"{name}.{cell}" if cell else name
    # Programs of ours work with folders of this machine, wherever the other stages run.
    is_script = stage.step == "run"
    asked = scene.ask.on if is_script else ""
    compute = asked or stage.on or (model.on if is_script else "") or "local"
    common = Task(
        key=key,
        processes=(),
        folder=str(scene.workspace / stage.folder),
        environment={**model.env, **stage.env},
        secrets=tuple(dict.fromkeys((*model.secrets, *stage.secrets))),
        compute=compute,
        timeout=stage.timeout,
        restart=Restart(most=stage.retries),
        checks=tuple(
            check.planned(scene.document.path.absolute().parent) for check in stage.checks
        ),
    )
    if stage.ranks is not None:
        return _with_ranks(scene, stage, common)
    runtime = scene.ask.site.runtime(stage.environment or model.environment)
    files: dict[str, str] = {}
    if is_script:
        command, files = _script(name, cell, stage)
    else:
        command = step_line(stage)
    resources = Resources(cores=stage.cores or 0)
    process = Process(name=stage.step, role=stage.step, command=command, resources=resources)
    return dataclasses.replace(
        common,
        processes=(process,),
        files=files,
        runtime=runtime,
        resources=resources,
        exports=is_script or stage.step in ("runtime", "checkout"),
    )


def _script(name: str, cell: str, stage: Stage) -> tuple[tuple[str, ...], dict[str, str]]:
    """Give the command of a stage that runs lines of the user's, and the files that it needs."""
    files = scripts.script_files(stage.run)
    before: list[Sequence[str]] = []
    after: list[Sequence[str]] = []
    if stage.cache is not None:
        restore, save = cache_lines(stage.cache, stage.run)
        before.append(restore)
        after.append(save)
    if stage.artifacts:
        after.append(keep_line(name, cell, stage.artifacts))
    if not before and not after:
        return scripts.script_command(), files
    files[scripts.AROUND] = scripts.around(before, after)
    return scripts.script_command(scripts.AROUND), files


def _with_ranks(scene: Scene, stage: Stage, common: Task) -> Task:
    assert stage.ranks is not None
    nodes = stage.nodes or 1
    lines = stage.run.strip().splitlines()
    files = {}
    if len(lines) > 1:
        files = {scripts.RUN: f"{stage.run}\n"}
        line = " ".join(scripts.script_command(scripts.RUN))
    else:
        line = lines[0]
    runtime = scene.ask.site.runtime(stage.environment or scene.model.environment)
    task = task_of(
        JobRequest(
            kind="mpi",
            name=common.key,
            key=common.key,
            roles=(RoleRequest(name="launcher", command=line, runtime=runtime),),
            instance_count=nodes,
            process_count_per_instance=stage.ranks // nodes,
            environment=common.environment,
            secrets=common.secrets,
            timeout=common.timeout,
            restart=common.restart,
            compute=common.compute,
            folder=common.folder,
            generate_launcher=True,
        ),
        scene.ask.site,
    )
    return dataclasses.replace(task, checks=common.checks, files={**task.files, **files})


def _included(scene: Scene, key: str, stage: Stage) -> Planned:
    """Plan the document that a stage names, as part of the pipeline."""
    from rankwise.planning.kinds import planner_for
    from rankwise.site import find_site
    from rankwise.spec.models import Job

    own = scene.document.path.absolute()
    written = getattr(stage, stage.step)
    path = own.parent / written
    place = scene.document.place(INCLUDED, written)
    chain = (*scene.ask.including, own)
    if path.resolve() in [one.resolve() for one in chain]:
        raise InputError(f"{place}: {written} includes itself, by way of {own.name}")
    try:
        document = load(path)
    except InputError as error:
        raise InputError(f"{place}: `{stage.step}` is wrong:\n{error}") from error
    kind = document.model.type
    is_fit = isinstance(document.model, Job) if stage.step == "job" else kind == _TYPES[stage.step]
    if not is_fit:
        raise InputError(f"{place}: {written} is a {kind}, not a {stage.step}")
    ask = dataclasses.replace(
        scene.ask,
        site=find_site(path.parent),
        on=scene.ask.on or stage.on or scene.model.on or None,
        choice={},
        including=chain,
    )
    planned = planner_for(document.model)(document, ask)
    is_one = len(planned.tasks) == 1
    names = {one.key: key if is_one else f"{key}.{one.key}" for one in planned.tasks}
    tasks = [
        dataclasses.replace(
            one,
            key=names[one.key],
            needs=tuple(names[need] for need in one.needs),
            inherits=tuple(names[need] for need in one.inherits),
            environment={**scene.model.env, **stage.env, **one.environment},
            secrets=tuple(dict.fromkeys((*scene.model.secrets, *stage.secrets, *one.secrets))),
            timeout=one.timeout if one.timeout is not None else stage.timeout,
            restart=one.restart if one.restart.most else Restart(most=stage.retries),
        )
        for one in planned.tasks
    ]
    return Planned(tasks=tasks, notices=planned.notices)
