"""One SQLite file: connection, transactions, errors in words; rows read and changed."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from rankwise.errors import StoreFailure
from rankwise.store.rows import OPEN

if TYPE_CHECKING:
    from rankwise.node.output import Redactor

_ELSEWHERE = "or choose another store with --store"
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)
UNWRITABLE = (
    "the store cannot be written. Get the right to write {folder} and the files in it "
    f"(a disk that is mounted read-only does not give it), {_ELSEWHERE}."
)
_IN_WORDS = {
    **dict.fromkeys(
        _BUSY,
        "another process has kept the store locked for {patience:g} s. "
        "`fuser {path}` shows who has it open: let it go on or end it, then try again.",
    ),
    sqlite3.SQLITE_FULL: "the disk is full. Free some space and try again; what was stored is "
    "kept.",
    sqlite3.SQLITE_IOERR: "the store cannot be read or written ({name}). The disk may be full, "
    "over its quota or broken: free some space, or see to it, and try again.",
    sqlite3.SQLITE_READONLY: UNWRITABLE,
    sqlite3.SQLITE_PERM: UNWRITABLE,
    sqlite3.SQLITE_CANTOPEN: "the store cannot be opened. Get the permission to read and "
    f"write {{folder}} and the files in it, {_ELSEWHERE}.",
    sqlite3.SQLITE_NOTADB: "this file is not a store of rankwise, nor any database. "
    f"Move it away, {_ELSEWHERE}.",
    sqlite3.SQLITE_CORRUPT: "the store is damaged ({error}). Move {path} away, and {path.name}-wal "
    f"and {{path.name}}-shm with it, {_ELSEWHERE}; logs and outcomes in {{folder}}/runs are not "
    "touched.",
}


def is_shut(error: sqlite3.Error) -> bool:
    """Return whether the file, or one that must be beside it, could not be opened."""
    return _code(error) in {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY}


def describe(path: Path, error: sqlite3.Error, *, patience: float) -> StoreFailure:
    """Make the failure that a person sees of an error of SQLite."""
    words = _IN_WORDS.get(_code(error), "the store has failed: {error} ({name}).")
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    said = words.format(path=path, folder=path.parent, error=error, name=name, patience=patience)
    return StoreFailure(f"{path}: {said}")


def describe_os_error(path: Path, error: OSError) -> StoreFailure:
    """Make the failure that a person sees of a folder that cannot be made or looked into."""
    why = (error.strerror or str(error)).lower()
    return StoreFailure(
        f"{path}: the store's folder cannot be used: {why} ({error.filename or path.parent}). "
        f"Make it a folder that you can write, {_ELSEWHERE}."
    )


def _code(error: sqlite3.Error) -> int:
    """Return the primary code; errors of Python's own module have none."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


Row = tuple[Any, ...]
_Result = TypeVar("_Result")
_RowClass = TypeVar("_RowClass")


class Table(Generic[_RowClass]):
    """Rows of a table as objects of a class; its fields have the names of the columns.

    With a `select` of its own, columns stand in the order of the fields.
    """

    def __init__(
        self,
        name: str,
        kind: type[_RowClass],
        *,
        without: str = "",
        select: str = "",
        **decoders: Callable[[Any], Any],
    ) -> None:
        # A type variable cannot say that it is a dataclass.
        names = (field.name for field in fields(kind))  # type: ignore[arg-type]
        self.columns = tuple(name for name in names if name != without)
        self.select = select or f"SELECT {', '.join(self.columns)} FROM {name}"
        self._kind = kind
        self._decoders = decoders

    def read(self, row: Row) -> _RowClass:
        """Make an object of what `select` has found."""
        named = dict(zip(self.columns, row, strict=True))
        for column, decode in self._decoders.items():
            named[column] = decode(named[column])
        return self._kind(**named)


def where_all(which: Iterable[str]) -> str:
    """Return the condition that columns have given values."""
    return " AND ".join(["1", *(f"{column} = ?" for column in which)])


