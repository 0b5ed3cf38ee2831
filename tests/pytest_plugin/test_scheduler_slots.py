"""Slots and NUMA domains: who sits where, and who sits alone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwise.pytest_plugin.schedulers.base import Assignment, Pace, ScheduledTest
from rankwise.pytest_plugin.schedulers.dynamic import Dynamic, FreeSlots
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


def test_an_exclusive_test_gets_no_domain_in_which_somebody_sits() -> None:
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
