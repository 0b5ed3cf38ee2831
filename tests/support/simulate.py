"""What a scheduler would do with tests of known durations: no test is run, no time passes."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from rankwise.pytest_plugin.schedulers.base import Pace, ScheduledTest, Scheduler


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A test's place in time and on ranks."""

    case: int
    ranks: tuple[int, ...]
    start: float
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """What became of a suite, in the order in which tests were started."""

    width: int
    spans: Sequence[Span]

    @property
    def makespan(self) -> float:
        """When the last test ended."""
        return max((span.end for span in self.spans), default=0.0)

    @property
    def idle(self) -> float:
        """How long ranks had nothing to do until the last test ended, all ranks together."""
        busy = sum(len(span.ranks) * (span.end - span.start) for span in self.spans)
        return self.width * self.makespan - busy


def simulate(
    scheduler: Scheduler,
    seconds: Sequence[float],
    width: int,
    *,
    pace: Pace | None = None,
    skew: float = 0.0,
) -> Simulation:
    """Let a scheduler place all its tests on `width` ranks; `seconds` has the duration of each.

    Each rank of a test is released `skew` seconds after the one before it, as ranks never end at
    exactly the same moment. `pace` learns durations as tests end, as it does in a real run.
    """
    spans: list[Span] = []
    # (when, tie-breaker, ranks to release, tests that have ended)
    events: list[tuple[float, int, tuple[int, ...], tuple[int, ...]]] = [
        (0.0, 0, tuple(range(width)), ())
    ]
    count = 0
    while events:
        now, _, released, ended = heapq.heappop(events)
        if pace is not None:
            for case in ended:
                pace.observe(seconds[case])
        scheduler.release(released)
        while (assignment := scheduler.take()) is not None:
            end = now
            for case in assignment.cases:
                start, end = end, end + seconds[case]
                spans.append(Span(case=case, ranks=assignment.ranks, start=start, end=end))
            last = len(assignment.ranks) - 1
            if not skew or scheduler.one_by_one:
                count += 1
                release = (end + last * skew, count, assignment.ranks, assignment.cases)
                heapq.heappush(events, release)
                continue
            for position, rank in enumerate(assignment.ranks):
                count += 1
                cases = assignment.cases if position == last else ()
                heapq.heappush(events, (end + position * skew, count, (rank,), cases))
    return Simulation(width=width, spans=spans)


def lower_bound(cases: Sequence[ScheduledTest], seconds: Sequence[float], width: int) -> float:
    """Return a time that no scheduler can beat.

    All the work spread evenly over all ranks, with the ranks that must be idle beside large tests;
    or the longest test; or all tests on more than half of the ranks, of which no two can run at
    once.
    """
    area = sum(case.size * seconds[case.index] for case in cases)
    longest = max((seconds[case.index] for case in cases), default=0.0)
    wide = sum(seconds[case.index] for case in cases if 2 * case.size > width)
    return max((area + max(0.0, _idle(cases, seconds, width))) / width, longest, wide)


def _idle(cases: Sequence[ScheduledTest], seconds: Sequence[float], width: int) -> float:
    """Return the time that ranks have nothing to do beside tests on more than half of the ranks.

    Beside a test on `size` ranks only tests on `width - size` ranks or fewer can run, and there may
    not be enough of them.
    """
    beside: dict[int, float] = {}
    small: dict[int, float] = {}
    for case in cases:
        taken = seconds[case.index]
        if 2 * case.size > width:
            beside[case.size] = beside.get(case.size, 0.0) + taken * (width - case.size)
        else:
            small[case.size] = small.get(case.size, 0.0) + taken * case.size
    return max(
        (
            sum(room for size, room in beside.items() if size >= least)
            - sum(work for size, work in small.items() if size <= width - least)
            for least in beside
        ),
        default=0.0,
    )
