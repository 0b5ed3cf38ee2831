"""A timeline in HTML: the picture, why it takes so long, and the same as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rankwise import __version__
from rankwise.report.causes import colour_of
from rankwise.report.html_page import html_page
from rankwise.report.lanes import Bar
from rankwise.report.markup import Markup, escaped, joined, tag
from rankwise.report.outcomes import TONES, moment
from rankwise.report.plots.timeline import MOST_SHAPES, draw, tones_of
from rankwise.report.timeline import Findings, Timeline, findings
from rankwise.report.timeline_words import telling_causes, timeline_cards, with_options
from rankwise.report.words import counted, duration, fold

_MOST_ROWS = 500
_LONGEST_NAME = 200


def timeline_page(timeline: Timeline) -> str:
    """Write a timeline as a page of its own."""
    found = findings(timeline)
    return html_page(f"Timeline: {timeline.title}", _page(timeline, found))


def _page(timeline: Timeline, found: Findings) -> Iterator[Markup]:
    states = tones_of(timeline.bars)
    tone = states[0][1] if states else "idle"
    counts = ", ".join(f"{count:,} {state}" for state, _, count in states)
    what = _many(timeline)
    where = counted(len(timeline.lanes), timeline.lane_noun)
    yield tag(
        "header",
        tag("p", f"Timeline · {moment(timeline.begun)}", class_="eyebrow"),
        tag("h1", timeline.title),
        tag(
            "p",
            f"{what} on {where} in {duration(found.makespan)}: {counts or 'none'}.",
            class_="said",
        ),
        class_=f"banner {tone}",
    )
    heading = tag("h2", "Why it takes as long as it does")
    yield tag("section", heading, timeline_section(timeline, found=found), id="timeline")
    yield tag("footer", f"Made by rankwise {__version__}.")


def timeline_section(
    timeline: Timeline,
    *,
    found: Findings | None = None,
    most: int = MOST_SHAPES,
    has_table: bool = True,
) -> Markup:
    """Show a timeline and what it says; `most` limits how many shapes are drawn.

    Without a table, the page must have another that says the same.
    """
    found = found or findings(timeline)
    return joined(
        [
            tag("dl", *_cards(timeline, found), class_="cards"),
            tag("div", *_picture(timeline, found, most), class_="card timeline"),
            tag("div", *_answers(timeline, found), class_="answers"),
            *([_table(timeline)] if has_table else []),
        ]
    )


def _cards(timeline: Timeline, found: Findings) -> Iterator[Markup]:
    for name, value, more in timeline_cards(timeline, found):
        small = [tag("small", more)] if more else []
        yield tag("div", tag("dt", name), tag("dd", value, *small), class_="card")


def _picture(timeline: Timeline, found: Findings, most: int) -> Iterator[Markup]:
    bound = found.lower_bound if timeline.is_over else 0.0
    drawing = draw(timeline, bound=bound, gaps=found.gaps, most=most)
    yield tag("div", drawing, class_="plot", tabindex="0", role="region", aria_label="Timeline")
    keys = [
        tag("li", f"{count:,} {state}", class_=tone)
        for state, tone, count in tones_of(timeline.bars)
    ]
    keys += [
        tag("li", f"waiting: {idle.cause}", class_=f"gap {colour_of(idle.cause)}")
        for idle in telling_causes(found)
    ]
    yield tag("ul", *keys, class_="legend")


def _answers(timeline: Timeline, found: Findings) -> Iterator[Markup]:
    yield tag("div", tag("h3", "What to change"), _changes(found), class_="card")
    if found.idle > 0:
        head = tag("h3", f"Where {timeline.lane_noun} time is lost")
        yield tag("div", head, *_lost(found), class_="card")
    if found.longest:
        head = tag("h3", f"The longest {timeline.noun}s")
        yield tag("div", head, _longest(timeline, found.longest), class_="card")


def _changes(found: Findings) -> Markup:
    if not found.advice:
        return tag("p", "Nothing stands out.", class_="soft")
    return tag("ol", *(tag("li", _with_options(words)) for words in found.advice))


def _with_options(words: str) -> Markup:
    """Set options and words between backticks as such, so that they are not broken in two."""
    return joined(
        tag("code", part) if number % 2 else escaped(part)
        for number, part in enumerate(with_options(words))
    )


def _lost(found: Findings) -> Iterator[Markup]:
    shown = telling_causes(found)
    bars = (
        tag("i", class_=colour_of(one.cause), style=f"flex:{one.seconds:.4g}", title=one.words)
        for one in shown
    )
    yield tag("div", *bars, class_="bar", aria_hidden="true")
    rows = (
        tag("li", tag("b", duration(one.seconds)), f" {one.words}", class_=colour_of(one.cause))
        for one in shown
    )
    yield tag("ul", *rows, class_="causes")


def _longest(timeline: Timeline, bars: Sequence[Bar]) -> Markup:
    return tag(
        "ol",
        *(
            tag(
                "li",
                tag("b", duration(bar.seconds)),
                f" {_cut(bar.name)}, on {counted(len(bar.lanes), timeline.lane_noun)}",
            )
            for bar in bars
        ),
    )


def _table(timeline: Timeline) -> Markup:
    """Say in words what the picture shows."""
    heads = [timeline.noun, "outcome", f"{timeline.lane_noun}s", "from", "took"]
    kinds = [None, None, None, "n", "n"]
    shown = timeline.bars[:_MOST_ROWS]
    rows = [_row(bar, timeline) for bar in shown]
    head = tag(
        "tr",
        *(
            tag("th", name, scope="col", class_=kind)
            for name, kind in zip(heads, kinds, strict=True)
        ),
    )
    table = tag(
        "table", tag("thead", head), tag("tbody", Markup("\n" + "\n".join(rows))), data_tools=True
    )
    count = _many(timeline)
    if len(shown) < len(timeline.bars):
        count = f"the first {len(shown)} of {count}"
    return tag(
        "details",
        tag("summary", f"The same as a table: {count}"),
        tag("div", tag("div", table, class_="table", tabindex="0")),
    )


def _row(bar: Bar, timeline: Timeline) -> Markup:
    lanes = fold([timeline.lanes[lane].replace(" ", "-") for lane in bar.lanes])
    state = f"{bar.state} ({bar.note})" if bar.note else str(bar.state)
    return tag(
        "tr",
        tag("td", _cut(bar.name), class_="k"),
        tag("td", state, class_=f"o {TONES[bar.state]}"),
        tag("td", lanes),
        tag("td", duration(bar.start), class_="n", data_v=f"{bar.start:.6g}"),
        tag("td", duration(bar.seconds), class_="n", data_v=f"{bar.seconds:.6g}"),
        data_s=str(bar.state),
    )


def _many(timeline: Timeline) -> str:
    count = len(timeline.bars)
    return f"{count:,} {timeline.noun}{'s' * (count != 1)}"


def _cut(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]} …"
