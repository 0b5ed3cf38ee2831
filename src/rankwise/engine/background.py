"""Runs that nobody looks on at: a process of its own drives them."""

from __future__ import annotations

import subprocess
import sys

from rankwise.engine.session import driver_of
from rankwise.store import Store

_LOG = "engine.log"


def start_children(store: Store, run: str) -> None:
    """Have those runs driven that stages of a run have left behind."""
    for child in store.children(run):
        if not child.state.is_over and driver_of(store.run_folder(child.id)) is None:
            start_in_background(store, child.id)


def start_in_background(store: Store, run: str) -> None:
    """Start a process that drives the run, and that nothing here can end."""
    # Without -P, a file of the user's could take the place of a module of ours.
    line = [sys.executable, "-P", "-m", "rankwise.cli.main"]
    line += ["resume", run, "--quiet", "--store", str(store.folder)]
    folder = store.run_folder(run)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOG).open("ab") as log:
        subprocess.Popen(
            line, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
