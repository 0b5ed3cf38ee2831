"""When everything ran, what was lost, and what to change."""

from __future__ import annotations

import dataclasses
import math
import re
import time
import tomllib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any, Literal

from rankwise.plan import Task
from rankwise.reports.lanes import (
    Cause,
    Gap,
    IdleTime,
    LaneClaim,
    Timeline,
    TimelineBar,
    lanes_of,
    longest_chain,
    pack,
)
from rankwise.reports.rendering import template_text
from rankwise.store import State, Store
from rankwise.wording import counted, duration

# A cause that costs less than this share of all lanes' time is not worth a change.
_WORTH = 0.08
_BUSY = 0.85
_LONG = 0.5
_MOST_LINKS = 6


@cache
def _texts() -> dict[str, dict[str, str]]:
    """Read what timelines say, only when one says it."""
    return tomllib.loads(template_text("advice.toml"))


def _advice(
    timeline: Timeline,
    waiting: IdleTime,
    longest: TimelineBar | None,
    chain: Sequence[TimelineBar],
    makespan: float,
) -> Iterator[str]:
    """Say what to change, what helps most first."""
    total = makespan * len(timeline.lanes)
    if longest is None or not total:
        return
    about = {"noun": timeline.noun, "lane": timeline.lane_noun, "makespan": duration(makespan)}
    for cause, seconds in waiting.costs:
        if seconds / total >= _WORTH and (words := _remedy(cause, timeline, waiting, seconds)):
            yield words
    texts = _texts()["run"]
    if len(timeline.bars) > 1 and longest.seconds >= _LONG * makespan:
        yield texts["alone"].format(bar=longest.name, took=duration(longest.seconds), **about)
    if len(chain) > 1:
        names = [bar.name for bar in chain]
        if len(names) > _MOST_LINKS:
            names[_MOST_LINKS - 1 : -1] = ["…"]
        took = duration(sum(bar.seconds for bar in chain))
        yield texts["chain"].format(chain=" → ".join(names), took=took)
    if sum(waiting.seconds.values()) / total <= 1 - _BUSY:
        yield texts["busy"].format(**about)


def _remedy(cause: Cause, timeline: Timeline, waiting: IdleTime, seconds: float) -> str:
    """Say what to do about a cause; nothing where there is nothing to do."""
    cost, bar = waiting.culprit(cause) or (seconds, timeline.bars[0])
    lanes, is_test = len(timeline.lanes), timeline.noun == "test"
    which = "test" if is_test else "task"
    if cause == "start-up" and is_test and timeline.is_fresh:
        which = "fresh"
    elif cause == "too wide":
        which = "all" if len(bar.lanes) == lanes else "some"
    elif cause == "long tail" and is_test and timeline.order == "dynamic":
        which = "dynamic"
    elif cause == "order" and timeline.order != "dynamic":
        which = "needs" if timeline.order == "needs" else "turn"
    texts = _texts()[cause]
    return texts.get(which, texts.get("any", "")).format(
        noun=timeline.noun,
        lane=timeline.lane_noun,
        lanes=lanes,
        order=timeline.order,
        first=duration(min(one.start for one in timeline.bars)),
        lost=duration(seconds if cause == "restart" else cost),
        bar=bar.name,
        took=duration(bar.seconds),
        width=len(bar.lanes),
        on=lanes_of(bar, timeline),
        rest=counted(lanes - len(bar.lanes), timeline.lane_noun),
    )


