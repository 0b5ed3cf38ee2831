"""What buttons do: end a run, and run a document again."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from rankwise.engine.background import start_in_background
from rankwise.engine.session import driver_of
from rankwise.errors import InputError
from rankwise.store import Store

_PLANNING_SECONDS = 120.0


def cancel(folder: Path, run: str) -> None:
    """Ask a run to end; one that nobody drives gets a driver, which ends it."""
    with Store.open(folder) as store:
        if store.run(run).state.is_over:
            return
        store.want_cancel(run, now=time.time())
        if driver_of(store.run_folder(run)) is None:
            start_in_background(store, run)


def run_again(folder: Path, run: str) -> str:
    """Submit the document of a run as it is now, and give the new run's id.

    It is planned in a process of its own: a document may name plugins and files of anybody's, and
    nothing of them is to stay in here. Raises InputError with what that process has said.
    """
    with Store.open(folder, read_only=True) as store:
        source = store.run(run).source
    if not source or not Path(source).is_file():
        raise InputError(f"{source or run}: the document is not there any more")
    # Without -P, a file of the user's could take the place of a module of ours.
    line = [sys.executable, "-P", "-m", "rankwise.cli.main", "submit", "--store", str(folder)]
    try:
        done = subprocess.run(
            [*line, "--", source],
            cwd=Path(source).parent,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PLANNING_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise InputError(f"{source}: it could not be planned in time") from None
    if done.returncode:
        raise InputError(done.stderr.strip() or f"rankwise submit has left with {done.returncode}")
    return done.stdout.split("\n")[0].strip()
