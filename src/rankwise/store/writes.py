"""What is written of runs and their tasks. Each call is one transaction, or part of a `together`.

Writes that say what has happened may come twice, and late: the first one counts, and the answer
tells whether this was it. What cannot be true (a task that is not in the plan, the end of a run
that goes on) raises StoreFailure and changes nothing.

Every change adds an event, for those who follow the run.
"""

from __future__ import annotations

import json
from itertools import count

from rankwise.errors import StoreFailure
from rankwise.plan import Plan
from rankwise.store.bodies import body_of
from rankwise.store.changes import Changes, check_end
from rankwise.store.rows import TaskRow
from rankwise.store.states import State

_TASK_COLUMNS = (
    *("run", "key", "position", "state", "reason", "attempts", "body", "digest", "origin"),
)


class RunWrites(Changes):
    """Writes runs and tasks."""

    def create_run(self, plan: Plan, spec_text: str, *, now: float, parent: str = "") -> str:
        """Store a plan with all its tasks, queued, and give the new run's id.

        `parent` is the run of which a stage submits this one.
        """
        # Before the transaction: others need not wait for it.
        bodies = [body_of(task) for task in plan.tasks]
        with self.together():
            number = self._next_number(plan.name)
            run = f"{plan.name}-{number}"
            row = {
                "id": run,
                "name": plan.name,
                "number": number,
                "kind": plan.kind,
                "experiment": plan.experiment,
                "source": plan.source,
                "created": now,
                "state": State.QUEUED,
                "reason": "",
                "tags": json.dumps(dict(plan.tags)),
                "notices": json.dumps(plan.notices),
                "spec_text": spec_text,
                "parent": parent,
            }
            self._insert("runs", tuple(row), [tuple(row.values())])
            tasks = [
                (run, task.key, position, State.QUEUED, "", 0, body, "", "")
                for position, (task, body) in enumerate(zip(plan.tasks, bodies, strict=True))
            ]
            self._insert("tasks", _TASK_COLUMNS, tasks)
            self.add_event(run, "run_created", {"tasks": len(tasks)}, now=now)
        return run

    def run_started(self, run: str, *, now: float) -> bool:
        """Say that an engine takes care of a run; one that is taken up again keeps its start."""
        with self.together():
            new = {"state": State.RUNNING, "started": now}
            is_new = self._change("runs", {"id": run}, new, only_if="started IS NULL")
            if is_new:
                self.add_event(run, "run_started", {}, now=now)
        return is_new

    def want_cancel(self, run: str, *, now: float) -> bool:
        """Ask the engine of a run to end it."""
        with self.together():
            new = {"wanted": "cancel"}
            is_new = self._change("runs", {"id": run}, new, only_if="wanted IS NULL")
            if is_new:
                self.add_event(run, "cancel_wanted", {}, now=now)
        return is_new

    def run_ended(
        self, run: str, state: State, *, exit_code: int, reason: str = "", now: float
    ) -> bool:
        """Say how a run ended; all its tasks must be over."""
        check_end(state)
        with self.together():
            if (key := self._first_open("tasks", "key", {"run": run})) is not None:
                raise StoreFailure(
                    f"{self._database.path}: run {run} cannot have ended ({state.value}): "
                    f"its task {key} is not over."
                )
            how = {"state": state, "exit_code": exit_code, "reason": reason}
            is_new = self._change("runs", {"id": run}, {**how, "ended": now})
            if is_new:
                self.add_event(run, "run_ended", how, now=now)
        return is_new

    def task_over(
        self,
        run: str,
        key: str,
        state: State,
        *,
        reason: str = "",
        exit_code: int | None = None,
        now: float,
    ) -> bool:
        """Say what became of a task in the end; its attempts must be over."""
        check_end(state)
        with self.together():
            number = self._first_open("attempts", "number", {"run": run, "task": key})
            if number is not None:
                raise StoreFailure(
                    f"{self._database.path}: task {key} of run {run} cannot be over "
                    f"({state.value}): its attempt {number} is not."
                )
            how = {"state": state, "exit_code": exit_code, "reason": reason}
            is_new = self._change("tasks", {"run": run, "key": key}, {**how, "ended": now})
            if is_new:
                self.add_event(run, "task_over", {"task": key, **how}, now=now)
        return is_new

    def note_digest(self, run: str, key: str, digest: str) -> bool:
        """Say what the outcome of a task depends on; it must not be over."""
        return self._change("tasks", {"run": run, "key": key}, {"digest": digest})

    def take_over(self, run: str, key: str, earlier: TaskRow, *, reason: str, now: float) -> bool:
        """Let a task have passed as it did in an earlier run; it must not have been tried."""
        origin = earlier.origin or earlier.run
        with self.together():
            new = {"origin": origin, "digest": earlier.digest}
            which = {"run": run, "key": key}
            is_new = self._change("tasks", which, new, only_if="attempts = 0")
            if is_new:
                self.task_over(run, key, State.PASSED, reason=reason, exit_code=0, now=now)
        return is_new

    def _next_number(self, name: str) -> int:
        """Give the next number of a name, past folders that a store before this one has left."""
        last = self._database.number(
            "SELECT coalesce(max(number), 0) FROM runs WHERE name = ?", (name,)
        )
        runs = self._database.path.parent / "runs"
        return next(
            number for number in count(last + 1) if not (runs / f"{name}-{number}").exists()
        )
