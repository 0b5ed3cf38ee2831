"""Selection of some tasks of a plan."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwise.errors import InputError
from rankwise.plan import REPEATED, Process, Task
from rankwise.planning.selection import Selection, select


def task(key: str, *needs: str) -> Task:
    process = Process(name="worker-0", role="worker", command="true")
    return Task(key=key, processes=(process,), needs=needs)


TASKS = [task("build"), task("test-a", "build"), task("test-b", "build"), task("other")]


def keys(wanted: Selection) -> list[str]:
    return [one.key for one in select(TASKS, wanted)[0]]


def test_all_are_wanted_if_nothing_is_said() -> None:
    assert select(TASKS, Selection()) == (TASKS, [])


@pytest.mark.parametrize(
    ("only", "wanted"),
    [
        (("other",), ["other"]),
        (("test-b",), ["build", "test-b"]),
        (("test-*",), ["build", "test-a", "test-b"]),
        (("other", "build"), ["build", "other"]),
    ],
)
def test_some_are_named_and_have_what_they_need(only: tuple[str, ...], wanted: list[str]) -> None:
    assert keys(Selection(only=only)) == wanted


def test_a_name_that_means_nothing_is_a_mistake() -> None:
    with pytest.raises(InputError, match=r"--only test_a: .* did you mean `test-a`"):
        keys(Selection(only=("test_a",)))
    with pytest.raises(InputError, match="there are build, test-a, test-b and other"):
        keys(Selection(only=("zzzzzz",)))


def test_those_that_failed_are_run_again() -> None:
    assert keys(Selection(failed={"test-b", "gone"})) == ["build", "test-b"]


def test_each_is_run_many_times_with_what_it_needs() -> None:
    again, _ = select(TASKS[:2], Selection(repeat=2))
    assert [(one.key, one.needs) for one in again] == [
        ("build.1", ()),
        ("build.2", ()),
        ("test-a.1", ("build.1",)),
        ("test-a.2", ("build.2",)),
    ]
    assert {one.tags[REPEATED] for one in again} == {"build", "test-a"}
    heir = dataclasses.replace(TASKS[1], inherits=("build",))
    again, _ = select([TASKS[0], heir], Selection(repeat=2))
    assert [one.inherits for one in again[2:]] == [("build.1",), ("build.2",)]


def test_a_failure_may_be_enough() -> None:
    assert all(one.ends_run for one in select(TASKS, Selection(fail_fast=True))[0])


@given(
    count=st.integers(1, 7),
    seconds=st.lists(st.floats(0, 1000), max_size=12),
    links=st.sets(st.tuples(st.integers(0, 11), st.integers(0, 11))),
)
def test_shards_are_all_of_it_and_share_nothing(
    count: int, seconds: list[float], links: set[tuple[int, int]]
) -> None:
    size = len(seconds)
    needs = {at: [f"t{low}" for low, high in links if low < high == at] for at in range(size)}
    tasks = [task(f"t{at}", *needs[at]) for at in range(size)]
    known = {f"t{at}": took for at, took in enumerate(seconds) if at % 3}
    shares = [
        select(tasks, Selection(shard=(number, count), seconds=known))
        for number in range(1, count + 1)
    ]
    found = [one.key for share, _ in shares for one in share]
    assert sorted(found) == sorted(one.key for one in tasks)
    for share, _ in shares:
        own = {one.key for one in share}
        assert all(set(one.needs) <= own for one in share)
    assert len({notes[0].partition("split ")[2] for _, notes in shares}) == 1


def test_shards_take_about_as_long() -> None:
    tasks = [task(f"t{at}") for at in range(6)]
    seconds = {"t0": 60.0, "t1": 30.0, "t2": 30.0, "t3": 20.0, "t4": 20.0, "t5": 20.0}
    shares = [
        {one.key for one in select(tasks, Selection(shard=(at, 3), seconds=seconds))[0]}
        for at in (1, 2, 3)
    ]
    assert sorted(sum(seconds[key] for key in share) for share in shares) == [50, 60, 70]


def test_a_shard_has_not_only_what_does_not_run_unless_nothing_does() -> None:
    idle = [dataclasses.replace(task(f"i{at}"), skip="too slow", is_optional=True) for at in (1, 2)]
    tasks = [*idle, task("a"), task("b")]
    shares = [[one.key for one in select(tasks, Selection(shard=(n, 3)))[0]] for n in (1, 2, 3)]
    assert shares == [["i1", "i2", "a"], ["b"], []]


def test_without_times_shards_have_the_same_number() -> None:
    tasks = [task(f"t{at}") for at in range(10)]
    sizes = [len(select(tasks, Selection(shard=(at, 5)))[0]) for at in range(1, 6)]
    assert sizes == [2] * 5


def test_what_failed_and_is_not_selected_is_a_mistake_and_not_an_empty_run() -> None:
    with pytest.raises(InputError, match=r"--failed: none of the selected tasks .* gone"):
        keys(Selection(failed={"gone"}))
    with pytest.raises(InputError, match=r"--failed: .* test-b"):
        keys(Selection(only=("other",), failed={"test-b"}))
