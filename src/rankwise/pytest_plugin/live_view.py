"""The lines at the bottom of the terminal that say what is running."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

from _pytest.terminal import TerminalReporter

from rankwise.pytest_plugin.schedulers.dispatcher import Dispatcher
from rankwise.pytest_plugin.stacks import describe_ranks
from rankwise.wording import duration

_SAVE, _RESTORE = "\x1b7", "\x1b8"
_NEXT_LINE = "\x1b[B\r\x1b[2K"
# In a lower window, the panel would take the room of what pytest writes.
_FEWEST_ROWS = 12
_DONE, _LEFT, _CUT = "━", "╌", "…"


def can_show(file: TextIO, environment: Mapping[str, str]) -> bool:
    """Return whether lines can come and go there: a terminal that can do this, for a person."""
    is_for_a_person = "NO_COLOR" not in environment and not environment.get("CI")
    if not is_for_a_person or environment.get("TERM", "dumb") in ("dumb", ""):
        return False
    try:
        # An error here is the answer: the terminal cannot write these letters.
        f"{_DONE}{_LEFT}{_CUT}".encode(file.encoding)
        return file.isatty() and os.get_terminal_size(file.fileno()).lines >= _FEWEST_ROWS
    except (OSError, ValueError, TypeError):
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
        """Return whether the lines are there, or others have written since."""
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


# A suite that is over by then needs none of this.
_FIRST_SECONDS = 1.5
_PAUSE_SECONDS = 0.5
_MOST_TESTS = 4
_MOST_FAILURES = 3
_BAR_WIDTH = 24
_NARROWEST = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Glance:
    """How a run stands at one moment."""

    width: int
    """How many ranks there are."""
    running: Sequence[tuple[Sequence[int], str, float]]
    """Ranks, the test on them, and for how many seconds it has been there."""
    over: int
    total: int
    failed: Sequence[str] = ()
    left: float | None = None
    """How many seconds are still to come, if that can be known."""


def lines_of(glance: Glance, columns: int) -> list[str]:
    """Say it in a few lines, none of them wider than this."""
    by_age = sorted(glance.running, key=lambda one: -one[2])
    shown = [
        (describe_ranks(ranks, glance.width).removesuffix(f" of {glance.width}"), name, age)
        for ranks, name, age in by_age[:_MOST_TESTS]
    ]
    widest = max((len(place) for place, _, _ in shown), default=0)
    lines = [
        _fit(f"{place:{widest}}  {name}", _roughly(age), columns) for place, name, age in shown
    ]
    if len(by_age) > _MOST_TESTS:
        lines.append(f"... and {len(by_age) - _MOST_TESTS} more")
    lines += [_fit(f"FAILED {name}", "", columns) for name in glance.failed[-_MOST_FAILURES:]]
    done = round(_BAR_WIDTH * glance.over / max(1, glance.total))
    words = [f"{glance.over:,} of {glance.total:,}"]
    words += [f"{len(glance.failed)} failed"] if glance.failed else []
    words += [f"about {_roughly(glance.left)} left"] if glance.left is not None else []
    bar = _DONE * done + _LEFT * (_BAR_WIDTH - done)
    return [*lines, _fit(f"{bar}  {', '.join(words)}", "", columns)]


def _roughly(seconds: float) -> str:
    return duration(seconds) if seconds >= 10 else f"{max(1, round(seconds))} s"


def _fit(text: str, end: str, columns: int) -> str:
    """Cut a text to fit, with its last word at the end of the line."""
    room = columns - len(end) - (2 if end else 0) - 1
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    text = text if len(text) <= room else f"{text[: room - 1]}{_CUT}"
    return f"{text:{room}}  {end}" if end else text


@dataclass(slots=True, kw_only=True)
class LiveView:
    """Shows how a run stands below what pytest writes, a few times a second."""

    terminal: TerminalReporter
    panel: Panel
    dispatcher: Dispatcher
    names: Sequence[str]
    width: int
    _begun: float = field(default_factory=time.monotonic)
    _shown: float = 0.0
    _since: dict[int, float] = field(default_factory=dict)

    def refresh(self) -> None:
        """Show how it stands now, unless that was a moment ago."""
        now = time.monotonic()
        pause = _PAUSE_SECONDS if self.panel.is_shown else 0.0
        # As often as asked for while lines scroll: what others write takes the panel away.
        if now - self._begun < _FIRST_SECONDS or now - self._shown < pause:
            return
        self._shown = now
        try:
            columns = os.get_terminal_size(self.panel.fileno()).columns
        except OSError:
            return
        if columns >= _NARROWEST:
            self.panel.show(lines_of(self._glance(now), columns))

    def close(self) -> None:
        """Leave the terminal as if nothing had been there."""
        self.panel.clear()
        # pytest writes its summary without us.
        self.terminal._tw._file = self.panel._file

    def _glance(self, now: float) -> Glance:
        at_work = self.dispatcher.at_work()
        self._since = {case: self._since.get(case, now) for case, _ in at_work}
        failed = [report.nodeid for report in self.terminal.getreports("failed")]
        errors = [report.nodeid for report in self.terminal.getreports("error")]
        return Glance(
            width=self.width,
            running=[(slots, self.names[case], now - self._since[case]) for case, slots in at_work],
            over=self.dispatcher.completed,
            total=len(self.names),
            failed=[*failed, *errors],
            left=self.dispatcher.seconds_left(),
        )


def live_view(
    terminal: object, dispatcher: Dispatcher, names: Sequence[str], width: int
) -> LiveView | None:
    """Return the view if the terminal can show it; it writes through the view from then on."""
    if not isinstance(terminal, TerminalReporter) or terminal.verbosity < 0:
        return None
    writer = terminal._tw
    if not can_show(writer._file, os.environ):
        return None
    panel = Panel(writer._file, lambda: writer.width_of_current_line)
    writer._file = panel
    return LiveView(terminal=terminal, panel=panel, dispatcher=dispatcher, names=names, width=width)
