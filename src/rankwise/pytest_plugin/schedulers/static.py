"""Every test gets its ranks and its place before anything runs."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from typing import ClassVar

from rankwise.pytest_plugin.schedulers.base import Assignment, Pace, ScheduledTest


def plan_steps(
    cases: Sequence[ScheduledTest], width: int
) -> list[list[tuple[ScheduledTest, range]]]:
    """Distribute tests over steps, the largest first; within a step no rank has two of them.

    Each goes into the first step that has room for it. Small tests then fill the gaps that large
    ones leave, instead of standing in their way.
    """
    steps: list[list[tuple[ScheduledTest, range]]] = []
    # Steps by how many slots are free there, as heaps: far fewer numbers than steps.
    by_room: dict[int, list[int]] = {}
    for case in sorted(cases, key=lambda case: -case.size):
        fitting = (
            (found[0], room) for room, found in by_room.items() if found and room >= case.size
        )
        step, room = min(fitting, default=(len(steps), width))
        if step == len(steps):
            steps.append([])
        else:
            heapq.heappop(by_room[room])
        first = width - room
        steps[step].append((case, range(first, first + case.size)))
        heapq.heappush(by_room.setdefault(room - case.size, []), step)
    return steps


class Static:
    """Run the plan: a test starts when it is the next one for all of its ranks.

    There is no barrier between steps: a rank only ever waits for the ranks it shares a test with.
    """

    one_by_one: ClassVar[bool] = False

    def __init__(self, cases: Sequence[ScheduledTest], width: int, pace: Pace) -> None:
        self._pace = pace
        self._places = [place for step in plan_steps(cases, width) for place in step]
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
            if self._arrived[number] == self._places[number][0].size:
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
        if self._arrived[number] == self._places[number][0].size:
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
        return Assignment(cases=tuple(cases), ranks=tuple(ranks))

    def _batch(self, number: int) -> Iterator[ScheduledTest]:
        """Return the tests that all ranks of this one have next, in the same order."""
        ranks = self._places[number][1]
        for depth, planned in enumerate(self._queues[ranks[0]]):
            if self._places[planned][1] != ranks:
                return
            if any(self._queues[rank][depth] != planned for rank in ranks[1:]):
                return
            yield self._places[planned][0]
