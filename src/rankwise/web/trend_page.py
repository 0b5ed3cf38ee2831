"""How metrics were in all runs, and where they have changed."""

from __future__ import annotations

from collections.abc import Iterator

from rankwise.errors import InputError
from rankwise.report.facts import cut
from rankwise.report.markup import Markup, joined, tag
from rankwise.report.outcomes import moment
from rankwise.report.plots.lines import Dot, Series, Words, line_plot
from rankwise.report.plots.numerals import number
from rankwise.report.terminal_compare import amount, place, share
from rankwise.report.trend import Trend, Turn, moments_of, trend_of
from rankwise.report.words import counted
from rankwise.store import Store
from rankwise.store.samples import SeriesRow
from rankwise.web.ask import Ask, address, run_address
from rankwise.web.page import Column, Page, notice, pager, search, table

_A_PAGE = 6
_LAST_RUNS = 200
_SHORT = 10
_TONES = {"regressed": "bad", "improved": "good", "changed": "busy"}
_COLUMNS = (
    Column(name="metric"),
    Column(name="of"),
    Column(name="unit"),
    Column(name="series", is_number=True),
)


def trend_page(store: Store, ask: Ask) -> Page:
    """Show the metrics that there are, or one of them over its runs."""
    metric = ask.text("metric")
    content = _chosen(store, ask, metric) if metric else _metrics(store)
    return Page(title=f"Trend of {metric}" if metric else "Trends", content=content)


def _metrics(store: Store) -> Markup:
    groups: dict[tuple[str, str, str], int] = {}
    for series in store.series():
        key = (series.metric, series.name, series.unit)
        groups[key] = groups.get(key, 0) + 1
    rows = [
        tag(
            "tr",
            tag("th", tag("a", cut(metric, 80), href=_link(metric, name)), scope="row"),
            tag("td", cut(name, 80)),
            tag("td", cut(unit, 30), class_="p"),
            tag("td", f"{count:,}", class_="n"),
        )
        for (metric, name, unit), count in sorted(groups.items())
    ]
    if not rows:
        words = "Nothing was measured yet: documents say what to measure with `metrics`."
        return joined([tag("h1", "Trends"), tag("p", words)])
    return joined([tag("h1", "Trends"), table("What was measured", _COLUMNS, rows)])


def _link(metric: str, name: str) -> str:
    return address("/trends", metric=metric, name=name)


def _chosen(store: Store, ask: Ask, metric: str) -> Markup:
    found = store.series(metric=metric, name=ask.text("name") or None)
    words = ask.text("words")
    wanted = [series for series in found if all(one in place(series) for one in words.split())]
    first = (ask.number("page") - 1) * _A_PAGE
    parts = [
        tag("p", tag("a", "All metrics", href="/trends")),
        tag("h1", cut(metric, 120)),
        search(ask, "Case or point", label="Which cases"),
    ]
    if not wanted:
        parts.append(notice("No such metric, or no case of it with these words."))
    parts += [_figure(store, series) for series in wanted[first : first + _A_PAGE]]
    parts.append(pager(ask, len(wanted), "series", size=_A_PAGE))
    return joined(parts)


def _figure(store: Store, series: SeriesRow) -> Markup:
    trouble = ""
    try:
        trend = trend_of(store, series, last_runs=_LAST_RUNS)
    except InputError as error:
        # Without numpy nobody finds changes, but everybody can look.
        trouble = str(error)
        moments = moments_of(store.history(series.id, last_runs=_LAST_RUNS))
        trend = Trend(series=series, moments=moments, turns=())
    better = f", {series.better} is better" if series.better else ""
    title = f"{series.name}: {place(series)}" if place(series) else series.name
    words = f"{counted(len(trend.moments), 'run')}, {series.unit}{better}"
    content = [
        tag("h2", cut(title, 200)),
        tag("div", _plot(trend), class_="plot", tabindex="0"),
        tag("figcaption", words),
        tag("ul", *(tag("li", *_turn(turn, series.unit)) for turn in trend.turns)),
        *([notice(trouble)] if trouble else []),
    ]
    return tag("figure", *content, class_="card trend")


def _plot(trend: Trend) -> Markup:
    unit = trend.series.unit
    dots = [
        Dot(
            x=float(at),
            y=one.value,
            low=one.value,
            high=one.value,
            note=f"{one.run}: {number(one.value)} {unit}, {moment(one.created)}",
        )
        for at, one in enumerate(trend.moments)
    ]
    labels = [(float(at), one.run.rpartition("-")[2]) for at, one in enumerate(trend.moments)]
    drawing, _ = line_plot(
        [Series(name="", dots=dots)],
        Words(x="run", y=trend.series.metric, y_unit=unit),
        x_labels=labels,
        changes=[turn.change.at - 0.5 for turn in trend.turns],
    )
    return drawing


def _turn(turn: Turn, unit: str) -> Iterator[Markup | str]:
    change = turn.change
    yield tag("b", turn.meaning, class_=f"o {_TONES[turn.meaning]}")
    yield f" {share(change.share)}: {amount(change.before)} → {amount(change.after)} {unit}, since "
    yield tag("a", turn.first_bad.run, href=run_address(turn.first_bad.run))
    yield f" of {moment(turn.first_bad.created)}; "
    compare = address("/compare", a=turn.last_good.run, b=turn.first_bad.run)
    yield tag("a", f"compare with {turn.last_good.run}", href=compare)
    if turn.commits:
        first, _, last = turn.commits.partition("..")
        yield joined(["; ", tag("code", f"git log {first[:_SHORT]}..{last[:_SHORT]}")])
