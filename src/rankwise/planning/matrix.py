"""From a matrix to its tasks: one for each test in each cell, and one that looks around there."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence, Sized
from fnmatch import fnmatchcase
from itertools import groupby
from pathlib import Path

from rankwise.errors import InputError
from rankwise.plan import Process, RuntimeChoice, Task, later
from rankwise.planning.cell_names import PART, TEST, cell_of, cells_to_run, is_test
from rankwise.planning.cells import Entry, MachineFacts, cells_that_are_there, entries_of
from rankwise.planning.contract import Ask, Planned
from rankwise.planning.matrix_commands import CellPlanner
from rankwise.planning.matrix_runtimes import check_names, facts_of, runtimes_for
from rankwise.planning.matrix_tests import tests_in
from rankwise.spec.documents import Document
from rankwise.spec.matrix import ENVIRONMENT, Matrix
from rankwise.spec.mistakes import nearest
from rankwise.spec.written import Found

SURROUNDINGS = Path(__file__).parent.parent / "surroundings.py"
"""Says what a program finds around itself; it is run by the runtime's own Python."""
_LOOK_SECONDS = 300.0


def plan_matrix(document: Document, ask: Ask) -> Planned:
    """Plan a matrix; raises InputError with every mistake."""
    model = document.model
    assert isinstance(model, Matrix)
    if ask.on is not None:
        raise InputError(
            f"--on {ask.on}: a matrix says itself where it runs: take some of its machines with "
            f"--only machine={next(iter(model.machines))}"
        )
    check_names(document, model, ask.site)
    _check_added(document, model)
    folder = document.path.absolute().parent / (model.code or model.folder)
    if not folder.is_dir():
        place = document.place(("code", "folder"), model.code or model.folder)
        raise InputError(f"{place}: there is no folder {folder}")
    tests = tests_in(document, model, folder)
    _check_tests(document, model, [test.name for test in tests])
    machines = {name: facts_of(one, ask.site) for name, one in model.machines.items()}
    runtimes, notices = runtimes_for(document, model, ask.site, tests)
    entries = list(entries_of(model, tests, machines))
    if not entries:
        raise InputError(f"{document.path}: there is no test in any cell: see `runtimes` of tests")
    tasks = _MatrixPlanner(document, model, ask, runtimes, folder).tasks(entries)
    return Planned(tasks=tasks, notices=[*_summary(model, tasks, machines), *notices])


def _check_added(document: Document, model: Matrix) -> None:
    """Complain of cells that are added though they are there: what was meant cannot be told."""
    there = set(cells_that_are_there(model))
    for index, one in enumerate(model.add):
        if (one.runtime, one.machine) in there:
            at = Found(document.contents, ("add", index)).value_at
            raise InputError(
                f"{document.path}:{at.line}:{at.column}: {one.runtime} on {one.machine} is a cell "
                "already: `set` changes what is there"
            )
        there.add((one.runtime, one.machine))


def _check_tests(document: Document, model: Matrix, names: Sequence[str]) -> None:
    """Complain of names in conditions that no test has: they would do nothing."""
    faults = []
    for key in ("exclude", "set"):
        for index, one in enumerate(getattr(model, key)):
            for name in one.when.get("test", ()):
                if not any(fnmatchcase(test, name) for test in names):
                    at = Found(document.contents, (key, index, "when", "test")).value_at
                    meant = nearest(name, names)
                    hint = f"did you mean {meant}?" if meant else f"there are {', '.join(names)}"
                    place = f"{document.path}:{at.line}:{at.column}"
                    faults.append(f"{place}: there is no test `{name}`: {hint}")
    if faults:
        raise InputError("\n".join(faults))


