"""Why lanes of a timeline have nothing to do, added up and said in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from rankwise.report.lanes import Bar, Timeline
from rankwise.report.words import counted

Cause = Literal["start-up", "too wide", "order", "restart", "long tail", "ending"]

# The same in the picture as in the words beside it.
_COLOURS: Mapping[Cause, str] = {
    "start-up": "c0",
    "too wide": "c1",
    "order": "c2",
    "long tail": "c3",
    "ending": "c4",
    "restart": "c5",
}
_ORDERS = {
    "sequential": "one {noun} at a time, though others would have fitted beside it",
    "static": "each {noun} had its place before the first one started",
    "needs": "what waited needed what was running, or was held back",
    "dynamic": "between two {noun}s",
}


@dataclass(slots=True)
class Gap:
    """A time in which lanes were idle for one reason."""

    cause: Cause
    start: float
    end: float
    seconds: float
    """All lanes together."""


@dataclass(slots=True)
class Waiting:
    """Idle lane-seconds by cause, and by the bar that is to blame."""

    seconds: dict[Cause, float] = field(default_factory=dict)
    blamed: dict[Cause, dict[str, tuple[float, Bar]]] = field(default_factory=dict)
    gaps: list[Gap] = field(default_factory=list)

    def add(self, cause: Cause, start: float, end: float, lanes: int, bar: Bar | None) -> None:
        """Note that so many lanes were idle."""
        seconds = lanes * (end - start)
        last = self.gaps[-1] if self.gaps else None
        if last is not None and last.cause == cause and last.end == start:
            last.end = end
            last.seconds += seconds
        else:
            self.gaps.append(Gap(cause, start, end, seconds))
        self.seconds[cause] = self.seconds.get(cause, 0.0) + seconds
        if bar is not None:
            those = self.blamed.setdefault(cause, {})
            known, _ = those.get(bar.name, (0.0, bar))
            those[bar.name] = known + seconds, bar

    def culprit(self, cause: Cause) -> tuple[float, Bar] | None:
        """Give the bar that cost most, and how much."""
        those = self.blamed.get(cause, {})
        return max(those.values(), key=lambda one: one[0], default=None)

    def say(self, cause: Cause, timeline: Timeline) -> str:
        """Say what a cause means here."""
        noun = timeline.noun
        match cause:
            case "start-up" if timeline.is_fresh:
                return f"start-up: processes are started for every {noun}"
            case "start-up":
                return f"start-up: nothing runs before the first {noun}"
            case "too wide":
                lanes = f"{timeline.lane_noun}s"
                return f"a {noun} too wide: fewer {lanes} were free than any that waited needs"
            case "long tail":
                return f"a long tail: nothing was left to start while the last {noun}s went on"
            case "restart":
                return f"restart: {timeline.lane_noun}s that a {noun} had ended were started again"
            case "ending":
                return f"the end: what comes after the last {noun}"
            case "order":
                rule = _ORDERS.get(timeline.order, _ORDERS["dynamic"])
                return f"waiting: {rule.format(noun=noun)}"


def colour_of(cause: Cause) -> str:
    """Give the class that a cause is shown in."""
    return _COLOURS[cause]


def lanes_of(bar: Bar, timeline: Timeline) -> str:
    """Say on how many lanes something ran: `4 ranks`."""
    return counted(len(bar.lanes), timeline.lane_noun)
