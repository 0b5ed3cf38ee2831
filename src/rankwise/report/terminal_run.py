"""The first and the last words on a run that was driven in the foreground."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rankwise.report.explanation import RunExplanation
from rankwise.report.terminal import STATE_STYLES
from rankwise.report.terminal_explain import show_run_explanation
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
) -> None:
    """Say how a run ended, why, and where to look."""
    from rich.text import Text

    console.print()
    show_run_explanation(console, explained, is_brief=True)
    text = Text.assemble((run.id, "bold"), " ", (str(run.state), STATE_STYLES[run.state]))
    if run.started is not None and run.ended is not None:
        text.append(f" after {duration(run.ended - run.started)}")
    if run.exit_code:
        text.append(f", exit code {run.exit_code}")
    console.print(text)
    if sum(counts.values()) > 1:
        console.print("  ", count_words(counts), sep="")
    steps = {"logs": short_path(str(folder))}
    if explained:
        steps["more"] = f"rankwise explain {run.id}"
    show_next(console, steps)


def show_left(console: Console, run: str) -> None:
    """Say what becomes of a run whose processes were left to their runners."""
    console.print(f"{run} was left alone: what runs goes on, and nothing more starts.")
    show_next(
        console,
        {
            "to look at it": f"rankwise status {run}",
            "to go on": f"rankwise resume {run}",
            "to end it": f"rankwise cancel {run}",
        },
    )
