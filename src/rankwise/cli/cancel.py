"""`rankwise cancel`."""

from __future__ import annotations

import time

from rankwise.cli.options import Run, StoreFolder

# A runner gives its processes some seconds before it kills them.
_PATIENCE_SECONDS = 30.0
_LOOK_SECONDS = 0.1


def command(run: Run = None, *, store: StoreFolder = None) -> int:
    """End a run and everything that it has started.

    It waits until all has ended.

    \b
    For example:
      rankwise cancel sample-mpi-job-1
    """
    from rankwise.cli.stores import choose_run, open_for_reading, store_folder
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
                print(f"{chosen.id} has been told to end, but goes on: rankwise status {chosen.id}")
                return 1
            time.sleep(_LOOK_SECONDS)
    # It may have been faster than we.
    print(f"{now.id} {now.state}")
    return 0
