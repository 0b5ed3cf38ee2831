"""`rankwise status`, `list`, `logs` and `explain`."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from rankwise.cli import options

if TYPE_CHECKING:
    from rich.console import Console

    from rankwise.reports.failures import RunExplanation
    from rankwise.store import RunRow


def explain_command(
    run: options.Run = None, *, task: options.TaskKey = None, store: options.StoreFolder = None
) -> None:
    """Explain a failure: first failed process and its last output.

    Also how the other processes ended, the command, and where it ran.

    Examples:
      rankwise explain
      rankwise explain sample-mpi-job-1 --task train
    """
    from rankwise.reports.failures import explain_run, explain_task
    from rankwise.reports.terminal.console import inert_output, make_console
    from rankwise.reports.terminal.run_end import show_explanation, show_run_explanation

    console = make_console()
    with inert_output(), options.open_for_reading(options.store_folder(store)) as opened:
        chosen = options.choose_refreshed(opened, run)
        if task is not None:
            row = opened.task_row(chosen.id, task)
            show_explanation(console, explain_task(opened, row), is_brief=False)
            return
        explained = explain_run(opened, chosen.id)
        _show_verdict(console, chosen, explained)
        show_run_explanation(console, explained)


def _show_verdict(console: Console, run: RunRow, explained: RunExplanation) -> None:
    """Say what there is to explain, if anything."""
    if run.state.is_green and explained:
        console.print(f"{run.id} passed, though this failed: `soft_fail` allows it.")
    elif run.state.is_green:
        console.print(f"{run.id} passed: there is nothing to explain.")
    elif not run.state.is_over:
        so_far = "so far, this is wrong" if explained else "so far, nothing is wrong"
        console.print(f"{run.id} is {run.state}; {so_far}.")
    else:
        code = f", exit code {run.exit_code}" if run.exit_code else ""
        why = f": {run.reason}" if run.reason else ""
        console.print(f"{run.id} {run.state}{code}{why}")
    if explained:
        console.print()


def list_command(
    *,
    limit: options.Positive = 20,
    json_: options.AsJson = False,
    store: options.StoreFolder = None,
) -> None:
    """List runs, the newest first.

    Options:
      -n, --limit N  So many at most.

    Examples:
      rankwise list
      rankwise list --limit 5 --json
    """
    # Twice: what is refreshed may have ended.
    with options.open_for_reading(options.store_folder(store)) as opened:
        for run in opened.runs(limit):
            options.refresh(opened, run)
        runs = opened.runs(limit)
    if json_:
        print(json.dumps([asdict(run) for run in runs], indent=2))
        return
    from rankwise.reports.terminal.console import make_console
    from rankwise.reports.terminal.status import show_runs

    show_runs(make_console(), runs, now=time.time())
    if not runs:
        print("There are no runs yet; to make one:  rankwise run FILE")


def logs_command(
    run: options.Run = None,
    *,
    follow: bool = False,
    rank: Annotated[int | None, typer.Option(min=0)] = None,
    process: str | None = None,
    task: options.TaskKey = None,
    attempt: Annotated[int | None, typer.Option(min=1)] = None,
    store: options.StoreFolder = None,
) -> None:
    """Show what the processes of a run have written.

    Options:
      -f, --follow    Go on until the run is over.
      --rank N        Only what this rank wrote.
      --process NAME  Only what this process wrote: worker-2.
      --attempt N     This attempt, and not the last one.

    Examples:
      rankwise logs -f
      rankwise logs sample-mpi-job-1 --rank 3
    """
    from rankwise.cli.log_reader import Choice, Reader
    from rankwise.reports.terminal.console import inert_output

    folder = options.store_folder(store)
    with options.open_for_reading(folder) as opened, inert_output():
        chosen = options.choose_run(opened, run)
        reader = Reader(
            opened, chosen, Choice(rank=rank, process=process, task=task, attempt=attempt)
        )
        if follow:
            reader.follow()
        else:
            reader.read()


def status_command(
    run: options.Run = None,
    *,
    all_: bool = False,
    json_: options.AsJson = False,
    store: options.StoreFolder = None,
) -> None:
    """Show how a run stands.

    Of many tasks, only those are named that are running or not green.

    Options:
      --all  Show all tasks, however many there are.

    Examples:
      rankwise status
      rankwise status sample-mpi-job-1 --json
    """
    from rankwise.reports.matrix import matrix_of
    from rankwise.reports.status import status_data, status_of
    from rankwise.store.store import driver_of

    with options.open_for_reading(options.store_folder(store)) as opened:
        chosen = options.choose_refreshed(opened, run)
        # What stages have submitted are runs of their own, whose clients may be gone as well.
        for child in opened.children(chosen.id):
            options.refresh(opened, child)
        driver = driver_of(opened.run_folder(chosen.id))
        status = status_of(opened, chosen, driver=driver, with_all=all_ or json_)
        matrix = None if json_ else matrix_of(opened, chosen)
    if json_:
        print(json.dumps(status_data(status), indent=2))
        return
    from rankwise.reports.terminal.console import inert_output, make_console
    from rankwise.reports.terminal.status import show_status

    with inert_output():
        if matrix is not None:
            from rankwise.reports.terminal.matrix import show_matrix

            show_matrix(make_console(), matrix)
        show_status(make_console(), status, now=time.time())
