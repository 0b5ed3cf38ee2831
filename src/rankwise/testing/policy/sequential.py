"""One test at a time, in the order given, on the first ranks."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice, takewhile
from typing import ClassVar

from rankwise.testing.policy.contract import Assignment, Case
from rankwise.testing.policy.pace import Pace

# Rank 0 runs a row of one-rank tests by itself; it stops by itself too, so a long row is safe.
_ROW_LIMIT = 256


class Sequential:
    """Slow and easy to follow: what is running is always one test.

    With a pace, short tests on the same ranks go in a row: then a rank that is done with one of
    them does not wait for its peers before it begins the next. Without, it does.
    """

    one_by_one: ClassVar[bool] = True

    def __init__(self, cases: Sequence[Case], pace: Pace | None = None) -> None:
        self._cases = {case.index: case for case in cases}
        self._waiting = deque(cases)
        self._pace = pace
        self._apart = False
        self._busy: set[int] | None = None
        self._released: set[int] = set()

    def keep_apart(self) -> None:
        """Give tests on one rank away one by one, too."""
        self._apart = True

    def release(self, ranks: tuple[int, ...]) -> None:
        if self._busy is None:
            self._released.update(ranks)
        else:
            self._busy.difference_update(ranks)

    def put_back(self, case: int) -> None:
        self._waiting.appendleft(self._cases[case])

    def take(self) -> Assignment | None:
        if self._busy or not self._waiting:
            return None
        size = self._waiting[0].size
        if self._busy is None and not self._released.issuperset(range(size)):
            return None
        row = self._row(self._waiting[0])
        for _ in row:
            self._waiting.popleft()
        self._busy = set(range(size))
        return Assignment(cases=tuple(case.index for case in row), ranks=tuple(range(size)))

    def _row(self, first: Case) -> Sequence[Case]:
        if self._apart:
            return [first]
        behind = islice(self._waiting, 1, _ROW_LIMIT)
        equal = [first, *takewhile(lambda case: case.goes_with(first), behind)]
        if first.size == 1:
            return equal
        return list(self._pace.batch(equal, len(equal))) if self._pace else equal[:1]
