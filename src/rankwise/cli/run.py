"""`rankwise run`, `submit`, `resume` and `cancel`."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankwise.cli.options import (
    AsJson,
    PlanningOptions,
    Quiet,
    Run,
    StoreFolder,
    choose_run,
    complete_notified,
    complete_task,
    open_for_reading,
    store_folder,
    takes,
    value,
)
from rankwise.errors import InputError

if TYPE_CHECKING:
    from rankwise.plan import Plan
    from rankwise.store import Store

# A runner gives its processes some seconds before it kills them.
_PATIENCE_SECONDS = 30.0
_LOOK_SECONDS = 0.1


def cancel_command(run: Run = None, *, store: StoreFolder = None) -> int:
    """End a run and everything that it has started.

    It waits until all has ended.

    \b
    For example:
      rankwise cancel sample-mpi-job-1
    """
    from rankwise.engine.runs import cancel
    from rankwise.store import Store

    folder = store_folder(store)
    with open_for_reading(folder) as opened:
        chosen = choose_run(opened, run)
    if chosen.state.is_over:
        print(f"{chosen.id} is over already: {chosen.state}")
        return 0
    with Store.open(folder) as opened:
        cancel(opened, chosen.id)
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not (now := opened.run(chosen.id)).state.is_over:
            if time.monotonic() > deadline:
                said = "cancellation requested, still running"
                print(f"{chosen.id}: {said}: rankwise status {chosen.id}")
                return 1
            time.sleep(_LOOK_SECONDS)
    # It may have been faster than we.
    print(f"{now.id} {now.state}")
    return 0


def check_count(plan: Plan, *, limit: int, is_agreed: bool) -> None:
    """Ask before more cells are started than were meant; InputError: nobody has agreed."""
    from rankwise.planning.selection import cells_to_run

    count = len(cells_to_run(plan.tasks))
    if count <= limit or is_agreed:
        return
    if sys.stdin.isatty() and sys.stderr.isatty():
        tests = sum(not task.skip for task in plan.tasks)
        print(f"{plan.name} starts {count} cells with {tests} tasks.", file=sys.stderr)
        print("Go on? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() in ("y", "yes"):
            return
        raise InputError(f"{plan.name}: nothing was started")
    raise InputError(
        f"{plan.name}: {count} cells are more than {limit}, and there is no terminal to confirm "
        f"on: pass --yes, allow more with --limit {count}, or take some with --only runtime=NAME"
    )


def list_cells(plan: Plan) -> None:
    """Show the cells of a plan, and start nothing."""
    from rankwise.reports.terminal.console import make_console
    from rankwise.reports.terminal.matrix import show_cells

    show_cells(make_console(), plan)


def resume_command(
    run: Run = None, *, quiet: Quiet = False, as_json: AsJson = False, store: StoreFolder = None
) -> int:
    """Resume an interrupted run.

    What has ended meanwhile is taken in, what still runs is watched, and what is left is started.
    Nothing runs twice. What its stages have submitted goes on as well, in the background.

    \b
    For example:
      rankwise resume sample-mpi-job-1
    """
    from rankwise.cli.foreground import chosen, drive_shown, on_run_finished
    from rankwise.store import Store

    folder = store_folder(store)
    with open_for_reading(folder) as opened:
        found = choose_run(opened, run)
        if opened.children(found.id):
            from rankwise.engine.runs import start_children

            start_children(opened, found.id)
        # Whoever has ended it may have been gone before that.
        on_run_finished(opened, found)
    if found.state.is_over:
        if not quiet and not as_json:
            print(f"{found.id} is over: {found.state}; to run it again:  rankwise run FILE")
        return found.exit_code or 0
    with Store.open(folder) as opened:
        rows = opened.task_rows(found.id, bodies=True)
        tasks = [row.body for row in rows if row.body is not None]
        return drive_shown(opened, found, tasks, chosen(quiet=quiet, as_json=as_json))


class StartOptions(PlanningOptions):
    """How a run is started, here or in the background."""

    begin: Annotated[
        str | None,
        value(
            "--from",
            "STAGE",
            "Of a pipeline, run this stage and all after it; take the others from the last run.",
            complete=complete_task,
        ),
    ] = None
    force: Annotated[
        bool, typer.Option("--force", help="Of a pipeline, run also what has not changed.")
    ] = False
    fail_fast: Annotated[
        bool, typer.Option("--fail-fast", help="End everything after the first failure.")
    ] = False
    limit: Annotated[
        int,
        typer.Option(
            "--limit", min=0, metavar="N", help="Ask before more cells of a matrix are started."
        ),
    ] = 50
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Start them all, and do not ask.")] = (
        False
    )
    notify: Annotated[
        list[str] | None,
        value(
            "--notify",
            "NAME",
            "When it is over, tell [notify.NAME] of rankwise.toml. May be given several times.",
            complete=complete_notified,
        ),
    ] = None

    def planned(self) -> tuple[Plan, str]:
        """Return the plan with the text of its documents."""
        return self.plan(fail_fast=self.fail_fast, choice={"from": self.begin, "force": self.force})


@contextlib.contextmanager
def _created(options: StartOptions, plan: Plan, text: str) -> Iterator[tuple[Store, str]]:
    """Create the run of a plan after a last look; InputError: it cannot be started so."""
    from rankwise.cli.foreground import remembering
    from rankwise.engine.reuse import check_taken
    from rankwise.engine.runs import check_secrets
    from rankwise.store import Store

    check_count(plan, limit=options.limit, is_agreed=options.yes)
    plan = remembering(plan, options.notify or ())
    check_secrets(plan.tasks)
    with Store.open(options.folder) as opened:
        check_taken(opened, plan)
        yield opened, opened.create_run(plan, text, now=time.time())


@takes(StartOptions)
def run_command(
    options: StartOptions,
    *,
    quiet: Quiet = False,
    as_json: AsJson = False,
    listed: Annotated[
        bool, typer.Option("--list", help="Only show the cells of a matrix, and start nothing.")
    ] = False,
    junit: Annotated[
        Path | None, value("--junit", "FILE", "Write the results as JUnit XML.")
    ] = None,
    markdown: Annotated[
        Path | None, value("--markdown", "FILE", "Write a summary in Markdown.")
    ] = None,
) -> int:
    """Run documents here and now, and show what their processes write.

    The exit code is 0 if all passed, and otherwise that of the process that failed first. Ctrl-C
    ends everything in good order; a second one leaves it to itself, and `rankwise resume` goes on
    with it.

    \b
    For example:
      rankwise run job.yaml
      rankwise run job.yaml --on gpu-cluster --strict
      rankwise run job.yaml --json | jq .kind
      rankwise run pipeline.yaml --from test
      rankwise run suite.yaml --failed --junit results.xml
      rankwise run suite.yaml --only checkpoint --repeat 20
      rankwise run matrix.yaml --only runtime=torch-2.13,machine=cpu*
    """
    from rankwise.cli.foreground import chosen, drive_shown, write_ci_outputs

    plan, text = options.planned()
    if listed:
        list_cells(plan)
        return 0
    with _created(options, plan, text) as (opened, run):
        shown = chosen(quiet=quiet, as_json=as_json)
        code = drive_shown(opened, opened.run(run), plan.tasks, shown)
        write_ci_outputs(opened, run, junit=junit, markdown=markdown, is_quiet=as_json)
        return code


@takes(StartOptions)
def submit_command(options: StartOptions) -> None:
    """Run documents in the background, and print the run's id at once.

    It goes on when this shell is closed.

    \b
    For example:
      run=$(rankwise submit job.yaml)
      rankwise logs -f $run
    """
    from rankwise.engine.runs import start_in_background

    plan, text = options.planned()
    with _created(options, plan, text) as (opened, run):
        start_in_background(opened, run)
    for notice in plan.notices:
        print(f"note: {notice}", file=sys.stderr)
    print(run)
    if sys.stdout.isatty():
        print(f"To look on:  rankwise logs -f {run}", file=sys.stderr)
