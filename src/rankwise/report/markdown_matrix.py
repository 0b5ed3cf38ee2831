"""A matrix in Markdown, for pull requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

from rankwise.report.matrix import Matrix, Verdict
from rankwise.report.matrix_words import cell_words, differences, reasons

_MARKS = {
    Verdict.PASSED: "✅",
    Verdict.SOFT_FAILED: "⚠️",
    Verdict.NOT_RUN: "🚫",
    Verdict.SKIPPED: "⏭️",
    Verdict.RUNNING: "⏳",
    Verdict.QUEUED: "⏳",
    Verdict.CANCELLED: "🛑",
}
_FAILED = "❌"
_MOST_LINES = 20
# More columns than this are not read by anybody on such a page.
_MOST_MACHINES = 20
_MOST_RUNTIMES = 60


def matrix_lines(matrix: Matrix, safe: Callable[[str], str]) -> Iterator[str]:
    """Give the table, what differs, and why cells did not run; `safe` makes plain text of names."""
    machines = matrix.machines[:_MOST_MACHINES]
    yield f"| | {' | '.join(map(safe, machines))} |"
    yield f"| --- |{' --- |' * len(machines)}"
    for runtime in matrix.runtimes[:_MOST_RUNTIMES]:
        cells = (matrix.cell(runtime, machine) for machine in machines)
        words = (
            f"{_MARKS.get(cell.verdict, _FAILED)} {cell_words(cell)}" if cell else ""
            for cell in cells
        )
        yield f"| **{safe(runtime)}** | {' | '.join(words)} |"
    yield ""
    left = len(matrix.cells) - len(machines) * min(len(matrix.runtimes), _MOST_RUNTIMES)
    if left > 0:
        yield f"… and {left} more cells"
        yield ""
    for lines in (differences(matrix), reasons(matrix)):
        for names, said in islice(lines, _MOST_LINES):
            yield f"- **{safe(names)}**: {safe(said)}"
        if more := sum(1 for _ in lines):
            yield f"- … and {more} more"
    yield ""
