"""When everything ran, what was lost, and what to change."""

from __future__ import annotations

import dataclasses
import math
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
from rankwise.store import AttemptRow, State, Store
from rankwise.wording import counted, duration

# A cause that costs less than this share of all lanes' time is not worth a change.
_WORTH = 0.08
_BUSY = 0.85
_LONG = 0.5
_MOST_LINKS = 6


def advice_on(
    timeline: Timeline,
    waiting: IdleTime,
    *,
    longest: Sequence[TimelineBar],
    chain: Sequence[TimelineBar],
    makespan: float,
) -> Iterator[str]:
    """Say what to change, what helps most first."""
    total = makespan * len(timeline.lanes)
    if not timeline.bars or not total:
        return
    costs = sorted(waiting.seconds.items(), key=lambda one: -one[1])
    for cause, seconds in costs:
        if seconds / total >= _WORTH and (words := _remedy(cause, timeline, waiting, seconds)):
            yield words
    yield from _on_length(timeline, longest, makespan)
    if len(chain) > 1:
        yield _on_chain(chain)
    idle = sum(waiting.seconds.values())
    if idle / total <= 1 - _BUSY:
        lanes, noun = timeline.lane_noun, timeline.noun
        yield (
            f"The {lanes}s are busy nearly all of the time: only more {lanes}s or faster {noun}s "
            "make it shorter."
        )


def _remedy(cause: Cause, timeline: Timeline, waiting: IdleTime, seconds: float) -> str:
    match cause:
        case "start-up":
            return _on_start(timeline)
        case "too wide":
            return _on_width(timeline, waiting)
        case "long tail":
            return _on_tail(timeline, waiting)
        case "order":
            return _on_order(timeline, seconds)
        case "restart":
            return (
                f"{duration(seconds)} of {timeline.lane_noun} time are lost to starting again what "
                f"crashed or hung: these {timeline.noun}s cost more than their own time."
            )
        case "ending":
            return (
                f"After the last {timeline.noun} there is still work: fixtures of modules and of "
                "the session that are torn down, reports that are written."
                if timeline.noun == "test"
                else ""
            )


def _on_start(timeline: Timeline) -> str:
    first = min(bar.start for bar in timeline.bars)
    if timeline.noun != "test":
        return (
            f"The first {timeline.noun} starts after {duration(first)}: runtimes are made, and "
            "compute is waited for. What is made once is there the next time."
        )
    if timeline.is_fresh:
        return (
            "Processes are started for every test. The pool (--n-workers without "
            "--scheduler=shell or slurm) keeps them, and still contains what crashes."
        )
    return (
        f"The first test starts after {duration(first)}: MPI, imports and the collection. Name the "
        "files that you want to run, and import what is heavy where it is needed."
    )


def _on_width(timeline: Timeline, waiting: IdleTime) -> str:
    found = waiting.culprit("too wide")
    if found is None:
        return ""
    seconds, bar = found
    lanes, all_lanes = timeline.lane_noun, len(timeline.lanes)
    beside = all_lanes - len(bar.lanes)
    if beside:
        left = counted(beside, lanes)
        return (
            f"{bar.name} has {len(bar.lanes)} of {all_lanes} {lanes}s, and nothing that waited was "
            f"small enough for the rest: {duration(seconds)} of {lanes} time are lost. Give it "
            f"fewer {lanes}s, or have {timeline.noun}s for {left} to run beside it."
        )
    return (
        f"{bar.name} needs all {all_lanes} {lanes}s, and those that were free early waited for the "
        f"others: {duration(seconds)} of {lanes} time are lost. Fewer {lanes}s for it, or several "
        "such one after the other, cost less."
    )


def _on_tail(timeline: Timeline, waiting: IdleTime) -> str:
    found = waiting.culprit("long tail")
    if found is None:
        return ""
    seconds, bar = found
    words = (
        f"At the end all wait for {bar.name} ({duration(bar.seconds)} on "
        f"{lanes_of(bar, timeline)}): {duration(seconds)} of {timeline.lane_noun} time are lost. "
        "Split it, or make it faster"
    )
    if timeline.noun != "test":
        return f"{words}, or put it first in the document."
    if timeline.order == "dynamic":
        return (
            f"{words}. The longest test is started first once its duration is known from an "
            "earlier run (.pytest_cache has it)."
        )
    return f"{words}, or use --scheduler=dynamic, which starts the longest tests first."


def _on_order(timeline: Timeline, seconds: float) -> str:
    lost = f"{duration(seconds)} of {timeline.lane_noun} time"
    match timeline.order:
        case "sequential" | "static":
            return (
                f"With {timeline.order} order {lost} are lost to waiting for a turn: "
                "--scheduler=dynamic (with --n-workers: --policy=dynamic) gives free ranks the "
                "next test that fits."
            )
        case "needs":
            return (
                f"{lost[0].upper()}{lost[1:]} are lost to waiting for others. See whether every "
                "`needs` is needed."
            )
    return (
        f"{lost[0].upper()}{lost[1:]} pass between tests, which are short or print much: fewer and "
        "larger ones cost less."
    )


