"""How cells of a matrix look wherever they are coloured: their tones, order, marks and heads."""

from __future__ import annotations

from collections.abc import Iterator

from rankwise.report.environments import Environment
from rankwise.report.facts import cut
from rankwise.report.matrix import Cell, Matrix, Verdict
from rankwise.report.matrix_words import TOLD_BY_REASON, counts_words
from rankwise.report.outcomes import TONES
from rankwise.report.words import counted, size
from rankwise.store import State

VERDICT_TONES: dict[Verdict, str] = {
    **{Verdict(state): tone for state, tone in TONES.items() if state is not State.SUBMITTING},
    Verdict.SOFT_FAILED: "warn",
    Verdict.BLOCKED: "bad",
}
"""In which tone each verdict is shown."""
# A row of more marks than this is no longer seen at a glance.
_MOST_MARKS = 24
_LONGEST_REASON = 120


def urgency(verdict: Verdict) -> int:
    """Give the place of a verdict in an order: what somebody has to look at comes first."""
    if verdict.is_red:
        return 1 if verdict is Verdict.SOFT_FAILED else 0
    order = (Verdict.CANCELLED, Verdict.RUNNING, Verdict.NOT_RUN, Verdict.QUEUED, Verdict.PASSED)
    return 2 + (order.index(verdict) if verdict in order else len(order))


def counts_in_order(matrix: Matrix) -> list[tuple[Verdict, int]]:
    """Count the cells of each verdict that there is."""
    return sorted(matrix.counts.items(), key=lambda one: urgency(one[0]))


def gist(cell: Cell) -> str:
    """Say in a few words why a cell is as it is."""
    first = cell.reason.partition("\n")[0]
    return cut(first, _LONGEST_REASON) if cell.verdict in TOLD_BY_REASON else counts_words(cell)


def marks_of(cell: Cell) -> Iterator[str]:
    """Give a tone for each test, in the order of the plan: the same test is at the same place."""
    if cell.verdict in TOLD_BY_REASON:
        return
    tests = [one for one in cell.tests if not one.is_environment]
    for one in tests[:_MOST_MARKS]:
        yield "warn" if one.has_failed and one.is_soft else TONES[one.state]


def about_machine(matrix: Matrix, machine: str) -> str:
    """Say what a machine is, if anything that ran there has said so."""
    found = (matrix.cell(runtime, machine) for runtime in matrix.runtimes)
    known = [cell.environment for cell in found if cell is not None and cell.environment]
    return machine_words(known[0]) if known else ""


def about_runtime(matrix: Matrix, runtime: str) -> str:
    """Say what is in a runtime, if anything that ran in it has said so."""
    found = (matrix.cell(runtime, machine) for machine in matrix.machines)
    known = [cell.environment for cell in found if cell is not None and cell.environment]
    return _runtime_words(known[0]) if known else ""


def machine_words(one: Environment) -> str:
    """Say in a few words what a machine is."""
    parts = [
        one.gpus[0] if one.gpus else "",
        "" if one.gpus else one.cpu,
        counted(one.cores, "core") if one.cores else "",
        size(one.memory) if one.memory else "",
    ]
    return " · ".join(part for part in parts if part)


def _runtime_words(one: Environment) -> str:
    python = one.python.replace("CPython", "Python")
    return f"{python} · {counted(len(one.packages), 'package')}"
