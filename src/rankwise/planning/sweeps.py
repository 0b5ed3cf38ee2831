"""Plan parameter sweeps: cases, trials, metrics."""

from __future__ import annotations

import dataclasses
import itertools
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rankwise.documents.load import Document
from rankwise.documents.site_models import LOCAL
from rankwise.documents.sweep import COUNTED, Analysis, Range, Sweep, Values
from rankwise.documents.values import fit_name
from rankwise.errors import InputError
from rankwise.launch.jobs import JobRequest, RoleRequest
from rankwise.plan import ANALYSIS, Measuring, Metric, Process, Task, filled_in, later
from rankwise.planning.jobs import check_code, missing_mpi, task_of
from rankwise.planning.planner import Planned, PlanOptions
from rankwise.planning.selection import fits
from rankwise.planning.suites import APART
from rankwise.wording import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepCase:
    """One combination of values."""

    values: Mapping[str, str]
    """Of the parameters, in their order; of values with names, the names."""
    texts: Mapping[str, str] = field(default_factory=dict)
    """What commands get for values with names."""
    nodes: int = 1
    ranks_per_node: int | None = None
    timeout: float | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        return self.nodes * (self.ranks_per_node or 1)

    @property
    def all_values(self) -> dict[str, str]:
        """Return everything that a command may refer to, except for the trial."""
        return {name: self.texts.get(name, value) for name, value in self.names.items()}

    @property
    def names(self) -> dict[str, str]:
        """Return everything that conditions may refer to, except for the trial."""
        own = {"nodes": self.nodes, "ranks_per_node": self.ranks_per_node or 1, "ranks": self.ranks}
        return {**self.values, **{name: str(value) for name, value in own.items()}}

    @property
    def name(self) -> str:
        """Return the case in one line, by which it is compared with earlier runs."""
        shown = dict(self.values)
        # One node is left out, so that names stay when a document adds larger cases.
        if self.ranks_per_node is not None:
            shown |= {"ranks": str(self.ranks)}
        if self.nodes > 1:
            shown |= {"nodes": str(self.nodes)}
        return " ".join(f"{name}={value}" for name, value in shown.items())


def cases_of(model: Sweep) -> tuple[list[SweepCase], dict[str, int]]:
    """Return the cases in order, without repetitions, and how many each reason has left out."""
    excluded = dict.fromkeys((one.reason for one in model.exclude), 0)
    found: dict[str, SweepCase] = {}
    for case in itertools.chain(_combinations(model), _added(model)):
        changed = _changed(case, model)
        reason = next((one.reason for one in model.exclude if fits(one.when, changed.names)), None)
        if reason is None:
            found.setdefault(changed.name, changed)
        else:
            excluded[reason] += 1
    return list(found.values()), excluded


def kept_apart(tasks: Sequence[Task], owners: Mapping[str, str], word: str) -> list[Task]:
    """Return the tasks, with other names for cases that several sweeps of a run have.

    Otherwise measurements of one sweep would be taken for trials of the other. Unique names are
    kept, because cases are compared with earlier runs by them. `owners` has the stage or document
    of each task by its key, and `word` is which of the two.
    """
    having: dict[str, set[str]] = {}
    for task in tasks:
        if task.measuring is not None:
            having.setdefault(task.measuring.case, set()).add(owners.get(task.key, ""))
    return [
        _named_after(task, task.measuring, word, owners[task.key])
        if task.measuring is not None and len(having[task.measuring.case]) > 1
        else task
        for task in tasks
    ]


def _named_after(task: Task, measuring: Measuring, word: str, owner: str) -> Task:
    case = f"{word}={owner} {measuring.case}".rstrip()
    return dataclasses.replace(
        task, measuring=dataclasses.replace(measuring, case=case), tags={word: owner, **task.tags}
    )


