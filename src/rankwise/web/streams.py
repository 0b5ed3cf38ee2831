"""Server-sent events: answers that go on, for as long as the browser is there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from starlette.types import Receive, Scope, Send

from rankwise.web.feed import Feed, Watch

# Less often, a browser or something between would take it for dead.
_HEARTBEAT_SECONDS = 15.0
_ALIVE = b": alive\n\n"
_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")]


def message(kind: str, data: object, mark: object) -> bytes:
    """Write one event; its data are JSON, and a browser that comes back says its mark."""
    return f"id: {mark}\nevent: {kind}\ndata: {json.dumps(data)}\n\n".encode()


class EventStream:
    """An answer that goes on until its source ends or the browser has left."""

    def __init__(self, source: Callable[[], AsyncGenerator[bytes, None]]) -> None:
        self._source = source

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        pump = asyncio.create_task(self._pump(send))
        leaving = asyncio.create_task(_until_gone(receive))
        tasks = (pump, leaving)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _pump(self, send: Send) -> None:
        async with aclosing(self._source()) as source:
            # At once, so that the browser knows that it is connected.
            await send({"type": "http.response.body", "body": _ALIVE, "more_body": True})
            async for part in source:
                await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def changes(feed: Feed, run: str | None, seen: int) -> AsyncGenerator[bytes, None]:
    """Say that something is new, at once if it came after what was seen."""
    with feed.watching(run, seen) as watch:
        if (newest := await feed.newest(run)) > seen:
            watch.last = newest
            watch.news.set()
        while not feed.is_closed:
            yield await _next(watch)


async def _next(watch: Watch) -> bytes:
    try:
        await asyncio.wait_for(watch.news.wait(), _HEARTBEAT_SECONDS)
    except TimeoutError:
        return _ALIVE
    watch.news.clear()
    return message("change", watch.last, watch.last)
