"""What to change to make a run shorter, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rankwise.report.causes import Cause, Waiting, lanes_of
from rankwise.report.lanes import Bar, Timeline
from rankwise.report.words import counted, duration

# A cause that costs less than this share of all lanes' time is not worth a change.
_WORTH = 0.08
_BUSY = 0.85
_LONG = 0.5
_MOST_LINKS = 6


def advice_on(
    timeline: Timeline,
    waiting: Waiting,
    *,
    longest: Sequence[Bar],
    chain: Sequence[Bar],
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


def _remedy(cause: Cause, timeline: Timeline, waiting: Waiting, seconds: float) -> str:
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


def _on_width(timeline: Timeline, waiting: Waiting) -> str:
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


def _on_tail(timeline: Timeline, waiting: Waiting) -> str:
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


def _on_chain(chain: Sequence[Bar]) -> str:
    names = [bar.name for bar in chain]
    if len(names) > _MOST_LINKS:
        names = [*names[: _MOST_LINKS - 1], "…", names[-1]]
    seconds = sum(bar.seconds for bar in chain)
    return f"{' → '.join(names)} take {duration(seconds)}, one after the other: start there."


def _on_length(timeline: Timeline, longest: Sequence[Bar], makespan: float) -> Iterator[str]:
    if longest and len(timeline.bars) > 1 and longest[0].seconds >= _LONG * makespan:
        bar = longest[0]
        yield (
            f"{bar.name} alone takes {duration(bar.seconds)} of {duration(makespan)}: no number of "
            f"{timeline.lane_noun}s makes the run shorter than that."
        )
