"""The tables, and how a store of an older version gets them.

A store's version is the number of steps that were taken to make it. A step that was once released
is never changed: what is to be different comes in a new one. Bodies of tasks belong to the version:
a field of `plan.Task` that gets another name or sense needs a step, too.
"""

from __future__ import annotations

from dataclasses import dataclass

from rankwise.errors import StoreFailure
from rankwise.store.database import Database

# "RNKW": tells a store from other databases.
_APPLICATION = 0x524E4B57


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What leads from one version to the next."""

    since: str
    """The first rankwise that takes this step, and so can read the result."""
    statements: tuple[str, ...]


STEPS: tuple[Step, ...] = (
    Step(
        since="0.1.0",
        statements=(
            # An older rankwise reads here which one it would have to be.
            """
            CREATE TABLE versions (
                version INTEGER PRIMARY KEY,
                since TEXT NOT NULL
            )
            """,
            """
            CREATE TABLE runs (
                serial INTEGER PRIMARY KEY,
                id TEXT NOT NULL UNIQUE,
                name TEXT NOT NULL,
                number INTEGER NOT NULL,
                kind TEXT NOT NULL,
                experiment TEXT NOT NULL,
                source TEXT NOT NULL,
                created REAL NOT NULL,
                started REAL,
                ended REAL,
                state TEXT NOT NULL,
                exit_code INTEGER,
                reason TEXT NOT NULL,
                tags TEXT NOT NULL,
                notices TEXT NOT NULL,
                wanted TEXT,
                spec_text TEXT NOT NULL,
                parent TEXT NOT NULL,
                UNIQUE (name, number)
            )
            """,
            "CREATE INDEX children_of_run ON runs (parent, serial) WHERE parent != ''",
            "CREATE INDEX runs_of_experiment ON runs (experiment, serial)",
            """
            CREATE TABLE tasks (
                run TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
                key TEXT NOT NULL,
                position INTEGER NOT NULL,
                state TEXT NOT NULL,
                reason TEXT NOT NULL,
                exit_code INTEGER,
                attempts INTEGER NOT NULL,
                started REAL,
                ended REAL,
                body TEXT NOT NULL,
                digest TEXT NOT NULL,
                origin TEXT NOT NULL,
                PRIMARY KEY (run, key),
                UNIQUE (run, position)
            )
            """,
            "CREATE INDEX tasks_in_state ON tasks (run, state, position)",
            "CREATE INDEX tasks_of_digest ON tasks (digest) WHERE digest != ''",
            """
            CREATE TABLE attempts (
                run TEXT NOT NULL,
                task TEXT NOT NULL,
                number INTEGER NOT NULL,
                state TEXT NOT NULL,
                marker TEXT NOT NULL UNIQUE,
                folder TEXT NOT NULL,
                job_id TEXT,
                begun REAL NOT NULL,
                submitted REAL,
                started REAL,
                ended REAL,
                exit_code INTEGER,
                signal INTEGER,
                culprit TEXT,
                reason TEXT NOT NULL,
                PRIMARY KEY (run, task, number),
                FOREIGN KEY (run, task) REFERENCES tasks (run, key) ON DELETE CASCADE
            )
            """,
            """
            CREATE TABLE processes (
                run TEXT NOT NULL,
                task TEXT NOT NULL,
                attempt INTEGER NOT NULL,
                name TEXT NOT NULL,
                role TEXT NOT NULL,
                node INTEGER NOT NULL,
                rank INTEGER,
                pid INTEGER,
                started REAL,
                ended REAL,
                exit_code INTEGER,
                signal INTEGER,
                peak_memory INTEGER,
                cpu_seconds REAL,
                by_us INTEGER NOT NULL,
                log_lost INTEGER NOT NULL,
                PRIMARY KEY (run, task, attempt, name),
                FOREIGN KEY (run, task, attempt)
                    REFERENCES attempts (run, task, number) ON DELETE CASCADE
            )
            """,
            """
            CREATE TABLE events (
                id INTEGER PRIMARY KEY,
                run TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
                time REAL NOT NULL,
                kind TEXT NOT NULL,
                body TEXT NOT NULL
            )
            """,
            "CREATE INDEX events_of_run ON events (run, id)",
            # What belongs together over all runs, so that a trend is one walk along an index.
            """
            CREATE TABLE series (
                id INTEGER PRIMARY KEY,
                name TEXT NOT NULL,
                metric TEXT NOT NULL,
                unit TEXT NOT NULL,
                better TEXT NOT NULL,
                case_name TEXT NOT NULL,
                point TEXT NOT NULL,
                UNIQUE (name, metric, unit, case_name, point)
            )
            """,
            "CREATE INDEX series_of_metric ON series (metric)",
            """
            CREATE TABLE samples (
                series INTEGER NOT NULL REFERENCES series (id),
                run_serial INTEGER NOT NULL REFERENCES runs (serial) ON DELETE CASCADE,
                task TEXT NOT NULL,
                attempt INTEGER NOT NULL,
                trial INTEGER NOT NULL,
                value REAL NOT NULL,
                raw TEXT
            )
            """,
            "CREATE INDEX samples_of_series ON samples (series, run_serial, trial)",
            "CREATE INDEX samples_of_run ON samples (run_serial, task, attempt)",
            """
            CREATE TABLE conditions (
                run_serial INTEGER NOT NULL REFERENCES runs (serial) ON DELETE CASCADE,
                task TEXT NOT NULL,
                attempt INTEGER NOT NULL,
                body TEXT NOT NULL,
                PRIMARY KEY (run_serial, task, attempt)
            )
            """,
            """
            CREATE TABLE results (
                run TEXT NOT NULL,
                task TEXT NOT NULL,
                attempt INTEGER NOT NULL,
                position INTEGER NOT NULL,
                name TEXT NOT NULL,
                state TEXT NOT NULL,
                seconds REAL NOT NULL,
                message TEXT NOT NULL,
                PRIMARY KEY (run, task, attempt, position),
                FOREIGN KEY (run, task, attempt)
                    REFERENCES attempts (run, task, number) ON DELETE CASCADE
            )
            """,
        ),
    ),
)


def newest_version() -> int:
    """Give the version that this rankwise works with."""
    return len(STEPS)


def read_version(database: Database) -> int:
    """Give a store's version, 0 for an empty file.

    Raises StoreFailure for a database that is not ours, and for one that is too new.
    """
    # In one statement: another process may make the store between two.
    [(version, application, tables)] = database.rows(
        "SELECT user_version, application_id, (SELECT count(*) FROM sqlite_master)"
        " FROM pragma_user_version, pragma_application_id"
    )
    is_empty = not tables
    if application != _APPLICATION and not (is_empty and version == application == 0):
        raise StoreFailure(
            f"{database.path}: this is the database of another program, not a store of rankwise. "
            "Move it away, or choose another store with --store."
        )
    if version > newest_version():
        raise StoreFailure(
            f"{database.path}: the store has version {version}, and this rankwise knows versions "
            f"up to {newest_version()}. Use rankwise {_needed(database, version)} or newer, or "
            "choose another store with --store."
        )
    return int(version)


def bring_up_to_date(database: Database) -> None:
    """Take the steps that a store lacks, all or none; another process may do so meanwhile."""
    if read_version(database) < newest_version():
        with database.together():
            _take_steps(database)


def _take_steps(database: Database) -> None:
    # Only now it cannot change any more.
    version = read_version(database)
    for number, step in enumerate(STEPS[version:], start=version + 1):
        for statement in step.statements:
            database.change(statement)
        database.change("INSERT INTO versions VALUES (?, ?)", (number, step.since))
    if broken := database.rows("PRAGMA foreign_key_check"):
        raise StoreFailure(
            f"{database.path}: the store cannot be brought from version {version} to "
            f"{newest_version()}: {len(broken)} rows belong to nothing (the first is in table "
            f"{broken[0][0]}). It is as it was; please report this."
        )
    database.change(f"PRAGMA application_id = {_APPLICATION}")
    database.change(f"PRAGMA user_version = {newest_version()}")


def _needed(database: Database, version: int) -> str:
    found = database.row("SELECT since FROM versions WHERE version = ?", (version,))
    return str(found[0]) if found else f"for version {version}"
