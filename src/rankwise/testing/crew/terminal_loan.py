"""The user's terminal, lent to a rank whose debugger talks to the user."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from types import FrameType

import pytest
from _pytest.capture import CaptureManager
from _pytest.terminal import TerminalReporter


@contextlib.contextmanager
def terminal_lent(
    config: pytest.Config, words: str, on_interrupt: Callable[[], None]
) -> Iterator[None]:
    """Have standard streams as the user gave them, and pass Ctrl-C on.

    Ctrl-C is for whoever has the terminal: the rank is no process of its foreground group.
    """
    capture = config.pluginmanager.get_plugin("capturemanager")
    if isinstance(capture, CaptureManager):
        capture.suspend_global_capture(in_=True)
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if isinstance(terminal, TerminalReporter):
        if terminal._tw.width_of_current_line:
            terminal._tw.line()
        terminal.write_sep(">", f"{words}; the other ranks wait")
        terminal.flush()

    def passed_on(_number: int, _frame: FrameType | None) -> None:
        on_interrupt()

    before = signal.signal(signal.SIGINT, passed_on)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        for number in (1, 2):
            # In a file, what the rank has written is not to be written over.
            with contextlib.suppress(OSError):
                os.lseek(number, 0, os.SEEK_END)
        if isinstance(terminal, TerminalReporter):
            terminal.currentfspath = None


def overlap(since: float, pauses: list[tuple[float, float]]) -> float:
    """Tell how much of the time since a moment everything was held."""
    return sum(max(0.0, end - max(since, start)) for start, end in pauses)
