"""Plan documents: which function plans which type, and what all of them give."""

from __future__ import annotations

import dataclasses
import json
import pkgutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rankwise.documents.jobs import DocumentModel
from rankwise.documents.load import Document, load
from rankwise.documents.site import Site, find_site
from rankwise.documents.site_models import KUBERNETES
from rankwise.documents.written import Faults
from rankwise.errors import ComputeFailure, InputError
from rankwise.plan import (
    DOCUMENTS,
    REPORTED,
    Plan,
    RuntimeChoice,
    Task,
    later,
    task_from_data,
    to_data,
)
from rankwise.planning.selection import Selection, select


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """What is asked of a document, beside what it says itself."""

    site: Site
    on: str | None = None
    """The compute to take instead of those in the document."""
    is_strict: bool = False
    choice: Mapping[str, object] = field(default_factory=dict)
    """What the command line says that only some kinds understand."""
    including: tuple[Path, ...] = ()
    """The documents that have led here, the outermost first."""

    def compute(self, written: str) -> str:
        """Name the compute to take where a document has this one, or none."""
        return self.on or written or self.site.default_compute

    def check(
        self, document: Document, keys: tuple[str, ...], compute: str, runtimes: Iterable[str]
    ) -> list[str]:
        """Look up the compute, which stands under one of some keys, and the runtimes of a document.

        Returns notices; raises InputError as `Site.check` does.
        """
        places = {name: document.place(("environment",), name) for name in runtimes}
        at = f"--on {compute}" if self.on else document.place(keys, compute)
        return [*self.site.check(computes={compute: at}, runtimes=places, is_strict=self.is_strict)]

    def place_of_compute(self, document: Document, keys: tuple[str, ...], name: str) -> str:
        """Say who wants a compute of this name."""
        return f"--on {name}" if self.on else document.place(keys, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """The tasks of one document, whose keys are unique in it, and what people must know."""

    tasks: Sequence[Task]
    notices: Sequence[str] = ()
    owners: Mapping[str, str] = field(default_factory=dict)
    """From which of several documents tasks are, by their keys, if from more than one."""
    kind: str = ""
    """The type of document that they are of; empty: of the one that was planned."""
    is_reported: bool = False
    """Whether a report is to follow, when the last of them is over."""


def together(parts: Sequence[Planned]) -> Planned:
    """Put the tasks of several parts of a document together; each notice is said once."""
    return Planned(
        tasks=[task for part in parts for task in part.tasks],
        notices=[*dict.fromkeys(notice for part in parts for notice in part.notices)],
        owners={key: owner for part in parts for key, owner in part.owners.items()},
        is_reported=any(part.is_reported for part in parts),
    )


Planner = Callable[[Document, PlanOptions], Planned]
"""Makes tasks of a document of one type; raises InputError with a line for every mistake."""


def with_image(task: Task, site: Site) -> Task:
    """Have a task run in an image, if it goes to where nothing else is run.

    InputError: nobody says in which.
    """
    choice = site.compute(task.compute)
    if choice.backend != KUBERNETES:
        return task
    # Kubernetes is not for every plan.
    from rankwise.backends.kubernetes.objects import image_of

    try:
        image = image_of(task, choice)
    except ComputeFailure as failure:
        place = task.place or choice.place
        raise InputError(f"{place}: {failure}" if place else str(failure)) from failure
    notes = task.notes
    if task.runtime.kind != "container":
        notes += (f"environment {task.runtime.name}: the image {image} of compute {task.compute}",)
    runtime = RuntimeChoice(name=task.runtime.name, kind="container", image=image)
    return dataclasses.replace(task, runtime=runtime, notes=notes)


PLANNERS = {
    "MpiJob": "jobs:plan_job",
    "PytorchJob": "jobs:plan_job",
    "TensorflowJob": "jobs:plan_job",
    "command": "jobs:plan_job",
    "Sweep": "sweeps:plan_sweep",
    "Suite": "suites:plan_suite",
    "Pipeline": "pipelines:plan_pipeline",
    "Matrix": "matrix:plan_matrix",
}
"""The module and the function for each type."""


def planner_for(model: DocumentModel) -> Planner:
    """Return the function that plans a document. Imports only its module."""
    planner: Planner = pkgutil.resolve_name(f"rankwise.planning.{PLANNERS[model.type]}")
    return planner


@contextmanager
def named_files(document: Path) -> Iterator[None]:
    """Raise InputError if a file that a document names cannot be looked at."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            raise
        said = f"{error.filename} cannot be read: {error.strerror}"
        raise InputError(f"{document}: {said}") from error


def free_name(name: str, taken: Collection[str]) -> str:
    """Return a name that is not taken: with a number, if it is."""
    found, number = name, 1
    while found in taken:
        number += 1
        found = f"{name}-{number}"
    return found


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
    parts: list[Planned] = []
    taken: set[str] = set()
    names: set[str] = set()
    for document in documents:
        site = find_site(document.path.absolute().parent)
        options = PlanOptions(site=site, on=on, is_strict=strict, choice=choice or {})
        with named_files(document.path):
            planned = planner_for(document.model)(document, options)
        notices = [*filter(None, [site.notice if site.layers else ""]), *planned.notices]
        # Without a site file there is nothing but this machine, as it is.
        own = [with_image(task, site) for task in planned.tasks] if site.layers else planned.tasks
        own = _renamed(own, taken, has_stages=document.model.type == "Pipeline")
        names.add(owner := free_name(document.model.name, names))
        owners = dict.fromkeys((task.key for task in own), owner)
        parts.append(dataclasses.replace(planned, tasks=own, notices=notices, owners=owners))
    whole = together(parts)
    first = documents[0].model
    kinds = {
        part.kind or document.model.type for part, document in zip(parts, documents, strict=True)
    }
    chosen, said = select(_measured_apart(whole), wanted or Selection())
    others = len(documents) - 1
    plan = Plan(
        name=first.name + (f"-and-{others}-more" if others else ""),
        kind=kinds.pop() if len(kinds) == 1 else "several",
        tasks=tuple(chosen),
        experiment=first.experiment_name,
        source=str(documents[0].path.absolute()),
        notices=(*whole.notices, *said),
        tags={
            **_repository(chosen, documents[0].path),
            # So that it does not matter who is there at its end.
            **({REPORTED: "when-complete"} if whole.is_reported else {}),
            **_several(documents),
            **first.tags,
        },
    )
    return plan, _SEPARATOR.join(document.text for document in documents)


def _measured_apart(planned: Planned) -> Sequence[Task]:
    """Have sweeps of several documents measure cases of their own."""
    is_one = len(set(planned.owners.values())) < 2
    if is_one or not any(task.measuring for task in planned.tasks):
        return planned.tasks
    from rankwise.planning.sweeps import kept_apart

    return kept_apart(planned.tasks, planned.owners, "document")


def _repository(tasks: Iterable[Task], path: Path) -> dict[str, str]:
    """Say what was measured: only what measures is compared with other commits."""
    if not any(task.measuring for task in tasks):
        return {}
    from rankwise.metrics.conditions import git_of

    return git_of(path.absolute().parent)


def _several(documents: Sequence[Document]) -> dict[str, str]:
    """Have a run of several documents remember all of them: the first alone is another run."""
    paths = [str(document.path.absolute()) for document in documents]
    return {DOCUMENTS: "\n".join(paths)} if len(paths) > 1 else {}


def _load_all(paths: Sequence[Path]) -> list[Document]:
    if len(paths) == 1:
        return [load(paths[0])]
    documents, faults = [], Faults()
    for path in paths:
        with faults.collected():
            documents.append(load(path))
    faults.raise_all()
    return documents


def _renamed(tasks: Sequence[Task], taken: set[str], *, has_stages: bool) -> list[Task]:
    """Give tasks other keys where another document has them already, and take their keys.

    Of `test.3.11`, a cell of a stage, the stage gets another name: it keeps its artifacts by it.
    """
    stages: dict[str, list[str]] = {}
    for task in tasks:
        stage = task.key.partition(".")[0] if has_stages else task.key
        stages.setdefault(stage, []).append(task.key)
    keys: dict[str, str] = {}
    names: dict[str, str] = {}
    others = taken | {task.key for task in tasks}
    for stage, own in stages.items():
        number = 1
        while any(
            _numbered(stage, key, number) in (others if number > 1 else taken) for key in own
        ):
            number += 1
        keys |= {key: _numbered(stage, key, number) for key in own}
        names[stage] = _numbered(stage, stage, number)
    taken.update(keys.values())
    if all(old == new for old, new in keys.items()):
        return list(tasks)
    return [_with_keys(task, keys, names) for task in tasks]


def _numbered(stage: str, key: str, number: int) -> str:
    return f"{stage}-{number}{key.removeprefix(stage)}" if number > 1 else key


def _with_keys(task: Task, keys: Mapping[str, str], names: Mapping[str, str]) -> Task:
    text = json.dumps(to_data(task), ensure_ascii=False)
    for old, new in names.items():
        text = text.replace(later(f"artifacts:{old}"), later(f"artifacts:{new}"))
    return dataclasses.replace(
        task_from_data(json.loads(text)),
        key=keys[task.key],
        needs=tuple(keys[need] for need in task.needs),
        inherits=tuple(keys[one] for one in task.inherits),
    )
