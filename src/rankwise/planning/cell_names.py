"""By which tags the tasks of a matrix are known."""

from __future__ import annotations

from collections.abc import Iterable

from rankwise.plan import Task
from rankwise.spec.matrix import ENVIRONMENT

PART = "part"
"""The tag that says what a task of a cell is: `environment` or `test`."""
TEST = "test"


def cell_of(task: Task) -> tuple[str, str] | None:
    """Name the runtime and the machine of a task; None: it is in no cell."""
    if PART not in task.tags:
        return None
    return task.tags["runtime"], task.tags["machine"]


def is_test(task: Task) -> bool:
    """Tell whether a task is a test of its cell; the other one only looks around there."""
    return task.tags.get(PART) != ENVIRONMENT


def cells_to_run(tasks: Iterable[Task]) -> list[tuple[str, str]]:
    """Name the cells in which something would run, in their order."""
    cells = (cell_of(task) for task in tasks if not task.skip and is_test(task))
    return list(dict.fromkeys(cell for cell in cells if cell is not None))
