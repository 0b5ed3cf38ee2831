"""Threads that read the store, a cache of pages, and updates of runs without a driver."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
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
    """What one thread has: a connection, since SQLite's are not shared, and its pages."""

    store: Store
    inode: int
    memory: dict[str, tuple[object, bytes]] = field(default_factory=dict)


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


_MOST_PAGES = 16
_MOST_BYTES = 300_000
# Pages that are to be asked for less often than this are worth keeping until then.
_SLOW_SECONDS = 2.0
_Kept = TypeVar("_Kept")


class _Slow(NamedTuple):
    body: bytes
    until: float
    state: State
    """Of the run: when it is over, a page that says otherwise is wrong."""


class PageCache:
    """Remembers few pages: each thread its own as long as nothing changes, slow ones for all."""

    def __init__(self) -> None:
        self._slow: dict[str, _Slow] = {}

    def page(
        self, thread: StoreThread, ask: PageRequest, key: str, make: Callable[[], PageContent]
    ) -> bytes:
        """Return a page, and make it only if it must be."""
        # A page shows how long tasks have run: it is the same for a second at most.
        now = (thread.store.data_version(), int(ask.now))
        known = thread.memory.get(key)
        if known is not None and known[0] == now:
            return known[1]
        slow = self._slow.get(key)
        if slow is not None and ask.now < slow.until and _state(thread, ask) is slow.state:
            return slow.body
        page = make()
        body = whole(page, ask, str(thread.store.folder)).encode()
        # A few large pages would fill the memory of a server that runs for weeks.
        if len(body) <= _MOST_BYTES:
            if page.changes and page.interval > _SLOW_SECONDS:
                _keep(self._slow, key, _Slow(body, ask.now + page.interval, _state(thread, ask)))
            else:
                _keep(thread.memory, key, (now, body))
        return body


def _state(thread: StoreThread, ask: PageRequest) -> State:
    return thread.store.run(ask.run).state


def _keep(memory: dict[str, _Kept], key: str, what: _Kept) -> None:
    memory[key] = what
    # Other threads may do the same at the same time.
    for old in list(memory)[:-_MOST_PAGES]:
        memory.pop(old, None)
