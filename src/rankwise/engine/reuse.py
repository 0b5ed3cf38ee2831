"""Tasks that need not run again: nothing that they depend on has changed since they passed.

What a task depends on is one digest of its definition, the contents of its inputs, the variables
that it inherits, and the identities of those that it needs. The identity of a task is what it says
itself (a checkout: the commit), or its own digest, or, for one that says nothing about what it
depends on, that very attempt: after such a one, everything runs again.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from rankwise.engine.inheritance import Inheritance, passed_folder
from rankwise.engine.known import artifacts_folder
from rankwise.errors import InputError
from rankwise.files import digest_of_files, matching
from rankwise.plan import Plan, Reuse, Task
from rankwise.records import IDENTITY
from rankwise.store import Store, TaskRow


def check_taken(store: Store, plan: Plan) -> None:
    """Raise InputError if something is to be taken from an earlier run, and there is none."""
    taken = (task.key for task in plan.tasks if task.reuse is not None and task.reuse.is_taken)
    for key in taken:
        if store.passed_before(plan.source, key) is None:
            raise InputError(
                f"{plan.source}: {key} has never passed, so that nothing can be taken over; run "
                "it without --from"
            )


class Reusing:
    """Finds out what need not run in one run."""

    def __init__(self, store: Store, run: str, inheritance: Inheritance) -> None:
        self._store = store
        self._run = run
        self._inheritance = inheritance

    def earlier(self, task: Task) -> tuple[str, TaskRow | None]:
        """Give the digest of what a task depends on, and the task that has passed with it."""
        reuse = task.reuse
        if reuse is None:
            return "", None
        if reuse.is_taken:
            return "", self._store.passed_before(self._store.run(self._run).source, task.key)
        digest = self._digest(task)
        found = self._store.passed_with(digest) if reuse.is_wanted else None
        if found is None or not self._is_still_there(found, reuse):
            return digest, None
        return digest, found

    def link_artifacts(self, task: Task, earlier: TaskRow) -> None:
        """Have what an earlier run has kept be found in this one."""
        stage, _, cell = task.key.partition(".")
        origin = earlier.origin or earlier.run
        theirs = artifacts_folder(self._store.run_folder(origin), stage) / cell
        ours = artifacts_folder(self._store.run_folder(self._run), stage) / cell
        if theirs.exists() and not ours.exists():
            ours.parent.mkdir(parents=True, exist_ok=True)
            ours.symlink_to(theirs, target_is_directory=True)

    def _is_still_there(self, row: TaskRow, reuse: Reuse) -> bool:
        folder = passed_folder(self._store, row)
        outputs = (matching([pattern], Path(reuse.folder)) for pattern in reuse.outputs)
        return folder is not None and folder.is_dir() and all(outputs)

    def _digest(self, task: Task) -> str:
        assert task.reuse is not None
        parts = {
            "definition": task.reuse.definition,
            "inputs": digest_of_files(task.reuse.inputs, Path(task.reuse.folder)),
            "variables": self._inheritance.variables_of(task),
            "needs": [self._identity(need) for need in task.needs],
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def _identity(self, key: str) -> str:
        row = self._store.task_row(self._run, key)
        folder = passed_folder(self._store, row)
        if folder is not None:
            try:
                return f"made: {(folder / IDENTITY).read_text()}"
            except OSError:
                pass
        return row.digest or f"{row.state}: {folder}"
