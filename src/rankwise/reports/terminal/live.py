"""A run as it happens: output, tasks, events."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import queue
import shutil
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Self, TextIO

from rankwise.logs import LogFollower, LogLine
from rankwise.plan import Task
from rankwise.records import read_processes
from rankwise.reports.palette import STYLES
from rankwise.reports.status import Forecast
from rankwise.reports.terminal.console import first_line, has_colours, styled
from rankwise.safe_text import clean
from rankwise.store.rows import Event
from rankwise.wording import counted, duration, label, listed

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


_PAUSE_SECONDS, _IDLE_SECONDS = 0.1, 0.5
# A write for each line would be slow; all of them at once may not fit into memory.
_LINES_AT_ONCE = 1000


class View:
    """Shows what happens; called by one thread only. What a view does not show, it passes over."""

    follows = False
    """Whether it shows what processes write."""

    def event(self, event: Event) -> None:
        """Show that something has happened."""

    def lines(self, lines: Sequence[LogLine]) -> None:
        """Show what processes have written."""

    def ending(self, processes: int) -> None:
        """Show that the run ends on request, such as Ctrl-C, and how many processes that ends."""

    def refresh(self) -> None:
        """Show what is not on the screen yet; called several times a second."""

    def close(self) -> None:
        """Leave the screen."""


class _StreamView(View):
    """Writes to a stream, and leaves it open."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def refresh(self) -> None:
        """Let readers have it."""
        self._stream.flush()


class JsonView(_StreamView):
    """Writes every event as a line of JSON; what is empty is left out."""

    def event(self, event: Event) -> None:
        """Write an event."""
        # Readers are scripts: a key that is missing costs less than one that is empty.
        counts = {state: count for state, count in event.counts.items() if count}
        said = {**dataclasses.asdict(event), "counts": counts, "attempt": event.attempt or None}
        data = {name: value for name, value in said.items() if value not in (None, "", {})}
        self._stream.write(json.dumps(data, default=str) + "\n")


class QuietView(_StreamView):
    """Shows nothing but what Ctrl-C does."""

    def ending(self, processes: int) -> None:
        """Say what Ctrl-C does, for the person who has pressed it."""
        self._stream.write(f"rankwise: {ending_words(processes)}\n")


class LiveDisplay:
    """Shows a run in a thread of its own.

    A terminal that is stopped, or a reader that is slow, holds up this thread and not the run. If
    the reader is gone, the run goes on unseen.
    """

    def __init__(self, view: View, *, running: Iterable[Path] = ()) -> None:
        self._view = view
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._follower = LogFollower()
        self._running = set(running)
        """Folders of the attempts that are being made."""
        if view.follows:
            for folder in self._running:
                self._follower.add(folder, from_now=True)
        self._thread = threading.Thread(target=self._show_all, name="display", daemon=True)
        self._fault: BaseException | None = None

    def observe(self, event: Event) -> None:
        """Take in an event, to be shown when there is time."""
        # Called in the thread that drives the run, and by its signal handlers: nothing here may
        # wait for the terminal, and this queue needs no lock that they might hold.
        self._events.put(event)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        # The end of the queue: what was reported before it is shown first.
        self._events.put(None)
        self._thread.join()
        if self._fault is not None and error is None:
            raise self._fault

    def _show_all(self) -> None:
        try:
            while self._show_round():
                self._view.refresh()
            self._show_lines(self._follower.finish_all())
            self._view.refresh()
        except OSError:
            # The reader is gone: a terminal or a pipe that was closed.
            self._running.clear()
        except BaseException as fault:
            # Raised where the run is driven, when it is over.
            self._fault = fault
        finally:
            with contextlib.suppress(OSError):
                self._view.close()

    def _show_round(self) -> bool:
        """Show what is new, and wait a moment if nothing is; tell whether to go on."""
        # What is over was shown to its end: nothing is new where nothing runs.
        if lines := self._follower.poll() if self._running else []:
            self._view.lines(lines)
        # Where nothing runs, only the clock on the screen changes.
        pause = _PAUSE_SECONDS if self._running else _IDLE_SECONDS
        with contextlib.suppress(queue.Empty):
            event = self._events.get(timeout=0.0 if lines else pause)
            while event is not None:
                self._show(event)
                event = self._events.get_nowait()
            return False
        return True

    def _show(self, event: Event) -> None:
        folder = event.folder
        if event.kind == "stopping":
            self._view.ending(self._count_processes())
            return
        if folder is not None and event.kind == "task started":
            self._running.add(folder)
            if self._view.follows:
                self._follower.add(folder)
        if folder is not None and event.kind == "attempt ended":
            self._running.discard(folder)
            self._show_lines(self._follower.finish(folder))
        self._view.event(event)

    def _show_lines(self, lines: Iterator[LogLine]) -> None:
        """Show many lines, without having them all in memory."""
        while some := list(islice(lines, _LINES_AT_ONCE)):
            self._view.lines(some)

    def _count_processes(self) -> int:
        return sum(
            process.started is not None and process.ended is None
            for folder in self._running
            for process in read_processes(folder)
        )


