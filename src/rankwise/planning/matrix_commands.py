"""What runs in one cell of a matrix: scripts and commands, notebooks, suites."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

from rankwise.errors import InputError
from rankwise.notebooks.planning import (
    PROGRAM,
    RESULTS,
    NotebookOptions,
    needs_input,
    notebook_command,
)
from rankwise.plan import Process, Resources, Restart, RuntimeChoice, Task, later
from rankwise.planning.cells import Entry
from rankwise.planning.contract import Ask
from rankwise.planning.suites import SuitePlanner, plan_suite
from rankwise.site import Site
from rankwise.site.choices import LOCAL, SLURM, Layer
from rankwise.spec.documents import Document, load
from rankwise.spec.matrix import Matrix, MatrixMachine
from rankwise.spec.matrix_tests import MatrixTest, NotebookWish
from rankwise.spec.suite import Requirements, Suite

# What a notebook may take beyond its own limit: to start, to stop and to be written.
_MORE_SECONDS = 120.0


class CellPlanner:
    """Plans the tests of one cell."""

    def __init__(
        self,
        *,
        document: Document,
        model: Matrix,
        ask: Ask,
        runtime: RuntimeChoice,
        machine: str,
        folder: Path,
    ) -> None:
        self._document = document
        self._model = model
        self._machine: MatrixMachine = model.machines[machine]
        self._runtime = runtime
        self._folder = folder
        self._ask = dataclasses.replace(ask, site=_with_runtime(ask.site, runtime))
        self._planners: dict[int, SuitePlanner] = {}

    def tasks(self, entry: Entry) -> Iterator[tuple[str, Task]]:
        """Plan a test, with the name that each of its tasks has in the cell."""
        test = entry.test
        if test.kind == "notebook":
            yield test.name, self._notebook(entry)
        elif test.kind == "suite":
            for task in self._suite(entry):
                needs = tuple(f"{test.name}.{need}" for need in task.needs)
                yield f"{test.name}.{task.key}", dataclasses.replace(task, needs=needs)
        else:
            for task in self._script(entry):
                yield test.name, task

    # Scripts and commands, as suites have them

    def _script(self, entry: Entry) -> list[Task]:
        section = entry.test.section
        planner = self._planners.get(id(section))
        if planner is None:
            document = dataclasses.replace(self._document, model=self._as_suite(), contents=section)
            planner = SuitePlanner(document, self._as_suite(), self._ask, self._machine.compute)
            self._planners[id(section)] = planner
        return planner.tasks_of(entry.test.index, self._as_suite_test(entry))

    def _as_suite(self) -> Suite:
        return Suite.model_construct(
            type="Suite",
            name=self._model.name,
            tests=(),
            folder=self._model.folder,
            code=self._model.code,
            compute=self._machine.compute,
            environment="",
            environment_variables={},
            secrets=self._model.secrets,
            timeout=self._model.timeout,
        )

    def _as_suite_test(self, entry: Entry) -> MatrixTest:
        changes: dict[str, object] = {
            "environment_variables": entry.environment,
            "requires": self._requires(entry.test.entry),
        }
        if entry.timeout is not None:
            changes["timeout"] = entry.timeout
        return entry.test.entry.model_copy(update=changes)

    def _requires(self, test: MatrixTest) -> Requirements:
        own = {name: getattr(test.requires, name) for name in test.requires.model_fields_set}
        return self._machine.resources.model_copy(update=own)

    # Suites of their own

    def _suite(self, entry: Entry) -> list[Task]:
        path = Path(entry.test.file)
        document = load(path)
        if not isinstance(document.model, Suite):
            raise InputError(
                f"{entry.test.place}: {path} is no suite, its type is {document.model.type}"
            )
        site = _with_runtime(self._ask.site, self._runtime, document.model.environment)
        ask = dataclasses.replace(self._ask, site=site, on=self._machine.compute)
        return [
            dataclasses.replace(
                task,
                runtime=self._runtime,
                environment={**entry.environment, **task.environment},
                timeout=task.timeout or entry.timeout or self._model.timeout,
            )
            for task in plan_suite(document, ask).tasks
        ]

    # Notebooks

    def _notebook(self, entry: Entry) -> Task:
        test, model = entry.test.entry, self._model
        timeout = entry.timeout or test.timeout or model.timeout
        wish = _merged(model.notebooks, test.notebooks)
        options = NotebookOptions(
            timeout=timeout,
            cell_timeout=wish.cell_timeout,
            parameters=wish.parameters,
            pdf=wish.pdf,
            as_script=wish.as_script,
            compare=wish.compare,
        )
        out = later("folder")
        program, files = "", {}
        if self._is_elsewhere:
            # There, nothing of ours can be relied on: its Python runs the notebook, too.
            program = f"{out}/{PROGRAM.name}"
            files = {PROGRAM.name: PROGRAM.read_text(encoding="utf-8")}
        else:
            _check_installed(entry.test.place)
        words = notebook_command(
            Path(entry.test.file),
            out=out,
            interpreter="python" if program else sys.executable,
            options=options,
            program=program,
        )
        needs = self._requires(test)
        claim = Resources(cores=needs.cores or 0, memory=needs.memory or 0, gpus=needs.gpus)
        process = Process(name="worker-0", role="worker", command=words, rank=0, resources=claim)
        manual = needs_input(self._folder / entry.test.file)
        return Task(
            key="",
            processes=(process,),
            folder=str(self._folder),
            code=str(self._folder) if model.code else "",
            files=files,
            environment=entry.environment,
            secrets=tuple(model.secrets),
            resources=claim,
            compute=self._machine.compute,
            runtime=self._runtime,
            timeout=_outer_limit(timeout, wish),
            restart=_restart(test),
            is_optional=test.optional and not manual,
            results=RESULTS,
            skip=f"it needs a person first: {manual}" if manual else "",
        )

    @property
    def _is_elsewhere(self) -> bool:
        backend = self._ask.site.compute(self._machine.compute).backend
        return self._runtime.kind == "container" or backend not in (LOCAL, SLURM)


def _with_runtime(site: Site, runtime: RuntimeChoice, *names: str) -> Site:
    """Have the runtime of the cell be what tests run in, by default and by these names."""
    known = {name: runtime for name in (runtime.name, *names) if name}
    layer = Layer(file=site.file, runtimes=known, default_runtime=runtime.name)
    return dataclasses.replace(site, layers=(layer, *site.layers))


def _merged(common: NotebookWish, own: NotebookWish | None) -> NotebookWish:
    if own is None:
        return common
    return common.model_copy(update={name: getattr(own, name) for name in own.model_fields_set})


def _outer_limit(timeout: float | None, wish: NotebookWish) -> float | None:
    """Give the limit after which not the notebook but all that has started it is ended."""
    if timeout is None:
        return None
    return timeout * (2 if wish.as_script else 1) + _MORE_SECONDS


def _restart(test: MatrixTest) -> Restart:
    if test.restart is None:
        return Restart()
    return Restart(most=test.restart.max, on_exit_codes=tuple(test.restart.on_exit_codes))


def _check_installed(place: str) -> None:
    if importlib.util.find_spec("nbclient") is None:
        raise InputError(
            f"{place}: notebooks are run by nbclient, which is not installed: "
            "pip install 'rankwise[notebooks]'"
        )
