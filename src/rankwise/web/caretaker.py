"""Takes in what has ended of runs that nobody drives, so that the page shows what is true."""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rankwise.engine.session import driver_of
from rankwise.errors import RankwiseError
from rankwise.store import State, Store

_LOOK_SECONDS = 10.0
_BUSY = (State.SUBMITTING, State.RUNNING)


class Caretaker:
    """Looks now and then, in a thread of its own: a cluster may take its time to answer."""

    def __init__(self, folder: Path, *, pause: float = _LOOK_SECONDS) -> None:
        self._folder = folder
        self._pause = pause
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="rankwise-caretaker")

    async def go(self) -> None:
        """Look again and again, until the task is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await loop.run_in_executor(self._executor, take_in, self._folder)
            await asyncio.sleep(self._pause)

    def close(self) -> None:
        """Wait for the last look."""
        self._executor.shutdown(cancel_futures=True)


def take_in(folder: Path) -> None:
    """Bring those runs up to date that nobody drives; who may only read, sees what was written."""
    with contextlib.suppress(RankwiseError, OSError):
        if not (left := _left_alone(folder)):
            return
        # An engine takes long to load: only where there is something to do.
        from rankwise.engine.runs import look

        with Store.open(folder) as store:
            for run in left:
                look(store, run)


def _left_alone(folder: Path) -> list[str]:
    with Store.open(folder, read_only=True) as store:
        return [
            run.id
            for run in store.open_runs()
            if driver_of(store.run_folder(run.id)) is None and any(store.tasks_in(run.id, _BUSY))
        ]