# No red: that is for what has failed.
_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
_RED, _DIM, _RESET = 31, 2, "\x1b[0m"
# The output beside a long name matters more.
_WIDEST_LABEL = 24
# Other ends are those of attempts, of which there is a line already.
_OF_TASKS = ("passed", "not run", "skipped")


class Labels:
    """Puts a name before each line, one colour for each process."""

    def __init__(
        self, *, width: int, is_coloured: bool, with_tasks: bool, are_shown: bool = True
    ) -> None:
        self._width = width
        self._is_coloured = is_coloured
        self._with_tasks = with_tasks
        self._are_shown = are_shown
        self._known: dict[tuple[str, str], str] = {}
        self._roles: dict[tuple[str, str], int] = {}

    def line(self, line: LogLine) -> str:
        """Make a line for the screen."""
        # The folder of an attempt is in that of its task.
        name = self._label(line.folder.parent.name, line.process) if self._are_shown else ""
        return f"{name}{clean(line.text.expandtabs(), keep_colours=self._is_coloured)}\n"

    def _label(self, task: str, process: str) -> str:
        # Made once for each process, since there may be millions of lines.
        known = self._known.get((task, process))
        if known is None:
            name = f"{task} {label(process)}" if self._with_tasks else label(process)
            known = f"{name:{self._width}} | "
            if self._is_coloured:
                known = f"\x1b[{self._colour(task, process)}m{known}{_RESET}"
            self._known[task, process] = known
        return known

    def _colour(self, task: str, process: str) -> int:
        """Choose by role and number, so that it does not matter who comes first."""
        role, _, number = process.rpartition("-")
        first = self._roles.setdefault((task, role), 3 * len(self._roles))
        return _COLOURS[(first + int(number if number.isdecimal() else 0)) % len(_COLOURS)]


def label_width(tasks: Sequence[Task]) -> int:
    """Return the width of the widest label, so that all lines begin in one column."""
    widest = 0
    for task in tasks:
        names = [label(process.name) for process in task.processes]
        # Ranks that a launcher starts are no processes of the plan.
        names += [f"rank {task.width - 1}"] * (task.width > len(task.processes))
        own = len(task.key) + 1 if len(tasks) > 1 else 0
        widest = max(widest, own + max(map(len, names), default=0))
    return min(widest, _WIDEST_LABEL)


