"""Plan a matrix: runtimes and machines, and the tasks of all cells."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import groupby
from pathlib import Path
from typing import Any

from rankwise.backends.batch.system import largest_node, open_system
from rankwise.documents.common import runtime_choice
from rankwise.documents.load import Document
from rankwise.documents.matrix import COMPARISON, FEATURE, Matrix, MatrixMachine, MatrixRuntime
from rankwise.documents.site import Site, with_image
from rankwise.documents.site_models import LOCAL, ComputeConfig
from rankwise.documents.written import Faults
from rankwise.errors import ComputeFailure, InputError
from rankwise.machine import machine as this_machine
from rankwise.plan import LOOK, PART, Process, Resources, RuntimeChoice, Task, is_look, later
from rankwise.planning import matrix_cells as cells
from rankwise.planning.matrix_commands import CellPlanner
from rankwise.planning.planner import Planned, PlanOptions
from rankwise.planning.selection import TEST, cell_of, cells_to_run
from rankwise.planning.suites import with_places
from rankwise.runtimes.uv import digest_of, texts_of
from rankwise.wording import counted, hint

KERNEL = "ipykernel"
# All of these bring it along.
_WITH_KERNEL = re.compile(r"^\s*(ipykernel|jupyter|jupyterlab|notebook)\b", re.I | re.M)
# A pylock.toml has `name = "ipykernel"`, a list of pip a line that begins with it.
_IN_LOCK = re.compile(r'^\s*(name\s*=\s*")?ipykernel\b', re.I | re.M)


def check_names(document: Document, model: Matrix, site: Site) -> None:
    """Raise InputError for names that no site file has: a matrix is about these very machines."""
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


def check_needs(document: Document, model: Matrix, site: Site, here: Iterable[str]) -> None:
    """Raise InputError for needs with words that no machine has: they would never be met."""
    computes = (one for layer in site.layers for one in layer.computes.values())
    machines: list[Any] = [*model.machines.values(), *computes]
    declared = {*here, *(word for one in machines for word in one.features)}
    faults = []
    for path, needs in _needs_of(model):
        for index, need in enumerate(needs):
            word, meant = cells.unknown_word(need, declared)
            if word:
                otherwise = f"write it, or -{word}, into `features` of a machine"
                remedy = f"did you mean {meant}?" if meant else otherwise
                place = document.at(*path, "needs", index)
                faults.append(f"{place}: no machine has or excludes `{word}`: {remedy}")
    Faults(faults).raise_all()


def _needs_of(model: Matrix) -> Iterator[tuple[tuple[str | int, ...], Sequence[str]]]:
    """Yield all needs, with the path of the test or the runtime that has them."""
    for index, test in enumerate(model.tests):
        yield ("tests", index), test.needs
    for name, one in model.runtimes.items():
        yield ("runtimes", name), one.needs
        for index, test in enumerate(one.tests):
            yield ("runtimes", name, "tests", index), test.needs


def features_of(machine: MatrixMachine, site: Site) -> cells.Features:
    """Return what a machine has, as far as that can be known here."""
    choice = site.compute(machine.compute)
    # Features in a document are checked by its model; those of a site file are any text.
    for feature in choice.features:
        if not FEATURE.fullmatch(feature) and not COMPARISON.fullmatch(feature):
            raise InputError(
                f"{choice.place}: features: {feature!r} must be a word, or such as mem>=64"
            )
    said = (*choice.features, *machine.features)
    if choice.backend == LOCAL:
        return cells.check_here(said, cells.found_here(choice.capacity(this_machine())))
    size, missing = _node_of_cluster(choice) if choice.is_batch else (Resources(), "")
    return dataclasses.replace(cells.stated(said, choice.capacity(size)), missing=missing)


def _node_of_cluster(choice: ComputeConfig) -> tuple[Resources, str]:
    """Return what the largest node of a batch system has, or why that is unknown."""
    system = open_system(choice)
    try:
        node = largest_node(system.nodes())
    except ComputeFailure as failure:
        # The last part of the message is what the batch system itself said.
        last = str(failure).rpartition("; ")[2]
        return Resources(), f"{system.title} does not answer here: {last}"
    if node is None:
        return Resources(), f"{system.title} has no nodes for [compute.{choice.name}]"
    return node, ""


def runtimes_for(
    document: Document, model: Matrix, site: Site, tests: Sequence[cells.PlannedTest]
) -> tuple[dict[str, RuntimeChoice], list[str]]:
    """Return what each runtime is, and notices; raises InputError for an unreadable lock."""
    found, notices, faults = {}, [], Faults()
    for name, one in model.runtimes.items():
        with faults.collected():
            choice = _choice(document, name, one, site)
            # A notebook needs a kernel in the environment that it runs in.
            if _has_notebooks(name, model, tests) and _lacks_kernel(choice):
                choice = dataclasses.replace(choice, requirements=(*choice.requirements, KERNEL))
                notices.append(f"runtime {name}: {KERNEL} is added, for the notebooks in it")
            found[name] = choice
    faults.raise_all()
    return found, notices


def _choice(document: Document, name: str, one: MatrixRuntime, site: Site) -> RuntimeChoice:
    folder = document.path.absolute().parent
    if one.runtime:
        return dataclasses.replace(site.runtime(one.runtime), name=name)
    if one.modules:
        return RuntimeChoice(name=name, kind="modules", modules=one.modules)
    if one.lock:
        path = folder / one.lock
        try:
            digest = digest_of(path)
        except OSError as error:
            place = document.at("runtimes", name, "lock")
            raise InputError(f"{place}: {error.filename}: {error.strerror}") from None
        return RuntimeChoice(
            name=name, kind="uv", python=one.python, lock=str(path), lock_digest=digest
        )
    return with_image(runtime_choice(one, name, folder))


def _has_notebooks(name: str, model: Matrix, tests: Sequence[cells.PlannedTest]) -> bool:
    return any(
        test.kind == "notebook" and any(test.is_for(name, machine) for machine in model.machines)
        for test in tests
    )


def _lacks_kernel(choice: RuntimeChoice) -> bool:
    # Only environments of uv are made by rankwise; the others are as they are.
    texts = texts_of(Path(choice.lock)) if choice.lock else ()
    if choice.kind != "uv" or any(map(_IN_LOCK.search, texts)):
        return False
    return not _WITH_KERNEL.search("\n".join(choice.requirements))


SURROUNDINGS = Path(__file__).parent.parent / "node" / "surroundings.py"
"""The program that describes the environment of a cell; the runtime's own Python runs it."""
# A network file system may take minutes to show what an environment has.
_LOOK_SECONDS = 300.0


