"""What an engine tells those who look on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Kind = Literal[
    "run started",
    "notice",
    "task started",
    "attempt ended",
    "task over",
    "run over",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that has happened to a run."""

    kind: Kind
    run: str
    time: float
    task: str = ""
    attempt: int = 0
    state: str = ""
    exit_code: int | None = None
    reason: str = ""
    culprit: str = ""
    folder: Path | None = None
    """That of the attempt."""
    counts: Mapping[str, int] = field(default_factory=dict)


Observer = Callable[[Event], None]