def _combinations(model: Sweep) -> Iterator[SweepCase]:
    axes: list[list[dict[str, str]]] = [
        [{name: value} for value in _values(given)] for name, given in model.parameters.items()
    ]
    for group in model.zip:
        columns = {name: _values(given) for name, given in group.items()}
        rows = zip(*columns.values(), strict=True)
        axes.append([dict(zip(columns, row, strict=True)) for row in rows])
    for nodes, per_node in itertools.product(model.nodes, _per_node(model)):
        for parts in itertools.product(*axes):
            values = {name: value for part in parts for name, value in part.items()}
            yield _case(model, values, nodes, per_node)


def _added(model: Sweep) -> Iterator[SweepCase]:
    for values in model.add:
        # As they are written, which may be 0x10.
        own = {name: int(values[name], 0) for name in COUNTED if name in values}
        given = {name: value for name, value in values.items() if name not in own}
        per_node = own.get("ranks_per_node", _per_node(model)[0])
        yield _case(model, given, own.get("nodes", model.nodes[0]), per_node)


def _case(model: Sweep, values: Mapping[str, str], nodes: int, per_node: int | None) -> SweepCase:
    return SweepCase(
        values=values,
        texts=_texts(model, values),
        nodes=nodes,
        ranks_per_node=per_node,
        timeout=model.timeout,
        environment=model.environment_variables,
    )


def _per_node(model: Sweep) -> Sequence[int | None]:
    return model.ranks_per_node or [None]


def _values(given: Values) -> Sequence[str]:
    return given.numbers() if isinstance(given, Range) else list(given)


def _texts(model: Sweep, values: Mapping[str, str]) -> dict[str, str]:
    """Return what the names of values stand for; a value that is no name is taken as it is."""
    every = [*model.parameters.items(), *(entry for group in model.zip for entry in group.items())]
    return {
        name: given.get(values[name], values[name])
        for name, given in every
        if isinstance(given, Mapping)
    }


def _changed(case: SweepCase, model: Sweep) -> SweepCase:
    """Return a case with all settings that fit it, one after another."""
    for setting in model.set:
        if fits(setting.when, case.names):
            # The condition of the next setting sees what this one has changed.
            values = {**case.values, **setting.parameters}
            case = dataclasses.replace(
                case,
                values=values,
                texts=_texts(model, values),
                timeout=setting.timeout if setting.timeout is not None else case.timeout,
                environment={**case.environment, **setting.environment_variables},
            )
    return case


_WARM_UP = "warm-up"
_REFERENCE = re.compile(r"\$\{\{\s*([^{}]{1,200}?)\s*\}\}")
_MARK = "parameter:"
# What the shell does not change: a command with other such values has the same plan.
_PLAIN = re.compile(r"[\w./:=,+@%^-]*")


def plan_sweep(document: Document, options: PlanOptions) -> Planned:
    """Plan a sweep; raises InputError if it is empty, or larger than its budget."""
    model = document.model
    assert isinstance(model, Sweep)
    compute = options.compute(model.compute.target)
    runtimes = [model.environment, *([model.analysis.environment] if model.analysis else ())]
    notices = [*options.check(document, ("target", "compute"), [compute], runtimes)]
    folder = document.path.absolute().parent
    check_code(document)
    cases, left_out = cases_of(model)
    if not cases:
        raise InputError(f"{document.path}: no case is left: see `parameters` and `exclude`")
    plan_case = _Templates(model, options, compute, folder)
    singles = [plan_case(case) for case in cases]
    _check_budget(document, model, singles)
    keys = keys_of(cases)
    tasks = [
        _trial(single, case, model, key, trial)
        # All cases once, then all again: a slow hour of the machine is shared by all cases.
        for trial in range(1 - model.warmup, model.trials + 1)
        for single, case, key in zip(singles, cases, keys, strict=True)
    ]
    trials = tuple(task.key for task in tasks if task.tags["trial"] != _WARM_UP)
    if model.prepare:
        first = plan_case.preparation()
        tasks = [first, *(dataclasses.replace(task, needs=(first.key,)) for task in tasks)]
    if model.analysis is not None:
        tasks.append(_analysis(document, model.analysis, model, options, trials))
    if any(case.ranks_per_node for case in cases):
        site = options.site
        notices += missing_mpi(site.runtime(model.environment), site.compute(compute))
    return Planned(
        tasks=tasks,
        notices=[*notices, *_costs(model, cases, singles, left_out)],
        is_reported=bool(model.report),
    )


