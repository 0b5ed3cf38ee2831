"""What runs in one cell of a matrix: scripts and commands, notebooks, suites."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from rankwise.documents.common import Model
from rankwise.documents.load import load
from rankwise.documents.matrix import Matrix, MatrixMachine, NotebookSettings
from rankwise.documents.site import Site
from rankwise.documents.site_models import COMMAND, ELSEWHERE, SSH, Layer
from rankwise.documents.suite import Suite
from rankwise.errors import InputError
from rankwise.notebooks import (
    NEEDS,
    PROGRAM,
    RESULTS,
    NotebookOptions,
    needs_input,
    notebook_command,
    program_files,
)
from rankwise.plan import TOOLS_PYTHON, Process, Resources, RuntimeChoice, Task, later
from rankwise.planning.jobs import restart_of
from rankwise.planning.matrix_cells import CellEntry
from rankwise.planning.planner import PlanOptions
from rankwise.planning.suites import SuitePlanner, plan_suite

_M = TypeVar("_M", bound=Model)
# What a notebook may take beyond its own limit: to start, to stop and to be written.
_MORE_SECONDS = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CellPlanner:
    """Plans the tests of one cell."""

    model: Matrix
    options: PlanOptions
    runtime: RuntimeChoice
    machine: MatrixMachine
    folder: Path
    _planners: dict[str, SuitePlanner] = field(default_factory=dict)
    """By the runtime that has the tests, since its part of the document is where they are."""

    def tasks(self, entry: CellEntry) -> Iterator[tuple[str, Task]]:
        """Yield the tasks of a test, each with its name in the cell."""
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

    def _script(self, entry: CellEntry) -> list[Task]:
        test = entry.test
        if test.runtime not in self._planners:
            site = _with_runtime(self.options.site, self.runtime)
            options = dataclasses.replace(self.options, site=site)
            planner = SuitePlanner(test.document, self._as_suite(), options, self.machine.compute)
            self._planners[test.runtime] = planner
        # What a test says it needs goes before what its machine gives to tests.
        changes: dict[str, object] = {
            "environment_variables": entry.environment,
            "requires": _merged(self.machine.resources, test.entry.requires),
        }
        if entry.timeout is not None:
            changes["timeout"] = entry.timeout
        changed = test.entry.model_copy(update=changes)
        return self._planners[test.runtime].tasks_of(test.index, changed)

    def _as_suite(self) -> Suite:
        # Without validation: all values come from a model that was checked.
        return Suite.model_construct(
            type="Suite",
            tests=(),
            folder=self.model.folder,
            code=self.model.code,
            secrets=self.model.secrets,
            timeout=self.model.timeout,
        )

    # Suites of their own

    def _suite(self, entry: CellEntry) -> list[Task]:
        path, test = Path(entry.test.file), entry.test.entry
        document = load(path)
        if not isinstance(document.model, Suite):
            raise InputError(
                f"{entry.test.place}: {path} is no suite, its type is {document.model.type}"
            )
        site = _with_runtime(self.options.site, self.runtime, document.model.environment)
        options = dataclasses.replace(self.options, site=site, on=self.machine.compute)
        return [
            dataclasses.replace(
                task,
                runtime=self.runtime,
                environment={**entry.environment, **task.environment},
                secrets=tuple(dict.fromkeys((*self.model.secrets, *task.secrets))),
                timeout=task.timeout or entry.timeout or test.timeout or self.model.timeout,
                is_optional=task.is_optional or test.optional,
            )
            for task in plan_suite(document, options).tasks
        ]

    # Notebooks

    def _notebook(self, entry: CellEntry) -> Task:
        test, model = entry.test.entry, self.model
        timeout = entry.timeout or test.timeout or model.timeout
        wish = _merged(model.notebooks, test.notebooks or NotebookSettings())
        options = NotebookOptions(timeout=timeout, **dict(wish))
        out = later("folder")
        program, files = "", {}
        tools: tuple[str, ...] = ()
        if self._is_elsewhere:
            # rankwise may not be installed there: our program is sent, and the Python of the
            # runtime runs it.
            program = f"{out}/{PROGRAM.name}"
            files = program_files()
            tools = NEEDS if self._is_equipped else ()
        else:
            check_installed(entry.test.place)
        words = notebook_command(
            Path(entry.test.file),
            out=out,
            interpreter=TOOLS_PYTHON if tools else "python" if program else sys.executable,
            options=options,
            program=program,
        )
        needs = _merged(self.machine.resources, test.requires)
        claim = Resources(cores=needs.cores or 0, memory=needs.memory or 0, gpus=needs.gpus)
        process = Process(name="worker-0", role="worker", command=words, rank=0, resources=claim)
        # A notebook that asks for input would wait until its time limit.
        manual = needs_input(self.folder / entry.test.file)
        return Task(
            key="",
            processes=(process,),
            folder=str(self.folder),
            code=str(self.folder) if model.code else "",
            files=files,
            environment=entry.environment,
            secrets=tuple(model.secrets),
            resources=claim,
            compute=self.machine.compute,
            runtime=self.runtime,
            tools=tools,
            # The notebook and its script run one after the other, each with the limit.
            timeout=timeout and timeout * (1 + wish.as_script) + _MORE_SECONDS,
            restart=restart_of(test.restart),
            is_optional=test.optional and not manual,
            results=RESULTS,
            skip=f"it needs a person first: {manual}" if manual else "",
        )

    @property
    def _backend(self) -> str:
        return self.options.site.compute(self.machine.compute).backend

    @property
    def _is_elsewhere(self) -> bool:
        return self.runtime.kind == "container" or self._backend in ELSEWHERE

    @property
    def _is_equipped(self) -> bool:
        """Return whether missing packages are installed there; images stay as they are."""
        return self.runtime.kind != "container" and self._backend in (SSH, COMMAND)


def _with_runtime(site: Site, runtime: RuntimeChoice, *names: str) -> Site:
    """Return a site in which the default runtime, and these, are the runtime of the cell."""
    # As the first layer, the cell goes before all site files.
    known = {name: runtime for name in (runtime.name, *names) if name}
    layer = Layer(file=site.file, runtimes=known, default_runtime=runtime.name)
    return dataclasses.replace(site, layers=(layer, *site.layers))


def _merged(common: _M, own: _M) -> _M:
    """Return the common settings, changed by the fields that are given in `own`."""
    return common.model_copy(update={name: getattr(own, name) for name in own.model_fields_set})


def check_installed(place: str) -> None:
    """Raise InputError if what runs notebooks is not installed here."""
    if importlib.util.find_spec("nbclient") is None:
        raise InputError(
            f"{place}: notebooks are run by nbclient, which is not installed: "
            "pip install 'rankwise[notebooks]'"
        )
