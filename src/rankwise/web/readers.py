"""Threads that read the store, each with a connection of its own: SQLite's cannot be shared."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from rankwise.store import Store

_Result = TypeVar("_Result")
# Pages of two people that are asked for at once are not held up by a third one's long one.
_THREADS = 4


@dataclass(slots=True, eq=False)
class Desk:
    """What one thread has: the store, and what it remembers of it."""

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

    async def ask(self, question: Callable[[Desk], _Result]) -> _Result:
        """Have a thread ask the store."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, lambda: question(self._desk()))

    def _desk(self) -> Desk:
        desk: Desk | None = getattr(self._own, "desk", None)
        # Somebody may have removed the store, and begun a new one.
        if desk is not None and _inode(desk.store.path) != desk.inode:
            desk.store.close()
            desk = self._own.desk = None
        if desk is None:
            store = Store.open(self.folder, read_only=True)
            desk = self._own.desk = Desk(store, _inode(store.path))
        return desk

    def close(self) -> None:
        """Close all connections, each in its thread."""
        together = threading.Barrier(self._threads)
        for _ in range(self._threads):
            self._executor.submit(self._leave, together)
        self._executor.shutdown()

    def _leave(self, together: threading.Barrier) -> None:
        # No thread may take the place of another.
        together.wait(timeout=30.0)
        desk: Desk | None = getattr(self._own, "desk", None)
        if desk is not None:
            desk.store.close()


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return 0
