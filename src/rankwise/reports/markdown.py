"""A summary of a run in Markdown."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice

from markupsafe import Markup, escape

from rankwise.reports.failures import CaseResult
from rankwise.reports.matrix import TOLD_BY_REASON, MatrixResult, differences, reasons
from rankwise.reports.model import ReportData
from rankwise.reports.rendering import render_markdown
from rankwise.safe_text import fit_for_xml, one_line
from rankwise.store import State
from rankwise.store.rows import RED

_MOST_LINES = 20
# GitHub takes a summary of one megabyte.
_MOST_DETAILS = 20
_LONGEST_DETAILS = 4000
_LONGEST_NAME = 300


def markdown_report(data: ReportData) -> str:
    """Write what became of a run: the verdict, a table, and what the failures have to say."""
    cases, matrix = data.results, data.matrix
    counts = Counter(case.state for case in cases)
    if matrix is not None:
        cases = _below(matrix, cases)
    red = [case for case in cases if case.state in RED]
    return render_markdown(
        "reports/summary",
        data=data,
        measures=data.measures,
        counts=[(state, counts[state]) for state in State if counts[state]],
        matrix=matrix,
        said=[_few(lines) for lines in (differences(matrix), reasons(matrix))] if matrix else [],
        # What is wrong comes first, and is all there.
        cases=sorted(cases, key=lambda case: case.state.is_green),
        details=[found for case in red[:_MOST_DETAILS] if (found := _details(case))],
        more=len(red[_MOST_DETAILS:]),
    )


def _below(matrix: MatrixResult, cases: Sequence[CaseResult]) -> list[CaseResult]:
    """Leave out the green ones, which the matrix has, and those whose reason it has."""
    told = {
        f"{row}.{column}"
        for (row, column), one in matrix.cells.items()
        if one.verdict in TOLD_BY_REASON
    }
    return [case for case in cases if not case.state.is_green and case.cell not in told]


def _few(lines: Iterator[tuple[str, str]]) -> tuple[list[tuple[str, str]], int]:
    return list(islice(lines, _MOST_LINES)), sum(1 for _ in lines)


def _details(case: CaseResult) -> tuple[Markup, State, Markup, Markup] | None:
    """Return what a case has to say, as HTML that may stand in Markdown, with its fence."""
    quoted = case.details[-_LONGEST_DETAILS:]
    text = fit_for_xml("\n".join(filter(None, [case.reason.partition("\n")[2], quoted])))
    if not text.strip():
        return None
    # Longer than any row of backticks within, which would end the block.
    longest = max((len(row) for row in re.findall("`+", text)), default=0)
    name = one_line(case.title, _LONGEST_NAME)
    return escape(name), case.state, Markup("`" * max(3, longest + 1)), Markup(text)
