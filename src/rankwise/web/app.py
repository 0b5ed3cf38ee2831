"""The application: which address shows which page."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
import traceback
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from urllib.parse import parse_qs, quote

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from rankwise.errors import InputError, RankwiseError
from rankwise.report.facts import gather
from rankwise.report.html import html_report
from rankwise.store import Store
from rankwise.web import actions
from rankwise.web.ask import Ask, run_address
from rankwise.web.caretaker import Caretaker
from rankwise.web.compare_page import compare_page
from rankwise.web.failure_page import failure_page
from rankwise.web.feed import Feed
from rankwise.web.graph_page import graph_page
from rankwise.web.guard import Guard, Keys, is_same
from rankwise.web.log_page import log_file, log_of, log_page, log_stream
from rankwise.web.matrix_page import matrix_page
from rankwise.web.memory import Memory
from rankwise.web.page import FILES, Page, problem, static_file, whole
from rankwise.web.readers import Readers
from rankwise.web.run_list import run_list
from rankwise.web.run_pages import document_page, tasks_page, tests_page
from rankwise.web.streams import EventStream, changes
from rankwise.web.tails import Position
from rankwise.web.task_page import task_page
from rankwise.web.timeline_page import timeline_page
from rankwise.web.trend_page import trend_page

View = Callable[[Store, Ask], Page]

PAGES: Mapping[str, View] = {
    "/": run_list,
    "/trends": trend_page,
    "/compare": compare_page,
    "/runs/{run}": tasks_page,
    "/runs/{run}/task": task_page,
    "/runs/{run}/tests": tests_page,
    "/runs/{run}/failures": failure_page,
    "/runs/{run}/graph": graph_page,
    "/runs/{run}/matrix": matrix_page,
    "/runs/{run}/timeline": timeline_page,
    "/runs/{run}/logs": log_page,
    "/runs/{run}/document": document_page,
}
"""The pages, by their addresses."""
# These may take seconds for long runs: one at a time, so that there is always room for others.
_SLOW = {timeline_page, matrix_page, trend_page, compare_page, failure_page}
_MOST_STREAMS = 200
_MOST_OF_A_FORM = 10_000
# A report says what a browser may do with it in itself.
_REPORT_RULES = {"Content-Security-Policy": "frame-ancestors 'none'"}


class Site:
    """What answers browsers, with all that is behind it."""

    def __init__(self, folder: Path, keys: Keys) -> None:
        self._folder = folder
        self._keys = keys
        self._readers = Readers(folder)
        self._slow = Readers(folder, threads=1)
        self._memory = Memory()
        # What is new must not wait for a page that takes long.
        self._scout = Readers(folder, threads=1)
        self.feed = Feed(self._scout)
        self._caretaker = Caretaker(folder)

    def app(self) -> ASGIApp:
        """Make the application."""
        routes = [Route(path, self._showing(view)) for path, view in PAGES.items()]
        routes += [
            Route("/changes", self._changes),
            Route("/static/{name}", self._static),
            Route("/runs/{run}/changes", self._changes),
            Route("/runs/{run}/log-stream", self._log_stream),
            Route("/runs/{run}/log-file", self._log_file),
            Route("/runs/{run}/report", self._report),
            Route("/runs/{run}/cancel", self._cancel, methods=["POST"]),
            Route("/runs/{run}/again", self._again, methods=["POST"]),
        ]
        inner = Starlette(
            routes=routes,
            lifespan=self._lifespan,
            exception_handlers={
                404: self._missing,
                405: self._missing,
                InputError: self._unknown,
                RankwiseError: self._unreadable,
                Exception: self._broken,
            },
        )
        return Guard(inner, self._keys)

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        del app
        tasks = [asyncio.create_task(one.go()) for one in (self.feed, self._caretaker)]
        try:
            yield
        finally:
            self.feed.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for one in (self._readers, self._slow, self._scout, self._caretaker):
                await asyncio.to_thread(one.close)

    def _showing(self, view: View) -> Callable[[Request], object]:
        async def show(request: Request) -> Response:
            ask = self._ask(request)
            key = f"{request.url.path}?{request.url.query}"
            readers = self._slow if view in _SLOW else self._readers
            body = await readers.ask(
                lambda desk: self._memory.page(desk, ask, key, lambda: view(desk.store, ask))
            )
            return HTMLResponse(body)

        return show

    def _ask(self, request: Request) -> Ask:
        return Ask(
            path=quote(request.scope["path"]),
            query=dict(request.query_params),
            run=request.path_params.get("run", ""),
            now=time.time(),
            form=self._keys.form,
        )

    async def _changes(self, request: Request) -> Response | EventStream:
        if self.feed.count >= _MOST_STREAMS:
            return Response("too many look on", status_code=503)
        run = request.path_params.get("run")
        # A browser that comes back says what it was told last.
        given = request.headers.get("last-event-id") or request.query_params.get("seen", "")
        seen = int(given) if given.isascii() and given.isdigit() and len(given) < 19 else 0
        return EventStream(lambda: changes(self.feed, run, seen))

    async def _log_stream(self, request: Request) -> Response | EventStream:
        ask = self._ask(request)
        try:
            found = await self._readers.ask(lambda desk: log_of(desk.store, ask))
        except InputError:
            found = None
        if found is None:
            # Browsers do not come back after this.
            return Response(status_code=204)
        position = Position.read(request.headers.get("last-event-id") or ask.text("at"))
        return EventStream(lambda: log_stream(self._readers, self.feed, found, position))

    async def _log_file(self, request: Request) -> Response:
        ask = self._ask(request)
        found = await self._readers.ask(lambda desk: log_of(desk.store, ask))
        if found is None:
            return self._say(ask, problem("There is no log yet", "Nothing ran so far.", 404))
        headers = {"Content-Disposition": 'attachment; filename="log.txt"'}
        return StreamingResponse(log_file(found), media_type="text/plain", headers=headers)

    async def _report(self, request: Request) -> Response:
        ask = self._ask(request)
        text = await self._slow.ask(
            lambda desk: html_report(gather(desk.store, desk.store.run(ask.run), now=ask.now))
        )
        return HTMLResponse(text, headers=_REPORT_RULES)

    async def _cancel(self, request: Request) -> Response:
        return await self._act(request, self._ended)

    async def _again(self, request: Request) -> Response:
        return await self._act(request, self._repeated)

    def _ended(self, run: str) -> str:
        actions.cancel(self._folder, run)
        return run_address(run, note="cancel")

    def _repeated(self, run: str) -> str:
        return run_address(actions.run_again(self._folder, run), note="again")

    async def _act(self, request: Request, act: Callable[[str], str]) -> Response:
        """Do what a button says, if the form is ours, and lead to the page that shows it."""
        ask = self._ask(request)
        if not await _is_own_form(request, self._keys):
            words = "This form was not made by this server. Go back, and load the page again."
            return self._say(ask, problem("That was not done", words, 403))
        try:
            where = await asyncio.to_thread(act, ask.run)
        except RankwiseError as error:
            return self._say(ask, problem("That could not be done", str(error), 422))
        return RedirectResponse(where, status_code=303)

    async def _static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in FILES:
            return Response(status_code=404)
        data, kind, _ = static_file(name)
        # Its address changes with it.
        headers = {"Cache-Control": "private, max-age=86400"}
        return Response(data, media_type=kind, headers=headers)

    async def _missing(self, request: Request, error: Exception) -> Response:
        status = getattr(error, "status_code", 404)
        return self._say(
            self._ask(request), problem("There is no such page", request.url.path, status)
        )

    async def _unknown(self, request: Request, error: Exception) -> Response:
        return self._say(self._ask(request), problem("There is no such page", str(error), 404))

    async def _unreadable(self, request: Request, error: Exception) -> Response:
        return self._say(self._ask(request), problem("The store cannot be read", str(error), 503))

    async def _broken(self, request: Request, error: Exception) -> Response:
        traceback.print_exception(error, file=sys.stderr)
        words = "This is a fault of rankwise; where it runs, it has written more about it."
        return self._say(self._ask(request), problem("Something is broken", words, 500))

    def _say(self, ask: Ask, page: Page) -> Response:
        return HTMLResponse(whole(page, ask, str(self._folder)), status_code=page.status)


async def _is_own_form(request: Request, keys: Keys) -> bool:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _MOST_OF_A_FORM:
            return False
    fields = parse_qs(body.decode(errors="replace"), max_num_fields=20)
    return is_same(fields.get("form", [""])[0], keys.form)
