"""Reports and timelines as HTML files."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from markupsafe import Markup

from rankwise.reports.html_matrix import matrix_section
from rankwise.reports.lanes import Timeline
from rankwise.reports.measurements import varied_in
from rankwise.reports.model import ReportData, SingleTest, TaskResult
from rankwise.reports.plots.timeline import MOST_SHAPES, draw
from rankwise.reports.rendering import Room, macros, template_text
from rankwise.reports.timeline import Findings, findings

MOST_MEASURES = 2000
_MOST_CASES = 2000
# More do not fit beside each other on a screen.
_MOST_COLUMNS = 6
_MOST_DRAWN_BYTES = 100_000
# Of a page of a thousand cases, without its style and script: mail programs take that much.
_MOST_BYTES = 950_000
_MOST_OF_MATRIX = 600_000
_MOST_SHAPES = 400
_Row = TypeVar("_Row", TaskResult, SingleTest)


def html_report(data: ReportData) -> str:
    """Write a report of a run."""
    made = macros("reports/report")
    repeats = {case.key: case.repeat for case in data.cases}
    banner = made.banner(data)
    parts: dict[tuple[str, str], Markup] = {
        ("matrix", "Matrix"): Markup(),
        ("analysis", "Analysis"): Markup(),
        ("failed", "What went wrong"): made.failures(data, repeats),
        ("figures", "At a glance"): made.figures(data.figures),
        ("timeline", "Timeline"): _timeline(data),
        ("measured", "Measured"): Markup(),
        ("cases", "Cases"): _cases(data),
        ("tests", "Single tests"): made.tests(data, _first(data.tests)),
        ("conditions", "Where and how"): made.conditions(data),
        ("document", "The document"): made.document(data.document),
    }
    # The parts without limits of their own come first; the others have the room that is left.
    room = Room(_MOST_BYTES)
    for part in (banner, *parts.values()):
        room.take(part)
    if data.matrix:
        most = min(_MOST_OF_MATRIX, room.left)
        matrix = matrix_section(data.matrix, folder=data.folder, room=most)
        parts["matrix", "Matrix"] = room.take(matrix)
    # Its pictures have a limit of their own.
    parts["analysis", "Analysis"] = made.analyses(data.analyses)
    # What is measured may be more than all the rest.
    measures = data.measures[:MOST_MEASURES]
    names = _varied(one.parameters for one in measures)
    parts["measured", "Measured"] = made.measures(data, measures, names, Room(room.left))
    title = f"{data.run.id}: {data.verdict}"
    listed = [(*names, content) for names, content in parts.items()]
    return str(made.whole(data, title, banner, listed, _frame(*["matrix.css"] * bool(data.matrix))))


def _frame(*styles: str) -> dict[str, Markup]:
    """Return what a page needs beside its content, in the file itself."""
    # The page forbids all scripts but this one, which it names by its digest.
    script = template_text("report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    style = "".join(map(template_text, ("report.css", *styles)))
    return {"style": Markup(style), "script": Markup(script), "digest": Markup(digest)}


def _first(rows: Sequence[_Row]) -> Sequence[_Row]:
    """Return the rows of a table; what is not green comes first."""
    return sorted(rows, key=lambda row: row.state.is_green)[:_MOST_CASES]


def _cases(data: ReportData) -> Markup:
    """Make the table of all cases; of very many, those that are not green come first."""
    shown = data.cases if len(data.cases) <= _MOST_CASES else _first(data.cases)
    # The names of a matrix's cases say it all.
    names = [] if data.matrix else _varied(case.parameters for case in shown)
    return macros("reports/report").cases(data, shown, names, _used(data, shown))


def _used(data: ReportData, cases: Sequence[TaskResult]) -> dict[str, Markup]:
    """Draw what cases have used, as far as there is room for it; green ones come last."""
    draw_used = macros("reports/shared").used_cells
    found: dict[str, Markup] = {}
    room = Room(_MOST_DRAWN_BYTES)
    for case in sorted(cases, key=lambda case: case.state.is_green):
        if (one := data.used.get(case.key)) and not room.is_full:
            found[case.key] = room.take(draw_used(one))
    return found


def _varied(rows: Iterable[Mapping[str, str]]) -> list[str]:
    """Name the parameters that make columns: those that differ, the first few of them."""
    return varied_in(rows)[:_MOST_COLUMNS]


def _timeline(data: ReportData) -> Markup:
    if data.timeline is None or not data.timeline.bars:
        return Markup()
    # The cases are a table already.
    return timeline_section(data.timeline, most=_MOST_SHAPES, has_table=False)


def timeline_page(timeline: Timeline) -> str:
    """Write a timeline as a page of its own."""
    found = findings(timeline)
    drawing = _draw(timeline, found, MOST_SHAPES)
    return str(macros("reports/timeline").whole(timeline, found, drawing, _frame()))


def timeline_section(
    timeline: Timeline, *, most: int = MOST_SHAPES, has_table: bool = True
) -> Markup:
    """Show a timeline and what it says; `most` limits how many shapes are drawn.

    Without a table, the page must have another that says the same.
    """
    found = findings(timeline)
    drawing = _draw(timeline, found, most)
    return macros("reports/timeline").section(timeline, found, drawing, has_table)


def _draw(timeline: Timeline, found: Findings, most: int) -> Markup:
    bound = found.lower_bound if timeline.is_over else 0.0
    return draw(timeline, bound=bound, gaps=found.gaps, most=most)
