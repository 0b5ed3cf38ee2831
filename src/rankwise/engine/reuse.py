"""What earlier tasks leave to later ones: variables, folders and outcomes."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rankwise.documents.site_models import CURRENT
from rankwise.errors import InputError
from rankwise.files import digest_of_files, read_left, without_match
from rankwise.plan import Plan, Reuse, Task, fill_in, fill_in_line, later, with_texts
from rankwise.records import IDENTITY, OUTPUTS, read_exports
from rankwise.runtimes.base import PreparedRuntime
from rankwise.store import State, Store, TaskRow

# Characters of `plan.later`: such a value could not be told from a mark.
_MARKS = ("\ue000", "\ue001")
_PATH = "PATH"
INHERITED = "RANKWISE_INHERITED"
"""Names of inherited variables, for a step that hands them on."""


@dataclass(frozen=True, slots=True)
class _Left:
    """A value that a task has left; the later task's wins."""

    position: int
    value: str | None


ARTIFACTS = "artifacts"
"""The folder in that of a run in which tasks keep files."""


def artifacts_folder(run_folder: Path, stage: str) -> Path:
    """Return the folder in which a stage keeps files."""
    return run_folder / ARTIFACTS / stage


@dataclass(slots=True)
class EarlierTasks:
    """What earlier tasks, of this run and of others, leave to the tasks of one run."""

    _store: Store
    _run: str
    _left: dict[str, Mapping[str, _Left]] = field(default_factory=dict)

    def completed(self, task: Task, runtime: PreparedRuntime) -> tuple[Task, PreparedRuntime]:
        """Return a task and its runtime with what earlier tasks have left, below the task's own.

        Marks of what is the same for all tasks of a run are filled in; the others stay for the
        process that starts the task.
        """
        if left := self._merged(task.inherits):
            task, runtime = _with_inherited(task, runtime, left)
        ways = (partial(way, value_of=self._value) for way in (fill_in, fill_in_line))
        return with_texts(task, *ways), runtime

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

    def _variables(self, task: Task) -> dict[str, str | None]:
        """Return what a task inherits; of PATH, only what the client has not got itself."""
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
        """Return what a task and all before it have left."""
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

    # Outcomes

    def passed_before(self, task: Task) -> tuple[str, TaskRow | None]:
        """Return the digest of what a task depends on, and the task that has passed with it.

        Raises InputError if one of its inputs is not there, or cannot be looked for.
        """
        reuse = task.reuse
        assert reuse is not None
        if reuse.is_taken:
            return "", self._store.passed_before(self._store.run(self._run).source, task.key)
        try:
            # Also where an earlier outcome is not wanted: the next run may want this one.
            digest = self._digest(task, reuse)
            found = self._store.passed_with(digest) if reuse.is_wanted else None
            if found is None or not self._is_still_there(found, reuse):
                return digest, None
        except OSError as error:
            why = f"`inputs` and `outputs` cannot be looked for: {error.filename}: {error.strerror}"
            raise InputError(why) from error
        return digest, found

    def note_outputs(self, reuse: Reuse, folder: Path) -> None:
        """Write down what an attempt that has passed has made."""
        if reuse.outputs:
            digest = digest_of_files(reuse.outputs, Path(reuse.folder))
            (folder / OUTPUTS).write_text(digest)

    def link_artifacts(self, task: Task, earlier: TaskRow) -> None:
        """Have what an earlier run has kept be found in this one."""
        stage, _, cell = task.key.partition(".")
        origin = earlier.origin or earlier.run
        theirs = artifacts_folder(self._store.run_folder(origin), stage) / cell
        ours = artifacts_folder(self._store.run_folder(self._run), stage) / cell
        if theirs.exists() and not ours.exists():
            # A link: artifacts may be large, and are never changed.
            ours.parent.mkdir(parents=True, exist_ok=True)
            ours.symlink_to(theirs, target_is_directory=True)

    def _is_still_there(self, row: TaskRow, reuse: Reuse) -> bool:
        folder = passed_folder(self._store, row)
        if folder is None or not folder.is_dir():
            return False
        # Without declared outputs, only the newest attempt's folder is known to be untouched.
        if not reuse.outputs:
            source = self._store.run(row.origin or row.run).source
            return folder == self._store.last_folder_of(source, row.key)
        workspace = Path(reuse.folder)
        if without_match(reuse.outputs, workspace):
            return False
        try:
            made = read_left(folder / OUTPUTS).decode(errors="replace")
        except OSError:
            return False
        return made == digest_of_files(reuse.outputs, workspace)

    def _digest(self, task: Task, reuse: Reuse) -> str:
        workspace = Path(reuse.folder)
        if missing := without_match(reuse.inputs, workspace):
            raise InputError(f"`inputs`: no file in {workspace} fits {', '.join(missing)}")
        parts = {
            "definition": reuse.definition,
            "inputs": digest_of_files(reuse.inputs, workspace),
            "variables": self._variables(task),
            "needs": [self._identity(need) for need in task.needs],
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def _identity(self, key: str) -> str:
        row = self._store.task_row(self._run, key)
        folder = passed_folder(self._store, row)
        if folder is not None:
            try:
                return f"made: {read_left(folder / IDENTITY).decode(errors='replace')}"
            except OSError:
                pass
        return row.digest or f"{row.state}: {folder}"


def _with_inherited(
    task: Task, runtime: PreparedRuntime, left: Mapping[str, _Left]
) -> tuple[Task, PreparedRuntime]:
    values = {name: one.value for name, one in left.items()}
    path = tuple(filter(None, (values.pop(_PATH, None) or "").split(":")))
    unset = tuple(name for name, value in values.items() if value is None)
    inherited = {name: value for name, value in values.items() if value is not None}
    # What they have put before our own interpreter is meant to be there.
    first = () if path and task.runtime.kind == CURRENT else runtime.path
    if task.submits:
        inherited[INHERITED] = " ".join([*inherited, *([_PATH] if path else [])])
    return (
        dataclasses.replace(task, environment={**inherited, **task.environment}),
        dataclasses.replace(
            runtime,
            path=(*first, *path),
            unset=(*runtime.unset, *unset),
            environment={k: v for k, v in runtime.environment.items() if k not in unset},
        ),
    )


def passed_folder(store: Store, row: TaskRow) -> Path | None:
    """Return the folder of the attempt that has passed, in whichever run."""
    for attempt in reversed(store.attempts(row.origin or row.run, row.key)):
        if attempt.state is State.PASSED:
            return attempt.folder
    return None


def check_taken(store: Store, plan: Plan) -> None:
    """Raise InputError if something is to be taken from an earlier run, and there is none."""
    taken = (task.key for task in plan.tasks if task.reuse is not None and task.reuse.is_taken)
    for key in taken:
        if store.passed_before(plan.source, key) is None:
            raise InputError(
                f"{plan.source}: {key} has never passed, so that nothing can be taken over; run "
                "it without --from"
            )
