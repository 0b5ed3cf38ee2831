"""`rankwise explain`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankwise.cli.options import Run, StoreFolder, TaskKey

if TYPE_CHECKING:
    from rich.console import Console

    from rankwise.report.explanation import RunExplanation
    from rankwise.store import RunRow, Store


def command(run: Run = None, *, task: TaskKey = None, store: StoreFolder = None) -> None:
    """Say why a run failed: who was first, and what it wrote last.

    Also what became of the other processes, the command, and where it ran.

    \b
    For example:
      rankwise explain
      rankwise explain sample-mpi-job-1 --task train
    """
    from rankwise.cli.stores import choose_run, open_for_reading, store_folder, take_in
    from rankwise.report.explanation import explain_run
    from rankwise.report.terminal import make_console
    from rankwise.report.terminal_explain import show_run_explanation

    console = make_console()
    with open_for_reading(store_folder(store)) as opened:
        chosen = choose_run(opened, run)
        take_in(opened, chosen)
        chosen = opened.run(chosen.id)
        if task is not None:
            _explain_one(console, opened, chosen, task)
            return
        explained = explain_run(opened, chosen.id)
    _show_verdict(console, chosen, explained)
    show_run_explanation(console, explained)


def _explain_one(console: Console, store: Store, run: RunRow, key: str) -> None:
    from rankwise.report.explanation import explain_task
    from rankwise.report.terminal_explain import show_explanation

    show_explanation(console, explain_task(store, store.task_row(run.id, key)), is_brief=False)


def _show_verdict(console: Console, run: RunRow, explained: RunExplanation) -> None:
    """Say what there is to explain, if anything."""
    if run.state.is_green:
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
