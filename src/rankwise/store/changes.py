"""What all writes are made of: transactions, changes to what is not over yet, and events."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from rankwise.errors import StoreFailure
from rankwise.store.database import Database
from rankwise.store.states import State

_IS_OPEN = f"state IN ({', '.join(repr(state.value) for state in State if not state.is_over)})"


class Changes:
    """Changes rows; what is over stays as it is."""

    _database: Database

    def together(self) -> AbstractContextManager[None]:
        """Store all that is written inside at once, or nothing if any of it fails.

        May be nested. Nobody else can write meanwhile, so be quick.
        """
        return self._database.together()

    def add_event(self, run: str, kind: str, body: Mapping[str, Any], *, now: float) -> None:
        """Tell those who follow a run of something that happens a few times a task at most."""
        with self.together():
            self._database.change(
                "INSERT INTO events (run, time, kind, body) VALUES (?, ?, ?, ?)",
                (run, now, kind, json.dumps(dict(body))),
            )

    def _change(
        self, table: str, which: Mapping[str, Any], new: Mapping[str, Any], *, only_if: str = "1"
    ) -> bool:
        """Change a row if it is not over, and tell whether it was so; it must be there."""
        where = _where(which)
        changed = self._database.change(
            f"UPDATE {table} SET {', '.join(f'{column} = ?' for column in new)} "
            f"WHERE {where} AND {_IS_OPEN} AND {only_if}",
            (*new.values(), *which.values()),
        )
        if not changed and not self._database.row(
            f"SELECT 1 FROM {table} WHERE {where}", tuple(which.values())
        ):
            names = ", ".join(f"{column} {value}" for column, value in which.items())
            raise StoreFailure(f"{self._database.path}: nothing in {table} has {names}.")
        return bool(changed)

    def _first_open(self, table: str, column: str, which: Mapping[str, Any]) -> Any:
        """Give a column of the first row that is not over; None: all are."""
        found = self._database.row(
            f"SELECT {column} FROM {table} WHERE {_where(which)} AND {_IS_OPEN} LIMIT 1",
            tuple(which.values()),
        )
        return found[0] if found else None

    def _insert(self, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        marks = ", ".join("?" * len(columns))
        self._database.change_many(
            f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", rows
        )


def check_end(state: State) -> None:
    """Raise ValueError for a state that is no end."""
    if not state.is_over:
        raise ValueError(f"{state.value!r} is no end")


def _where(which: Mapping[str, Any]) -> str:
    return " AND ".join(f"{column} = ?" for column in which)
