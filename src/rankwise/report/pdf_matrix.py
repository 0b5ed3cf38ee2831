"""The matrix of a PDF report, as texts for the template: tables, what differs, what did not run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from rankwise.report.contrasts import Contrast
from rankwise.report.facts import cut
from rankwise.report.markup import fit
from rankwise.report.matrix import Cell, Matrix
from rankwise.report.matrix_looks import (
    VERDICT_TONES,
    about_machine,
    about_runtime,
    counts_in_order,
    gist,
    marks_of,
)
from rankwise.report.matrix_words import (
    TOLD_BY_REASON,
    cells_named,
    contrast_words,
    legend,
    reasons,
    short_words,
)
from rankwise.report.pdf_texts import breakable
from rankwise.report.words import counted, duration, listed

# What is wider than this is set small, in short words.
_ROOMY_MACHINES = 6
# A table that is wider than this is divided; each part is as wide as the page.
_MOST_ACROSS = 10
_MOST_MACHINES = 30
_MOST_CELLS = 1000
# A mark for each test is drawn in tables that are looked at and not searched.
_MOST_MARKED = 80
_LONGEST_NAME = 60
_LONGEST_SHORT_NAME = 36
_LONGEST_REASON = 70
_MOST_DIFFERENCES = 10
_MOST_CHANGES = 6
_MOST_NAMED = 10
_MOST_REASONS = 20


def matrix_content(matrix: Matrix) -> dict[str, Any]:
    """Give all that the template shows of a matrix."""
    is_small = len(matrix.machines) > _ROOMY_MACHINES
    machines = _first(matrix, matrix.machines, _MOST_MACHINES)
    runtimes = _first(matrix, matrix.runtimes, _MOST_CELLS // max(1, len(machines)))
    shown = sum((row, column) in matrix.cells for row in runtimes for column in machines)
    differences = _differences(matrix)
    why = reasons(matrix)
    told = [
        [breakable(cut(name, 200)), breakable(said)] for name, said in islice(why, _MOST_REASONS)
    ]
    return {
        "said": f"{counted(len(matrix.runtimes), 'runtime')} down, "
        f"{counted(len(matrix.machines), 'machine')} across.",
        "counts": [
            [f"{count:,} {verdict}", VERDICT_TONES[verdict]]
            for verdict, count in counts_in_order(matrix)
        ],
        "is_small": is_small,
        "legend": f"In short: {legend(matrix)}." if is_small else "",
        "tables": [_table(matrix, runtimes, part, is_small=is_small) for part in _parts(machines)],
        "more_cells": len(matrix.cells) - shown,
        "differences": differences[:_MOST_DIFFERENCES],
        "more_differences": len(differences[_MOST_DIFFERENCES:]),
        "reasons": told,
        "more_reasons": sum(1 for _ in why),
    }


def _first(matrix: Matrix, names: Sequence[str], most: int) -> list[str]:
    """Choose what there is room for: rows and columns where something is red before all others."""
    red = {
        name
        for cell in matrix.in_order
        if cell.verdict.is_red
        for name in (cell.runtime, cell.machine)
    }
    chosen = set(sorted(names, key=lambda name: name not in red)[:most])
    return [name for name in names if name in chosen]


def _parts(machines: Sequence[str]) -> list[Sequence[str]]:
    """Divide what is too wide for a page into parts that are about as wide as each other."""
    count = max(1, math.ceil(len(machines) / _MOST_ACROSS))
    width = max(1, math.ceil(len(machines) / count))
    return [machines[start : start + width] for start in range(0, len(machines), width)]


def _table(
    matrix: Matrix, runtimes: Sequence[str], machines: Sequence[str], *, is_small: bool
) -> dict[str, Any]:
    def head(name: str, about: str) -> list[str]:
        if is_small:
            return [breakable(cut(name, _LONGEST_SHORT_NAME)), ""]
        return [breakable(cut(name, _LONGEST_NAME)), breakable(cut(about, _LONGEST_NAME))]

    has_marks = not is_small and len(matrix.cells) <= _MOST_MARKED
    rows = []
    for runtime in runtimes:
        cells = (matrix.cell(runtime, machine) for machine in machines)
        rows.append(
            {
                "head": head(runtime, about_runtime(matrix, runtime)),
                "cells": [
                    None
                    if cell is None
                    else _small(cell)
                    if is_small
                    else _roomy(cell, has_marks=has_marks)
                    for cell in cells
                ],
            }
        )
    return {"heads": [head(name, about_machine(matrix, name)) for name in machines], "rows": rows}


def _small(cell: Cell) -> dict[str, Any]:
    word, _, count = short_words(cell).partition(" ")
    return {"tone": VERDICT_TONES[cell.verdict], "word": word, "count": count}


def _roomy(cell: Cell, *, has_marks: bool) -> dict[str, Any]:
    return {
        "tone": VERDICT_TONES[cell.verdict],
        "word": str(cell.verdict),
        "marks": list(marks_of(cell)) if has_marks else [],
        "lines": [breakable(line) for line in _lines(cell)],
    }


def _lines(cell: Cell) -> Iterator[str]:
    """Say how many came to what, how long it took, and why, as nobody can point at paper."""
    if cell.verdict in TOLD_BY_REASON:
        yield cut(gist(cell), _LONGEST_REASON)
        return
    took = duration(cell.seconds) if cell.seconds else ""
    yield " · ".join(filter(None, [gist(cell), took]))
    if cell.verdict.is_red:
        yield cut(cell.reason.partition("\n")[0], _LONGEST_REASON)


def _differences(matrix: Matrix) -> list[dict[str, Any]]:
    """Put together the cells that differ by the same from where their tests pass."""
    found: dict[tuple[object, ...], list[tuple[Cell, Contrast]]] = {}
    for cell in matrix.in_order:
        for one in cell.contrasts:
            key = contrast_words(one, cell), one.changes
            found.setdefault(key, []).append((cell, one))
    # What nothing is known about says least.
    order = sorted(found.values(), key=lambda them: not them[0][1].changes)
    return [_difference([cell for cell, _ in them], them[0][1]) for them in order]


def _difference(cells: list[Cell], one: Contrast) -> dict[str, Any]:
    is_same = one.machine == cells[0].machine
    other = one.runtime if is_same else one.machine
    where = f"with {other} on the same machine" if is_same else f"with the same runtime on {other}"
    tests = listed([cut(name, _LONGEST_NAME) for name in one.tests], most=3)
    named = sum(change.is_named for change in one.changes)
    shown = one.changes[: max(_MOST_CHANGES, min(named, _MOST_NAMED))]
    note = ""
    if not one.is_known:
        note = "What differs is not known: one of the two has not said what is around it."
    elif not one.changes:
        note = "Nothing differs that is known: no package, no version, nothing of the machine."
    elif left := len(one.changes) - len(shown):
        note = f"{counted(left, 'more difference')}; the HTML report has them."
    return {
        "cells": breakable(cut(cells_named(cells), 200)),
        "said": breakable(
            f"{tests} {'passes' if len(one.tests) == 1 else 'pass'} {cut(where, 160)}."
        ),
        "tone": VERDICT_TONES[cells[0].verdict],
        "changes": [
            [
                fit(change.kind),
                *(
                    breakable(cut(words, _LONGEST_NAME))
                    for words in (
                        change.name,
                        change.here or "not there",
                        change.there or "not there",
                    )
                ),
                change.is_named,
            ]
            for change in shown
        ],
        "note": note,
    }