@with_places
def plan_matrix(document: Document, options: PlanOptions) -> Planned:
    """Plan a matrix; raises InputError with a line for every mistake."""
    model = document.model
    assert isinstance(model, Matrix)
    if options.on is not None:
        raise InputError(
            f"--on {options.on}: a matrix has machines of its own: select some of them "
            f"with --only machine={next(iter(model.machines))}"
        )
    check_names(document, model, options.site)
    _check_added(document, model)
    folder = document.path.absolute().parent / (model.code or model.folder)
    if not folder.is_dir():
        place = document.place(("code", "folder"), model.code or model.folder)
        raise InputError(f"{place}: there is no folder {folder}")
    tests = cells.tests_in(document, model, folder)
    _check_tests(document, model, [test.name for test in tests])
    machines = {name: features_of(one, options.site) for name, one in model.machines.items()}
    found = {word for one in machines.values() for word in one.words}
    check_needs(document, model, options.site, found)
    runtimes, notices = runtimes_for(document, model, options.site, tests)
    entries = list(cells.entries_of(model, tests, machines))
    if not entries:
        raise InputError(f"{document.path}: there is no test in any cell: see `runtimes` of tests")
    tasks = _MatrixPlanner(document, model, options, runtimes, folder).tasks(entries)
    return Planned(
        tasks=tasks,
        notices=[*_summary(model, tasks, machines), *notices],
        is_reported=bool(model.report),
    )


def _check_added(document: Document, model: Matrix) -> None:
    """Raise InputError for a cell in `add` that exists: it is unclear what was meant."""
    there = set(cells.cells_that_are_there(model))
    for index, one in enumerate(model.add):
        if (one.runtime, one.machine) in there:
            raise InputError(
                f"{document.at('add', index)}: {one.runtime} on {one.machine} is a cell already: "
                "`set` changes what is there"
            )
        there.add((one.runtime, one.machine))


def _check_tests(document: Document, model: Matrix, names: Sequence[str]) -> None:
    """Raise InputError for names in conditions and `add` that no test has."""
    wanted: list[tuple[tuple[int | str, ...], Sequence[str]]] = [
        (("add", index, "tests"), one.tests) for index, one in enumerate(model.add)
    ]
    for key in ("exclude", "set"):
        for index, one in enumerate(getattr(model, key)):
            wanted.append(((key, index, "when", "test"), one.when.get("test", ())))
    faults = []
    for path, patterns in wanted:
        for name in patterns:
            if not any(fnmatchcase(test, name) for test in names):
                remedy = hint(name, names, f"there are {', '.join(names)}")
                faults.append(f"{document.at(*path)}: there is no test `{name}`: {remedy}")
    Faults(faults).raise_all()


