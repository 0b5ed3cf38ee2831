"""Transactions, and what SQLite's errors become."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rankwise.errors import StoreFailure
from rankwise.store.database import Database


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database.connect(tmp_path / "test.db", "mode=rwc", patience=0.1)
    opened.change("CREATE TABLE things (name TEXT UNIQUE)")
    yield opened
    opened.close()


@pytest.fixture
def other(database: Database) -> Iterator[Database]:
    opened = Database.connect(database.path, "mode=rw", patience=0.1)
    yield opened
    opened.close()


def add(database: Database, *names: str) -> None:
    with database.together():
        database.change_many("INSERT INTO things VALUES (?)", [(name,) for name in names])


def names(database: Database) -> list[str]:
    return [row[0] for row in database.rows("SELECT name FROM things ORDER BY name")]


def test_what_is_written_together_is_seen_by_others_at_once(
    database: Database, other: Database
) -> None:
    database.rows("PRAGMA journal_mode = WAL")
    with database.together():
        add(database, "a")
        with database.together():
            add(database, "b")
        assert (names(database), names(other)) == (["a", "b"], [])
    assert names(other) == ["a", "b"]


class Surprise(BaseException):
    """Not one that anybody expects."""


def test_an_error_undoes_all_that_was_written_together(database: Database) -> None:
    def go_wrong() -> None:
        with database.together():
            add(database, "a")
            with database.together():
                add(database, "b")
            raise Surprise

    with pytest.raises(Surprise):
        go_wrong()
    assert names(database) == []
    add(database, "c")
    assert names(database) == ["c"]


def test_a_failure_that_is_caught_inside_undoes_all_the_same(database: Database) -> None:
    add(database, "a")

    def overlook_a_failure() -> None:
        with database.together():
            add(database, "b")
            with pytest.raises(StoreFailure, match="UNIQUE"):
                add(database, "c", "a")

    with pytest.raises(StoreFailure, match="none of them was stored"):
        overlook_a_failure()
    assert names(database) == ["a"]


def test_after_a_failure_nothing_more_is_written_together(database: Database) -> None:
    add(database, "a")

    def go_on_after_a_failure() -> None:
        with database.together():
            with pytest.raises(StoreFailure, match="UNIQUE"):
                add(database, "a")
            with pytest.raises(StoreFailure, match="none of them was stored"):
                add(database, "b")

    with pytest.raises(StoreFailure, match="none of them was stored"):
        go_on_after_a_failure()
    add(database, "c")
    assert names(database) == ["a", "c"]


def test_a_full_disk_undoes_the_whole_and_is_told(database: Database) -> None:
    """SQLite's own limit gives the same error as a disk that is full."""
    add(database, "a")
    database.rows("PRAGMA max_page_count = 5")

    def write_much() -> None:
        with database.together():
            add(database, "b")
            add(database, *(f"{number:0500}" for number in range(100)))

    with pytest.raises(StoreFailure) as caught:
        write_much()
    assert str(caught.value) == (
        f"{database.path}: the disk is full. "
        "Free some space and try again; what was stored is kept."
    )
    assert names(database) == ["a"]
    add(database, "b")
    assert names(database) == ["a", "b"]


def test_who_comes_second_waits_no_longer_than_patience_lasts(
    database: Database, other: Database
) -> None:
    with database.together():
        with pytest.raises(StoreFailure, match=r"kept the store locked for 0\.1 s"):
            add(other, "a")
        add(database, "b")
    add(other, "c")
    assert names(other) == ["b", "c"]


def test_a_version_that_changes_meanwhile_stops_writers(
    database: Database, other: Database
) -> None:
    database.expect(0)
    add(database, "a")
    other.change("PRAGMA user_version = 2")
    with pytest.raises(StoreFailure, match="from version 0 to 2 while this one was at work"):
        add(database, "b")
    assert names(database) == ["a"]
    add(other, "c")


def test_a_wrong_statement_is_a_failure_too(database: Database) -> None:
    with pytest.raises(StoreFailure, match="no such table: things2"):
        database.rows("SELECT * FROM things2")


def test_a_file_name_may_hold_what_means_something_in_a_uri(tmp_path: Path) -> None:
    path = tmp_path / "a b?mode=memory#c%20d" / "store.db"
    path.parent.mkdir()
    database = Database.connect(path, "mode=rwc", patience=0.1)
    database.change("CREATE TABLE things (name TEXT)")
    database.close()
    assert path.stat().st_size > 0
