"""The timeline of a PDF report, as texts and one drawing for the template."""

from __future__ import annotations

from typing import Any

from rankwise.report.causes import colour_of, lanes_of
from rankwise.report.facts import cut
from rankwise.report.markup import fit
from rankwise.report.plots.svg import standalone
from rankwise.report.plots.timeline import draw, tones_of
from rankwise.report.timeline import Bar, Timeline, findings
from rankwise.report.timeline_words import telling_causes, timeline_cards, with_options
from rankwise.report.words import duration

_MOST_SHAPES = 400
_MOST_ADVICE = 6
_LONGEST_NAME = 80


def timeline_content(timeline: Timeline) -> dict[str, Any]:
    """Give all that the template shows of a timeline."""
    found = findings(timeline)
    bound = found.lower_bound if timeline.is_over else 0.0
    drawn = draw(timeline, bound=bound, gaps=found.gaps, most=_MOST_SHAPES)
    causes = telling_causes(found)
    return {
        "svg": standalone(drawn),
        "cards": timeline_cards(timeline, found),
        "states": [[f"{count:,} {state}", tone] for state, tone, count in tones_of(timeline.bars)],
        "waiting": [[f"waiting: {one.cause}", colour_of(one.cause)] for one in causes],
        # Every second part is for a program.
        "advice": [
            [fit(part) for part in with_options(one)] for one in found.advice[:_MOST_ADVICE]
        ],
        "lost_title": f"Where {timeline.lane_noun} time is lost",
        "lost": [[duration(one.seconds), one.words, colour_of(one.cause)] for one in causes],
        "longest_title": f"The longest {timeline.noun}s",
        "longest": [[duration(bar.seconds), _named(bar, timeline)] for bar in found.longest],
    }


def _named(bar: Bar, timeline: Timeline) -> str:
    return fit(f"{cut(bar.name, _LONGEST_NAME)}, on {lanes_of(bar, timeline)}")
