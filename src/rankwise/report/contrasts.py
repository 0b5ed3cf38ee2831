"""What differs between a cell in which tests fail and the nearest one in which they pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from rankwise.report.environments import Change, difference, ranked
from rankwise.store import State

if TYPE_CHECKING:
    from rankwise.report.matrix import Cell, Matrix


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """A cell in the same row or column, in which tests pass that fail here."""

    runtime: str
    machine: str
    """Those of the other cell."""
    tests: tuple[str, ...]
    changes: tuple[Change, ...] = ()
    is_known: bool = True
    """Whether both environments are known; otherwise nothing is said of what differs."""


def contrasts_of(matrix: Matrix, cell: Cell) -> tuple[Contrast, ...]:
    """Find the cells where the tests pass that fail here, and say what differs there.

    A cell need not be all green for that: only what fails here has to pass there. One in the same
    column has another runtime on the same machine, one in the same row is the other way round. Of
    each, the one is taken that differs least, which tells most; then the one that is nearest.
    """
    failed = [one for one in cell.tests if one.has_failed and not one.is_environment]
    words = "\n".join(line for one in failed for line in (one.reason, *one.tail))
    found: dict[tuple[str, str], list[str]] = {}
    for name in dict.fromkeys(one.name for one in failed):
        for neighbours in (_column(matrix, cell), _row(matrix, cell)):
            passing = [one for one in neighbours if _passes(one, name)]
            if passing:
                best = min(passing, key=lambda one: _distance(cell, one))
                found.setdefault((best.runtime, best.machine), []).append(name)
    return tuple(
        _contrast(cell, matrix.cells[place], tests, words) for place, tests in found.items()
    )


def _contrast(cell: Cell, other: Cell, tests: Sequence[str], words: str) -> Contrast:
    here, there = cell.environment, other.environment
    is_known = here is not None and there is not None
    changes = difference(here, there) if here is not None and there is not None else ()
    return Contrast(
        runtime=other.runtime,
        machine=other.machine,
        tests=tuple(tests),
        changes=ranked(changes, words),
        is_known=is_known,
    )


def _distance(cell: Cell, other: Cell) -> float:
    """Count what differs; where that is not known, nothing is farther."""
    if cell.environment is None or other.environment is None:
        return inf
    return len(difference(cell.environment, other.environment))


def _passes(cell: Cell, name: str) -> bool:
    return any(one.name == name and one.state is State.PASSED for one in cell.tests)


def _column(matrix: Matrix, cell: Cell) -> list[Cell]:
    near = _nearest(matrix.runtimes, cell.runtime)
    places = ((runtime, cell.machine) for runtime in near)
    return [matrix.cells[place] for place in places if place in matrix.cells]


def _row(matrix: Matrix, cell: Cell) -> list[Cell]:
    near = _nearest(matrix.machines, cell.machine)
    places = ((cell.runtime, machine) for machine in near)
    return [matrix.cells[place] for place in places if place in matrix.cells]


def _nearest(names: Sequence[str], own: str) -> Iterator[str]:
    """Give the other names, those next to ours first."""
    place = names.index(own)
    others = [number for number in range(len(names)) if number != place]
    return (names[number] for number in sorted(others, key=lambda one: abs(one - place)))
