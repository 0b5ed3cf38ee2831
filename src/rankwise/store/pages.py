"""Queries for those who look at a store a page at a time: filters, orders, and what is new."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from rankwise.store.database import Database
from rankwise.store.reading import SELECT_RUNS, SELECT_TASKS, read_run, read_task
from rankwise.store.rows import ResultRow, RunRow, TaskRow
from rankwise.store.states import State

_Row = TypeVar("_Row")

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


class Difference(NamedTuple):
    """A task of two runs that came out otherwise."""

    key: str
    before: State
    after: State
    seconds_before: float | None
    seconds_after: float | None


class Node(NamedTuple):
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


class Found(NamedTuple, Generic[_Row]):
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


class Pages:
    """Reads a store a page at a time."""

    _database: Database

    def data_version(self) -> int:
        """Give a number that is another one after others have written; of this connection only."""
        return self._database.number("PRAGMA data_version")

    def last_event(self, run: str | None = None) -> int:
        """Give the id of the newest event, of a run or of all."""
        where, values = ("WHERE run = ?", (run,)) if run is not None else ("", ())
        return self._database.number(f"SELECT coalesce(max(id), 0) FROM events {where}", values)

    def runs_with_news(self, after: int) -> set[str]:
        """Name the runs in which something has happened after an event."""
        # With DISTINCT, SQLite would walk along the index of all events that there are.
        found = self._database.rows("SELECT run FROM events WHERE id > ?", (after,))
        return {str(row[0]) for row in found}

    def open_runs(self) -> list[RunRow]:
        """Give the runs that are not over."""
        states = [state for state in State if not state.is_over]
        return self.run_page(RunFilter(states=states), limit=1000).rows

    def run_page(self, wanted: RunFilter, *, limit: int, offset: int = 0) -> Found[RunRow]:
        """Give some of the runs that are wanted, the newest first."""
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
        rows = self._database.rows(
            f"{SELECT_RUNS} WHERE {where} ORDER BY serial DESC LIMIT ? OFFSET ?",
            (*where.values, limit, offset),
        )
        total = self._database.number(f"SELECT count(*) FROM runs WHERE {where}", where.values)
        return Found([read_run(row) for row in rows], total)

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
    ) -> Found[TaskRow]:
        """Give some of the tasks that are wanted, in one of TASK_ORDERS.

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
        rows = self._database.rows(
            f"{SELECT_TASKS} WHERE {where} ORDER BY {by} LIMIT ? OFFSET ?",
            (*where.values, *[now] * by.count("?"), limit, offset),
        )
        return Found([read_task(row) for row in rows], total)

    def result_page(
        self, run: str, wanted: TaskFilter, *, order: str, limit: int, offset: int = 0
    ) -> Found[tuple[str, ResultRow]]:
        """Give some of the single tests, each with its task, in one of RESULT_ORDERS."""
        where = _Where()
        where.add("results.run = ?", run)
        where.add_states("results.state", wanted.states)
        where.add_words(("results.name", "results.task"), wanted.words)
        source = (
            "FROM results JOIN tasks ON tasks.run = results.run AND tasks.key = results.task "
            f"AND tasks.attempts = results.attempt WHERE {where}"
        )
        rows = self._database.rows(
            f"SELECT task, name, results.state, seconds, message {source} "
            f"ORDER BY {RESULT_ORDERS[order]} LIMIT ? OFFSET ?",
            (*where.values, limit, offset),
        )
        found = [
            (str(task), ResultRow(name=name, state=State(state), seconds=took, message=message))
            for task, name, state, took, message in rows
        ]
        return Found(found, self._database.number(f"SELECT count(*) {source}", where.values))

    def result_counts(self, run: str) -> dict[State, int]:
        """Count the single tests of a run in each state that there is."""
        rows = self._database.rows(
            "SELECT results.state, count(*) FROM results JOIN tasks ON tasks.run = results.run "
            "AND tasks.key = results.task AND tasks.attempts = results.attempt "
            "WHERE results.run = ? GROUP BY results.state",
            (run,),
        )
        return {State(state): count for state, count in rows}

    def nodes(self, run: str, *, limit: int) -> list[Node]:
        """Give what needs what, in the order of the plan; nothing else of tasks is read."""
        rows = self._database.rows(
            "SELECT key, state, json_extract(body, '$.needs'), ended - started FROM tasks "
            "WHERE run = ? ORDER BY position LIMIT ?",
            (run, limit),
        )
        return [
            Node(str(key), State(state), tuple(json.loads(needs or "[]")), seconds)
            for key, state, needs, seconds in rows
        ]

    def has_needs(self, run: str) -> bool:
        """Tell whether a task of a run needs another."""
        found = self._database.row(
            "SELECT 1 FROM tasks WHERE run = ? AND json_extract(body, '$.needs') != '[]' LIMIT 1",
            (run,),
        )
        return found is not None

    def differences(self, before: str, after: str, *, limit: int) -> Found[Difference]:
        """Give the tasks that two runs have in common and that came out otherwise."""
        source = (
            "FROM tasks a JOIN tasks b ON b.run = ? AND b.key = a.key "
            "WHERE a.run = ? AND a.state != b.state"
        )
        rows = self._database.rows(
            "SELECT a.key, a.state, b.state, a.ended - a.started, b.ended - b.started "
            f"{source} ORDER BY a.position LIMIT ?",
            (after, before, limit),
        )
        found = [
            Difference(str(key), State(old), State(new), took, takes)
            for key, old, new, took, takes in rows
        ]
        total = self._database.number(f"SELECT count(*) {source}", (after, before))
        return Found(found, total)
