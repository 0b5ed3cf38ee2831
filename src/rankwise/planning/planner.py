"""Plan documents: the planner of each type, and the plan of several documents."""

from __future__ import annotations

import dataclasses
import itertools
import pkgutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rankwise.documents.jobs import DocumentModel
from rankwise.documents.load import Document, load
from rankwise.documents.site import Site, find_site
from rankwise.documents.site_models import KUBERNETES, LOCAL
from rankwise.documents.written import Faults
from rankwise.errors import ComputeFailure, InputError
from rankwise.plan import (
    DOCUMENTS,
    OWN_VARIABLES,
    REPORTED,
    Plan,
    RuntimeChoice,
    Task,
    filled_in,
    later,
)
from rankwise.planning.selection import Selection, select


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """How to plan a document, beside what it says itself."""

    site: Site
    on: str | None = None
    """The compute to take instead of those in the document."""
    is_strict: bool = False
    choice: Mapping[str, object] = field(default_factory=dict)
    """Options of the command line for some types only: `from`, `force`, `only`, `environment`."""
    including: tuple[Path, ...] = ()
    """The documents that include this one, the outermost first."""

    def compute(self, written: str) -> str:
        """Return the name of the compute to use where a document has `written`, or nothing."""
        return self.on or written or self.site.default_compute

    def check(
        self,
        document: Document,
        keys: tuple[str, ...],
        computes: Iterable[str],
        runtimes: Iterable[str],
    ) -> tuple[str, ...]:
        """Look up the computes of a document, which stand under one of `keys`, and its runtimes.

        Returns notices; raises InputError as `Site.check` does.
        """
        return self.site.check(
            computes={
                name: f"--on {name}" if self.on else document.place(keys, name) for name in computes
            },
            runtimes={name: document.place(("environment",), name) for name in runtimes if name},
            is_strict=self.is_strict,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """The tasks of one document, with unique keys, and notices for people."""

    tasks: Sequence[Task]
    notices: Sequence[str] = ()
    owners: Mapping[str, str] = field(default_factory=dict)
    """By the keys of tasks: the stage or the document that they come from, if there are several."""
    kind: str = ""
    """The type of document that they come from; empty: that of the planned document."""
    is_reported: bool = False
    """Whether a report follows when the last task is over."""


def together(parts: Sequence[Planned]) -> Planned:
    """Return the parts of a document as one; each notice, and each key, is there once."""
    return Planned(
        tasks=[*{task.key: task for part in parts for task in part.tasks}.values()],
        notices=[*dict.fromkeys(notice for part in parts for notice in part.notices)],
        owners={key: owner for part in parts for key, owner in part.owners.items()},
        is_reported=any(part.is_reported for part in parts),
    )


Planner = Callable[[Document, PlanOptions], Planned]
"""Makes tasks of a document of one type; raises InputError with a line for every mistake."""


def with_image(task: Task, site: Site) -> Task:
    """Return a task with the image that it runs in, if its compute runs nothing else.

    Raises InputError if neither its runtime nor the site file has an image.
    """
    choice = site.compute(task.compute)
    if task.runtime.build and choice.backend != LOCAL:
        place = f"{task.place}: " if task.place else ""
        raise InputError(
            f'{place}the image of runtime "{task.runtime.name}" is built on this machine, and '
            f"compute {task.compute} has no such image: push it to a registry, and name it there "
            "as `image`"
        )
    if choice.backend != KUBERNETES:
        return task
    # Few plans need Kubernetes, and its modules take time to import.
    from rankwise.backends.kubernetes.objects import image_of

    notes, images = list(task.notes), {}
    own = (process.runtime for process in task.processes if process.runtime)
    for one in dict.fromkeys([task.runtime, *own]):
        try:
            image = image_of(one, choice)
        except ComputeFailure as failure:
            place = task.place or choice.place
            raise InputError(f"{place}: {failure}" if place else str(failure)) from failure
        if one.kind != "container":
            notes.append(f"environment {one.name}: the image {image} of compute {task.compute}")
        images[one] = RuntimeChoice(name=one.name, kind="container", image=image)
    processes = [
        dataclasses.replace(one, runtime=one.runtime and images[one.runtime])
        for one in task.processes
    ]
    more: dict[str, Any] = {"processes": tuple(processes), "notes": tuple(notes)}
    return dataclasses.replace(task, runtime=images[task.runtime], **more)


def _with_notes(task: Task) -> Task:
    """Return a task that names those of its variables that have no effect."""
    notes = [
        f"variables: {name} is set by the runner: {said!r} of the document is not used"
        for name in OWN_VARIABLES
        if (said := task.environment.get(name)) is not None
    ]
    return dataclasses.replace(task, notes=(*task.notes, *notes)) if notes else task


# By name: the modules of other types are not loaded.
PLANNERS = {
    "MpiJob": "jobs:plan_job",
    "PytorchJob": "jobs:plan_job",
    "TensorflowJob": "jobs:plan_job",
    "command": "jobs:plan_job",
    "Sweep": "sweeps:plan_sweep",
    "Suite": "suites:plan_suite",
    "Pipeline": "pipelines:plan_pipeline",
    "Matrix": "matrix:plan_matrix",
    "pipeline": "azure:plan_pipeline_job",
    "sweep": "azure:plan_sweep_job",
    "component": "azure:plan_component",
}
"""The module and the function for each type."""


def planner_for(model: DocumentModel) -> Planner:
    """Return the function that plans a document. Imports only its module."""
    planner: Planner = pkgutil.resolve_name(f"rankwise.planning.{PLANNERS[model.type]}")
    return planner


@contextmanager
def named_files(document: Path) -> Iterator[None]:
    """Raise InputError in place of an OSError for a file that a document names."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            raise
        said = f"{error.filename} cannot be read: {error.strerror}"
        raise InputError(f"{document}: {said}") from error


def free_name(name: str, taken: Collection[str]) -> str:
    """Return a name, with a number from 2 if it is taken."""
    numbered = (f"{name}-{number}" for number in itertools.count(2))
    return next(one for one in itertools.chain([name], numbered) if one not in taken)


# The store keeps the texts of several documents as one, which is YAML again.
_SEPARATOR = "\n---\n"


def plan_from(
    paths: Sequence[Path],
    *,
    strict: bool = False,
    on: str | None = None,
    choice: Mapping[str, object] | None = None,
    wanted: Selection | None = None,
) -> tuple[Plan, str]:
    """Return the plan of some documents, and their text.

    `on` is the compute to use instead of those in the documents, `choice` what some types take from
    the command line, `wanted` which tasks. Raises InputError with all mistakes of all documents.
    """
    documents = _load_all(paths)
    parts: list[Planned] = []
    taken: set[str] = set()
    names: set[str] = set()
    for document in documents:
        # Each document has the site file of its own folder.
        site = find_site(document.path.absolute().parent)
        options = PlanOptions(site=site, on=on, is_strict=strict, choice=choice or {})
        # Planning looks at files and folders that documents name, which may be unreadable.
        with named_files(document.path):
            planned = planner_for(document.model)(document, options)
        notices = [*filter(None, [site.notice if site.layers else ""]), *planned.notices]
        # Without a site file there is nothing but this machine, as it is.
        own = [with_image(task, site) for task in planned.tasks] if site.layers else planned.tasks
        own = _renamed(
            list(map(_with_notes, own)), taken, has_stages=document.model.type == "Pipeline"
        )
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
    sources = [str(document.path.absolute()) for document in documents]
    plan = Plan(
        name=first.name + (f"-and-{others}-more" if others else ""),
        kind=kinds.pop() if len(kinds) == 1 else "several",
        tasks=tuple(chosen),
        experiment=first.experiment_name,
        source=sources[0],
        notices=(*whole.notices, *said),
        tags={
            **_repository(chosen, documents[0].path),
            # In the store: the client that sees the end of the run may be another one.
            **({REPORTED: "when-complete"} if whole.is_reported else {}),
            # The first document alone would be another run.
            **({DOCUMENTS: "\n".join(sources)} if others else {}),
            **first.tags,
        },
    )
    return plan, _SEPARATOR.join(document.text for document in documents)


def _measured_apart(planned: Planned) -> Sequence[Task]:
    """Return the tasks, with names of cases that differ for sweeps of several documents."""
    # One sweep alone keeps the names of its cases, to be compared with earlier runs.
    is_one = len(set(planned.owners.values())) < 2
    if is_one or not any(task.measuring for task in planned.tasks):
        return planned.tasks
    from rankwise.planning.sweeps import kept_apart

    return kept_apart(planned.tasks, planned.owners, "document")


def _repository(tasks: Sequence[Task], path: Path) -> dict[str, str]:
    """Return the commit of what is tested or measured, as tags.

    Of the folder of a document, only measurements are compared by commit.
    """
    cloned = {(task.repository, task.commit) for task in tasks if task.repository}
    if len(cloned) == 1:
        return dict(zip(("git.repository", "git.commit"), *cloned, strict=True))
    if not any(task.measuring for task in tasks):
        return {}
    from rankwise.metrics.conditions import git_of

    return git_of(path.absolute().parent)


def _load_all(paths: Sequence[Path]) -> list[Document]:
    if len(paths) == 1:
        return [load(paths[0])]
    # All documents are read before any is planned: people want all spelling mistakes at once.
    documents, faults = [], Faults()
    for path in paths:
        with faults.collected():
            documents.append(load(path))
    faults.raise_all()
    return documents


def _renamed(tasks: Sequence[Task], taken: set[str], *, has_stages: bool) -> list[Task]:
    """Return tasks with other keys where another document has them already; add all to `taken`.

    In `test.3.11`, the cell of a stage, the stage is renamed: its artifacts are kept by that name.
    """
    stages: dict[str, list[str]] = {}
    for task in tasks:
        stage = task.key.partition(".")[0] if has_stages else task.key
        stages.setdefault(stage, []).append(task.key.removeprefix(stage))
    names: dict[str, str] = {}
    others = {*stages, *(task.key for task in tasks)}
    for stage, cells in stages.items():
        used = taken
        name, number = stage, 1
        while any(one in used for one in (name, *(name + cell for cell in cells))):
            # A new name must not be that of another stage of the same document either.
            used, number = taken | others, number + 1
            name = f"{stage}-{number}"
        names[stage] = name
    keys = {stage + cell: names[stage] + cell for stage, cells in stages.items() for cell in cells}
    # Also names of stages without a task of that key: artifacts are kept by them.
    taken.update(keys.values(), names.values())
    if all(old == new for old, new in keys.items()):
        return list(tasks)
    return [_with_keys(task, keys, names) for task in tasks]


def _with_keys(task: Task, keys: Mapping[str, str], names: Mapping[str, str]) -> Task:
    marks = {f"artifacts:{old}": f"artifacts:{new}" for old, new in names.items()}
    return dataclasses.replace(
        filled_in(task, lambda what: later(marks.get(what, what))),
        key=keys[task.key],
        needs=tuple(keys[need] for need in task.needs),
        inherits=tuple(keys[one] for one in task.inherits),
    )
