"""Changes of the store, streamed to pages."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, field

from starlette.responses import StreamingResponse

from rankwise.errors import RankwiseError
from rankwise.web.store_access import Readers, StoreThread

_LOOK_SECONDS = 0.5


@dataclass(slots=True, eq=False)
class Subscriber:
    """An open page."""

    run: str | None
    """The run that matters; None: all do."""
    last: int = 0
    """The newest event that it has been told of."""
    news: asyncio.Event = field(default_factory=asyncio.Event)


class Feed:
    """Notifies open pages of changes."""

    def __init__(self, readers: Readers, *, pause: float = _LOOK_SECONDS) -> None:
        self._readers = readers
        self._pause = pause
        self._subscribers: set[Subscriber] = set()
        # Versions are of one connection, and say nothing of another.
        self._seen: tuple[StoreThread, int] | None = None
        self._last: int | None = None
        self.is_closed = False

    @property
    def count(self) -> int:
        """How many pages are open."""
        return len(self._subscribers)

    @contextlib.contextmanager
    def watching(self, run: str | None, seen: int) -> Iterator[Subscriber]:
        """Look on; `seen` is the newest event that is on the page already."""
        subscriber = Subscriber(run, seen)
        self._subscribers.add(subscriber)
        try:
            yield subscriber
        finally:
            self._subscribers.discard(subscriber)

    async def newest(self, run: str | None) -> int:
        """Return the newest event of a run or of all, as the store has it now."""
        found, last = await self._readers.ask(
            lambda thread: (thread.store.last_event(run), thread.store.last_event())
        )
        if self._last is None:
            # What comes after this, the next look must tell of.
            self._last = last
        return found

    async def go(self) -> None:
        """Look again and again, until the task is cancelled."""
        while True:
            await asyncio.sleep(self._pause)
            if self._subscribers:
                # The store may be away for a moment; a page that is asked for says so.
                with contextlib.suppress(RankwiseError):
                    await self.look()

    async def look(self) -> None:
        """Look once, and wake the pages that show what has changed."""
        last, runs = await self._readers.ask(self._news)
        for subscriber in self._subscribers:
            if last and (subscriber.run is None or subscriber.run in runs):
                subscriber.last = last
                subscriber.news.set()

    def _news(self, thread: StoreThread) -> tuple[int, set[str]]:
        """Return the newest event and the runs that have changed; 0: nothing is new."""
        seen = (thread, thread.store.data_version())
        if seen == self._seen:
            return 0, set()
        before, last = self._last, thread.store.last_event()
        # A change of the store need not come with an event.
        self._seen, self._last = seen, last
        # Of what was before the first page was open, each page has asked for itself.
        if before is None or last == before:
            return 0, set()
        # In another store that has taken its place, everything is new.
        return last, thread.store.runs_with_news(before if last > before else 0)

    def close(self) -> None:
        """End all streams."""
        self.is_closed = True
        for subscriber in self._subscribers:
            subscriber.news.set()


# Less often, a browser or something between would take it for dead.
_HEARTBEAT_SECONDS = 15.0
ALIVE = b": alive\n\n"
"""Sent at once, too, so that a browser knows that it is connected."""
# Without it, nginx holds a stream back until it ends.
_HEADERS = {"X-Accel-Buffering": "no"}


def message(kind: str, data: object, mark: object) -> bytes:
    """Write one event; its data are JSON, and a browser that comes back says its mark."""
    return f"id: {mark}\nevent: {kind}\ndata: {json.dumps(data)}\n\n".encode()


def event_stream(source: AsyncGenerator[bytes, None]) -> StreamingResponse:
    """Answer with events until their source ends or the browser has left."""
    return StreamingResponse(source, media_type="text/event-stream", headers=_HEADERS)


async def changes(feed: Feed, run: str | None, seen: int) -> AsyncGenerator[bytes, None]:
    """Say that something is new, at once if it came after what was seen."""
    with feed.watching(run, seen) as subscriber:
        yield ALIVE
        if (newest := await feed.newest(run)) > seen:
            subscriber.last = newest
            subscriber.news.set()
        while not feed.is_closed:
            try:
                await asyncio.wait_for(subscriber.news.wait(), _HEARTBEAT_SECONDS)
            except TimeoutError:
                yield ALIVE
            else:
                subscriber.news.clear()
                yield message("change", subscriber.last, subscriber.last)
