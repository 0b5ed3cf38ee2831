"""What timelines say about the time that a run took, and how they are drawn."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise.errors import InputError
from rankwise.plan import Process, Resources, Task
from rankwise.pytest_plugin.schedulers.base import Pace, ScheduledTest
from rankwise.pytest_plugin.schedulers.dynamic import Dynamic
from rankwise.reports.html import html_report, timeline_page, timeline_section
from rankwise.reports.lanes import LaneClaim, Timeline, TimelineBar, longest_chain, pack
from rankwise.reports.model import ReportData
from rankwise.reports.plots.timeline import MOST_SHAPES, draw
from rankwise.reports.timeline import findings, timeline_data, timeline_of_run
from rankwise.store import State, Store
from tests.reports.made_runs import BEGUN, begin, end, make_run, passed_run
from tests.support.simulate import simulate


def bar(
    name: str, lanes: tuple[int, ...], start: float, stop: float, **more: object
) -> TimelineBar:
    state = more.pop("state", State.PASSED)
    return TimelineBar(lanes=lanes, start=start, end=stop, name=name, state=state, **more)  # type: ignore[arg-type]


def timeline_of(
    *bars: TimelineBar, width: int = 2, stop: float | None = None, **more: object
) -> Timeline:
    return Timeline(
        title="pytest",
        lanes=tuple(f"rank {number}" for number in range(width)),
        bars=sorted(bars, key=lambda one: one.start),
        end=max(one.end for one in bars) if stop is None else stop,
        **more,  # type: ignore[arg-type]
    )


def causes_of(timeline: Timeline) -> dict[str, float]:
    return {one.cause: round(one.seconds, 6) for one in findings(timeline).causes}


# Findings


def test_time_is_compared_with_what_no_order_can_beat() -> None:
    found = findings(timeline_of(bar("a", (0,), 0, 3), bar("b", (1,), 0, 1), stop=4))
    assert (found.makespan, found.lower_bound, found.bound) == (4, 3, "longest")
    assert (found.busy, found.idle, found.efficiency) == (4, 4, 0.5)
    wide = findings(
        timeline_of(bar("a", (0, 1), 0, 1), bar("b", (0, 1), 1, 2), bar("c", (0,), 2, 3))
    )
    assert (wide.lower_bound, wide.bound) == (2.5, "work")


def test_the_three_longest_are_named_first() -> None:
    bars = [bar(f"t{number}", (0,), number**2, (number + 1) ** 2) for number in range(6)]
    assert [one.name for one in findings(timeline_of(*bars, width=1)).longest] == ["t5", "t4", "t3"]


def test_what_is_before_the_first_and_after_the_last_test_is_start_up_and_end() -> None:
    assert causes_of(timeline_of(bar("a", (0, 1), 1, 2), stop=2.5)) == {"start-up": 2, "ending": 1}


def test_a_rank_that_waits_for_the_last_test_waits_for_a_long_tail() -> None:
    timeline = timeline_of(bar("a", (0,), 0, 1), bar("slow", (1,), 0, 5), order="dynamic")
    assert causes_of(timeline) == {"long tail": 4}
    [tail, alone] = findings(timeline).advice
    assert tail.startswith("At the end all wait for slow (5.0 s on 1 rank): 4.0 s of rank time")
    assert alone.startswith("slow alone takes 5.0 s of 5.0 s")


def test_ranks_that_are_too_few_for_what_waits_wait_because_it_is_wide() -> None:
    timeline = timeline_of(bar("a", (0,), 0, 3), bar("both", (0, 1), 3, 4), order="dynamic")
    assert causes_of(timeline) == {"too wide": 3}
    assert "both needs all 2 ranks" in findings(timeline).advice[0]


def test_ranks_beside_a_wide_test_that_nothing_fits_blame_that_one() -> None:
    timeline = timeline_of(
        bar("three", (0, 1, 2), 0, 4), bar("two", (0, 1), 4, 5), width=4, order="dynamic"
    )
    assert causes_of(timeline) == {"too wide": 4, "long tail": 2}
    assert findings(timeline).advice[0].startswith("three has 3 of 4 ranks")


def test_a_rank_that_could_have_had_the_next_test_waits_for_its_turn() -> None:
    bars = [bar("a", (0,), 0, 1), bar("b", (0,), 1, 2), bar("c", (0,), 2, 3)]
    timeline = timeline_of(*bars, order="sequential")
    assert causes_of(timeline) == {"order": 2, "long tail": 1}
    assert "--scheduler=dynamic" in findings(timeline).advice[0]
    assert causes_of(timeline_of(*bars, is_fresh=True)) == {"start-up": 2, "long tail": 1}


@pytest.mark.parametrize("state", [State.CRASHED, State.TIMED_OUT])
def test_after_a_crash_ranks_wait_for_their_restart(state: State) -> None:
    timeline = timeline_of(bar("a", (0, 1), 0, 1, state=state), bar("b", (0, 1), 3, 4))
    assert causes_of(timeline) == {"restart": 4}
    assert "crashed or hung" in findings(timeline).advice[0]


def test_a_rank_that_ends_earlier_than_the_others_of_its_test_is_idle_from_then_on() -> None:
    uneven = bar("a", (0, 1), 0, 4, spans=((0, 1), (0, 4)))
    assert causes_of(timeline_of(uneven)) == {"long tail": 3}
    assert uneven.work == 5


def test_busy_ranks_are_said_to_be_so() -> None:
    [words] = findings(timeline_of(bar("a", (0, 1), 0, 1), bar("b", (0, 1), 1, 2.5))).advice[1:]
    assert words.startswith("The ranks are busy nearly all of the time")


def test_nothing_at_all_is_start_up() -> None:
    empty = Timeline(title="", lanes=("rank 0",), bars=(), end=2.0)
    assert causes_of(empty) == {"start-up": 2}
    assert findings(empty).advice == ()
    timeline_page(empty)


spans = st.tuples(st.integers(0, 3), st.integers(1, 4), st.floats(0, 10), st.floats(0.01, 5))


@settings(deadline=None)
@given(st.lists(spans, min_size=1, max_size=30))
def test_idle_and_busy_time_are_all_the_time_of_all_ranks(
    found: list[tuple[int, int, float, float]],
) -> None:
    claims = [
        LaneClaim(width=width, start=start, end=start + long) for _, width, start, long in found
    ]
    places = pack(claims)
    lanes = 1 + max(lane for place in places for lane in place)
    bars = [
        bar(f"t{number}", place, claim.start, claim.end)
        for number, (place, claim) in enumerate(zip(places, claims, strict=True))
    ]
    timeline = timeline_of(*bars, width=lanes)
    said = findings(timeline)
    assert said.busy == pytest.approx(math.fsum(one.work for one in bars))
    assert said.busy + said.idle == pytest.approx(lanes * said.makespan)
    assert said.lower_bound <= said.makespan * 1.000001
    assert math.fsum(gap.seconds for gap in said.gaps) == pytest.approx(said.idle)


# Lanes


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 20), st.integers(1, 9)), max_size=30))
def test_what_runs_at_the_same_time_is_on_different_lanes(
    found: list[tuple[int, int, int]],
) -> None:
    claims = [LaneClaim(width=width, start=start, end=start + long) for width, start, long in found]
    places = pack(claims)
    assert [len(set(place)) for place in places] == [claim.width for claim in claims]
    for moment in range(30):
        there = [
            lane
            for claim, place in zip(claims, places, strict=True)
            if claim.start <= moment < claim.end
            for lane in place
        ]
        assert len(there) == len(set(there))
    peak = max(
        (sum(one.width for one in claims if one.start <= t < one.end) for t in range(30)), default=0
    )
    assert 1 + max((lane for place in places for lane in place), default=-1) == peak


def test_the_longest_chain_is_of_those_that_need_each_other() -> None:
    bars = [
        bar("build", (0,), 0, 2),
        bar("lint", (1,), 0, 3),
        bar("test", (0,), 2, 6, needs=("build", "unknown")),
        bar("ship", (0,), 6, 7, needs=("test", "lint")),
    ]
    assert [one.name for one in longest_chain(bars)] == ["build", "test", "ship"]
    found = findings(timeline_of(*bars, order="needs", noun="task", lane_noun="core"))
    assert (found.lower_bound, found.bound) == (7, "chain")
    assert "build → test → ship take 7.0 s, one after the other: start there." in found.advice


# The runs of a store


def task(key: str, cores: float = 1, **more: object) -> Task:
    command = Process(name="run", role="run", command="true")
    return Task(key=key, processes=(command,), resources=Resources(cores=cores), **more)  # type: ignore[arg-type]


def test_a_run_is_lanes_of_as_many_cores_as_were_in_use_at_once(store: Store) -> None:
    run = make_run(store, task("wide", 3), task("small"), task("later", needs=("small",)))
    for key, after in (("wide", 5.0), ("small", 2.0)):
        begin(store, run, key, logs={})
        end(store, run, key, after=after, state=State.PASSED)
    begin(store, run, "later", logs={})
    timeline = timeline_of_run(store, run, now=BEGUN + 7)
    assert timeline.lanes == ("core 0", "core 1", "core 2", "core 3", "core 4")
    assert [(one.name, len(one.lanes), one.start, one.end) for one in timeline.bars] == [
        ("wide", 3, 1, 5),
        ("small", 1, 1, 2),
        ("later", 1, 1, 7),
    ]
    assert timeline.bars[2].state == State.RUNNING
    assert (timeline.noun, timeline.order, timeline.is_over) == ("task", "needs", False)


def test_ranks_that_ask_for_no_cores_are_in_slots_which_may_be_more_than_there_are_cores(
    store: Store,
) -> None:
    ranks = tuple(Process(name=f"rank-{n}", role="rank", command="true") for n in range(4))
    run = make_run(store, Task(key="wide", processes=ranks))
    begin(store, run, "wide", logs={})
    assert timeline_of_run(store, run, now=BEGUN + 7).lanes == (
        "slot 0",
        "slot 1",
        "slot 2",
        "slot 3",
    )


def test_time_between_tasks_is_not_said_of_tests() -> None:
    bars = [bar("one", (0,), 0, 1), bar("two", (0,), 3, 4)]
    advice = findings(timeline_of(*bars, noun="task", order="dynamic")).advice
    assert any("between tasks" in words for words in advice), advice
    assert not any("test" in words for words in advice), advice


def test_attempts_are_bars_of_their_own_and_very_many_lanes_become_slots(store: Store) -> None:
    run = make_run(store, task("huge", 1000))
    begin(store, run, "huge", logs={})
    end(store, run, "huge", after=2.0, state=State.FAILED, exit_code=1, is_over=False)
    begin(store, run, "huge", logs={})
    timeline = timeline_of_run(store, run, now=BEGUN + 3)
    assert timeline.lanes[0] == "slot 0"
    assert [one.note for one in timeline.bars] == ["", "attempt 2"]


def test_nodes_of_a_cluster_are_lanes(store: Store) -> None:
    run = make_run(store, task("big", 64, nodes=4, compute="cluster"))
    begin(store, run, "big", logs={})
    assert timeline_of_run(store, run, now=BEGUN + 3).lanes == tuple(f"node {n}" for n in range(4))


def test_a_run_that_is_not_there_is_an_error_in_words(store: Store) -> None:
    with pytest.raises(InputError):
        timeline_of_run(store, "none-1")


def test_reports_of_several_tasks_have_a_timeline_and_those_of_one_have_none(store: Store) -> None:
    alone = html_report(ReportData(store=store, run=store.run(passed_run(store)), now=BEGUN + 9))
    assert 'id="timeline"' not in alone
    run = make_run(store, task("one"), task("two"), name="many")
    for key in ("one", "two"):
        begin(store, run, key, logs={})
        end(store, run, key)
    store.run_ended(run, State.PASSED, exit_code=0, now=BEGUN + 4)
    several = html_report(ReportData(store=store, run=store.run(run), now=BEGUN + 9))
    assert 'id="timeline"' in several
    assert "What to change" in several


# The drawing


def shapes_of(svg: str, kind: str = "b") -> list[ElementTree.Element]:
    root = ElementTree.fromstring(svg)
    return [one for one in root.iter() if (one.get("class") or "").split(" ")[0] == kind]


def test_each_bar_is_a_shape_in_the_tone_of_its_outcome_that_says_what_it_is() -> None:
    svg = draw(
        timeline_of(
            bar("tests/test_a.py::test_one", (0, 1), 0, 1),
            bar("tests/test_a.py::test_two", (1,), 1, 3, state=State.FAILED, note="error in setup"),
        )
    )
    one, two = shapes_of(svg)
    assert (one.get("class"), two.get("class")) == ("b good", "b bad")
    assert float(one.get("height", 0)) > 1.5 * float(two.get("height", 0))
    assert "".join(one.itertext()) == (
        "tests/test_a.py::test_one: passed, 1.0 s on rank 0-1, from 0 ms"
    )
    assert "failed (error in setup)" in "".join(two.itertext())
    words = [one.text for one in ElementTree.fromstring(svg).iter() if one.tag.endswith("text")]
    assert "test_one" in words
    # Without colours, too, it can be seen what is wrong.
    assert "\N{MULTIPLICATION SIGN} test_two" in words


def test_names_that_begin_alike_are_shown_from_where_they_differ() -> None:
    names = [f"program-{what}.ranks-2.t1" for what in ("allgather", "alltoall", "bcast", "gather")]
    bars = [bar(name, (0,), at, at + 1) for at, name in enumerate(["prepare", *names] * 4)]
    svg = draw(timeline_of(*bars))
    texts = [one for one in ElementTree.fromstring(svg).iter() if one.get("class") == "on cell"]
    assert {str(one.text)[:3] for one in texts} == {"pre", "all", "bca", "gat"}


def test_gaps_are_tinted_by_their_cause_as_in_the_words_beside_them() -> None:
    timeline = timeline_of(bar("a", (0,), 1, 2), bar("b", (1,), 1, 5))
    found = findings(timeline)
    svg = draw(timeline, gaps=found.gaps, bound=found.lower_bound)
    assert [one.get("class") for one in shapes_of(svg, "g")] == ["g c0", "g c3"]
    section = timeline_section(timeline)
    assert '<li class="c3"><b>3.0 s</b> a long tail' in section
    assert "lower bound 4.0 s" in svg


def test_ten_thousand_bars_are_a_drawing_of_limited_size_in_which_failures_are_seen() -> None:
    count, width = 10_000, 16
    cases = [ScheduledTest(index=n, size=1 + n % 4, seconds=None) for n in range(count)]
    policy = Dynamic(cases, width, Pace(batching=True))
    plan = simulate(policy, [0.01 + n % 7 / 100 for n in range(count)], width)
    bars = [
        bar(
            f"t{one.case}",
            one.ranks,
            one.start,
            one.end,
            state=State.FAILED if one.case == 5000 else State.PASSED,
        )
        for one in plan.spans
    ]
    timeline = timeline_of(*bars, width=width)
    svg = draw(timeline)
    drawn = shapes_of(svg)
    assert len(drawn) <= MOST_SHAPES
    assert len(svg) < 300_000
    assert any(one.get("class") == "b bad" for one in drawn)
    page = timeline_page(timeline)
    assert "the first 500 of 10,000 tests" in page


def test_many_ranks_share_rows() -> None:
    bars = [bar(f"t{lane}", (lane,), 0, 1 + lane % 3) for lane in range(3000)]
    svg = draw(timeline_of(*bars, width=3000))
    assert len(shapes_of(svg, "lane")) == 240
    assert len(shapes_of(svg)) <= MOST_SHAPES


class Words(HTMLParser):
    """Collects what elements a page has, and its words."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.words = ""
        self.feed(page)

    def handle_starttag(self, tag: str, _attributes: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.words += data


def test_hostile_names_are_only_words_and_the_page_asks_for_nothing() -> None:
    name = "t[</svg><script>alert(1)</script>&\x00\ud800\u202e]"
    page = timeline_page(timeline_of(bar(name, (0, 1), 0, 1, note=name), bar("b", (0,), 1, 2)))
    read = Words(page)
    assert read.tags.count("script") == 1
    assert "t[</svg><script>alert(1)</script>&" in read.words
    assert not re.findall(r"https?://(?!www\.w3\.org)", page)
    page.encode()


def test_the_table_says_what_the_picture_shows() -> None:
    read = Words(timeline_page(timeline_of(bar("alpha", (0, 1), 0.5, 2, state=State.SKIPPED))))
    for words in ("alpha", "skipped", "rank 0-1", "500 ms", "1.5 s"):
        assert words in read.words


def test_a_timeline_as_data_has_the_bars_and_the_findings() -> None:
    data = timeline_data(timeline_of(bar("a", (0, 1), 0, 1)))
    assert data["bars"][0]["lanes"] == (0, 1)
    assert data["bars"][0]["state"] == "passed"
    assert data["findings"]["makespan"] == 1
