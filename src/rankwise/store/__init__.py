"""What became of every run: one SQLite file that many processes read and write at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rankwise.store.rows import (
    AttemptRow,
    EventRow,
    Outcome,
    ProcessRow,
    ResultRow,
    RunRow,
    State,
    TaskRow,
)

if TYPE_CHECKING:
    from rankwise.store.store import Store

__all__ = [
    "AttemptRow",
    "EventRow",
    "Outcome",
    "ProcessRow",
    "ResultRow",
    "RunRow",
    "State",
    "Store",
    "TaskRow",
]


if not TYPE_CHECKING:  # A checker would take any name for one that is there.

    def __getattr__(name: str) -> Any:
        """Load the store when it is asked for: the states and rows need no database."""
        if name != "Store":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from rankwise.store.store import Store

        return globals().setdefault(name, Store)
