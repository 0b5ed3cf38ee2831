"""What people are told of a run: the same for mail and chats."""

from __future__ import annotations

import re
from dataclasses import dataclass

from markupsafe import Markup

from rankwise.errors import InputError
from rankwise.reports.data_formats import csv_report
from rankwise.reports.failures import FailureExplanation
from rankwise.reports.model import ReportData
from rankwise.reports.palette import INKS, TONES
from rankwise.reports.pdf import pdf_report, png_of
from rankwise.reports.rendering import render
from rankwise.safe_text import clean, cut, fit
from rankwise.wording import listed

# Mail servers refuse what is too large.
_MOST_PLOTS = 4
_MOST_CSV = 5_000_000
_MOST_FAILURES = 5
_MOST_LINES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class PlotImage:
    """One plot, as a picture."""

    title: str
    png: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """What people are told."""

    run: str
    subject: str
    is_good: bool
    text: str
    page: Markup
    """The same as HTML; `cid:plotN` stands for plot N."""
    plots: tuple[PlotImage, ...] = ()
    pdf: bytes | None = None
    csv: str = ""
    """All that was measured; empty: nothing, or more than fits into a mail."""
    lacks: str = ""
    """Why there are no plots and no PDF."""


def notice_of(data: ReportData, *, with_files: bool) -> Notice:
    """Make what people are told of a run; with plots and the PDF where typst is installed."""
    plots: tuple[PlotImage, ...] = ()
    pdf, lacks = None, ""
    try:
        if with_files:
            pdf = pdf_report(data)
            drawn = ((one.title, png_of(one.svg)) for one in data.figures[:_MOST_PLOTS])
            plots = tuple(PlotImage(title=fit(title), png=png) for title, png in drawn)
    except InputError as error:
        # A notice without pictures is better than none.
        lacks = str(error)
    csv = csv_report(data) if with_files and data.samples else ""
    failures = [(one, _last(one)) for one in data.failures[:_MOST_FAILURES]]
    content = {"data": data, "failures": failures, "more": _more(data), "plots": plots}
    content["ink"] = INKS[TONES[data.run.state]]
    # In one line: what is in a header must not begin another one.
    subject = re.sub(r"\s+", " ", fit(f"{data.run.id} {data.verdict}: {data.said}")).strip()
    return Notice(
        run=data.run.id,
        subject=cut(subject, 150),
        is_good=data.run.state.is_green,
        text=str(render("notify/mail.txt", **content)),
        page=render("notify/mail", **content),
        plots=plots,
        pdf=pdf,
        csv=csv if len(csv) <= _MOST_CSV else "",
        lacks=lacks,
    )


def _last(one: FailureExplanation) -> list[str]:
    lines = one.quotes[0].lines[-_MOST_LINES:] if one.quotes else ()
    return [fit(cut(clean(line))) for line in lines]


def _more(data: ReportData) -> str:
    # Names must do here; the report has the rest.
    names = [one.task for one in data.failures[_MOST_FAILURES:]]
    names += [name for group in data.others for name in group.tasks]
    return cut(f"Also not green: {listed(names, most=8)}") if names else ""