# SQLite waits in C, where Python hears no Ctrl-C: so it waits for a moment only, again and again.
_MOMENT = 0.5
# Some locks it does not wait for at all.
_PAUSE = 0.01


class Database:
    """A connection whose every failure is a StoreFailure; not to be shared by threads or forks.

    Nothing else in the process may open and close the file itself: the locks of all connections
    to it would be gone.
    """

    def __init__(self, path: Path, options: str, *, patience: float) -> None:
        """Connect with the options of an SQLite URI: `mode=ro`. Most failures show only later."""
        self.path = path
        self.options = options
        self.patience = patience
        self._version: int | None = None
        self._is_grouping = False
        self._has_failed = False
        try:
            self._connection = sqlite3.connect(
                f"{path.absolute().as_uri()}?{options}",
                uri=True,
                timeout=min(_MOMENT, patience),
                isolation_level=None,
            )
        except sqlite3.Error as error:
            raise describe(path, error, patience=patience) from error

    def close(self) -> None:
        """Close the connection; what was not committed is undone. More than once is fine."""
        self._patiently(self._connection.close)

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        """Return all rows that a query finds."""
        # All at once: a cursor that is left open keeps the log of the database from shrinking.
        found = self._patiently(lambda: self._execute(statement, values).fetchall())
        return [tuple(map(_from_column, row)) for row in found]

    def row(self, statement: str, values: Sequence[Any] = ()) -> Row | None:
        """Return the first row that a query finds."""
        return next(iter(self.rows(statement, values)), None)

    def all(
        self, table: Table[_RowClass], rest: str, values: Sequence[Any] = ()
    ) -> list[_RowClass]:
        """Return the rows of a table as objects; `rest` says which, and in what order."""
        return [table.read(row) for row in self.rows(f"{table.select} {rest}", values)]

    def first(
        self, table: Table[_RowClass], rest: str, values: Sequence[Any] = ()
    ) -> _RowClass | None:
        """Return the first row of a table that fits."""
        return next(iter(self.all(table, f"{rest} LIMIT 1", values)), None)

    def number(self, statement: str, values: Sequence[Any] = ()) -> int:
        """Return the number that a query finds."""
        return int(self.rows(statement, values)[0][0])

    def change(self, statement: str, values: Sequence[Any] = ()) -> int:
        """Run a statement, and return how many rows it has changed."""
        return self._patiently(lambda: self._execute(statement, values)).rowcount

    def change_many(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run a statement for each of many rows."""
        values = [tuple(map(_to_column, row)) for row in rows]
        self._patiently(lambda: self._connection.executemany(statement, values))

    @contextmanager
    def beside(self, other: Path, options: str) -> Iterator[None]:
        """Have the tables of another store as `other.NAME`, to be read."""
        self.change("ATTACH ? AS other", (f"{other.absolute().as_uri()}?{options}",))
        try:
            yield
        finally:
            self.change("DETACH other")

    def expect(self, version: int) -> None:
        """Write from now on only as long as the store has this version."""
        self._version = version

    @contextmanager
    def together(self) -> Iterator[None]:
        """Store all that is written inside at once, or nothing if any of it fails.

        May be nested: the outermost one counts. It holds the only right to write, so be quick.
        """
        self._refuse_after_failure()
        is_outermost = not self._is_grouping
        if is_outermost:
            # The right to write is taken at once: one that is asked for later may be refused.
            self._patiently(lambda: self._connection.execute("BEGIN IMMEDIATE"))
            self._is_grouping = True
        try:
            if is_outermost:
                self._refuse_other_version()
            yield
            if is_outermost:
                self._refuse_after_failure()
                self._patiently(lambda: self._connection.execute("COMMIT"))
        except BaseException:
            # A part that fails, fails the whole, even if its error is caught further out.
            self._has_failed = True
            if is_outermost:
                self._undo()
            raise
        finally:
            if is_outermost:
                self._is_grouping = self._has_failed = False

    def _refuse_after_failure(self) -> None:
        if self._has_failed:
            raise StoreFailure(
                f"{self.path}: something that was to be stored together with other things has "
                "failed before, so none of them was stored."
            )

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
        give_up = time.monotonic() + self.patience
        while True:
            try:
                return action()
            except sqlite3.Error as error:
                if _code(error) not in _BUSY or time.monotonic() >= give_up:
                    raise describe(self.path, error, patience=self.patience) from error
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


# Of less, a value of a secret may be a part of any name: names say what is what.
_SHORTEST_IN_NAMES = 4
_IS_OPEN = f"state IN ({', '.join(repr(state.value) for state in OPEN)})"


class Changes:
    """Changes rows; what is over stays as it is."""

    _database: Database
    _in_texts: Redactor | None = None
    _in_names: Redactor | None = None

    def keep_out(self, values: Iterable[str]) -> None:
        """Have *** stand for the values of secrets in all that is written from now on."""
        known = [value for value in values if value]
        if known:
            from rankwise.node.output import Redactor

            long = [value for value in known if len(value) >= _SHORTEST_IN_NAMES]
            self._in_texts, self._in_names = Redactor(known), Redactor(long)

    def redact(self, text: str) -> str:
        """Return a text as it is stored."""
        return self._in_texts.clean(text) if self._in_texts else text

    def redact_name(self, name: str) -> str:
        """Return the name of a test or a metric as it is stored."""
        return self._in_names.clean(name) if self._in_names else name

    def redact_in(self, data: Any) -> Any:
        """Return plain data as it is stored."""
        match data:
            case str():
                return self.redact_name(data)
            case dict():
                return {self.redact_in(name): self.redact_in(one) for name, one in data.items()}
            case list() | tuple():
                return [self.redact_in(one) for one in data]
        return data

    def together(self) -> AbstractContextManager[None]:
        """Store all that is written inside at once, or nothing if any of it fails.

        May be nested. No other process can write meanwhile, so be quick.
        """
        return self._database.together()

    def add_event(self, run: str, kind: str, body: Mapping[str, Any], *, now: float) -> None:
        """Add an event to those of a run. Followers read all: a few for each task at most."""
        with self.together():
            columns = self._without_secrets(body)
            row = {"run": run, "time": now, "kind": kind, "body": json.dumps(columns)}
            self._insert("events", [row])

    def _transition(
        self,
        table: str,
        which: Mapping[str, Any],
        new: Mapping[str, Any],
        event: tuple[str, str, Mapping[str, Any]],
        *,
        now: float,
        only_if: str = "1",
    ) -> bool:
        """Change a row as `_change` does, with the event that tells of it: run, kind and body."""
        with self.together():
            is_new = self._change(table, which, new, only_if=only_if)
            if is_new:
                self.add_event(*event, now=now)
        return is_new

    def _change(
        self, table: str, which: Mapping[str, Any], new: Mapping[str, Any], *, only_if: str = "1"
    ) -> bool:
        """Change a row if it is not over, and return whether it was changed; it must be there."""
        where, new = where_all(which), self._without_secrets(new)
        # One statement, so that no other process can end the row between a look and a change.
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

    def _without_secrets(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """Return columns as they are stored: reasons quote what programs have written."""
        reason = columns.get("reason")
        return {**columns, "reason": self.redact(reason)} if reason else dict(columns)

    def _refuse_open(self, table: str, column: str, which: Mapping[str, Any], what: str) -> None:
        """Raise StoreFailure if a row is not over; `what` cannot be done then."""
        where = f"WHERE {where_all(which)} AND {_IS_OPEN}"
        query = f"SELECT {column} FROM {table} {where} LIMIT 1"
        if found := self._database.row(query, tuple(which.values())):
            raise StoreFailure(
                f"{self._database.path}: {what}: its {table.removesuffix('s')} {found[0]} is not "
                "over. Another rankwise may drive this run."
            )

    def _insert(self, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add rows that have the same columns, in the same order."""
        if rows:
            marks = ", ".join("?" * len(rows[0]))
            insert = f"INSERT INTO {table} ({', '.join(rows[0])}) VALUES ({marks})"
            self._database.change_many(insert, [tuple(row.values()) for row in rows])
