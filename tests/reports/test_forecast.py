from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwise.reports.status import Forecast, durations_before
from rankwise.store import State, Store
from tests.reports.made_runs import make_run, passed_run


def test_nothing_is_known_at_first() -> None:
    forecast = Forecast(waiting=3)
    assert forecast.seconds_left(1.0) is None
    forecast.started("a", 1.0)
    assert forecast.seconds_left(2.0) is None


def test_what_is_left_is_like_what_was() -> None:
    forecast = Forecast(waiting=4)
    forecast.started("a", 0.0)
    forecast.over("a", 10.0)
    forecast.started("b", 10.0)
    # Half of b, and two more, one at a time.
    assert forecast.seconds_left(15.0) == pytest.approx(25.0)


def test_the_run_before_counts_for_those_that_are_known() -> None:
    forecast = Forecast(waiting=2, known={"a": 60.0, "b": 20.0})
    forecast.started("a", 0.0)
    forecast.started("b", 0.0)
    # Two at a time: no sooner than the longest.
    assert forecast.seconds_left(10.0) == pytest.approx(50.0)


@given(st.lists(st.floats(0.001, 1e4), min_size=1, max_size=20), st.floats(0, 1e4))
def test_it_is_never_less_than_nothing(durations: list[float], more: float) -> None:
    forecast = Forecast(waiting=len(durations) + 1)
    now = 0.0
    for number, seconds in enumerate(durations):
        forecast.started(str(number), now)
        now += seconds
        forecast.over(str(number), now)
        left = forecast.seconds_left(now)
        assert left is not None
        assert left >= 0
    forecast.started("last", now)
    left = forecast.seconds_left(now + more)
    assert left is not None
    assert left >= 0


def test_durations_are_those_of_the_run_before(store: Store) -> None:
    first, second = passed_run(store), make_run(store)
    known = durations_before(store, store.run(second))
    passed = list(store.tasks_in(first, (State.PASSED,)))
    assert passed
    assert known == {row.key: (row.ended or 0) - (row.started or 0) for row in passed}
    assert durations_before(store, store.run(first)) == {}
