"""Every change to the store, with the event that tells of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from rankwise.errors import StoreFailure
from rankwise.plan import Plan, body_of
from rankwise.store.database import PROCESSES, Changes
from rankwise.store.rows import Outcome, ProcessRow, ResultRow, State, TaskRow


def check_end(state: State) -> None:
    """Raise ValueError for a state that is no end."""
    if not state.is_over:
        raise ValueError(f"{state.value!r} is no end")


class AttemptWrites(Changes):
    """Writes attempts and their processes."""

    def begin_attempt(self, run: str, task: str, *, marker: str, folder: Path, now: float) -> int:
        """Announce an attempt before anything is submitted, and give its number.

        Raises StoreFailure if the task is over or has an attempt that is not: nothing runs twice.
        """
        with self.together():
            self._refuse_second(run, task)
            # A task that is not there, or is over, ends it here.
            if not self._change("tasks", {"run": run, "key": task}, {"state": State.SUBMITTING}):
                raise StoreFailure(
                    f"{self._database.path}: task {task} of run {run} is over, so it cannot be "
                    "tried again. Another rankwise takes care of this run."
                )
            which = (run, task)
            self._database.change(
                "UPDATE tasks SET attempts = attempts + 1 WHERE run = ? AND key = ?", which
            )
            number = self._database.number(
                "SELECT attempts FROM tasks WHERE run = ? AND key = ?", which
            )
            columns = ("run", "task", "number", "state", "marker", "folder", "begun", "reason")
            row = (run, task, number, State.SUBMITTING, marker, str(folder), now, "")
            self._insert("attempts", columns, [row])
            self.add_event(run, "attempt_begun", {"task": task, "attempt": number}, now=now)
        return number

    def attempt_submitted(
        self, run: str, task: str, number: int, *, job_id: str, now: float
    ) -> bool:
        """Say what the compute calls an attempt that it has taken."""
        with self.together():
            which = {"run": run, "task": task, "number": number}
            new = {"job_id": job_id, "submitted": now}
            is_new = self._change("attempts", which, new, only_if="job_id IS NULL")
            if is_new:
                body = {"task": task, "attempt": number, "job_id": job_id}
                self.add_event(run, "attempt_submitted", body, now=now)
        return is_new

    def attempt_waits(self, run: str, task: str, reason: str) -> bool:
        """Say what keeps the task's attempt from starting; gone as soon as it does."""
        submitting = f"state = '{State.SUBMITTING.value}'"
        return self._change(
            "tasks", {"run": run, "key": task}, {"reason": reason}, only_if=submitting
        )

    def attempt_silent(self, run: str, task: str, reason: str) -> bool:
        """Say why nothing is heard of the task's attempt, which may run; empty: it is heard."""
        is_open = f"state IN ('{State.SUBMITTING.value}', '{State.RUNNING.value}')"
        return self._change("tasks", {"run": run, "key": task}, {"reason": reason}, only_if=is_open)

    def attempt_started(self, run: str, task: str, number: int, *, now: float) -> bool:
        """Say that an attempt runs."""
        with self.together():
            which = {"run": run, "task": task, "number": number}
            new = {"state": State.RUNNING, "started": now}
            is_new = self._change("attempts", which, new, only_if="started IS NULL")
            if is_new:
                new = {"state": State.RUNNING, "reason": ""}
                self._change("tasks", {"run": run, "key": task}, new)
                self._start_task(run, task, now)
                self.add_event(run, "attempt_started", {"task": task, "attempt": number}, now=now)
        return is_new

    def attempt_ended(
        self,
        run: str,
        task: str,
        number: int,
        outcome: Outcome,
        processes: Sequence[ProcessRow] = (),
    ) -> bool:
        """Say how an attempt and its processes ended; whether its task is over, is told apart."""
        which = {"run": run, "task": task, "number": number}
        how = {
            "state": outcome.state,
            "exit_code": outcome.exit_code,
            "signal": outcome.signal,
            "culprit": outcome.culprit,
            "reason": outcome.reason,
        }
        with self.together():
            if outcome.started is not None:
                new = {"started": outcome.started}
                self._change("attempts", which, new, only_if="started IS NULL")
            is_new = self._change("attempts", which, {**how, "ended": outcome.ended})
            if is_new:
                if outcome.started is not None:
                    self._start_task(run, task, outcome.started)
                self._add_processes(run, task, number, processes)
                body = {"task": task, "attempt": number, **how}
                self.add_event(run, "attempt_ended", body, now=outcome.ended)
        return is_new

    def _start_task(self, run: str, task: str, now: float) -> None:
        """Note the start of a task's first attempt."""
        self._change(
            "tasks", {"run": run, "key": task}, {"started": now}, only_if="started IS NULL"
        )

    def _refuse_second(self, run: str, task: str) -> None:
        number = self._first_open("attempts", "number", {"run": run, "task": task})
        if number is not None:
            raise StoreFailure(
                f"{self._database.path}: task {task} of run {run} cannot be tried again: its "
                f"attempt {number} is not over. Another rankwise takes care of this run."
            )

    def _add_processes(
        self, run: str, task: str, number: int, processes: Sequence[ProcessRow]
    ) -> None:
        self._insert(
            "processes",
            ("run", "task", "attempt", *PROCESSES.columns),
            [
                (run, task, number, *(getattr(process, name) for name in PROCESSES.columns))
                for process in processes
            ],
        )


_COLUMNS = ("run", "task", "attempt", "position", "name", "state", "seconds", "message")


class Results(Changes):
    """Writes and reads the single tests of attempts."""

    def add_results(self, run: str, task: str, attempt: int, results: Sequence[ResultRow]) -> None:
        """Store what became of an attempt's single tests, in place of what was known of them."""
        if not results:
            return
        with self.together():
            self._database.change(
                "DELETE FROM results WHERE run = ? AND task = ? AND attempt = ?",
                (run, task, attempt),
            )
            rows = [
                (
                    *(run, task, attempt, position, self.redact_name(one.name)),
                    *(one.state, one.seconds, self.redact(one.message)),
                )
                for position, one in enumerate(results)
            ]
            self._insert("results", _COLUMNS, rows)

    def last_run_of(self, source: str) -> str | None:
        """Return the newest run of a document that is over or has begun; None: there is none."""
        found = self._database.row(
            "SELECT id FROM runs WHERE source = ? AND started IS NOT NULL "
            "ORDER BY serial DESC LIMIT 1",
            (source,),
        )
        return str(found[0]) if found else None

    def seconds_of(self, source: str, *, runs: int = 5) -> dict[str, float]:
        """Return how long the tasks of a document that passed took on average, in its last runs."""
        found = self._database.rows(
            "SELECT key, avg(tasks.ended - tasks.started) FROM tasks "
            "WHERE state = ? AND tasks.started IS NOT NULL AND run IN "
            "(SELECT id FROM runs WHERE source = ? ORDER BY serial DESC LIMIT ?) GROUP BY key",
            (State.PASSED, source, runs),
        )
        return {str(key): float(seconds) for key, seconds in found}


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
        """Return the next number of a name, past folders that a store before this one has left."""
        last = self._database.number(
            "SELECT coalesce(max(number), 0) FROM runs WHERE name = ?", (name,)
        )
        runs = self._database.path.parent / "runs"
        return next(
            number for number in count(last + 1) if not (runs / f"{name}-{number}").exists()
        )
