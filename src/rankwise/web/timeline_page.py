"""A run as ranks or cores down and time across, and why it takes so long."""

from __future__ import annotations

from rankwise.report.html_timeline import timeline_section
from rankwise.report.markup import tag
from rankwise.report.timeline import timeline_of_run
from rankwise.store import Store
from rankwise.web.ask import Ask
from rankwise.web.counts import counts_of
from rankwise.web.page import Page, live
from rankwise.web.run_frame import framed

# All tasks are read for it: the more there are, the less often.
_TASKS_A_SECOND = 500
_LEAST_SECONDS = 3.0
_MOST_SHAPES = 600


def timeline_page(store: Store, ask: Ask) -> Page:
    """Show the timeline of a run."""
    run = store.run(ask.run)
    timeline = timeline_of_run(store, run.id, now=ask.now)
    if timeline.bars:
        shown = timeline_section(timeline, most=_MOST_SHAPES)
    else:
        shown = tag("p", "Nothing has run yet.")
    total = sum(counts_of(store, run).values())
    return framed(
        store,
        ask,
        run,
        "Timeline",
        tag("h2", "Timeline"),
        live("timeline", shown),
        interval=max(_LEAST_SECONDS, total / _TASKS_A_SECOND),
    )
