"""The largest test that fits goes first, and of those the longest."""

from __future__ import annotations

import heapq
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Sequence
from typing import ClassVar

from rankwise.testing.policy.contract import Assignment, Case
from rankwise.testing.policy.pace import Pace


class Dynamic:
    """Keep every rank busy: whenever ranks are free, the best test for them starts."""

    lockstep: ClassVar[bool] = False

    def __init__(self, cases: Sequence[Case], width: int, pace: Pace) -> None:
        self._width = width
        self._pace = pace
        self._free: list[int] = []
        self._waiting: dict[int, deque[Case]] = {}
        self._sizes: list[int] = []
        for case in sorted(cases, key=_longest_first):
            if case.size not in self._waiting:
                self._waiting[case.size] = deque()
                insort(self._sizes, case.size)
            self._waiting[case.size].append(case)

    def release(self, ranks: tuple[int, ...]) -> None:
        for rank in ranks:
            heapq.heappush(self._free, rank)

    def take(self) -> Assignment | None:
        fitting = bisect_right(self._sizes, len(self._free))
        if not fitting:
            return None
        size = self._sizes[fitting - 1]
        queue = self._waiting[size]
        # A quarter of what each group of ranks would get: the rest stays to even things out.
        fair_share = len(queue) * size // (4 * self._width)
        row = list(self._pace.batch(queue, fair_share))
        for _ in row:
            queue.popleft()
        if not queue:
            self._sizes.remove(size)
        ranks = tuple(heapq.heappop(self._free) for _ in range(size))
        return Assignment(cases=tuple(case.index for case in row), ranks=ranks)


def _longest_first(case: Case) -> tuple[float, int]:
    """Order by duration; tests never seen before come first, in the order given.

    A new test may be the longest of all, and a long test that starts last is what hurts.
    """
    return (-case.seconds if case.seconds is not None else float("-inf"), case.index)
