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
    Domains,
    FreeSlots,
    Pace,
    ScheduledTest,
    Scheduler,
    WorldKind,
)
from rankwise.pytest_plugin.schedulers.dispatcher import ScheduledSuite, make_scheduler
from rankwise.pytest_plugin.schedulers.dynamic import Dynamic
from rankwise.pytest_plugin.schedulers.sequential import Sequential
from rankwise.pytest_plugin.schedulers.static import Static
from tests.seeds.sentences import sentence
from tests.support.simulate import Span, simulate

LEVELS = ("core", "l3", "numa", "socket", "node")
SCHEDULERS = ("sequential", "static", "dynamic")


def layout(numa: Sequence[int], **others: Sequence[int]) -> dict[str, Sequence[int]]:
    """Return the domains of slots on one machine without second threads and sockets."""
    near = {"core": range(len(numa)), "l3": numa, "numa": numa}
    far = {level: [0] * len(numa) for level in ("socket", "node")}
    return {**near, **far, **others}


TWO_BY_FOUR = layout((0, 0, 0, 0, 1, 1, 1, 1))

some_domains = st.lists(st.integers(0, 3), min_size=1, max_size=12)


def all_free(domains: Domains) -> FreeSlots:
    return FreeSlots.all_of(len(domains["node"]), domains)


# FreeSlots


def test_no_seat_is_free_before_it_is_given_back() -> None:
    slots = FreeSlots(2)
    assert slots.count == 0
    assert slots.pick(1) is None
    slots.add(1)
    assert slots.pick(2) is None
    assert slots.pick(1) == (1,)
    assert slots.pick(1) is None


def test_in_one_domain_the_first_free_seats_are_taken() -> None:
    slots = all_free(layout([0] * 4))
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
    slots = all_free(layout((0, 0, 0, 1, 1, 1, 2, 2)))
    assert slots.pick(2) == (6, 7)
    assert slots.pick(1) == (0,)
    assert slots.pick(4) == (1, 3, 4, 5)


@pytest.mark.parametrize(
    ("size", "expected"), [(1, (0, 1, 2, 3)), (4, (0, 1, 2, 3)), (5, tuple(range(8)))]
)
def test_an_exclusive_test_gets_every_seat_of_its_domains(
    size: int, expected: tuple[int, ...]
) -> None:
    assert all_free(TWO_BY_FOUR).pick(size, exclusive="numa") == expected


def test_an_exclusive_test_gets_no_domain_that_is_in_use() -> None:
    slots = all_free(TWO_BY_FOUR)
    assert slots.pick(1) == (0,)
    assert slots.pick(2, exclusive="numa") == (4, 5, 6, 7)
    assert slots.pick(2, exclusive="numa") is None
    assert slots.count == 3, "one that gets nothing takes nothing"
    slots.add(0)
    assert slots.pick(2, exclusive="numa") == (0, 1, 2, 3)


