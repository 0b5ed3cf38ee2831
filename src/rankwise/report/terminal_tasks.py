"""A run of many tasks on a terminal: a line for each that is over, and a bar for the rest."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from rankwise.engine.events import Event
from rankwise.logs import Line
from rankwise.report.forecast import Forecast
from rankwise.report.terminal import STATE_STYLES, clean
from rankwise.report.terminal_output import ending_words
from rankwise.report.words import counted, duration, listed

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_REFRESH_SECONDS = 0.2
_BAR_WIDTH = 20
# Less is over before anybody has read it.
_LEAST_SECONDS_LEFT = 3.0
_WELL = ("passed", "skipped")


class TasksView:
    """Shows a line for each task that is over; on a terminal, also how far the run has come.

    Tests are also announced when they start where there is no terminal to name them on.
    """

    follows = False

    def __init__(
        self,
        console: Console,
        *,
        total: int,
        over: int = 0,
        are_tests: bool = False,
        known: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.progress import TimeElapsedColumn as Elapsed

        self._console = console
        self._are_tests = are_tests
        self._started: dict[str, float] = {}
        self._running: set[str] = set()
        self._counts: Counter[str] = Counter()
        self._forecast = Forecast(waiting=total - over, known=known)
        self._waiting: list[Text] = []
        self._shown = 0.0
        self._progress = Progress(
            BarColumn(bar_width=_BAR_WIDTH),
            MofNCompleteColumn(),
            Elapsed(),
            TextColumn("{task.description}", markup=False),
            console=console,
            auto_refresh=False,
            transient=True,
            disable=not console.is_terminal,
        )
        # The bar, how many of how many, the time, and what is between them.
        self._width_before = _BAR_WIDTH + 2 * len(str(total)) + len("/0:00:00") + 3
        self._bar = self._progress.add_task("", total=total, completed=over)
        self._progress.start()

    def event(self, event: Event) -> None:
        """Take in what happens; it is shown with the next refresh."""
        match event.kind:
            case "notice":
                self._say(event.reason, "dim")
            case "task started":
                self._started.setdefault(event.task, event.time)
                self._running.add(event.task)
                self._forecast.started(event.task, event.time)
                if self._are_tests:
                    self._announce(event)
            case "attempt ended":
                self._running.discard(event.task)
            case "task over":
                self._over(event)

    def lines(self, lines: Sequence[Line]) -> None:
        """Show nothing: it would be too much."""

    def ending(self, processes: int) -> None:
        """Say what Ctrl-C does."""
        self._say(ending_words(processes), "red")
        self._show_waiting()

    def refresh(self) -> None:
        """Show all that has come since, not more often than people can see."""
        now = time.monotonic()
        if now - self._shown < _REFRESH_SECONDS:
            return
        self._shown = now
        self._show_waiting()
        if not self._progress.disable:
            room = self._console.width - self._width_before
            self._progress.update(self._bar, description=shortened(self._how_it_goes(), room))
            self._progress.refresh()

    def close(self) -> None:
        """Show the rest and take the bar away."""
        try:
            self._show_waiting()
        finally:
            self._progress.stop()

    def _show_waiting(self) -> None:
        from rich.text import Text

        lines, self._waiting = self._waiting, []
        if lines:
            self._console.print(Text("\n").join(lines), soft_wrap=True)

    def _over(self, event: Event) -> None:
        from rich.text import Text

        self._running.discard(event.task)
        self._counts[event.state] += 1
        self._forecast.over(event.task, event.time)
        self._progress.advance(self._bar)
        started = self._started.pop(event.task, None)
        took = duration(event.time - started) if started is not None else ""
        line = Text.assemble((f"{event.state:9}", STATE_STYLES[event.state]), " ", event.task)
        line.append(f"  {took}" if took else "", "dim")
        reason, _, more = clean(event.reason, keep_colours=False).partition("\n")
        # What it quotes is shown in the end.
        line.append(f"  {reason.rstrip(':') if more else reason}" if reason else "")
        self._waiting.append(line)

    def _announce(self, event: Event) -> None:
        from rich.text import Text

        again = f" (attempt {event.attempt})" if event.attempt > 1 else ""
        if not self._console.is_terminal or again:
            self._waiting.append(Text(f"Running: {event.task}{again}"))

    def _say(self, text: str, style: str) -> None:
        from rich.text import Text

        self._waiting.append(Text(f"-- {text}", style))

    def _how_it_goes(self) -> str:
        bad = sum(count for state, count in self._counts.items() if state not in _WELL)
        parts = []
        if bad:
            parts.append(f"{counted(bad, 'test' if self._are_tests else 'task')} not passed")
        left = self._forecast.seconds_left(time.time())
        if left is not None and left >= _LEAST_SECONDS_LEFT:
            parts.append(f"about {duration(left)} left")
        if self._running:
            # Last: where the window is narrow, it is what can be done without.
            parts.append(f"running: {listed(sorted(self._running), most=3)}")
        return ", ".join(parts)


def shortened(text: str, width: int) -> str:
    """Cut a text to a width; a bar beside it would get shorter otherwise, and then vanish."""
    from rich.cells import cell_len, set_cell_size

    if cell_len(text) <= width:
        return text
    return f"{set_cell_size(text, width - 1)}…" if width > 1 else ""
