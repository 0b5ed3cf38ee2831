"""Versions of a store, and the way from one to the next."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from rankwise import store
from rankwise.errors import StoreFailure
from rankwise.plan import Task, body_of, task_of
from rankwise.store import schema
from rankwise.store.database import Database
from rankwise.store.rows import RunRow, State
from rankwise.store.store import FILE, Store
from tests.store.children import NEXT_STEP, go, started
from tests.store.invariants import check_store
from tests.store.samples import live, new_run, rich_task, simple_task


@pytest.fixture
def old_run(folder: Path) -> str:
    """Leave a store of version 1 behind, with a run."""
    with Store.open(folder) as store:
        run = new_run(store, "a", "b", name="old")
        live(store, run, "a")
    return run


@pytest.fixture
def the_future(old_run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let rankwise have a step more, after there is an old store."""
    monkeypatch.setattr(schema, "STEPS", (*schema.STEPS, NEXT_STEP))


def ask(folder: Path, query: str) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(folder / FILE)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def test_a_new_store_has_the_newest_version(folder: Path) -> None:
    Store.open(folder).close()
    assert ask(folder, "PRAGMA user_version") == [(len(schema.STEPS),)]
    assert ask(folder, "SELECT version FROM versions") == [
        (number + 1,) for number in range(len(schema.STEPS))
    ]
    assert ask(folder, "PRAGMA journal_mode") == [("wal",)]


@pytest.mark.usefixtures("the_future")
@pytest.mark.parametrize("read_only", [False, True])
def test_an_old_store_is_brought_up_to_date(folder: Path, old_run: str, read_only: bool) -> None:
    with Store.open(folder, read_only=read_only) as store:
        assert store.counts(old_run)[State.PASSED] == 1
        assert len(store.processes(old_run, "a", 1)) == 2
    assert ask(folder, "SELECT id, colour FROM runs") == [(old_run, "red")]
    assert ask(folder, "SELECT * FROM versions ORDER BY version DESC LIMIT 1") == [(2, "7.8.9")]
    assert ask(folder, "PRAGMA user_version") == [(2,)]
    with Store.open(folder) as store:
        live(store, old_run, "b")
    check_store(folder)


@pytest.mark.usefixtures("old_run")
def test_processes_that_bring_a_store_up_to_date_at_once_do_it_once(folder: Path) -> None:
    with started(*[("migrate", folder)] * 6) as children:
        ids = sorted(said.strip() for said in go(children))
    assert ids == [f"new-{number}" for number in range(1, 7)]
    assert ask(folder, "SELECT count(*) FROM versions") == [(2,)]
    assert ask(folder, "SELECT DISTINCT name, colour FROM runs ORDER BY name") == [
        ("new", "grey"),
        ("old", "red"),
    ]


@pytest.mark.parametrize("read_only", [False, True])
def test_a_store_of_the_future_says_which_rankwise_it_needs(
    folder: Path, old_run: str, monkeypatch: pytest.MonkeyPatch, read_only: bool
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(schema, "STEPS", (*schema.STEPS, NEXT_STEP))
        Store.open(folder).close()
    with pytest.raises(StoreFailure) as caught:
        Store.open(folder, read_only=read_only)
    assert str(caught.value) == (
        f"{folder / FILE}: the store has version 2, and this rankwise knows versions up to 1. "
        "Use rankwise 7.8.9 or newer, or choose another store with --store."
    )
    assert ask(folder, "SELECT id FROM runs") == [(old_run,)]


def test_who_has_an_old_store_open_stops_when_it_becomes_a_new_one(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run(store)
    monkeypatch.setattr(schema, "STEPS", (*schema.STEPS, NEXT_STEP))
    Store.open(folder).close()
    with pytest.raises(StoreFailure, match="Start again with the newer one"):
        store.run_started(run, now=11.0)


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("CREATE TABLE runs (again TEXT)", "already exists"),
        (
            "INSERT INTO events (run, time, kind, body) VALUES ('no-1', 1, 'x', '{}')",
            "1 rows belong to nothing .* table events",
        ),
    ],
    ids=["it fails", "it leaves rows that belong to nothing"],
)
def test_a_step_that_goes_wrong_leaves_the_store_as_it_was(
    folder: Path,
    old_run: str,
    monkeypatch: pytest.MonkeyPatch,
    statement: str,
    said: str,
) -> None:
    file = folder / "bad.sql"
    file.write_text(f"{NEXT_STEP.file.read_text()}\n{statement};\n")
    bad = schema.Step(since="8.0.0", file=file)
    with monkeypatch.context() as patch:
        patch.setattr(schema, "STEPS", (*schema.STEPS, bad))
        with pytest.raises(StoreFailure, match=said):
            Store.open(folder)
    assert ask(folder, "PRAGMA user_version") == [(1,)]
    with Store.open(folder) as store:
        live(store, old_run, "b")
    check_store(folder)


