"""A report as PDF, and plots as PNG for mail, set by typst.

Whatever comes from a run goes to typst as data, never as its language: nothing in it can do more
than be shown."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from rankwise import __version__
from rankwise.errors import InputError
from rankwise.reports import matrix as matrices
from rankwise.reports.analysis import Block, Picture
from rankwise.reports.environments import EnvironmentChange
from rankwise.reports.failures import FailureExplanation
from rankwise.reports.figures import written
from rankwise.reports.lanes import COLOURS, Timeline, lanes_of
from rankwise.reports.matrix import Cell, Contrast, MatrixResult
from rankwise.reports.model import ReportData
from rankwise.reports.palette import INKS, TONES
from rankwise.reports.plots.axes import number_text
from rankwise.reports.plots.timeline import draw, tones_of
from rankwise.reports.rendering import template_text
from rankwise.reports.timeline import findings, timeline_cards, visible_causes, with_options
from rankwise.safe_text import clean, cut, fit
from rankwise.store import TaskRow
from rankwise.wording import counted, duration, grouped, label, listed, moment, short_path

# It has no width: a line may end there.
_BREAK = "\u200b"
_AFTER = re.compile(r"([-_./:,=@+\\])(?=\w)")
_LONGEST_PIECE = 10
_LONGEST_WORD = 30


def breakable(text: str) -> str:
    """Make a text safe to show where there is little room for it, as in a cell of a table."""
    return _divided(_AFTER.sub(rf"\1{_BREAK}", fit(text)), _LONGEST_PIECE)


def wrapped(text: str) -> str:
    """Make a text safe to show; only what would be too long for any line is divided."""
    return _divided(fit(text), _LONGEST_WORD)


def _divided(text: str, most: int) -> str:
    # Where a line may end already, nothing need be added.
    solid = rf"[^\s{_BREAK}]"
    return re.sub(rf"{solid}{{{most}}}(?={solid}{{3}})", rf"\g<0>{_BREAK}", text)


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


def matrix_content(matrix: MatrixResult) -> dict[str, Any]:
    """Return all that the template shows of a matrix."""
    is_small = len(matrix.machines) > _ROOMY_MACHINES
    machines = _first(matrix, matrix.machines, _MOST_MACHINES)
    runtimes = _first(matrix, matrix.runtimes, _MOST_CELLS // max(1, len(machines)))
    differences = _differences(matrix)
    why = [[breakable(cut(name, 200)), breakable(said)] for name, said in matrices.reasons(matrix)]
    return {
        "said": f"{counted(len(matrix.runtimes), 'runtime')} down, "
        f"{counted(len(matrix.machines), 'machine')} across.",
        "counts": [
            [f"{count:,} {verdict}", TONES[verdict]]
            for verdict, count in matrices.counts_in_order(matrix)
        ],
        "is_small": is_small,
        "legend": f"In short: {matrices.legend(matrix)}." if is_small else "",
        "tables": [_table(matrix, runtimes, part, is_small=is_small) for part in _parts(machines)],
        "more_cells": matrix.left_out(runtimes, machines),
        "differences": differences[:_MOST_DIFFERENCES],
        "more_differences": len(differences[_MOST_DIFFERENCES:]),
        "reasons": why[:_MOST_REASONS],
        "more_reasons": len(why[_MOST_REASONS:]),
    }


def _first(matrix: MatrixResult, names: Sequence[str], most: int) -> list[str]:
    """Choose what there is room for: rows and columns where something is red before all others."""
    cells = [cell for cell in matrix.in_order if cell.verdict.is_red]
    red = {name for cell in cells for name in (cell.runtime, cell.machine)}
    chosen = set(sorted(names, key=lambda name: name not in red)[:most])
    return [name for name in names if name in chosen]


def _parts(machines: Sequence[str]) -> list[Sequence[str]]:
    """Divide what is too wide for a page into parts that are about as wide as each other."""
    count = max(1, math.ceil(len(machines) / _MOST_ACROSS))
    width = max(1, math.ceil(len(machines) / count))
    return [machines[start : start + width] for start in range(0, len(machines), width)]


def _table(
    matrix: MatrixResult, runtimes: Sequence[str], machines: Sequence[str], *, is_small: bool
) -> dict[str, Any]:
    def head(name: str, about: str) -> list[str]:
        if is_small:
            return [breakable(cut(name, _LONGEST_SHORT_NAME)), ""]
        return [breakable(cut(name, _LONGEST_NAME)), breakable(cut(about, _LONGEST_NAME))]

    has_marks = len(matrix.cells) <= _MOST_MARKED

    def shown(cell: Cell | None) -> dict[str, Any] | None:
        if cell is None:
            return None
        if is_small:
            word, _, count = matrices.short_words(cell).partition(" ")
            return {"tone": TONES[cell.verdict], "word": word, "count": count}
        marks = list(matrices.marks_of(cell)) if has_marks else []
        lines = [breakable(line) for line in _lines(cell)]
        about = {"tone": TONES[cell.verdict], "word": str(cell.verdict)}
        return {**about, "marks": marks, "lines": lines}

    return {
        "heads": [head(name, matrices.about_machine(matrix, name)) for name in machines],
        "rows": [
            {
                "head": head(runtime, matrices.about_runtime(matrix, runtime)),
                "cells": [shown(matrix.cell(runtime, machine)) for machine in machines],
            }
            for runtime in runtimes
        ],
    }


def _lines(cell: Cell) -> Iterator[str]:
    """Say how many came to what, how long it took, and why: paper has nothing to point at."""
    if cell.verdict in matrices.TOLD_BY_REASON:
        yield cut(matrices.gist(cell), _LONGEST_REASON)
        return
    took = duration(cell.seconds) if cell.seconds else ""
    yield " · ".join(filter(None, [matrices.gist(cell), took]))
    if cell.verdict.is_red:
        yield cut(cell.reason.partition("\n")[0], _LONGEST_REASON)


def _differences(matrix: MatrixResult) -> list[dict[str, Any]]:
    """Put together the cells that differ by the same from where their tests pass."""
    found = grouped(
        ((matrices.contrast_words(one, cell), one.changes), (cell, one))
        for cell in matrix.in_order
        for one in cell.contrasts
    )
    # Differences of which nothing is known say least, and come last.
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
        note = "What differs is not known: the environment of one cell is unknown."
    elif not one.changes:
        note = "Nothing differs that is known: no package, no version, nothing of the machine."
    elif left := len(one.changes) - len(shown):
        note = f"{counted(left, 'more difference')}; the HTML report has them."
    return {
        "cells": breakable(cut(matrices.cells_named(cells), 200)),
        "said": breakable(
            f"{tests} {'passes' if len(one.tests) == 1 else 'pass'} {cut(where, 160)}."
        ),
        "tone": TONES[cells[0].verdict],
        "changes": [_change(change) for change in shown],
        "note": note,
    }


def _change(one: EnvironmentChange) -> list[str | bool]:
    words = (one.name, one.here or "not there", one.there or "not there")
    return [fit(one.kind), *(breakable(cut(text, _LONGEST_NAME)) for text in words), one.is_named]


# Paper cannot be enlarged as a page on a screen can.
_MOST_SHAPES = 400
_MOST_ADVICE = 6
_LONGEST_BAR_NAME = 80


def timeline_content(timeline: Timeline) -> dict[str, Any]:
    """Return all that the template shows of a timeline."""
    found = findings(timeline)
    bound = found.lower_bound if timeline.is_over else 0.0
    drawn = draw(timeline, bound=bound, gaps=found.gaps, most=_MOST_SHAPES)
    causes = visible_causes(found)
    return {
        "svg": standalone(drawn),
        "cards": timeline_cards(timeline, found),
        "states": [[f"{count:,} {state}", tone] for state, tone, count in tones_of(timeline.bars)],
        "waiting": [[f"waiting: {one.cause}", COLOURS[one.cause]] for one in causes],
        # Every second part is set as code.
        "advice": [
            [fit(part) for part in with_options(one)] for one in found.advice[:_MOST_ADVICE]
        ],
        "lost_title": f"Where {timeline.lane_noun} time is lost",
        "lost": [[duration(one.seconds), one.words, COLOURS[one.cause]] for one in causes],
        "longest_title": f"The longest {timeline.noun}s",
        "longest": [
            [
                duration(bar.seconds),
                fit(f"{cut(bar.name, _LONGEST_BAR_NAME)}, on {lanes_of(bar, timeline)}"),
            ]
            for bar in found.longest
        ],
    }


_MOST_CASES = 400
_MOST_MEASURES = 200
_MOST_FAILURES = 12
_MOST_LINES = 15
_LONGEST_LINE = 160
_PIXELS_PER_INCH = 144.0
_ONE_FIGURE = """
#set page(width: 600pt, height: auto, margin: 12pt)
#image(bytes(sys.inputs.svg), format: "svg", width: 100%)
"""


def pdf_report(data: ReportData) -> bytes:
    """Write a report of a run as PDF; raises InputError if typst is not installed."""
    return _set(template_text("report.typ"), {"data": json.dumps(_content(data))}, "pdf")


def standalone(svg: str) -> str:
    """Return a drawing with its own colours and size, to be shown outside of a page."""
    head, separator, rest = svg.partition(">")
    tones = "".join(f".{tone}{{fill:{ink}}}" for tone, ink in INKS.items() if tone != "idle")
    return f"{head}{separator}<style>{template_text('plots.css')}{tones}</style>{rest}"


def png_of(svg: str) -> bytes:
    """Draw a plot as PNG; raises InputError if typst is not installed."""
    return _set(_ONE_FIGURE, {"svg": standalone(svg)}, "png")


def _set(text: str, inputs: dict[str, str], kind: Literal["pdf", "png"]) -> bytes:
    try:
        # Late: it is an extra, and a large library to load.
        import typst
    except ImportError as error:
        why = "typst is not installed, which makes PDF and PNG: pip install 'rankwise[report]'"
        raise InputError(why) from error
    made = typst.compile(
        text.encode(),
        format=kind,
        sys_inputs=inputs,
        ppi=_PIXELS_PER_INCH if kind == "png" else None,
    )
    # Several pages would be a list of images: PDF is one file, and a plot is one page.
    assert isinstance(made, bytes)
    return made


def _content(data: ReportData) -> dict[str, Any]:
    """Return all that the template shows, as texts."""
    run, timeline = data.run, data.timeline
    about = (run.kind, run.experiment, short_path(run.source))
    return {
        "id": fit(run.id),
        "verdict": data.verdict,
        "inks": INKS,
        "tone": TONES[run.state],
        "about": fit(" · ".join(filter(None, about))),
        "said": fit(data.said),
        "cards": [[name, fit(value)] for name, value in data.cards],
        "outcomes": data.outcomes,
        "matrix": matrix_content(data.matrix) if data.matrix else None,
        "analyses": [_analysis(*one) for one in data.analyses],
        "timeline": timeline_content(timeline) if timeline and timeline.bars else None,
        "figures": [
            {"title": fit(cut(one.title, 160)), "note": one.note, "svg": standalone(one.svg)}
            for one in data.figures
        ],
        "failures": [_failure(one, data) for one in data.failures[:_MOST_FAILURES]],
        "more_failures": _more_failures(data),
        "measures": _measures(data),
        "cases": _cases(data),
        "repeat": wrapped(data.repeat),
        "conditions": [
            [fit(cut(name, 60)), wrapped(value)] for name, value in data.conditions_in_words
        ],
        "notices": [fit(cut(one)) for one in run.notices],
        "made": f"rankwise {__version__}, {moment(data.now)}",
    }


def _analysis(task: TaskRow, blocks: Sequence[Block]) -> dict[str, Any]:
    said = "" if task.state.is_green else f"{task.key} {task.state}: {cut(task.reason)}"
    return {"said": wrapped(said), "blocks": list(map(_block, blocks))}


def _block(block: Block) -> Block:
    """Return a part of a text for the template, which one bad picture would keep from being set."""
    if block["kind"] != "picture":
        return block
    picture: Picture = block["picture"]
    try:
        _set(_ONE_FIGURE, {"svg": picture.svg}, "pdf")
    except RuntimeError as error:
        why = f"{picture.name} cannot be shown: {cut(str(error))}"
        return {"kind": "text", "spans": [("", wrapped(why))]}
    return {"kind": "picture", "svg": picture.svg}


def _failure(one: FailureExplanation, data: ReportData) -> dict[str, Any]:
    repeats = (case.repeat for case in data.cases if case.key == one.task)
    quotes = []
    for quote in one.quotes:
        lines = (clean(line) for line in quote.lines[-_MOST_LINES:])
        # Longer lines than this do not fit on a page.
        text = "\n".join(fit(line)[:_LONGEST_LINE] for line in lines)
        quotes.append({"who": label(quote.process), "lines": text})
    return {
        "task": wrapped(cut(one.task, 160)),
        "state": str(one.state),
        "tone": TONES[one.state],
        "reason": wrapped(cut(one.reason)),
        "quotes": quotes,
        "repeat": fit(cut(next(repeats, ""), 300)),
    }


def _more_failures(data: ReportData) -> list[str]:
    found = [f"{one.task}: {one.reason or one.state}" for one in data.failures[_MOST_FAILURES:]]
    found += [
        f"{counted(len(one.tasks), 'case')} {one.state}: {one.reason or 'no reason is known'} "
        f"({listed(one.tasks, most=3)})"
        for one in data.others
    ]
    return [wrapped(cut(one, 300)) for one in found[:30]]


def _measures(data: ReportData) -> dict[str, Any]:
    shown = data.measures[:_MOST_MEASURES]
    rows = []
    for one in shown:
        now = one.now
        where = ", ".join(f"{name} {written(name, text)}" for name, text in one.parameters.items())
        between = f"{number_text(now.low, 3)} – {number_text(now.high, 3)}"  # noqa: RUF001
        change = "" if one.change is None else f"{one.change:+.1%}"
        if one.verdict in ("regressed", "improved"):
            change = f"{change} {one.verdict}"
        cells = (one.metric, where, number_text(now.middle), between, one.unit, str(now.count))
        rows.append([fit(cut(cell, 80)) for cell in (*cells, change)])
    return {"rows": rows, "total": len(data.measures), "before": data.before}


def _cases(data: ReportData) -> dict[str, Any]:
    ordered = sorted(data.cases, key=lambda case: case.state.is_green)[:_MOST_CASES]
    rows: list[Sequence[str]] = [
        [
            wrapped(cut(case.key, 80)),
            str(case.state),
            TONES[case.state],
            "" if case.seconds is None else duration(case.seconds),
            wrapped(cut(case.reason, 120)),
        ]
        for case in ordered
    ]
    return {"rows": rows, "total": len(data.cases)}
