"""What the runtimes and machines of a matrix are here."""

from __future__ import annotations

import dataclasses
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from rankwise.compute.capacity import machine as this_machine
from rankwise.compute.slurm.script import node_of
from rankwise.errors import ComputeFailure, InputError
from rankwise.plan import Resources, RuntimeChoice
from rankwise.planning.cells import MachineFacts
from rankwise.planning.features import check_here, found_here, stated
from rankwise.planning.matrix_tests import CellTest
from rankwise.runtime.lock import digest_of, texts_of
from rankwise.site import ComputeChoice, Site
from rankwise.site.choices import LOCAL, SLURM
from rankwise.slurm import commands
from rankwise.spec.documents import Document
from rankwise.spec.matrix import Matrix, MatrixMachine
from rankwise.spec.matrix_runtime import MatrixRuntime
from rankwise.spec.matrix_tests import COMPARISON, FEATURE
from rankwise.spec.written import Found

KERNEL = "ipykernel"
# All of these bring it along.
_WITH_KERNEL = re.compile(r"^\s*(ipykernel|jupyter|jupyterlab|notebook)\b", re.I | re.M)
_IN_LOCK = re.compile(r'^\s*(name\s*=\s*")?ipykernel\b', re.I | re.M)


def check_names(document: Document, model: Matrix, site: Site) -> None:
    """Raise InputError for names that no site file has: nothing may stand in for a machine."""
    site.check(
        computes={
            one.compute: document.place(("compute", name), one.compute)
            for name, one in model.machines.items()
        },
        runtimes={
            one.runtime: document.place(("runtime", name), one.runtime)
            for name, one in model.runtimes.items()
            if one.runtime
        },
        is_strict=True,
    )


def facts_of(machine: MatrixMachine, site: Site) -> MachineFacts:
    """Find out what a machine has, as far as that can be known here."""
    choice = site.compute(machine.compute)
    for feature in choice.features:
        if not FEATURE.fullmatch(feature) and not COMPARISON.fullmatch(feature):
            raise InputError(
                f"{choice.place}: features: {feature!r} must be a word, or such as mem>=64"
            )
    said = (*choice.features, *machine.features)
    if choice.backend == LOCAL:
        here = found_here(choice.capacity(this_machine()))
        features, missing = check_here(said, here)
        if missing:
            missing = f"{missing} was not found on this machine"
        return MachineFacts(features=features, missing=missing)
    size, missing = Resources(), ""
    if choice.backend == SLURM:
        size, missing = _node_of_cluster(choice)
    told = Resources(cores=choice.cores or 0, memory=choice.memory or 0, gpus=choice.gpus or 0)
    known = Resources(
        cores=told.cores or size.cores,
        memory=told.memory or size.memory,
        gpus=told.gpus or size.gpus,
    )
    return MachineFacts(features=stated(said, known), missing=missing)


def _node_of_cluster(choice: ComputeChoice) -> tuple[Resources, str]:
    """Ask Slurm what a node has; if it does not answer, say why."""
    if shutil.which("sinfo") is None:
        return Resources(), "there is no Slurm here: sinfo is not on PATH"
    try:
        commands.nodes(choice.slurm.partition)
    except ComputeFailure as failure:
        last = str(failure).rpartition("; ")[2]
        return Resources(), f"Slurm does not answer here: {last}"
    node = node_of(choice)
    if node is None:
        return Resources(), f"Slurm has no nodes in the partition {choice.slurm.partition!r}"
    return node, ""


def runtimes_for(
    document: Document, model: Matrix, site: Site, tests: Sequence[CellTest]
) -> tuple[dict[str, RuntimeChoice], list[str]]:
    """Say what each runtime is, and what people must know; raises InputError for a lock's."""
    found, notices, faults = {}, [], []
    for name, one in model.runtimes.items():
        try:
            choice = _choice(document, name, one, site)
            if _has_notebooks(name, model, tests) and _lacks_kernel(choice):
                choice = dataclasses.replace(choice, requirements=(*choice.requirements, KERNEL))
                notices.append(f"runtime {name}: {KERNEL} is added, for the notebooks in it")
            found[name] = choice
        except InputError as error:
            faults.append(str(error))
    if faults:
        raise InputError("\n".join(faults))
    return found, notices


def _choice(document: Document, name: str, one: MatrixRuntime, site: Site) -> RuntimeChoice:
    folder = document.path.absolute().parent
    if one.runtime:
        return dataclasses.replace(site.runtime(one.runtime), name=name)
    if one.image:
        is_file = one.image.endswith(".sif") or one.image.startswith((".", "/"))
        image = str(folder / one.image) if is_file else one.image
        return RuntimeChoice(name=name, kind="container", image=image, engine=one.engine)
    if one.modules:
        return RuntimeChoice(name=name, kind="modules", modules=one.modules)
    if one.lock:
        path = folder / one.lock
        try:
            digest = digest_of(path)
        except OSError as error:
            at = Found(document.contents, ("runtimes", name, "lock")).value_at
            place = f"{document.path}:{at.line}:{at.column}"
            raise InputError(f"{place}: {error.filename}: {error.strerror}") from None
        return RuntimeChoice(
            name=name, kind="uv", python=one.python, lock=str(path), lock_digest=digest
        )
    if "requirements" in one.model_fields_set:
        return RuntimeChoice(name=name, kind="uv", python=one.python, requirements=one.requirements)
    path = Path(one.python).expanduser()
    return RuntimeChoice(name=name, kind="python", python=str(folder / path))


def _has_notebooks(name: str, model: Matrix, tests: Sequence[CellTest]) -> bool:
    return any(
        test.kind == "notebook" and any(test.is_for(name, machine) for machine in model.machines)
        for test in tests
    )


def _lacks_kernel(choice: RuntimeChoice) -> bool:
    if choice.kind != "uv":
        return False
    if choice.lock and any(_IN_LOCK.search(text) for text in texts_of(Path(choice.lock))):
        return False
    return not _WITH_KERNEL.search("\n".join(choice.requirements))
