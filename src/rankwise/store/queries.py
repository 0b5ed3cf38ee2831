"""What can be asked of a store. Every answer is true at one moment; the next may be newer."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from rankwise.errors import InputError
from rankwise.plan import Task
from rankwise.store.database import Database
from rankwise.store.nearest import name_nearest
from rankwise.store.reading import (
    SELECT_ATTEMPTS,
    SELECT_EVENTS,
    SELECT_PROCESSES,
    SELECT_RUNS,
    SELECT_TASKS,
    SELECT_TASKS_WITH_BODIES,
    read_attempt,
    read_event,
    read_process,
    read_run,
    read_task,
    read_task_with_body,
)
from rankwise.store.rows import AttemptRow, EventRow, ProcessRow, RunRow, TaskRow, Wish
from rankwise.store.states import State

# So many tasks are read at a time.
_PAGE = 500
# So many runs are searched for ids like the one that was given, and so many of them are named.
_MANY = 1000
_FEW = 3
# Comes after every character that people write.
_LAST = "\U0010ffff"


class Queries:
    """Reads a store."""

    _database: Database

    def run(self, run: str) -> RunRow:
        """Give a run by its whole id; raises InputError if there is none."""
        found = self._database.row(f"{SELECT_RUNS} WHERE id = ?", (run,))
        if found is None:
            raise self._no_run(run)
        return read_run(found)

    def runs(
        self, limit: int = 20, *, name: str | None = None, experiment: str | None = None
    ) -> list[RunRow]:
        """Give the newest runs, the newest one first."""
        asked = {"name": name, "experiment": experiment}
        given = {column: value for column, value in asked.items() if value is not None}
        where = " AND ".join(["1", *(f"{column} = ?" for column in given)])
        found = self._database.rows(
            f"{SELECT_RUNS} WHERE {where} ORDER BY serial DESC LIMIT ?", (*given.values(), limit)
        )
        return [read_run(row) for row in found]

    def last_run(self) -> RunRow | None:
        """Give the newest run."""
        return next(iter(self.runs(1)), None)

    def find_run(self, text: str) -> RunRow:
        """Give the run that a person means: its id, its name (the newest), or how its id begins.

        Raises InputError with the ids that may be meant.
        """
        if found := self._database.row(f"{SELECT_RUNS} WHERE id = ?", (text,)):
            return read_run(found)
        if named := self.runs(1, name=text):
            return named[0]
        if not text:
            raise self._no_run(text)
        found_by_beginning = self._database.rows(
            f"{SELECT_RUNS} WHERE id >= ? AND id < ? ORDER BY serial DESC LIMIT ?",
            (text, text + _LAST, _FEW + 1),
        )
        match [read_run(row) for row in found_by_beginning]:
            case []:
                raise self._no_run(text)
            case [run]:
                return run
            case runs:
                ids = [run.id for run in runs[:_FEW]] + ["…"] * (len(runs) > _FEW)
                raise InputError(
                    f"{self._database.path}: run {text!r} may be any of {', '.join(ids)}. "
                    "Give more of its id."
                )

    def spec_text(self, run: str) -> str:
        """Give the document that a run was made of; raises InputError if there is no such run."""
        return str(self._of_run("spec_text", run))

    def wanted(self, run: str) -> Wish | None:
        """Give what somebody asks the engine of a run to do; raises InputError as well."""
        return "cancel" if self._of_run("wanted", run) == "cancel" else None

    def counts(self, run: str) -> Mapping[State, int]:
        """Count a run's tasks in each state; every state is there."""
        found = self._database.rows(
            "SELECT state, count(*) FROM tasks WHERE run = ? GROUP BY state", (run,)
        )
        return dict.fromkeys(State, 0) | {State(state): count for state, count in found}

    def task_rows(self, run: str, *, bodies: bool = False) -> Iterator[TaskRow]:
        """Give all tasks in the order of the plan, with the tasks themselves if asked.

        They are read a page at a time. Meanwhile the store may be written, also by the caller.
        """
        return self._task_pages("run = ?", (run,), bodies=bodies)

    def tasks_in(
        self, run: str, states: Collection[State], *, bodies: bool = False
    ) -> Iterator[TaskRow]:
        """Give the tasks that are in some states when their page is read, as `task_rows` does."""
        marks = ", ".join("?" * len(states))
        where = f"run = ? AND state IN ({marks})"
        return self._task_pages(where, (run, *states), bodies=bodies)

    def task_row(self, run: str, key: str) -> TaskRow:
        """Give what became of a task; raises InputError if there is none."""
        found = self._database.row(f"{SELECT_TASKS} WHERE run = ? AND key = ?", (run, key))
        if found is None:
            raise self._no_task(run, key)
        return read_task(found)

    def task(self, run: str, key: str) -> Task:
        """Give a task as it was planned; raises InputError if there is none."""
        found = self._database.row(
            f"{SELECT_TASKS_WITH_BODIES} WHERE run = ? AND key = ?", (run, key)
        )
        task = read_task_with_body(found).body if found else None
        if task is None:
            raise self._no_task(run, key)
        return task

    def attempts(self, run: str, task: str | None = None) -> list[AttemptRow]:
        """Give the attempts of a task, or of all tasks, in the order in which they began."""
        which = {"run": run} if task is None else {"run": run, "task": task}
        where = " AND ".join(f"{column} = ?" for column in which)
        found = self._database.rows(
            f"{SELECT_ATTEMPTS} WHERE {where} ORDER BY rowid", tuple(which.values())
        )
        return [read_attempt(row) for row in found]

    def passed_with(self, digest: str) -> TaskRow | None:
        """Give the newest task that has passed and depends on exactly this."""
        found = self._database.row(
            f"{SELECT_TASKS} WHERE digest = ? AND digest != '' AND state = ? "
            "ORDER BY rowid DESC LIMIT 1",
            (digest, State.PASSED),
        )
        return read_task(found) if found else None

    def passed_before(self, source: str, key: str) -> TaskRow | None:
        """Give the newest task of that key that has passed in a run of a document."""
        found = self._database.row(
            "SELECT run FROM tasks JOIN runs ON runs.id = run "
            "WHERE source = ? AND key = ? AND tasks.state = ? ORDER BY serial DESC LIMIT 1",
            (source, key, State.PASSED),
        )
        return self.task_row(str(found[0]), key) if found else None

    def children(self, run: str) -> list[RunRow]:
        """Give the runs that stages of a run have submitted, the oldest first."""
        found = self._database.rows(
            f"{SELECT_RUNS} WHERE parent = ? AND parent != '' ORDER BY serial", (run,)
        )
        return [read_run(row) for row in found]

    def processes(self, run: str, task: str, attempt: int) -> list[ProcessRow]:
        """Give the processes of an attempt that has ended, in the order in which they came."""
        found = self._database.rows(
            f"{SELECT_PROCESSES} WHERE run = ? AND task = ? AND attempt = ? ORDER BY rowid",
            (run, task, attempt),
        )
        return [read_process(row) for row in found]

    def events_after(self, run: str, last: int = 0, *, limit: int = 1000) -> list[EventRow]:
        """Give what happened in a run after the event that was seen last, the oldest first."""
        found = self._database.rows(
            f"{SELECT_EVENTS} WHERE run = ? AND id > ? ORDER BY id LIMIT ?", (run, last, limit)
        )
        return [read_event(row) for row in found]

    def _task_pages(
        self, where: str, values: tuple[str, ...], *, bodies: bool
    ) -> Iterator[TaskRow]:
        select = SELECT_TASKS_WITH_BODIES if bodies else SELECT_TASKS
        read = read_task_with_body if bodies else read_task
        last, is_more = -1, True
        while is_more:
            found = self._database.rows(
                f"{select} WHERE {where} AND position > ? ORDER BY position LIMIT ?",
                (*values, last, _PAGE),
            )
            for row in map(read, found):
                last = row.position
                yield row
            is_more = len(found) == _PAGE

    def _of_run(self, column: str, run: str) -> Any:
        found = self._database.row(f"SELECT {column} FROM runs WHERE id = ?", (run,))
        if found is None:
            raise self._no_run(run)
        return found[0]

    def _no_run(self, text: str) -> InputError:
        found = self._database.rows("SELECT id FROM runs ORDER BY serial DESC LIMIT ?", (_MANY,))
        ids = [str(row[0]) for row in found]
        hint = name_nearest(text, ids) if ids else "There are none: `rankwise run FILE` makes one."
        return InputError(f"{self._database.path}: there is no run {text!r}. {hint}")

    def _no_task(self, run: str, key: str) -> InputError:
        self.run(run)
        keys = [row.key for row in self.task_rows(run)]
        hint = name_nearest(key, keys) if keys else "It has none at all."
        return InputError(f"{self._database.path}: run {run} has no task {key!r}. {hint}")
