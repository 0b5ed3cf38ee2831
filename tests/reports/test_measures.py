from __future__ import annotations

import dataclasses
import io
import json
import math
import uuid
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from rankwise.documents.load import load
from rankwise.documents.sweep import Sweep
from rankwise.planning.sweeps import cases_of
from rankwise.reports.figures import figures_of, groups_of
from rankwise.reports.measurements import Measure, Spread, as_number, measures_of, spread_of
from rankwise.reports.model import ReportData
from rankwise.reports.terminal.run_end import show_measures
from rankwise.store import Store
from rankwise.store.samples import Sample
from tests.reports.measured_runs import make_sweep, osu_sweep, sweep_task


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


def test_a_row_of_the_terminal_shows_what_differs_in_full() -> None:
    rows = [
        measured("allgather_latency", program="allgather", ranks=2, size=size, value=3.25)
        for size in (8192, 16384)
    ]
    before = Spread(middle=0.1, low=0.1, high=0.1, count=1)
    compared = [dataclasses.replace(one, before=before) for one in rows]
    written = io.StringIO()
    show_measures(Console(file=written, width=80), compared, room=20)
    assert written.getvalue().splitlines()[1:] == [
        "  allgather_latency  size=8192   3.25 s  3.25 - 3.25  +3150%",
        "  allgather_latency  size=16384  3.25 s  3.25 - 3.25  +3150%",
        "  Changes are since the run before.",
    ]


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
    assert "ranks 4: 100%" in efficiency.svg


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
    assert ReportData(store=store, run=store.run(before), now=0).measures[0].verdict == ""
    data = ReportData(store=store, run=store.run(after), now=0)
    verdicts = {(one.metric, one.verdict) for one in data.measures if one.now.count >= 11}
    assert verdicts == {("latency", "regressed"), ("bandwidth", "regressed")}
    # Two trials decide nothing.
    assert {one.verdict for one in data.measures if one.metric == "solve_time"} == {"inconclusive"}
    assert dict(data.cards)[f"regressed since {before}"] == "72 of 87"


def test_a_change_for_good_is_found_in_the_runs(store: Store) -> None:
    for number in range(12):
        run = osu_sweep(store, seed=number, trials=3, factor=1.0 if number < 7 else 1.6)
    data = ReportData(store=store, run=store.run(run), now=0)
    assert {tuple(turn.change.at for turn in trend.turns) for _, trend in data.trends} == {(7,)}
    [*_, trend, _] = data.figures
    assert "It has changed with sweep-8." in trend.note


def test_cases_that_differ_in_nodes_and_ranks_per_node_have_lines_of_their_own() -> None:
    # One node is not named where others have two: the same 2 ranks are two different cases.
    rows = [
        measured(ranks=1, value=8),
        measured(ranks=2, value=4),
        measured(ranks=2, nodes=2, value=5),
        measured(ranks=4, nodes=2, value=3),
    ]
    [over_ranks, *_] = figures_of(rows, [], [])
    for said in ("4 s", "5 s"):
        assert f"ranks 2: {said}" in over_ranks.svg


PARAMETERS = st.dictionaries(
    st.sampled_from(["ranks", "nodes", "ranks_per_node", "size", "mpi", "chunk"]),
    st.sampled_from(["1", "2", "16", "1K", "1024", "1.0", "fast", "slow"]),
)


@given(st.lists(PARAMETERS, max_size=12))
def test_every_measure_is_in_one_series_of_one_drawing(where: list[dict[str, str]]) -> None:
    rows = [
        dataclasses.replace(measured(value=1), series=number, parameters=parameters)
        for number, parameters in enumerate(where)
    ]
    drawn = [
        measure.series
        for group in groups_of(rows)
        for line in group.lines().values()
        for measure in line
    ]
    assert sorted(drawn) == list(range(len(rows)))
    for group in groups_of(rows):
        if group.across:
            for line in group.lines().values():
                places = [as_number(one.parameters[group.across]) for one in line]
                assert len(set(places)) == len(places)


@given(
    nodes=st.lists(st.integers(1, 3), min_size=1, max_size=3, unique=True),
    per_node=st.lists(st.integers(1, 4), max_size=3, unique=True),
    parameters=st.dictionaries(
        st.sampled_from(["size", "mpi", "chunk"]),
        st.lists(st.sampled_from(["1", "1K", "1024", "a b", "c=d", "x"]), min_size=1, unique=True),
        max_size=2,
    ),
)
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_every_case_of_a_sweep_has_a_series_and_a_place_of_its_own(
    store: Store, nodes: list[int], per_node: list[int], parameters: dict[str, list[str]]
) -> None:
    given_values: dict[str, Any] = {"nodes": nodes, "parameters": parameters}
    if per_node:
        given_values["ranks_per_node"] = per_node
    text = json.dumps({"type": "Sweep", "command": "true", **given_values})
    path = store.folder / "sweep.yaml"
    path.write_text(text)
    cases, _ = cases_of(cast(Sweep, load(path).model))
    tasks = [sweep_task(f"case-{number}", case.names) for number, case in enumerate(cases)]
    run = make_sweep(store, cases=tasks, name=f"sweep-{uuid.uuid4().hex}")
    for number, case in enumerate(cases):
        sample = Sample(metric="time", value=float(number), unit="s", better="lower")
        store.add_samples(run, f"case-{number}", 1, [sample], case=case.name)
    by_key = {task.key: task for task in tasks}
    measures = measures_of(store, run, store.run(run).name, before=None, tasks=by_key)
    assert sorted(one.now.middle for one in measures) == list(range(len(cases)))
    drawn = [
        one.now.middle
        for group in groups_of(measures)
        for line in group.lines().values()
        for one in line
    ]
    assert sorted(drawn) == list(range(len(cases)))


@pytest.mark.parametrize(
    ("before", "now", "change"),
    [
        (10.0, 12.0, 0.2),
        (10.0, 8.0, -0.2),
        (-10.0, -12.0, -0.2),
        (-10.0, -8.0, 0.2),
        (0.0, 1.0, None),
    ],
)
def test_a_change_is_a_share_of_what_was_before(
    before: float, now: float, change: float | None
) -> None:
    one = measured(value=now)
    spread = Spread(middle=before, low=before, high=before, count=1)
    found = dataclasses.replace(one, before=spread).change
    assert found == (None if change is None else pytest.approx(change))


def test_points_that_are_near_each_other_stay_apart(store: Store) -> None:
    run = make_sweep(store, cases=[sweep_task("one", {"trial": "1"})])
    points: list[float] = [1048576.0, 1048577.0, 0.1234567, 0.1234568, 2e12, 2.0]
    samples = [Sample(metric="time", value=1.0, unit="s", point={"size": one}) for one in points]
    store.add_samples(run, "one", 1, samples, case="")
    measures = measures_of(store, run, "sweep", before=None, tasks={})
    sizes = [one.parameters["size"] for one in measures]
    assert sizes == ["1048576", "1048577", "0.1234567", "0.1234568", "2000000000000", "2"]
