"""The states that runs, tasks and attempts are in."""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """How far something has come, or how it ended."""

    QUEUED = "queued"
    SUBMITTING = "submitting"
    """An attempt is announced or handed over, and nobody has seen it start yet."""
    RUNNING = "running"
    PASSED = "passed"
    FAILED = "failed"
    CRASHED = "crashed"
    """Ended by a signal."""
    TIMED_OUT = "timed out"
    CANCELLED = "cancelled"
    LOST = "lost"
    """Whoever watched over it is gone and has left no outcome."""
    NOT_RUN = "not run"
    SKIPPED = "skipped"
    """It need not run: the document says so, there was no failure for it, or too little for
    something optional."""

    @property
    def is_over(self) -> bool:
        """Tell whether this is an end: nothing leaves such a state."""
        return self not in _OPEN

    @property
    def is_green(self) -> bool:
        """Tell whether all is well; what did not run is not well."""
        return self in (State.PASSED, State.SKIPPED)


_OPEN = frozenset({State.QUEUED, State.SUBMITTING, State.RUNNING})
