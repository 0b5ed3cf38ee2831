"""What all schedulers share: tests, assignments, and how many tests go out at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar, Literal, Protocol

WorldKind = Literal["shared", "exact", "fresh"]
"""Where a test runs: on some ranks of a world that others share, in a world of exactly its size
that others have used before, or in one made for it alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledTest:
    """A test as a scheduler sees it: how many ranks, and how long it took last time if known."""

    index: int
    size: int
    seconds: float | None = None
    world_kind: WorldKind = "shared"
    exclusive: bool = False
    """Whether nothing else may run in the NUMA domains it runs in."""
    ranks: int | None = None
    """How many processes it has, if not one for each slot."""

    def goes_with(self, first: ScheduledTest) -> bool:
        """Return whether it can run on the ranks that another one was given, after it."""
        # A process of its own, or whole domains, are for one test at a time.
        if self.world_kind == "fresh" or self.exclusive or first.exclusive:
            return False
        needs = (self.size, self.world_kind, self.ranks)
        return needs == (first.size, first.world_kind, first.ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Tests to run one after the other on the same ranks.

    Several short tests travel together so that a rank need not ask after each of them.
    """

    cases: tuple[int, ...]
    ranks: tuple[int, ...]


class Scheduler(Protocol):
    """Decides what starts now. All ranks count as busy until they are first released."""

    one_by_one: ClassVar[bool]
    """Whether a test's ranks are released together, when all of them have ended it."""

    def release(self, ranks: tuple[int, ...]) -> None:
        """Learn that these ranks are free (again)."""

    def put_back(self, case: int) -> None:
        """Learn that a test that was taken could not be run to its end: it is to start again."""

    def take(self) -> Assignment | None:
        """Return what can start now and count its ranks as busy; None: wait for a release."""


class SchedulerFactory(Protocol):
    """What an entry point of the group `rankwise.schedulers` names: a class or a function."""

    def __call__(
        self, tests: Sequence[ScheduledTest], *, width: int, pace: Pace, domains: Sequence[int]
    ) -> Scheduler:
        """Make a scheduler for these tests on `width` ranks.

        `domains` has a number for each rank: ranks with the same one are close to each other (a
        NUMA domain, or a node of a cluster). `pace` estimates durations and makes batches.
        """


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
        # A running mean: no list of all durations is kept.
        self._mean += (seconds - self._mean) / self._count

    def estimate(self, case: ScheduledTest) -> float | None:
        """Expected seconds of a test; None while nothing is known."""
        if case.seconds is not None:
            return case.seconds
        return self._mean if self._count else None

    def batch(self, cases: Iterable[ScheduledTest], fair_share: int) -> Iterator[ScheduledTest]:
        """Return the first case, and those after it that are short enough to go with it.

        Never more than `fair_share`, so that the last tests are not all on one rank; and only such
        as run in the same place.
        """
        limit = max(1, min(_BATCH_LIMIT, fair_share)) if self._batching else 1
        spent = 0.0
        first: ScheduledTest | None = None
        for case in islice(cases, limit):
            seconds = self.estimate(case)
            if first is None:
                first = case
            elif seconds is None or spent + seconds > _BATCH_SECONDS or not case.goes_with(first):
                return
            yield case
            # Of unknown length: nothing has to wait behind it.
            if seconds is None:
                return
            spent += seconds
