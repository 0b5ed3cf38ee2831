"""Transactions, and what SQLite's errors become."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankwise.errors import StoreFailure
from rankwise.store import schema
from rankwise.store.database import Database
from rankwise.store.rows import State
from rankwise.store.store import FILE, Store
from tests.store.children import NEXT_STEP, run_child
from tests.store.invariants import check_store
from tests.store.samples import new_run


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database(tmp_path / "test.db", "mode=rwc", patience=0.1)
    opened.change("CREATE TABLE things (name TEXT UNIQUE)")
    yield opened
    opened.close()


@pytest.fixture
def other(database: Database) -> Iterator[Database]:
    opened = Database(database.path, "mode=rw", patience=0.1)
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
    database = Database(path, "mode=rwc", patience=0.1)
    database.change("CREATE TABLE things (name TEXT)")
    database.close()
    assert path.stat().st_size > 0


# Stores that cannot be opened, read or written: what is wrong, where, and what helps


def failure(folder: Path, *, read_only: bool = False) -> str:
    with pytest.raises(StoreFailure) as caught:
        Store.open(folder, read_only=read_only, patience=0.2)
    return str(caught.value)


@pytest.fixture
def closed_later(folder: Path) -> Iterator[Path]:
    """Return a store's folder whose rights a test may take away."""
    folder.parent.mkdir()
    yield folder
    for path in (folder.parent, folder):
        if path.exists():
            path.chmod(0o755)


# Missing


def test_a_missing_folder_is_made(folder: Path) -> None:
    with Store.open(folder) as store:
        assert store.runs() == []
    assert (folder / FILE).is_file()


@pytest.mark.parametrize("has_folder", [False, True])
def test_who_only_reads_makes_no_store(folder: Path, has_folder: bool) -> None:
    if has_folder:
        folder.mkdir(parents=True)
    message = failure(folder, read_only=True)
    assert message.startswith(f"{folder / FILE}: there is no store. `rankwise run FILE` makes one")
    assert "--store" in message
    assert folder.exists() == has_folder
    assert not (folder / FILE).exists()


def test_an_empty_file_becomes_a_store(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / FILE).touch()
    with Store.open(folder, read_only=True) as store:
        assert store.runs() == []


def test_a_relative_folder_is_found_when_the_working_folder_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Store.open(Path(".rankwise")) as store:
        monkeypatch.chdir("/")
        assert store.folder == tmp_path / ".rankwise"
        new_run(store)


# In the way


@pytest.mark.parametrize("read_only", [False, True])
def test_a_file_that_is_no_database_is_named_and_not_touched(folder: Path, read_only: bool) -> None:
    folder.mkdir(parents=True)
    text = "These are my notes.\n" * 100
    (folder / FILE).write_text(text)
    assert failure(folder, read_only=read_only) == (
        f"{folder / FILE}: this file is not a store of rankwise, nor any database. "
        "Move it away, or choose another store with --store."
    )
    assert (folder / FILE).read_text() == text


@pytest.mark.parametrize("read_only", [False, True])
def test_a_damaged_store_is_named(folder: Path, read_only: bool) -> None:
    with Store.open(folder) as store:
        new_run(store, *map(str, range(500)))
    data = bytearray((folder / FILE).read_bytes())
    data[4096:] = b"\xa5" * (len(data) - 4096)
    (folder / FILE).write_bytes(data)
    with pytest.raises(StoreFailure) as caught, Store.open(folder, read_only=read_only) as store:
        store.run("job-1")
    message = str(caught.value)
    assert message.startswith(f"{folder / FILE}: the store is damaged")
    assert f"{FILE}-wal" in message
    assert str(folder / "runs") in message


def test_a_folder_in_the_place_of_the_file_is_named(folder: Path) -> None:
    (folder / FILE).mkdir(parents=True)
    for read_only in (False, True):
        message = failure(folder, read_only=read_only)
        assert message.startswith(f"{folder / FILE}: this is a folder, in the place of the store's")