@dataclass(frozen=True, slots=True)
class _MatrixPlanner:
    """Makes the tasks of one matrix."""

    document: Document
    model: Matrix
    options: PlanOptions
    runtimes: Mapping[str, RuntimeChoice]
    folder: Path

    def tasks(self, entries: Sequence[cells.CellEntry]) -> list[Task]:
        """Plan all tests; raises InputError with a line for every mistake."""
        faults = Faults()
        tasks: list[Task] = []
        for (runtime, machine), group in groupby(entries, lambda one: (one.runtime, one.machine)):
            cell = list(group)
            planner = CellPlanner(
                model=self.model,
                options=self.options,
                runtime=self.runtimes[runtime],
                machine=self.model.machines[machine],
                folder=self.folder,
            )
            # A cell in which nothing runs needs no task for its environment.
            found: list[Task] = []
            for entry in cell:
                with faults.collected():
                    if entry.skip:
                        found.append(self._not_run(entry))
                    else:
                        found += [self._in_cell(entry, *one) for one in planner.tasks(entry)]
            if not all(task.skip for task in found):
                tasks.append(self._environment(cell))
            tasks += found
        faults.raise_all()
        return tasks

    def _in_cell(self, entry: cells.CellEntry, name: str, task: Task) -> Task:
        """Return a task with its key, tags and limits in the matrix."""
        # A lane limits how many tasks of a machine run at a time.
        width = self.model.machines[entry.machine].max_parallel or 0
        tags = {"runtime": entry.runtime, "machine": entry.machine, "test": name}
        tags[PART] = LOOK if name == LOOK else TEST
        return dataclasses.replace(
            task,
            key=f"{entry.runtime}@{entry.machine}@{name}",
            needs=tuple(f"{entry.runtime}@{entry.machine}@{need}" for need in task.needs),
            is_soft=entry.is_soft,
            lane=f"machine {entry.machine}" if width else "",
            lane_width=width,
            place=task.place or entry.test.place,
            tags={**task.tags, **tags, **({"soft_fail": "true"} if entry.is_soft else {})},
        )

    def _not_run(self, entry: cells.CellEntry) -> Task:
        shown = entry.test.entry
        command = shown.run or shown.files or shown.pytest or shown.suite
        task = Task(
            key="",
            processes=(Process(name="worker-0", role="worker", command=command),),
            folder=str(self.folder),
            compute=self.model.machines[entry.machine].compute,
            runtime=self.runtimes[entry.runtime],
            skip=entry.skip,
            is_optional=entry.is_intended,
        )
        return self._in_cell(entry, entry.test.name, task)

    def _environment(self, cell: Sequence[cells.CellEntry]) -> Task:
        """Return the task that describes the environment of a cell.

        Its program is written into the folder of the attempt. Its failure is never the run's.
        """
        entry = cell[0]
        machine = self.model.machines[entry.machine]
        words = ("python", f"{later('folder')}/{SURROUNDINGS.name}")
        # The cell counts as soft if none of its tests can fail the run.
        is_soft = all(one.is_soft for one in cell)
        task = Task(
            key="",
            processes=(Process(name="worker-0", role="worker", command=words, rank=0),),
            folder=str(self.folder),
            files={SURROUNDINGS.name: SURROUNDINGS.read_text(encoding="utf-8")},
            environment={
                **self.model.environment_variables,
                **self.model.runtimes[entry.runtime].environment_variables,
                **machine.environment_variables,
            },
            compute=machine.compute,
            runtime=self.runtimes[entry.runtime],
            timeout=_LOOK_SECONDS,
            place=str(self.document.path),
        )
        placed = self._in_cell(dataclasses.replace(entry, is_soft=is_soft), LOOK, task)
        return dataclasses.replace(placed, is_soft=True)


def _summary(
    model: Matrix, tasks: Sequence[Task], machines: Mapping[str, cells.Features]
) -> list[str]:
    """Return what people should know before the start: how many tests, and what is missing."""
    every = {cell_of(task) for task in tasks}
    count = sum(not (is_look(task) or task.skip) for task in tasks)
    runtimes, places = len(model.runtimes), len(model.machines)
    size = f"{counted(runtimes, 'runtime')} on {counted(places, 'machine')}"
    running = len(cells_to_run(tasks))
    said = [f"{size}: {running} of {len(every)} cells can run, with {count} tests in all"]
    said += [f"machine {name}: {one.missing}" for name, one in machines.items() if one.missing]
    return said
