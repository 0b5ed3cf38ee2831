"""What runs in one cell of a matrix: scripts and commands, notebooks, suites."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rankwise.documents.load import load
from rankwise.documents.matrix import Matrix, MatrixMachine, MatrixTest, NotebookSettings
from rankwise.documents.site import Site
from rankwise.documents.site_models import COMMAND, ELSEWHERE, SSH, Layer
from rankwise.documents.suite import Requirements, Suite
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
    """By the runtime that tests belong to: its part of the document has them."""

    def tasks(self, entry: CellEntry) -> Iterator[tuple[str, Task]]:
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

    def _script(self, entry: CellEntry) -> list[Task]:
        planner = self._planners.get(entry.test.runtime)
        if planner is None:
            site = _with_runtime(self.options.site, self.runtime)
            options = dataclasses.replace(self.options, site=site)
            compute = self.machine.compute
            planner = SuitePlanner(entry.test.document, self._as_suite(), options, compute)
            self._planners[entry.test.runtime] = planner
        return planner.tasks_of(entry.test.index, self._as_suite_test(entry))

    def _as_suite(self) -> Suite:
        return Suite.model_construct(
            type="Suite",
            tests=(),
            folder=self.model.folder,
            code=self.model.code,
            secrets=self.model.secrets,
            timeout=self.model.timeout,
        )

    def _as_suite_test(self, entry: CellEntry) -> MatrixTest:
        changes: dict[str, object] = {
            "environment_variables": entry.environment,
            "requires": self._requires(entry.test.entry),
        }
        if entry.timeout is not None:
            changes["timeout"] = entry.timeout
        return entry.test.entry.model_copy(update=changes)

    def _requires(self, test: MatrixTest) -> Requirements:
        own = {name: getattr(test.requires, name) for name in test.requires.model_fields_set}
        return self.machine.resources.model_copy(update=own)

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
        wish = _merged(model.notebooks, test.notebooks)
        options = NotebookOptions(timeout=timeout, **dict(wish))
        out = later("folder")
        program, files = "", {}
        tools: tuple[str, ...] = ()
        if self._is_elsewhere:
            # There, nothing of ours can be relied on: its Python runs the notebook, too.
            program = f"{out}/{PROGRAM.name}"
            files = program_files()
            tools = NEEDS if self._is_equipped else ()
        else:
            _check_installed(entry.test.place)
        words = notebook_command(
            Path(entry.test.file),
            out=out,
            interpreter=TOOLS_PYTHON if tools else "python" if program else sys.executable,
            options=options,
            program=program,
        )
        needs = self._requires(test)
        claim = Resources(cores=needs.cores or 0, memory=needs.memory or 0, gpus=needs.gpus)
        process = Process(name="worker-0", role="worker", command=words, rank=0, resources=claim)
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
            timeout=_outer_limit(timeout, wish),
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
        """Return whether what is missing there is brought: images have all that they have."""
        return self.runtime.kind != "container" and self._backend in (SSH, COMMAND)


def _with_runtime(site: Site, runtime: RuntimeChoice, *names: str) -> Site:
    """Have the runtime of the cell be what tests run in, by default and by these names."""
    known = {name: runtime for name in (runtime.name, *names) if name}
    layer = Layer(file=site.file, runtimes=known, default_runtime=runtime.name)
    return dataclasses.replace(site, layers=(layer, *site.layers))


def _merged(common: NotebookSettings, own: NotebookSettings | None) -> NotebookSettings:
    if own is None:
        return common
    return common.model_copy(update={name: getattr(own, name) for name in own.model_fields_set})


def _outer_limit(timeout: float | None, wish: NotebookSettings) -> float | None:
    """Return the limit after which not the notebook but all that has started it is ended."""
    if timeout is None:
        return None
    return timeout * (2 if wish.as_script else 1) + _MORE_SECONDS


def _check_installed(place: str) -> None:
    if importlib.util.find_spec("nbclient") is None:
        raise InputError(
            f"{place}: notebooks are run by nbclient, which is not installed: "
            "pip install 'rankwise[notebooks]'"
        )
