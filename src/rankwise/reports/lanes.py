"""The timeline of a run as lanes of bars, and why lanes wait."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from rankwise.store import State
from rankwise.wording import counted, fold

Span = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineBar:
    """One test or task: from when to when it had which lanes. Seconds from the timeline's zero."""

    lanes: tuple[int, ...]
    start: float
    end: float
    name: str
    state: State
    note: str = ""
    """What else is worth knowing: `xfailed`, `attempt 2`."""
    needs: tuple[str, ...] = ()
    """What had to be over before it could start."""
    spans: tuple[Span, ...] = ()
    """For each lane from when to when, where that differs; empty: all from `start` to `end`."""

    @property
    def seconds(self) -> float:
        """How long it took, from its first lane's start to its last lane's end."""
        return self.end - self.start

    @property
    def work(self) -> float:
        """How long lanes were busy with it, all of them together."""
        return math.fsum(end - start for _, (start, end) in self.on_lanes())

    def on_lanes(self) -> Iterable[tuple[int, Span]]:
        """Return from when to when each lane had it."""
        spans = self.spans or ((self.start, self.end),) * len(self.lanes)
        return zip(self.lanes, spans, strict=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A run as lanes and bars; zero is when it was asked for."""

    title: str
    lanes: tuple[str, ...]
    bars: Sequence[TimelineBar]
    """In the order in which they started."""
    end: float
    """When all was over, or until when this was looked at."""
    noun: str = "test"
    lane_noun: str = "rank"
    order: str = ""
    """By which rule things were started: `sequential`, `static`, `dynamic`, `needs`, or unknown."""
    is_fresh: bool = False
    """Whether processes were started for each bar: what is between them is their start-up."""
    is_over: bool = True
    begun: float = 0.0
    """The Unix time of zero."""
    milestones: tuple[tuple[float, str], ...] = field(default=())
    """What else happened when: `collected`."""


def longest_chain(bars: Sequence[TimelineBar]) -> list[TimelineBar]:
    """Find what had to run one after the other and took longest together."""
    best: dict[str, tuple[float, TimelineBar, str]] = {}
    for bar in sorted(bars, key=lambda bar: bar.start):
        known = [name for name in bar.needs if name in best]
        # It waited for all of them; the chain that took longest decides.
        before = max(known, key=lambda one: best[one][0], default="")
        seconds = bar.seconds + (best[before][0] if before else 0.0)
        best[bar.name] = seconds, bar, before
    chain: list[TimelineBar] = []
    name = max(best, key=lambda one: best[one][0], default="")
    # The limit ends a circle, which a plan cannot have but a timeline from outside may.
    while name and len(chain) < len(best):
        _, bar, name = best[name]
        chain.append(bar)
    return chain[::-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneClaim:
    """What has no lanes yet: how many it needs, and when."""

    width: int
    start: float
    end: float


def pack(claims: Sequence[LaneClaim]) -> list[tuple[int, ...]]:
    """Find lanes for what ran at the same time, lowest first and side by side where they can be.

    No two claims have a lane at the same time, and no more lanes are used than were at once.
    """
    found: list[tuple[int, ...]] = [()] * len(claims)
    free: set[int] = set()
    used = 0
    # A heap: what ends first gives its lanes back first.
    running: list[tuple[float, int]] = []
    for index in sorted(range(len(claims)), key=lambda one: (claims[one].start, one)):
        claim = claims[index]
        while running and running[0][0] <= claim.start:
            _, over = heapq.heappop(running)
            free.update(found[over])
        missing = claim.width - len(free)
        if missing > 0:
            free.update(range(used, used + missing))
            used += missing
        found[index] = _side_by_side(sorted(free), claim.width)
        free.difference_update(found[index])
        heapq.heappush(running, (claim.end, index))
    return found


def _side_by_side(free: Sequence[int], width: int) -> tuple[int, ...]:
    # Lanes that are beside each other are one shape in the drawing.
    for first in range(len(free) - width + 1):
        if free[first + width - 1] - free[first] == width - 1:
            return tuple(free[first : first + width])
    return tuple(free[:width])


Cause = Literal["start-up", "too wide", "order", "restart", "long tail", "ending"]

COLOURS: Mapping[Cause, str] = {
    "start-up": "c0",
    "too wide": "c1",
    "order": "c2",
    "long tail": "c3",
    "ending": "c4",
    "restart": "c5",
}
"""The class that a cause is shown in: the same in the picture as in the words beside it."""


@dataclass(slots=True)
class Gap:
    """A time in which lanes were idle for one reason."""

    cause: Cause
    start: float
    end: float
    seconds: float
    """All lanes together."""


@dataclass(slots=True)
class IdleTime:
    """Idle lane-seconds by cause, and by the bar that is to blame."""

    seconds: dict[Cause, float] = field(default_factory=dict)
    blamed: dict[Cause, dict[str, tuple[float, TimelineBar]]] = field(default_factory=dict)
    gaps: list[Gap] = field(default_factory=list)

    def add(
        self, cause: Cause, start: float, end: float, lanes: int, bar: TimelineBar | None
    ) -> None:
        """Note that so many lanes were idle."""
        seconds = lanes * (end - start)
        # Moments with the same cause are one gap: each is a shape of the drawing.
        if self.gaps and self.gaps[-1].cause == cause and self.gaps[-1].end == start:
            self.gaps[-1].end = end
            self.gaps[-1].seconds += seconds
        else:
            self.gaps.append(Gap(cause, start, end, seconds))
        self.seconds[cause] = self.seconds.get(cause, 0.0) + seconds
        if bar is not None:
            blamed = self.blamed.setdefault(cause, {})
            blamed[bar.name] = blamed.get(bar.name, (0.0, bar))[0] + seconds, bar

    def culprit(self, cause: Cause) -> tuple[float, TimelineBar] | None:
        """Return the bar that cost most, and how much."""
        blamed = self.blamed.get(cause, {})
        return max(blamed.values(), key=lambda one: one[0], default=None)

    @property
    def costs(self) -> list[tuple[Cause, float]]:
        """The causes with their seconds, what cost most first."""
        return sorted(self.seconds.items(), key=lambda one: -one[1])


def lanes_of(bar: TimelineBar, timeline: Timeline) -> str:
    """Say on how many lanes something ran: `4 ranks`."""
    return counted(len(bar.lanes), timeline.lane_noun)


def lane_names(bar: TimelineBar, timeline: Timeline) -> str:
    """Name the lanes on which something ran: `ranks 0-3`."""
    return fold([timeline.lanes[lane].replace(" ", "-") for lane in bar.lanes])
