"""How long tests take, remembered and observed, and how many may travel together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from rankwise.testing.policy.contract import Case

# Long enough to hide the round trip between two assignments, short enough not to unbalance ranks.
_BATCH_SECONDS = 0.05
_BATCH_LIMIT = 64


class Pace:
    """Estimate durations; an unknown test is expected to be like those seen in this run."""

    def __init__(self, *, batching: bool = True) -> None:
        self._batching = batching
        self._count = 0
        self._mean = 0.0

    def observe(self, seconds: float) -> None:
        """Learn how long a test of this run took."""
        self._count += 1
        self._mean += (seconds - self._mean) / self._count

    def estimate(self, case: Case) -> float | None:
        """Expected seconds of a test; None while nothing is known."""
        if case.seconds is not None:
            return case.seconds
        return self._mean if self._count else None

    def batch(self, cases: Iterable[Case], fair_share: int) -> Iterator[Case]:
        """Give the first case, and those after it that are short enough to go with it.

        Never more than `fair_share`, so that the last tests are not all on one rank; and only such
        as run in the same place.
        """
        limit = max(1, min(_BATCH_LIMIT, fair_share)) if self._batching else 1
        spent = 0.0
        first: Case | None = None
        for case in islice(cases, limit):
            seconds = self.estimate(case)
            if first is None:
                first = case
            elif seconds is None or spent + seconds > _BATCH_SECONDS or not case.goes_with(first):
                return
            yield case
            if seconds is None:
                return
            spent += seconds
