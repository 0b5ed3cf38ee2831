"""The last words on a suite: why tests are not green, all of them in a table, and the counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from rankwise.report.cases import Case, Repeated
from rankwise.report.explanation import RunExplanation
from rankwise.report.terminal import STATE_STYLES, clean, is_narrow
from rankwise.report.terminal_explain import show_first
from rankwise.report.terminal_room import height_of, room_on
from rankwise.report.terminal_run import LINES_OF_END, next_step, show_verdict
from rankwise.report.terminal_status import Cell, show_next, show_rows
from rankwise.report.words import counted, duration, listed, short_path
from rankwise.store import RunRow, State

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

# Of more tests than this, or fewer in a low window, only those are in the table that are not green.
_MOST_ROWS = 8
_MOST_FLAKY = 3
_LONGEST_REASON = 120


def show_suite_end(
    console: Console,
    run: RunRow,
    *,
    cases: Sequence[Case],
    repeated: Sequence[Repeated],
    explained: RunExplanation,
    folder: Path,
) -> None:
    """Say how a suite ended, why, and where to look."""
    console.print()
    red = _first_to_fail_first(cases, explained)
    flaky = [one for one in repeated if one.is_flaky]
    not_run = [case for case in red if case.state is State.NOT_RUN]
    # One more than other ends have: how to run again what is not green.
    room = room_on(console) - LINES_OF_END - 1 - min(len(flaky), _MOST_FLAKY + 1) - bool(not_run)
    # Where not all are in the table, there is more room for what the first of them wrote.
    lines_each = 2 if is_narrow(console) else 1
    most = min(_MOST_ROWS, room // 2 // lines_each)
    rows = cases if len(cases) <= most else red
    most = most if rows is cases else max(1, room // 3 // lines_each)
    table = partial(_show_table, console, rows, most)
    show_first(console, explained, room=room - height_of(console, table) - 1)
    table()
    console.print()
    _show_flaky(console, flaky)
    show_verdict(console, run)
    console.print("  ", _counts(cases), sep="")
    if not_run:
        why = listed(list(dict.fromkeys(case.headline for case in not_run)), most=3)
        who = counted(len(not_run), "test")
        console.print(f"  {who} did not run, and the suite is not green without: {why}")
    steps = {}
    if explained:
        steps["logs"] = short_path(str(folder))
        steps["again"] = f"rankwise run {short_path(run.source)} --failed"
    steps |= next_step(run, is_red=bool(explained), is_large=len(cases) > 1)
    show_next(console, steps)


def _first_to_fail_first(cases: Sequence[Case], explained: RunExplanation) -> list[Case]:
    order = {one.task: number for number, one in enumerate(explained.first)}
    red = [case for case in cases if not case.state.is_green]
    return sorted(red, key=lambda case: order.get(case.task, len(order)))


def _show_table(console: Console, rows: Sequence[Case], most: int) -> None:
    show_rows(console, [_cells(case) for case in rows[:most]], is_cut=True)
    if len(rows) > most:
        console.print(f"  ... and {len(rows) - most:,} more")


def _show_flaky(console: Console, flaky: Sequence[Repeated]) -> None:
    from rich.text import Text

    for one in flaky[:_MOST_FLAKY]:
        line = f"{one.name} is flaky: it passed {one.passed} of {one.times} times"
        console.print(Text(line, "yellow"))
    if len(flaky) > _MOST_FLAKY:
        console.print(f"... and {len(flaky) - _MOST_FLAKY:,} more are flaky")


# However little it was.
_ALWAYS_TIMED = (State.PASSED, State.FAILED)


def _cells(case: Case) -> list[Cell]:
    reason = clean(case.headline, keep_colours=False)
    shown = reason if len(reason) <= _LONGEST_REASON else reason[:_LONGEST_REASON] + "…"
    return [
        (clean(case.name, keep_colours=False), "bold"),
        (str(case.state), STATE_STYLES[case.state]),
        (duration(case.seconds) if case.seconds or case.state in _ALWAYS_TIMED else "", ""),
        (shown, ""),
    ]


def _counts(cases: Sequence[Case]) -> object:
    from rich.text import Text

    counts = Counter(case.state for case in cases)
    parts = [
        Text(f"{counts[state]} {state}", STATE_STYLES[state]) for state in State if counts[state]
    ]
    return Text(f"{counted(len(cases), 'test')}: ").append(Text(", ").join(parts))
