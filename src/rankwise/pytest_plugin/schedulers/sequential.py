"""One test at a time, in the order given, on the first ranks."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice, takewhile
from typing import ClassVar

from rankwise.pytest_plugin.schedulers.base import Assignment, Pace, ScheduledTest

# Rank 0 runs a batch of one-rank tests by itself; it stops by itself too, so a long batch is safe.
_BATCH_LIMIT = 256


class Sequential:
    """Slow and easy to follow: what is running is always one test.

    With a pace, short tests on the same ranks go in a batch: then a rank that is done with one of
    them does not wait for its peers before it begins the next. Without, it does.
    """

    one_by_one: ClassVar[bool] = True

    def __init__(
        self, cases: Sequence[ScheduledTest], pace: Pace | None = None, *, apart: bool = False
    ) -> None:
        self._cases = {case.index: case for case in cases}
        self._waiting = deque(cases)
        self._pace = pace
        self._apart = apart
        self._busy: set[int] | None = None
        self._released: set[int] = set()

    def release(self, ranks: tuple[int, ...]) -> None:
        if self._busy is None:
            self._released.update(ranks)
        else:
            self._busy.difference_update(ranks)

    def put_back(self, case: int) -> None:
        self._waiting.appendleft(self._cases[case])

    def take(self) -> Assignment | None:
        # None: nothing has run. An empty set: all ranks of the last test are back.
        if self._busy or not self._waiting:
            return None
        size = self._waiting[0].size
        if self._busy is None and not self._released.issuperset(range(size)):
            return None
        batch = self._batch(self._waiting[0])
        for _ in batch:
            self._waiting.popleft()
        self._busy = set(range(size))
        return Assignment(cases=tuple(case.index for case in batch), ranks=tuple(range(size)))

    def _batch(self, first: ScheduledTest) -> Sequence[ScheduledTest]:
        if self._apart:
            return [first]
        behind = islice(self._waiting, 1, _BATCH_LIMIT)
        equal = [first, *takewhile(lambda case: case.goes_with(first), behind)]
        if first.size == 1:
            return equal
        return list(self._pace.batch(equal, len(equal))) if self._pace else equal[:1]
