"""Makes runtimes ready: which module makes which kind, and a thread for the slow ones."""

from __future__ import annotations

import pkgutil
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue

from rankwise.errors import ComputeFailure
from rankwise.plan import RuntimeChoice
from rankwise.runtimes.base import PreparedRuntime, Runtime, Say

SLOW_KINDS = ("uv", "conda", "container")
"""Kinds that may take minutes the first time."""


@dataclass(slots=True)
class Preparing:
    """Prepares each runtime once, the slow ones one after the other in a thread."""

    _prepare: Callable[[RuntimeChoice], PreparedRuntime]
    _made: dict[RuntimeChoice, PreparedRuntime | BaseException] = field(default_factory=dict)
    _asked: set[RuntimeChoice] = field(default_factory=set)
    _orders: SimpleQueue[RuntimeChoice] = field(default_factory=SimpleQueue)
    _news: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def is_over(self, choice: RuntimeChoice) -> bool:
        """Return whether a runtime can be had at once, or never; otherwise have it made."""
        if choice in self._made or choice.kind not in SLOW_KINDS:
            return True
        if choice not in self._asked:
            self._asked.add(choice)
            self._orders.put(choice)
            if self._thread is None:
                # What it has started goes on if we end, and is not begun again before it is done.
                self._thread = threading.Thread(target=self._work, daemon=True, name="runtimes")
                self._thread.start()
        return False

    def prepared(self, choice: RuntimeChoice) -> PreparedRuntime:
        """Return a runtime that is over; ComputeFailure: it cannot be had."""
        if choice not in self._made:
            self._make(choice)
        found = self._made[choice]
        if isinstance(found, ComputeFailure):
            # A new one: each gets a traceback of its own.
            raise ComputeFailure(str(found))
        if isinstance(found, BaseException):
            raise found
        return found

    def wait(self, seconds: float) -> None:
        """Wait for the next that is over."""
        self._news.wait(seconds)
        # What becomes ready from here on wakes the next wait: it is asked for in between.
        self._news.clear()

    def _work(self) -> None:
        while True:
            self._make(self._orders.get())
            self._news.set()

    def _make(self, choice: RuntimeChoice) -> None:
        try:
            self._made[choice] = self._prepare(choice)
        except Exception as failure:  # It is raised where it is used.
            self._made[choice] = failure


_KINDS = {
    "current": "interpreter:prepare_current",
    "python": "interpreter:prepare_python",
    "uv": "uv:prepare",
    "conda": "uv:prepare",
    "container": "container:prepare",
    "modules": "base:prepare",
}
"""The module and the function for each kind. Only what a run needs is loaded."""


def prepare(choice: RuntimeChoice, say: Say) -> PreparedRuntime:
    """Make a runtime ready, and say what takes its time.

    Idempotent. ComputeFailure: it cannot be had; the message says why and what to do.
    """
    if choice.kind not in _KINDS:
        raise ComputeFailure(
            f'runtime "{choice.name}" is of a kind that is not known: "{choice.kind}"; '
            f"there are {', '.join(_KINDS)}"
        )
    make: Runtime = pkgutil.resolve_name(f"rankwise.runtimes.{_KINDS[choice.kind]}")
    return make(choice, say)
