"""A report as PDF, and plots as PNG for mail, set by typst.

Whatever comes from a run goes to typst as data, never as its language: nothing in it can do more
than be shown.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import resources
from typing import Any, Literal

from rankwise import __version__
from rankwise.errors import InputError
from rankwise.report.ansi import without_colours
from rankwise.report.explanation import Explanation
from rankwise.report.facts import ReportData, cut
from rankwise.report.figures import written
from rankwise.report.markup import fit
from rankwise.report.outcomes import TONES, cards_of, moment, outcomes_of, said_of, verdict_of
from rankwise.report.pdf_matrix import matrix_content
from rankwise.report.pdf_texts import wrapped
from rankwise.report.pdf_timeline import timeline_content
from rankwise.report.plots.numerals import number
from rankwise.report.plots.svg import standalone
from rankwise.report.words import counted, duration, label, listed, short_path

_MOST_CASES = 400
_MOST_MEASURES = 200
_MOST_FAILURES = 12
_MOST_LINES = 15
_PIXELS_PER_INCH = 144.0
_ONE_FIGURE = """
#set page(width: 600pt, height: auto, margin: 12pt)
#image(bytes(sys.inputs.svg), format: "svg", width: 100%)
"""


def pdf_report(data: ReportData) -> bytes:
    """Write a report of a run as PDF; raises InputError if typst is not installed."""
    template = resources.files("rankwise.report") / "templates" / "report.typ"
    text = template.read_text(encoding="utf-8")
    return _set(text, {"data": json.dumps(_content(data))}, "pdf")


def png_of(svg: str) -> bytes:
    """Draw a plot as PNG; raises InputError if typst is not installed."""
    return _set(_ONE_FIGURE, {"svg": standalone(svg)}, "png")


def _set(text: str, inputs: dict[str, str], kind: Literal["pdf", "png"]) -> bytes:
    try:
        import typst
    except ImportError as error:
        raise InputError(
            "typst is not installed, which makes PDF and PNG: pip install 'rankwise[report]'"
        ) from error
    made = typst.compile(
        text.encode(),
        format=kind,
        sys_inputs=inputs,
        ppi=_PIXELS_PER_INCH if kind == "png" else None,
    )
    assert isinstance(made, bytes)
    return made


def _content(data: ReportData) -> dict[str, Any]:
    """Give all that the template shows, as texts."""
    run = data.run
    return {
        "id": fit(run.id),
        "verdict": verdict_of(data),
        "tone": TONES[run.state],
        "about": fit(
            " · ".join(one for one in (run.kind, run.experiment, short_path(run.source)) if one)
        ),
        "said": fit(said_of(data)),
        "cards": [[name, fit(value)] for name, value in cards_of(data)],
        "outcomes": [[name, count, tone] for name, count, tone in outcomes_of(data)],
        "matrix": matrix_content(data.matrix) if data.matrix else None,
        "timeline": (
            timeline_content(data.timeline) if data.timeline and data.timeline.bars else None
        ),
        "figures": [
            {"title": fit(cut(one.title, 160)), "note": one.note, "svg": standalone(one.svg)}
            for one in data.figures
        ],
        "failures": [_failure(one, data) for one in data.failures[:_MOST_FAILURES]],
        "more_failures": _more_failures(data),
        "measures": _measures(data),
        "cases": _cases(data),
        "conditions": [[fit(cut(name, 60)), fit(value)] for name, value in data.conditions],
        "notices": [fit(cut(one)) for one in run.notices],
        "made": f"rankwise {__version__}, {moment(data.made)}",
    }


def _failure(one: Explanation, data: ReportData) -> dict[str, Any]:
    repeats = (case.repeat for case in data.cases if case.key == one.task)
    return {
        "task": wrapped(cut(one.task, 160)),
        "state": str(one.state),
        "tone": TONES[one.state],
        "reason": wrapped(cut(one.reason)),
        "quotes": [
            {
                "who": label(quote.process),
                "lines": "\n".join(
                    fit(without_colours(line))[:160] for line in quote.lines[-_MOST_LINES:]
                ),
            }
            for quote in one.quotes
        ],
        "repeat": fit(cut(next(repeats, ""), 300)),
    }


def _more_failures(data: ReportData) -> list[str]:
    found = [f"{one.task}: {one.reason or one.state}" for one in data.failures[_MOST_FAILURES:]] + [
        f"{counted(len(one.tasks), 'case')} {one.state}: {one.reason or 'no reason is known'} "
        f"({listed(one.tasks, most=3)})"
        for one in data.others
    ]
    return [wrapped(cut(one, 300)) for one in found[:30]]


def _measures(data: ReportData) -> dict[str, Any]:
    shown = data.measures[:_MOST_MEASURES]
    rows = []
    for one in shown:
        where = ", ".join(
            f"{name} {written(name, value)}" for name, value in one.parameters.items()
        )
        between = f"{number(one.now.low, 3)} – {number(one.now.high, 3)}"  # noqa: RUF001
        change = "" if one.change is None else f"{one.change:+.1%}"
        if one.verdict in ("regressed", "improved"):
            change = f"{change} {one.verdict}"
        cells = [one.metric, where, number(one.now.middle), between, one.unit, str(one.now.count)]
        rows.append([fit(cut(cell, 80)) for cell in [*cells, change]])
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
