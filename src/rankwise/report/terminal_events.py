"""Events for programs: one JSON object a line."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import TextIO

from rankwise.engine.events import Event
from rankwise.logs import Line


class JsonView:
    """Writes every event as a line of JSON; what is empty is left out."""

    follows = False

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def event(self, event: Event) -> None:
        """Write an event."""
        counts = {state: count for state, count in event.counts.items() if count}
        said = {**dataclasses.asdict(event), "counts": counts, "attempt": event.attempt or None}
        data = {name: value for name, value in said.items() if value not in (None, "", {})}
        self._stream.write(json.dumps(data, default=str) + "\n")

    def lines(self, lines: Sequence[Line]) -> None:
        """Write nothing: logs are files."""

    def ending(self, processes: int) -> None:
        """Write nothing: the events that follow say it."""

    def refresh(self) -> None:
        """Let readers have it."""
        self._stream.flush()

    def close(self) -> None:
        """Leave the stream open."""


class QuietView:
    """Shows nothing but what Ctrl-C does."""

    follows = False

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def event(self, event: Event) -> None:
        """Show nothing."""

    def lines(self, lines: Sequence[Line]) -> None:
        """Show nothing."""

    def ending(self, processes: int) -> None:
        """Say what Ctrl-C does, for the person who has pressed it."""
        from rankwise.report.terminal_output import ending_words

        self._stream.write(f"rankwise: {ending_words(processes)}\n")

    def refresh(self) -> None:
        """Bring it to the screen."""
        self._stream.flush()

    def close(self) -> None:
        """Leave the stream open."""
