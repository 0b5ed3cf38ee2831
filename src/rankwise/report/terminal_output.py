"""What processes write, as they write it: a line each, with the name of who wrote it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from rankwise.engine.events import Event
from rankwise.logs import Line
from rankwise.plan import Task
from rankwise.report.terminal import clean, has_colours
from rankwise.report.words import counted, label

# No red: that is for what has failed.
_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
_RED, _DIM, _RESET = 31, 2, "\x1b[0m"
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

    def line(self, line: Line) -> str:
        """Make a line for the screen."""
        text = clean(line.text.expandtabs(), keep_colours=self._is_coloured)
        if not self._are_shown:
            return f"{text}\n"
        # The folder of an attempt is in that of its task.
        return f"{self._label(line.folder.parent.name, line.process)}{text}\n"

    def _label(self, task: str, process: str) -> str:
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
    """Give the width of the widest label, so that all lines begin in one column."""
    with_tasks = len(tasks) > 1
    widest = 0
    for task in tasks:
        names = [label(process.name) for process in task.processes]
        if task.width > len(task.processes):
            names.append(f"rank {task.width - 1}")
        own = len(task.key) + 1 if with_tasks else 0
        widest = max(widest, own + max(map(len, names), default=0))
    return min(widest, _WIDEST_LABEL)


class OutputView:
    """Shows the output of all processes, and what becomes of the tasks if there are several."""

    follows = True

    def __init__(self, stream: TextIO, tasks: Sequence[Task]) -> None:
        self._stream = stream
        self._is_coloured = has_colours(stream)
        self._with_tasks = len(tasks) > 1
        self._labels = Labels(
            width=label_width(tasks), is_coloured=self._is_coloured, with_tasks=self._with_tasks
        )

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

    def lines(self, lines: Sequence[Line]) -> None:
        """Show what processes have written."""
        self._stream.write("".join(map(self._labels.line, lines)))

    def ending(self, processes: int) -> None:
        """Say what Ctrl-C does."""
        self._say(ending_words(processes), _RED)

    def refresh(self) -> None:
        """Bring to the screen what is not there yet."""
        self._stream.flush()

    def close(self) -> None:
        """Leave the screen."""

    def _say(self, text: str, colour: int = _DIM) -> None:
        text = clean(text.replace("\n", "\n   "), keep_colours=False)
        line = f"-- {text}"
        self._stream.write(f"\x1b[{colour}m{line}{_RESET}\n" if self._is_coloured else f"{line}\n")


def ending_words(processes: int) -> str:
    """Say what the first Ctrl-C does, and what a second one would."""
    what = counted(processes, "process") if processes else "the run"
    return f"ending {what} ... (Ctrl-C again leaves them to their runners)"


def _fate(event: Event) -> str:
    return f"{event.state}: {event.reason}" if event.reason else event.state
