from __future__ import annotations

import math

import pytest

from rankwise.report.facts import gather
from rankwise.report.figures import figures_of
from rankwise.report.measures import Measure, Spread, as_number, spread_of
from rankwise.report.outcomes import cards_of
from rankwise.store import Store
from tests.report.measured_runs import osu_sweep


def measured(
    metric: str = "time", unit: str = "s", better: str = "lower", **where: object
) -> Measure:
    parameters = {name: str(value) for name, value in where.items() if name != "value"}
    value = float(str(where["value"]))
    return Measure(
        series=1,
        metric=metric,
        unit=unit,
        better=better,
        case="",
        parameters=parameters,
        points=("size",) if "size" in parameters else (),
        now=Spread(middle=value, low=value, high=value, count=1),
    )


def test_values_in_short() -> None:
    assert spread_of([3, 1, 2]) == Spread(middle=2, low=1, high=3, count=3)
    assert spread_of(range(1, 10)) == Spread(middle=5, low=3, high=7, count=9)
    assert spread_of([math.nan, math.inf]) is None
    assert spread_of([]) is None
    great = spread_of([1e308, 1.5e308])
    assert great is not None
    assert great.middle == pytest.approx(1.25e308)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8", 8),
        ("4KiB", 4096),
        ("1M", 1048576),
        ("1e3", 1000),
        ("-2.5", -2.5),
        ("mpich", None),
        ("", None),
        ("1e999", None),
        ("1.2.3", None),
        ("nan", None),
    ],
)
def test_parameters_that_are_numbers(text: str, value: float | None) -> None:
    assert as_number(text) == value


def titles(*measures: Measure) -> list[str]:
    return [figure.title for figure in figures_of(measures, [], [])]


def test_what_has_sizes_is_drawn_over_them() -> None:
    rows = [
        measured("latency", "us", value=size, size=size, mpi=mpi)
        for size in (1, 1024, 4096)
        for mpi in ("mpich", "openmpi")
    ]
    assert titles(*rows) == ["Latency against message size"]


def test_what_has_ranks_is_drawn_with_its_efficiency() -> None:
    rows = [measured(value=8 / ranks, ranks=ranks) for ranks in (1, 2, 4)]
    assert titles(*rows) == ["Time against ranks", "Efficiency of time against ranks"]
    [_, efficiency] = figures_of(rows, [], [])
    assert "ranks 4: 100 %" in efficiency.svg


def test_two_parameters_make_a_field() -> None:
    rows = [measured(value=a * b, ranks=a, grid=b) for a in (1, 2, 4) for b in (8, 16, 32)]
    assert titles(*rows)[-1] == "Time by ranks and grid"


def test_names_make_bars() -> None:
    rows = [measured(value=2, mpi="mpich"), measured(value=3, mpi="openmpi")]
    [figure] = figures_of(rows, [], [])
    assert figure.title == "Time"
    assert "mpi openmpi: 3 s" in figure.svg


def test_the_time_of_cases_is_drawn_if_there_are_some() -> None:
    assert figures_of([], [], [("a", 1.0)]) == []
    [figure] = figures_of([], [], [("a", 1.0), ("b", 2.0), ("c", 3.0)])
    assert figure.title == "Where the time went"


def test_one_value_is_no_plot() -> None:
    assert titles(measured(value=1)) == []


def test_a_measure_is_judged_by_the_run_before(store: Store) -> None:
    before = osu_sweep(store, seed=3, trials=12)
    after = osu_sweep(store, seed=4, trials=12, factor=1.5)
    assert gather(store, store.run(before), now=0).measures[0].verdict == ""
    data = gather(store, store.run(after), now=0)
    verdicts = {(one.metric, one.verdict) for one in data.measures if one.now.count >= 11}
    assert verdicts == {("latency", "regressed"), ("bandwidth", "regressed")}
    # Two trials decide nothing.
    assert {one.verdict for one in data.measures if one.metric == "solve_time"} == {"inconclusive"}
    assert dict(cards_of(data))[f"regressed since {before}"] == "72 of 87"


def test_a_change_for_good_is_found_in_the_runs(store: Store) -> None:
    for number in range(12):
        run = osu_sweep(store, seed=number, trials=3, factor=1.0 if number < 7 else 1.6)
    data = gather(store, store.run(run), now=0)
    assert {trend.changes for trend in data.trends} == {(7,)}
    [*_, trend, _] = data.figures
    assert "It has changed with sweep-8." in trend.note
