"""The cells of a matrix: listed without being run, and asked about when there are many."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from rankwise.errors import InputError

if TYPE_CHECKING:
    from rankwise.plan import Plan


def check_count(plan: Plan, *, limit: int, is_agreed: bool) -> None:
    """Ask before more cells are started than were meant; InputError: nobody has agreed."""
    from rankwise.planning.cell_names import cells_to_run

    count = len(cells_to_run(plan.tasks))
    if count <= limit or is_agreed:
        return
    if sys.stdin.isatty() and sys.stderr.isatty():
        tests = sum(not task.skip for task in plan.tasks)
        print(f"{plan.name} starts {count} cells with {tests} tasks.", file=sys.stderr)
        print("Go on? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() in ("y", "yes"):
            return
        raise InputError(f"{plan.name}: nothing was started")
    raise InputError(
        f"{plan.name}: {count} cells are more than {limit}, and nobody can be asked here: agree "
        f"with --yes, allow more with --limit {count}, or take some with --only runtime=NAME"
    )


def list_cells(plan: Plan) -> None:
    """Show the cells of a plan, and start nothing."""
    from rankwise.report.terminal import make_console
    from rankwise.report.terminal_cells import show_cells

    show_cells(make_console(), plan)