def _meaning(cause: Cause, timeline: Timeline) -> str:
    """Say what a cause means in this timeline."""
    texts = _texts()[cause]
    which = "fresh" if timeline.is_fresh and cause == "start-up" else timeline.order
    text = texts.get(f"means-{which}", texts["means"])
    return text.format(noun=timeline.noun, lane=timeline.lane_noun)


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
    longest: tuple[TimelineBar, ...]
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
    chain = longest_chain(bars) if timeline.order == "needs" else []
    bounds: dict[Literal["longest", "chain", "work"], float] = {
        "longest": longest[0].seconds if longest else 0.0,
        "chain": math.fsum(bar.seconds for bar in chain),
        "work": work / width,
    }
    bound = max(bounds, key=lambda one: bounds[one])
    waiting = _waiting(timeline, makespan)
    idle = math.fsum(waiting.seconds.values())
    advice = _advice(timeline, waiting, longest[0] if longest else None, chain, makespan)
    return Findings(
        makespan=makespan,
        lower_bound=bounds[bound],
        bound=bound,
        busy=max(0.0, width * makespan - idle),
        idle=idle,
        longest=tuple(longest),
        causes=tuple(
            Idle(cause=cause, seconds=seconds, words=_meaning(cause, timeline))
            for cause, seconds in waiting.costs
            if seconds > 0
        ),
        gaps=tuple(waiting.gaps),
        advice=tuple(advice),
    )


def _waiting(timeline: Timeline, makespan: float) -> IdleTime:
    """Go through time, and find for every moment why some lanes had nothing to do."""
    bars = sorted(timeline.bars, key=lambda bar: bar.start)
    lanes = len(timeline.lanes)
    waiting = IdleTime()
    if not bars:
        waiting.add("start-up", 0.0, makespan, lanes, None)
        return waiting
    # For each bar, how many lanes the narrowest of it and the later ones needs; computed once.
    least = [*accumulate((len(bar.lanes) for bar in reversed(bars)), min)][::-1]
    running: dict[int, TimelineBar] = {}
    last: TimelineBar | None = None
    busy = upcoming = 0
    for (now, changes), until in _moments(bars, makespan):
        for number, bar, change in changes:
            busy += change
            if change > 0:
                running[number] = bar
            # It runs until the last of its lanes is free.
            elif now >= bar.end:
                running.pop(number, None)
                last = bar
        while upcoming < len(bars) and bars[upcoming].start <= now:
            upcoming += 1
        # Clocks that differ may say that more ran than there are lanes.
        free = lanes - min(busy, lanes)
        if free * (until - now) <= 0:
            continue
        after = bars[upcoming] if upcoming < len(bars) else None
        cause: Cause = "order"
        culprit: TimelineBar | None = None
        if after is None and not running:
            cause = "ending"
        elif after is None:
            cause, culprit = "long tail", max(running.values(), key=lambda bar: bar.end)
        elif last is not None and not running and last.state in _DEADLY:
            cause, culprit = "restart", last
        # Of all that waits, not even the narrowest fits.
        elif upcoming and least[upcoming] > free:
            wide = (bar for bar in running.values() if len(bar.lanes) > lanes / 2)
            cause, culprit = "too wide", next(wide, after)
        elif timeline.is_fresh or not upcoming:
            cause = "start-up"
        waiting.add(cause, now, until, free, culprit)
    return waiting


_Change = tuple[int, TimelineBar, int]


def _moments(
    bars: Sequence[TimelineBar], makespan: float
) -> Iterator[tuple[tuple[float, list[_Change]], float]]:
    """Return every moment at which a lane gets or loses a bar, with the next such moment."""
    changes: dict[float, list[_Change]] = {0.0: []}
    # Lanes of one bar may end at different times: ranks of a test do.
    for number, bar in enumerate(bars):
        for _, (start, end) in bar.on_lanes():
            changes.setdefault(start, []).append((number, bar, 1))
            changes.setdefault(end, []).append((number, bar, -1))
    times = sorted(changes)
    for now, until in zip(times, [*times[1:], max(makespan, times[-1])], strict=True):
        yield (now, changes[now]), until


# More lanes than this are no picture any more; each task has one then.
_MOST_LANES = 64


