"""Threads that read the store, a cache of pages, and updates of runs without a driver."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

from rankwise.errors import RankwiseError
from rankwise.store import State, Store
from rankwise.store.store import driver_of
from rankwise.web.pages import PageContent, PageRequest, whole

# A cluster is not asked more often only because a page is open.
_LOOK_SECONDS = 10.0
_BUSY = (State.SUBMITTING, State.RUNNING)


async def keep_updated(folder: Path) -> None:
    """Update runs without a driver again and again, until the task is cancelled."""
    while True:
        # In a thread: a cluster may take its time to answer. The end of the loop waits for it.
        await asyncio.to_thread(update_stale_runs, folder)
        await asyncio.sleep(_LOOK_SECONDS)


def update_stale_runs(folder: Path) -> None:
    """Bring the runs without a driver up to date; nothing, where the store can only be read."""
    with contextlib.suppress(RankwiseError, OSError):
        with Store.open(folder, read_only=True) as store:
            left = [
                run.id
                for run in store.open_runs()
                if driver_of(store.run_folder(run.id)) is None
                and any(store.tasks_in(run.id, _BUSY))
            ]
        if not left:
            return
        # An engine takes long to load: only where there is something to do.
        from rankwise.engine.runs import look

        with Store.open(folder) as store:
            for run in left:
                look(store, run)


_Result = TypeVar("_Result")
# Pages that are asked for at once are not held up by a long one.
_THREADS = 4


@dataclass(slots=True, eq=False)
class StoreThread:
    """What one thread has: a connection, since SQLite's are not shared."""

    store: Store
    inode: int


class Readers:
    """Does what asks the store for something, beside the loop that talks to browsers."""

    def __init__(self, folder: Path, threads: int = _THREADS) -> None:
        self.folder = folder
        self._own = threading.local()
        self._threads = threads
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="rankwise-reader")

    async def ask(self, question: Callable[[StoreThread], _Result]) -> _Result:
        """Have a thread ask the store."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, lambda: question(self._thread()))

    def _thread(self) -> StoreThread:
        thread: StoreThread | None = getattr(self._own, "thread", None)
        # The store may have been removed, and a new one begun.
        if thread is not None and _inode(thread.store.path) != thread.inode:
            thread.store.close()
            thread = self._own.thread = None
        if thread is None:
            store = Store.open(self.folder, read_only=True)
            thread = self._own.thread = StoreThread(store, _inode(store.path))
        return thread

    def close(self) -> None:
        """Close all connections, each in its thread."""
        together = threading.Barrier(self._threads)
        for _ in range(self._threads):
            self._executor.submit(self._leave, together)
        self._executor.shutdown()

    def _leave(self, together: threading.Barrier) -> None:
        # No thread may take the place of another.
        together.wait(timeout=30.0)
        thread: StoreThread | None = getattr(self._own, "thread", None)
        if thread is not None:
            thread.store.close()


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return 0


_MOST_PAGES = 64
_MOST_BYTES = 300_000
# Pages that are to be asked for less often than this are worth keeping until then.
_SLOW_SECONDS = 2.0


class _KeptPage(NamedTuple):
    body: bytes
    made: tuple[int, int, int]
    """From which store, up to which event, and in which second."""
    until: float
    """It may be shown until then, also when something has changed, as long as the run goes on."""
    state: State | None


class PageCache:
    """Remembers few pages: each as long as nothing changes, and those that take long for longer."""

    def __init__(self) -> None:
        self._pages: dict[str, _KeptPage] = {}

    def page(
        self, thread: StoreThread, ask: PageRequest, key: str, make: Callable[[], PageContent]
    ) -> bytes:
        """Return a page, and make it only if it must be."""
        state = thread.store.run(ask.run).state if ask.run else None
        # A page shows how long tasks have run: it is the same for a second at most.
        made = (thread.inode, thread.store.last_event(ask.run or None), int(ask.now))
        known = self._pages.get(key)
        # When the run is over, a page that says otherwise is wrong.
        if known and (known.made == made or (ask.now < known.until and known.state is state)):
            return known.body
        page = make()
        body = whole(page, ask, str(thread.store.folder)).encode()
        # A few large pages would fill the memory of a server that runs for weeks.
        if len(body) <= _MOST_BYTES:
            is_slow = page.changes and page.interval > _SLOW_SECONDS
            until = ask.now + page.interval if is_slow else 0.0
            self._pages[key] = _KeptPage(body, made, until, state)
            # Other threads may do the same at the same time.
            for old in list(self._pages)[:-_MOST_PAGES]:
                self._pages.pop(old, None)
        return body
