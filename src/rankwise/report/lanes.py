"""Tests or tasks in time: bars on lanes, which are ranks, cores or nodes. Plain data."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rankwise.store import State

Span = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
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
        """Give from when to when each lane had it."""
        spans = self.spans or ((self.start, self.end),) * len(self.lanes)
        return zip(self.lanes, spans, strict=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A run as lanes and bars; zero is when it was asked for."""

    title: str
    lanes: tuple[str, ...]
    bars: Sequence[Bar]
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


def longest_chain(bars: Sequence[Bar]) -> list[Bar]:
    """Find what had to run one after the other and took longest together."""
    best: dict[str, tuple[float, Bar, str]] = {}
    for bar in sorted(bars, key=lambda bar: bar.start):
        known = [name for name in bar.needs if name in best]
        before = max(known, key=lambda one: best[one][0], default="")
        seconds = bar.seconds + (best[before][0] if before else 0.0)
        best[bar.name] = seconds, bar, before
    chain: list[Bar] = []
    name = max(best, key=lambda one: best[one][0], default="")
    while name and len(chain) < len(best):
        _, bar, name = best[name]
        chain.append(bar)
    return chain[::-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What has no lanes yet: how many it needs, and when."""

    width: int
    start: float
    end: float


def pack(claims: Sequence[Claim]) -> list[tuple[int, ...]]:
    """Find lanes for what ran at the same time, lowest first and side by side where they can be.

    No two claims have a lane at the same time, and no more lanes are used than were at once.
    """
    found: list[tuple[int, ...]] = [()] * len(claims)
    free: set[int] = set()
    used = 0
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
    for first in range(len(free) - width + 1):
        if free[first + width - 1] - free[first] == width - 1:
            return tuple(free[first : first + width])
    return tuple(free[:width])
