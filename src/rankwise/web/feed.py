"""What is new: one reader looks for all who look on, and wakes those whom it concerns.

SQLite says for next to nothing whether anybody has written at all. Only then the events are read,
and only which runs they belong to: browsers ask for the page that they show, as they did before.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from rankwise.errors import RankwiseError
from rankwise.web.readers import Desk, Readers

_LOOK_SECONDS = 0.5


@dataclass(slots=True, eq=False)
class Watch:
    """One who looks on."""

    run: str | None
    """The run that matters; None: all do."""
    last: int = 0
    """The newest event that it has been told of."""
    news: asyncio.Event = field(default_factory=asyncio.Event)


class Feed:
    """Wakes those who look on."""

    def __init__(self, readers: Readers, *, pause: float = _LOOK_SECONDS) -> None:
        self._readers = readers
        self._pause = pause
        self._watches: set[Watch] = set()
        self._version = -1
        self._last = 0
        self.is_closed = False

    @property
    def count(self) -> int:
        """How many look on."""
        return len(self._watches)

    @contextlib.contextmanager
    def watching(self, run: str | None, seen: int) -> Iterator[Watch]:
        """Look on; `seen` is the newest event that is on the page already."""
        watch = Watch(run, seen)
        self._watches.add(watch)
        try:
            yield watch
        finally:
            self._watches.discard(watch)

    async def newest(self, run: str | None) -> int:
        """Give the newest event of a run or of all, as the store has it now."""
        return await self._readers.ask(lambda desk: desk.store.last_event(run))

    async def go(self) -> None:
        """Look again and again, until the task is cancelled."""
        while True:
            await asyncio.sleep(self._pause)
            if self._watches:
                # The store may be away for a moment; whoever asks for a page is told so.
                with contextlib.suppress(RankwiseError):
                    await self.look()

    async def look(self) -> None:
        """Look once, and wake those whom it concerns."""
        last, runs = await self._readers.ask(self._news)
        for watch in self._watches:
            if last and (watch.run is None or watch.run in runs):
                watch.last = last
                watch.news.set()

    def _news(self, desk: Desk) -> tuple[int, set[str]]:
        store = desk.store
        version = store.data_version()
        if version == self._version:
            return 0, set()
        is_first = self._version == -1
        before, self._version, self._last = self._last, version, store.last_event()
        # Of what was before anybody looked on, each watch has asked for itself.
        if is_first or self._last < before:
            return (0 if is_first else self._last), set()
        return self._last, store.runs_with_news(before)

    def close(self) -> None:
        """End all streams."""
        self.is_closed = True
        for watch in self._watches:
            watch.news.set()
