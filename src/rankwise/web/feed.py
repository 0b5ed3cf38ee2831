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
        # Versions are of one connection, and say nothing of another.
        self._seen: tuple[Desk, int] | None = None
        self._last: int | None = None
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
        found, last = await self._readers.ask(
            lambda desk: (desk.store.last_event(run), desk.store.last_event())
        )
        if self._last is None:
            # What comes after this, the next look must tell of.
            self._last = last
        return found

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
        """Give the newest event and whom it concerns; 0: nothing is new."""
        seen = (desk, desk.store.data_version())
        if seen == self._seen:
            return 0, set()
        before, last = self._last, desk.store.last_event()
        self._seen, self._last = seen, last
        # Of what was before anybody looked on, each watch has asked for itself.
        if before is None or last == before:
            return 0, set()
        # In another store that has taken its place, everything is new.
        return last, desk.store.runs_with_news(before if last > before else 0)

    def close(self) -> None:
        """End all streams."""
        self.is_closed = True
        for watch in self._watches:
            watch.news.set()
