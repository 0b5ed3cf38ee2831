"""Which store and which run a person means."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from rankwise.errors import InputError, StoreFailure

if TYPE_CHECKING:
    from rankwise.store import RunRow, Store

_FOLDER = ".rankwise"


def store_folder(given: Path | None) -> Path:
    """Give the folder of the store."""
    return (given or Path(_FOLDER)).absolute()


def open_for_reading(folder: Path) -> Store:
    """Open a store that is there."""
    from rankwise.store import Store

    return Store.open(folder, read_only=True)


def choose_run(store: Store, given: str | None) -> RunRow:
    """Give the run that is meant; None means the newest."""
    if given is not None:
        return store.find_run(given)
    if newest := store.last_run():
        return newest
    raise InputError(f"{store.path}: there are no runs yet; to make one:  rankwise run FILE")


def take_in(store: Store, run: RunRow) -> None:
    """Bring a run up to date that nobody drives, if there may be news and we may write."""
    from rankwise.engine.session import driver_of
    from rankwise.store import State

    if run.state.is_over or driver_of(store.run_folder(run.id)) is not None:
        return
    if not any(store.tasks_in(run.id, (State.SUBMITTING, State.RUNNING))):
        return
    # An engine takes long to load: only now.
    from rankwise.engine.runs import look
    from rankwise.store import Store

    # Whoever can only read, sees what was written last.
    with contextlib.suppress(StoreFailure), Store.open(store.folder) as writable:
        look(writable, run.id)
