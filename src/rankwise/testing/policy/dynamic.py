"""The largest test that fits goes first, and of those the longest."""

from __future__ import annotations

import heapq
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rankwise.testing.policy.contract import Assignment, Case
from rankwise.testing.policy.pace import Pace


@dataclass(slots=True, kw_only=True)
class _Party:
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

    def __init__(self, cases: Sequence[Case], width: int, pace: Pace) -> None:
        self._width = width
        self._pace = pace
        self._free: list[int] = []
        self._parties: dict[int, _Party] = {}
        self._waiting: dict[int, deque[Case]] = {}
        self._sizes: list[int] = []
        for case in sorted(cases, key=_longest_first):
            if case.size not in self._waiting:
                self._waiting[case.size] = deque()
                insort(self._sizes, case.size)
            self._waiting[case.size].append(case)

    def release(self, ranks: tuple[int, ...]) -> None:
        for rank in ranks:
            party = self._parties.pop(rank, None)
            if party is None:
                heapq.heappush(self._free, rank)
                continue
            party.missing -= 1
            if not party.missing:
                for member in party.ranks:
                    heapq.heappush(self._free, member)

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
        if size > 1:
            self._parties.update(dict.fromkeys(ranks, _Party(ranks=ranks, missing=size)))
        return Assignment(cases=tuple(case.index for case in row), ranks=ranks)


def _longest_first(case: Case) -> tuple[float, int]:
    """Order by duration; tests never seen before come first, in the order given.

    A new test may be the longest of all, and a long test that starts last is what hurts.
    """
    return (-case.seconds if case.seconds is not None else float("-inf"), case.index)
