"""Which task is next: pure bookkeeping of what waits for what, and what fits."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rankwise.plan import Resources


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A task as the queue knows it."""

    key: str
    needs: Sequence[str] = ()
    compute: str = "local"
    claim: Resources = Resources()


@dataclass(frozen=True, slots=True, kw_only=True)
class Hopeless:
    """A task that will never run."""

    key: str
    reason: str


class Queue:
    """Gives tasks away in their order, those first that can start now.

    Tasks that claim the same of the same compute wait in one line: looking for one that fits takes
    as long as there are different claims, not tasks.
    """

    def __init__(self, tasks: Iterable[Waiting], *, passed: Iterable[str] = ()) -> None:
        self._tasks = {task.key: task for task in tasks}
        self._position = {key: number for number, key in enumerate(self._tasks)}
        self._followers: dict[str, list[str]] = {}
        self._missing: dict[str, int] = {}
        self._lines: dict[tuple[str, Resources], list[tuple[int, str]]] = {}
        done = set(passed)
        for task in self._tasks.values():
            needs = [need for need in task.needs if need not in done]
            self._missing[task.key] = len(needs)
            for need in needs:
                self._followers.setdefault(need, []).append(task.key)
            if not needs:
                self._line_up(task)

    def __len__(self) -> int:
        return len(self._tasks)

    def put_back(self, task: Waiting) -> None:
        """Have a task wait again that was given away, by this queue or an earlier one."""
        self._tasks[task.key] = task
        self._position.setdefault(task.key, len(self._position))
        self._line_up(task)

    def take(self, free: Mapping[str, Resources]) -> Waiting | None:
        """Give away the first task that fits into what is free on its compute."""
        best: tuple[int, tuple[str, Resources]] | None = None
        for line, waiting in self._lines.items():
            compute, claim = line
            if waiting and fits(claim, free[compute]) and (best is None or waiting[0][0] < best[0]):
                best = waiting[0][0], line
        if best is None:
            return None
        _, key = heapq.heappop(self._lines[best[1]])
        return self._tasks.pop(key)

    def take_any(self) -> Waiting | None:
        """Give away the first task that could start, whether it fits or not."""
        lines = [line for line in self._lines.values() if line]
        if not lines:
            return None
        _, key = heapq.heappop(min(lines))
        return self._tasks.pop(key)

    def passed(self, key: str) -> None:
        """Let those go on that have waited for this one."""
        for follower in self._followers.pop(key, ()):
            self._missing[follower] -= 1
            if not self._missing[follower] and follower in self._tasks:
                self._line_up(self._tasks[follower])

    def failed(self, key: str, how: str) -> list[Hopeless]:
        """Give up those that have waited for this one, and those that waited for them."""
        given_up = []
        causes = [(key, how)]
        while causes:
            cause, state = causes.pop(0)
            for follower in self._followers.pop(cause, ()):
                if self._tasks.pop(follower, None) is not None:
                    given_up.append(Hopeless(key=follower, reason=f"needs {cause}, which {state}"))
                    causes.append((follower, "was not run"))
        return given_up

    def give_up_all(self, reason: str) -> list[Hopeless]:
        """Give up everything that still waits."""
        given_up = [Hopeless(key=key, reason=reason) for key in self._tasks]
        self._tasks.clear()
        self._lines.clear()
        return given_up

    def _line_up(self, task: Waiting) -> None:
        line = self._lines.setdefault((task.compute, task.claim), [])
        heapq.heappush(line, (self._position[task.key], task.key))


def fits(claim: Resources, free: Resources) -> bool:
    """Tell whether there is enough of everything that is claimed."""
    return (
        (not claim.cores or claim.cores <= free.cores)
        and (not claim.memory or claim.memory <= free.memory)
        and (not claim.gpus or claim.gpus <= free.gpus)
    )
