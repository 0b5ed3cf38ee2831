"""Values of marks that the engine knows: the run, its store, and what tasks have kept."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from rankwise.plan import Process, Task, fill_in, later
from rankwise.store import Store

ARTIFACTS = "artifacts"
"""The folder in that of a run in which tasks keep files."""


def artifacts_folder(run_folder: Path, stage: str) -> Path:
    """Give the folder in which a stage keeps files."""
    return run_folder / ARTIFACTS / stage


class Known:
    """Fills in what is the same for all tasks of a run."""

    def __init__(self, store: Store, run: str) -> None:
        self._store = store
        self._run = run

    def filled_in(self, task: Task) -> Task:
        """Replace the marks that are known; whoever starts the task replaces the others."""
        fill = self._fill
        return dataclasses.replace(
            task,
            processes=tuple(map(self._process, task.processes)),
            files={name: fill(text) for name, text in task.files.items()},
            environment={name: fill(value) for name, value in task.environment.items()},
        )

    def _process(self, process: Process) -> Process:
        command = process.command
        return dataclasses.replace(
            process,
            command=self._fill(command)
            if isinstance(command, str)
            else tuple(map(self._fill, command)),
            environment={name: self._fill(value) for name, value in process.environment.items()},
        )

    def _fill(self, text: str) -> str:
        return fill_in(text, self._value)

    def _value(self, mark: str) -> str:
        kind, _, name = mark.partition(":")
        match kind:
            case "run":
                return self._run
            case "store":
                return str(self._store.folder)
            case "artifacts":
                return str(artifacts_folder(self._store.run_folder(self._run), name))
        return later(mark)