def test_a_file_in_the_place_of_the_folder_is_named(folder: Path) -> None:
    folder.parent.mkdir()
    folder.write_text("")
    message = failure(folder)
    assert message.startswith(f"{folder / FILE}: the store's folder cannot be used: file exists")
    assert f"({folder})" in message
    assert "there is no store" in failure(folder, read_only=True)
    deeper = failure(folder / "deeper")
    assert "not a directory" in deeper
    assert "Make it a folder that you can write" in deeper


# Rights, which bind a process that is not root


def fill(folder: Path) -> None:
    with Store.open(folder) as store:
        new_run(store)


def close_to_writers(folder: Path) -> None:
    for path in folder.iterdir():
        path.chmod(0o444)
    folder.chmod(0o555)


def test_a_folder_without_rights_is_named(closed_later: Path) -> None:
    fill(closed_later)
    closed_later.chmod(0o000)
    for how in ("rw", "ro"):
        said = run_child("open_without_rights", closed_later, how)
        assert said.startswith(f"StoreFailure {closed_later / FILE}: the store")
        assert "--store" in said


def test_a_folder_that_cannot_be_made_is_named(closed_later: Path) -> None:
    closed_later.parent.chmod(0o555)
    said = run_child("open_without_rights", closed_later, "rw")
    assert said.startswith(
        f"StoreFailure {closed_later / FILE}: the store's folder cannot be used: permission denied"
    )


def test_a_store_that_may_not_be_written_is_named_at_once(closed_later: Path) -> None:
    fill(closed_later)
    close_to_writers(closed_later)
    said = run_child("open_without_rights", closed_later, "rw")
    assert said.startswith(f"StoreFailure {closed_later / FILE}: the store cannot be written")
    assert f"Get the right to write {closed_later} " in said


def test_a_file_that_may_not_be_read_is_named(closed_later: Path) -> None:
    fill(closed_later)
    (closed_later / FILE).chmod(0o000)
    for how in ("rw", "ro"):
        said = run_child("open_without_rights", closed_later, how)
        assert said.startswith(f"StoreFailure {closed_later / FILE}: the store cannot be")


def test_a_store_that_may_not_be_written_can_be_read(closed_later: Path) -> None:
    fill(closed_later)
    close_to_writers(closed_later)
    assert run_child("open_without_rights", closed_later, "ro") == "['job-1']"
    assert [path.name for path in closed_later.iterdir()] == [FILE]


def test_who_may_only_read_sees_what_a_writer_has_just_written(closed_later: Path) -> None:
    with Store.open(closed_later) as store:
        new_run(store)
        close_to_writers(closed_later)
        assert run_child("open_without_rights", closed_later, "ro") == "['job-1']"


def test_an_old_store_that_may_not_be_written_says_what_is_to_be_done(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(folder)
    monkeypatch.setattr(schema, "STEPS", (*schema.STEPS, NEXT_STEP))
    monkeypatch.setattr(os, "access", lambda *_: False)
    message = failure(folder, read_only=True)
    assert "the store cannot be written" in message
    assert "It has version 1, and has to be brought to 2" in message


def test_a_store_that_was_opened_to_read_is_not_written(store: Store, folder: Path) -> None:
    run = new_run(store)
    with Store.open(folder, read_only=True) as viewer:
        with pytest.raises(StoreFailure, match="the store cannot be written"):
            viewer.run_started(run, now=11.0)
        assert viewer.run(run).state is State.QUEUED


# Space


@pytest.mark.parametrize("limit", [300_000, 400_000, 1_000_000])
def test_a_disk_without_space_is_named_and_nothing_is_half_stored(folder: Path, limit: int) -> None:
    """The kernel's limit on the size of files needs no rights, and binds root, too."""
    said = run_child("reach_the_size_limit", folder, limit).splitlines()
    expected = f"StoreFailure {folder / FILE}: the store cannot be read or written (SQLITE_IOERR"
    assert [line[: len(expected)] for line in said[:2]] == [expected] * 2
    assert "The disk may be full" in said[0]
    assert said[2] == "big-1", "it goes on when there is space again"
    check_store(folder)