def test_a_step_may_put_a_new_table_in_the_place_of_one_that_others_refer_to(
    folder: Path, old_run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = ", ".join(str(row[1]) for row in ask(folder, "PRAGMA table_info(attempts)"))
    (table,) = ask(folder, "SELECT sql FROM sqlite_master WHERE name = 'attempts'")
    statements = (
        str(table[0]).replace("attempts", "new_attempts", 1),
        f"INSERT INTO new_attempts ({columns}) SELECT {columns} FROM attempts",
        "DROP TABLE attempts",
        "ALTER TABLE new_attempts RENAME TO attempts",
    )
    file = folder / "new_table.sql"
    file.write_text("\n\n".join(statements))
    step = schema.Step(since="8.0.0", file=file)
    monkeypatch.setattr(schema, "STEPS", (*schema.STEPS, step))
    with Store.open(folder) as store:
        assert len(store.attempts(old_run)) == 1
        assert len(store.processes(old_run, "a", 1)) == 2
        live(store, old_run, "b")
    check_store(folder)


def test_a_store_that_is_made_while_it_is_looked_at_is_ours(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process makes it after the first or the second question: the next one is asked when
    no other process can write any more."""
    ask_database = Database.rows
    for asked in (1, 2):
        place, countdown = folder / str(asked), [asked]

        def rows(
            database: Database,
            *arguments: Any,
            place: Path = place,
            countdown: list[int] = countdown,
        ) -> Any:
            found = ask_database(database, *arguments)
            countdown[0] -= 1
            if countdown[0] == 0:
                with started(("create_runs", place, "other", 1)) as children:
                    go(children)
            return found

        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(Database, "rows", rows)
            Store.open(place).close()
        assert countdown[0] <= 0
        check_store(place)


def test_the_database_of_another_program_is_not_touched(folder: Path) -> None:
    folder.mkdir(parents=True)
    connection = sqlite3.connect(folder / FILE)
    connection.execute("CREATE TABLE recipes (name TEXT)")
    connection.close()
    before = (folder / FILE).read_bytes()
    for read_only in (False, True):
        with pytest.raises(StoreFailure, match=r"store\.db: this is the database of another prog"):
            Store.open(folder, read_only=read_only)
    assert (folder / FILE).read_bytes() == before


# Tasks as JSON

tasks = pytest.mark.parametrize("task", [simple_task("a"), rich_task("b")], ids=["simple", "rich"])


@tasks
def test_a_task_comes_back_as_it_was(task: Task) -> None:
    assert task_of(body_of(task)) == task


@tasks
def test_a_body_is_what_the_plan_calls_plain_data(task: Task) -> None:
    assert json.loads(body_of(task)) == json.loads(json.dumps(asdict(task)))


# The states


def test_green_is_what_passed_or_was_not_needed() -> None:
    green = [state for state in State if state.is_green]
    assert green == [State.PASSED, State.SKIPPED]


def test_what_waits_or_runs_is_not_over() -> None:
    open_ones = [state for state in State if not state.is_over]
    assert open_ones == [State.QUEUED, State.SUBMITTING, State.RUNNING]


def test_states_read_as_words() -> None:
    assert f"{State.TIMED_OUT}, {State.NOT_RUN}" == "timed out, not run"


def test_who_needs_only_the_states_does_not_load_a_database() -> None:
    program = (
        "import sys; from rankwise.store import RunRow, State; print('sqlite3' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "False"


# The names that others use


def test_every_public_name_is_there() -> None:
    assert {name: getattr(store, name).__name__ for name in store.__all__} == {
        name: name for name in sorted(store.__all__)
    }
    assert (store.Store, store.State, store.RunRow) == (Store, State, RunRow)


def test_other_names_are_not() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Shop'"):
        store.Shop  # type: ignore[attr-defined]  # noqa: B018  # that is what is tested
