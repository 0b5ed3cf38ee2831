"""What all screens share: where they go, their colours, and what is kept out of them."""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console

# Nobody wraps lines for a file or a pipe.
_UNLIMITED_WIDTH = 10_000
_NARROW = 60

_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
# Every other sequence moves the cursor, clears, sets titles or asks the terminal something.
_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_RESET = "\x1b[0m"

STATE_STYLES = {
    "passed": "green",
    "failed": "red",
    "crashed": "red",
    "timed out": "red",
    "lost": "red",
    "cancelled": "yellow",
    "not run": "yellow",
    "skipped": "dim",
    "running": "cyan",
    "submitting": "cyan",
    "queued": "dim",
}


def has_colours(stream: TextIO) -> bool:
    """Tell whether a stream is a terminal that shows colours, and the user wants them."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def make_console(*, to_stderr: bool = False) -> Console:
    """Give a console for texts that hold people's own words: no markup, no highlighting."""
    from rich.console import Console

    class OpenConsole(Console):
        """Says that nobody reads any more, where rich would leave the program."""

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    stream = sys.stderr if to_stderr else sys.stdout
    width = None if stream.isatty() or os.environ.get("COLUMNS") else _UNLIMITED_WIDTH
    return OpenConsole(
        file=stream,
        width=width,
        # Rich takes CI services and FORCE_COLOR for terminals. Who wants no colours gets no escape
        # codes at all: no bold letters, and no line that is written over.
        force_terminal=has_colours(stream),
        markup=False,
        emoji=False,
        highlight=False,
    )


def is_narrow(console: Console) -> bool:
    """Tell whether there is no room for tables."""
    return console.width < _NARROW


def clean(text: str, *, keep_colours: bool) -> str:
    """Take out of a line whatever could do more to a terminal than show text."""
    if text.isprintable():
        return text
    if "\x1b" not in text:
        return _CONTROL.sub("", text)
    if not keep_colours:
        return _CONTROL.sub("", _SEQUENCE.sub("", text))
    colours = _COLOUR.findall(text)
    pieces = (_CONTROL.sub("", _SEQUENCE.sub("", piece)) for piece in _COLOUR.split(text))
    cleaned = "".join(piece + colour for piece, colour in zip(pieces, [*colours, ""], strict=True))
    return cleaned + _RESET if colours else cleaned
