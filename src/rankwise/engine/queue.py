"""The order of tasks: which one runs next, and which fit."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rankwise.plan import Resources, When
from rankwise.store import State

Amounts = tuple[float, ...]
"""Cores in thousandths, bytes of memory, GPUs: see `in_thousandths`."""
_Line = tuple[str, Amounts, str]
"""The compute, the claim and the lane of the tasks that wait in it."""


_IN_WORDS = {State.NOT_RUN: "was not run", State.CANCELLED: "was cancelled"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """A task as the queue knows it."""

    key: str
    needs: Sequence[str] = ()
    when: When = "passed"
    compute: str = "local"
    claim: Resources = Resources()
    lane: str = ""
    """Tasks of one lane are counted together; empty: they are not counted."""
    is_optional: bool = False
    """Whether the run is green without it if there is too little for it to run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenUp:
    """A task that will never run."""

    key: str
    reason: str
    is_well: bool = False
    """Whether the run may be green without it: it was for a failure, and there was none."""


class Queue:
    """Hands out tasks in their order, those first that can start now.

    Tasks of one lane that claim the same of the same compute wait in one line: looking for one that
    fits takes as long as there are different claims, not tasks.
    """

    def __init__(
        self,
        tasks: Iterable[Queued],
        *,
        passed: Iterable[str] = (),
        free: Mapping[str, Resources] | None = None,
        widths: Mapping[str, int] | None = None,
    ) -> None:
        self.free = {compute: in_thousandths(room) for compute, room in (free or {}).items()}
        """What is free on each compute."""
        self._widths = widths or {}
        """How many tasks of a lane may run at once."""
        self._running: Counter[str] = Counter()
        """How many tasks of each lane run."""
        self.waiting = {task.key: task for task in tasks}
        """Tasks that were not given away or given up yet, by their keys."""
        self._position = {key: number for number, key in enumerate(self.waiting)}
        self._followers: dict[str, list[str]] = {}
        self._missing: dict[str, int] = {}
        self._troubles: dict[str, str] = {}
        """What has failed before a task that waits for the rest of what it needs."""
        self._idle: dict[str, list[str]] = {}
        """Of what a task needs, what was skipped."""
        self._lines: dict[_Line, list[tuple[int, str]]] = {}
        done = set(passed)
        for task in self.waiting.values():
            needs = [need for need in task.needs if need not in done]
            self._missing[task.key] = len(needs)
            for need in needs:
                self._followers.setdefault(need, []).append(task.key)
        self.idle: list[GivenUp] = []
        """Tasks given up at once: they wait for the failure of what has passed."""
        for key in [key for key, missing in self._missing.items() if not missing]:
            if (one := self._decide(key)) is not None:
                self.idle += [one, *self.over(key, State.SKIPPED)]

    def put_back(self, task: Queued) -> None:
        """Have a task wait again that was given away, by this queue or an earlier one."""
        self.waiting[task.key] = task
        # A task that another client has started was never in this queue: it comes last.
        self._position.setdefault(task.key, len(self._position))
        self._line_up(task)

    def take(self) -> Queued | None:
        """Return the first task that fits into what is free and whose lane is not full, or None."""
        # By the position in the plan, so that runs of one plan start their tasks in one order.
        best: tuple[int, _Line] | None = None
        for line, waiting in self._lines.items():
            compute, claim, lane = line
            is_first = waiting and (best is None or waiting[0][0] < best[0])
            is_open = lane not in self._widths or self._running[lane] < self._widths[lane]
            if is_first and is_open and fits(claim, self.free[compute]):
                best = waiting[0][0], line
        if best is None:
            return None
        _, key = heapq.heappop(self._lines[best[1]])
        return self.waiting.pop(key)

    def enter(self, task: Queued, one: int = 1) -> None:
        """Count a task that runs: what it claims is not free; -1: it has run."""
        free = zip(self.free[task.compute], in_thousandths(task.claim), strict=True)
        self.free[task.compute] = tuple(there - one * claimed for there, claimed in free)
        self._running[task.lane] += one

    def leave(self, task: Queued) -> None:
        """Count a task no longer that has run."""
        self.enter(task, -1)

    def take_any(self) -> Queued | None:
        """Return the first task that could start, whether it fits or not; None: none could."""
        lines = [line for line in self._lines.values() if line]
        if not lines:
            return None
        _, key = heapq.heappop(min(lines))
        return self.waiting.pop(key)

    def over(self, key: str, state: State) -> list[GivenUp]:
        """Let tasks go on that have waited for this one; return those that never will.

        A task that waits for a failure is given up when there was none, all others when there was
        one, unless they run in any case. What waits for tasks that are given up follows them.
        """
        given_up: list[GivenUp] = []
        # Not by recursion: a chain of tasks may be thousands long.
        over = [(key, state)]
        while over:
            cause, how = over.pop(0)
            for follower in self._followers.pop(cause, ()):
                if how is State.SKIPPED:
                    self._idle.setdefault(follower, []).append(cause)
                elif how is not State.PASSED:
                    trouble = f"needs {cause}, which {_IN_WORDS.get(how, how)}"
                    self._troubles.setdefault(follower, trouble)
                self._missing[follower] -= 1
                one = self._decide(follower)
                if one is not None:
                    given_up.append(one)
                    over.append((follower, State.SKIPPED if one.is_well else State.NOT_RUN))
        return given_up

    def left_out(self, key: str, reason: str, *, is_well: bool) -> list[GivenUp]:
        """Return a task that waits no more, as given up, with all that need it."""
        followers = self.over(key, State.SKIPPED if is_well else State.NOT_RUN)
        return [GivenUp(key=key, reason=reason, is_well=is_well), *followers]

    def _decide(self, key: str) -> GivenUp | None:
        """Have a task line up if it can start now; give it up if it never will."""
        task = self.waiting.get(key)
        if task is None:
            # It was given up for another of its needs.
            return None
        trouble = self._troubles.get(key, "")
        if task.when == "passed" and trouble:
            # The others that it needs do not matter any more.
            del self.waiting[key]
            return GivenUp(key=key, reason=trouble)
        if self._missing[key]:
            return None
        idle = self._idle.get(key, ())
        if task.when == "passed" and idle and len(idle) == len(task.needs):
            # Only once all are over: whether it runs must not depend on which of them ends first.
            del self.waiting[key]
            reason = f"needs {idle[0]}, which was not needed"
            return GivenUp(key=key, reason=reason, is_well=True)
        if task.when == "failed" and not trouble:
            del self.waiting[key]
            return GivenUp(key=key, reason="nothing has failed before it", is_well=True)
        self._line_up(task)
        return None

    def give_up_all(self, reason: str) -> list[GivenUp]:
        """Return everything that still waits, as given up."""
        given_up = [GivenUp(key=key, reason=reason) for key in self.waiting]
        self.waiting.clear()
        self._lines.clear()
        return given_up

    def _line_up(self, task: Queued) -> None:
        line = self._lines.setdefault((task.compute, in_thousandths(task.claim), task.lane), [])
        heapq.heappush(line, (self._position[task.key], task.key))


def in_thousandths(resources: Resources) -> Amounts:
    """Count cores in thousandths, which are whole: sums of fractions would not be exact.

    What is less than that is left out, but not all of a claim.
    """
    cores = resources.cores
    if cores and not math.isinf(cores):
        # 0.57 * 1000 is a little less than 570.
        cores = max(1, math.floor(cores * 1000 + 1e-6))
    return cores, resources.memory, resources.gpus


def fits(claim: Amounts, free: Amounts) -> bool:
    """Return whether there is enough of everything that is claimed."""
    # What claims nothing fits, even where more is in use than there is.
    return all(not needed or needed <= there for needed, there in zip(claim, free, strict=True))
