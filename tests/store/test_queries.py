"""What can be asked of a store."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwise.errors import InputError
from rankwise.plan import Plan, Process, Task
from rankwise.store import Outcome, ResultRow, State, Store, queries
from rankwise.store.queries import RESULT_ORDERS, TASK_ORDERS, RunFilter, TaskFilter
from rankwise.wording import name_nearest
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


def test_a_reader_in_the_middle_of_the_tasks_does_not_block_writers(
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


# Names that a person may have meant


@pytest.mark.parametrize(
    ("text", "names", "said"),
    [
        ("trayn-1", ["train-1", "test-9"], "Did you mean train-1?"),
        ("train", ["train-1", "train-2"], "Did you mean train-2 or train-1?"),
        ("xyz", ["train-1"], "There is train-1."),
        ("xyz", ["a", "b", "c", "d"], "There are a, b, c, …."),
    ],
)
def test_the_nearest_names_are_given_or_else_the_first(
    text: str, names: list[str], said: str
) -> None:
    assert name_nearest(text, names) == said


# Queries of readers that take a page at a time

ALL = TaskFilter()


def make(store: Store, name: str, *tasks: Task, **more: str) -> str:
    tags = {key.replace("_", "."): value for key, value in more.items()}
    plan = Plan(name=name, kind="Suite", tasks=tasks, source=f"/docs/{name}.yaml", tags=tags)
    return store.create_run(plan, "", now=1.0)


def task(key: str, *needs: str) -> Task:
    process = Process(name="worker-0", role="worker", command="true")
    return Task(key=key, processes=(process,), needs=needs)


def run_task(store: Store, run: str, key: str, seconds: float, state: State) -> None:
    store.begin_attempt(run, key, marker=f"{run}/{key}", folder=Path("x"), now=10.0)
    store.attempt_heard(run, key, 1, has_started=True, now=10.0)
    store.attempt_ended(run, key, 1, Outcome(state=state, ended=10.0 + seconds), ())
    store.task_over(run, key, state, reason=f"it is {state}", now=10.0 + seconds)


def runs(store: Store, wanted: RunFilter, **more: int) -> list[str]:
    found = store.run_page(wanted, **{"limit": 10, **more})
    return [run.id for run in found.rows]


def test_runs_are_found_by_all_that_is_asked_for(store: Store) -> None:
    first = make(store, "Ring", task("a"), git_branch="main", note="1=2")
    second = make(store, "halo", task("a"), git_branch="side")
    store.want_cancel(second, now=2.0)
    assert runs(store, RunFilter()) == [second, first]
    assert (
        runs(store, RunFilter(words="rIng")) == runs(store, RunFilter(words="ring docs")) == [first]
    )
    assert runs(store, RunFilter(words="100%")) == runs(store, RunFilter(words="_")) == []
    assert runs(store, RunFilter(tag="git.branch")) == [second, first]
    assert runs(store, RunFilter(tag="git.branch=side")) == [second]
    assert runs(store, RunFilter(tag=" note = 1=2 ")) == [first]
    assert runs(store, RunFilter(tag="git.branch=")) == runs(store, RunFilter(tag='x"y')) == []
    assert runs(store, RunFilter(kind="Suite", states=(State.QUEUED,))) == [second, first]
    assert runs(store, RunFilter(states=(State.PASSED,))) == runs(store, RunFilter(kind="x")) == []
    assert runs(store, RunFilter(), limit=1, offset=1) == [first]
    assert store.run_page(RunFilter(words="ring"), limit=0).total == 1
    assert store.run_kinds() == ["Suite"]
    assert [run.id for run in store.open_runs()] == [second, first]


def test_tasks_come_in_every_order(store: Store) -> None:
    run = make(store, "job", task("b"), task("a"), task("d"), task("c"))
    run_task(store, run, "b", 1.0, State.PASSED)
    run_task(store, run, "a", 3.0, State.FAILED)
    store.begin_attempt(run, "d", marker="d", folder=Path("x"), now=5.0)
    store.attempt_heard(run, "d", 1, has_started=True, now=15.0)
    found = {
        order: "".join(
            row.key for row in store.task_page(run, ALL, order=order, now=17.0, limit=9).rows
        )
        for order in TASK_ORDERS
    }
    assert found == {
        "plan": "badc",
        "name": "abcd",
        "outcome": "abcd",
        "longest": "adbc",
        "shortest": "bdac",
        "newest": "dabc",
    }
    red = TaskFilter(states=(State.FAILED,), words="IT is")
    assert [row.key for row in store.task_page(run, red, order="plan", now=0, limit=9).rows] == [
        "a"
    ]
    assert store.task_page(run, red, order="plan", now=0, limit=0).total == 1
    assert store.task_page(run, ALL, order="plan", now=0, limit=1, total=77).total == 77
    rest = store.task_page(run, ALL, order="plan", now=0, limit=2, offset=1)
    assert ([row.key for row in rest.rows], rest.total) == (["a", "d"], 4)
    rest = store.task_page(run, TaskFilter(words="it"), order="plan", now=0, limit=2, offset=1)
    assert ([row.key for row in rest.rows], rest.total) == (["a"], 2)
    with pytest.raises(KeyError):
        store.task_page(run, ALL, order="position; DROP TABLE tasks", now=0, limit=9)


def test_single_tests_are_those_of_the_last_attempt(store: Store) -> None:
    run = make(store, "job", task("a"))
    store.begin_attempt(run, "a", marker="1", folder=Path("x"), now=1.0)
    old = [ResultRow(name="old", state=State.PASSED)]
    store.add_results(run, "a", 1, old)
    store.attempt_ended(run, "a", 1, Outcome(state=State.FAILED, ended=2.0), ())
    store.begin_attempt(run, "a", marker="2", folder=Path("x"), now=3.0)
    new = [
        ResultRow(name="two", state=State.PASSED, seconds=2.0),
        ResultRow(name="one", state=State.FAILED, seconds=1.0, message="oh"),
    ]
    store.add_results(run, "a", 2, new)
    orders = {
        order: [one.name for _, one in store.result_page(run, ALL, order=order, limit=9).rows]
        for order in RESULT_ORDERS
    }
    assert orders == {
        "plan": ["two", "one"],
        "name": ["one", "two"],
        "outcome": ["one", "two"],
        "longest": ["two", "one"],
        "shortest": ["one", "two"],
    }
    assert store.result_counts(run) == {State.PASSED: 1, State.FAILED: 1}
    wanted = TaskFilter(states=(State.FAILED,), words="a ON")
    found = store.result_page(run, wanted, order="plan", limit=9)
    assert found == ([("a", new[1])], 1)


def test_what_needs_what_is_read_without_the_rest(store: Store) -> None:
    run = make(store, "job", task("a"), task("b", "a"), task("c", "a", "b"))
    assert [(node.key, node.needs) for node in store.nodes(run, limit=9)] == [
        ("a", ()),
        ("b", ("a",)),
        ("c", ("a", "b")),
    ]
    assert len(store.nodes(run, limit=2)) == 2
    assert store.has_needs(run)
    assert not store.has_needs(make(store, "other", task("a"), task("b")))


def test_runs_differ_in_what_came_out_otherwise(store: Store) -> None:
    first = make(store, "job", task("a"), task("b"), task("c"))
    second = make(store, "job", task("a"), task("b"), task("d"))
    for run, state in ((first, State.PASSED), (second, State.FAILED)):
        run_task(store, run, "a", 1.0, state)
        run_task(store, run, "b", 1.0, State.PASSED)
    found = store.differences(first, second, limit=9)
    assert found == ([("a", State.PASSED, State.FAILED, 1.0, 1.0)], 1)
    assert store.differences(first, second, limit=0).total == 1


def test_news_are_noticed_by_others(store: Store) -> None:
    first, second = make(store, "one", task("a")), make(store, "two", task("a"))
    with Store.open(store.folder, read_only=True) as reader:
        version, last = reader.data_version(), reader.last_event()
        assert reader.data_version() == version
        assert reader.last_event(first) < reader.last_event(second) == last
        assert reader.runs_with_news(last) == set()
        store.want_cancel(first, now=2.0)
        assert reader.data_version() != version
        assert reader.runs_with_news(last) == {first}
        assert reader.last_event("nothing") == 0