def timeline_of_run(store: Store, run_id: str, *, now: float | None = None) -> Timeline:
    """Make a timeline of the tasks of a run, as far as it has come.

    Lanes are cores where all tasks ask for some, else slots for processes, or nodes where tasks
    have several on a cluster; as many as were in use at once. Each attempt is a bar.
    Raises InputError if there is no such run.
    """
    run = store.run(run_id)
    until = run.ended if run.ended is not None else now if now is not None else time.time()
    zero = run.started if run.started is not None else run.created
    tasks = {row.key: row.body for row in store.task_rows(run.id, bodies=True) if row.body}
    attempts = [one for one in store.attempts(run.id) if one.started is not None]
    noun, widths = _measure(tasks.values())
    claims = [
        LaneClaim(
            width=widths.get(one.task, 1),
            # The clock of another machine may be behind ours.
            start=max(0.0, (one.started or zero) - zero),
            end=max(0.0, (one.ended if one.ended is not None else until) - zero),
        )
        for one in attempts
    ]
    lanes = pack(claims)
    # As many lanes as would be needed cannot be told apart.
    if _lane_count(lanes) > _MOST_LANES:
        noun = "slot"
        claims = [dataclasses.replace(claim, width=1) for claim in claims]
        lanes = pack(claims)
    bars = [
        TimelineBar(
            lanes=place,
            start=claim.start,
            end=max(claim.start, claim.end),
            name=one.task,
            state=one.state if one.state.is_over else State.RUNNING,
            note=f"attempt {one.number}" if one.number > 1 else "",
            needs=tasks[one.task].needs if one.task in tasks else (),
        )
        for one, claim, place in zip(attempts, claims, lanes, strict=True)
    ]
    has_needs = any(task.needs or task.lane_width for task in tasks.values())
    return Timeline(
        title=run.id,
        lanes=tuple(f"{noun} {number}" for number in range(_lane_count(lanes))),
        bars=sorted(bars, key=lambda bar: bar.start),
        end=max(0.0, until - zero),
        noun="task",
        lane_noun=noun,
        order="needs" if has_needs else "dynamic",
        is_over=run.ended is not None,
        begun=zero,
    )


def timeline_data(timeline: Timeline) -> dict[str, Any]:
    """Make plain data of a timeline and what it says, for JSON."""
    found = findings(timeline)
    names = ("makespan", "lower_bound", "efficiency", "busy", "idle", "advice")
    return {
        **dataclasses.asdict(timeline),
        "findings": {
            **{name: getattr(found, name) for name in names},
            "causes": {one.cause: one.seconds for one in found.causes},
            "longest": [bar.name for bar in found.longest],
        },
    }


def _measure(tasks: Collection[Task]) -> tuple[str, dict[str, int]]:
    """Choose what lanes are, and find how many each task needs."""
    # On a cluster, nodes are what tasks wait for; on this machine, nodes share its cores.
    if any(task.nodes > 1 and task.compute != "local" for task in tasks):
        return "node", {task.key: max(1, task.nodes) for task in tasks}
    wanted = {task.key: task.resources.cores or task.width or len(task.processes) for task in tasks}
    # Ranks of a task that asks for no cores may share them: they can be more than the machine has.
    noun = "core" if all(task.resources.cores for task in tasks) else "slot"
    return noun, {key: max(1, math.ceil(cores)) for key, cores in wanted.items()}


def _lane_count(places: Sequence[tuple[int, ...]]) -> int:
    return 1 + max((lane for place in places for lane in place), default=0)


_OPTION = re.compile(r"(--[\w-]+(?:=[\w-]+)?|`[^`]+`)")
_SLIVER = 0.002


def timeline_cards(timeline: Timeline, found: Findings) -> list[tuple[str, str, str]]:
    """Return the few figures that matter: what they are, their values, and more about them."""
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


def visible_causes(found: Findings) -> list[Idle]:
    """Leave out what is too small to be seen."""
    return [one for one in found.causes if one.seconds >= _SLIVER * (found.idle + found.busy)]


def with_options(words: str) -> list[str]:
    """Split an advice: every second part is an option or was between backticks, for a program."""
    parts = _OPTION.split(words)
    return [part.strip("`") if number % 2 else part for number, part in enumerate(parts)]
