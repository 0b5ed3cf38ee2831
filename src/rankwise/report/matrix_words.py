"""What a matrix says in words, wherever there is no room for more: cells, reasons, differences."""

from __future__ import annotations

from collections.abc import Iterator

from rankwise.report.contrasts import Contrast
from rankwise.report.environments import Change
from rankwise.report.matrix import Cell, Matrix, Verdict
from rankwise.report.words import counted, listed
from rankwise.store import State

_MOST_CHANGES = 4
_MOST_CELLS = 3
_LONGEST_REASON = 400
TOLD_BY_REASON = (Verdict.SKIPPED, Verdict.NOT_RUN, Verdict.BLOCKED)
"""What is best told by the reason for it."""
_SHORT = {
    Verdict.PASSED: "ok",
    Verdict.FAILED: "FAIL",
    Verdict.CRASHED: "CRASH",
    Verdict.TIMED_OUT: "TIME",
    Verdict.LOST: "LOST",
    Verdict.CANCELLED: "STOP",
    Verdict.SOFT_FAILED: "soft",
    Verdict.BLOCKED: "NONE",
    Verdict.NOT_RUN: "none",
    Verdict.SKIPPED: "skip",
    Verdict.RUNNING: "run",
    Verdict.QUEUED: "wait",
}


def counts_words(cell: Cell) -> str:
    """Say how many tests of a cell came to what: `2 of 6 failed`, `6 passed`."""
    failed, total = _failed(cell), _total(cell)
    if failed:
        return f"{failed} of {total} failed"
    if any(one.has_failed for one in cell.tests):
        return "its environment failed"
    if cell.verdict not in (Verdict.PASSED, Verdict.RUNNING):
        return counted(total, "test") if total else ""
    if cell.verdict is Verdict.RUNNING:
        return f"{_over(cell)} of {total} over"
    skipped = cell.counts[State.SKIPPED]
    return f"{cell.counts[State.PASSED]} passed" + (f", {skipped} skipped" if skipped else "")


def cell_words(cell: Cell) -> str:
    """Say what became of a cell: `passed 6`, `timed out 1 of 6`, `skipped`."""
    return " ".join(filter(None, [str(cell.verdict), _fraction(cell, " of ")]))


def short_words(cell: Cell) -> str:
    """Say the same where there is little room: `ok 6`, `TIME 1/6`, `skip`."""
    return " ".join(filter(None, [_SHORT[cell.verdict], _fraction(cell, "/")]))


def legend(matrix: Matrix) -> str:
    """Explain the short words that are in use."""
    used = [verdict for verdict in Verdict if verdict in matrix.counts]
    return ", ".join(f"{_SHORT[verdict]} {verdict}" for verdict in used)


def _fraction(cell: Cell, of: str) -> str:
    if cell.verdict is Verdict.PASSED:
        return str(cell.counts[State.PASSED])
    if cell.verdict is Verdict.RUNNING:
        return f"{_over(cell)}{of}{_total(cell)}"
    return f"{failed}{of}{_total(cell)}" if (failed := _failed(cell)) else ""


def _failed(cell: Cell) -> int:
    return sum(one.has_failed and not one.is_environment for one in cell.tests)


def _over(cell: Cell) -> int:
    return sum(count for state, count in cell.counts.items() if state.is_over)


def _total(cell: Cell) -> int:
    return sum(cell.counts.values())


def reasons(matrix: Matrix) -> Iterator[tuple[str, str]]:
    """Give why cells did not run, with the cells for which that is so."""
    found: dict[tuple[Verdict, str], list[Cell]] = {}
    for cell in matrix.in_order:
        if cell.verdict in TOLD_BY_REASON:
            reason = " ".join(cell.reason.split())[:_LONGEST_REASON]
            found.setdefault((cell.verdict, reason), []).append(cell)
    for (verdict, reason), cells in found.items():
        yield cells_named(cells), f"{verdict}: {reason}" if reason else str(verdict)


def differences(matrix: Matrix) -> Iterator[tuple[str, str]]:
    """Give what differs where the same tests pass, with the cells for which that is so."""
    found: dict[str, list[Cell]] = {}
    for cell in matrix.in_order:
        for contrast in cell.contrasts:
            found.setdefault(contrast_words(contrast, cell), []).append(cell)
    for words, cells in found.items():
        yield cells_named(cells), words


def contrast_words(one: Contrast, cell: Cell) -> str:
    """Say where the tests pass, and what is different there, the most telling of it."""
    tests = listed(one.tests, most=3)
    verb = "passes" if len(one.tests) == 1 else "pass"
    where = one.runtime if one.machine == cell.machine else f"on {one.machine}"
    if one.machine == cell.machine:
        where = f"with {where}"
    said = f"{tests} {verb} {where}"
    if not one.is_known:
        return f"{said}; what differs is not known"
    if not one.changes:
        return f"{said}, where nothing is known to differ"
    named = [change for change in one.changes if change.is_named]
    shown = one.changes[: max(_MOST_CHANGES, len(named))]
    words = [change_words(change) for change in shown]
    if rest := len(one.changes) - len(shown):
        words.append(f"{rest} more")
    return f"{said}. Different here: {listed(words)}"


def change_words(one: Change) -> str:
    """Say what is here and what was there: `numpy 2.3.1 (1.26.4 there)`."""
    kind = "" if one.kind in ("package", "Python") else one.kind
    name = " ".join(filter(None, [kind, one.name]))
    match one.here, one.there:
        case "no", "yes":
            return f"no {name}"
        case "yes", "no":
            return f"{name} (not there)"
        case "", there:
            return f"no {name} ({there} there)"
        case here, "":
            return f"{name} {here} (not there)"
    return f"{name} {one.here} ({one.there} there)".strip()


def cells_named(cells: list[Cell]) -> str:
    """Name cells; those of one runtime together."""
    rows: dict[str, list[str]] = {}
    for cell in cells:
        rows.setdefault(cell.runtime, []).append(cell.machine)
    names = [f"{row} on {listed(them, most=_MOST_CELLS)}" for row, them in rows.items()]
    return listed(names, most=_MOST_CELLS)
