"""What became of every run: one SQLite file that many processes read and write at once."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
        """Load what is asked for only: the states and rows need no database."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        room = import_module(f"{__name__}.store" if name == "Store" else f"{__name__}.rows")
        return globals().setdefault(name, getattr(room, name))
