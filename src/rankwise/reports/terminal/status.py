"""How runs stand, and lists of runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rankwise.reports.palette import STYLES
from rankwise.reports.status import RunStatus
from rankwise.reports.terminal.console import Cell, first_line, show_next, show_rows, styled
from rankwise.safe_text import clean
from rankwise.store import ProcessRow, ResultRow, RunRow, State, TaskRow
from rankwise.wording import (
    counted,
    duration,
    ending,
    headline_of,
    label,
    moment,
    short_path,
    size,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_MOST_PROCESSES = 64
_MOST_TESTS = 20
# The driver of a run that was just submitted may still be loading.
_START_SECONDS = 10.0


def show_status(console: Console, status: RunStatus, *, now: float) -> None:
    """Show how a run stands, and what to do next."""
    run = status.run
    console.print(_heading(run, now))
    about = [run.kind, f"from {short_path(run.source)}" if run.source else ""]
    about.append(f"experiment {run.experiment}" if run.experiment else "")
    about.append(f"started {moment(run.started, with_zone=False)}" if run.started else "")
    console.print("  " + ", ".join(filter(None, about)))
    if run.reason:
        console.print(f"  {run.reason}")
    if status.total > 1:
        console.print("  ", count_words(status.counts), sep="")
    console.print()
    show_rows(console, [_task_cells(task, now) for task in status.tasks])
    if len(status.tasks) < status.total:
        left = status.total - len(status.tasks)
        more = f"and {counted(left, 'more task')}" if status.tasks else counted(left, "task")
        console.print(f"  ... {more}: rankwise status {run.id} --all")
    _show_results(console, status.results)
    if status.processes:
        console.print()
        some = status.processes[:_MOST_PROCESSES]
        show_rows(console, [_process_cells(one, now, run.state) for one in some])
        if left := len(status.processes) - len(some):
            console.print(f"  ... and {left} more")
    if status.children:
        console.print("\n  Submitted by its stages:")
        show_rows(console, [_run_cells(child, now) for child in status.children])
    console.print()
    show_next(console, _next(status, now))


def _show_results(console: Console, results: Mapping[str, Sequence[ResultRow]]) -> None:
    """Count the single tests of each task, and name those that failed."""
    for task, tests in results.items():
        console.print()
        counts = Counter(one.state for one in tests)
        console.print(f"  {task}: ", count_words(counts, "test"), sep="")
        red = [one for one in tests if not one.state.is_green]
        rows = [
            [
                (clean(one.name), "bold"),
                _state(one),
                (clean(headline_of(one.message)), ""),
            ]
            for one in red[:_MOST_TESTS]
        ]
        show_rows(console, rows, is_cut=True)
        if len(red) > _MOST_TESTS:
            console.print(f"  ... and {len(red) - _MOST_TESTS} more")


def _state(one: RunRow | TaskRow | ResultRow) -> Cell:
    return str(one.state), STYLES[one.state]


def show_runs(console: Console, runs: Sequence[RunRow], *, now: float) -> None:
    """Show a list of runs."""
    rows = [[*_run_cells(run, now), (short_path(run.source), "dim")] for run in runs]
    show_rows(console, rows, is_indented=False)


def _run_cells(run: RunRow, now: float) -> list[Cell]:
    return [
        (run.id, "bold"),
        _state(run),
        (_took(run.started, run.ended, now), ""),
        # The zone would make rows too wide.
        (moment(run.created, with_zone=False), "dim"),
    ]


def count_words(counts: Mapping[State, int], noun: str = "task") -> Text:
    """Say how many tasks are in which state."""
    words = styled(f"{counted(sum(counts.values()), noun)}: ")
    parts = [styled((f"{counts[one]} {one}", STYLES[one])) for one in State if counts.get(one)]
    return words.append(styled(", ").join(parts))


def _heading(run: RunRow, now: float) -> Text:
    heading = styled((run.id, "bold"), "  ", _state(run))
    if took := _took(run.started, run.ended, now):
        heading.append(f" {'after' if run.ended else 'for'} {took}")
    if run.exit_code:
        heading.append(f", exit code {run.exit_code}")
    if run.wanted and not run.state.is_over:
        heading.append(", to be cancelled", "yellow")
    return heading


def _task_cells(task: TaskRow, now: float) -> list[Cell]:
    tries = f"attempt {task.attempts}" if task.attempts > 1 else ""
    return [
        (task.key, "bold"),
        _state(task),
        (_took(task.started, task.ended, now), ""),
        (", ".join(filter(None, [tries, first_line(task.reason)])), ""),
    ]


def _process_cells(one: ProcessRow, now: float, run: State) -> list[Cell]:
    if one.ended is None and one.started is not None and run.is_over:
        # Its runner was lost, and what it had started was ended.
        state, now = ("left no record of its end", "yellow"), one.started
    elif one.ended is None:
        state = ("running", "cyan") if one.started is not None else ("not started", "dim")
    elif one.by_us:
        state = "ended by rankwise", "yellow"
    else:
        state = ending(one.exit_code, one.signal), "green" if one.exit_code == 0 else "red"
    used = [f"{size(one.peak_memory)}" if one.peak_memory else ""]
    used.append(f"{duration(one.cpu_seconds)} CPU" if one.cpu_seconds else "")
    return [
        (label(one.name), ""),
        state,
        (_took(one.started, one.ended, now), ""),
        (f"node {one.node}", "dim"),
        (", ".join(filter(None, used)), "dim"),
    ]


def _next(status: RunStatus, now: float) -> dict[str, str]:
    run = status.run
    if run.state is State.PASSED:
        return {"its output": f"rankwise logs {run.id}"}
    if run.state.is_over:
        return {"why": f"rankwise explain {run.id}", "its output": f"rankwise logs {run.id}"}
    # Not to tell people to resume what is about to start.
    is_new = run.started is None and now - run.created < _START_SECONDS
    if status.driver is None and not is_new:
        return {
            "no client drives this run; to go on": f"rankwise resume {run.id}",
            "to end it": f"rankwise cancel {run.id}",
        }
    return {"to look on": f"rankwise logs -f {run.id}", "to end it": f"rankwise cancel {run.id}"}


def _took(started: float | None, ended: float | None, now: float) -> str:
    return duration((ended if ended is not None else now) - started) if started is not None else ""
