"""`rankwise resume`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rankwise.cli.options import AsJson, Quiet, Run, StoreFolder

if TYPE_CHECKING:
    from rankwise.store import RunRow


def command(
    run: Run = None, *, quiet: Quiet = False, as_json: AsJson = False, store: StoreFolder = None
) -> int:
    """Go on with a run that nobody drives any more.

    What has ended meanwhile is taken in, what still runs is watched, and what is left is started.
    Nothing runs twice. What its stages have submitted goes on as well, in the background.

    \b
    For example:
      rankwise resume sample-mpi-job-1
    """
    from rankwise.cli.foreground import chosen, drive_shown
    from rankwise.cli.stores import choose_run, open_for_reading, store_folder
    from rankwise.store import Store

    folder = store_folder(store)
    with open_for_reading(folder) as opened:
        found = choose_run(opened, run)
        if opened.children(found.id):
            from rankwise.engine.background import start_children

            start_children(opened, found.id)
    if found.state.is_over:
        _see_off(folder, found)
        if not quiet and not as_json:
            print(f"{found.id} is over: {found.state}; to run it again:  rankwise run FILE")
        return found.exit_code or 0
    with Store.open(folder) as opened:
        rows = opened.task_rows(found.id, bodies=True)
        tasks = [row.body for row in rows if row.body is not None]
        return drive_shown(opened, found, tasks, chosen(quiet=quiet, as_json=as_json))


def _see_off(folder: Path, run: RunRow) -> None:
    """Do what was to follow a run, if whoever has ended it was gone too soon."""
    from rankwise.cli.afterwards import is_to_follow, see_off
    from rankwise.store import Store

    if is_to_follow(run):
        with Store.open(folder, read_only=True) as opened:
            see_off(opened, run.id)
