"""Ways to a store that is there, ours, and of the right version."""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from pathlib import Path

from rankwise.errors import StoreFailure
from rankwise.store.database import Database
from rankwise.store.failures import describe_os_error, is_shut, not_writable
from rankwise.store.schema import bring_up_to_date, newest_version, read_version


def open_for_writing(path: Path, *, patience: float) -> Database:
    """Open a store, make it if it is not there, and bring it up to date."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise describe_os_error(path, error) from error
    _refuse_unwritable(path)
    _refuse_folder(path)
    database = Database.connect(path, "mode=rwc", patience=patience)
    try:
        # Before anything is changed: it may belong to another program.
        read_version(database)
        # Where the file system cannot share memory, SQLite stays with what works there.
        database.rows("PRAGMA journal_mode = WAL")
        database.change("PRAGMA synchronous = NORMAL")
        bring_up_to_date(database)
        # Not sooner: a step may have to put a new table in an old one's place.
        database.change("PRAGMA foreign_keys = ON")
        database.expect(newest_version())
    except BaseException:
        database.close()
        raise
    return database


def open_for_reading(path: Path, *, patience: float) -> Database:
    """Open a store that is there; one of an older version is brought up to date before."""
    _refuse_missing(path)
    _refuse_folder(path)
    database, version = _connect_for_reading(path, patience=patience)
    if version == newest_version():
        return database
    database.close()
    try:
        open_for_writing(path, patience=patience).close()
    except StoreFailure as failure:
        raise StoreFailure(
            f"{failure} (It has version {version}, and has to be brought to {newest_version()} "
            "before this rankwise can read it.)"
        ) from failure
    return _connect_for_reading(path, patience=patience)[0]


def _connect_for_reading(path: Path, *, patience: float) -> tuple[Database, int]:
    database = Database.connect(path, "mode=ro", patience=patience)
    try:
        return database, read_version(database)
    except StoreFailure as failure:
        database.close()
        if not _is_at_rest_for_good(path, failure):
            raise
    except BaseException:
        database.close()
        raise
    # Readers write, too: into the memory that they share with writers. Where nobody can write,
    # there is nothing to share.
    database = Database.connect(path, "mode=ro&immutable=1", patience=patience)
    try:
        return database, read_version(database)
    except BaseException:
        database.close()
        raise


def _is_at_rest_for_good(path: Path, failure: StoreFailure) -> bool:
    """Tell whether a store could not be opened because its folder, and so the store, is fixed."""
    cause = failure.__cause__
    return (
        isinstance(cause, sqlite3.Error)
        and is_shut(cause)
        and os.access(path, os.R_OK)
        and not os.access(path.parent, os.W_OK)
        and not _size(path.with_name(f"{path.name}-wal"))
    )


def _size(path: Path) -> int:
    with suppress(FileNotFoundError):
        return path.stat().st_size
    return 0


def _refuse_unwritable(path: Path) -> None:
    """Say at once what SQLite would say at the first write."""
    if not os.access(path.parent, os.W_OK | os.X_OK) or (
        path.exists() and not os.access(path, os.R_OK | os.W_OK)
    ):
        raise not_writable(path)


def _refuse_folder(path: Path) -> None:
    """Say what SQLite would call an error of the disk."""
    if path.is_dir():
        raise StoreFailure(
            f"{path}: this is a folder, in the place of the store's file. "
            "Move it away, or choose another store with --store."
        )


def _refuse_missing(path: Path) -> None:
    try:
        is_there = path.exists()
    except OSError as error:
        raise describe_os_error(path, error) from error
    if not is_there:
        raise StoreFailure(
            f"{path}: there is no store. `rankwise run FILE` makes one; if there is one elsewhere, "
            "go to its project's folder or name it with --store."
        )
