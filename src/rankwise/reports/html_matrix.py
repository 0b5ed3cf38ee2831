"""A matrix as HTML."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from markupsafe import Markup

from rankwise.reports import matrix as matrices
from rankwise.reports.environments import Environment, NotebookPicture, notebook_files, pictures_of
from rankwise.reports.matrix import Cell, CellTask, CellVerdict, MatrixResult
from rankwise.reports.rendering import Room, macros
from rankwise.store import State
from rankwise.wording import grouped, listed

# So many red cells are unfolded at first: more would hide how many there are.
_OPEN = 2
# Of more tests than this, what they use is drawn only if they are not green.
_MOST_DRAWN = 300
_MOST_TESTS = 40
_MOST_NAMES = 12
_MOST_LINES = 16
_LONGEST_LINE = 400
_MOST_CHANGES = 12
_MOST_PICTURES = 6
_LARGEST_PICTURE = 60_000


def matrix_section(matrix: MatrixResult, *, folder: Path, room: int) -> Markup:
    """Make the table with all that is behind it, as much as there is room for, in bytes.

    Files are named as they are seen from `folder`.
    """
    made = macros("reports/matrix")
    left = Room(room)
    table = left.take(made.table(matrix, _numbers(matrix), matrices.TOLD_BY_REASON))
    # A third at most: a matrix of many environments still needs room for its cells.
    environments, hidden = _environments(matrix, Room(room // 3))
    for part in environments:
        left.take(part)
    panels = _Panels(matrix, folder, left, pictures=room // 3)
    # Panels last: they are made while the page is, as long as there is room.
    counts = matrices.counts_in_order(matrix)
    return made.whole(matrix, counts, table, panels.all(), environments, hidden)


def _numbers(matrix: MatrixResult) -> dict[tuple[str, str], int]:
    return {(cell.runtime, cell.machine): at for at, cell in enumerate(matrix.in_order)}


def _key(one: Environment) -> str:
    """Name what programs see of a runtime; the same for cells that share it."""
    return f"{one.python} {sorted(one.packages.items())}"


def _sharing(matrix: MatrixResult) -> dict[str, list[Cell]]:
    """Return the cells that share an environment, in the order in which these are listed."""
    return grouped((_key(one.environment), one) for one in matrix.in_order if one.environment)


def _environments(matrix: MatrixResult, room: Room) -> tuple[list[Markup], int]:
    """List the machines and the distinct sets of packages, and count those without room."""
    made = macros("reports/matrix")
    # Most cells of a row share one: a list for each would be the same many times.
    groups = list(_sharing(matrix).values())
    if not groups:
        return [], 0
    known = {machine: matrix.environment_on(machine) for machine in matrix.machines}
    parts = [room.take(made.machines(matrix, known))]
    for number, cells in enumerate(groups):
        if room.is_full and number:
            break
        names = [f"{cell.runtime} on {cell.machine}" for cell in cells]
        where = listed(names, most=_MOST_NAMES)
        parts.append(room.take(made.environment(cells, number, where)))
    return parts, len(groups) + 1 - len(parts)


class _Panels:
    """What is behind the cells, as much as there is room for."""

    def __init__(self, matrix: MatrixResult, folder: Path, room: Room, pictures: int) -> None:
        self._made = macros("reports/matrix")
        self._matrix = matrix
        self._numbers = _numbers(matrix)
        self._environments = {key: number for number, key in enumerate(_sharing(matrix))}
        self._folder = folder
        self._room = room
        # How much of it pictures may take, since words say more.
        self._picture_room = Room(pictures)
        self._is_large = sum(len(cell.tests) for cell in matrix.in_order) > _MOST_DRAWN
        # The cell in which each picture is already.
        self._shown: dict[str, tuple[str, str]] = {}

    def address(self, path: Path) -> str:
        """Return the address of a file."""
        return quote(os.path.relpath(path, self._folder))

    def all(self) -> Iterator[Markup]:
        """Make all panels; what is red comes first, and has the room if it is small."""
        groups: dict[CellVerdict, list[Markup]] = {}
        cells = sorted(self._matrix.in_order, key=lambda cell: cell.verdict.urgency)
        for count, cell in enumerate(cells):
            is_open = count < _OPEN and cell.verdict.is_red
            number = self._numbers[cell.runtime, cell.machine]
            panel = self._made.panel(cell, number, is_open, Markup().join(self._content(cell)))
            groups.setdefault(cell.verdict, []).append(panel)
        for verdict, panels in groups.items():
            yield self._made.panels_of(verdict, panels)

    def _content(self, cell: Cell) -> Iterator[Markup]:
        for part in self._parts(cell):
            if self._room.is_full:
                yield self._made.no_room()
                break
            # The last part may be larger than what is left: half an element would be no markup.
            yield self._room.take(part)

    def _parts(self, cell: Cell) -> Iterator[Markup]:
        # What keeps one from running keeps the others, too.
        blocked = next((one for one in cell.tests if one.is_blocked), None)
        for one in cell.tests:
            if one.has_failed or one is blocked:
                # What could not even start has its words in the reason.
                told = one.tail or one.reason.splitlines()[1:][-_MOST_LINES:]
                yield self._made.failure(one, [line[:_LONGEST_LINE] for line in told])
        if not any(one.folder for one in cell.tests):
            if blocked is None:
                yield self._made.nothing(cell.reason)
            return
        for contrast in cell.contrasts:
            named = sum(change.is_named for change in contrast.changes)
            number = self._numbers[contrast.runtime, contrast.machine]
            yield self._made.contrast(contrast, cell, number, max(_MOST_CHANGES, named))
        yield self._tests(cell)
        if pictures := list(self._pictures(cell)):
            yield self._made.pictures(pictures)
        if (around := cell.environment) is not None:
            yield self._made.around(around, self._environments.get(_key(around)))

    def _tests(self, cell: Cell) -> Markup:
        """Make a table of the tasks; where there are very many, the green ones are only listed."""
        order = sorted(cell.tests, key=lambda one: one.state.is_green)
        brief = [one for one in order if self._is_large and one.state is State.PASSED]
        shown = [one for one in order if one not in brief][:_MOST_TESTS]
        del brief[_MOST_TESTS:]
        left = len(cell.tests) - len(shown) - len(brief)
        return self._made.tests(shown, brief, left, self)

    def _pictures(
        self, cell: Cell
    ) -> Iterator[tuple[CellTask, NotebookPicture, tuple[str, str] | None, int]]:
        """Choose the pictures of the notebooks; of what is in another cell already, name that."""
        count = 0
        for test, picture in _pictures_of(cell):
            if count == _MOST_PICTURES:
                return
            # In base64, as it is in the page.
            size = len(picture.data)
            if place := self._shown.get(picture.data):
                yield test, picture, place, self._numbers[place]
            elif size <= min(self._picture_room.left, self._room.left):
                self._picture_room.left -= size
                self._shown[picture.data] = cell.runtime, cell.machine
                yield test, picture, None, 0
            else:
                continue
            count += 1


def _pictures_of(cell: Cell) -> Iterator[tuple[CellTask, NotebookPicture]]:
    for test in cell.tests:
        for path in notebook_files(test.folder) if test.folder is not None else ():
            if path.suffix == ".ipynb":
                for picture in pictures_of(path, largest=_LARGEST_PICTURE):
                    yield test, picture
