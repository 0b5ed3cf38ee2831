"""Plan pipelines: stages, what they include, and where they deploy."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import os
import re
import string
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankwise.documents.common import Model
from rankwise.documents.load import Document, load
from rankwise.documents.pipeline import INCLUDED, Pipeline, Stage, in_order, needs_of
from rankwise.documents.site_models import LOCAL
from rankwise.documents.values import fit_name
from rankwise.documents.written import Faults, expanded
from rankwise.errors import InputError
from rankwise.git import changes_in, folder_for
from rankwise.launch.jobs import JobRequest, RoleRequest
from rankwise.launch.rewriting import in_shell
from rankwise.plan import Process, Resources, Restart, Reuse, RuntimeChoice, Task, later
from rankwise.planning import stage_commands
from rankwise.planning.jobs import runtime_of, task_of
from rankwise.planning.planner import Planned, PlanOptions, free_name, planner_for, together
from rankwise.planning.stage_commands import cache_lines, detach_line, keep_line, step_line
from rankwise.planning.suites import checks_at, with_checks
from rankwise.planning.sweeps import kept_apart
from rankwise.wording import hint

_REFERENCE = re.compile(r"\$\{\{\s*([a-z]+)\.([^{}\s]*)\s*\}\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineContext:
    """Where the stages of a pipeline are."""

    document: Document
    model: Pipeline
    options: PlanOptions
    workspace: Path


def stage_tasks(context: PipelineContext, name: str, stage: Stage) -> Planned:
    """Plan one stage: a task, or one for each cell of its matrix, or those of a document."""
    parts = []
    for cell, filled in _cells(stage):
        key = f"{name}.{cell}" if cell else name
        notices = _check_filled(context, stage, filled)
        # The tasks of another document, or one task of this one.
        if stage.step in INCLUDED:
            planned = _included(context, key, filled)
            owners = dict.fromkeys((task.key for task in planned.tasks), key)
        else:
            planned, owners = Planned(tasks=[_task(context, name, cell, filled)]), {}
        notices = (*notices, *planned.notices)
        parts.append(dataclasses.replace(planned, notices=notices, owners=owners))
    return together(parts)


def _check_filled(context: PipelineContext, stage: Stage, filled: Stage) -> tuple[str, ...]:
    """Look up the names that a stage has from its matrix.

    Returns notices; raises InputError as `Site.check` does.
    """
    # The other names of the stage were looked up with those of the pipeline.
    names: dict[str, dict[str, str]] = {"on": {}, "environment": {}}
    for key, found in names.items():
        if (name := getattr(filled, key)) != (written := getattr(stage, key)):
            found[name] = context.document.place((key,), written)
    return context.options.site.check(
        computes={} if context.options.on else names["on"],
        runtimes=names["environment"],
        is_strict=context.options.is_strict,
    )


def _cells(stage: Stage) -> Iterator[tuple[str, Stage]]:
    """Yield a name and the stage with its values, for each combination of its matrix."""
    taken: set[str] = set()
    for values in itertools.product(*stage.matrix.values()):
        cell = fit_name("-".join(values)) if values else ""
        name = free_name(cell, taken)
        taken.add(name)
        yield name, _filled(stage, dict(zip(stage.matrix, values, strict=True)))


def _filled(stage: Stage, matrix: Mapping[str, str]) -> Stage:
    """Return a stage with values for `${{…}}`; what is known only later is a mark."""

    def value(found: re.Match[str]) -> str:
        kind, name = found.groups()
        if kind == "matrix":
            return matrix[name]
        return later("run" if kind == "run" else f"artifacts:{name}")

    filled: Stage = _replaced(stage, value)
    return filled


def _replaced(data: Any, value_of: Callable[[re.Match[str]], str]) -> Any:
    """Return a part of a document with other texts for its references."""
    if isinstance(data, str):
        return _REFERENCE.sub(value_of, data)
    if isinstance(data, dict):
        return {name: _replaced(each, value_of) for name, each in data.items()}
    # Not a named tuple, such as the range of a count.
    if type(data) is tuple:
        return tuple(_replaced(each, value_of) for each in data)
    if isinstance(data, Model):
        return data.model_copy(update=_replaced(dict(data), value_of))
    return data


def _task(context: PipelineContext, name: str, cell: str, stage: Stage) -> Task:
    model = context.model
    key = f"{name}.{cell}" if cell else name
    # Steps of rankwise's own work with folders of this machine, wherever the scripts run.
    is_script = stage.step == "run"
    compute = stage.on or LOCAL
    if is_script:
        compute = context.options.compute(stage.on or model.on)
    common = Task(
        key=key,
        processes=(),
        folder=str(context.workspace / stage.folder),
        environment={**model.env, **stage.env},
        secrets=tuple(dict.fromkeys((*model.secrets, *stage.secrets))),
        compute=compute,
        timeout=stage.timeout,
        restart=Restart(most=stage.retries),
    )
    checks = checks_at(context.document, ("stages", name, "checks"), stage.checks)
    if stage.ranks is not None:
        return with_checks(_with_ranks(context, stage, common), checks)
    runtime = _runtime(context, stage)
    command, files = _script(name, cell, stage) if is_script else (step_line(stage), {})
    resources = Resources(cores=stage.cores or 0)
    process = Process(name=stage.step, role=stage.step, command=command, resources=resources)
    task = dataclasses.replace(
        common,
        processes=(process,),
        files=files,
        runtime=runtime,
        resources=resources,
        exports=is_script or stage.step in ("runtime", "checkout"),
    )
    return with_checks(task, checks)


def _runtime(context: PipelineContext, stage: Stage) -> RuntimeChoice:
    """Return what the commands of a stage run in."""
    name = stage.environment or context.model.environment
    choice = runtime_of(context.document, context.options.site, name)
    if choice.kind != "container":
        return choice
    for field in ("artifacts", "cache"):
        if getattr(stage, field):
            raise InputError(
                f"{context.document.path}: a stage in a container cannot have `{field}`, which our "
                "own Python keeps: put it into a stage with `environment: current`"
            )
    # A step of our own needs our own Python.
    return choice if stage.step == "run" else RuntimeChoice()


def _script(name: str, cell: str, stage: Stage) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the command of a stage with lines of the user, and the files that it needs."""
    files = stage_commands.script_files(stage.run)
    lines = [stage_commands.script_command()]
    if stage.cache is not None:
        restore, save = cache_lines(stage.cache, stage.run)
        lines = [restore, *lines, save]
    if stage.artifacts:
        lines.append(keep_line(name, cell, stage.artifacts))
    if len(lines) == 1:
        return stage_commands.script_command(), files
    files |= stage_commands.around_files(lines)
    return stage_commands.script_command(stage_commands.AROUND), files


