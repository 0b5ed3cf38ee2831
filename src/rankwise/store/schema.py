"""The tables, their versions, and opening a store of any version."""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rankwise.errors import StoreFailure
from rankwise.store.database import UNWRITABLE, Database, describe_os_error, is_shut

# "RNKW": tells a store from other databases.
_APPLICATION = 0x524E4B57


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What leads from one version to the next."""

    since: str
    """The first rankwise that takes this step, and so can read the result."""
    file: Path
    """Its statements, with an empty line between them."""


# Steps that were released stay as they are: stores of all versions are brought up to date by them.
STEPS: tuple[Step, ...] = (Step(since="0.1.0", file=Path(__file__).with_name("version_1.sql")),)


def read_version(database: Database) -> int:
    """Return a store's version, 0 for an empty file.

    Raises StoreFailure for a database that is not ours, and for one that is too new.
    """
    # In one statement: another process may make the store between two.
    [(version, application, tables)] = database.rows(
        "SELECT user_version, application_id, (SELECT count(*) FROM sqlite_master)"
        " FROM pragma_user_version, pragma_application_id"
    )
    is_empty = version == application == tables == 0
    if application != _APPLICATION and not is_empty:
        raise StoreFailure(
            f"{database.path}: this is the database of another program, not a store of rankwise. "
            "Move it away, or choose another store with --store."
        )
    if version > len(STEPS):
        known = database.row("SELECT since FROM versions WHERE version = ?", (version,))
        needed = known[0] if known else f"for version {version}"
        raise StoreFailure(
            f"{database.path}: the store has version {version}, and this rankwise knows versions "
            f"up to {len(STEPS)}. Use rankwise {needed} or newer, or "
            "choose another store with --store."
        )
    return int(version)


def _take_steps(database: Database) -> None:
    """Take the steps that a store lacks; another process may have done so meanwhile."""
    version = read_version(database)
    for number, step in enumerate(STEPS[version:], start=version + 1):
        # Not by `executescript`, which commits what the transaction has done so far.
        for statement in step.file.read_text().split("\n\n"):
            database.change(statement)
        database.change("INSERT INTO versions VALUES (?, ?)", (number, step.since))
    if broken := database.rows("PRAGMA foreign_key_check"):
        raise StoreFailure(
            f"{database.path}: the store cannot be brought from version {version} to "
            f"{len(STEPS)}: {len(broken)} rows belong to nothing (the first is in table "
            f"{broken[0][0]}). It is as it was; please report this."
        )
    database.change(f"PRAGMA application_id = {_APPLICATION}")
    database.change(f"PRAGMA user_version = {len(STEPS)}")


def open_for_writing(path: Path, *, patience: float) -> Database:
    """Open a store, make it if it is not there, and bring it up to date."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise describe_os_error(path, error) from error
    # Said at once, as SQLite would say it at the first write.
    if not os.access(path.parent, os.W_OK | os.X_OK) or (
        path.exists() and not os.access(path, os.R_OK | os.W_OK)
    ):
        raise StoreFailure(f"{path}: {UNWRITABLE.format(folder=path.parent)}")
    _refuse_folder(path)
    database = Database(path, "mode=rwc", patience=patience)
    try:
        # Before anything is changed: it may belong to another program.
        version = read_version(database)
        # Where the file system cannot share memory, SQLite stays with what works there.
        database.rows("PRAGMA journal_mode = WAL")
        database.change("PRAGMA synchronous = NORMAL")
        if version < len(STEPS):
            with database.together():
                _take_steps(database)
        # Not sooner: a step may have to put a new table in an old one's place.
        database.change("PRAGMA foreign_keys = ON")
        database.expect(len(STEPS))
    except BaseException:
        database.close()
        raise
    return database


def open_for_reading(path: Path, *, patience: float) -> Database:
    """Open a store that is there; one of an older version is brought up to date before."""
    try:
        is_there = path.exists()
    except OSError as error:
        raise describe_os_error(path, error) from error
    if not is_there:
        raise StoreFailure(
            f"{path}: there is no store. `rankwise run FILE` makes one; if there is one elsewhere, "
            "go to its project's folder or name it with --store."
        )
    _refuse_folder(path)
    database, version = _connect_for_reading(path, patience=patience)
    if version == len(STEPS):
        return database
    database.close()
    try:
        open_for_writing(path, patience=patience).close()
    except StoreFailure as failure:
        raise StoreFailure(
            f"{failure} (It has version {version}, and has to be brought to {len(STEPS)} "
            "before this rankwise can read it.)"
        ) from failure
    return _connect_for_reading(path, patience=patience)[0]


def _connect_for_reading(path: Path, *, patience: float) -> tuple[Database, int]:
    try:
        return _connect_with("mode=ro", path, patience)
    except StoreFailure as failure:
        if not _is_at_rest_for_good(path, failure):
            raise
    # Readers write, too: into the memory that they share with writers. Where no process may write,
    # there is nothing to share.
    return _connect_with("mode=ro&immutable=1", path, patience)


def _connect_with(options: str, path: Path, patience: float) -> tuple[Database, int]:
    database = Database(path, options, patience=patience)
    try:
        return database, read_version(database)
    except BaseException:
        database.close()
        raise


def _is_at_rest_for_good(path: Path, failure: StoreFailure) -> bool:
    """Return whether a store could not be opened because its folder, and so the store, is fixed."""
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


def _refuse_folder(path: Path) -> None:
    """Say what SQLite would call an error of the disk."""
    if path.is_dir():
        raise StoreFailure(
            f"{path}: this is a folder, in the place of the store's file. "
            "Move it away, or choose another store with --store."
        )
