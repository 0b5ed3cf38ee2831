"""A summary of a run in Markdown, for pull requests and the pages of a CI."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from rankwise.report.cases import Case, Repeated
from rankwise.report.junit import fit
from rankwise.report.markdown_matrix import matrix_lines
from rankwise.report.matrix import Matrix
from rankwise.report.matrix_words import TOLD_BY_REASON
from rankwise.report.words import counted, duration
from rankwise.store import RunRow, State

_MOST_ROWS = 200
_MOST_DETAILS = 20
_LONGEST_DETAILS = 4000
_LONGEST_CELL = 300
# What would make something else of a text than text.
_SPECIAL = re.compile(r"([\\`*_\[\]<>|~#@&!])")


def markdown_report(
    run: RunRow,
    cases: Sequence[Case],
    repeated: Sequence[Repeated] = (),
    matrix: Matrix | None = None,
) -> str:
    """Write what became of a run: the verdict, a table, and what the failures have to say."""
    return "\n".join(_lines(run, cases, repeated, matrix)) + "\n"


def _lines(
    run: RunRow, cases: Sequence[Case], repeated: Sequence[Repeated], matrix: Matrix | None
) -> Iterator[str]:
    took = ""
    if run.started is not None and run.ended is not None:
        took = f" after {duration(run.ended - run.started)}"
    yield f"## {safe(run.id)} {run.state}{took}"
    yield ""
    counts = Counter(case.state for case in cases)
    parts = [f"{counts[state]} {state}" for state in State if counts[state]]
    yield f"{counted(len(cases), 'test')}: {', '.join(parts) or 'none'}"
    yield ""
    yield from _flaky(repeated)
    if matrix is not None:
        yield from matrix_lines(matrix, safe)
        # The matrix has the green ones already, and says why cells did not run.
        told = {
            f"{row}.{column}"
            for (row, column), one in matrix.cells.items()
            if one.verdict in TOLD_BY_REASON
        }
        cases = [case for case in cases if not case.state.is_green and case.cell not in told]
    if cases or matrix is None:
        yield from _table(cases)
    red = [case for case in cases if case.state.is_over and not case.state.is_green]
    for case in red[:_MOST_DETAILS]:
        yield from _details(case)
    if len(red) > _MOST_DETAILS:
        yield f"… and {len(red) - _MOST_DETAILS} more: `rankwise explain {run.id}`"
        yield ""


def _flaky(repeated: Sequence[Repeated]) -> Iterator[str]:
    if not repeated:
        return
    flaky = [one for one in repeated if one.is_flaky]
    for one in flaky:
        yield f"- **flaky**: {safe(one.name)} passed {one.passed} of {one.times} times"
    if not flaky:
        yield f"No test is flaky, each run {repeated[0].times} times."
    yield ""


def _table(cases: Sequence[Case]) -> Iterator[str]:
    # What is wrong comes first, and is all there.
    order = sorted(cases, key=lambda case: case.state.is_green)
    yield "| test | result | time | |"
    yield "| --- | --- | ---: | --- |"
    for case in order[:_MOST_ROWS]:
        name = case.name if case.name == case.task else f"{case.task}: {case.name}"
        state = str(case.state) if case.state.is_green else f"**{case.state}**"
        took = duration(case.seconds) if case.seconds else ""
        yield f"| {safe(name)} | {state} | {took} | {safe(case.headline)} |"
    if len(order) > _MOST_ROWS:
        yield f"| … and {len(order) - _MOST_ROWS} more | | | |"
    yield ""


def _details(case: Case) -> Iterator[str]:
    quoted = case.details[-_LONGEST_DETAILS:]
    text = fit("\n".join(filter(None, [case.reason.partition("\n")[2], quoted])))
    if not text.strip():
        return
    # Longer than any row of them within.
    longest = max((len(row) for row in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    name = case.name if case.name == case.task else f"{case.task}: {case.name}"
    yield from (f"<details><summary>{_in_html(name)} {case.state}</summary>", "")
    yield from (f"{fence}text", text, fence, "", "</details>", "")


def safe(text: str) -> str:
    """Make one line of plain text that Markdown takes as it is."""
    line = " ".join(fit(text[:_LONGEST_CELL]).split())
    return _SPECIAL.sub(r"\\\1", line)


def _in_html(text: str) -> str:
    line = " ".join(fit(text[:_LONGEST_CELL]).split())
    return line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