def _with_ranks(context: PipelineContext, stage: Stage, common: Task) -> Task:
    assert stage.ranks is not None
    nodes = stage.nodes or 1
    line, files = stage.run.strip(), {}
    if "\n" in line:
        # The launcher starts a command: several lines become a script, which each rank runs.
        files = {stage_commands.RUN: f"{stage.run}\n"}
        line = " ".join(map(in_shell, stage_commands.script_command(stage_commands.RUN)))
    runtime = _runtime(context, stage)
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
        context.options.site,
    )
    return dataclasses.replace(task, files={**task.files, **files})


def _included(context: PipelineContext, key: str, stage: Stage) -> Planned:
    """Plan the document that a stage names, as part of the pipeline."""
    from rankwise.documents.jobs import JobModel
    from rankwise.documents.site import find_site

    own = context.document.path.absolute()
    written = getattr(stage, stage.step)
    path = own.parent / written
    place = context.document.place(INCLUDED, written)
    chain = (*context.options.including, own)
    # By way of links a document may include itself under another name.
    if path.resolve() in [one.resolve() for one in chain]:
        raise InputError(f"{place}: {written} includes itself, by way of {own.name}")
    try:
        document = load(path)
    except InputError as error:
        raise InputError(f"{place}: `{stage.step}` is wrong:\n{error}") from error
    kind = document.model.type
    if stage.step != ("job" if isinstance(document.model, JobModel) else kind.lower()):
        raise InputError(f"{place}: {written} is a {kind}, not a {stage.step}")
    options = dataclasses.replace(
        context.options,
        site=find_site(path.parent),
        on=context.options.on or stage.on or context.model.on or None,
        choice={},
        including=chain,
    )
    planned = planner_for(document.model)(document, options)
    # A job has the name of its stage; the tests of a suite have theirs below it.
    is_one = len(planned.tasks) == 1
    names = {one.key: key if is_one else f"{key}.{one.key}" for one in planned.tasks}
    tasks = [
        dataclasses.replace(
            one,
            key=names[one.key],
            needs=tuple(names[need] for need in one.needs),
            inherits=tuple(names[need] for need in one.inherits),
            environment={**context.model.env, **stage.env, **one.environment},
            secrets=tuple(dict.fromkeys((*context.model.secrets, *stage.secrets, *one.secrets))),
            # What the included document says itself goes before its stage.
            timeout=one.timeout if one.timeout is not None else stage.timeout,
            restart=one.restart if one.restart.most else Restart(most=stage.retries),
        )
        for one in planned.tasks
    ]
    return dataclasses.replace(planned, tasks=tasks)


