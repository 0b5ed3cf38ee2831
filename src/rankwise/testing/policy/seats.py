"""The seats of a run, each good for one rank, and which of them are free."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


class Seats:
    """Free seats by NUMA domain: those of one domain go to one test where that is possible."""

    def __init__(self, domains: Sequence[int]) -> None:
        self._domain = domains
        self._free: list[list[int]] = [[] for _ in range(max(domains, default=0) + 1)]
        self._sizes = [domains.count(number) for number in range(len(self._free))]
        self.count = 0

    def add(self, seat: int) -> None:
        """Take a seat back."""
        heapq.heappush(self._free[self._domain[seat]], seat)
        self.count += 1

    def pick(self, size: int, *, exclusive: bool = False) -> tuple[int, ...] | None:
        """Give seats; None if there are too few, or no free domains for a test that wants them.

        An exclusive test gets all seats of its domains.
        """
        order = self._whole(size) if exclusive else self._order(size)
        if order is None:
            return None
        picked: list[int] = []
        for number in order:
            free = self._free[number]
            wanted = len(free) if exclusive else min(len(free), size - len(picked))
            picked += [heapq.heappop(free) for _ in range(wanted)]
        self.count -= len(picked)
        return tuple(sorted(picked))

    def _order(self, size: int) -> Sequence[int] | None:
        """Give the domains to take from: the tightest that holds all, or else the emptiest."""
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
