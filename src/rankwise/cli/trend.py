"""`rankwise trend`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from rankwise.cli.options import AsJson, StoreFolder

if TYPE_CHECKING:
    from rankwise.store import Store
    from rankwise.store.samples import SeriesRow


def command(
    metric: Annotated[
        str, typer.Argument(metavar="METRIC", help="Such as latency.", show_default=False)
    ],
    *,
    name: Annotated[
        str | None, typer.Option("--name", help="Only of the document of this name.")
    ] = None,
    case: Annotated[
        str | None,
        typer.Option("--case", metavar="TEXT", help="Only cases and points with this in them."),
    ] = None,
    last: Annotated[int, typer.Option("--last", min=1, help="So many runs at most.")] = 200,
    as_json: AsJson = False,
    store: StoreFolder = None,
) -> None:
    """Show how a metric was in all runs, and where it has changed.

    For each change, the commits are named that may be to blame.

    \b
    For example:
      rankwise trend latency --case size=8
    """
    from rankwise.cli.stores import open_for_reading, store_folder
    from rankwise.report.trend import trend_data, trend_of

    with open_for_reading(store_folder(store)) as opened:
        chosen = _series(opened, metric, name, case)
        trends = [trend_of(opened, series, last_runs=last) for series in chosen]
    if as_json:
        print(json.dumps([trend_data(trend) for trend in trends], indent=2))
        return
    from rankwise.report.terminal import make_console
    from rankwise.report.terminal_compare import show_trends

    show_trends(make_console(), trends)


def _series(store: Store, metric: str, name: str | None, case: str | None) -> list[SeriesRow]:
    """Give the series that are meant; raises InputError with those that there are."""
    from rankwise.errors import InputError
    from rankwise.report.terminal_compare import place
    from rankwise.store.nearest import name_nearest

    everything = store.series(metric=metric, name=name)
    if not everything:
        known = sorted({series.metric for series in store.series(name=name)})
        of = f" of {name}" if name else ""
        hint = name_nearest(metric, known) if known else "Nothing was measured yet."
        raise InputError(f"{store.path}: there is no metric {metric!r}{of}. {hint}")
    found = [series for series in everything if not case or case in place(series)]
    if not found:
        raise InputError(
            f"{store.path}: no case or point of {metric} has {case!r} in it. There are, among "
            f"others: {', '.join(place(series) or '(none)' for series in everything[:5])}"
        )
    return found
