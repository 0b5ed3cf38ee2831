"""Which task is next."""

from __future__ import annotations

import random
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from rankwise.engine.queue import Hopeless, Queue, Waiting, fits
from rankwise.plan import Resources, When

PLENTY = {"local": Resources(cores=1000, memory=2**40, gpus=1000)}


def waiting(key: str, *needs: str, cores: float = 1, when: When = "passed") -> Waiting:
    return Waiting(key=key, needs=needs, when=when, claim=Resources(cores=cores))


def keys(queue: Queue, cores: float = 1000) -> list[str]:
    """Take what can be taken now."""
    taken = []
    free = {"local": Resources(cores=cores)}
    while (task := queue.take(free)) is not None:
        taken.append(task.key)
        free = {"local": free["local"] - task.claim}
    return taken


def test_tasks_are_given_away_in_their_order() -> None:
    queue = Queue([waiting("b"), waiting("a"), waiting("c")])
    assert keys(queue) == ["b", "a", "c"]
    assert not queue


def test_a_task_waits_for_all_that_it_needs() -> None:
    queue = Queue([waiting("last", "one", "two"), waiting("one"), waiting("two")])
    assert keys(queue) == ["one", "two"]
    queue.passed("one")
    assert keys(queue) == []
    queue.passed("two")
    assert keys(queue) == ["last"]


def test_what_has_passed_before_need_not_be_waited_for() -> None:
    queue = Queue([waiting("last", "one", "two"), waiting("two")], passed=["one"])
    assert keys(queue) == ["two"]
    queue.passed("two")
    assert keys(queue) == ["last"]


def test_what_does_not_fit_lets_others_go_first() -> None:
    queue = Queue([waiting("big", cores=3), waiting("small"), waiting("smaller", cores=0.5)])
    assert keys(queue, cores=2) == ["small", "smaller"]
    assert keys(queue, cores=3) == ["big"]


def test_a_failure_takes_everything_with_it_that_would_have_come_after() -> None:
    queue = Queue(
        [waiting("a"), waiting("b", "a"), waiting("c", "b"), waiting("d"), waiting("e", "d", "b")]
    )
    assert keys(queue) == ["a", "d"]
    assert queue.failed("a", "failed") == [
        Hopeless(key="b", reason="needs a, which failed"),
        Hopeless(key="c", reason="needs b, which was not run"),
        Hopeless(key="e", reason="needs b, which was not run"),
    ]
    assert not queue


def test_a_task_that_was_put_back_has_its_old_place() -> None:
    queue = Queue([waiting("a"), waiting("b"), waiting("c")])
    first = queue.take(PLENTY)
    assert first is not None
    queue.put_back(first)
    assert keys(queue) == ["a", "b", "c"]


def test_everything_can_be_given_up() -> None:
    queue = Queue([waiting("a"), waiting("b", "a")])
    assert [one.key for one in queue.give_up_all("cancelled")] == ["a", "b"]
    assert not queue
    assert queue.take(PLENTY) is None


def test_the_first_that_could_start_is_found_even_if_it_does_not_fit() -> None:
    queue = Queue([waiting("b", "a"), waiting("a", cores=8), waiting("c", cores=4)])
    found = [queue.take_any(), queue.take_any(), queue.take_any()]
    assert [one and one.key for one in found] == ["a", "c", None]


def test_of_what_is_not_claimed_there_is_always_enough() -> None:
    assert fits(Resources(), Resources())
    assert fits(Resources(cores=1), Resources(cores=1, gpus=-2))
    assert not fits(Resources(gpus=1), Resources(cores=4))
    assert not fits(Resources(memory=2), Resources(memory=1))


@st.composite
def graphs(draw: st.DrawFn) -> list[Waiting]:
    count = draw(st.integers(1, 25))
    tasks = []
    for number in range(count):
        needs = draw(st.sets(st.integers(0, number - 1), max_size=3)) if number else set()
        cores = draw(st.sampled_from([0.5, 1, 2, 4]))
        tasks.append(waiting(f"t{number}", *(f"t{need}" for need in needs), cores=cores))
    draw(st.randoms()).shuffle(tasks)
    return tasks


@given(graphs(), st.sets(st.integers(0, 24)), st.randoms(use_true_random=False))
def test_every_task_runs_once_after_what_it_needs_or_is_given_up(
    tasks: Sequence[Waiting], failing: set[int], chance: random.Random
) -> None:
    queue = Queue(tasks)
    needs = {task.key: set(task.needs) for task in tasks}
    free = Resources(cores=4)
    running: list[Waiting] = []
    passed: list[str] = []
    failed: list[str] = []
    given_up: list[str] = []
    while queue or running:
        while (task := queue.take({"local": free})) is not None:
            assert needs[task.key] <= set(passed)
            free -= task.claim
            assert free.cores >= 0
            running.append(task)
        task = running.pop(chance.randrange(len(running)))
        free += task.claim
        if int(task.key[1:]) in failing:
            failed.append(task.key)
            given_up += [one.key for one in queue.failed(task.key, "failed")]
        else:
            passed.append(task.key)
            queue.passed(task.key)
    assert sorted(passed + failed + given_up) == sorted(needs)
    for key in given_up:
        assert needs[key] & {*failed, *given_up}


def given_up(hopeless: list[Hopeless]) -> dict[str, bool]:
    return {one.key: one.is_well for one in hopeless}


def test_what_is_there_for_failures_runs_after_one() -> None:
    queue = Queue(
        [
            waiting("build"),
            waiting("test", "build"),
            waiting("tell", "test", when="failed"),
            waiting("tidy", "build", "test", when="always"),
            waiting("after", "tell"),
        ]
    )
    assert keys(queue) == ["build"]
    assert given_up(queue.failed("build", "failed")) == {"test": False}
    assert keys(queue) == ["tell", "tidy"]
    assert not queue.passed("tell")
    assert keys(queue) == ["after"]


def test_what_is_there_for_failures_is_not_needed_without_one() -> None:
    queue = Queue(
        [
            waiting("build"),
            waiting("tell", "build", when="failed"),
            waiting("after", "tell"),
            waiting("tidy", "tell", when="always"),
        ]
    )
    assert keys(queue) == ["build"]
    assert given_up(queue.passed("build")) == {"tell": True, "after": True}
    assert keys(queue) == ["tidy"]


def test_a_task_waits_for_all_that_it_needs_whatever_becomes_of_it() -> None:
    queue = Queue([waiting("a"), waiting("b"), waiting("c", "a", "b", when="always")])
    assert keys(queue) == ["a", "b"]
    assert not queue.failed("a", "failed")
    assert keys(queue) == []
    assert not queue.passed("b")
    assert keys(queue) == ["c"]


def test_what_has_passed_before_leaves_nothing_to_those_for_failures() -> None:
    tasks = [waiting("tell", "build", when="failed"), waiting("after", "tell")]
    queue = Queue(tasks, passed=["build"])
    assert given_up(queue.idle) == {"tell": True, "after": True}
    assert not queue