class _MatrixPlanner:
    """Makes the tasks of one matrix."""

    def __init__(
        self,
        document: Document,
        model: Matrix,
        ask: Ask,
        runtimes: Mapping[str, RuntimeChoice],
        folder: Path,
    ) -> None:
        self._document = document
        self._model = model
        self._ask = ask
        self._runtimes = runtimes
        self._folder = folder
        self._surroundings = SURROUNDINGS.read_text(encoding="utf-8")

    def tasks(self, entries: Sequence[Entry]) -> list[Task]:
        """Plan all; raises InputError with every mistake, said once."""
        faults: dict[str, None] = {}
        tasks: list[Task] = []
        for (runtime, machine), group in groupby(entries, lambda one: (one.runtime, one.machine)):
            cell = list(group)
            planner = CellPlanner(
                document=self._document,
                model=self._model,
                ask=self._ask,
                runtime=self._runtimes[runtime],
                machine=machine,
                folder=self._folder,
            )
            found: list[Task] = []
            for entry in cell:
                try:
                    found += self._tasks_of(entry, planner)
                except InputError as error:
                    faults.update(dict.fromkeys(str(error).splitlines()))
            if not all(task.skip for task in found):
                tasks.append(self._environment(cell))
            tasks += found
        if faults:
            raise InputError("\n".join(faults))
        return tasks

    def _tasks_of(self, entry: Entry, planner: CellPlanner) -> Iterator[Task]:
        if entry.skip is not None:
            yield self._not_run(entry)
            return
        for name, task in planner.tasks(entry):
            yield self._in_cell(entry, name, task)

    def _in_cell(self, entry: Entry, name: str, task: Task) -> Task:
        """Give a task its place in the matrix."""
        width = self._model.machines[entry.machine].max_parallel or 0
        return dataclasses.replace(
            task,
            key=f"{entry.runtime}@{entry.machine}@{name}",
            needs=tuple(f"{entry.runtime}@{entry.machine}@{need}" for need in task.needs),
            is_soft=entry.is_soft,
            lane=f"machine {entry.machine}" if width else "",
            lane_width=width,
            place=task.place or entry.test.place,
            tags={**task.tags, **_tags(entry, name, TEST)},
        )

    def _not_run(self, entry: Entry) -> Task:
        assert entry.skip is not None
        shown = entry.test.entry
        command = shown.run or shown.files or shown.pytest or shown.suite
        task = Task(
            key="",
            processes=(Process(name="worker-0", role="worker", command=command),),
            folder=str(self._folder),
            compute=self._model.machines[entry.machine].compute,
            runtime=self._runtimes[entry.runtime],
            skip=entry.skip.reason,
            is_optional=entry.skip.is_said,
        )
        return self._in_cell(entry, entry.test.name, task)

    def _environment(self, cell: Sequence[Entry]) -> Task:
        """Plan the look around: into the attempt's folder goes the program that does it.

        Whatever becomes of it, no test has failed by that.
        """
        entry = cell[0]
        machine = self._model.machines[entry.machine]
        words = ("python", f"{later('folder')}/{SURROUNDINGS.name}")
        is_soft = all(one.is_soft for one in cell)
        task = Task(
            key="",
            processes=(Process(name="worker-0", role="worker", command=words, rank=0),),
            folder=str(self._folder),
            files={SURROUNDINGS.name: self._surroundings},
            environment={
                **self._model.environment_variables,
                **self._model.runtimes[entry.runtime].environment_variables,
                **machine.environment_variables,
            },
            compute=machine.compute,
            runtime=self._runtimes[entry.runtime],
            timeout=_LOOK_SECONDS,
            place=str(self._document.path),
        )
        placed = self._in_cell(dataclasses.replace(entry, is_soft=is_soft), ENVIRONMENT, task)
        tags = {**placed.tags, PART: ENVIRONMENT}
        return dataclasses.replace(placed, is_soft=True, tags=tags)


def _tags(entry: Entry, test: str, part: str) -> dict[str, str]:
    own = {"runtime": entry.runtime, "machine": entry.machine, "test": test, PART: part}
    return {**own, "soft_fail": "true"} if entry.is_soft else own


def _summary(
    model: Matrix, tasks: Sequence[Task], machines: Mapping[str, MachineFacts]
) -> list[str]:
    """Say how much it is before it starts, and what cannot be had here."""
    cells = {cell_of(task) for task in tasks}
    count = sum(is_test(task) and not task.skip for task in tasks)
    size = f"{_counted(model.runtimes, 'runtime')} on {_counted(model.machines, 'machine')}"
    running = len(cells_to_run(tasks))
    said = [f"{size}: {running} of {len(cells)} cells can run, with {count} tests in all"]
    said += [f"machine {name}: {one.missing}" for name, one in machines.items() if one.missing]
    return said


def _counted(things: Sized, name: str) -> str:
    return f"{len(things)} {name}{'s' * (len(things) != 1)}"
