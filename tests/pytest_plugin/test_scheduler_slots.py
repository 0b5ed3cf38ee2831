"""Slots and NUMA domains, and tests that come back because ranks were lost."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwise.pytest_plugin.schedulers.base import (
    Assignment,
    Pace,
    ScheduledTest,
    Scheduler,
    WorldKind,
)
from rankwise.pytest_plugin.schedulers.dispatcher import ScheduledSuite, make_scheduler
from rankwise.pytest_plugin.schedulers.dynamic import Dynamic, FreeSlots
from rankwise.pytest_plugin.schedulers.sequential import Sequential
from rankwise.pytest_plugin.schedulers.static import Static
from tests.seeds.sentences import sentence
from tests.support.simulate import Span, simulate

TWO_BY_FOUR = (0, 0, 0, 0, 1, 1, 1, 1)

some_domains = st.lists(st.integers(0, 3), min_size=1, max_size=12)


def all_free(domains: Sequence[int]) -> FreeSlots:
    slots = FreeSlots(domains)
    for slot in range(len(domains)):
        slots.add(slot)
    return slots


# FreeSlots


def test_no_seat_is_free_before_it_is_given_back() -> None:
    slots = FreeSlots([0, 0])
    assert slots.count == 0
    assert slots.pick(1) is None
    slots.add(1)
    assert slots.pick(2) is None
    assert slots.pick(1) == (1,)
    assert slots.pick(1) is None


def test_in_one_domain_the_first_free_seats_are_taken() -> None:
    slots = all_free([0] * 4)
    assert slots.pick(2) == (0, 1)
    assert slots.pick(1) == (2,)
    slots.add(0)
    assert slots.pick(2) == (0, 3)


def test_the_seats_of_a_test_are_of_one_domain_where_that_is_possible() -> None:
    slots = all_free(TWO_BY_FOUR)
    assert slots.pick(3) == (0, 1, 2)
    assert slots.pick(4) == (4, 5, 6, 7), "not the one that is left in the first domain"


def test_of_the_domains_that_hold_a_test_the_tightest_is_taken() -> None:
    slots = all_free(TWO_BY_FOUR)
    assert slots.pick(2) == (0, 1)
    assert slots.pick(2) == (2, 3), "a whole domain is kept for one that needs it"
    assert slots.pick(4) == (4, 5, 6, 7)


def test_a_test_that_fits_into_no_domain_gets_most_of_its_seats_from_one() -> None:
    slots = all_free((0, 0, 0, 1, 1, 1, 2, 2))
    assert slots.pick(2) == (6, 7)
    assert slots.pick(1) == (0,)
    assert slots.pick(4) == (1, 3, 4, 5)


@pytest.mark.parametrize(
    ("size", "expected"), [(1, (0, 1, 2, 3)), (4, (0, 1, 2, 3)), (5, tuple(range(8)))]
)
def test_an_exclusive_test_gets_every_seat_of_its_domains(
    size: int, expected: tuple[int, ...]
) -> None:
    assert all_free(TWO_BY_FOUR).pick(size, exclusive=True) == expected


def test_an_exclusive_test_gets_no_domain_that_is_in_use() -> None:
    slots = all_free(TWO_BY_FOUR)
    assert slots.pick(1) == (0,)
    assert slots.pick(2, exclusive=True) == (4, 5, 6, 7)
    assert slots.pick(2, exclusive=True) is None
    assert slots.count == 3, "one that gets nothing takes nothing"
    slots.add(0)
    assert slots.pick(2, exclusive=True) == (0, 1, 2, 3)


@given(some_domains, st.data())
def test_a_seat_is_given_to_one_at_a_time_and_none_is_lost(
    domains: list[int], data: st.DataObject
) -> None:
    slots = all_free(domains)
    taken: list[tuple[int, ...]] = []
    for _ in range(data.draw(st.integers(0, 20))):
        gives_back = data.draw(st.booleans())
        if taken and gives_back:
            for slot in taken.pop(data.draw(st.integers(0, len(taken) - 1))):
                slots.add(slot)
        size, exclusive = data.draw(st.integers(1, len(domains))), data.draw(st.booleans())
        before = slots.count
        picked = slots.pick(size, exclusive=exclusive)
        if picked is None:
            assert exclusive or size > before
            assert slots.count == before
            continue
        assert len(picked) >= size if exclusive else len(picked) == size
        taken.append(picked)
        given_away = [slot for group in taken for slot in group]
        assert len(given_away) == len(set(given_away))
        assert slots.count == len(domains) - len(given_away)
        if exclusive:
            own = {domains[slot] for slot in picked}
            assert set(picked) == {slot for slot, number in enumerate(domains) if number in own}
    for group in taken:
        for slot in group:
            slots.add(slot)
    assert slots.pick(len(domains), exclusive=True) == tuple(range(len(domains)))


@given(some_domains, st.data())
def test_seats_are_of_one_domain_if_any_has_enough_of_them(
    domains: list[int], data: st.DataObject
) -> None:
    free = data.draw(st.sets(st.integers(0, len(domains) - 1), min_size=1))
    slots = FreeSlots(domains)
    for slot in free:
        slots.add(slot)
    size = data.draw(st.integers(1, len(free)))
    picked = slots.pick(size)
    assert picked is not None
    counts = [sum(domains[slot] == number for slot in free) for number in range(4)]
    if max(counts) >= size:
        assert len({domains[slot] for slot in picked}) == 1


# The policy that knows of domains


def start(policy: Dynamic, width: int) -> list[Assignment]:
    policy.release(tuple(range(width)))
    started = []
    while (assignment := policy.take()) is not None:
        started.append(assignment)
    return started


@sentence(
    "pytest_parallel",
    ran="the dynamic scheduler",
    stand_in="a list of domains",
    said="Future work: dynamic schedules a test on procs of a common NUMA domain.",
)
def test_dynamic_keeps_a_test_within_a_domain() -> None:
    cases = [ScheduledTest(index=index, size=3) for index in range(2)]
    policy = Dynamic(cases, 8, Pace(), domains=TWO_BY_FOUR)
    assert [one.ranks for one in start(policy, 8)] == [(0, 1, 2), (4, 5, 6)]


def test_a_smaller_test_goes_first_while_an_exclusive_one_waits_for_a_domain() -> None:
    cases = [
        ScheduledTest(index=0, size=5),
        ScheduledTest(index=1, size=3, exclusive=True),
        ScheduledTest(index=2, size=1),
    ]
    policy = Dynamic(cases, 8, Pace(), domains=TWO_BY_FOUR)
    first, second = start(policy, 8)
    assert (first.cases, second.cases) == ((0,), (2,))
    policy.release(second.ranks)
    assert policy.take() is None
    policy.release(first.ranks)
    last = policy.take()
    assert last is not None
    assert last == Assignment(cases=(1,), ranks=(0, 1, 2, 3))


@st.composite
def exclusive_suites(draw: st.DrawFn) -> tuple[list[int], list[ScheduledTest]]:
    domains = draw(st.lists(st.integers(0, 2), min_size=1, max_size=8))
    tests = draw(
        st.lists(st.tuples(st.integers(1, len(domains)), st.booleans()), min_size=1, max_size=20)
    )
    return domains, [
        ScheduledTest(
            index=index,
            size=size,
            seconds=draw(st.sampled_from((0.001, 1.0))),
            world_kind="exact" if exclusive else "shared",
            exclusive=exclusive,
        )
        for index, (size, exclusive) in enumerate(tests)
    ]


@given(exclusive_suites())
def test_nothing_else_runs_in_the_domains_of_an_exclusive_test_and_all_are_run(
    suite: tuple[list[int], list[ScheduledTest]],
) -> None:
    domains, cases = suite
    pace = Pace()
    policy = Dynamic(cases, len(domains), pace, domains=domains)
    seconds = [case.seconds or 0.0 for case in cases]
    spans = simulate(policy, seconds, len(domains), pace=pace).spans
    assert sorted(span.case for span in spans) == list(range(len(cases)))
    for span in spans:
        if cases[span.case].exclusive:
            own = {domains[slot] for slot in span.ranks}
            assert set(span.ranks) == {s for s, number in enumerate(domains) if number in own}
            assert not any(
                {domains[slot] for slot in other.ranks} & own
                for other in spans
                if other is not span and overlap(span, other)
            )


def overlap(one: Span, other: Span) -> bool:
    return one.start < other.end and other.start < one.end


def test_an_exclusive_test_does_not_travel_behind_one_that_shares_its_domain() -> None:
    """Of equal size and equal world_kind: the batch has the slots that its first test asked for."""
    cases = [
        ScheduledTest(
            index=index, size=2, seconds=0.001, world_kind="exact", exclusive=index % 2 == 1
        )
        for index in range(32)
    ]
    policy = Dynamic(cases, 8, Pace(), domains=TWO_BY_FOUR)
    for assignment in start(policy, 8):
        if any(cases[index].exclusive for index in assignment.cases):
            assert assignment.ranks in {(0, 1, 2, 3), (4, 5, 6, 7)}


# Policies whose tests come back because ranks were lost, and batches of tests in different worlds

SCHEDULERS = ("sequential", "static", "dynamic")


@dataclass(eq=False)
class Row:
    """Tests on their way on some ranks, of which each goes through them at its own pace."""

    assignment: Assignment
    left: dict[int, deque[int]]
    released: set[int] = field(default_factory=set)

    def unfinished(self) -> list[int]:
        return [
            case for case in self.assignment.cases if any(case in q for q in self.left.values())
        ]


class Crash:
    """Drives a policy as a dispatcher does, with ranks that now and then are lost."""

    def __init__(self, policy: Scheduler, width: int, chance: random.Random) -> None:
        self._policy = policy
        self._chance = chance
        self._batches: list[Row] = []
        self.ended: Counter[int] = Counter()
        self.blamed: Counter[int] = Counter()
        self._policy.release(tuple(range(width)))

    def go(self, losses: int) -> None:
        self._start()
        while self._batches:
            if losses and self._chance.random() < 0.2:
                losses -= 1
                self._lose()
            else:
                self._end_one()
            self._start()

    def _start(self) -> None:
        while (assignment := self._policy.take()) is not None:
            ranks = set(assignment.ranks)
            assert len(ranks) == len(assignment.ranks)
            for batch in self._batches:
                assert not ranks & (set(batch.assignment.ranks) - batch.released), "busy ranks"
            left = {rank: deque(assignment.cases) for rank in assignment.ranks}
            self._batches.append(Row(assignment, left))

    def _end_one(self) -> None:
        """Let one rank end the test that it is at."""
        batch = self._chance.choice(self._batches)
        rank = self._chance.choice([rank for rank, left in batch.left.items() if left])
        case = batch.left[rank].popleft()
        if not any(case in left for left in batch.left.values()):
            self.ended[case] += 1
        if not batch.left[rank] and not self._policy.one_by_one:
            batch.released.add(rank)
            self._policy.release((rank,))
        if not batch.unfinished():
            self._batches.remove(batch)
            if self._policy.one_by_one:
                self._policy.release(batch.assignment.ranks)

    def _lose(self) -> None:
        """Lose the ranks of some batches; at most one test of each is blamed for it."""
        lost = self._chance.sample(self._batches, self._chance.randint(1, len(self._batches)))
        for batch in reversed(lost):
            again = batch.unfinished()
            if self._chance.random() < 0.5:
                self.blamed[again.pop(0)] += 1
            for case in reversed(again):
                self._policy.put_back(case)
        for batch in lost:
            self._batches.remove(batch)
            ranks = tuple(rank for rank in batch.assignment.ranks if rank not in batch.released)
            self._policy.release(ranks)


@given(
    st.tuples(st.sampled_from(SCHEDULERS), st.booleans()),
    st.integers(1, 6).flatmap(
        lambda width: st.tuples(
            st.just(width), st.lists(st.integers(1, width), min_size=1, max_size=30)
        )
    ),
    st.sampled_from((None, 0.001, 1.0)),
    st.integers(0, 12),
    st.randoms(use_true_random=False),
)
def test_whatever_is_lost_each_test_is_run_to_its_end_once_or_blamed_once(
    kind: tuple[str, bool],
    sizes: tuple[int, Sequence[int]],
    seconds: float | None,
    losses: int,
    chance: random.Random,
) -> None:
    (scheduler, strict), (width, numbers) = kind, sizes
    cases = [ScheduledTest(index=i, size=size, seconds=seconds) for i, size in enumerate(numbers)]
    suite = ScheduledSuite(cases=cases, groups=[() for _ in cases])
    crash = Crash(make_scheduler(scheduler, suite, width, Pace(), strict=strict), width, chance)
    crash.go(losses)
    assert crash.ended + crash.blamed == Counter(range(len(cases)))


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_test_that_was_put_back_is_the_next_one_to_start(scheduler: str) -> None:
    cases = [ScheduledTest(index=index, size=2, seconds=1.0) for index in range(3)]
    suite = ScheduledSuite(cases=cases, groups=[()] * 3)
    policy = make_scheduler(scheduler, suite, 2, Pace())
    policy.release((0, 1))
    first = policy.take()
    assert first is not None
    (index,) = first.cases
    policy.put_back(index)
    assert policy.take() is None, "its ranks are not back yet"
    policy.release(first.ranks)
    assert policy.take() == first


def test_the_rest_of_a_row_is_put_back_in_its_order() -> None:
    cases = [ScheduledTest(index=index, size=1) for index in range(5)]
    policy = Sequential(cases)
    policy.release((0,))
    batch = policy.take()
    assert batch is not None
    assert batch.cases == (0, 1, 2, 3, 4)
    for index in (4, 3):
        policy.put_back(index)
    policy.release((0,))
    again = policy.take()
    assert again is not None
    assert again.cases == (3, 4)


def test_the_last_test_of_its_size_can_be_put_back() -> None:
    """Dynamic has forgotten the size by then."""
    policy = Dynamic([ScheduledTest(index=0, size=1), ScheduledTest(index=1, size=2)], 2, Pace())
    policy.release((0, 1))
    assert policy.take() == Assignment(cases=(1,), ranks=(0, 1))
    policy.put_back(1)
    policy.release((0, 1))
    assert policy.take() == Assignment(cases=(1,), ranks=(0, 1))
    policy.release((0, 1))
    assert policy.take() == Assignment(cases=(0,), ranks=(0,))
    assert policy.take() is None


def test_a_rank_that_waits_for_its_next_test_goes_back_to_the_one_that_was_lost() -> None:
    """The plan: 0 on both ranks, then 1 on rank 0 and 2 on rank 1."""
    cases = [
        ScheduledTest(index=0, size=2),
        ScheduledTest(index=1, size=1),
        ScheduledTest(index=2, size=1),
    ]
    policy = Static(cases, 2, Pace())
    policy.release((0, 1))
    both = policy.take()
    assert both == Assignment(cases=(0,), ranks=(0, 1))
    policy.release((0,))
    # Before anybody took test 1 for rank 0, rank 1 is lost in test 0.
    policy.put_back(0)
    assert policy.take() is None
    policy.release((1,))
    assert policy.take() == both
    policy.release((0, 1))
    started = [policy.take(), policy.take()]
    assert sorted(one.cases for one in started if one is not None) == [(1,), (2,)]


# Rows and worlds


def cases_in(*worlds: WorldKind, size: int = 1) -> list[ScheduledTest]:
    return [
        ScheduledTest(index=index, size=size, seconds=0.001, world_kind=world_kind)
        for index, world_kind in enumerate(worlds)
    ]


@pytest.mark.parametrize(
    ("worlds", "expected"),
    [
        (("shared", "shared", "shared"), 3),
        (("exact", "exact", "shared"), 2),
        (("shared", "exact", "shared"), 1),
        (("fresh", "fresh", "fresh"), 1),
        (("fresh", "shared"), 1),
        (("shared", "fresh"), 1),
    ],
)
def test_only_tests_that_run_in_the_same_place_travel_together(
    worlds: tuple[WorldKind, ...], expected: int
) -> None:
    cases = cases_in(*worlds)
    assert list(Pace().batch(cases, 10)) == cases[:expected]


@pytest.mark.parametrize("different", [{"ranks": 2}, {"exclusive": True}, {"size": 2}], ids=str)
def test_a_test_that_needs_another_world_or_other_seats_does_not_travel_along(
    different: dict[str, Any],
) -> None:
    one, other = cases_in("exact", "exact", size=4)
    other = replace(other, **different)
    assert list(Pace().batch([one, other], 10)) == [one]
    assert list(Pace().batch([other, one], 10)) == [other]


@pytest.mark.parametrize("size", [1, 2])
def test_a_row_of_the_sequence_ends_where_the_venue_changes(size: int) -> None:
    cases = cases_in("shared", "shared", "exact", "exact", "fresh", "fresh", "shared", size=size)
    policy = Sequential(cases, Pace())
    policy.release(tuple(range(size)))
    batches = []
    while (assignment := policy.take()) is not None:
        batches.append(assignment.cases)
        policy.release(assignment.ranks)
    assert batches == [(0, 1), (2, 3), (4,), (5,), (6,)]


def test_a_sequence_that_is_kept_apart_has_no_batches_at_all() -> None:
    policy = Sequential(cases_in("shared", "shared", "exact"), Pace(), apart=True)
    policy.release((0,))
    batches = []
    while (assignment := policy.take()) is not None:
        batches.append(assignment.cases)
        policy.release(assignment.ranks)
    assert batches == [(0,), (1,), (2,)]


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_every_row_of_every_policy_has_one_venue(scheduler: str) -> None:
    chance = random.Random(3)
    worlds: Sequence[WorldKind] = ("shared", "exact", "fresh")
    cases = cases_in(*(chance.choice(worlds) for _ in range(200)))
    suite = ScheduledSuite(cases=cases, groups=[()] * len(cases))
    policy = make_scheduler(scheduler, suite, 2, Pace(), strict=False)
    policy.release((0, 1))
    seen: list[int] = []
    while (assignment := policy.take()) is not None:
        batch = [cases[index].world_kind for index in assignment.cases]
        assert len(set(batch)) == 1
        assert batch[0] != "fresh" or len(batch) == 1
        seen += assignment.cases
        policy.release(assignment.ranks)
    assert sorted(seen) == list(range(200))
