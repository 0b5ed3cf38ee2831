"""Variables that tasks leave behind for those that come after them."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rankwise.plan import Task
from rankwise.records import read_exports
from rankwise.runtime.contract import Prepared
from rankwise.site.choices import CURRENT
from rankwise.store import State, Store, TaskRow

# Characters of `plan.later`: such a value could not be told from a mark.
_MARKS = ("\ue000", "\ue001")
_PATH = "PATH"
INHERITED = "RANKWISE_INHERITED"
"""Names of inherited variables, for those who hand them on."""


@dataclass(frozen=True, slots=True)
class _Left:
    """A value that a task has left; the later task's wins."""

    position: int
    value: str | None


class Inheritance:
    """What the tasks of one run have left behind."""

    def __init__(self, store: Store, run: str) -> None:
        self._store = store
        self._run = run
        self._left: dict[str, Mapping[str, _Left]] = {}

    def given_to(self, task: Task, runtime: Prepared) -> tuple[Task, Prepared]:
        """Give a task and its runtime what those before it have left, below the task's own."""
        left = self._merged(task.inherits)
        if not left:
            return task, runtime
        values = {name: one.value for name, one in left.items()}
        path = tuple(filter(None, (values.pop(_PATH, None) or "").split(":")))
        unset = tuple(name for name, value in values.items() if value is None)
        inherited = {name: value for name, value in values.items() if value is not None}
        # What they have put before our own interpreter is meant to be there.
        first = () if path and task.runtime.kind == CURRENT else runtime.path
        if task.submits:
            names = [*inherited, *([_PATH] if path else [])]
            inherited[INHERITED] = " ".join(names)
        return (
            dataclasses.replace(task, environment={**inherited, **task.environment}),
            dataclasses.replace(
                runtime,
                path=(*first, *path),
                unset=(*runtime.unset, *unset),
                environment={k: v for k, v in runtime.environment.items() if k not in unset},
            ),
        )

    def variables_of(self, task: Task) -> dict[str, str | None]:
        """Give what a task inherits; of PATH, only what the client has not got itself."""
        values = {name: one.value for name, one in self._merged(task.inherits).items()}
        if values.get(_PATH):
            ours = os.environ.get(_PATH, "").split(":")
            added = [one for one in str(values[_PATH]).split(":") if one not in ours]
            values[_PATH] = ":".join(added)
        return values

    def _merged(self, keys: Iterable[str]) -> Mapping[str, _Left]:
        merged: dict[str, _Left] = {}
        for key in keys:
            for name, left in self._all_of(key).items():
                if name not in merged or left.position >= merged[name].position:
                    merged[name] = left
        return merged

    def _all_of(self, key: str) -> Mapping[str, _Left]:
        """Give what a task and all before it have left."""
        # Not by recursion: there may be thousands in a row.
        stack = [key]
        while stack:
            current = stack[-1]
            if current in self._left:
                stack.pop()
                continue
            task = self._store.task(self._run, current)
            missing = [one for one in task.inherits if one not in self._left]
            stack += missing
            if not missing:
                self._left[current] = {**self._merged(task.inherits), **self._own(task)}
        return self._left[key]

    def _own(self, task: Task) -> Mapping[str, _Left]:
        row = self._store.task_row(self._run, task.key)
        if not task.exports or row.state is not State.PASSED:
            return {}
        folder = passed_folder(self._store, row)
        if folder is None:
            return {}
        found = read_exports(folder)
        if found.get(_PATH):
            # The attempt's own programs are its own.
            own = str(folder / "bin")
            kept = [one for one in str(found[_PATH]).split(":") if one != own]
            found[_PATH] = ":".join(kept)
        return {
            name: _Left(row.position, value)
            for name, value in found.items()
            if not any(mark in (value or "") for mark in _MARKS)
        }


def passed_folder(store: Store, row: TaskRow) -> Path | None:
    """Give the folder of the attempt that has passed, in whichever run."""
    for attempt in reversed(store.attempts(row.origin or row.run, row.key)):
        if attempt.state is State.PASSED:
            return attempt.folder
    return None
