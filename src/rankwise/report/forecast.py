"""How long a run will still take, by the times of its tasks in the run before, and until now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rankwise.store import RunRow, State, Store

_MOST_SEARCHED = 20


def durations_before(store: Store, run: RunRow) -> dict[str, float]:
    """Give how long the tasks took that passed in the run before this one."""
    before = next(
        (
            one
            for one in store.runs(_MOST_SEARCHED, name=run.name)
            if one.number < run.number and one.source == run.source and one.state.is_over
        ),
        None,
    )
    if before is None:
        return {}
    return {
        row.key: row.ended - row.started
        for row in store.tasks_in(before.id, (State.PASSED,))
        if row.started is not None and row.ended is not None and not row.origin
    }


@dataclass(slots=True, kw_only=True)
class Forecast:
    """Learns what starts and ends, and says how long the rest takes."""

    waiting: int
    """How many tasks have not ended yet."""
    known: Mapping[str, float] = field(default_factory=dict)
    _running: dict[str, float] = field(default_factory=dict)
    _begun: float | None = None
    _spent: float = 0.0
    _over: int = 0

    def started(self, key: str, now: float) -> None:
        """Learn that a task has started."""
        self._begun = now if self._begun is None else self._begun
        self._running.setdefault(key, now)

    def over(self, key: str, now: float) -> None:
        """Learn that a task is over, however that came."""
        self.waiting -= 1
        begun = self._running.pop(key, None)
        if begun is not None:
            self._spent += now - begun
            self._over += 1

    def seconds_left(self, now: float) -> float | None:
        """Estimate; None: nothing is known.

        Tasks that are not known are expected to be like those that are, and as many at a time as
        until now.
        """
        if self._begun is None or (not self._over and not self.known):
            return None
        usual = self._spent / self._over if self._over else _mean(self.known)
        ages = {key: now - begun for key, begun in self._running.items()}
        of_running = [max(0.0, self.known.get(key, usual) - age) for key, age in ages.items()]
        others = max(0, self.waiting - len(ages))
        at_once = max(1.0, (self._spent + sum(ages.values())) / max(1e-3, now - self._begun))
        work = others * (_mean(self.known) if self.known else usual) + sum(of_running)
        return max(work / at_once, *of_running, 0.0)


def _mean(durations: Mapping[str, float]) -> float:
    return sum(durations.values()) / len(durations)
