"""What is written of attempts, by the same rules as in `writes`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rankwise.errors import StoreFailure
from rankwise.store.changes import Changes
from rankwise.store.rows import Outcome, ProcessRow, columns_of
from rankwise.store.states import State

_PROCESS = columns_of(ProcessRow)


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
            row = {
                "run": run,
                "task": task,
                "number": number,
                "state": State.SUBMITTING,
                "marker": marker,
                "folder": str(folder),
                "begun": now,
                "reason": "",
            }
            self._insert("attempts", tuple(row), [tuple(row.values())])
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
            ("run", "task", "attempt", *_PROCESS),
            [
                (run, task, number, *(getattr(process, name) for name in _PROCESS))
                for process in processes
            ],
        )
