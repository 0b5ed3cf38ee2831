"""What a run has measured, as a table on the screen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rankwise.report.measures import Measure
from rankwise.report.terminal import clean
from rankwise.report.terminal_status import show_rows

if TYPE_CHECKING:
    from rich.console import Console


def show_measures(console: Console, measures: Sequence[Measure], *, room: int) -> None:
    """Show the middle of each, and between what it varies; more are for a report, or a program."""
    console.print()
    most = room - 1 if len(measures) <= room - 1 else room - 2
    rows = [
        [
            (clean(one.metric, keep_colours=False), "bold"),
            (clean(_where(one), keep_colours=False), ""),
            (f"{_number(one.now.middle)} {one.unit}", "cyan"),
            (f"{_number(one.now.low)} - {_number(one.now.high)}", "dim"),
            (_change(one), ""),
        ]
        for one in measures[:most]
    ]
    show_rows(console, rows, is_cut=True)
    if left := len(measures) - len(rows):
        console.print(f"  ... and {left:,} more")


def _where(one: Measure) -> str:
    return " ".join(f"{name}={value}" for name, value in one.parameters.items() if value)


def _number(value: float) -> str:
    return f"{value:.4g}"


def _change(one: Measure) -> str:
    return f"{one.change:+.0%} since the run before" if one.change is not None else ""
