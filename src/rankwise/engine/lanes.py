"""How many tasks of one lane run at a time."""

from __future__ import annotations

from collections import Counter

from rankwise.plan import Task


class Lanes:
    """Counts what runs in each lane, and knows which are full."""

    def __init__(self) -> None:
        self._widths: dict[str, int] = {}
        self._running: Counter[str] = Counter()

    def know(self, task: Task | None) -> None:
        """Take in how wide the lane of a task is; of several who say, the narrowest counts."""
        if task is not None and task.lane and task.lane_width:
            known = self._widths.get(task.lane, task.lane_width)
            self._widths[task.lane] = min(known, task.lane_width)

    def enter(self, lane: str) -> None:
        """Count one more that runs."""
        self._running[lane] += 1

    def leave(self, lane: str) -> None:
        """Count one less."""
        self._running[lane] -= 1

    @property
    def full(self) -> frozenset[str]:
        """Name the lanes that take no more for now."""
        return frozenset(
            lane for lane, width in self._widths.items() if self._running[lane] >= width
        )
