"""Which task is next."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwise.engine.queue import GivenUp, Queue, Queued, fits, in_thousandths
from rankwise.engine.verdict import RunVerdict
from rankwise.plan import Process, Resources, Task, When
from rankwise.store import State

PLENTY = {"local": Resources(cores=1000, memory=2**40, gpus=1000)}


def waiting(key: str, *needs: str, cores: float = 1, when: When = "passed") -> Queued:
    return Queued(key=key, needs=needs, when=when, claim=Resources(cores=cores))


def keys(queue: Queue, cores: float = 1000) -> list[str]:
    """Take what can be taken now."""
    taken = []
    queue.free["local"] = in_thousandths(Resources(cores=cores))
    while (task := queue.take()) is not None:
        taken.append(task.key)
        queue.enter(task)
    return taken


def test_tasks_are_given_away_in_their_order() -> None:
    queue = Queue([waiting("b"), waiting("a"), waiting("c")])
    assert keys(queue) == ["b", "a", "c"]
    assert not queue.waiting


def test_a_task_waits_for_all_that_it_needs() -> None:
    queue = Queue([waiting("last", "one", "two"), waiting("one"), waiting("two")])
    assert keys(queue) == ["one", "two"]
    queue.over("one", State.PASSED)
    assert keys(queue) == []
    queue.over("two", State.PASSED)
    assert keys(queue) == ["last"]


def test_what_has_passed_before_need_not_be_waited_for() -> None:
    queue = Queue([waiting("last", "one", "two"), waiting("two")], passed=["one"])
    assert keys(queue) == ["two"]
    queue.over("two", State.PASSED)
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
    assert queue.over("a", State.FAILED) == [
        GivenUp(key="b", reason="needs a, which failed"),
        GivenUp(key="c", reason="needs b, which was not run"),
        GivenUp(key="e", reason="needs b, which was not run"),
    ]
    assert not queue.waiting


def test_a_task_that_was_put_back_has_its_old_place() -> None:
    queue = Queue([waiting("a"), waiting("b"), waiting("c")], free=PLENTY)
    first = queue.take()
    assert first is not None
    queue.put_back(first)
    assert keys(queue) == ["a", "b", "c"]


def test_everything_can_be_given_up() -> None:
    queue = Queue([waiting("a"), waiting("b", "a")], free=PLENTY)
    assert [one.key for one in queue.give_up_all("cancelled")] == ["a", "b"]
    assert not queue.waiting
    assert queue.take() is None


def test_the_first_that_could_start_is_found_even_if_it_does_not_fit() -> None:
    queue = Queue([waiting("b", "a"), waiting("a", cores=8), waiting("c", cores=4)])
    found = [queue.take_any(), queue.take_any(), queue.take_any()]
    assert [one and one.key for one in found] == ["a", "c", None]


def test_of_what_is_not_claimed_there_is_always_enough() -> None:
    assert fits((0, 0, 0), (0, 0, 0))
    assert fits((1, 0, 0), (1, 0, -2))
    assert not fits((0, 0, 1), (4, 0, 0))
    assert not fits((0, 2, 0), (0, 1, 0))


ALL = Resources(cores=4, memory=2**30, gpus=2)


def test_a_task_that_claims_all_that_is_free_fits() -> None:
    assert fits(in_thousandths(ALL), in_thousandths(ALL))
    queue = Queue([Queued(key="all", claim=ALL)], free={"local": ALL})
    taken = queue.take()
    assert taken is not None
    assert taken.key == "all"


@pytest.mark.parametrize("more", [Resources(cores=0.001), Resources(memory=1), Resources(gpus=1)])
def test_a_task_that_claims_one_more_than_is_free_does_not_fit(more: Resources) -> None:
    claim = ALL + more
    assert not fits(in_thousandths(claim), in_thousandths(ALL))
    assert Queue([Queued(key="more", claim=claim)], free={"local": ALL}).take() is None


@given(st.lists(st.integers(1, 4000), max_size=50), st.randoms(use_true_random=False))
def test_what_was_claimed_in_fractions_is_free_again(
    claims: Sequence[int], chance: random.Random
) -> None:
    queue = Queue([], free={"local": Resources(cores=2.3)})
    shares = [Resources(cores=claim / 1000) for claim in claims]
    assert [in_thousandths(share)[0] for share in shares] == claims
    tasks = [Queued(key=str(number), claim=share) for number, share in enumerate(shares)]
    for task in tasks:
        queue.enter(task)
    chance.shuffle(tasks)
    for task in tasks:
        queue.leave(task)
    assert queue.free == {"local": (2300, 0, 0)}


@pytest.mark.parametrize(
    ("cores", "expected"), [(0, 0), (math.inf, math.inf), (1e-9, 1), (0.57, 570), (1 / 3, 333)]
)
def test_cores_are_counted_in_thousandths(cores: float, expected: float) -> None:
    assert in_thousandths(Resources(cores=cores, gpus=1)) == (expected, 0, 1)


@st.composite
def graphs(draw: st.DrawFn) -> list[Queued]:
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
    tasks: Sequence[Queued], failing: set[int], chance: random.Random
) -> None:
    queue = Queue(tasks, free={"local": Resources(cores=4)})
    needs = {task.key: set(task.needs) for task in tasks}
    running: list[Queued] = []
    passed: list[str] = []
    failed: list[str] = []
    given_up: list[str] = []
    while queue.waiting or running:
        while (task := queue.take()) is not None:
            assert needs[task.key] <= set(passed)
            queue.enter(task)
            assert queue.free["local"][0] >= 0
            running.append(task)
        task = running.pop(chance.randrange(len(running)))
        queue.leave(task)
        if int(task.key[1:]) in failing:
            failed.append(task.key)
            given_up += [one.key for one in queue.over(task.key, State.FAILED)]
        else:
            passed.append(task.key)
            queue.over(task.key, State.PASSED)
    assert sorted(passed + failed + given_up) == sorted(needs)
    for key in given_up:
        assert needs[key] & {*failed, *given_up}


def given_up(given_up_tasks: list[GivenUp]) -> dict[str, bool]:
    return {one.key: one.is_well for one in given_up_tasks}


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
    assert given_up(queue.over("build", State.FAILED)) == {"test": False}
    assert keys(queue) == ["tell", "tidy"]
    assert not queue.over("tell", State.PASSED)
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
    assert given_up(queue.over("build", State.PASSED)) == {"tell": True, "after": True}
    assert keys(queue) == ["tidy"]


def test_a_task_waits_for_all_that_it_needs_whatever_becomes_of_it() -> None:
    queue = Queue([waiting("a"), waiting("b"), waiting("c", "a", "b", when="always")])
    assert keys(queue) == ["a", "b"]
    assert not queue.over("a", State.FAILED)
    assert keys(queue) == []
    assert not queue.over("b", State.PASSED)
    assert keys(queue) == ["c"]


def test_what_has_passed_before_leaves_nothing_to_those_for_failures() -> None:
    tasks = [waiting("tell", "build", when="failed"), waiting("after", "tell")]
    queue = Queue(tasks, passed=["build"])
    assert given_up(queue.idle) == {"tell": True, "after": True}
    assert not queue.waiting


def test_what_was_not_needed_does_not_stop_those_that_need_more_than_it() -> None:
    queue = Queue(
        [
            waiting("build"),
            waiting("tell", "build", when="failed"),
            waiting("test", "build", "tell"),
            waiting("publish", "test"),
        ]
    )
    assert keys(queue) == ["build"]
    assert given_up(queue.over("build", State.PASSED)) == {"tell": True}
    assert keys(queue) == ["test"]
    queue.over("test", State.PASSED)
    assert keys(queue) == ["publish"]


@given(st.permutations(["passes", "fails", "idle"]))
def test_what_becomes_of_a_task_does_not_depend_on_which_of_its_needs_ends_first(
    order: list[str],
) -> None:
    queue = Queue([*(waiting(key) for key in order), waiting("after", *order)])
    keys(queue)
    over: list[GivenUp] = []
    for key in order:
        match key:
            case "passes":
                over += queue.over(key, State.PASSED)
            case "fails":
                over += queue.over(key, State.FAILED)
            case _:
                over += queue.over(key, State.SKIPPED)
    assert over == [GivenUp(key="after", reason="needs fails, which failed")]


@pytest.mark.parametrize("state", [state for state in State if state.is_over])
def test_only_failures_of_its_own_are_forgiven_to_a_soft_task(state: State) -> None:
    process = Process(name="worker-0", role="worker", command="true")
    verdict = RunVerdict([Task(key="soft", processes=(process,), is_soft=True)])
    if state is State.SKIPPED:
        verdict.count("other", State.PASSED, 0)
    verdict.count("soft", state, 7)
    forgiven = state in (State.FAILED, State.CRASHED, State.TIMED_OUT)
    is_fine = forgiven or state in (State.PASSED, State.SKIPPED)
    end = verdict.end()
    assert end.state is (State.PASSED if is_fine else state)
    assert end.exit_code == (0 if is_fine else 130 if state is State.CANCELLED else 7)


@pytest.mark.parametrize(
    ("states", "of_run"),
    [
        ((State.FAILED, State.FAILED), State.FAILED),
        ((State.CRASHED, State.TIMED_OUT), State.FAILED),
        ((State.CRASHED, State.PASSED), State.CRASHED),
        ((State.NOT_RUN, State.PASSED), State.FAILED),
        ((State.NOT_RUN, State.SKIPPED), State.NOT_RUN),
        ((State.LOST, State.SKIPPED, State.PASSED), State.LOST),
    ],
)
def test_a_run_has_the_state_of_those_that_are_not_green_and_is_failed_if_they_differ(
    states: tuple[State, ...], of_run: State
) -> None:
    verdict = RunVerdict()
    for number, state in enumerate(states):
        verdict.count(f"t{number}", state, None)
    assert verdict.end().state is of_run


def test_a_cancelled_task_beside_a_soft_failure_is_not_forgiven() -> None:
    process = Process(name="worker-0", role="worker", command="true")
    verdict = RunVerdict([Task(key="soft", processes=(process,), is_soft=True)])
    verdict.count("soft", State.FAILED, 7)
    verdict.count("other", State.CANCELLED, None)
    for number in range(3):
        verdict.count(f"t{number}", State.PASSED, 0)
    end = verdict.end()
    assert (end.exit_code, end.state) == (130, State.CANCELLED)