class _Templates:
    """Plans cases: one of each size as a pattern, which takes long, and the others from that."""

    def __init__(self, model: Sweep, options: PlanOptions, compute: str, folder: Path) -> None:
        self._model, self._options, self._compute, self._folder = model, options, compute, folder
        self._patterns: dict[tuple[int, int | None], Task] = {}

    def __call__(self, case: SweepCase) -> Task:
        known = case.all_values
        if not all(_PLAIN.fullmatch(value) for value in known.values()):
            return self._with_environment(self._plan(case, known.__getitem__), case, known)
        size = case.nodes, case.ranks_per_node
        # Only nodes and ranks change the plan of a command; other values are put into its pattern.
        if size not in self._patterns:
            self._patterns[size] = self._plan(case, lambda name: later(_MARK + name))
        return self._with_environment(_filled(self._patterns[size], known), case, known)

    def preparation(self) -> Task:
        """Plan what runs before all cases."""
        return self._task(
            "prepare", "prepare", self._model.prepare, environment=self._model.environment_variables
        )

    def _plan(self, case: SweepCase, value_of: Callable[[str], str]) -> Task:
        model = self._model
        names = {**case.all_values, "trial": ""}

        def value(found: re.Match[str]) -> str:
            if found[1] == "trial":
                return later(f"{_MARK}trial")
            return value_of(found[1]) if found[1] in names else found[0]

        is_mpi = bool(case.ranks_per_node)
        task = self._task(
            model.name,
            "launcher" if is_mpi else "worker",
            _REFERENCE.sub(value, model.command),
            code=str(self._folder / model.code.path) if model.code is not None else "",
            kind="mpi" if is_mpi else "plain",
            instance_count=case.nodes,
            process_count_per_instance=case.ranks_per_node,
            generate_launcher=is_mpi,
            timeout=model.timeout,
        )
        if model.parallel:
            return task
        # One at a time, on nodes of its own: other tasks there would change what is measured.
        lane = f"sweep on {self._compute}"
        return dataclasses.replace(task, is_alone=True, lane=lane, lane_width=1)

    def _task(self, key: str, role: str, command: str, *, code: str = "", **details: Any) -> Task:
        model, site = self._model, self._options.site
        runtime = site.runtime(model.environment)
        request = JobRequest(
            **{"kind": "plain", **details},
            name=model.name,
            key=key,
            roles=(RoleRequest(name=role, command=command, code=code, runtime=runtime),),
            secrets=tuple(model.secrets),
            compute=self._compute,
            folder=str(self._folder),
        )
        return task_of(request, site)

    def _with_environment(self, task: Task, case: SweepCase, known: Mapping[str, str]) -> Task:
        own = {
            name: _REFERENCE.sub(lambda found: known.get(found[1], found[0]), value)
            for name, value in case.environment.items()
        }
        environment = {**task.environment, **own}
        return dataclasses.replace(task, environment=environment, timeout=case.timeout)


def _filled(task: Task, values: Mapping[str, str]) -> Task:
    """Return a pattern with its values; marks of the runner stay."""
    marked = {_MARK + name: value for name, value in values.items()}
    return filled_in(task, lambda what: marked.get(what, later(what)))


def _trial(single: Task, case: SweepCase, model: Sweep, key: str, trial: int) -> Task:
    """Return the task of one trial; trials before number 1 warm up and are not measured."""
    is_warmup = trial < 1
    measuring = None
    if model.metrics and not is_warmup:
        measuring = Measuring(metrics=_metrics(model, case), case=case.name, trial=trial)
    # Warm-up trials count from w1, measured ones from t1.
    number = f"w{trial + model.warmup}" if is_warmup else f"t{trial}"
    filled = _filled(single, {"trial": str(max(trial, 0))})
    tags = {**case.names, "trial": _WARM_UP if is_warmup else str(trial)}
    # Metrics of stdout must not see lines of stderr.
    if measuring is not None and any(one.on in ("stdout", "stderr") for one in measuring.metrics):
        filled = dataclasses.replace(filled, environment={**filled.environment, **APART})
    return dataclasses.replace(filled, key=f"{key}.{number}", measuring=measuring, tags=tags)


