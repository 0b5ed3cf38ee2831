"""`rankwise status`."""

from __future__ import annotations

import json
import time
from typing import Annotated

import typer

from rankwise.cli.options import AsJson, Run, StoreFolder


def command(
    run: Run = None,
    *,
    everything: Annotated[
        bool, typer.Option("--all", help="Show all tasks, however many there are.")
    ] = False,
    as_json: AsJson = False,
    store: StoreFolder = None,
) -> None:
    """Show how a run stands.

    Of many tasks, only those are named that are running or not green.

    \b
    For example:
      rankwise status
      rankwise status sample-mpi-job-1 --json
    """
    from rankwise.cli.stores import choose_run, open_for_reading, store_folder, take_in
    from rankwise.engine.session import driver_of
    from rankwise.report.matrix import matrix_of
    from rankwise.report.status import status_data, status_of

    with open_for_reading(store_folder(store)) as opened:
        chosen = choose_run(opened, run)
        for one in (chosen, *opened.children(chosen.id)):
            take_in(opened, one)
        chosen = opened.run(chosen.id)
        driver = driver_of(opened.run_folder(chosen.id))
        status = status_of(opened, chosen, driver=driver, with_all=everything or as_json)
        matrix = None if as_json else matrix_of(opened, chosen)
    if as_json:
        print(json.dumps(status_data(status), indent=2))
        return
    from rankwise.report.terminal import make_console
    from rankwise.report.terminal_status import show_status

    if matrix is not None:
        from rankwise.report.terminal_matrix import show_matrix

        show_matrix(make_console(), matrix)
    show_status(make_console(), status, now=time.time())
