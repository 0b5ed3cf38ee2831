"""The tables of the HTML report; a script makes them sort and filter, and they do without it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from rankwise.report.facts import Case, ReportData, cut
from rankwise.report.html_usage import used_cells
from rankwise.report.markup import Markup, escaped, joined, tag
from rankwise.report.measures import Measure, as_number
from rankwise.report.outcomes import TONES, moment
from rankwise.report.plots.numerals import number
from rankwise.report.usage import Used
from rankwise.report.words import duration

MOST_MEASURES = 2000
_MOST_CASES = 2000
_MOST_COLUMNS = 6
_MOST_DRAWN_BYTES = 100_000
_LONGEST = 120
_PLAIN = re.compile(r"-?[\d,]+(\.\d+)?")
_NUMBERS = {"took", "tries", "median", "low", "high", "values", "change"}


def cases_table(data: ReportData) -> Markup | None:
    """Make the table of all cases; of very many, those that are not green come first."""
    cases = list(data.cases)
    if len(cases) > _MOST_CASES:
        cases = sorted(cases, key=lambda case: case.state.is_green)[:_MOST_CASES]
    # The names of a matrix's cases say it all.
    names = [] if data.matrix else _varied([case.parameters for case in cases])
    has_reasons = any(case.reason for case in cases)
    has_retries = any(case.attempts > 1 for case in cases)
    used = _used(data.used, cases)
    heads = ["case", "outcome", *names, "took", *(["CPU on cores", "memory"] if used else [])]
    heads += ["tries"] * has_retries
    heads += [*(["why"] * has_reasons), "to repeat it"]
    empty = [tag("td")] * 2 if used else []
    rows = [
        _case(case, names, used.get(case.key, empty), has_retries, has_reasons) for case in cases
    ]
    return _table(heads, rows, len(data.cases))


def _used(known: Mapping[str, Used], cases: Sequence[Case]) -> dict[str, list[Markup]]:
    """Draw what cases have used, as far as there is room for it; green ones come last."""
    found: dict[str, list[Markup]] = {}
    room = _MOST_DRAWN_BYTES
    for case in sorted(cases, key=lambda case: case.state.is_green):
        if one := known.get(case.key):
            cells = used_cells(
                one.usage,
                cpu_seconds=one.cpu_seconds,
                peak_memory=one.peak_memory,
                has_gpus=False,
            )
            found[case.key] = list(cells)
            room -= sum(map(len, found[case.key]))
            if room < 0:
                break
    return found


def _case(
    case: Case,
    names: Sequence[str],
    used: Sequence[Markup],
    has_retries: bool,
    has_reasons: bool,
) -> Markup:
    cells = [
        tag("td", cut(case.key, _LONGEST), class_="k"),
        tag("td", str(case.state), class_=f"o {TONES[case.state]}"),
        *(_parameter(case.parameters.get(name, "")) for name in names),
        _seconds(case.seconds),
        *used,
    ]
    if has_retries:
        cells.append(_numeric(float(case.attempts), str(case.attempts)))
    if has_reasons:
        cells.append(tag("td", case.reason, class_="w" if case.reason else None))
    cells.append(tag("td", tag("code", cut(case.repeat, 300)), class_="c"))
    return tag("tr", *cells, data_s=str(case.state))


def tests_table(data: ReportData) -> Markup | None:
    """Make the table of single tests, where tasks have told of some."""
    if not data.tests:
        return None
    tests = sorted(data.tests, key=lambda test: test.state.is_green)[:_MOST_CASES]
    rows = [
        tag(
            "tr",
            tag("td", cut(test.name, _LONGEST), class_="k"),
            tag("td", str(test.state), class_=f"o {TONES[test.state]}"),
            tag("td", cut(test.task, _LONGEST)),
            _seconds(test.seconds),
            data_s=str(test.state),
        )
        for test in tests
    ]
    return _table(["test", "outcome", "task", "took"], rows, len(data.tests))


def measures_table(data: ReportData, room: int) -> Markup | None:
    """Make the table of what was measured, as much as there is room for, in bytes."""
    if not data.measures:
        return None
    measures = data.measures[:MOST_MEASURES]
    names = _varied([one.parameters for one in measures])
    heads = ["metric", *names, "median", "low", "high", "unit", "values"]
    if data.before:
        heads += [f"in {data.before}", "change"]
    is_judged = any(one.verdict for one in measures)
    heads += ["verdict"] * is_judged
    rows = []
    for one in measures:
        rows.append(_measure(one, names, bool(data.before), is_judged))
        room -= len(rows[-1].encode())
        if room < 0:
            break
    return _table(heads, rows, len(data.measures))


def _measure(one: Measure, names: Sequence[str], is_compared: bool, is_judged: bool) -> Markup:
    now = one.now
    cells = [
        tag("td", cut(one.metric, _LONGEST), class_="p"),
        *(_parameter(one.parameters.get(name, "")) for name in names),
        *(_numeric(value, number(value)) for value in (now.middle, now.low, now.high)),
        tag("td", cut(one.unit, 30), class_="p"),
        _numeric(float(now.count), str(now.count)),
    ]
    if is_compared:
        before = one.before.middle if one.before else None
        cells.append(_numeric(before, "" if before is None else number(before)))
        cells.append(_change(one))
    if is_judged:
        tone = {"regressed": "o bad", "improved": "o good"}.get(one.verdict)
        # A verdict that decides nothing is worth its reason.
        why = one.why if one.verdict == "inconclusive" else None
        cells.append(tag("td", one.verdict, class_=tone, title=why))
    return tag("tr", *cells, data_s=one.verdict or None)


def _change(one: Measure) -> Markup:
    change = one.change
    if change is None:
        return tag("td", class_="n")
    tone = {"improved": " up", "regressed": " down"}.get(one.verdict, "")
    return _numeric(change, f"{change:+.1%}", tone)


def conditions_list(data: ReportData) -> Markup | None:
    """List under which conditions the run was, and what must be known about it."""
    run = data.run
    facts = [
        ("document", run.source),
        ("created", moment(run.created)),
        ("ended", moment(run.ended) if run.ended is not None else ""),
        *((f"{name}", value) for name, value in run.tags.items()),
        *data.conditions,
        *(("note", cut(notice)) for notice in run.notices),
    ]
    pairs = [(tag("dt", cut(name, 60)), tag("dd", cut(value))) for name, value in facts if value]
    listed = tag("dl", *(part for pair in pairs for part in pair), class_="facts")
    return tag("div", listed, class_="card")


def _varied(rows: Iterable[Mapping[str, str]]) -> list[str]:
    """Name the parameters that make columns: those that differ, the first few of them."""
    values: dict[str, set[str]] = {}
    for row in rows:
        for name, value in row.items():
            values.setdefault(name, set()).add(value)
    return [name for name, seen in values.items() if len(seen) > 1][:_MOST_COLUMNS]


def _table(heads: Sequence[str], rows: Sequence[Markup], total: int) -> Markup:
    head = tag("thead", tag("tr", *(_head(name) for name in heads)))
    # A line for each row: people look at differences of such files, too.
    body = tag("tbody", Markup("\n" + "\n".join(rows)))
    table = tag("div", tag("table", head, body, data_tools=True), class_="table", tabindex="0")
    if len(rows) == total:
        return table
    more = f"{len(rows):,} of {total:,} rows are here; rankwise report --csv has them all."
    return joined([tag("p", more, class_="soft"), table])


def _head(name: str) -> Markup:
    return tag("th", cut(name, 60), scope="col", class_="n" if name in _NUMBERS else None)


def _parameter(value: str) -> Markup:
    known = as_number(value)
    shown = escaped(cut(value, 60))
    return tag("td", shown, class_="p") if known is None else _numeric(known, shown)


def _seconds(seconds: float | None) -> Markup:
    return _numeric(seconds, "" if seconds is None else duration(seconds))


def _numeric(value: float | None, shown: str, tone: str = "") -> Markup:
    """Make a cell that sorts by its value."""
    if value is None:
        return tag("td", shown, class_=f"n{tone}")
    # Thousands of cells: what can be read from the words is not said twice.
    is_plain = _PLAIN.fullmatch(shown) is not None
    return tag("td", shown, class_=f"n{tone}", data_v=None if is_plain else f"{value:.6g}")
