"""The last words on a suite: why tests are not green, all of them in a table, and the counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rankwise.report.cases import Case, Repeated
from rankwise.report.explanation import RunExplanation
from rankwise.report.terminal import STATE_STYLES, clean
from rankwise.report.terminal_explain import show_run_explanation
from rankwise.report.terminal_status import Cell, show_next, show_rows
from rankwise.report.words import counted, duration, listed, short_path
from rankwise.store import RunRow, State

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

# Of more tests than this, only those are in the table that are not green.
_MOST_ROWS = 40
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
    from rich.text import Text

    console.print()
    show_run_explanation(console, explained, is_brief=True)
    red = [case for case in cases if not case.state.is_green]
    show_rows(console, [_cells(case) for case in (cases if len(cases) <= _MOST_ROWS else red)])
    console.print()
    for one in repeated:
        if one.is_flaky:
            line = f"{one.name} is flaky: it passed {one.passed} of {one.times} times"
            console.print(Text(line, "yellow"))
    text = Text.assemble((run.id, "bold"), " ", (str(run.state), STATE_STYLES[run.state]))
    if run.started is not None and run.ended is not None:
        text.append(f" after {duration(run.ended - run.started)}")
    if run.exit_code:
        text.append(f", exit code {run.exit_code}")
    console.print(text)
    console.print("  ", _counts(cases), sep="")
    if not_run := [case for case in red if case.state is State.NOT_RUN]:
        why = listed(list(dict.fromkeys(case.headline for case in not_run)), most=3)
        who = counted(len(not_run), "test")
        console.print(f"  {who} did not run, and the suite is not green without: {why}")
    steps = {"logs": short_path(str(folder))}
    if explained:
        steps["more"] = f"rankwise explain {run.id}"
        steps["again"] = f"rankwise run {short_path(run.source)} --failed"
    show_next(console, steps)


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
