"""A matrix on a terminal, before and after it has run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from rankwise.plan import Plan, Task
from rankwise.reports import matrix as matrices
from rankwise.reports.matrix import Cell, CellVerdict, MatrixResult
from rankwise.reports.palette import STYLES
from rankwise.reports.terminal.console import show_notices, styled
from rankwise.safe_text import clean, clip_apart
from rankwise.wording import counted, grouped, listed

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def show_cells(console: Console, plan: Plan) -> None:
    """Show a line for each cell: its tests, or why they do not run.

    What is in no cell has its own name.
    """
    cells: dict[tuple[str, str], list[Task]] = {}
    for task in plan.tasks:
        if task.tags.get("part") == "environment":
            continue
        is_in_cell = "part" in task.tags
        cell = (task.tags["runtime"], task.tags["machine"]) if is_in_cell else (task.key, "")
        cells.setdefault(cell, []).append(task)
    console.print(styled((plan.name, "bold"), f": {counted(len(cells), 'cell')}"))
    show_notices(console, plan.notices)
    # The pair of empty texts is for a plan without cells.
    first, second = (max(map(len, names)) for names in zip(("", ""), *cells, strict=True))
    for (runtime, machine), tasks in cells.items():
        line = styled(f"  {runtime:{first}}  {machine:{second}}  ", *_said(tasks))
        console.print(line, soft_wrap=True)


def _said(tasks: Sequence[Task]) -> list[str | tuple[str, str]]:
    groups = grouped(
        ((task.skip, bool(task.skip) and task.is_optional), task.tags.get("test", task.key))
        for task in tasks
    )
    running = groups.pop(("", False), [])
    parts: list[str | tuple[str, str]] = [listed(running)] if running else []
    for (reason, is_optional), names in groups.items():
        who = f"{listed(names)} " if running or len(groups) > 1 else ""
        state, style = ("skipped", "dim") if is_optional else ("not run", "yellow")
        parts += ["; " if parts else "", (f"{who}{state}: {reason}", style)]
    return parts


_GAP = 2
_LONGEST_RUNTIME, _LONGEST_MACHINE = 24, 16
_MOST_LINES = 8
_GREEN = (CellVerdict.PASSED, CellVerdict.SKIPPED)


def show_matrix(console: Console, matrix: MatrixResult) -> None:
    """Show every cell; where the window is narrow in short words, and in several tables."""
    console.print()
    widths = [_width(matrix, name, matrices.cell_words) for name in matrix.machines]
    first = _first_width(matrix)
    # In full if all machines fit beside each other.
    if first + sum(widths) + _GAP * len(widths) <= console.width:
        console.print(_table(matrix, matrix.runtimes, matrix.machines, matrices.cell_words))
    else:
        widths = [_width(matrix, name, matrices.short_words) for name in matrix.machines]
        for machines in _parts(matrix.machines, widths, console.width - first):
            console.print(_table(matrix, matrix.runtimes, machines, matrices.short_words))
            console.print()
        console.print(f"  {matrices.legend(matrix)}", style="dim")
    console.print()
    for lines in (matrices.differences(matrix), matrices.reasons(matrix)):
        _show_lines(console, lines)


def show_matrix_in_brief(console: Console, matrix: MatrixResult, *, room: int) -> None:
    """Show as much of a matrix as there is room for; first what is not green, and why."""
    console.print()
    runtimes, machines, say = matrix.runtimes, matrix.machines, matrices.cell_words
    width = console.width - _first_width(matrix)
    if sum(_width(matrix, name, say) + _GAP for name in machines) > width:
        say = matrices.short_words
        machines = _red_first(machines, {cell.machine for cell in _red(matrix)})
        widths = [_width(matrix, name, say) for name in machines]
        # Only the first table: the red machines are in it.
        machines = tuple(next(_parts(machines, widths, width)))
    # One line is empty, one has the names, one says what is left out, two are for a reason.
    left = room - 5 - (say is matrices.short_words)
    if len(runtimes) > left:
        runtimes = _red_first(runtimes, {cell.runtime for cell in _red(matrix)})[: max(1, left)]
    console.print(_table(matrix, runtimes, machines, say))
    missing = {
        "runtime": len(matrix.runtimes) - len(runtimes),
        "machine": len(matrix.machines) - len(machines),
    }
    if more := [counted(number, noun) for noun, number in missing.items() if number]:
        console.print(f"  ... and {' and '.join(more)} more")
    if say is matrices.short_words:
        _show_cut(console, matrices.legend(matrix), _GAP, style="dim")
    said = [*matrices.differences(matrix), *matrices.reasons(matrix)]
    for names, words in said[: max(1, (left - len(runtimes)) // 2 + 1)]:
        _show_cut(console, names, _GAP, style="bold")
        _show_cut(console, words, 2 * _GAP)


def _show_cut(console: Console, text: str, indent: int, *, style: str = "") -> None:
    line = " " * indent + " ".join(clean(text).split())
    console.print(line, no_wrap=True, overflow="ellipsis", style=style)


def _red(matrix: MatrixResult) -> list[Cell]:
    return [cell for cell in matrix.in_order if cell.verdict not in _GREEN]


def _red_first(names: tuple[str, ...], red: set[str]) -> tuple[str, ...]:
    return tuple(sorted(names, key=lambda name: name not in red))


def _first_width(matrix: MatrixResult) -> int:
    return _GAP + max(min(len(name), _LONGEST_RUNTIME) for name in matrix.runtimes)


def _show_lines(console: Console, lines: Iterator[tuple[str, str]]) -> None:
    from rich.padding import Padding

    for names, words in islice(lines, _MOST_LINES):
        name, said = (clean(text) for text in (names, words))
        for text, indent in ((styled((name, "bold")), _GAP), (styled(said), 2 * _GAP)):
            console.print(Padding(text, (0, 0, 0, indent), expand=False))
    if left := sum(1 for _ in lines):
        console.print(f"  ... and {counted(left, 'other')}: the report has them all")


def _cut(names: Sequence[str], longest: int) -> dict[str, str]:
    """Return how each name is shown: names that differ still do."""
    plain = [" ".join(clean(name).split()) for name in names]
    return dict(zip(names, clip_apart(plain, longest), strict=True))


def _width(matrix: MatrixResult, machine: str, say: Callable[[Cell], str]) -> int:
    cells = (matrix.cell(runtime, machine) for runtime in matrix.runtimes)
    widest = max(len(say(cell)) for cell in cells if cell is not None)
    return max(widest, min(len(machine), _LONGEST_MACHINE))


def _parts(machines: Sequence[str], widths: Sequence[int], room: int) -> Iterator[list[str]]:
    """Put as many machines beside each other as there is room for, and at least one."""
    part: list[str] = []
    left = room
    for name, width in zip(machines, widths, strict=True):
        if part and width + _GAP > left:
            yield part
            part, left = [], room
        part.append(name)
        left -= width + _GAP
    yield part


def _table(
    matrix: MatrixResult,
    runtimes: Sequence[str],
    machines: Sequence[str],
    say: Callable[[Cell], str],
) -> Table:
    from rich.table import Table

    table = Table(box=None, padding=(0, 0, 0, _GAP), header_style="bold")
    table.add_column("", no_wrap=True)
    for name in _cut(machines, _LONGEST_MACHINE).values():
        table.add_column(styled(name), no_wrap=True)
    for runtime, name in _cut(runtimes, _LONGEST_RUNTIME).items():
        row = [styled((name, "bold"))]
        for machine in machines:
            cell = matrix.cell(runtime, machine)
            row.append(styled((say(cell), STYLES[cell.verdict])) if cell else styled("."))
        table.add_row(*row)
    return table