def _on_chain(chain: Sequence[TimelineBar]) -> str:
    names = [bar.name for bar in chain]
    if len(names) > _MOST_LINKS:
        names = [*names[: _MOST_LINKS - 1], "…", names[-1]]
    seconds = sum(bar.seconds for bar in chain)
    return f"{' → '.join(names)} take {duration(seconds)}, one after the other: start there."


def _on_length(
    timeline: Timeline, longest: Sequence[TimelineBar], makespan: float
) -> Iterator[str]:
    if longest and len(timeline.bars) > 1 and longest[0].seconds >= _LONG * makespan:
        bar = longest[0]
        yield (
            f"{bar.name} alone takes {duration(bar.seconds)} of {duration(makespan)}: no number of "
            f"{timeline.lane_noun}s makes the run shorter than that."
        )


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


def _waiting(timeline: Timeline, makespan: float) -> IdleTime:
    """Go through time, and find for every moment why some lanes had nothing to do."""
    bars = sorted(timeline.bars, key=lambda bar: bar.start)
    lanes = len(timeline.lanes)
    waiting = IdleTime()
    if not bars:
        waiting.add("start-up", 0.0, makespan, lanes, None)
        return waiting
    least = _least_widths(bars)
    running: dict[int, TimelineBar] = {}
    last: TimelineBar | None = None
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
    running: Mapping[int, TimelineBar],
    after: TimelineBar | None,
    *,
    is_first: bool,
    is_stuck: bool,
) -> tuple[Cause, TimelineBar | None]:
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


def _least_widths(bars: Sequence[TimelineBar]) -> list[int]:
    """For each bar, give how many lanes the narrowest of it and those after it needs."""
    least = [len(bar.lanes) for bar in bars]
    for place in reversed(range(len(bars) - 1)):
        least[place] = min(least[place], least[place + 1])
    return least


_Change = tuple[int, TimelineBar, int]


def _moments(
    bars: Sequence[TimelineBar], makespan: float
) -> Iterator[tuple[tuple[float, list[_Change]], float]]:
    """Return every moment at which a lane gets or loses a bar, with the next such moment."""
    changes: dict[float, list[_Change]] = {0.0: []}
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

    Lanes are cores, or nodes where tasks have several on a cluster; as many as were in use at once.
    Each attempt is a bar. Raises InputError if there is no such run.
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
            start=max(0.0, (one.started or zero) - zero),
            end=max(0.0, (one.ended if one.ended is not None else until) - zero),
        )
        for one in attempts
    ]
    if _peak(claims) > _MOST_LANES:
        noun = "slot"
        claims = [LaneClaim(width=1, start=claim.start, end=claim.end) for claim in claims]
    lanes = pack(claims)
    bars = [
        TimelineBar(
            lanes=place,
            start=claim.start,
            end=max(claim.start, claim.end),
            name=one.task,
            state=_state(one),
            note=f"attempt {one.number}" if one.number > 1 else "",
            needs=tasks[one.task].needs if one.task in tasks else (),
        )
        for one, claim, place in zip(attempts, claims, lanes, strict=True)
    ]
    count = 1 + max((lane for place in lanes for lane in place), default=0)
    has_needs = any(task.needs or task.lane_width for task in tasks.values())
    return Timeline(
        title=run.id,
        lanes=tuple(f"{noun} {number}" for number in range(count)),
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


def _measure(tasks: Iterable[Task]) -> tuple[str, dict[str, int]]:
    """Choose what lanes are, and find how many each task needs."""
    tasks = list(tasks)
    if any(task.nodes > 1 and task.compute != "local" for task in tasks):
        return "node", {task.key: max(1, task.nodes) for task in tasks}
    return "core", {task.key: _cores(task) for task in tasks}


def _cores(task: Task) -> int:
    return max(1, math.ceil(task.resources.cores or task.width or len(task.processes)))


def _peak(claims: Sequence[LaneClaim]) -> int:
    """Find how many lanes are in use at once."""
    changes = sorted(
        change
        for claim in claims
        for change in ((claim.start, 1, claim.width), (claim.end, 0, -claim.width))
    )
    most = now = 0
    for _, _, change in changes:
        now += change
        most = max(most, now)
    return most


def _state(attempt: AttemptRow) -> State:
    return attempt.state if attempt.state.is_over else State.RUNNING


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


def telling_causes(found: Findings) -> list[Idle]:
    """Leave out what nobody could see."""
    return [one for one in found.causes if one.seconds >= _SLIVER * (found.idle + found.busy)]


def with_options(words: str) -> list[str]:
    """Split an advice: every second part is an option or was between backticks, for a program."""
    parts = _OPTION.split(words)
    return [part.strip("`") if number % 2 else part for number, part in enumerate(parts)]
