"""The matrix of an HTML report: a coloured table, and behind each cell what became of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rankwise.report.facts import cut
from rankwise.report.html_cell_tests import Page
from rankwise.report.html_cells import cell_panel
from rankwise.report.html_environments import environment_numbers, environments_list
from rankwise.report.markup import Markup, joined, tag
from rankwise.report.matrix import Cell, Matrix, Verdict
from rankwise.report.matrix_looks import (
    VERDICT_TONES,
    about_machine,
    about_runtime,
    counts_in_order,
    gist,
    marks_of,
    urgency,
)
from rankwise.report.matrix_words import TOLD_BY_REASON
from rankwise.report.words import counted, duration

_LONGEST = 80
_OPEN = 2
# Of more tests than this, what they use is drawn only if they are not green.
_MOST_DRAWN = 300


def matrix_section(matrix: Matrix, *, folder: Path, room: int) -> Markup:
    """Make the table with all that is behind it, as much as there is room for, in bytes.

    Files are named as they are seen from `folder`.
    """
    numbers = {place: number for number, place in enumerate(_places(matrix))}
    table = _table(matrix, numbers)
    environments = environments_list(matrix, room=room // 3)
    page = Page(
        left=room - len(table.encode()) - len(environments.encode()),
        folder=folder,
        cells=numbers,
        environments=environment_numbers(matrix),
        pictures=room // 3,
        is_large=sum(len(cell.tests) for cell in matrix.in_order) > _MOST_DRAWN,
    )
    parts = [_legend(matrix), table, tag("h3", "Cells", class_="later")]
    return joined([*parts, *_panels(matrix, page), environments])


def _panels(matrix: Matrix, page: Page) -> Iterator[Markup]:
    """Make what is behind the cells; what is red comes first, and has the room if it is small."""
    groups: dict[Verdict, list[Cell]] = {}
    for cell in sorted(matrix.in_order, key=lambda cell: urgency(cell.verdict)):
        groups.setdefault(cell.verdict, []).append(cell)
    count = 0
    for verdict, cells in groups.items():
        panels = []
        for cell in cells:
            panels.append(_panel(cell, page, is_open=count < _OPEN and verdict.is_red))
            count += 1
        if verdict.is_red:
            yield from panels
        else:
            tone = VERDICT_TONES[verdict]
            word = tag("b", str(verdict), class_=f"o {tone}")
            head = tag("summary", word, counted(len(cells), "cell"))
            yield tag("details", head, tag("div", *panels), class_="rest")


def _panel(cell: Cell, page: Page, *, is_open: bool) -> Markup:
    return cell_panel(
        cell,
        tone=VERDICT_TONES[cell.verdict],
        summary=gist(cell),
        page=page,
        is_open=is_open,
    )


def _places(matrix: Matrix) -> list[tuple[str, str]]:
    return [(cell.runtime, cell.machine) for cell in matrix.in_order]


def _legend(matrix: Matrix) -> Markup:
    said = f"{counted(len(matrix.runtimes), 'runtime')} down, "
    said += f"{counted(len(matrix.machines), 'machine')} across. "
    said += "Click on a cell for its tests, logs, notebooks and what differs."
    items = (
        tag("li", f"{count:,} {verdict}", class_=VERDICT_TONES[verdict])
        for verdict, count in counts_in_order(matrix)
    )
    return joined([tag("p", said, class_="soft"), tag("ul", *items, class_="legend")])


def _table(matrix: Matrix, numbers: dict[tuple[str, str], int]) -> Markup:
    heads = [tag("td"), *(_machine_head(matrix, name) for name in matrix.machines)]
    rows = []
    for runtime in matrix.runtimes:
        cells = [_head(runtime, about_runtime(matrix, runtime), scope="row")]
        for machine in matrix.machines:
            cell = matrix.cell(runtime, machine)
            cells.append(
                tag("td", class_="void", title="not asked for")
                if cell is None
                else _cell(cell, numbers[runtime, machine])
            )
        rows.append(tag("tr", *cells))
    body = tag("tbody", Markup("\n" + "\n".join(rows)))
    caption = tag("caption", "What became of every runtime on every machine")
    table = tag("table", caption, tag("thead", tag("tr", *heads)), body, class_="matrix")
    return tag("div", table, class_="table whole", tabindex="0")


def _machine_head(matrix: Matrix, machine: str) -> Markup:
    # All are as wide as each other, whatever is in them.
    width = f"width:{100 / (len(matrix.machines) + 1):.0f}%"
    return _head(machine, about_machine(matrix, machine), scope="col", style=width)


def _head(name: str, about: str, *, scope: str, style: str | None = None) -> Markup:
    below = [tag("small", cut(about, _LONGEST))] if about else []
    return tag("th", cut(name, _LONGEST), *below, scope=scope, style=style)


def _cell(cell: Cell, number: int) -> Markup:
    said = gist(cell)
    small = [cut(said, 60)]
    if cell.verdict not in TOLD_BY_REASON:
        took = duration(cell.seconds) if cell.seconds else ""
        small = [joined([tag("span", words), " "]) for words in (said, took) if words]
    link = tag(
        "a",
        tag("b", str(cell.verdict)),
        tag(
            "span",
            *(tag("i", class_=tone) for tone in marks_of(cell)),
            class_="pips",
            aria_hidden="true",
        ),
        tag("small", *small),
        href=f"#cell-{number}",
        aria_label=f"{cut(cell.runtime, 60)} on {cut(cell.machine, 60)}: {cell.verdict}, {said}",
    )
    tone = VERDICT_TONES[cell.verdict]
    return tag("td", link, class_=f"cell {tone}", title=cut(cell.reason, 200) or None)
