"""From documents to one plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from rankwise.compute.capacity import machine
from rankwise.errors import InputError
from rankwise.launch.jobs import task_for
from rankwise.launch.request import Facts, JobRequest
from rankwise.plan import Plan, Task
from rankwise.planning.mpi_here import family_for, has_mpi4py
from rankwise.planning.requests import code_of, compute_of, request_of, runtimes_of
from rankwise.site import Site, find_site
from rankwise.spec.command_job import CommandJob
from rankwise.spec.documents import Document, load

_SEPARATOR = "\n---\n"


def plan_from(
    paths: Sequence[Path], *, strict: bool = False, on: str | None = None
) -> tuple[Plan, str]:
    """Make a plan of documents, a task each, and give their text with it.

    `on` is the compute to take instead of those in the documents. Raises InputError with every
    mistake in all of them.
    """
    documents = _load_all(paths)
    tasks: list[Task] = []
    notices: list[str] = []
    for document in documents:
        site = find_site(document.path.absolute().parent)
        compute = on or compute_of(document)
        _check_code(document)
        for notice in _check(document, site, compute, strict=strict):
            if notice not in notices:
                notices.append(notice)
        key = _unique(document.model.name, [task.key for task in tasks])
        tasks.append(_task(request_of(document, site, key=key, compute=compute), site))
        if isinstance(document.model, CommandJob):
            notices += [
                f"{document.path}: `{field}` has no effect here"
                for field in document.model.without_effect()
            ]
    first = documents[0].model
    kinds = {getattr(document.model, "type", "") for document in documents}
    others = len(documents) - 1
    plan = Plan(
        name=first.name + (f"-and-{others}-more" if others else ""),
        kind=kinds.pop() if len(kinds) == 1 else "several",
        tasks=tuple(tasks),
        experiment=first.experiment_name,
        source=str(documents[0].path.absolute()),
        notices=tuple(notices),
        tags=first.tags,
    )
    return plan, _SEPARATOR.join(document.text for document in documents)


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


def _check(document: Document, site: Site, compute: str, *, strict: bool) -> tuple[str, ...]:
    return site.check(
        computes={compute: document.place(("target", "compute"), compute)},
        runtimes={name: document.place(("environment",), name) for name in runtimes_of(document)},
        is_strict=strict,
    )


def _check_code(document: Document) -> None:
    """Raise InputError if there is no folder where the code should be."""
    for written, folder in code_of(document):
        if not folder.is_dir():
            what = "is a file, not a folder" if folder.exists() else "is not there"
            place = document.place(("path", "code"), written)
            raise InputError(f"{place}: the folder of the code {what}: {folder}")


def _task(request: JobRequest, site: Site) -> Task:
    capacity = site.compute(request.compute).capacity(machine())
    facts = Facts(cores=max(1, int(capacity.cores)), gpus=capacity.gpus)
    if request.kind == "mpi":
        facts = dataclasses.replace(
            facts, mpi_family=family_for(request), has_mpi4py=has_mpi4py(request)
        )
    return task_for(request, facts)


def _unique(name: str, taken: Sequence[str]) -> str:
    key, number = name, 1
    while key in taken:
        number += 1
        key = f"{name}-{number}"
    return key
