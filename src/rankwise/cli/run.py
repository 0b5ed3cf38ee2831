"""`rankwise run`, `submit`, `resume` and `cancel`."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from rankwise.cli import options
from rankwise.errors import InputError

if TYPE_CHECKING:
    from rankwise.plan import Plan
    from rankwise.store import Store

# A runner gives its processes some seconds before it kills them.
_PATIENCE_SECONDS = 30.0
_LOOK_SECONDS = 0.1


def cancel_command(run: options.Run = None, *, store: options.StoreFolder = None) -> int:
    """End a run and everything that it has started.

    It waits until all has ended.

    Examples:
      rankwise cancel
      rankwise cancel sample-mpi-job-1
    """
    from rankwise.engine.runs import cancel
    from rankwise.store import Store

    folder = options.store_folder(store)
    # For reading first: where there is no store, none is made.
    with options.open_for_reading(folder) as opened:
        chosen = options.choose_run(opened, run)
    if chosen.state.is_over:
        print(f"{chosen.id} has already ended: {chosen.state}")
        return 0
    with Store.open(folder) as opened:
        cancel(opened, chosen.id)
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not (now := opened.run(chosen.id)).state.is_over:
            if time.monotonic() > deadline:
                asked = "cancellation requested, still running"
                print(f"{chosen.id}: {asked}: rankwise status {chosen.id}")
                return 1
            time.sleep(_LOOK_SECONDS)
    # It may have passed before the cancellation reached it.
    print(f"{now.id} {now.state}")
    return 0


def check_count(plan: Plan, *, limit: int, is_agreed: bool) -> None:
    """Ask before more cells are started than the limit; InputError: the user has not agreed."""
    # Most plans need no look at their cells, of which there are never more than tasks.
    if is_agreed or len(plan.tasks) <= limit:
        return
    from rankwise.planning.selection import cells_to_run

    count = len(cells_to_run(plan.tasks))
    if count <= limit:
        return
    # The question goes to standard error: the output may be read by a program.
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


def resume_command(
    run: options.Run = None,
    *,
    quiet: options.Quiet = False,
    json_: options.AsJson = False,
    store: options.StoreFolder = None,
) -> int:
    """Resume an interrupted run.

    What has ended meanwhile is recorded, what still runs is watched, and what is left is started.
    Nothing runs twice. What its stages have submitted goes on as well, in the background.

    Examples:
      rankwise resume
      rankwise resume sample-mpi-job-1 --quiet
    """
    from rankwise.cli.foreground import chosen, drive_shown, on_run_finished
    from rankwise.store import Store
    from rankwise.store.store import BeingDriven, driver_of

    folder = options.store_folder(store)
    with options.open_for_reading(folder) as opened:
        found = options.choose_run(opened, run)
        if opened.children(found.id):
            from rankwise.engine.runs import start_children

            start_children(opened, found.id)
        # The client that has ended it may have been killed before that.
        on_run_finished(opened, found)
    if found.state.is_over:
        if not quiet and not json_:
            print(
                f"{found.id} has already ended: {found.state}; to run it again:  rankwise run FILE"
            )
        return found.exit_code or 0
    with Store.open(folder) as opened:
        # Before anything is shown: the lock itself is taken when the run is driven.
        if (driver := driver_of(opened.run_folder(found.id))) is not None:
            raise BeingDriven(found.id, str(driver or ""))
        rows = opened.task_rows(found.id, bodies=True)
        tasks = [row.body for row in rows if row.body is not None]
        return drive_shown(opened, found, tasks, chosen(quiet=quiet, as_json=json_))


class StartOptions(options.PlanningOptions):
    """How a run is started, here or in the background.

    Options:
      --from STAGE   Of a pipeline, run this stage and all after it; take the others from the last
                     run.
      --force        Of a pipeline, run also what has not changed.
      --fail-fast    End everything after the first failure.
      --limit N      Ask before more cells of a matrix are started.
      -y, --yes      Start them all, and do not ask.
      --notify NAME  Send the result to [notify.NAME] of rankwise.toml. May be given several times.
    """

    from_: str | None = None
    force: bool = False
    fail_fast: bool = False
    limit: Annotated[int, typer.Option(min=0)] = 50
    yes: bool = False
    notify: list[str] | None = None

    def planned(self) -> tuple[Plan, str]:
        """Return the plan with the text of its documents."""
        return self.plan(fail_fast=self.fail_fast, choice={"from": self.from_, "force": self.force})


@contextlib.contextmanager
def _created(wanted: StartOptions, plan: Plan, text: str) -> Iterator[tuple[Store, str]]:
    """Create the run of a plan; InputError: it cannot be started like this."""
    from rankwise.cli.foreground import with_recipients
    from rankwise.engine.runs import check_secrets
    from rankwise.store import Store

    # All that can refuse the plan comes before the run is stored.
    check_count(plan, limit=wanted.limit, is_agreed=wanted.yes)
    if wanted.notify:
        plan = with_recipients(plan, wanted.notify)
    check_secrets(plan.tasks)
    with Store.open(wanted.folder) as opened:
        if wanted.from_:
            from rankwise.engine.reuse import check_taken

            check_taken(opened, plan)
        yield opened, opened.create_run(plan, text, now=time.time())


def run_command(
    wanted: StartOptions,
    *,
    quiet: options.Quiet = False,
    json_: options.AsJson = False,
    list_: bool = False,
    junit: str | None = None,
    markdown: str | None = None,
) -> int:
    """Run documents here and now, and show what their processes write.

    The exit code is 0 if all passed, and otherwise that of the process that failed first. Ctrl-C
    ends everything in good order; after a second one it goes on alone, and `rankwise resume` shows
    it again.

    Options:
      --list           Only show the cells of a matrix, and start nothing.
      --junit FILE     Write the results as JUnit XML; - is standard output, after all else there.
      --markdown FILE  Write a summary in Markdown.

    Examples:
      rankwise run job.yaml
      rankwise run job.yaml --on gpu-cluster --strict
      rankwise run job.yaml --json | jq .kind
      rankwise run pipeline.yaml --from test
      rankwise run suite.yaml --failed --junit results.xml
      rankwise run suite.yaml --only checkpoint --repeat 20
      rankwise run matrix.yaml --only runtime=torch-2.13,machine=cpu*
    """
    from rankwise.cli.foreground import chosen, drive_shown, write_ci_outputs

    plan, text = wanted.planned()
    if list_:
        from rankwise.reports.terminal.console import make_console
        from rankwise.reports.terminal.matrix import show_cells

        show_cells(make_console(), plan)
        return 0
    with _created(wanted, plan, text) as (opened, run):
        row, shown = opened.run(run), chosen(quiet=quiet, as_json=json_)
        code = drive_shown(opened, row, plan.tasks, shown)
        files = {"junit": junit, "markdown": markdown}
        write_ci_outputs(opened, run, files, with_annotations=not json_)
        return code


def submit_command(wanted: StartOptions) -> None:
    """Run documents in the background, and print the run's id at once.

    It goes on when this shell is closed.

    Examples:
      rankwise submit job.yaml --notify team
      run=$(rankwise submit job.yaml) && rankwise logs -f $run
    """
    from rankwise.engine.runs import start_in_background

    plan, text = wanted.planned()
    with _created(wanted, plan, text) as (opened, run):
        start_in_background(opened, run)
    for notice in plan.notices:
        print(f"note: {notice}", file=sys.stderr)
    # Alone on standard output, for `run=$(rankwise submit …)`.
    print(run)
    if sys.stdout.isatty():
        print(f"To follow it:  rankwise logs -f {run}", file=sys.stderr)
