"""The first and the last words on a run that was driven in the foreground."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rankwise.report.explanation import RunExplanation
from rankwise.report.terminal import STATE_STYLES
from rankwise.report.terminal_explain import show_in_brief
from rankwise.report.terminal_room import room_on
from rankwise.report.terminal_status import count_words, show_next
from rankwise.report.words import counted, duration, short_path

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rich.console import Console

    from rankwise.plan import Task
    from rankwise.store import RunRow, State

_MOST_TASKS_WITH_NOTES = 3
# Those who write tests look at what fails; `plan` has the rest.
_SUITE = "Suite"
LINES_OF_END = 5
"""An empty line, how it ended, the counts, where the logs are, and what is next."""


def show_start(console: Console, run: RunRow, tasks: Sequence[Task], *, is_again: bool) -> None:
    """Say what starts, and what people must know about it."""
    from rich.text import Text

    verb = "goes on" if is_again else "starts"
    text = Text.assemble((run.id, "bold"), f" {verb}: {run.kind}, {counted(len(tasks), 'task')}")
    console.print(text)
    for notice in run.notices:
        console.print(Text.assemble(("note: ", "yellow"), notice))
    if len(tasks) <= _MOST_TASKS_WITH_NOTES and run.kind != _SUITE:
        for task in tasks:
            for note in task.notes:
                console.print(Text(f"{task.key}: {note}", "dim"))


def show_end(
    console: Console,
    run: RunRow,
    counts: Mapping[State, int],
    explained: RunExplanation,
    folder: Path,
    *,
    used: int = 0,
    has_measured: bool = False,
) -> None:
    """Say how a run ended and why, in one screen of which some lines are used, and what is next."""
    console.print()
    show_in_brief(console, explained, room=room_on(console) - used - LINES_OF_END)
    show_verdict(console, run)
    total = sum(counts.values())
    if total > 1:
        console.print("  ", count_words(counts), sep="")
    steps = {"logs": short_path(str(folder))} if explained else {}
    steps |= next_step(run, is_red=bool(explained), is_large=total > 1, has_measured=has_measured)
    show_next(console, steps)


def show_verdict(console: Console, run: RunRow) -> None:
    """Say how a run ended, in one line."""
    from rich.text import Text

    text = Text.assemble((run.id, "bold"), " ", (str(run.state), STATE_STYLES[run.state]))
    if run.started is not None and run.ended is not None:
        text.append(f" after {duration(run.ended - run.started)}")
    if run.exit_code:
        text.append(f", exit code {run.exit_code}")
    console.print(text)


def next_step(
    run: RunRow, *, is_red: bool, is_large: bool, has_measured: bool = False
) -> dict[str, str]:
    """Give the one command that most people want next; it stands last."""
    if is_red:
        return {"more": f"rankwise explain {run.id}"}
    if has_measured:
        return {"more": f"rankwise report {run.id} --html report.html"}
    if is_large:
        return {"more": f"rankwise report {run.id}"}
    return {"logs": f"rankwise logs {run.id}"}


def show_left(console: Console, run: str) -> None:
    """Say what becomes of a run whose processes were left to their runners."""
    console.print(f"{run} was left alone: what runs goes on, and nothing more starts.")
    show_next(
        console,
        {
            "to look at it": f"rankwise status {run}",
            "to end it": f"rankwise cancel {run}",
            "to go on": f"rankwise resume {run}",
        },
    )
