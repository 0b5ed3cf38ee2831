"""What is to run next, and what fits."""

from __future__ import annotations

import dataclasses
import heapq
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rankwise.plan import Resources, When

_Line = tuple[str, Resources, str]
"""The compute, the claim and the lane of those who wait in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """A task as the queue knows it."""

    key: str
    needs: Sequence[str] = ()
    when: When = "passed"
    submits: bool = False
    """Whether it leaves runs behind that are to be driven."""
    compute: str = "local"
    claim: Resources = Resources()
    """In thousandths of cores: see `in_thousandths`."""
    lane: str = ""
    """Those of one lane are counted together; empty: they are not counted."""
    is_optional: bool = False
    """Whether all is well as well if there is too little for it to run."""
    is_checked: bool = False
    """Whether there is more to look at than its exit code, when it has ended."""
    calls_functions: bool = False
    """Whether functions of the user's are called for that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hopeless:
    """A task that will never run."""

    key: str
    reason: str
    is_well: bool = False
    """Whether nothing is wrong with that: it was there for a failure, and there was none."""


class Queue:
    """Gives tasks away in their order, those first that can start now.

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
        self.free = dict(free or {})
        """What is free on each compute, in thousandths of cores."""
        self._widths = widths or {}
        """How many tasks of a lane may run at once."""
        self._running: Counter[str] = Counter()
        """How many of each lane do."""
        self._tasks = {task.key: task for task in tasks}
        self._position = {key: number for number, key in enumerate(self._tasks)}
        self._followers: dict[str, list[str]] = {}
        self._missing: dict[str, int] = {}
        self._troubles: dict[str, str] = {}
        """What has gone wrong before a task that waits for the rest of what it needs."""
        self._idle: dict[str, list[str]] = {}
        """Of what it needs, what was left out without anything being wrong."""
        self._lines: dict[_Line, list[tuple[int, str]]] = {}
        done = set(passed)
        for task in self._tasks.values():
            needs = [need for need in task.needs if need not in done]
            self._missing[task.key] = len(needs)
            for need in needs:
                self._followers.setdefault(need, []).append(task.key)
        self.idle = self._line_up_all()
        """Those that wait for the failure of what has passed already."""

    def __len__(self) -> int:
        return len(self._tasks)

    def put_back(self, task: Queued) -> None:
        """Have a task wait again that was given away, by this queue or an earlier one."""
        self._tasks[task.key] = task
        self._position.setdefault(task.key, len(self._position))
        self._line_up(task)

    def take(self) -> Queued | None:
        """Give away the first task that fits into what is free, and whose lane is not full."""
        best: tuple[int, _Line] | None = None
        for line, waiting in self._lines.items():
            compute, claim, lane = line
            is_first = waiting and (best is None or waiting[0][0] < best[0])
            if is_first and self._is_open(lane) and fits(claim, self.free[compute]):
                best = waiting[0][0], line
        if best is None:
            return None
        _, key = heapq.heappop(self._lines[best[1]])
        return self._tasks.pop(key)

    def _is_open(self, lane: str) -> bool:
        return lane not in self._widths or self._running[lane] < self._widths[lane]

    def enter(self, task: Queued) -> None:
        """Count a task that runs: what it claims is not free."""
        self.free[task.compute] -= task.claim
        self._running[task.lane] += 1

    def leave(self, task: Queued) -> None:
        """Count a task no longer that has run."""
        self.free[task.compute] += task.claim
        self._running[task.lane] -= 1

    def take_any(self) -> Queued | None:
        """Give away the first task that could start, whether it fits or not."""
        lines = [line for line in self._lines.values() if line]
        if not lines:
            return None
        _, key = heapq.heappop(min(lines))
        return self._tasks.pop(key)

    def passed(self, key: str) -> list[Hopeless]:
        """Let those go on that have waited for this one; give up what is there for failures."""
        return self._over(key)

    def failed(self, key: str, how: str) -> list[Hopeless]:
        """Give up those that have waited for this one, and those that waited for them.

        Those go on that are there for failures, or run in any case.
        """
        return self._over(key, trouble=how)

    def skipped(self, key: str) -> list[Hopeless]:
        """Let those go on without this one; give up those that have waited for nothing else."""
        return self._over(key, is_idle=True)

    def _over(self, key: str, *, trouble: str = "", is_idle: bool = False) -> list[Hopeless]:
        given_up: list[Hopeless] = []
        over = [(key, trouble, is_idle)]
        while over:
            cause, trouble, is_idle = over.pop(0)
            for follower in self._followers.pop(cause, ()):
                if trouble:
                    self._troubles.setdefault(follower, f"needs {cause}, which {trouble}")
                elif is_idle:
                    self._idle.setdefault(follower, []).append(cause)
                self._missing[follower] -= 1
                hopeless = self._decide(follower)
                if hopeless is not None:
                    given_up.append(hopeless)
                    how = "" if hopeless.is_well else "was not run"
                    over.append((follower, how, hopeless.is_well))
        return given_up

    def _line_up_all(self) -> list[Hopeless]:
        found: list[Hopeless] = []
        for key in [key for key, missing in self._missing.items() if not missing]:
            if (hopeless := self._decide(key)) is not None:
                found += [hopeless, *self.skipped(key)]
        return found

    def _decide(self, key: str) -> Hopeless | None:
        """Have a task line up if it can start now; give it up if it never will."""
        task = self._tasks.get(key)
        if task is None:
            return None
        trouble = self._troubles.get(key, "")
        if task.when == "passed" and trouble:
            # The others that it needs do not matter any more.
            del self._tasks[key]
            return Hopeless(key=key, reason=trouble)
        if self._missing[key]:
            return None
        idle = self._idle.get(key, ())
        if task.when == "passed" and idle and len(idle) == len(task.needs):
            # Only once all are over: whether it runs must not depend on which of them ends first.
            del self._tasks[key]
            reason = f"needs {idle[0]}, which was not needed"
            return Hopeless(key=key, reason=reason, is_well=True)
        if task.when == "failed" and not trouble:
            del self._tasks[key]
            return Hopeless(key=key, reason="nothing has failed before it", is_well=True)
        self._line_up(task)
        return None

    def give_up_all(self, reason: str) -> list[Hopeless]:
        """Give up everything that still waits."""
        given_up = [Hopeless(key=key, reason=reason) for key in self._tasks]
        self._tasks.clear()
        self._lines.clear()
        return given_up

    def _line_up(self, task: Queued) -> None:
        line = self._lines.setdefault((task.compute, task.claim, task.lane), [])
        heapq.heappush(line, (self._position[task.key], task.key))


def in_thousandths(resources: Resources) -> Resources:
    """Count cores in thousandths, which are whole: sums of fractions would not be exact.

    What is less than that is left out, but not all of a claim.
    """
    cores = resources.cores
    if not cores or math.isinf(cores):
        return resources
    # 0.57 * 1000 is a little less than 570.
    return dataclasses.replace(resources, cores=max(1, math.floor(cores * 1000 + 1e-6)))


def fits(claim: Resources, free: Resources) -> bool:
    """Return whether there is enough of everything that is claimed."""
    return (
        (not claim.cores or claim.cores <= free.cores)
        and (not claim.memory or claim.memory <= free.memory)
        and (not claim.gpus or claim.gpus <= free.gpus)
    )
