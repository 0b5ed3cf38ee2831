"""What the ends of tasks mean for their run: its state and its exit code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from rankwise.plan import Task
from rankwise.store import State


class Tally:
    """Counts what has gone wrong, and what of that is forgiven."""

    def __init__(self) -> None:
        self.exit_code = 0
        """That of the first task whose failure counts."""
        self._soft: set[str] = set()
        self._forgiven: Counter[State] = Counter()

    def know(self, task: Task | None) -> None:
        """Learn of a task before it is over."""
        if task is not None and task.is_soft:
            self._soft.add(task.key)

    def count(self, key: str, state: State, exit_code: int | None) -> None:
        """Have a failure be the run's, unless its task is soft."""
        if state.is_green:
            return
        if key in self._soft and state is not State.CANCELLED:
            self._forgiven[state] += 1
        else:
            self.exit_code = self.exit_code or exit_code or 1

    def state_of_run(self, all_counts: Mapping[State, int]) -> State:
        """Give the state of a run from those of its tasks, without what is forgiven."""
        counts = {state: count - self._forgiven[state] for state, count in all_counts.items()}
        only = {state for state, count in counts.items() if count and not state.is_green}
        if not only:
            return State.PASSED
        if len(only) > 1 or (only == {State.NOT_RUN} and counts.get(State.PASSED)):
            return State.FAILED
        return only.pop()
