"""What can be asked of a store."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwise.errors import InputError
from rankwise.plan import Plan
from rankwise.store import queries
from rankwise.store.rows import State
from rankwise.store.store import Store
from tests.store.samples import begin, live, new_run, plan_of, rich_task

# Runs


def test_runs_come_newest_first_and_no_more_than_asked_for(store: Store) -> None:
    ids = [new_run(store, name=name) for name in ("b", "a", "b", "c")]
    assert [run.id for run in store.runs()] == ids[::-1]
    assert [run.id for run in store.runs(2)] == ["c-1", "b-2"]
    last = store.last_run()
    assert last is not None
    assert last.id == "c-1"


def test_runs_are_chosen_by_name(store: Store) -> None:
    for name in "abaa":
        store.create_run(plan_of("t", name=name), "", now=1.0)
    assert [run.id for run in store.runs(name="a")] == ["a-3", "a-2", "a-1"]
    assert store.runs(name="z") == []


def test_a_store_without_runs_has_no_last_one(store: Store) -> None:
    assert store.last_run() is None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("train-1", "train-1"),
        ("train", "train-2"),
        ("prob", "probe-1"),
        ("probe-1", "probe-1"),
        ("x", "x-1-1"),
        ("x-1", "x-1-1"),
    ],
)
def test_a_run_is_found_by_its_id_its_name_or_how_its_id_begins(
    store: Store, text: str, found: str
) -> None:
    for name in ("train", "train", "probe", "x-1"):
        new_run(store, name=name)
    assert store.find_run(text).id == found


@pytest.mark.parametrize("text", ["train-", "trai", "%", "t*", ""])
def test_what_no_run_or_more_than_one_begins_with_is_refused(store: Store, text: str) -> None:
    for _ in range(2):
        new_run(store, name="train")
    with pytest.raises(InputError):
        store.find_run(text)


def test_a_beginning_of_several_names_them(store: Store) -> None:
    for _ in range(5):
        new_run(store, name="train")
    with pytest.raises(
        InputError, match=r"'tra' may be any of train-5, train-4, train-3, …\. Give"
    ):
        store.find_run("tra")


def test_a_wrong_id_gets_the_nearest_ones(store: Store) -> None:
    new_run(store, name="train")
    with pytest.raises(InputError, match=r"store\.db: .*no run 'trayn-1'. Did you mean train-1\?"):
        store.find_run("trayn-1")
    for ask in (store.run, store.spec_text, store.wanted):
        with pytest.raises(InputError, match=r"Did you mean train-1\?"):
            ask("trayn-1")


def test_where_there_are_no_runs_a_wrong_id_gets_a_way_to_make_one(store: Store) -> None:
    with pytest.raises(InputError, match="There are none: `rankwise run FILE` makes one"):
        store.find_run("a")


# Tasks


def test_a_task_comes_back_as_it_was_planned(store: Store) -> None:
    plan = Plan(name="job", kind="MpiJob", tasks=(rich_task("a"), rich_task("b")))
    run = store.create_run(plan, "", now=1.0)
    assert store.task(run, "b") == rich_task("b")
    assert [row.body for row in store.task_rows(run, bodies=True)] == list(plan.tasks)
    assert [row.body for row in store.task_rows(run)] == [None, None]


def test_a_wrong_key_gets_the_nearest_ones(store: Store) -> None:
    run = new_run(store, "train", "test")
    for ask in (store.task, store.task_row):
        with pytest.raises(InputError, match=r"job-1 has no task 'trayn'. Did you mean train\?"):
            ask(run, "trayn")
    with pytest.raises(InputError, match="no run 'job-2'"):
        store.task("job-2", "train")


def test_tasks_are_given_by_their_states_in_the_order_of_the_plan(store: Store) -> None:
    run = new_run(store, *"abcde")
    live(store, run, "d")
    live(store, run, "b")
    begin(store, run, "c")
    new_run(store, *"abcde")

    def keys(*states: State) -> list[str]:
        return [task.key for task in store.tasks_in(run, states)]

    assert keys(State.PASSED) == ["b", "d"]
    assert keys(State.QUEUED, State.SUBMITTING) == ["a", "c", "e"]
    assert keys(State.FAILED) == keys() == []
    bodies = [task.body for task in store.tasks_in(run, [State.PASSED], bodies=True)]
    assert bodies == [store.task(run, "b"), store.task(run, "d")]


@pytest.mark.parametrize("count", [0, 3, 6, 7])
def test_tasks_of_many_pages_come_all_and_once(
    store: Store, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "_PAGE", 3)
    keys = [f"t{number}" for number in range(count)]
    run = store.create_run(plan_of(*keys), "", now=1.0)
    assert [task.key for task in store.task_rows(run)] == keys
    assert [task.key for task in store.tasks_in(run, [State.QUEUED])] == keys


def test_tasks_may_be_changed_while_they_are_given(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "_PAGE", 3)
    keys = [f"t{number}" for number in range(10)]
    run = new_run(store, *keys)
    seen = []
    for task in store.tasks_in(run, [State.QUEUED]):
        seen.append(task.key)
        live(store, run, task.key)
    assert seen == keys


def test_a_reader_in_the_middle_of_the_tasks_keeps_nobody_from_writing(
    store: Store, folder: Path
) -> None:
    run = new_run(store, *"abc")
    with Store.open(folder, read_only=True) as viewer:
        rows = viewer.task_rows(run)
        next(rows)
        live(store, run, "a")
        assert viewer.counts(run)[State.PASSED] == 1
        assert len(list(rows)) == 2


def test_tasks_are_counted_by_state(store: Store) -> None:
    run = new_run(store, *"abcd")
    live(store, run, "a")
    begin(store, run, "b")
    counts = store.counts(run)
    assert list(counts) == list(State)
    assert {state: count for state, count in counts.items() if count} == {
        State.QUEUED: 2,
        State.SUBMITTING: 1,
        State.PASSED: 1,
    }


def test_counting_and_finding_never_look_at_every_row(store: Store) -> None:
    """A plan of 10,000 tasks is counted in the index alone, and nothing is found by a search."""
    new_run(store)
    for query, way in (
        ("SELECT state, count(*) FROM tasks WHERE run = ? GROUP BY state", "COVERING INDEX"),
        ("SELECT id FROM events WHERE run = ? AND id > 5", "USING COVERING INDEX"),
        ("SELECT * FROM runs WHERE id = ?", "USING INDEX"),
        ("SELECT * FROM runs WHERE id >= ? AND id < 'b'", "USING INDEX"),
        ("SELECT * FROM tasks WHERE run = ? AND state IN ('a') AND position > 5", "position>?"),
        ("SELECT * FROM attempts WHERE run = ? AND task = 'a'", "USING INDEX"),
    ):
        plan = store._database.rows(f"EXPLAIN QUERY PLAN {query}", ("job-1",))
        assert [way in str(row[-1]) for row in plan] == [True], (query, plan)


# Attempts and events


def test_attempts_come_in_the_order_in_which_they_began(store: Store) -> None:
    run = new_run(store, *"ab")
    live(store, run, "b")
    live(store, run, "a")
    other = new_run(store, "b")
    live(store, other, "b")
    assert [attempt.task for attempt in store.attempts(run)] == ["b", "a"]
    assert [attempt.task for attempt in store.attempts(run, "a")] == ["a"]
    assert store.attempts(run, "z") == []


def test_a_follower_gets_each_event_once(store: Store) -> None:
    run, other = new_run(store), new_run(store)
    seen = store.events_after(run)
    store.add_event(other, "noise", {}, now=1.0)
    for number in range(5):
        store.add_event(run, f"event {number}", {}, now=1.0)
    first = store.events_after(run, seen[-1].id, limit=3)
    rest = store.events_after(run, first[-1].id)
    kinds = [event.kind for event in (*first, *rest)]
    assert kinds == [f"event {number}" for number in range(5)]
    assert store.events_after(run, rest[-1].id) == []
