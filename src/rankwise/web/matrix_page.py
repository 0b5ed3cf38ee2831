"""A matrix: runtimes down, machines across, and what became of each cell."""

from __future__ import annotations

from rankwise.report.facts import cut
from rankwise.report.markup import Markup, joined, tag
from rankwise.report.matrix import Cell, Matrix, matrix_of
from rankwise.report.matrix_looks import VERDICT_TONES
from rankwise.report.words import counted, duration
from rankwise.store import Store
from rankwise.web.ask import Ask, run_address
from rankwise.web.page import Page, live
from rankwise.web.run_frame import framed

_MOST_TESTS = 30
_INTERVAL_SECONDS = 5.0


def matrix_page(store: Store, ask: Ask) -> Page:
    """Show the matrix of a run; of one that is none, say so."""
    run = store.run(ask.run)
    matrix = matrix_of(store, run)
    shown = _table(run.id, matrix) if matrix is not None else tag("p", "This run is no matrix.")
    return framed(
        store,
        ask,
        run,
        "Matrix",
        tag("h2", "Runtimes and machines"),
        live("matrix", shown),
        interval=_INTERVAL_SECONDS,
    )


def _table(run: str, matrix: Matrix) -> Markup:
    head = [tag("td", ""), *(tag("th", cut(name, 60), scope="col") for name in matrix.machines)]
    rows = (
        tag(
            "tr",
            tag("th", cut(runtime, 60), scope="row"),
            *(_cell(run, matrix.cell(runtime, machine)) for machine in matrix.machines),
        )
        for runtime in matrix.runtimes
    )
    caption = "What became of each runtime on each machine"
    table = tag(
        "table", tag("caption", caption), tag("thead", tag("tr", *head)), tag("tbody", *rows)
    )
    counts = ", ".join(f"{count} {verdict}" for verdict, count in matrix.counts.items())
    words = tag("p", f"{counted(len(matrix.cells), 'cell')}: {counts}")
    box = tag("div", table, class_="table matrix", tabindex="0", role="region", aria_label=caption)
    return joined([words, box])


def _cell(run: str, cell: Cell | None) -> Markup:
    if cell is None:
        return tag("td", "not asked for", class_="soft")
    tone = VERDICT_TONES[cell.verdict]
    counts = ", ".join(f"{count} {state}" for state, count in cell.counts.items())
    tests = [
        tag(
            "li",
            tag("a", cut(test.name, 80), href=run_address(run, "task", task=test.task)),
            f" {test.state}",
        )
        for test in cell.tests[:_MOST_TESTS]
    ]
    content = [
        tag("b", str(cell.verdict), class_=f"o {tone}"),
        tag("p", f"{counts} · {duration(cell.seconds)}", class_="soft"),
        *([tag("p", cut(cell.reason, 160))] if cell.reason else []),
        tag(
            "details",
            tag("summary", counted(len(cell.tests), "task")),
            tag("div", tag("ul", *tests)),
            class_="inline",
            id=f"cell-{cell.runtime}-{cell.machine}",
        ),
    ]
    return tag("td", *content, class_=f"cell {tone}")
