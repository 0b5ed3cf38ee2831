"""Which tests are over their limits: decided from moments, on a clock that stands still."""

from __future__ import annotations

import time
from collections.abc import Mapping

import pytest

from rankwise.pytest_plugin.rank_status import (
    HangWatch,
    Overdue,
    Phase,
    RankStatus,
    Setups,
    find_overdue,
)

NOW = 1000.0


def moment(case: int, seconds: float, phase: Phase = "call") -> RankStatus:
    return RankStatus(case=case, phase=phase, since=NOW - seconds)


def overdue(
    *moments: RankStatus,
    limits: tuple[float, ...] = (10.0, 10.0),
    failures: Mapping[int, float] | None = None,
) -> list[Overdue]:
    return find_overdue(moments, limits, failures or {}, grace=5.0, now=NOW)


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
    found = overdue(moment(0, 7.0), failures={0: NOW - ago})
    assert [one.why for one in found] == expected


def test_the_failure_of_one_test_is_nothing_to_another() -> None:
    assert overdue(moment(1, 7.0), failures={0: NOW - 9.0}) == []


def test_the_grace_counts_without_a_limit_too() -> None:
    found = overdue(moment(0, 7.0), limits=(0.0,), failures={0: NOW - 6.0})
    assert found == [Overdue(case=0, why="grace", phase="call", seconds=7.0)]


def test_the_failure_comes_before_the_limit() -> None:
    found = overdue(moment(0, 20.0), failures={0: NOW - 6.0})
    assert [one.why for one in found] == ["grace"]


def test_fixtures_of_a_wider_scope_have_their_limit_and_no_grace() -> None:
    """The test itself is over: nobody waits for those that failed in it."""
    assert overdue(moment(0, 7.0, "closing"), failures={0: NOW - 6.0}) == []
    found = overdue(moment(0, 20.0, "closing"), failures={0: NOW - 6.0})
    assert [(one.why, one.phase) for one in found] == [("limit", "closing")]


@pytest.mark.parametrize("phase", ["closing", "ending"])
def test_who_waits_for_a_rank_that_is_still_at_the_test_is_not_overdue(phase: Phase) -> None:
    assert overdue(moment(0, 9.9, "call"), moment(0, 10.1, phase)) == []
    [found] = overdue(moment(0, 10.1, "call"), moment(0, 10.2, phase))
    assert (found.case, found.why, found.phase) == (0, "limit", "call")
    assert overdue(moment(0, 1.0, phase), moment(0, 11.0, phase)) == []


def test_a_process_ends_when_all_of_its_world_do() -> None:
    assert overdue(moment(0, 11.0, "ending"), moment(1, 9.0, "closing")) == []
    assert overdue(moment(0, 11.0, "ending"), moment(1, 9.0, "call")) == []
    assert overdue(moment(0, 12.0, "ending"), moment(1, 11.0, "ending")) != []


def test_a_fixture_that_another_worker_has_is_named_with_that() -> None:
    setups = Setups()
    for worker, state in ((0, "begins"), (0, "done"), (1, "begins")):
        setups.note(worker, "key", "the fixture `server`", state)  # type: ignore[arg-type]
    hint = setups.give_up(1, "test_it.py::test_it", 600.0)
    assert hint.startswith("It sets up the fixture `server`. Another worker has it already. ")
    too_short, why = setups.hopeless["key"]
    assert too_short == 600.0
    assert "within 600 s (time limit) for test_it.py::test_it" in why


def test_a_fixture_that_has_failed_or_is_gone_with_its_worker_is_no_reason() -> None:
    setups = Setups()
    setups.note(0, "key", "the fixture `server`", "begins")
    setups.note(0, "key", "the fixture `server`", "failed")
    assert setups.give_up(0, "test_it.py::test_it", 600.0) == ""
    setups.note(1, "key", "the fixture `server`", "begins")
    setups.note(1, "key", "the fixture `server`", "done")
    setups.note(2, "key", "the fixture `server`", "begins")
    setups.forget([0, 1])
    assert "Another worker" not in setups.give_up(2, "test_it.py::test_it", 600.0)


def test_of_fixtures_that_need_each_other_the_innermost_is_given_up() -> None:
    setups = Setups()
    setups.note(0, "outer", "the fixture `outer`", "begins")
    setups.note(0, "inner", "the fixture `inner`", "begins")
    assert "`inner`" in setups.give_up(0, "test_it.py::test_it", 1.0)
    assert list(setups.hopeless) == ["inner"]


def test_the_grace_ends_for_a_test_whose_failed_ranks_repeat_it() -> None:
    watch: HangWatch[str] = HangWatch([0.0], grace=-1.0)
    running = [RankStatus(case=0, phase="call", since=time.monotonic())]
    watch.rank_failed(0, 1, "assert 0")
    assert [one.why for one in watch.find(running)] == ["grace"]
    assert watch.failures_of(0) == {1: "assert 0"}
    watch.rank_repeats(0, 1)
    assert watch.find(running) == []
    assert watch.failures_of(0) == {}


def test_one_of_two_failed_ranks_that_repeats_a_test_does_not_end_the_grace() -> None:
    watch: HangWatch[str] = HangWatch([0.0], grace=-1.0)
    running = [RankStatus(case=0, phase="call", since=time.monotonic())]
    watch.rank_failed(0, 0, "first")
    watch.rank_failed(0, 1, "second")
    watch.rank_repeats(0, 0)
    assert [one.why for one in watch.find(running)] == ["grace"]


def test_only_failures_of_tests_that_are_not_over_count() -> None:
    watch: HangWatch[str] = HangWatch([0.0, 0.0], grace=-1.0)
    watch.rank_failed(0, 0, "over")
    watch.rank_failed(1, 0, "runs")
    watch.forget_all_but({1})
    assert (watch.failures_of(0), watch.failures_of(1)) == ({}, {0: "runs"})


def test_time_that_a_debugger_held_everything_is_given_back() -> None:
    watch: HangWatch[str] = HangWatch([10.0])
    begun = time.monotonic() - 100.0
    status = RankStatus(case=0, phase="call", since=begun)
    assert [one.why for one in watch.find([status])] == ["limit"]
    watch.pause(begun)
    assert watch.find([watch.without_pauses(status)]) == []
