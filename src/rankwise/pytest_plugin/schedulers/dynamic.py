"""The largest test that fits goes first, and of those the longest."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rankwise.pytest_plugin.schedulers.base import (
    Assignment,
    Domains,
    FreeSlots,
    Pace,
    ScheduledTest,
)

# What stands in the place of a level for tests that share their domains; sorts before all levels.
_SHARES = ""


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
        domains: Domains | None = None,
    ) -> None:
        self._width = width
        self._pace = pace
        self._free = FreeSlots(width, domains)
        self._rank_sets: dict[int, _RankSet] = {}
        self._cases = {case.index: case for case in cases}
        self._waiting: dict[tuple[int, str], deque[ScheduledTest]] = {}
        """By size and by the level that they are exclusive at: those that wait for a free domain
        hold up no others."""
        self._needs: list[tuple[int, str]] = []
        for case in sorted(cases, key=_longest_first):
            self._queue(case).append(case)

    def _queue(self, case: ScheduledTest) -> deque[ScheduledTest]:
        need = case.size, case.exclusive or _SHARES
        queue = self._waiting.setdefault(need, deque())
        if not queue and need not in self._needs:
            insort(self._needs, need)
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
        self._queue(again).appendleft(again)

    def take(self) -> Assignment | None:
        # Needs are sorted: those before this index have no more slots than are free.
        fitting = bisect_left(self._needs, (self._free.count + 1, _SHARES))
        for size, level in reversed(self._needs[:fitting]):
            ranks = self._free.pick(size, exclusive=level or None)
            if ranks is not None:
                return Assignment(cases=self._batch(size, level), ranks=self._join(ranks))
        return None

    def _batch(self, size: int, level: str) -> tuple[int, ...]:
        queue = self._waiting[size, level]
        # A quarter of what each group of ranks would get: the rest stays to even things out.
        fair_share = len(queue) * size // (4 * self._width)
        batch = tuple(self._pace.batch(queue, fair_share))
        for _ in batch:
            queue.popleft()
        if not queue:
            self._needs.remove((size, level))
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
