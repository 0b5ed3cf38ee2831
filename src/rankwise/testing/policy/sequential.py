"""One test at a time, in the order given, on the first ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rankwise.testing.policy.contract import Assignment, Case

# Rank 0 runs a row of one-rank tests by itself; it stops by itself too, so a long row is safe.
_ROW_LIMIT = 256


class Sequential:
    """Slow and easy to follow: what is running is always exactly one test."""

    one_by_one: ClassVar[bool] = True

    def __init__(self, cases: Sequence[Case]) -> None:
        self._cases = cases
        self._next = 0
        self._busy: set[int] | None = None
        self._released: set[int] = set()

    def release(self, ranks: tuple[int, ...]) -> None:
        if self._busy is None:
            self._released.update(ranks)
        else:
            self._busy.difference_update(ranks)

    def take(self) -> Assignment | None:
        if self._busy or self._next == len(self._cases):
            return None
        size = self._cases[self._next].size
        if self._busy is None and not self._released.issuperset(range(size)):
            return None
        end = self._next + 1
        if size == 1:
            while end < len(self._cases) and end - self._next < _ROW_LIMIT:
                if self._cases[end].size != 1:
                    break
                end += 1
        row = self._cases[self._next : end]
        self._next = end
        self._busy = set(range(size))
        return Assignment(cases=tuple(case.index for case in row), ranks=tuple(range(size)))
