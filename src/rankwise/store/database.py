"""One connection to a store's file: statements, transactions, and the end of SQLite's errors."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from rankwise.errors import StoreFailure
from rankwise.store.failures import describe, is_busy

Row = tuple[Any, ...]
_Result = TypeVar("_Result")

# SQLite waits in C, where Python hears no Ctrl-C: so it waits for a moment only, again and again.
_MOMENT = 0.5
# Some locks it does not wait for at all.
_PAUSE = 0.01


class Database:
    """A connection whose every failure is a StoreFailure; not to be shared by threads or forks.

    Nothing else in the process may open and close the file itself: the locks of all connections
    to it would be gone.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, *, patience: float) -> None:
        self.path = path
        self._connection = connection
        self._patience = patience
        self._version: int | None = None
        self._is_grouping = False
        self._has_failed = False

    @classmethod
    def connect(cls, path: Path, options: str, *, patience: float) -> Database:
        """Connect with the options of an SQLite URI: `mode=ro`. Most failures show only later."""
        try:
            connection = sqlite3.connect(
                f"{path.absolute().as_uri()}?{options}",
                uri=True,
                timeout=min(_MOMENT, patience),
                isolation_level=None,
            )
        except sqlite3.Error as error:
            raise describe(path, error, patience=patience) from error
        return cls(path, connection, patience=patience)

    def close(self) -> None:
        """Close the connection; what was not committed is undone. More than once is fine."""
        self._patiently(self._connection.close)

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        """Give all rows that a query finds."""
        found = self._patiently(lambda: self._execute(statement, values).fetchall())
        return [tuple(map(_from_column, row)) for row in found]

    def row(self, statement: str, values: Sequence[Any] = ()) -> Row | None:
        """Give the first row that a query finds."""
        return next(iter(self.rows(statement, values)), None)

    def number(self, statement: str, values: Sequence[Any] = ()) -> int:
        """Give the number that a query finds."""
        return int(self.rows(statement, values)[0][0])

    def change(self, statement: str, values: Sequence[Any] = ()) -> int:
        """Run a statement and give how many rows it has changed."""
        return self._patiently(lambda: self._execute(statement, values)).rowcount

    def change_many(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run a statement for each of many rows."""
        values = [tuple(map(_to_column, row)) for row in rows]
        self._patiently(lambda: self._connection.executemany(statement, values))

    def expect(self, version: int) -> None:
        """Write from now on only as long as the store has this version."""
        self._version = version

    @contextmanager
    def together(self) -> Iterator[None]:
        """Store all that is written inside at once, or nothing if any of it fails.

        May be nested: the outermost one counts. It holds the only right to write, so be quick.
        """
        if self._is_grouping:
            with self._as_part():
                yield
            return
        self._begin()
        try:
            yield
            self._refuse_after_failure()
            self._patiently(lambda: self._connection.execute("COMMIT"))
        except BaseException:
            self._undo()
            raise
        finally:
            self._is_grouping = self._has_failed = False

    @contextmanager
    def _as_part(self) -> Iterator[None]:
        """Join a group; a part that fails, fails the whole, even if its error is caught inside."""
        self._refuse_after_failure()
        try:
            yield
        except BaseException:
            self._has_failed = True
            raise

    def _refuse_after_failure(self) -> None:
        if self._has_failed:
            raise StoreFailure(
                f"{self.path}: something that was to be stored together with other things has "
                "failed before, so none of them was stored."
            )

    def _begin(self) -> None:
        """Take the right to write at once: one that is asked for later may be refused."""
        self._patiently(lambda: self._connection.execute("BEGIN IMMEDIATE"))
        self._is_grouping = True
        try:
            self._refuse_other_version()
        except BaseException:
            self._is_grouping = False
            self._undo()
            raise

    def _refuse_other_version(self) -> None:
        """Write nothing into a store that a newer rankwise has changed meanwhile."""
        if self._version is None:
            return
        now = self.number("PRAGMA user_version")
        if now != self._version:
            raise StoreFailure(
                f"{self.path}: a newer rankwise has brought the store from version {self._version} "
                f"to {now} while this one was at work. Start again with the newer one."
            )

    def _undo(self) -> None:
        # After some failures SQLite has done it already.
        with suppress(sqlite3.Error):
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def _execute(self, statement: str, values: Sequence[Any]) -> sqlite3.Cursor:
        return self._connection.execute(statement, tuple(map(_to_column, values)))

    def _patiently(self, action: Callable[[], _Result]) -> _Result:
        """Do it again for as long as others are at the store, but no longer than patience lasts."""
        give_up = time.monotonic() + self._patience
        while True:
            try:
                return action()
            except sqlite3.Error as error:
                if not is_busy(error) or time.monotonic() >= give_up:
                    raise describe(self.path, error, patience=self._patience) from error
            time.sleep(_PAUSE)


def _to_column(value: Any) -> Any:
    """Keep text that is no Unicode, such as the names of some files, as bytes."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return value.encode(errors="surrogatepass")
    return value


def _from_column(value: Any) -> Any:
    return value.decode(errors="surrogatepass") if isinstance(value, bytes) else value
