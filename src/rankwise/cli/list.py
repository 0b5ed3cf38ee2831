"""`rankwise list`."""

from __future__ import annotations

import json
import time
from typing import Annotated

import typer

from rankwise.cli.options import AsJson, StoreFolder


def command(
    *,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="So many at most.")] = 20,
    as_json: AsJson = False,
    store: StoreFolder = None,
) -> None:
    """List runs, the newest first.

    \b
    For example:
      rankwise list --limit 5
    """
    from rankwise.cli.stores import open_for_reading, store_folder, take_in
    from rankwise.report.status import run_data

    with open_for_reading(store_folder(store)) as opened:
        for run in opened.runs(limit):
            take_in(opened, run)
        runs = opened.runs(limit)
    if as_json:
        print(json.dumps([run_data(run) for run in runs], indent=2))
        return
    from rankwise.report.terminal import make_console
    from rankwise.report.terminal_status import show_runs

    show_runs(make_console(), runs, now=time.time())
    if not runs:
        print("There are no runs yet; to make one:  rankwise run FILE")
