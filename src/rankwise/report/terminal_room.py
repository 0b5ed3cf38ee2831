"""How much fits on a screen, and how much of it something takes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from rankwise.report.terminal import clean

if TYPE_CHECKING:
    from rich.console import Console

# Where there is no window: files and pipes are read by people whose windows have so many.
_USUAL_LINES = 24
# In a window that is lower than this, something scrolls away whatever is done.
_LEAST_LINES = 12


def room_on(console: Console) -> int:
    """Give how many lines can be read at once: those of the window, but for the prompt's."""
    has_window = console.is_terminal or console.file.isatty()
    lines = console.height if has_window else _USUAL_LINES
    return max(_LEAST_LINES, lines) - 1


def height_of(console: Console, show: Callable[[], None]) -> int:
    """Give how many lines of the window it takes to show something; nothing is shown."""
    from rich.cells import cell_len

    with console.capture() as captured:
        show()
    lines = [clean(line, keep_colours=False) for line in captured.get().splitlines()]
    return sum(max(1, math.ceil(cell_len(line) / console.width)) for line in lines)
