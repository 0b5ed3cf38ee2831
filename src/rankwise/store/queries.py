"""Everything that is read from the store, but for measurements."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from rankwise.errors import InputError
from rankwise.plan import Task, task_of
from rankwise.store.database import Database, Table, where_all
from rankwise.store.rows import (
    OPEN,
    AttemptRow,
    EventRow,
    ProcessRow,
    ResultRow,
    RunRow,
    State,
    TaskRow,
    Wish,
)
from rankwise.wording import grouped, name_nearest

_Row = TypeVar("_Row")

RUNS = Table(
    "runs", RunRow, state=State, tags=json.loads, notices=lambda text: tuple(json.loads(text))
)
TASKS = Table("tasks", TaskRow, without="body", state=State)
TASKS_WITH_BODIES = Table("tasks", TaskRow, state=State, body=task_of)
ATTEMPTS = Table("attempts", AttemptRow, state=State, folder=Path)
PROCESSES = Table("processes", ProcessRow, by_us=bool)
EVENTS = Table("events", EventRow, body=json.loads)

_TOOK = "coalesce(ended, ?) - started"
# Those without a time come last, whichever way round.
TASK_ORDERS = {
    "plan": "position",
    "name": "key",
    "outcome": "state, position",
    "longest": f"started IS NULL, {_TOOK} DESC, position",
    "shortest": f"started IS NULL, {_TOOK}, position",
    "newest": "coalesce(ended, started) IS NULL, coalesce(ended, started) DESC, position",
}
"""The orders in which tasks can be shown, by name."""
RESULT_ORDERS = {
    "plan": "tasks.position, results.position",
    "name": "results.name",
    "outcome": "results.state, results.name",
    "longest": "results.seconds DESC",
    "shortest": "results.seconds",
}
"""The same of single tests."""


_LAST_RESULTS = (
    "FROM results JOIN tasks ON tasks.run = results.run AND tasks.key = results.task "
    "AND tasks.attempts = results.attempt"
)


class Difference(NamedTuple):
    """A task of two runs that came out otherwise."""

    key: str
    before: State
    after: State
    took_before: float | None
    took_after: float | None


class TaskNode(NamedTuple):
    """A task in the graph of a run."""

    key: str
    state: State
    needs: tuple[str, ...]
    seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Which runs are wanted; what is empty does not matter."""

    states: Collection[State] = ()
    kind: str = ""
    words: str = ""
    """In its id, its experiment or its document's path."""
    tag: str = ""
    """A tag's name, or NAME=VALUE."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFilter:
    """Which tasks or tests of a run are wanted."""

    states: Collection[State] = ()
    words: str = ""
    """In its key or its reason."""


class RowPage(NamedTuple, Generic[_Row]):
    """One page, and how many there are on all pages."""

    rows: list[_Row]
    total: int


class _Where:
    """Conditions and their values, in the same order."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.values: list[Any] = []

    def add(self, part: str, *values: Any) -> None:
        self.parts.append(part)
        self.values += values

    def add_states(self, column: str, states: Collection[State]) -> None:
        if states:
            self.add(f"{column} IN ({', '.join('?' * len(states))})", *states)

    def add_words(self, columns: Sequence[str], words: str) -> None:
        """Have every word in one of the columns, whatever its case."""
        for word in words.lower().split():
            either = " OR ".join(f"instr(lower({column}), ?)" for column in columns)
            self.add(f"({either})", *[word] * len(columns))

    def __str__(self) -> str:
        return " AND ".join(["1", *self.parts])


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

    # Runs, tasks and attempts

    def run(self, run: str) -> RunRow:
        """Return a run by its whole id; raises InputError if there is none."""
        found = self._database.first(RUNS, "WHERE id = ?", (run,))
        if found is None:
            raise self._no_run(run)
        return found

    def runs(self, limit: int = 20, *, name: str | None = None) -> list[RunRow]:
        """Return the newest runs, the newest one first."""
        which = {} if name is None else {"name": name}
        rest = f"WHERE {where_all(which)} ORDER BY serial DESC LIMIT ?"
        return self._database.all(RUNS, rest, (*which.values(), limit))

    def last_run(self) -> RunRow | None:
        """Return the newest run."""
        return next(iter(self.runs(1)), None)

    def find_run(self, text: str) -> RunRow:
        """Return the run that a person means: its id, its name (the newest), or how its id begins.

        Raises InputError with the ids that may be meant.
        """
        # A whole id first: it may be the name of other runs as well, or how their ids begin.
        if found := self._database.first(RUNS, "WHERE id = ?", (text,)):
            return found
        if named := self.runs(1, name=text):
            return named[0]
        if not text:
            raise self._no_run(text)
        # By a range, not LIKE: that is found in the index, and % and _ mean themselves.
        beginning = "WHERE id >= ? AND id < ? ORDER BY serial DESC LIMIT ?"
        match self._database.all(RUNS, beginning, (text, text + _LAST, _FEW + 1)):
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
        """Return the document that a run was made of; raises InputError if there is no such run."""
        return str(self._of_run("spec_text", run))

    def wanted(self, run: str) -> Wish | None:
        """Return what the engine of a run is asked to do; raises InputError as well."""
        return "cancel" if self._of_run("wanted", run) == "cancel" else None

    def counts(self, run: str) -> Mapping[State, int]:
        """Count a run's tasks in each state; every state is there."""
        found = self._database.rows(
            "SELECT state, count(*) FROM tasks WHERE run = ? GROUP BY state", (run,)
        )
        counts = dict.fromkeys(State, 0)
        counts.update(found)
        return counts

    def task_rows(self, run: str, *, bodies: bool = False) -> Iterator[TaskRow]:
        """Return all tasks in the order of the plan, with the tasks themselves if asked.

        They are read a page at a time. Meanwhile the store may be written, also by the caller.
        """
        return self._task_pages("run = ?", (run,), bodies=bodies)

    def tasks_in(
        self, run: str, states: Collection[State], *, bodies: bool = False
    ) -> Iterator[TaskRow]:
        """Return the tasks that are in some states when their page is read, as `task_rows` does."""
        marks = ", ".join("?" * len(states))
        where = f"run = ? AND state IN ({marks})"
        return self._task_pages(where, (run, *states), bodies=bodies)

    def task_row(self, run: str, key: str, *, bodies: bool = False) -> TaskRow:
        """Return what became of a task, with its body if asked; InputError: there is none."""
        table = TASKS_WITH_BODIES if bodies else TASKS
        found = self._database.first(table, "WHERE run = ? AND key = ?", (run, key))
        if found is None:
            raise self._no_task(run, key)
        return found

    def task(self, run: str, key: str) -> Task:
        """Return a task as it was planned; raises InputError if there is none."""
        body = self.task_row(run, key, bodies=True).body
        assert body is not None
        return body

    def attempts(self, run: str, task: str | None = None) -> list[AttemptRow]:
        """Return the attempts of a task, or of all tasks, in the order in which they began."""
        which = {"run": run} if task is None else {"run": run, "task": task}
        rest = f"WHERE {where_all(which)} ORDER BY rowid"
        return self._database.all(ATTEMPTS, rest, tuple(which.values()))

    def passed_with(self, digest: str) -> TaskRow | None:
        """Return the newest task that has passed and depends on exactly this."""
        rest = "WHERE digest = ? AND digest != '' AND state = ? ORDER BY rowid DESC"
        return self._database.first(TASKS, rest, (digest, State.PASSED))

    def passed_before(self, source: str, key: str) -> TaskRow | None:
        """Return the newest task of that key that has passed in a run of a document."""
        found = self._database.row(
            "SELECT run FROM tasks JOIN runs ON runs.id = run "
            "WHERE source = ? AND key = ? AND tasks.state = ? ORDER BY serial DESC LIMIT 1",
            (source, key, State.PASSED),
        )
        return self.task_row(str(found[0]), key) if found else None

    def passed_in_runs(self, name: str) -> dict[str, str]:
        """Return all tasks that have passed in runs of a name, each with the newest such run."""
        found = self._database.rows(
            "SELECT key, run FROM tasks JOIN runs ON runs.id = run "
            "WHERE name = ? AND tasks.state = ? ORDER BY serial",
            (name, State.PASSED),
        )
        return {str(key): str(run) for key, run in found}

    def last_folder_of(self, source: str, key: str) -> Path | None:
        """Return the folder of the newest attempt at a task of a document, however that ended."""
        found = self._database.row(
            "SELECT attempts.folder FROM attempts JOIN runs ON runs.id = attempts.run "
            "WHERE source = ? AND task = ? ORDER BY serial DESC, attempts.number DESC LIMIT 1",
            (source, key),
        )
        return Path(found[0]) if found else None

    def children(self, run: str) -> list[RunRow]:
        """Return the runs that stages of a run have submitted, the oldest first."""
        return self._database.all(RUNS, "WHERE parent = ? AND parent != '' ORDER BY serial", (run,))

    def processes(self, run: str, task: str, attempt: int) -> list[ProcessRow]:
        """Return the processes of an attempt that has ended, in the order in which they came."""
        rest = "WHERE run = ? AND task = ? AND attempt = ? ORDER BY rowid"
        return self._database.all(PROCESSES, rest, (run, task, attempt))

    def events_after(self, run: str, last: int = 0, *, limit: int = 1000) -> list[EventRow]:
        """Return what happened in a run after the event that was seen last, the oldest first."""
        rest = "WHERE run = ? AND id > ? ORDER BY id LIMIT ?"
        return self._database.all(EVENTS, rest, (run, last, limit))

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

    def _task_pages(
        self, where: str, values: tuple[str, ...], *, bodies: bool
    ) -> Iterator[TaskRow]:
        table = TASKS_WITH_BODIES if bodies else TASKS
        # By position, not OFFSET: rows that change meanwhile are neither skipped nor read twice.
        last, is_more = -1, True
        rest = f"WHERE {where} AND position > ? ORDER BY position LIMIT ?"
        while is_more:
            found = self._database.all(table, rest, (*values, last, _PAGE))
            for row in found:
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
        # It may be the run that is not there: that message is the right one then.
        self.run(run)
        keys = [row.key for row in self.task_rows(run)]
        hint = name_nearest(key, keys) if keys else "It has none at all."
        return InputError(f"{self._database.path}: run {run} has no task {key!r}. {hint}")

    # Pages, for the live page and reports

    def data_version(self) -> int:
        """Return a number that changes when others have written; of this connection only."""
        return self._database.number("PRAGMA data_version")

    def last_event(self, run: str | None = None) -> int:
        """Return the id of the newest event, of a run or of all."""
        where, values = ("WHERE run = ?", (run,)) if run is not None else ("", ())
        return self._database.number(f"SELECT coalesce(max(id), 0) FROM events {where}", values)

    def runs_with_news(self, after: int) -> set[str]:
        """Name the runs in which something has happened after an event."""
        # With DISTINCT, SQLite would walk along the index of all events that there are.
        found = self._database.rows("SELECT run FROM events WHERE id > ?", (after,))
        return {str(row[0]) for row in found}

    def open_runs(self) -> list[RunRow]:
        """Return the runs that are not over."""
        return self.run_page(RunFilter(states=OPEN), limit=1000).rows

    def run_page(self, wanted: RunFilter, *, limit: int, offset: int = 0) -> RowPage[RunRow]:
        """Return some of the runs that are wanted, the newest first."""
        where = _Where()
        where.add_states("state", wanted.states)
        where.add_words(("id", "experiment", "source"), wanted.words)
        if wanted.kind:
            where.add("kind = ?", wanted.kind)
        if wanted.tag:
            name, separator, value = wanted.tag.partition("=")
            with_value = " AND value = ?" if separator else ""
            tag = f"EXISTS (SELECT 1 FROM json_each(tags) WHERE key = ?{with_value})"
            where.add(tag, name.strip(), *([value.strip()] if separator else []))
        rest = f"WHERE {where} ORDER BY serial DESC LIMIT ? OFFSET ?"
        rows = self._database.all(RUNS, rest, (*where.values, limit, offset))
        total = self._database.number(f"SELECT count(*) FROM runs WHERE {where}", where.values)
        return RowPage(rows, total)

    def run_kinds(self) -> list[str]:
        """Name the kinds of runs that there are."""
        return [str(row[0]) for row in self._database.rows("SELECT DISTINCT kind FROM runs")]

    def task_page(
        self,
        run: str,
        wanted: TaskFilter,
        *,
        order: str,
        now: float,
        limit: int,
        offset: int = 0,
        total: int | None = None,
    ) -> RowPage[TaskRow]:
        """Return some of the tasks that are wanted, in one of TASK_ORDERS.

        They are not counted where it is known how many there are: `total`.
        """
        where = _Where()
        where.add("run = ?", run)
        where.add_states("state", wanted.states)
        where.add_words(("key", "reason"), wanted.words)
        by = TASK_ORDERS[order]
        if total is None:
            total = self._database.number(f"SELECT count(*) FROM tasks WHERE {where}", where.values)
        if order == "plan" and len(where.parts) == 1:
            # Positions have no gaps: none has to be skipped one by one.
            where.add("position >= ?", offset)
            offset = 0
        rest = f"WHERE {where} ORDER BY {by} LIMIT ? OFFSET ?"
        values = (*where.values, *[now] * by.count("?"), limit, offset)
        return RowPage(self._database.all(TASKS, rest, values), total)

    def result_page(
        self, run: str, wanted: TaskFilter, *, order: str, limit: int, offset: int = 0
    ) -> RowPage[tuple[str, ResultRow]]:
        """Return some of the single tests, each with its task, in one of RESULT_ORDERS."""
        where = _Where()
        where.add("results.run = ?", run)
        where.add_states("results.state", wanted.states)
        where.add_words(("results.name", "results.task"), wanted.words)
        rest = f"WHERE {where} ORDER BY {RESULT_ORDERS[order]} LIMIT ? OFFSET ?"
        found = self._results(rest, (*where.values, limit, offset))
        count = f"SELECT count(*) {_LAST_RESULTS} WHERE {where}"
        return RowPage(found, self._database.number(count, where.values))

    def results(self, run: str) -> dict[str, list[ResultRow]]:
        """Return the single tests of each task that has any, those of its last attempt."""
        rest = f"WHERE results.run = ? ORDER BY {RESULT_ORDERS['plan']}"
        return grouped(self._results(rest, (run,)))

    def _results(self, rest: str, values: Sequence[Any]) -> list[tuple[str, ResultRow]]:
        select = f"SELECT task, name, results.state, seconds, message {_LAST_RESULTS} {rest}"
        return [
            (str(task), ResultRow(name=name, state=State(state), seconds=took, message=message))
            for task, name, state, took, message in self._database.rows(select, values)
        ]

    def result_counts(self, run: str) -> dict[State, int]:
        """Count the single tests of a run in each state that there is."""
        rows = self._database.rows(
            f"SELECT results.state, count(*) {_LAST_RESULTS} "
            "WHERE results.run = ? GROUP BY results.state",
            (run,),
        )
        return {State(state): count for state, count in rows}

    def nodes(self, run: str, *, limit: int) -> list[TaskNode]:
        """Return what needs what, in the order of the plan; nothing else of tasks is read."""
        rows = self._database.rows(
            "SELECT key, state, json_extract(body, '$.needs'), ended - started FROM tasks "
            "WHERE run = ? ORDER BY position LIMIT ?",
            (run, limit),
        )
        return [
            TaskNode(str(key), State(state), tuple(json.loads(needs or "[]")), seconds)
            for key, state, needs, seconds in rows
        ]

    def has_needs(self, run: str) -> bool:
        """Return whether a task of a run needs another."""
        some = "SELECT 1 FROM tasks WHERE run = ? AND json_extract(body, '$.needs') != '[]' LIMIT 1"
        return self._database.row(some, (run,)) is not None

    def differences(self, before: str, after: str, *, limit: int) -> RowPage[Difference]:
        """Return the tasks that two runs have in common and that came out otherwise."""
        source = (
            "FROM tasks a JOIN tasks b ON b.run = ? AND b.key = a.key "
            "WHERE a.run = ? AND a.state != b.state"
        )
        columns = "a.key, a.state, b.state, a.ended - a.started, b.ended - b.started"
        query = f"SELECT {columns} {source} ORDER BY a.position LIMIT ?"
        rows = self._database.rows(query, (after, before, limit))
        found = [Difference(key, State(old), State(new), *took) for key, old, new, *took in rows]
        total = self._database.number(f"SELECT count(*) {source}", (after, before))
        return RowPage(found, total)
