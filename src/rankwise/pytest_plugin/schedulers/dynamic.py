"""The largest test that fits goes first, and of those the longest."""

from __future__ import annotations

import heapq
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rankwise.pytest_plugin.schedulers.base import Assignment, Pace, ScheduledTest


class FreeSlots:
    """Free slots by NUMA domain: those of one domain go to one test where that is possible."""

    def __init__(self, domains: Sequence[int]) -> None:
        self._domain = domains
        self._free: list[list[int]] = [[] for _ in range(max(domains, default=0) + 1)]
        self._sizes = [domains.count(number) for number in range(len(self._free))]
        self.count = 0

    def add(self, slot: int) -> None:
        """Take a slot back."""
        heapq.heappush(self._free[self._domain[slot]], slot)
        self.count += 1

    def pick(self, size: int, *, exclusive: bool = False) -> tuple[int, ...] | None:
        """Return slots; None if there are too few, or no free domains for a test that wants them.

        An exclusive test gets all slots of its domains.
        """
        order = self._whole(size) if exclusive else self._order(size)
        if order is None:
            return None
        # The lowest numbers first, so that equal tests meet on equal slots and keep their
        # communicators.
        picked: list[int] = []
        for number in order:
            free = self._free[number]
            wanted = len(free) if exclusive else min(len(free), size - len(picked))
            picked += [heapq.heappop(free) for _ in range(wanted)]
        self.count -= len(picked)
        return tuple(sorted(picked))

    def _order(self, size: int) -> Sequence[int] | None:
        """Return the domains to take from: the tightest that holds all, or else the emptiest."""
        if size > self.count:
            return None
        if len(self._free) == 1:
            return (0,)
        enough = [number for number, free in enumerate(self._free) if len(free) >= size]
        if enough:
            return (min(enough, key=lambda number: len(self._free[number])),)
        return sorted(range(len(self._free)), key=lambda number: -len(self._free[number]))

    def _whole(self, size: int) -> Sequence[int] | None:
        chosen: list[int] = []
        found = 0
        for number, free in enumerate(self._free):
            if found < size and len(free) == self._sizes[number]:
                chosen.append(number)
                found += len(free)
        return chosen if found >= size else None


@dataclass(slots=True, kw_only=True)
class _RankSet:
    """The ranks of a test, and how many of them have not come back from it."""

    ranks: tuple[int, ...]
    missing: int


class Dynamic:
    """Keep every rank busy: whenever ranks are free, the best test for them starts.

    Ranks that had a test together become free together. They end it within a moment of each other,
    and the first one back would otherwise get a small test, so that a large one that needs all of
    them had to wait until no small ones are left.
    """

    one_by_one: ClassVar[bool] = False

    def __init__(
        self,
        cases: Sequence[ScheduledTest],
        width: int,
        pace: Pace,
        *,
        domains: Sequence[int] | None = None,
    ) -> None:
        self._width = width
        self._pace = pace
        self._free = FreeSlots(domains or [0] * width)
        self._rank_sets: dict[int, _RankSet] = {}
        self._cases = {case.index: case for case in cases}
        self._waiting: dict[int, deque[ScheduledTest]] = {}
        self._sizes: list[int] = []
        for case in sorted(cases, key=_longest_first):
            self._queue(case.size).append(case)

    def _queue(self, size: int) -> deque[ScheduledTest]:
        queue = self._waiting.setdefault(size, deque())
        if not queue and size not in self._sizes:
            insort(self._sizes, size)
        return queue

    def release(self, ranks: tuple[int, ...]) -> None:
        for rank in ranks:
            rank_set = self._rank_sets.pop(rank, None)
            if rank_set is None:
                self._free.add(rank)
                continue
            rank_set.missing -= 1
            if not rank_set.missing:
                for freed in rank_set.ranks:
                    self._free.add(freed)

    def put_back(self, case: int) -> None:
        again = self._cases[case]
        self._queue(again.size).appendleft(again)

    def take(self) -> Assignment | None:
        # Sizes are sorted: those up to this index fit on the free slots.
        fitting = bisect_right(self._sizes, self._free.count)
        for size in reversed(self._sizes[:fitting]):
            queue = self._waiting[size]
            ranks = self._free.pick(size, exclusive=queue[0].exclusive)
            if ranks is not None:
                return Assignment(cases=self._batch(size, queue), ranks=self._join(ranks))
        return None

    def _batch(self, size: int, queue: deque[ScheduledTest]) -> tuple[int, ...]:
        # A quarter of what each group of ranks would get: the rest stays to even things out.
        fair_share = len(queue) * size // (4 * self._width)
        batch = tuple(self._pace.batch(queue, fair_share))
        for _ in batch:
            queue.popleft()
        if not queue:
            self._sizes.remove(size)
        return tuple(case.index for case in batch)

    def _join(self, ranks: tuple[int, ...]) -> tuple[int, ...]:
        if len(ranks) > 1:
            self._rank_sets.update(dict.fromkeys(ranks, _RankSet(ranks=ranks, missing=len(ranks))))
        return ranks


def _longest_first(case: ScheduledTest) -> tuple[float, int]:
    """Order by duration; tests never seen before come first, in the order given.

    A new test may be the longest of all, and a long test that starts last is what hurts.
    """
    return (-case.seconds if case.seconds is not None else float("-inf"), case.index)
