"""A few lines below whatever else is written to a terminal, which come and go.

Who else writes there need not know: before each of its words the lines are taken away.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

_SAVE, _RESTORE = "\x1b7", "\x1b8"
_NEXT_LINE = "\x1b[B\r\x1b[2K"
_FEWEST_ROWS = 12


def can_show(file: TextIO, environment: Mapping[str, str]) -> bool:
    """Tell whether lines can come and go there: a terminal that understands this, for a person."""
    if "NO_COLOR" in environment or environment.get("CI"):
        return False
    if environment.get("TERM", "dumb") in ("dumb", ""):
        return False
    try:
        return file.isatty() and os.get_terminal_size(file.fileno()).lines >= _FEWEST_ROWS
    except (OSError, ValueError):
        return False


class Panel:
    """The lines, and a file in the place of the terminal's that keeps them out of the way."""

    def __init__(self, file: TextIO, column: Callable[[], int]) -> None:
        self._file = file
        self._column = column
        self._height = 0
        """How many lines are there now."""

    @property
    def is_shown(self) -> bool:
        """Tell whether the lines are there, or others have written since."""
        return self._height > 0

    def show(self, lines: Sequence[str]) -> None:
        """Put these lines below the one that is being written."""
        height = len(lines)
        # What was there before and is more than this must go, and the rest is written over.
        rows = [*lines, *[""] * (self._height - height)]
        # At the end of the screen, there is room below only when it has been moved up.
        room = "\n" * len(rows) + f"\x1b[{len(rows)}A\x1b[{self._column() + 1}G"
        below = "".join(_NEXT_LINE + row for row in rows)
        self._file.write(f"{room}{_SAVE}{below}{_RESTORE}")
        self._file.flush()
        self._height = height

    def clear(self) -> None:
        """Take the lines away."""
        if self._height:
            self._file.write(f"{_SAVE}{_NEXT_LINE * self._height}{_RESTORE}")
            self._file.flush()
            self._height = 0

    # What others see in the place of the file

    def write(self, text: str) -> int:
        """Write what is to stay."""
        self.clear()
        return self._file.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
