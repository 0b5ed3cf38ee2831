"""The largest test that fits goes first, and of those the longest."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rankwise.testing.policy.contract import Assignment, Case
from rankwise.testing.policy.pace import Pace
from rankwise.testing.policy.seats import Seats


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

    def __init__(
        self,
        cases: Sequence[Case],
        width: int,
        pace: Pace,
        *,
        domains: Sequence[int] | None = None,
    ) -> None:
        self._width = width
        self._pace = pace
        self._free = Seats(domains or [0] * width)
        self._parties: dict[int, _Party] = {}
        self._cases = {case.index: case for case in cases}
        self._waiting: dict[int, deque[Case]] = {}
        self._sizes: list[int] = []
        for case in sorted(cases, key=_longest_first):
            self._queue(case.size).append(case)

    def _queue(self, size: int) -> deque[Case]:
        queue = self._waiting.setdefault(size, deque())
        if not queue and size not in self._sizes:
            insort(self._sizes, size)
        return queue

    def release(self, ranks: tuple[int, ...]) -> None:
        for rank in ranks:
            party = self._parties.pop(rank, None)
            if party is None:
                self._free.add(rank)
                continue
            party.missing -= 1
            if not party.missing:
                for member in party.ranks:
                    self._free.add(member)

    def put_back(self, case: int) -> None:
        again = self._cases[case]
        self._queue(again.size).appendleft(again)

    def take(self) -> Assignment | None:
        fitting = bisect_right(self._sizes, self._free.count)
        for size in reversed(self._sizes[:fitting]):
            queue = self._waiting[size]
            ranks = self._free.pick(size, exclusive=queue[0].exclusive)
            if ranks is not None:
                return Assignment(cases=self._row(size, queue), ranks=self._join(ranks))
        return None

    def _row(self, size: int, queue: deque[Case]) -> tuple[int, ...]:
        # A quarter of what each group of ranks would get: the rest stays to even things out.
        fair_share = len(queue) * size // (4 * self._width)
        row = tuple(self._pace.batch(queue, fair_share))
        for _ in row:
            queue.popleft()
        if not queue:
            self._sizes.remove(size)
        return tuple(case.index for case in row)

    def _join(self, ranks: tuple[int, ...]) -> tuple[int, ...]:
        if len(ranks) > 1:
            self._parties.update(dict.fromkeys(ranks, _Party(ranks=ranks, missing=len(ranks))))
        return ranks


def _longest_first(case: Case) -> tuple[float, int]:
    """Order by duration; tests never seen before come first, in the order given.

    A new test may be the longest of all, and a long test that starts last is what hurts.
    """
    return (-case.seconds if case.seconds is not None else float("-inf"), case.index)