def check_targets(context: PipelineContext) -> None:
    """Raise InputError for folders that stages must not overwrite, and for unknown recipients."""
    found: list[str] = []
    for name, stage in context.model.stages.items():
        found += _deploys(context, name, stage)
        found += _checkouts(context, name, stage)
        found += _recipients(context, stage)
    Faults(found).raise_all()


def _deploys(context: PipelineContext, name: str, stage: Stage) -> Iterator[str]:
    if stage.deploy is None:
        return
    target = _folder(context, stage, stage.deploy.to)
    if target is None:
        return
    # The folder may not exist yet: then the nearest existing one above it decides.
    nearest = next(one for one in (target, *target.parents) if one.exists() or one.is_symlink())
    place = context.document.place(("to",), stage.deploy.to)
    refused = f"{place}: `{name}` cannot deploy to {target}:"
    if not nearest.is_dir():
        yield f"{refused} {nearest} is a file, not a folder"
    elif (target / "current").exists() and not (target / "current").is_symlink():
        yield f"{refused} `current` in it is not a link of rankwise's; move it away"


def _checkouts(context: PipelineContext, name: str, stage: Stage) -> Iterator[str]:
    step = stage.checkout
    # `clean: true` says that changes may be thrown away.
    if step is None or step.clean:
        return
    folder = _folder(context, stage, step.into or folder_for(step.repository))
    if folder is None or not (folder / ".git").exists():
        return
    try:
        changed = changes_in(folder)
    except (OSError, subprocess.SubprocessError):
        return
    if changed:
        place = context.document.place(("repository", "checkout"), step.repository)
        shown = ", ".join(changed[:3]) + (", …" if len(changed) > 3 else "")
        yield (
            f"{place}: `{name}` would overwrite what was changed by hand in {folder}: {shown}; "
            "commit it, or say `clean: true` to throw it away"
        )


def _recipients(context: PipelineContext, stage: Stage) -> Iterator[str]:
    for name in stage.notify.to if stage.notify is not None else ():
        try:
            context.options.site.notify(name)
        except InputError as error:
            yield f"{context.document.place(('to',), name)}: {error}"


def _folder(context: PipelineContext, stage: Stage, written: str) -> Path | None:
    """Return a folder as the stage will see it; None if that is known only when it runs."""
    # Variables that the shell of the stage will have, as far as they are known now.
    known = {**os.environ, **context.model.env, **stage.env}
    try:
        text = string.Template(written).substitute(known)
    except (KeyError, ValueError):
        # A variable that an earlier stage may set, or `${{…}}`.
        return None
    return context.workspace / stage.folder / expanded(text)


def plan_pipeline(document: Document, options: PlanOptions) -> Planned:
    """Plan all stages; raises InputError with a line for every mistake."""
    model = document.model
    assert isinstance(model, Pipeline)
    context = PipelineContext(
        document=document, model=model, options=options, workspace=_workspace(document, model)
    )
    if only := options.choice.get("only"):
        return _detached(context, str(only))
    begin = options.choice.get("from")
    first = _stages_from(context, str(begin)) if begin else None
    needs = needs_of(model.stages)
    parts = [Planned(tasks=[], notices=_check_names(context))]
    keys: dict[str, tuple[str, ...]] = {}
    for name in in_order(needs):
        stage = model.stages[name]
        before = tuple(key for need in needs[name] for key in keys[need])
        planned = stage_tasks(context, name, stage)
        if stage.detach:
            # The report follows the run that goes on by itself.
            submitting = [_submitting(context, name, planned.tasks)]
            planned = dataclasses.replace(planned, tasks=submitting, is_reported=False)
        # With --from, the stages before are not run: their last outcome counts.
        is_taken = first is not None and name not in first
        own = [_linked(context, one, stage, before, is_taken=is_taken) for one in planned.tasks]
        keys[name] = tuple(one.key for one in own)
        parts.append(dataclasses.replace(planned, tasks=own))
    check_targets(context)
    planned = together(parts)
    tasks = kept_apart(planned.tasks, planned.owners, "stage")
    return dataclasses.replace(planned, tasks=tasks, owners={})