def _analysis(
    document: Document, given: Analysis, model: Sweep, options: PlanOptions, trials: tuple[str, ...]
) -> Task:
    """Return the task that makes something of the samples, however the trials have ended."""
    from rankwise.planning import stage_commands

    place = document.place(("analysis", "run"), given.run)
    runtime = options.site.runtime(given.environment or model.environment)
    if runtime.kind == "container":
        remedy = "give it another `environment`"
        raise InputError(f"{place}: an analysis does not run in a container: {remedy}")
    folder, out = document.path.absolute().parent, f"{later('folder')}/{ANALYSIS}"
    files, samples = dict[str, str](), f"{out}/samples.csv"
    if given.run.endswith(".ipynb"):
        from rankwise.notebooks import NotebookOptions, notebook_command
        from rankwise.planning.matrix_commands import check_installed

        check_installed(place)
        if not (folder / given.run).is_file():
            raise InputError(f"{place}: there is no notebook {given.run} in {folder}")
        wish = NotebookOptions(timeout=given.timeout, html=False)
        line = notebook_command(Path(given.run), out=out, interpreter=sys.executable, options=wish)
    else:
        files = {stage_commands.RUN: f"{given.run}\n"}
        line = stage_commands.script_command(stage_commands.RUN)
    process = Process(name=ANALYSIS, role=ANALYSIS, command=stage_commands.analysis_line(line))
    return Task(
        key=ANALYSIS,
        processes=(process,),
        folder=str(folder),
        files=files,
        # What it prints may be its text, in which lines of stderr have no place.
        environment={**APART, "RANKWISE_ANALYSIS": out, "RANKWISE_SAMPLES": samples},
        # The store is here, wherever the trials run.
        compute=LOCAL,
        runtime=runtime,
        timeout=given.timeout,
        needs=trials,
        when="always",
        place=place,
    )


def _metrics(model: Sweep, case: SweepCase) -> tuple[Metric, ...]:
    """Return the metrics of a case; raises InputError if there are none."""
    metrics = [metric for metric in model.metrics if fits(metric.when, case.names)]
    if not metrics:
        raise InputError(f"{model.name}: no entry of `metrics` fits the case {case.name}")
    return tuple(Metric(**metric.model_dump(exclude={"when"})) for metric in metrics)


def keys_of(cases: Sequence[SweepCase]) -> list[str]:
    """Return a unique key for each case, which can be the name of a folder."""
    taken: dict[str, int] = {}
    keys = []
    for case in cases:
        key = fit_name(case.name.replace("=", "-").replace(" ", "."))
        taken[key] = taken.get(key, 0) + 1
        keys.append(key if taken[key] == 1 else f"{key}~{taken[key]}")
    return keys


def _check_budget(document: Document, model: Sweep, singles: Sequence[Task]) -> None:
    # Before anything starts: a sweep multiplies quickly.
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
    """Return the core-hours if every case takes its whole time limit."""
    # `width` is known for ranks that a launcher starts; other tasks are as wide as their processes.
    once = sum((task.timeout or 0.0) * (task.width or len(task.processes)) for task in singles)
    return once * (model.trials + model.warmup) / 3600


def _costs(
    model: Sweep, cases: Sequence[SweepCase], singles: Sequence[Task], left_out: Mapping[str, int]
) -> list[str]:
    """Return what people should know before the start: the cost, and what is left out."""
    warmups = f" and {model.warmup} to warm up" if model.warmup else ""
    total = len(cases) * (model.trials + model.warmup)
    hours = f", up to {_core_hours(model, singles):.3g} core-hours"
    limit = hours if all(task.timeout for task in singles) else ""
    number, trials = counted(len(cases), "case"), counted(model.trials, "trial")
    said = [f"{number}, {trials} each{warmups}: {counted(total, 'task')}{limit}"]
    said += [f"left out, {count}: {reason}" for reason, count in left_out.items() if count]
    return said
