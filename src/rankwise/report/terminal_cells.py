"""The cells of a matrix that would run, on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rankwise.plan import Plan, Task
from rankwise.report.words import counted, listed

if TYPE_CHECKING:
    from rich.console import Console


def show_cells(console: Console, plan: Plan) -> None:
    """Show a line for each cell: its tests, or why they do not run.

    What is in no cell has its own name.
    """
    from rich.text import Text

    cells: dict[tuple[str, str], list[Task]] = {}
    for task in plan.tasks:
        if task.tags.get("part") == "environment":
            continue
        cell = (task.tags["runtime"], task.tags["machine"]) if "part" in task.tags else (task.key,)
        cells.setdefault((cell[0], cell[-1] if len(cell) > 1 else ""), []).append(task)
    console.print(Text.assemble((plan.name, "bold"), f": {counted(len(cells), 'cell')}"))
    for notice in plan.notices:
        console.print(Text.assemble(("note: ", "yellow"), notice))
    first = max((len(runtime) for runtime, _ in cells), default=0)
    second = max((len(machine) for _, machine in cells), default=0)
    for (runtime, machine), tasks in cells.items():
        console.print(
            Text.assemble(f"  {runtime:{first}}  {machine:{second}}  ", *_said(tasks)),
            soft_wrap=True,
        )


def _said(tasks: Sequence[Task]) -> list[str | tuple[str, str]]:
    running = [task.tags.get("test", task.key) for task in tasks if not task.skip]
    parts: list[str | tuple[str, str]] = [listed(running)] if running else []
    groups: dict[tuple[str, str], list[str]] = {}
    for task in tasks:
        if task.skip:
            state = "skipped" if task.is_optional else "not run"
            groups.setdefault((state, task.skip), []).append(task.tags.get("test", task.key))
    for (state, reason), names in groups.items():
        who = f"{listed(names)} " if running or len(groups) > 1 else ""
        style = "dim" if state == "skipped" else "yellow"
        parts += ["; " if parts else "", (f"{who}{state}: {reason}", style)]
    return parts
