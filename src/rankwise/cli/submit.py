"""`rankwise submit`."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from rankwise.cli.options import Files, On, StoreFolder, Strict

_LOG = "engine.log"


def command(
    files: Files,
    *,
    strict: Strict = False,
    on: On = None,
    store: StoreFolder = None,
) -> None:
    """Run documents in the background, and print the run's id at once.

    It goes on when this shell is closed.

    \b
    For example:
      run=$(rankwise submit job.yaml)
      rankwise logs -f $run
    """
    from rankwise.cli.stores import store_folder
    from rankwise.engine.runs import check_secrets
    from rankwise.planning import plan_from
    from rankwise.store import Store

    plan, text = plan_from(files, strict=strict, on=on)
    check_secrets(plan)
    with Store.open(store_folder(store)) as opened:
        run = opened.create_run(plan, text, now=time.time())
        _start(opened.folder, run, opened.run_folder(run))
    for notice in plan.notices:
        print(f"note: {notice}", file=sys.stderr)
    print(run)
    if sys.stdout.isatty():
        print(f"To look on:  rankwise logs -f {run}", file=sys.stderr)


def _start(store: Path, run: str, folder: Path) -> None:
    """Start a process that drives the run, and that nothing here can end."""
    # Without -P, a file of the user's could take the place of a module of ours.
    line = [sys.executable, "-P", "-m", "rankwise.cli.main"]
    line += ["resume", run, "--quiet", "--store", str(store)]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOG).open("ab") as log:
        subprocess.Popen(
            line, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
