"""What people are told of a run: the same for mail and chats."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rankwise.errors import InputError
from rankwise.report.ansi import without_colours
from rankwise.report.facts import ReportData, cut
from rankwise.report.markup import Markup, fit, joined, tag
from rankwise.report.outcomes import TONES, cards_of, said_of, verdict_of
from rankwise.report.pdf import pdf_report, png_of
from rankwise.report.words import listed

_MOST_PLOTS = 4
_MOST_FAILURES = 5
_MOST_LINES = 5
_INKS = {
    "good": "#1a7f4b",
    "bad": "#c0362c",
    "warn": "#a15c00",
    "busy": "#00708f",
    "idle": "#6b7683",
}
_FONT = "font-family:Helvetica,Arial,sans-serif;font-size:15px;line-height:1.5;color:#1b2027"
_MONO = "background:#f2f4f6;padding:10px;font-size:12px;white-space:pre-wrap"


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One plot."""

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
    """The same as HTML; `cid:plotN` stands for picture N."""
    pictures: tuple[Picture, ...] = ()
    pdf: bytes | None = None
    lacks: str = ""
    """Why there are no pictures and no PDF."""


def notice_of(data: ReportData, *, with_files: bool) -> Notice:
    """Make what people are told of a run; with plots and the PDF where typst is installed."""
    pictures: tuple[Picture, ...] = ()
    pdf, lacks = None, ""
    if with_files:
        try:
            pdf = pdf_report(data)
            pictures = tuple(
                Picture(title=fit(one.title), png=png_of(one.svg))
                for one in data.figures[:_MOST_PLOTS]
            )
        except InputError as error:
            lacks = str(error)
    return Notice(
        run=data.run.id,
        subject=_subject(data),
        is_good=data.run.state.is_green,
        text=_text(data),
        page=_page(data, pictures),
        pictures=pictures,
        pdf=pdf,
        lacks=lacks,
    )


def _subject(data: ReportData) -> str:
    """Say it in one line: what is in a header must not begin another one."""
    words = f"{data.run.id} {verdict_of(data)}: {said_of(data)}"
    return cut(re.sub(r"\s+", " ", fit(words)).strip(), 150)


def _text(data: ReportData) -> str:
    lines = [f"{data.run.id} {verdict_of(data)}", said_of(data), ""]
    lines += [f"{name}: {value}" for name, value in cards_of(data)]
    for one in data.failures[:_MOST_FAILURES]:
        lines += ["", f"{one.state}: {cut(one.task, 120)}: {cut(one.reason)}"]
        lines += [f"    {line}" for line in _last(one.quotes[0].lines if one.quotes else ())]
    if more := _more(data):
        lines += ["", more]
    lines += ["", f"All of it:  rankwise report {data.run.id}"]
    return fit("\n".join(lines)) + "\n"


def _last(lines: tuple[str, ...]) -> list[str]:
    return [fit(without_colours(line)) for line in lines[-_MOST_LINES:]]


def _more(data: ReportData) -> str:
    names = [one.task for one in data.failures[_MOST_FAILURES:]]
    names += [name for group in data.others for name in group.tasks]
    return cut(f"Also not green: {listed(names, most=8)}") if names else ""


def _page(data: ReportData, pictures: tuple[Picture, ...]) -> Markup:
    """Write it for mail programs, which know no more than simple HTML."""
    ink = _INKS[TONES[data.run.state]]
    rows = (
        tag("tr", tag("td", name, style="color:#5a6572;padding-right:16px"), tag("td", value))
        for name, value in cards_of(data)
    )
    parts = [
        tag("h2", f"{data.run.id} ", tag("span", verdict_of(data), style=f"color:{ink}")),
        tag("p", said_of(data)),
        tag("table", *rows),
    ]
    for one in data.failures[:_MOST_FAILURES]:
        parts.append(
            tag("p", tag("b", f"{one.state} "), f"{cut(one.task, 120)}: {cut(one.reason)}")
        )
        if one.quotes:
            parts.append(tag("pre", "\n".join(_last(one.quotes[0].lines)), style=_MONO))
    if more := _more(data):
        parts.append(tag("p", more))
    for number, picture in enumerate(pictures):
        parts.append(tag("h3", picture.title))
        parts.append(
            Markup(f'<img src="cid:plot{number}" width="560" alt="{joined([picture.title])}">')
        )
    parts.append(tag("p", "All of it:  ", tag("code", f"rankwise report {data.run.id}")))
    return tag("html", tag("body", tag("div", *parts, style=_FONT)))