def _stages_from(context: PipelineContext, name: str) -> set[str]:
    """Return a stage and all that come after it; raises InputError if it does not exist."""
    stages = context.model.stages
    if name not in stages:
        remedy = hint(name, stages, f"there are {', '.join(stages)}")
        raise InputError(f"{context.document.path}: there is no stage {name!r}; {remedy}")
    needs = needs_of(stages)
    # In this order every stage comes after those it needs, so one pass is enough.
    found = {name}
    for one in in_order(needs):
        if found & set(needs[one]):
            found.add(one)
    return found


def _workspace(document: Document, model: Pipeline) -> Path:
    template, known = string.Template(model.workspace), {**os.environ, **model.env}
    place = document.place(("workspace",), model.workspace)
    if missing := [name for name in template.get_identifiers() if name not in known]:
        raise InputError(f"{place}: the variable {missing[0]} is not set")
    # A `$` that begins no variable is part of the name of a folder.
    folder = document.path.absolute().parent / expanded(template.safe_substitute(known))
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{place}: the workspace is a file, not a folder: {folder}")
    return folder


def _check_names(context: PipelineContext) -> tuple[str, ...]:
    model, document = context.model, context.document
    stages = model.stages.values()
    asked = context.options.on
    computes = {asked} if asked else {model.on, *(stage.on for stage in stages)} - {""}
    runtimes = {model.environment, *(stage.environment for stage in stages)} - {""}
    # References to the matrix of a stage are checked where they have their values.
    known = ([name for name in names if "${{" not in name] for names in (computes, runtimes))
    return context.options.check(document, ("on",), *known)


def _linked(
    context: PipelineContext, task: Task, stage: Stage, before: tuple[str, ...], *, is_taken: bool
) -> Task:
    """Return a task of a stage, which comes after the tasks of the stages that it needs."""
    # Only the first tasks of a stage wait for other stages; the others wait for these.
    is_first = not task.needs
    return dataclasses.replace(
        task,
        needs=before if is_first else task.needs,
        when=stage.when if is_first else task.when,
        inherits=(*before, *task.inherits),
        reuse=_reuse(context, task, stage, is_taken=is_taken),
    )


def _reuse(context: PipelineContext, task: Task, stage: Stage, *, is_taken: bool) -> Reuse | None:
    if is_taken:
        return Reuse(definition="", is_taken=True)
    if stage.inputs is None:
        return None
    said = {"source": str(context.document.path.absolute()), "task": dataclasses.asdict(task)}
    # Everything that is known of the task before it runs; files are compared when it would start.
    digest = hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode())
    return Reuse(
        definition=digest.hexdigest(),
        inputs=tuple(stage.inputs),
        outputs=tuple(stage.outputs),
        folder=str(context.workspace),
        is_wanted=not context.options.choice.get("force")
        and not context.options.choice.get("from"),
    )


def _submitting(context: PipelineContext, name: str, tasks: Sequence[Task]) -> Task:
    """Return the task that submits a stage as a run of its own, in place of the stage's tasks."""
    source = str(context.document.path.absolute())
    is_forced = bool(context.options.choice.get("force"))
    line = detach_line(source, name, on=context.options.on, is_forced=is_forced)
    return Task(
        key=name,
        processes=(Process(name="detach", role="detach", command=line),),
        folder=str(context.workspace),
        environment=dict(context.model.env),
        secrets=tuple(dict.fromkeys(secret for task in tasks for secret in task.secrets)),
        submits=True,
    )


def _detached(context: PipelineContext, name: str) -> Planned:
    """Plan one stage alone, with the variables that it would have in its pipeline."""
    inherited: Any = context.options.choice.get("environment", {})
    stage = context.model.stages[name]
    planned = stage_tasks(context, name, stage)
    tasks = [
        dataclasses.replace(task, environment={**inherited, **task.environment})
        for task in planned.tasks
    ]
    # A suite or a sweep is one, also as a run of its own; the rest remains part of a pipeline.
    kind = stage.step.capitalize() if stage.step in ("suite", "sweep") else ""
    return dataclasses.replace(planned, tasks=tasks, kind=kind)
