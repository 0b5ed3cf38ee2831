"""What all schedulers share: tests, assignments, free slots, how many tests go out at a time."""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar, Literal, Protocol

WorldKind = Literal["shared", "exact", "fresh"]
"""Where a test runs: on some ranks of a world that others share, in a world of exactly its size
that others have used before, or in one made for it alone."""


LEVELS = ("core", "l3", "numa", "socket", "node")
"""The kinds of domains, the smallest first; a node is a machine."""

Domains = Mapping[str, Sequence[int]]
"""By level, the number of the domain of each slot, counted from 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledTest:
    """A test as a scheduler sees it: how many ranks, and how long it took last time if known."""

    index: int
    size: int
    seconds: float | None = None
    world_kind: WorldKind = "shared"
    exclusive: str | None = None
    """The level (`core`, `l3`, `numa`, `socket`, `node`) of the domains that it has alone."""
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
    """The ranks of the tests; after them, those that are to stay idle meanwhile."""


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


class FreeSlots:
    """The free slots among `width`. Without domains, all of them are in one."""

    def __init__(self, width: int, domains: Domains | None = None) -> None:
        self._free: list[int] = []
        self._tables: list[Sequence[int]] = []
        """For each kind of domain, that of each slot; the last one is everything there is."""
        self._index: dict[str, int] = {}
        # Levels that do not differ here count as one.
        everywhere = [0] * width
        for level in (*LEVELS, ""):
            table = domains[level] if domains and level else everywhere
            if not self._tables or list(self._tables[-1]) != list(table):
                self._tables.append(table)
            self._index[level] = len(self._tables) - 1
        self._sizes = [Counter(table) for table in self._tables]

    @classmethod
    def all_of(cls, width: int, domains: Domains | None = None) -> FreeSlots:
        """Return slots of which none is taken."""
        slots = cls(width, domains)
        slots._free = list(range(width))
        return slots

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._free)

    def add(self, slot: int) -> None:
        """Take a slot back."""
        insort(self._free, slot)

    def pick(self, size: int, *, exclusive: str | None = None) -> tuple[int, ...] | None:
        """Return slots, of the smallest domain that has enough of them; None: there are too few.

        A test that is exclusive at a level gets whole domains: after its own slots come those that
        are to stay empty. Then None may also mean that no domain is free.
        """
        kept: list[int] = []
        if exclusive is None and self._is_flat:
            # The lowest numbers, so that equal tests meet on equal slots and keep their
            # communicators.
            picked = self._free[:size]
        else:
            # Two threads of one core are no better than two cores.
            level = self._index[exclusive or "l3"]
            near = self._near(self._free if exclusive is None else self._whole(level), size, level)
            picked = near[:size]
            if exclusive is not None and near:
                table = self._tables[level]
                kept = [slot for slot in near[size:] if table[slot] == table[picked[-1]]]
        if len(picked) < size:
            return None
        taken = {*picked, *kept}
        self._free = [slot for slot in self._free if slot not in taken]
        return (*sorted(picked), *sorted(kept))

    @property
    def _is_flat(self) -> bool:
        return self._index["l3"] == self._index[""]

    def _whole(self, level: int) -> list[int]:
        """Return the slots of domains in which nothing runs."""
        table, sizes = self._tables[level], self._sizes[level]
        free = Counter(table[slot] for slot in self._free)
        return [slot for slot in self._free if free[table[slot]] == sizes[table[slot]]]

    def _near(self, usable: Sequence[int], size: int, least: int) -> list[int]:
        """Return the slots of the tightest domain with enough of them, those to take first first.

        So that few smaller domains, down to the level `least`, are begun.
        """
        tables = self._tables
        room = [Counter(table[slot] for slot in usable) for table in tables]
        for wide in range(least, len(tables)):
            enough = [slot for slot in usable if room[wide][tables[wide][slot]] >= size]
            if enough:
                break
        else:
            return []

        def tightness(slot: int) -> list[int]:
            return [room[one][tables[one][slot]] for one in range(wide, len(tables))]

        chosen = tables[wide][min(enough, key=tightness)]

        def order(slot: int) -> list[tuple[int, int]]:
            finer = [tables[one][slot] for one in range(wide - 1, least - 1, -1)]
            return [(-room[wide - 1 - n][number], number) for n, number in enumerate(finer)]

        # The sort is stable, and slots are in order.
        return sorted((slot for slot in enough if tables[wide][slot] == chosen), key=order)
