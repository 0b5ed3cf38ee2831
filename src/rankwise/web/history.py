"""Pages of trends and comparisons."""

from __future__ import annotations

from collections import Counter
from typing import Any

from rankwise.errors import InputError
from rankwise.reports.comparison import Side, compare_sides
from rankwise.reports.measurements import history_of
from rankwise.reports.plots.charts import Words, history_plot
from rankwise.reports.rendering import environment, render
from rankwise.reports.terminal.compare import amount, place, share
from rankwise.safe_text import cut
from rankwise.store import Store
from rankwise.web.pages import PageContent, PageRequest, counts_of, offset

_MOST_LINES = 200
# Runs to choose from; older ones are typed.
_MOST_OFFERED = 50


def compare_page(store: Store, ask: PageRequest) -> PageContent:
    """Show how two runs differ, or ask which."""
    given = ask.text("a"), ask.text("b")
    shown: dict[str, Any] = {}
    if all(given):
        try:
            shown = _compared(store, *given)
        except InputError as error:
            shown["trouble"] = str(error)
    offered = store.runs(_MOST_OFFERED)
    title = f"{given[0]} and {given[1]}" if all(given) else "Compare"
    content = render(
        "web/compare", **{"ask": ask, "offered": offered, "sides": (), "trouble": "", **shown}
    )
    return PageContent(title=cut(title, 120), content=content)


def _compared(store: Store, *given: str) -> dict[str, Any]:
    """Gather how two runs differ; InputError: there is no such run."""
    runs = [store.find_run(one) for one in given]
    shown = {
        "sides": [
            (letter, run, counts_of(store, run)) for letter, run in zip("AB", runs, strict=True)
        ],
        "found": store.differences(runs[0].id, runs[1].id, limit=_MOST_LINES),
    }
    try:
        sides = (Side(given=run.id, runs=[run]) for run in runs)
        return {**shown, "compared": compare_sides(store, *sides)}
    except InputError as error:
        return {**shown, "compared": None, "unmeasured": str(error)}


# Each is a plot and a search for changes: more on one page would take long.
_A_PAGE = 6


def trend_page(store: Store, ask: PageRequest) -> PageContent:
    """Show the metrics that there are, or one of them over its runs."""
    metric = ask.text("metric")
    shown: dict[str, Any] = {}
    if metric:
        # All words must be in the name of the case, in any order.
        wanted_words = ask.text("words").split()
        found = store.series(metric=metric, name=ask.text("name") or None)
        wanted = [series for series in found if all(one in place(series) for one in wanted_words)]
        first = offset(ask, size=_A_PAGE)
        trends = []
        for series in wanted[first : first + _A_PAGE]:
            trend = history_of(store, series)
            words = Words(x="run", y=series.metric, y_unit=series.unit)
            # Without the band: the trials of several runs vary for more than one reason.
            trends.append((series, trend, history_plot(words, trend, has_band=False)))
        shown = {"total": len(wanted), "trends": trends, "page_size": _A_PAGE}
    else:
        groups = Counter((one.metric, one.name, one.unit) for one in store.series())
        shown = {"groups": sorted(groups.items())}
    content = render("web/trends", ask=ask, metric=metric, **shown)
    return PageContent(title=f"Trend of {metric}" if metric else "Trends", content=content)


environment().globals.update(amount=amount, place=place, share=share)
