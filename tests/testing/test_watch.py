"""Which tests are over their limits: decided from moments, on a clock that stands still."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from rankwise.testing.blackbox import Moment, Phase
from rankwise.testing.watch import Overdue, find_overdue

NOW = 1000.0


def moment(case: int, seconds: float, phase: Phase = "call") -> Moment:
    return Moment(case=case, phase=phase, since=NOW - seconds)


def overdue(
    *moments: Moment,
    limits: tuple[float, ...] = (10.0, 10.0),
    stumbles: Mapping[int, float] | None = None,
) -> list[Overdue]:
    return find_overdue(moments, limits, stumbles or {}, grace=5.0, now=NOW)


def test_nothing_is_overdue_where_nothing_runs() -> None:
    assert overdue() == []


@pytest.mark.parametrize("phase", ["setup", "call", "teardown", "closing"])
def test_each_phase_has_the_limit_of_its_test(phase: Phase) -> None:
    assert overdue(moment(0, 9.0, phase), moment(1, 10.0, phase)) == []
    assert overdue(moment(0, 11.0, phase), moment(1, 9.0, phase)) == [
        Overdue(case=0, why="limit", phase=phase, seconds=11.0)
    ]


def test_a_limit_of_zero_is_none() -> None:
    assert overdue(moment(0, 1e6), limits=(0.0,)) == []


def test_each_test_has_its_own_limit() -> None:
    found = overdue(moment(0, 50.0), moment(1, 50.0), limits=(60.0, 40.0))
    assert [one.case for one in found] == [1]


def test_a_test_is_named_once_with_the_rank_that_has_waited_longest() -> None:
    found = overdue(moment(0, 12.0, "teardown"), moment(0, 30.0), moment(0, 20.0))
    assert found == [Overdue(case=0, why="limit", phase="call", seconds=30.0)]


def test_several_tests_may_be_overdue_at_once() -> None:
    found = overdue(moment(0, 12.0), moment(1, 30.0))
    assert {one.case for one in found} == {0, 1}


@pytest.mark.parametrize(("ago", "expected"), [(4.0, []), (5.0, []), (6.0, ["grace"])])
def test_after_a_failure_the_others_have_the_grace(ago: float, expected: list[str]) -> None:
    found = overdue(moment(0, 7.0), stumbles={0: NOW - ago})
    assert [one.why for one in found] == expected


def test_the_failure_of_one_test_is_nothing_to_another() -> None:
    assert overdue(moment(1, 7.0), stumbles={0: NOW - 9.0}) == []


def test_the_grace_counts_without_a_limit_too() -> None:
    found = overdue(moment(0, 7.0), limits=(0.0,), stumbles={0: NOW - 6.0})
    assert found == [Overdue(case=0, why="grace", phase="call", seconds=7.0)]


def test_the_failure_comes_before_the_limit() -> None:
    found = overdue(moment(0, 20.0), stumbles={0: NOW - 6.0})
    assert [one.why for one in found] == ["grace"]


def test_fixtures_of_a_wider_scope_have_their_limit_and_no_grace() -> None:
    """The test itself is over: nobody waits for those that failed in it."""
    assert overdue(moment(0, 7.0, "closing"), stumbles={0: NOW - 6.0}) == []
    found = overdue(moment(0, 20.0, "closing"), stumbles={0: NOW - 6.0})
    assert [(one.why, one.phase) for one in found] == [("limit", "closing")]
