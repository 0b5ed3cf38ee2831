"""`rankwise logs`."""

from __future__ import annotations

from typing import Annotated

import typer

from rankwise.cli.options import Run, StoreFolder, TaskKey


def command(
    run: Run = None,
    *,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the run is over.")
    ] = False,
    rank: Annotated[
        int | None, typer.Option("--rank", min=0, metavar="N", help="Only what this rank wrote.")
    ] = None,
    process: Annotated[
        str | None,
        typer.Option("--process", metavar="NAME", help="Only what this process wrote: worker-2."),
    ] = None,
    task: TaskKey = None,
    attempt: Annotated[
        int | None,
        typer.Option("--attempt", min=1, metavar="N", help="This attempt, and not the last one."),
    ] = None,
    store: StoreFolder = None,
) -> None:
    """Show what the processes of a run have written.

    \b
    For example:
      rankwise logs -f
      rankwise logs sample-mpi-job-1 --rank 3
    """
    from rankwise.cli.reading import Choice, Reader
    from rankwise.cli.stores import choose_run, open_for_reading, store_folder

    folder = store_folder(store)
    with open_for_reading(folder) as opened:
        chosen = choose_run(opened, run)
        reader = Reader(
            opened, chosen, Choice(rank=rank, process=process, task=task, attempt=attempt)
        )
        if follow:
            reader.follow()
        else:
            reader.read()
