"""Comparisons and trends, on a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from rankwise.reports.comparison import Compared, SeriesComparison
from rankwise.reports.measurements import ChangePoint, Trend
from rankwise.reports.palette import STYLES
from rankwise.reports.terminal.console import Cell, show_rows, styled
from rankwise.safe_text import clean
from rankwise.stats.change_points import LEAST_RUNS
from rankwise.stats.comparison import ComparisonVerdict, median
from rankwise.store.samples import SeriesRow
from rankwise.wording import counted, listed, moment

if TYPE_CHECKING:
    from rich.console import Console

_BARS = "▁▂▃▄▅▆▇█"
_WIDEST_SPARKLINE = 60
_MOST_LINES = 30
_SHORT = 10


def show_compared(console: Console, compared: Compared, *, everything: bool) -> None:
    """Show what came of a comparison, the worst first."""
    for letter, side in (("A", compared.before), ("B", compared.after)):
        ids = [run.id for run in side.runs]
        given = "" if [side.given] == ids else f"{side.given}: "
        console.print(f"{letter}  {given}{listed(ids, most=3)}")
    console.print()
    # They are sorted: what is left out is no worse than what is shown.
    lines = compared.lines if everything else compared.lines[:_MOST_LINES]
    reasons = {line.result.reason for line in compared.lines}
    is_shared = len(reasons) == 1 < len(compared.lines)
    show_rows(console, [_line_cells(line, with_reason=not is_shared) for line in lines])
    if is_shared:
        console.print(f"  all of them: {clean(*reasons)}", style="dim", soft_wrap=True)
    if left := len(compared.lines) - len(lines):
        console.print(f"  ... and {left} more that are no worse: --all shows them")
    for remark in compared.remarks:
        console.print(f"  note: {clean(remark)}", style="yellow")
    console.print()
    console.print(compared.verdict.value, style=STYLES[compared.verdict], end="")
    console.print(f": {_counts(compared)}")


def place(series: SeriesRow) -> str:
    """Say which case it is, and at which point: `ranks=2 size=8`."""
    point = (f"{name}={value}" for name, value in series.point.items())
    return clean(" ".join(filter(None, [series.case, *point])))


def sparkline(values: Sequence[float]) -> str:
    """Draw values as bars, the medians of some where there are too many."""
    # Medians, so that one outlier does not stand for many runs.
    wide = min(len(values), _WIDEST_SPARKLINE)
    edges = [round(number * len(values) / wide) for number in range(wide + 1)] if wide else []
    drawn = [median(values[first:last]) for first, last in pairwise(edges)]
    low, high = min(drawn, default=0.0), max(drawn, default=0.0)
    # Halves, because the whole may be more than there are numbers.
    span = high / 2 - low / 2
    top = len(_BARS) - 1
    return "".join(
        _BARS[round((value / 2 - low / 2) / span * top)] if span else _BARS[0] for value in drawn
    )


def amount(value: float | None) -> str:
    """Say a value with four digits."""
    return "-" if value is None else f"{value:.4g}"


def share(value: float | None) -> str:
    """Say a change."""
    if value is None or not math.isfinite(value):
        return "-"
    # Of a change by a factor of ten, tenths of a percent say nothing.
    return f"{value:+.1%}" if abs(value) < 10 else f"{value:+.0%}"


def _line_cells(line: SeriesComparison, *, with_reason: bool) -> list[Cell]:
    series, result = line.series, line.result
    interval = f"[{', '.join(map(share, result.interval))}]" if result.interval else ""
    return [
        (clean(series.metric), "bold"),
        (place(series), ""),
        (result.verdict.value, STYLES[result.verdict]),
        (f"{amount(result.before)} → {amount(result.after)} {series.unit}", ""),
        (share(result.change), STYLES[result.verdict]),
        (interval, "dim"),
        (result.reason if with_reason else "", "dim"),
    ]


def _counts(compared: Compared) -> str:
    parts = [f"{number} {verdict}" for verdict, number in compared.counts.items() if number]
    words = f"{listed(parts)}, of {len(compared.lines)} series"
    is_open = compared.verdict is ComparisonVerdict.INCONCLUSIVE
    return f"{words}; more trials needed" if is_open else words


def show_trend(console: Console, series: SeriesRow, trend: Trend) -> None:
    """Show the history of a series."""
    good = f", {series.better} is better" if series.better else ""
    console.print(
        styled(
            (clean(series.metric), "bold"),
            f"  {place(series)}  " if place(series) else "  ",
            (f"{series.unit}{good}; {series.name}, {counted(len(trend.moments), 'run')}", "dim"),
        )
    )
    values = [moment.spread.middle for moment in trend.moments]
    if not values:
        return
    now = f"{amount(values[-1])} {series.unit} now, {amount(min(values))} to {amount(max(values))}"
    console.print(f"  {sparkline(values)}  {now}", soft_wrap=True)
    for turn in trend.turns:
        _show_turn(console, turn, series.unit)
    if len(values) < 2 * LEAST_RUNS:
        console.print(f"  {2 * LEAST_RUNS} runs are needed to find changes", style="dim")
    elif not trend.turns:
        console.print("  no change", style="dim")


def _show_turn(console: Console, turn: ChangePoint, unit: str) -> None:
    change, first = turn.change, turn.first_bad
    console.print(
        styled(
            "  ",
            (turn.meaning, STYLES[turn.meaning]),
            f" {share(change.share)}: {amount(change.before)} → {amount(change.after)} {unit}, ",
            f"since {first.run} of {moment(first.created, with_zone=False)}",
        ),
        soft_wrap=True,
    )
    begin, _, end = turn.commits.partition("..")
    blame = f"to blame is among:  git log {begin[:_SHORT]}..{end[:_SHORT]}"
    if not turn.commits:
        good = turn.last_good.run
        blame = f"the last good run was {good}; its commits are not known, or are the same"
    console.print(f"    {blame}", style="dim", soft_wrap=True)
