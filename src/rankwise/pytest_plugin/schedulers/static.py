"""Every test gets its ranks and its place before anything runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import ClassVar

from rankwise.pytest_plugin.schedulers.base import (
    LEVELS,
    Assignment,
    Domains,
    FreeSlots,
    Pace,
    ScheduledTest,
)


class FirstFit:
    """Steps of `width` slots; a test goes into the first step that has room for it.

    The room left in each step is kept in a tree of maxima, so that finding the first step costs
    the logarithm of their number.
    """

    def __init__(self, width: int, most_steps: int) -> None:
        self._width = width
        self._leaves = 1
        while self._leaves < max(1, most_steps):
            self._leaves *= 2
        self._room = [width] * (2 * self._leaves)

    def place(self, size: int) -> tuple[int, int]:
        """Return the step and the first slot for a test of `size` slots."""
        node = 1
        # The left half holds the earlier steps: they are filled first.
        while node < self._leaves:
            node *= 2
            if self._room[node] < size:
                node += 1
        step, first = node - self._leaves, self._width - self._room[node]
        self._room[node] -= size
        while node > 1:
            node //= 2
            self._room[node] = max(self._room[2 * node], self._room[2 * node + 1])
        return step, first


Step = list[tuple[ScheduledTest, tuple[int, ...]]]


def plan_steps(
    cases: Sequence[ScheduledTest], width: int, domains: Domains | None = None
) -> list[Step]:
    """Distribute tests over steps, the largest first; within a step no rank has two of them.

    Small tests then fill the gaps that large ones leave, instead of standing in their way. Tests
    that have domains alone come first: ranks that are free beside them go on to the next steps.
    """
    largest_first = sorted(cases, key=lambda case: -case.size)
    apart = _place_exclusive([one for one in largest_first if one.exclusive], width, domains)
    near: Sequence[int] = range(width)
    if domains:
        later = {slot for step in apart[-1:] for _, slots in step for slot in slots}
        levels = [domains[level] for level in reversed(LEVELS)]
        near = sorted(near, key=lambda slot: (slot in later, *(of[slot] for of in levels)))
    # Any two steps hold more than one step's slots together: the second's first test had no room in
    # the first. So there are at most about twice as many steps as if all were full.
    fit = FirstFit(width, min(len(cases), 2 * (sum(case.size for case in cases) // width) + 1))
    steps: list[Step] = []
    for case in largest_first:
        if not case.exclusive:
            number, first = fit.place(case.size)
            while len(steps) <= number:
                steps.append([])
            steps[number].append((case, tuple(sorted(near[first : first + case.size]))))
    return apart + steps


def _place_exclusive(
    cases: Sequence[ScheduledTest], width: int, domains: Domains | None
) -> list[Step]:
    """Distribute tests over steps so that each has whole domains."""
    steps: list[Step] = []
    free = FreeSlots(width)
    for case in cases:
        slots = free.pick(case.size, exclusive=case.exclusive)
        if slots is None:
            free = FreeSlots.all_of(width, domains)
            slots = free.pick(case.size, exclusive=case.exclusive) or ()
            steps.append([])
        steps[-1].append((case, slots))
    return steps


class Static:
    """Run the plan: a test starts when it is the next one for all of its ranks.

    There is no barrier between steps: a rank only ever waits for the ranks it shares a test with.
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
        self._pace = pace
        self._places = [place for step in plan_steps(cases, width, domains) for place in step]
        self._number = {case.index: number for number, (case, _) in enumerate(self._places)}
        self._queues: list[deque[int]] = [deque() for _ in range(width)]
        for number, (_, ranks) in enumerate(self._places):
            for rank in ranks:
                self._queues[rank].append(number)
        self._arrived = [0] * len(self._places)
        self._free: set[int] = set()
        self._ready: deque[int] = deque()

    def release(self, ranks: tuple[int, ...]) -> None:
        for rank in ranks:
            self._free.add(rank)
            self._arrive(rank)

    def _arrive(self, rank: int) -> None:
        """Let a free rank wait for its next test."""
        if self._queues[rank]:
            number = self._queues[rank][0]
            self._arrived[number] += 1
            if self._arrived[number] == len(self._places[number][1]):
                self._ready.append(number)

    def put_back(self, case: int) -> None:
        number = self._number[case]
        self._arrived[number] = 0
        for rank in self._places[number][1]:
            # A free rank has counted as arrived at its next test: that is no longer the next one.
            is_free = rank in self._free
            if is_free and self._queues[rank]:
                self._leave(self._queues[rank][0])
            self._queues[rank].appendleft(number)
            if is_free:
                self._arrive(rank)

    def _leave(self, number: int) -> None:
        """Let a free rank no longer wait for a test."""
        if self._arrived[number] == len(self._places[number][1]):
            self._ready.remove(number)
        self._arrived[number] -= 1

    def take(self) -> Assignment | None:
        if not self._ready:
            return None
        number = self._ready.popleft()
        ranks = self._places[number][1]
        batch = self._pace.batch(self._batch(number), len(self._queues[ranks[0]]))
        cases = [case.index for case in batch]
        for rank in ranks:
            for _ in cases:
                self._queues[rank].popleft()
        self._free.difference_update(ranks)
        return Assignment(cases=tuple(cases), ranks=ranks)

    def _batch(self, number: int) -> Iterator[ScheduledTest]:
        """Return the tests that all ranks of this one have next, in the same order."""
        ranks = self._places[number][1]
        for depth, planned in enumerate(self._queues[ranks[0]]):
            if self._places[planned][1] != ranks:
                return
            if any(self._queues[rank][depth] != planned for rank in ranks[1:]):
                return
            yield self._places[planned][0]
