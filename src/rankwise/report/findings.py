"""Why a run takes as long as it does: what a timeline says, in figures and in words."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rankwise.report.advice import advice_on
from rankwise.report.causes import Cause, Gap, Waiting
from rankwise.report.lanes import Bar, Timeline, longest_chain
from rankwise.store import State

_LONGEST = 3
# What ends the processes it ran on.
_DEADLY = (State.CRASHED, State.TIMED_OUT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """How long lanes had nothing to do for one reason, all lanes together."""

    cause: Cause
    seconds: float
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What there is to know about how long a run took."""

    makespan: float
    """From the moment it was asked for to its end."""
    lower_bound: float
    """No order of the same tests on as many lanes can be faster."""
    bound: Literal["longest", "chain", "work"]
    """Whether that is because of one long bar, of some that wait for each other, or of them all."""
    busy: float
    """Lane-seconds in which something ran."""
    idle: float
    """Lane-seconds in which nothing did."""
    longest: tuple[Bar, ...]
    causes: tuple[Idle, ...]
    """Why lanes were idle, what cost most first."""
    gaps: tuple[Gap, ...]
    """When that was."""
    advice: tuple[str, ...]
    """What to change, what helps most first."""

    @property
    def efficiency(self) -> float:
        """The share of the lanes' time in which something ran."""
        total = self.busy + self.idle
        return self.busy / total if total else 1.0


def findings(timeline: Timeline) -> Findings:
    """Find out why a run takes so long."""
    bars = timeline.bars
    width = max(1, len(timeline.lanes))
    makespan = max(timeline.end, max((bar.end for bar in bars), default=0.0))
    work = math.fsum(bar.work for bar in bars)
    longest = sorted(bars, key=lambda bar: -bar.seconds)[:_LONGEST]
    most = longest[0].seconds if longest else 0.0
    chain = longest_chain(bars) if timeline.order == "needs" else []
    bounds: dict[Literal["longest", "chain", "work"], float] = {
        "longest": most,
        "chain": math.fsum(bar.seconds for bar in chain),
        "work": work / width,
    }
    bound = max(bounds, key=lambda one: bounds[one])
    waiting = _waiting(timeline, makespan)
    idle = math.fsum(waiting.seconds.values())
    causes = sorted(waiting.seconds.items(), key=lambda one: -one[1])
    return Findings(
        makespan=makespan,
        lower_bound=bounds[bound],
        bound=bound,
        busy=max(0.0, width * makespan - idle),
        idle=idle,
        longest=tuple(longest),
        causes=tuple(
            Idle(cause=cause, seconds=seconds, words=waiting.say(cause, timeline))
            for cause, seconds in causes
            if seconds > 0
        ),
        gaps=tuple(waiting.gaps),
        advice=tuple(advice_on(timeline, waiting, longest=longest, chain=chain, makespan=makespan)),
    )


def _waiting(timeline: Timeline, makespan: float) -> Waiting:
    """Go through time, and find for every moment why some lanes had nothing to do."""
    bars = sorted(timeline.bars, key=lambda bar: bar.start)
    lanes = len(timeline.lanes)
    waiting = Waiting()
    if not bars:
        waiting.add("start-up", 0.0, makespan, lanes, None)
        return waiting
    least = _least_widths(bars)
    running: dict[int, Bar] = {}
    last: Bar | None = None
    busy = upcoming = 0
    for (now, changes), until in _moments(bars, makespan):
        for number, bar, change in changes:
            busy += change
            if change > 0:
                running[number] = bar
            elif now >= bar.end:
                running.pop(number, None)
                last = bar
        while upcoming < len(bars) and bars[upcoming].start <= now:
            upcoming += 1
        free = lanes - min(busy, lanes)
        if free * (until - now) <= 0:
            continue
        after = bars[upcoming] if upcoming < len(bars) else None
        is_stuck = after is not None and least[upcoming] > free
        if after is not None and last is not None and not running and last.state in _DEADLY:
            waiting.add("restart", now, until, free, last)
            continue
        cause, culprit = _cause(timeline, running, after, is_first=not upcoming, is_stuck=is_stuck)
        waiting.add(cause, now, until, free, culprit)
    return waiting


def _cause(
    timeline: Timeline,
    running: Mapping[int, Bar],
    after: Bar | None,
    *,
    is_first: bool,
    is_stuck: bool,
) -> tuple[Cause, Bar | None]:
    """Say why lanes are idle at a moment, from what runs and what is started next."""
    if after is None and not running:
        return "ending", None
    if after is None:
        return "long tail", max(running.values(), key=lambda bar: bar.end)
    if is_first:
        return "start-up", None
    if is_stuck:
        half = len(timeline.lanes) / 2
        wide = (bar for bar in running.values() if len(bar.lanes) > half)
        return "too wide", next(wide, after)
    return ("start-up" if timeline.is_fresh else "order"), None


def _least_widths(bars: Sequence[Bar]) -> list[int]:
    """For each bar, give how many lanes the narrowest of it and those after it needs."""
    least = [len(bar.lanes) for bar in bars]
    for place in reversed(range(len(bars) - 1)):
        least[place] = min(least[place], least[place + 1])
    return least


_Change = tuple[int, Bar, int]


def _moments(
    bars: Sequence[Bar], makespan: float
) -> Iterator[tuple[tuple[float, list[_Change]], float]]:
    """Give every moment at which a lane gets or loses a bar, with the next such moment."""
    changes: dict[float, list[_Change]] = {0.0: []}
    for number, bar in enumerate(bars):
        for _, (start, end) in bar.on_lanes():
            changes.setdefault(start, []).append((number, bar, 1))
            changes.setdefault(end, []).append((number, bar, -1))
    times = sorted(changes)
    for now, until in zip(times, [*times[1:], max(makespan, times[-1])], strict=True):
        yield (now, changes[now]), until
