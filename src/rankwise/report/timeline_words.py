"""What is said beside the picture of a timeline, wherever it is shown."""

from __future__ import annotations

import re

from rankwise.report.findings import Findings, Idle
from rankwise.report.lanes import Timeline
from rankwise.report.words import duration

_OPTION = re.compile(r"(--[\w-]+(?:=[\w-]+)?|`[^`]+`)")
_SLIVER = 0.002


def timeline_cards(timeline: Timeline, found: Findings) -> list[tuple[str, str, str]]:
    """Give the few figures that matter: what they are, their values, and more about them."""
    lanes = timeline.lane_noun
    why = {
        "longest": f"the longest {timeline.noun}",
        "chain": "those that wait for each other",
        "work": f"all the work on all {lanes}s",
    }[found.bound]
    return [
        ("took" if timeline.is_over else "takes so far", duration(found.makespan), ""),
        ("cannot take less than", duration(found.lower_bound), why),
        (f"{lanes}s were busy", f"{found.efficiency:.0%}", "of the time"),
        (f"{lanes} time lost", duration(found.idle), f"of {duration(found.idle + found.busy)}"),
    ]


def telling_causes(found: Findings) -> list[Idle]:
    """Leave out what nobody could see."""
    return [one for one in found.causes if one.seconds >= _SLIVER * (found.idle + found.busy)]


def with_options(words: str) -> list[str]:
    """Split an advice: every second part is an option or was between backticks, for a program."""
    parts = _OPTION.split(words)
    return [part.strip("`") if number % 2 else part for number, part in enumerate(parts)]
