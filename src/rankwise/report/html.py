"""A report as one HTML file that needs nothing else: no network, no script, no font."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rankwise import __version__
from rankwise.report.ansi import as_markup
from rankwise.report.explanation import Explanation
from rankwise.report.facts import ReportData, cut
from rankwise.report.html_matrix import matrix_section
from rankwise.report.html_page import html_page
from rankwise.report.html_tables import cases_table, conditions_list, measures_table, tests_table
from rankwise.report.html_timeline import timeline_section
from rankwise.report.markup import Markup, escaped, joined, tag
from rankwise.report.outcomes import TONES, cards_of, moment, outcomes_of, said_of, verdict_of
from rankwise.report.words import counted, fold, label, listed

_OPEN_FAILURES = 3
_MOST_NAMES = 20
_MOST_TESTS = 40
_MOST_GROUPS = 30
_MOST_DOCUMENT = 40_000
# Of a page of a thousand cases, without its style and script: mail programs take that much.
_MOST_BYTES = 950_000
_MOST_OF_MATRIX = 600_000
_MOST_SHAPES = 400


def html_report(data: ReportData) -> str:
    """Write a report of a run."""
    styles = ("matrix.css",) if data.matrix else ()
    return html_page(f"{data.run.id}: {verdict_of(data)}", _sections(data), styles=styles)


def _sections(data: ReportData) -> Iterator[Markup]:
    banner = _banner(data)
    parts: dict[tuple[str, str], Markup | None] = {
        ("matrix", "Matrix"): None,
        ("failed", "What went wrong"): _failures(data),
        ("figures", "At a glance"): _figures(data),
        ("timeline", "Timeline"): _timeline(data),
        ("measured", "Measured"): None,
        ("cases", "Cases"): cases_table(data),
        ("tests", "Single tests"): tests_table(data),
        ("conditions", "Where and how"): conditions_list(data),
        ("document", "The document"): _document(data.document),
    }
    taken = sum(len(part.encode()) for part in (banner, *parts.values()) if part is not None)
    if data.matrix:
        room = min(_MOST_OF_MATRIX, _MOST_BYTES - taken)
        matrix = matrix_section(data.matrix, folder=data.folder, room=room)
        parts["matrix", "Matrix"] = matrix
        taken += len(matrix.encode())
    # What is measured may be more than all the rest.
    parts["measured", "Measured"] = measures_table(data, room=_MOST_BYTES - taken)
    there = {names: content for names, content in parts.items() if content}
    links = (tag("a", title, href=f"#{key}") for key, title in there)
    yield banner
    yield tag("nav", *links, aria_label="Parts of this report")
    for (key, title), content in there.items():
        yield tag("section", tag("h2", title), content, id=key)
    yield tag("footer", f"Made by rankwise {__version__} on {moment(data.made)}.")


def _banner(data: ReportData) -> Markup:
    outcomes = outcomes_of(data)
    bar = tag(
        "div",
        *(
            tag("i", class_=tone, style=f"flex:{count}", title=f"{count} {name}")
            for name, count, tone in outcomes
        ),
        class_="bar",
        aria_hidden="true",
    )
    legend = tag(
        "ul",
        *(tag("li", f"{count:,} {name}", class_=tone) for name, count, tone in outcomes),
        class_="legend",
    )
    about = " · ".join(one for one in (data.run.kind, data.run.experiment, data.run.source) if one)
    content = [
        tag("p", about, class_="eyebrow"),
        tag("h1", f"{data.run.id} ", tag("span", verdict_of(data), class_="verdict")),
        tag("p", said_of(data), class_="said"),
        *([bar, legend] if outcomes else []),
    ]
    cards = (
        tag("div", tag("dt", name), tag("dd", value), class_="card")
        for name, value in cards_of(data)
    )
    tone = TONES[data.run.state]
    return joined(
        [tag("header", *content, class_=f"banner {tone}"), tag("dl", *cards, class_="cards")]
    )


def _failures(data: ReportData) -> Markup | None:
    failures, others = data.failures, data.others
    if not failures and not others:
        return None
    repeats = {case.key: case.repeat for case in data.cases}
    parts = [
        _failure(one, repeats.get(one.task, ""), is_open=number < _OPEN_FAILURES)
        for number, one in enumerate(failures)
    ]
    wrong = [test for test in data.tests if not test.state.is_green and test.message]
    for test in wrong[:_MOST_TESTS]:
        report = "\n".join(as_markup(line) for line in test.message.splitlines())
        content = [tag("pre", Markup(report), tabindex="0")]
        parts.append(_folded(str(test.state), TONES[test.state], cut(test.name, 200), content))
    for group in others[:_MOST_GROUPS]:
        names = listed([cut(name, 120) for name in group.tasks], most=_MOST_NAMES)
        head = f"{counted(len(group.tasks), 'case')}: {cut(group.reason) or group.state}"
        parts.append(_folded(f"{group.state}", TONES[group.state], head, [tag("p", names)]))
    if len(others) > _MOST_GROUPS:
        parts.append(tag("p", f"And {counted(len(others) - _MOST_GROUPS, 'other reason')}."))
    return joined(parts)


def _failure(one: Explanation, repeat: str, *, is_open: bool) -> Markup:
    content: list[Markup] = []
    for quote in one.quotes:
        lines = "\n".join(as_markup(line) for line in quote.lines)
        content.append(tag("p", f"The last lines of {label(quote.process)}:", class_="soft"))
        content.append(tag("pre", Markup(lines), tabindex="0"))
    for fate, names in one.fates:
        content.append(tag("p", f"{fold(names)}: {fate}", class_="soft"))
    for words, command in (("The command:", one.command), ("To repeat it:", repeat)):
        if command:
            content.append(tag("p", words, class_="soft"))
            content.append(tag("div", tag("pre", cut(command, 2000)), class_="run"))
    facts = [("in", one.folder), ("log", str(one.log) if one.log else "")]
    pairs = [(tag("dt", name), tag("dd", tag("code", value))) for name, value in facts if value]
    if pairs:
        content.append(tag("dl", *(part for pair in pairs for part in pair), class_="facts"))
    head = f"{cut(one.task, 200)}: {cut(one.reason)}" if one.reason else cut(one.task, 200)
    return _folded(str(one.state), TONES[one.state], head, content, is_open=is_open)


def _folded(
    word: str, tone: str, head: str, content: Sequence[Markup], *, is_open: bool = False
) -> Markup:
    summary = tag("summary", tag("b", word, class_=f"o {tone}"), head)
    return tag("details", summary, tag("div", *content), open=is_open)


def _figures(data: ReportData) -> Markup | None:
    if not data.figures:
        return None
    cards = (
        tag(
            "figure",
            tag("h3", cut(one.title, 160)),
            tag("div", one.svg, class_="plot", tabindex="0"),
            tag("figcaption", one.note),
            class_="card",
        )
        for one in data.figures
    )
    return tag("div", *cards, class_="figures")


def _timeline(data: ReportData) -> Markup | None:
    if data.timeline is None or not data.timeline.bars:
        return None
    # The cases are a table already.
    return timeline_section(data.timeline, most=_MOST_SHAPES, has_table=False)


def _document(text: str) -> Markup | None:
    if not text.strip():
        return None
    shown = cut(text, _MOST_DOCUMENT)
    return tag(
        "details", tag("summary", "What was asked for"), tag("div", tag("pre", escaped(shown)))
    )
