"""Queries for those who look at a store a page at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rankwise.plan import Plan, Process, Task
from rankwise.store import Outcome, ResultRow, State, Store
from rankwise.store.queries import RESULT_ORDERS, TASK_ORDERS, RunFilter, TaskFilter

ALL = TaskFilter()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path) as opened:
        yield opened


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
    assert found == ([("a", State.PASSED, State.FAILED)], 1)
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