# Two nodes of two sockets of two NUMA domains of two L3 caches of two cores of two threads.
NESTED = {
    level: [slot // size for slot in range(64)]
    for level, size in zip(LEVELS, (2, 4, 8, 16, 32), strict=True)
}


@pytest.mark.parametrize(
    ("size", "expected"),
    [(1, 1), (3, 4), (4, 4), (5, 8), (8, 8), (9, 16), (16, 16), (17, 32), (32, 32), (33, 64)],
)
def test_a_test_gets_slots_of_the_smallest_domain_that_holds_it(size: int, expected: int) -> None:
    # One slot is in use in every domain but the last of each kind.
    for used in (0, 32, 48, 56, 60):
        slots = FreeSlots(64, NESTED)
        for slot in range(64):
            if slot != used:
                slots.add(slot)
        picked = slots.pick(size)
        assert picked is not None
        assert len({slot // expected for slot in picked}) == 1


def test_the_tightest_domain_is_in_the_tightest_of_those_around_it() -> None:
    slots = all_free(NESTED)
    assert slots.pick(20) == tuple(range(20))
    assert slots.pick(4) == (20, 21, 22, 23), "not of the other node"
    assert slots.pick(8) == tuple(range(24, 32))
    assert slots.pick(8) == tuple(range(32, 40))


def test_a_test_that_needs_several_domains_begins_as_few_as_possible() -> None:
    slots = all_free(NESTED)
    assert slots.pick(2) == (0, 1)
    assert slots.pick(14) == tuple(range(2, 16))
    assert slots.pick(3) == (16, 17, 18)
    assert slots.pick(9) == (20, *range(24, 32)), "all of the NUMA domain that is free"


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 33])
def test_an_exclusive_test_gets_whole_domains_of_its_level_and_no_more(
    level: str, size: int
) -> None:
    slots = all_free(NESTED)
    picked = slots.pick(size, exclusive=level)
    assert picked is not None
    of = NESTED[level]
    own = {of[slot] for slot in picked}
    assert sorted(picked) == [slot for slot in range(64) if of[slot] in own]
    assert len(own) == -(-size // of.count(0))
    assert list(picked[:size]) == sorted(picked[:size]), "its own come first"
    assert slots.pick(64 - len(picked)) is not None


def test_several_domains_of_an_exclusive_test_are_near_each_other() -> None:
    slots = all_free(NESTED)
    assert slots.pick(1) == (0,)
    assert slots.pick(6, exclusive="l3") == tuple(range(8, 16)), "the first NUMA domain is in use"


def test_of_a_domain_that_is_partly_in_use_no_smaller_one_is_lost() -> None:
    slots = all_free(NESTED)
    assert slots.pick(1) == (0,)
    assert slots.pick(1, exclusive="l3") == (4, 5, 6, 7)
    assert slots.pick(1, exclusive="core") == (2, 3)
    assert slots.pick(1, exclusive="node") == tuple(range(32, 64))
    assert slots.pick(1, exclusive="node") is None


@given(some_domains, st.data())
def test_a_seat_is_given_to_one_at_a_time_and_none_is_lost(
    domains: list[int], data: st.DataObject
) -> None:
    slots = all_free(layout(domains))
    taken: list[tuple[int, ...]] = []
    for _ in range(data.draw(st.integers(0, 20))):
        gives_back = data.draw(st.booleans())
        if taken and gives_back:
            for slot in taken.pop(data.draw(st.integers(0, len(taken) - 1))):
                slots.add(slot)
        size = data.draw(st.integers(1, len(domains)))
        exclusive = "numa" if data.draw(st.booleans()) else None
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
    assert slots.pick(len(domains), exclusive="numa") == tuple(range(len(domains)))


@given(some_domains, st.data())
def test_seats_are_of_one_domain_if_any_has_enough_of_them(
    domains: list[int], data: st.DataObject
) -> None:
    free = data.draw(st.sets(st.integers(0, len(domains) - 1), min_size=1))
    slots = FreeSlots(len(domains), layout(domains))
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
        ScheduledTest(index=1, size=3, exclusive="numa"),
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
def exclusive_suites(draw: st.DrawFn) -> tuple[dict[str, Sequence[int]], list[ScheduledTest]]:
    numa = draw(st.lists(st.integers(0, 2), min_size=1, max_size=8))
    halves = [2 * number + draw(st.integers(0, 1)) for number in numa]
    domains = layout(numa, l3=halves, socket=[number // 2 for number in numa])
    any_level = st.sampled_from((None, None, *LEVELS))
    tests = draw(st.lists(st.tuples(st.integers(1, len(numa)), any_level), min_size=1, max_size=20))
    return domains, [
        ScheduledTest(
            index=index,
            size=size,
            seconds=draw(st.sampled_from((0.001, 1.0))),
            world_kind=draw(st.sampled_from(("shared", "exact"))) if level else "shared",
            exclusive=level,
        )
        for index, (size, level) in enumerate(tests)
    ]


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@given(suite=exclusive_suites())
def test_nothing_else_runs_in_the_domains_of_an_exclusive_test_and_all_are_run(
    scheduler: str, suite: tuple[dict[str, Sequence[int]], list[ScheduledTest]]
) -> None:
    domains, cases = suite
    pace, width = Pace(), len(domains["node"])
    listed = ScheduledSuite(cases=cases, groups=[])
    policy = make_scheduler(scheduler, listed, width, pace, domains=domains)
    seconds = [case.seconds or 0.0 for case in cases]
    spans = simulate(policy, seconds, width, pace=pace).spans
    assert sorted(span.case for span in spans) == list(range(len(cases)))
    for span in spans:
        case = cases[span.case]
        own = span.ranks[: case.size]
        assert len(own) == case.size
        if case.exclusive is None:
            assert own == span.ranks
            continue
        of = domains[case.exclusive]
        alone = {of[slot] for slot in own}
        for other in spans:
            if other is not span and overlap(span, other):
                used = other.ranks[: cases[other.case].size]
                assert not {of[slot] for slot in used} & alone


def test_static_keeps_tests_within_a_domain_also_where_ranks_are_spread_in_turns() -> None:
    cases = [ScheduledTest(index=index, size=2) for index in range(2)]
    static = Static(cases, 4, Pace(), domains=layout((0, 1, 0, 1)))
    static.release((0, 1, 2, 3))
    assert [static.take(), static.take()] == [
        Assignment(cases=(0,), ranks=(0, 2)),
        Assignment(cases=(1,), ranks=(1, 3)),
    ]


def test_static_runs_small_tests_beside_an_exclusive_one() -> None:
    cases = [
        *(ScheduledTest(index=index, size=1) for index in range(4)),
        ScheduledTest(index=4, size=3, exclusive="numa"),
    ]
    static = Static(cases, 8, Pace(), domains=TWO_BY_FOUR)
    static.release(tuple(range(8)))
    started = []
    while (assignment := static.take()) is not None:
        started.append(assignment)
    assert Assignment(cases=(4,), ranks=(0, 1, 2, 3)) in started
    assert sorted(one.ranks for one in started)[1:] == [(4,), (5,), (6,), (7,)]


def test_tests_that_share_do_not_wait_for_exclusive_ones_of_their_size() -> None:
    cases = [
        ScheduledTest(index=0, size=2, seconds=9.0),
        ScheduledTest(index=1, size=1, seconds=9.0, exclusive="node"),
        ScheduledTest(index=2, size=1, seconds=1.0),
    ]
    policy = Dynamic(cases, 8, Pace(), domains=TWO_BY_FOUR)
    assert [one.cases for one in start(policy, 8)] == [(0,), (2,)]


def overlap(one: Span, other: Span) -> bool:
    return one.start < other.end and other.start < one.end


def test_an_exclusive_test_does_not_travel_behind_one_that_shares_its_domain() -> None:
    """Of equal size and equal world_kind: the batch has the slots that its first test asked for."""
    cases = [
        ScheduledTest(
            index=index,
            size=2,
            seconds=0.001,
            world_kind="exact",
            exclusive="numa" if index % 2 else None,
        )
        for index in range(32)
    ]
    policy = Dynamic(cases, 8, Pace(), domains=TWO_BY_FOUR)
    for assignment in start(policy, 8):
        if any(cases[index].exclusive for index in assignment.cases):
            assert assignment.ranks in {(0, 1, 2, 3), (4, 5, 6, 7)}


# Policies whose tests come back because ranks were lost, and batches of tests in different worlds


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
