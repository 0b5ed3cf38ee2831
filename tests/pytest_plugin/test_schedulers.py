"""Policies, driven by the simulator: no ranks, no tests, no time."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwise.pytest_plugin.schedulers.base import Assignment, Pace, ScheduledTest, Scheduler
from rankwise.pytest_plugin.schedulers.dispatcher import ScheduledSuite, make_scheduler
from rankwise.pytest_plugin.schedulers.dynamic import Dynamic
from rankwise.pytest_plugin.schedulers.sequential import Sequential
from rankwise.pytest_plugin.schedulers.static import Static, plan_steps
from tests.support.simulate import Simulation, Span, lower_bound, simulate

SCHEDULERS = ("sequential", "static", "dynamic")
# Durations on a grid: sums are exact, and several tests often end at the same moment.
TICK = 1 / 64


@dataclass(frozen=True, kw_only=True)
class Run:
    """A suite, the durations that it turns out to have, and ranks to run it on."""

    cases: Sequence[ScheduledTest]
    seconds: Sequence[float]
    width: int


@st.composite
def runs(draw: st.DrawFn, most: int = 30) -> Run:
    width = draw(st.integers(1, 9))
    durations = st.integers(0, 64).map(lambda ticks: ticks * TICK)
    sizes = draw(st.lists(st.integers(1, width), max_size=most))
    cases = [
        ScheduledTest(index=index, size=size, seconds=draw(st.none() | durations))
        for index, size in enumerate(sizes)
    ]
    seconds = [draw(durations) for _ in cases]
    return Run(cases=cases, seconds=seconds, width=width)


def go(scheduler: str, run: Run, *, batching: bool = True, skew: float = 0.0) -> Simulation:
    pace = Pace(batching=batching)
    suite = ScheduledSuite(cases=run.cases, groups=[() for _ in run.cases])
    policy = make_scheduler(scheduler, suite, run.width, pace)
    return simulate(policy, run.seconds, run.width, pace=pace, skew=skew)


def by_rank(simulation: Simulation) -> dict[int, list[Span]]:
    spans: dict[int, list[Span]] = defaultdict(list)
    for span in simulation.spans:
        for rank in span.ranks:
            spans[rank].append(span)
    return spans


any_scheduler = st.sampled_from(SCHEDULERS)
any_skew = st.sampled_from((0.0, TICK / 16, TICK))


# Every policy


@given(any_scheduler, runs(), st.booleans(), any_skew)
def test_every_test_is_run_exactly_once(
    scheduler: str, run: Run, batching: bool, skew: float
) -> None:
    simulation = go(scheduler, run, batching=batching, skew=skew)
    assert sorted(span.case for span in simulation.spans) == list(range(len(run.cases)))


@given(any_scheduler, runs(), st.booleans(), any_skew)
def test_a_test_gets_as_many_ranks_as_it_asks_for_and_they_exist(
    scheduler: str, run: Run, batching: bool, skew: float
) -> None:
    for span in go(scheduler, run, batching=batching, skew=skew).spans:
        assert len(set(span.ranks)) == len(span.ranks) == run.cases[span.case].size
        assert set(span.ranks) <= set(range(run.width))


@given(any_scheduler, runs(), st.booleans(), any_skew)
def test_no_rank_ever_has_two_tests_at_once(
    scheduler: str, run: Run, batching: bool, skew: float
) -> None:
    for spans in by_rank(go(scheduler, run, batching=batching, skew=skew)).values():
        for earlier, later in pairwise(spans):
            assert later.start >= earlier.end


@given(any_scheduler, runs())
def test_batching_changes_neither_which_tests_run_nor_on_how_many_ranks(
    scheduler: str, run: Run
) -> None:
    batched, single = (go(scheduler, run, batching=batching) for batching in (True, False))
    for simulation in (batched, single):
        assert {(span.case, len(span.ranks)) for span in simulation.spans} == {
            (case.index, case.size) for case in run.cases
        }


@given(any_scheduler, runs())
def test_no_policy_beats_the_lower_bound(scheduler: str, run: Run) -> None:
    bound = lower_bound(run.cases, run.seconds, run.width)
    simulation = go(scheduler, run)
    assert simulation.makespan >= bound - 1e-9
    assert simulation.idle >= -1e-9


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_nothing_starts_before_ranks_are_released(scheduler: str) -> None:
    suite = ScheduledSuite(cases=[ScheduledTest(index=0, size=2)], groups=[()])
    policy = make_scheduler(scheduler, suite, 2, Pace())
    assert policy.take() is None
    policy.release((1,))
    assert policy.take() is None
    policy.release((0,))
    assignment = policy.take()
    assert assignment is not None
    assert assignment.cases == (0,)
    assert sorted(assignment.ranks) == [0, 1]
    assert policy.take() is None


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_an_empty_suite_is_over_at_once(scheduler: str) -> None:
    simulation = go(scheduler, Run(cases=[], seconds=[], width=4))
    assert simulation.spans == []
    assert simulation.makespan == simulation.idle == 0.0


def test_an_unknown_scheduler_is_refused_by_name() -> None:
    with pytest.raises(ImportError, match="no scheduler `clever`"):
        make_scheduler("clever", ScheduledSuite(cases=[], groups=[]), 1, Pace())


# Sequential


@given(runs(), any_skew)
def test_sequential_runs_tests_in_order_and_alone_on_the_first_ranks(run: Run, skew: float) -> None:
    spans = go("sequential", run, skew=skew).spans
    assert [span.case for span in spans] == list(range(len(run.cases)))
    for earlier, later in pairwise(spans):
        assert later.start >= earlier.end
    for span in spans:
        assert span.ranks == tuple(range(run.cases[span.case].size))


def test_sequential_gives_neighbouring_tests_on_one_rank_away_together() -> None:
    sizes = [1, 1, 1, 2, 1]
    policy = Sequential([ScheduledTest(index=index, size=size) for index, size in enumerate(sizes)])
    assert rows_of(policy) == [(0, 1, 2), (3,), (4,)]


def test_sequential_gives_short_tests_on_the_same_ranks_away_together_if_it_may() -> None:
    sizes = [2, 2, 2, 3, 2]
    cases = [
        ScheduledTest(index=index, size=size, seconds=0.001) for index, size in enumerate(sizes)
    ]
    assert rows_of(Sequential(cases)) == [(0,), (1,), (2,), (3,), (4,)]
    assert rows_of(Sequential(cases, Pace())) == [(0, 1, 2), (3,), (4,)]
    long = [ScheduledTest(index=index, size=2, seconds=10.0) for index in range(3)]
    assert rows_of(Sequential(long, Pace())) == [(0,), (1,), (2,)]


def rows_of(policy: Sequential) -> list[tuple[int, ...]]:
    batches = []
    policy.release((0, 1, 2))
    while (assignment := policy.take()) is not None:
        batches.append(assignment.cases)
        policy.release(assignment.ranks)
    return batches


# Static


def test_static_puts_the_tests_of_the_readme_into_its_two_steps() -> None:
    """Its drawing has C beside B, then A beside D: 0, 1 and 2 wait for 3 if B takes long."""
    a, b, c, d = (ScheduledTest(index=index, size=size) for index, size in enumerate((2, 1, 3, 1)))
    first, second = plan_steps([a, b, c, d], width=4)
    assert first == [(c, (0, 1, 2)), (b, (3,))]
    assert second == [(a, (0, 1)), (d, (2,))]


def first_fit_by_search(cases: Sequence[ScheduledTest], width: int) -> list[list[int]]:
    """The same rule in the plainest way: look at all steps from the first one on."""
    steps: list[list[int]] = []
    room: list[int] = []
    for case in sorted(cases, key=lambda case: case.size, reverse=True):
        number = next((n for n, left in enumerate(room) if case.size <= left), len(room))
        if number == len(room):
            steps.append([])
            room.append(width)
        steps[number].append(case.index)
        room[number] -= case.size
    return steps


@given(runs(most=60))
def test_static_puts_each_test_into_the_first_step_with_room_for_it(run: Run) -> None:
    planned = [[case.index for case, _ in step] for step in plan_steps(run.cases, run.width)]
    assert planned == first_fit_by_search(run.cases, run.width)


@given(runs(most=60))
def test_no_two_tests_of_a_static_step_share_a_rank(run: Run) -> None:
    for step in plan_steps(run.cases, run.width):
        ranks = [rank for _, place in step for rank in place]
        assert len(ranks) == len(set(ranks))
        assert all(0 <= rank < run.width for rank in ranks)


@given(runs(), st.randoms(use_true_random=False), st.booleans(), any_skew)
def test_static_decides_ranks_and_order_whatever_the_timing(
    run: Run, chance: random.Random, batching: bool, skew: float
) -> None:
    def decisions(simulation: Simulation) -> dict[int, list[int]]:
        return {rank: [s.case for s in spans] for rank, spans in by_rank(simulation).items()}

    shuffled = list(run.seconds)
    chance.shuffle(shuffled)
    expected = decisions(go("static", run))
    other = replace(run, seconds=shuffled)
    assert decisions(go("static", other, batching=batching, skew=skew)) == expected


def test_a_rank_in_a_static_plan_waits_only_for_ranks_it_shares_a_test_with() -> None:
    """There are two steps, but no barrier between them."""
    sizes, seconds = [2, 2, 2, 2], [1.0, 9.0, 1.0, 1.0]
    cases = [ScheduledTest(index=index, size=size) for index, size in enumerate(sizes)]
    simulation = go("static", Run(cases=cases, seconds=seconds, width=4))
    starts = {span.case: span.start for span in simulation.spans}
    assert starts == {0: 0.0, 1: 0.0, 2: 1.0, 3: 9.0}


# Dynamic


@given(runs(), st.booleans())
def test_dynamic_leaves_no_ranks_idle_that_a_waiting_test_would_fit_on(
    run: Run, batching: bool
) -> None:
    simulation = go("dynamic", run, batching=batching)
    for moment in {0.0, *(span.end for span in simulation.spans)}:
        running = [span for span in simulation.spans if span.start <= moment < span.end]
        free = run.width - sum(len(span.ranks) for span in running)
        # The rest of a batch that has begun does not wait for ranks.
        batches = {span.ranks for span in running} if batching else set()
        waiting = [s for s in simulation.spans if s.start > moment and s.ranks not in batches]
        assert all(len(span.ranks) > free for span in waiting)


@given(runs())
def test_dynamic_always_starts_the_largest_test_that_fits_and_of_those_the_longest(
    run: Run,
) -> None:
    known = [case if case.seconds is not None else replace(case, seconds=0.0) for case in run.cases]
    policy = Dynamic(known, run.width, Pace(batching=False))
    watched = _Watched(policy, known, run.width)
    simulate(watched, run.seconds, run.width)
    assert not watched.waiting


class _Watched:
    """Checks each decision of a policy against all that it could have decided."""

    one_by_one: ClassVar[bool] = False

    def __init__(self, policy: Scheduler, cases: Sequence[ScheduledTest], width: int) -> None:
        self._policy = policy
        self._free = 0
        self._width = width
        self.waiting = {case.index: case for case in cases}

    def release(self, ranks: tuple[int, ...]) -> None:
        self._policy.release(ranks)
        self._free += len(ranks)

    def put_back(self, case: int) -> None:
        raise AssertionError(f"no rank is lost, and {case} is put back")

    def take(self) -> Assignment | None:
        fitting = [case for case in self.waiting.values() if case.size <= self._free]
        assignment = self._policy.take()
        if assignment is None:
            assert not fitting
            return None
        (index,) = assignment.cases
        taken = self.waiting.pop(index)
        best = max(fitting, key=lambda case: (case.size, case.seconds, -case.index))
        assert taken == best
        self._free -= taken.size
        return assignment


def test_dynamic_starts_a_test_it_has_never_seen_before_those_it_knows() -> None:
    seconds = [5.0, None, 7.0, None]
    cases = [
        ScheduledTest(index=index, size=1, seconds=known) for index, known in enumerate(seconds)
    ]
    simulation = go("dynamic", Run(cases=cases, seconds=[1.0] * 4, width=1))
    assert [span.case for span in simulation.spans] == [1, 3, 2, 0]


def test_a_large_test_need_not_wait_for_small_ones_when_ranks_come_back_one_after_the_other() -> (
    None
):
    cases = [
        ScheduledTest(index=0, size=2),
        ScheduledTest(index=1, size=2),
        ScheduledTest(index=2, size=1),
    ]
    run = Run(cases=cases, seconds=[1.0, 1.0, 5.0], width=2)
    spans = go("dynamic", run, skew=0.001).spans
    assert [span.case for span in spans] == [0, 1, 2]


def test_dynamic_knows_durations_and_comes_near_the_lower_bound() -> None:
    chance = random.Random(1)
    seconds = [chance.lognormvariate(0.0, 1.0) for _ in range(400)]
    cases = [
        ScheduledTest(index=index, size=chance.choice((1, 1, 1, 2, 4)), seconds=known)
        for index, known in enumerate(seconds)
    ]
    run = Run(cases=cases, seconds=seconds, width=8)
    bound = lower_bound(cases, seconds, 8)
    assert go("dynamic", run).makespan < 1.05 * bound


# Pace


def test_nothing_is_estimated_before_anything_is_known() -> None:
    assert Pace().estimate(ScheduledTest(index=0, size=1)) is None


def test_an_unknown_test_is_expected_to_be_like_those_of_this_run() -> None:
    pace = Pace()
    for seconds in (1.0, 2.0, 6.0):
        pace.observe(seconds)
    assert pace.estimate(ScheduledTest(index=0, size=1)) == pytest.approx(3.0)
    assert pace.estimate(ScheduledTest(index=0, size=1, seconds=0.5)) == 0.5


@given(runs(), st.integers(0, 50), st.booleans())
def test_a_batch_is_the_first_tests_and_never_more_than_the_fair_share(
    run: Run, fair_share: int, batching: bool
) -> None:
    batch = list(Pace(batching=batching).batch(run.cases, fair_share))
    assert batch == run.cases[: len(batch)]
    assert len(batch) <= max(1, fair_share if batching else 1)
    assert bool(batch) == bool(run.cases)


def test_a_test_of_unknown_length_travels_alone() -> None:
    cases = [ScheduledTest(index=index, size=1) for index in range(10)]
    assert list(Pace().batch(cases, 10)) == cases[:1]


def test_short_tests_travel_together_and_a_long_one_does_not_go_with_them() -> None:
    lengths = [0.001, 0.001, 5.0, 0.001]
    cases = [
        ScheduledTest(index=index, size=1, seconds=length) for index, length in enumerate(lengths)
    ]
    assert list(Pace().batch(cases, 10)) == cases[:2]
    assert list(Pace().batch(cases[2:], 10)) == cases[2:3]


# The simulator itself


def test_the_simulator_counts_what_ranks_do_and_do_not_do() -> None:
    cases = [ScheduledTest(index=0, size=2), ScheduledTest(index=1, size=1)]
    simulation = go("static", Run(cases=cases, seconds=[3.0, 1.0], width=3))
    assert simulation.makespan == 3.0
    assert simulation.idle == 2.0


def test_the_bound_is_the_work_or_the_longest_test_or_those_that_cannot_overlap() -> None:
    def bound(*tests: tuple[int, float]) -> float:
        cases = [ScheduledTest(index=index, size=size) for index, (size, _) in enumerate(tests)]
        return lower_bound(cases, [seconds for _, seconds in tests], 4)

    assert bound((1, 1.0), (1, 1.0), (1, 1.0), (1, 1.0), (4, 1.0)) == 2.0
    assert bound((1, 7.0), (1, 1.0)) == 7.0
    assert bound((3, 2.0), (3, 2.0)) == 4.0
    # Nothing fits beside the first one: its fourth rank is idle.
    assert bound((3, 2.0), (2, 1.0), (2, 1.0)) == 3.0
    assert bound((3, 2.0), (2, 1.0), (2, 1.0), (1, 2.0)) == 3.0
    assert bound() == 0.0


# At scale


@pytest.mark.parametrize("policy", [Static, Dynamic])
def test_a_hundred_thousand_tests_are_placed_on_four_thousand_ranks(
    policy: type[Static] | type[Dynamic],
) -> None:
    chance = random.Random(7)
    sizes = [2 ** min(9, int(chance.expovariate(0.8))) for _ in range(100_000)]
    seconds = [chance.lognormvariate(0.0, 1.0) for _ in sizes]
    cases = [ScheduledTest(index=index, size=size) for index, size in enumerate(sizes)]
    pace = Pace()
    simulation = simulate(policy(cases, 4096, pace), seconds, 4096, pace=pace)
    assert len({span.case for span in simulation.spans}) == len(simulation.spans) == 100_000
    # Neither is good if it leaves half of the machine idle.
    assert simulation.makespan < 2 * lower_bound(cases, seconds, 4096)