class OutputView(_StreamView):
    """Shows the output of all processes, and what becomes of the tasks if there are several."""

    follows = True

    def __init__(self, stream: TextIO, tasks: Sequence[Task]) -> None:
        super().__init__(stream)
        self._is_coloured = is_coloured = has_colours(stream)
        self._with_tasks = with_tasks = len(tasks) > 1
        width = label_width(tasks)
        self._labels = Labels(width=width, is_coloured=is_coloured, with_tasks=with_tasks)

    def event(self, event: Event) -> None:
        """Say what becomes of tasks; of a single one, only what is out of the ordinary."""
        match event.kind:
            case "notice":
                self._say(event.reason)
            case "task started" if event.attempt > 1:
                self._say(f"{event.task}: attempt {event.attempt} started")
            case "task started" if self._with_tasks:
                self._say(f"{event.task} started")
            case "attempt ended" if event.state != "passed":
                self._say(f"{event.task} {_fate(event)}", _RED)
            case "task over" if self._with_tasks and event.state in _OF_TASKS:
                self._say(f"{event.task} {_fate(event)}")

    def lines(self, lines: Sequence[LogLine]) -> None:
        """Show what processes have written."""
        self._stream.write("".join(map(self._labels.line, lines)))

    def ending(self, processes: int) -> None:
        """Say what Ctrl-C does."""
        self._say(ending_words(processes), _RED)

    def _say(self, text: str, colour: int = _DIM) -> None:
        # Lines that follow are indented, so that they are not taken for output.
        lines = [clean(line) for line in text.split("\n")]
        if self._stream.isatty():
            # A terminal would break lines inside of words. Quotes stay as they were written.
            width = shutil.get_terminal_size().columns - len(_INDENT)
            lines = [part for line in lines for part in _wrapped(line, width)]
        line = f"-- {_NEXT.join(lines)}"
        self._stream.write(f"\x1b[{colour}m{line}{_RESET}\n" if self._is_coloured else f"{line}\n")


_INDENT = "   "
_NEXT = f"\n{_INDENT}"


def _wrapped(line: str, width: int) -> list[str]:
    if line.lstrip().startswith("|"):
        return [line]
    found = textwrap.wrap(line, max(width, 1), break_long_words=False, break_on_hyphens=False)
    return found or [""]


def ending_words(processes: int) -> str:
    """Say what the first Ctrl-C does, and what a second one would."""
    what = counted(processes, "process") if processes else "the run"
    return f"stopping {what} ... (Ctrl-C again: exit and let them run on)"


def _fate(event: Event) -> str:
    return f"{event.state}: {event.reason}" if event.reason else event.state


_REFRESH_SECONDS = 0.2
_BAR_WIDTH = 20
# Less is over before it can be read.
_LEAST_SECONDS_LEFT = 3.0
_GREEN = ("passed", "skipped")


class TasksView(View):
    """Shows a line for each task that is over; on a terminal, also how far the run has come.

    Tests are also announced when they start where there is no terminal to name them on.
    """

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
            # Our own thread refreshes it.
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

    def ending(self, processes: int) -> None:
        """Say what Ctrl-C does."""
        self._say(ending_words(processes), "red")
        self._show_waiting()

    def refresh(self) -> None:
        """Show all that has come since, not more often than people can see."""
        now = time.monotonic()
        if now - self._shown < _REFRESH_SECONDS:
            return  # What has come waits for the next time.
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
        lines, self._waiting = self._waiting, []
        # All at once: rich takes the bar away and draws it again for each print.
        if lines:
            self._console.print(styled("\n").join(lines), soft_wrap=True)

    def _over(self, event: Event) -> None:
        self._running.discard(event.task)
        self._counts[event.state] += 1
        self._forecast.over(event.task, event.time)
        self._progress.advance(self._bar)
        started = self._started.pop(event.task, None)
        took = duration(event.time - started) if started is not None else ""
        line = styled((f"{event.state:9}", STYLES[event.state]), " ", event.task)
        line.append(f"  {took}" if took else "", "dim")
        # What the reason quotes is shown in the end.
        line.append(f"  {first_line(event.reason)}" if event.reason else "")
        self._waiting.append(line)

    def _announce(self, event: Event) -> None:
        again = f" (attempt {event.attempt})" if event.attempt > 1 else ""
        if not self._console.is_terminal or again:
            self._waiting.append(styled(f"Running: {event.task}{again}"))

    def _say(self, text: str, style: str) -> None:
        self._waiting.append(styled((f"-- {text}", style)))

    def _how_it_goes(self) -> str:
        bad = sum(count for state, count in self._counts.items() if state not in _GREEN)
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
