from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise.reports.pdf import standalone
from rankwise.reports.plots.axes import axis_for, labelled, number_text
from rankwise.reports.plots.charts import Bar, Dot, Series, Words, bar_plot, heatmap, line_plot
from rankwise.reports.plots.svg import width_of

WORDS = Words(x="message size", y="latency", x_unit="B", y_unit="us")
any_number = st.floats(allow_nan=True, allow_infinity=True)


def line_of(*places: tuple[float, float]) -> Series:
    return Series(name="a", dots=[Dot(x=x, y=y, low=y, high=y) for x, y in places])


def is_clean(svg: str) -> None:
    """Check that it is XML, and that no coordinate is anything but a number."""
    root = ElementTree.fromstring(svg)
    for element in root.iter():
        for name in ("x", "y", "x1", "x2", "y1", "y2", "width", "height"):
            value = element.get(name)
            assert value is None or math.isfinite(float(value))
        for name in ("d", "points"):
            assert not any(word in element.get(name, "") for word in ("nan", "inf"))


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (0, "0"),
        (1234, "1,234"),
        (0.0125, "0.0125"),
        (1.05e8, "1.05·10⁸"),
        (1e-6, "10⁻⁶"),
        (-1e308, "-10³⁰⁸"),
        (math.nan, "nan"),
        (math.inf, "inf"),
        (999999.7, "1,000,000"),
    ],
)
def test_numbers_are_written_as_people_read_them(value: float, written: str) -> None:
    assert number_text(value) == written


def test_sizes_have_units_of_bytes() -> None:
    assert [labelled(2.0**power, in_bytes=True) for power in (0, 10, 22)] == [
        "1 B",
        "1 KiB",
        "4 MiB",
    ]


def test_an_axis_is_logarithmic_where_values_differ_by_factors() -> None:
    assert axis_for([1, 1000]).is_log
    assert not axis_for([10, 20]).is_log
    assert not axis_for([-1, 1000]).is_log
    # Ranks are chosen as powers of two.
    assert axis_for([1, 2, 4, 8], own_ticks=True).is_log


def test_ticks_of_a_logarithmic_axis_are_powers() -> None:
    axis = axis_for([1, 1e6])
    assert [value for value, _ in axis.ticks] == [10.0**power for power in range(7)]
    sizes = axis_for([2.0**power for power in range(23)], in_bytes=True, own_ticks=True)
    assert [words for _, words in sizes.ticks][:3] == ["1 B", "16 B", "256 B"]


@settings(deadline=None)
@given(st.lists(any_number), st.booleans(), st.booleans())
def test_every_axis_has_a_place_for_what_it_shows(
    values: list[float], in_bytes: bool, own_ticks: bool
) -> None:
    axis = axis_for(values, in_bytes=in_bytes, own_ticks=own_ticks)
    assert len(axis.ticks) <= 12
    for value in values:
        if axis.shows(value):
            assert -1e-9 <= axis.at(value) <= 1 + 1e-9
    for value, _ in axis.ticks:
        assert math.isfinite(axis.at(value))


@settings(deadline=None)
@given(st.lists(st.tuples(any_number, any_number), max_size=30))
def test_lines_of_any_numbers_are_drawings(places: list[tuple[float, float]]) -> None:
    svg, left_out = line_plot([line_of(*places), line_of((1.0, 1.0))], WORDS)
    is_clean(svg)
    unfit = sum(not (math.isfinite(x) and math.isfinite(y)) for x, y in places)
    assert left_out >= unfit


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from("abc"), any_number))
def test_heatmaps_and_bars_of_any_numbers_are_drawings(values: dict[str, float]) -> None:
    cells = {(name, name): value for name, value in values.items()}
    is_clean(heatmap(cells, "abc", "abc", words=("x", "y")))
    bars = [Bar(name=name, value=one, said="", low=one, high=one) for name, one in values.items()]
    is_clean(bar_plot(bars, "bars"))


def test_a_zero_is_the_palest_field_of_a_logarithmic_heatmap() -> None:
    svg = heatmap(
        {("a", "a"): 0.0, ("b", "a"): 1.0, ("c", "a"): 21.0}, "abc", "a", words=("x", "y")
    )
    fields = [one for one in ElementTree.fromstring(svg).iter() if one.find("./") is not None]
    shades = [one.get("fill-opacity") for one in fields if one.tag.endswith("rect")]
    assert shades == ["0.07", "0.07", "0.95"]


def test_hostile_names_are_only_words() -> None:
    name = "</svg><script>alert(1)</script>&\x00\ud800\u202e"
    series = Series(name=name, dots=[Dot(x=1, y=1, low=0, high=2, note=name)] * 2)
    for svg in (
        line_plot([series, series], Words(x=name, y=name))[0],
        heatmap({(name, name): 1.0}, [name], [name], words=(name, name), unit=name),
        bar_plot([Bar(name=name, value=1, said=name)], name),
    ):
        root = ElementTree.fromstring(svg)
        assert not [one for one in root.iter() if one.tag.endswith("script")]
        assert "alert(1)" in "".join(root.itertext())
        svg.encode()


def test_the_same_data_are_the_same_drawing() -> None:
    series = [line_of((1, 2), (2, 4)), line_of((1, 3))]
    assert line_plot(series, WORDS) == line_plot(series, WORDS)


def test_lines_differ_by_more_than_their_colour() -> None:
    svg, _ = line_plot([line_of((1, 2), (2, 4)), line_of((1, 3), (2, 5))], WORDS)
    root = ElementTree.fromstring(svg)
    strokes = [one for one in root.iter() if one.get("stroke-width")]
    assert len({one.get("stroke-dasharray") for one in strokes}) == 2
    corners = {len(str(one.get("points")).split()) for one in root.iter() if one.get("points")}
    assert len(corners) == 2


def test_values_without_a_place_on_a_logarithmic_axis_are_counted() -> None:
    svg, left_out = line_plot([line_of((0, 1), (1, 1), (1000, 2))], WORDS)
    assert left_out == 1
    is_clean(svg)


def test_a_drawing_brings_its_colours_where_there_is_no_page() -> None:
    svg, _ = line_plot([line_of((1, 2), (2, 4))], WORDS)
    alone = standalone(svg)
    assert "#0072b2" in alone
    ElementTree.fromstring(alone)


def test_names_beside_bars_fit_into_their_room_and_stay_different() -> None:
    names = [f"program-{'W' * 60}.ranks-{number}" for number in range(16)]
    drawn = bar_plot([Bar(name=name, value=1.0, said="1 s") for name in names], "time")
    texts = re.findall(r'<text x="([\d.]+)"[^>]*text-anchor="end"[^>]*>([^<]*)</text>', drawn)
    assert len({name for _, name in texts}) == len(names)
    assert all(float(right) - width_of(name) >= 0 for right, name in texts)
    assert width_of("W") >= 0.9 * 15
