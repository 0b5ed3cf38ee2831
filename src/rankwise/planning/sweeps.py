"""From a sweep to its tasks: every case, again and again, one trial of all after the other."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rankwise.compute.capacity import machine
from rankwise.errors import InputError
from rankwise.launch.request import JobRequest, RoleRequest
from rankwise.plan import Measuring, Metric, Resources, Task, fill_in, later
from rankwise.planning.cases import Case, LeftOut, cases_of, fits
from rankwise.planning.contract import Ask, Planned
from rankwise.planning.jobs import task_of
from rankwise.site.choices import KUBERNETES
from rankwise.spec.documents import Document
from rankwise.spec.sweep import Sweep
from rankwise.spec.values import fit_name

_REFERENCE = re.compile(r"\$\{\{\s*([^{}]{1,200}?)\s*\}\}")
_MARK = "parameter:"
# What the shell takes as it is: a command with such values is the same command for all of them.
_PLAIN = re.compile(r"[\w./:=,+@%^-]*")
_LONGEST_KEY = 100


def plan_sweep(document: Document, ask: Ask) -> Planned:
    """Plan a sweep; raises InputError if it is larger than its budget, or empty."""
    model = document.model
    assert isinstance(model, Sweep)
    compute = ask.on or model.compute.target
    notices = [
        *ask.site.check(
            computes={compute: document.place(("target", "compute"), compute)},
            runtimes={model.environment: document.place(("environment",), model.environment)},
            is_strict=ask.is_strict,
        )
    ]
    folder = document.path.absolute().parent
    _check_code(document, model, folder)
    cases, left_out = cases_of(model)
    if not cases:
        raise InputError(f"{document.path}: no case is left: see `parameters` and `exclude`")
    plan_case = _Templates(model, ask, compute, folder)
    singles = [plan_case(case) for case in cases]
    _check_budget(document, model, singles)
    keys = _keys(cases)
    tasks = [
        _trial(single, case, model, key, trial)
        for trial in range(1 - model.warmup, model.trials + 1)
        for single, case, key in zip(singles, cases, keys, strict=True)
    ]
    if model.prepare:
        first = plan_case.preparation()
        tasks = [first, *(dataclasses.replace(task, needs=(first.key,)) for task in tasks)]
    return Planned(tasks=tasks, notices=[*notices, *_costs(model, cases, singles, left_out)])


class _Templates:
    """Plans cases: one of each size as a pattern, which takes long, and the others from it."""

    def __init__(self, model: Sweep, ask: Ask, compute: str, folder: Path) -> None:
        self._model, self._ask, self._compute, self._folder = model, ask, compute, folder
        self._patterns: dict[tuple[int, int | None], Task] = {}
        choice = ask.site.compute(compute)
        # Of what a pod may have to itself, only what is told is known here.
        found = Resources() if choice.backend == KUBERNETES else machine()
        capacity = choice.capacity(found)
        # One at a time: what runs beside it would be measured, too.
        is_shared = model.parallel or not capacity.cores
        self._claim = None if is_shared else Resources(cores=capacity.cores)

    def __call__(self, case: Case) -> Task:
        known = case.all_values
        if not all(_PLAIN.fullmatch(value) for value in known.values()):
            return self._with_environment(self._plan(case, known.__getitem__), case, known)
        size = case.nodes, case.ranks_per_node
        if size not in self._patterns:
            self._patterns[size] = self._plan(case, lambda name: later(_MARK + name))
        return self._with_environment(_filled(self._patterns[size], known), case, known)

    def preparation(self) -> Task:
        """Plan what comes before all cases."""
        role = RoleRequest(
            name="prepare",
            command=self._model.prepare,
            runtime=self._ask.site.runtime(self._model.environment),
        )
        request = JobRequest(
            kind="plain",
            name=self._model.name,
            key="prepare",
            roles=(role,),
            environment=self._model.environment_variables,
            secrets=tuple(self._model.secrets),
            compute=self._compute,
            folder=str(self._folder),
        )
        return task_of(request, self._ask.site)

    def _plan(self, case: Case, value_of: Callable[[str], str]) -> Task:
        model, site = self._model, self._ask.site
        names = {**case.all_values, "trial": ""}

        def value(found: re.Match[str]) -> str:
            if found[1] == "trial":
                return later(f"{_MARK}trial")
            return value_of(found[1]) if found[1] in names else found[0]

        role = RoleRequest(
            name="launcher" if case.ranks_per_node else "worker",
            command=_REFERENCE.sub(value, model.command),
            code=str(self._folder / model.code.path) if model.code is not None else "",
            runtime=site.runtime(model.environment),
        )
        request = JobRequest(
            kind="mpi" if case.ranks_per_node else "plain",
            name=model.name,
            key=model.name,
            roles=(role,),
            instance_count=case.nodes,
            process_count_per_instance=case.ranks_per_node,
            generate_launcher=bool(case.ranks_per_node),
            secrets=tuple(model.secrets),
            compute=self._compute,
            folder=str(self._folder),
            timeout=model.timeout,
        )
        task = task_of(request, site)
        return dataclasses.replace(task, resources=self._claim) if self._claim else task

    def _with_environment(self, task: Task, case: Case, known: Mapping[str, str]) -> Task:
        own = {
            name: _REFERENCE.sub(lambda found: known.get(found[1], found[0]), value)
            for name, value in case.environment.items()
        }
        environment = {**task.environment, **own}
        return dataclasses.replace(task, environment=environment, timeout=case.timeout)


def _filled(task: Task, values: Mapping[str, str]) -> Task:
    """Put values into the commands of a pattern; marks that mean something else stay."""

    def value_of(what: str) -> str:
        return values.get(what.removeprefix(_MARK), later(what))

    processes = tuple(
        dataclasses.replace(
            process,
            command=fill_in(process.command, value_of)
            if isinstance(process.command, str)
            else tuple(fill_in(word, value_of) for word in process.command),
        )
        for process in task.processes
    )
    return dataclasses.replace(task, processes=processes)


def _trial(single: Task, case: Case, model: Sweep, key: str, trial: int) -> Task:
    """Make the task of one trial; those before the first are not measured."""
    is_warmup = trial < 1
    measuring = None
    if model.metrics and not is_warmup:
        measuring = Measuring(metrics=_metrics(model, case), case=case.name, trial=trial)
    number = f"w{trial + model.warmup}" if is_warmup else f"t{trial}"
    filled = _filled(single, {"trial": str(max(trial, 0))})
    tags = {**case.names, "trial": "warm-up" if is_warmup else str(trial)}
    return dataclasses.replace(filled, key=f"{key}.{number}", measuring=measuring, tags=tags)


def _metrics(model: Sweep, case: Case) -> tuple[Metric, ...]:
    """Give what is read from a case; InputError if nothing would be."""
    wishes = [wish for wish in model.metrics if fits(wish.when, case)]
    if not wishes:
        raise InputError(f"{model.name}: `metrics` has nothing for the case {case.name}")
    return tuple(
        Metric(
            parser=wish.parser,
            name=wish.name,
            unit=wish.unit,
            better=wish.better,
            pattern=wish.pattern,
            function=wish.function,
            only=tuple(wish.only),
            axes=tuple(wish.axes),
            on=wish.on,
        )
        for wish in wishes
    )


def _keys(cases: Sequence[Case]) -> list[str]:
    """Name the cases, in a way that is fit for folders, each differently."""
    taken: dict[str, int] = {}
    keys = []
    for case in cases:
        key = fit_name(case.name.replace("=", "-").replace(" ", "."))[:_LONGEST_KEY] or "case"
        taken[key] = taken.get(key, 0) + 1
        keys.append(key if taken[key] == 1 else f"{key}~{taken[key]}")
    return keys


def _check_code(document: Document, model: Sweep, folder: Path) -> None:
    if model.code is not None and not (folder / model.code.path).is_dir():
        place = document.place(("path", "code"), str(model.code.path))
        raise InputError(
            f"{place}: the folder of the code is not there: {folder / model.code.path}"
        )


def _check_budget(document: Document, model: Sweep, singles: Sequence[Task]) -> None:
    budget = model.budget
    if budget.max_cases is not None and len(singles) > budget.max_cases:
        raise InputError(
            f"{document.path}: {len(singles)} cases are more than `budget.max_cases`, which is "
            f"{budget.max_cases}: take fewer values, or raise it"
        )
    hours = _core_hours(model, singles)
    if budget.max_core_hours is not None and hours > budget.max_core_hours:
        raise InputError(
            f"{document.path}: up to {hours:.3g} core-hours are more than "
            f"`budget.max_core_hours`, which is {budget.max_core_hours:g}: take fewer values, "
            "fewer trials or a shorter `timeout`, or raise it"
        )


def _core_hours(model: Sweep, singles: Sequence[Task]) -> float:
    """Tell what it takes if every case takes its time limit."""
    once = sum((task.timeout or 0.0) * (task.width or len(task.processes)) for task in singles)
    return once * (model.trials + model.warmup) / 3600


def _costs(
    model: Sweep, cases: Sequence[Case], singles: Sequence[Task], left_out: Sequence[LeftOut]
) -> list[str]:
    """Say what it will take before it starts, and what was left out."""
    warmups = f" and {model.warmup} to warm up" if model.warmup else ""
    total = len(cases) * (model.trials + model.warmup)
    limit = ""
    if all(task.timeout for task in singles):
        limit = f", up to {_core_hours(model, singles):.3g} core-hours"
    number, trials = _counted(len(cases), "case"), _counted(model.trials, "trial")
    said = [f"{number}, {trials} each{warmups}: {_counted(total, 'task')}{limit}"]
    said += [f"left out, {one.count}: {one.reason}" for one in left_out if one.count]
    return said


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
