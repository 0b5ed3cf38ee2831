"""The live page's application and its server: addresses, pages, actions on runs."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from urllib.parse import parse_qs, quote

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from rankwise.engine.runs import start_in_background
from rankwise.errors import InputError, RankwiseError
from rankwise.node import equipment
from rankwise.reports.model import ReportData, write_report
from rankwise.store import Store
from rankwise.store.store import driver_of
from rankwise.web import pages, runs
from rankwise.web.events import Feed, changes, event_stream
from rankwise.web.graph import graph_page
from rankwise.web.history import compare_page, trend_page
from rankwise.web.logs import LogPosition, log_file, log_of, log_page, log_stream
from rankwise.web.pages import PageContent, PageRequest
from rankwise.web.security import Guard, Secrets, is_same
from rankwise.web.store_access import PageCache, Readers, StoreThread, keep_updated

_PLANNING_SECONDS = 120.0


def cancel(folder: Path, run: str) -> str:
    """Ask a run to end; one without a driver gets one, which ends it."""
    with Store.open(folder) as store:
        if not store.run(run).state.is_over:
            store.want_cancel(run, now=time.time())
            if driver_of(store.run_folder(run)) is None:
                start_in_background(store, run)
    return run


def run_again(folder: Path, run: str) -> str:
    """Submit the document of a run as it is now, and give the new run's id.

    It is planned in a process of its own: a document may name plugins and files of its own, and
    none of them may stay in this process. Raises InputError with what that process has said.
    """
    with Store.open(folder, read_only=True) as store:
        documents = store.run(run).documents
    # Without any, it was made by a program.
    for document in documents or [""]:
        if not document or not Path(document).is_file():
            raise InputError(f"{document or run}: the document is not there any more")
    source = documents[0]
    # Without -P, a file of the user's could take the place of a module of ours.
    line = [sys.executable, "-P", "-m", "rankwise.cli.main", "submit", "--store", str(folder)]
    try:
        done = equipment.run([*line, "--", *documents], _PLANNING_SECONDS, cwd=Path(source).parent)
    except subprocess.TimeoutExpired:
        raise InputError(f"{source}: it could not be planned in time") from None
    if done.returncode:
        raise InputError(done.stderr.strip() or f"rankwise submit: exit code {done.returncode}")
    return done.stdout.split("\n")[0].strip()


View = Callable[[Store, PageRequest], PageContent]

PAGES: Mapping[str, View] = {
    "/": runs.run_list,
    "/trends": trend_page,
    "/compare": compare_page,
    "/runs/{run}": runs.tasks_page,
    "/runs/{run}/task": runs.task_page,
    "/runs/{run}/tests": runs.tests_page,
    "/runs/{run}/failures": runs.failure_page,
    "/runs/{run}/graph": graph_page,
    "/runs/{run}/matrix": runs.matrix_page,
    "/runs/{run}/timeline": runs.timeline_page,
    "/runs/{run}/logs": log_page,
    "/runs/{run}/document": runs.document_page,
}
"""The pages, by their addresses."""
# These may take seconds for long runs: one at a time, so that others need not wait.
_SLOW = {runs.timeline_page, runs.matrix_page, trend_page, compare_page, runs.failure_page}
_MOST_STREAMS = 200
_MOST_OF_A_FORM = 10_000
# A report says what a browser may do with it in itself.
_REPORT_RULES = {"Content-Security-Policy": "frame-ancestors 'none'"}


class WebApp:
    """What answers browsers, with all that is behind it."""

    def __init__(self, folder: Path, keys: Secrets) -> None:
        self._folder = folder
        self._keys = keys
        self._readers = Readers(folder)
        self._slow = Readers(folder, threads=1)
        self._memory = PageCache()
        # What is new must not wait for a page that takes long.
        self._scout = Readers(folder, threads=1)
        self.feed = Feed(self._scout)

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
            Route("/runs/{run}/cancel", self._doing(cancel, "cancel"), methods=["POST"]),
            Route("/runs/{run}/again", self._doing(run_again, "again"), methods=["POST"]),
        ]
        inner = Starlette(
            routes=routes,
            lifespan=self._lifespan,
            exception_handlers={
                404: self._fault("There is no such page", 404),
                405: self._fault("There is no such page", 405),
                InputError: self._fault("There is no such page", 404),
                RankwiseError: self._fault("The store cannot be read", 503),
                Exception: self._fault("Something is broken", 500),
            },
        )
        return Guard(inner, self._keys)

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        del app
        jobs = (self.feed.go(), keep_updated(self._folder))
        tasks = [asyncio.create_task(job) for job in jobs]
        try:
            yield
        finally:
            self.feed.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for one in (self._readers, self._slow, self._scout):
                await asyncio.to_thread(one.close)

    def _showing(self, view: View) -> Callable[[Request], object]:
        def make(thread: StoreThread, ask: PageRequest) -> PageContent:
            # First of all: what changes while the page is made is then news for it.
            seen = thread.store.last_event(ask.run or None)
            return view(thread.store, dataclasses.replace(ask, seen=seen))

        async def show(request: Request) -> Response:
            ask = self._ask(request)
            key = f"{request.url.path}?{request.url.query}"
            readers = self._slow if view in _SLOW else self._readers
            body = await readers.ask(
                lambda thread: self._memory.page(thread, ask, key, lambda: make(thread, ask))
            )
            return HTMLResponse(body)

        return show

    def _ask(self, request: Request) -> PageRequest:
        return PageRequest(
            path=quote(request.scope["path"]),
            query=dict(request.query_params),
            run=request.path_params.get("run", ""),
            now=time.time(),
            form=self._keys.form,
        )

    async def _changes(self, request: Request) -> Response:
        if self.feed.count >= _MOST_STREAMS:
            return Response("too many open pages", status_code=503)
        run = request.path_params.get("run")
        # A browser that comes back says what it was told last.
        given = request.headers.get("last-event-id") or request.query_params.get("seen", "")
        # More digits than an integer of SQLite has are no event.
        seen = int(given) if given.isascii() and given.isdigit() and len(given) < 19 else 0
        return event_stream(changes(self.feed, run, seen))

    async def _log_stream(self, request: Request) -> Response:
        ask = self._ask(request)
        try:
            found = await self._readers.ask(lambda thread: log_of(thread.store, ask))
        except InputError:
            found = None
        if found is None:
            # Browsers do not come back after this.
            return Response(status_code=204)
        position = LogPosition.read(request.headers.get("last-event-id") or ask.text("at"))
        return event_stream(log_stream(self._readers, self.feed, found, position))

    async def _log_file(self, request: Request) -> Response:
        ask = self._ask(request)
        found = await self._readers.ask(lambda thread: log_of(thread.store, ask))
        if found is None:
            return self._say(request, "There is no log yet", "Nothing ran so far.", 404)
        headers = {"Content-Disposition": 'attachment; filename="log.txt"'}
        return StreamingResponse(log_file(found), media_type="text/plain", headers=headers)

    async def _report(self, request: Request) -> Response:
        ask = self._ask(request)
        text = await self._slow.ask(
            lambda thread: write_report(
                ReportData(store=thread.store, run=thread.store.run(ask.run), now=ask.now), "html"
            )
        )
        return HTMLResponse(text, headers=_REPORT_RULES)

    def _doing(self, act: Callable[[Path, str], str], note: str) -> Callable[[Request], object]:
        """Do what a button says, if the form is ours, and lead to the page that shows it."""

        async def do(request: Request) -> Response:
            if not await _is_own_form(request, self._keys):
                words = "This form was not made by this server. Go back, and load the page again."
                return self._say(request, "That was not done", words, 403)
            try:
                run = await asyncio.to_thread(act, self._folder, request.path_params["run"])
            except RankwiseError as error:
                return self._say(request, "That could not be done", str(error), 422)
            # 303: the browser asks for the page with GET, and a reload does nothing twice.
            return RedirectResponse(pages.run_address(run, note=note), status_code=303)

        return do

    async def _static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in pages.FILES:
            return Response(status_code=404)
        data, kind, _ = pages.static_file(name)
        # Its address changes with it.
        headers = {"Cache-Control": "private, max-age=86400"}
        return Response(data, media_type=kind, headers=headers)

    def _fault(self, title: str, status: int) -> Callable[[Request, Exception], Response]:
        """Return what answers when a page cannot be made."""

        def answer(request: Request, error: Exception) -> Response:
            words = str(error) if isinstance(error, RankwiseError) else request.url.path
            if status == 500:
                # What an error of ours says may be about other runs: it is for the log only.
                traceback.print_exception(error, file=sys.stderr)
                words = "This is a fault of rankwise; its own output says more about it."
            return self._say(request, title, words, status)

        return answer

    def _say(self, request: Request, title: str, words: str, status: int) -> Response:
        page = pages.whole(pages.problem(title, words), self._ask(request), str(self._folder))
        return HTMLResponse(page, status_code=status)


async def _is_own_form(request: Request, keys: Secrets) -> bool:
    # Read by hand: Starlette's form parser needs another package.
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _MOST_OF_A_FORM:
            return False
    fields = parse_qs(body.decode(errors="replace"), max_num_fields=20)
    return is_same(fields.get("form", [""])[0], keys.form)


HOST = "127.0.0.1"
PORT = 8765
# Streams end when they are told to: this is for a page that is just being made.
_GRACE_SECONDS = 3
_ONLY_ROOT = "only root may listen there; take one of 1024 or more"
_REFUSED = {
    errno.EADDRINUSE: "another program uses this port; --port 0 takes a free one",
    errno.EACCES: _ONLY_ROOT,
    errno.EPERM: _ONLY_ROOT,
}
# Longer than browsers keep a connection that they do not use: they would ask just as it ends.
_IDLE_SECONDS = 330


def listen(port: int | None) -> socket.socket:
    """Take a port of this machine, 0 for any; None: the usual one, or any if that is taken.

    Raises InputError if it cannot be had.
    """
    wanted = PORT if port is None else port
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        # A server that has just ended leaves connections that would keep the port taken.
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((HOST, wanted))
        # Only now it is known that no other program listens there.
        found.listen()
    except OSError as error:
        found.close()
        if port is None and error.errno == errno.EADDRINUSE:
            return listen(0)
        why = _REFUSED.get(error.errno or 0, error.strerror)
        raise InputError(f"--port {wanted}: {why}") from error
    return found


class _Server(uvicorn.Server):
    """Ends without a word when it is asked to, and ends the streams of open pages."""

    def __init__(self, config: uvicorn.Config, leaving: Callable[[], None]) -> None:
        super().__init__(config)
        self._leaving = leaving

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take Ctrl-C and SIGTERM for the ordinary end that they are here."""
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGINT, signal.SIGTERM)
        for number in numbers:
            loop.add_signal_handler(number, self._leave)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    def _leave(self) -> None:
        # A second one does not wait for open pages.
        self.force_exit = self.should_exit
        self.should_exit = True
        self._leaving()


def serve(folder: Path, listening: socket.socket, keys: Secrets) -> None:
    """Serve until Ctrl-C or SIGTERM."""
    site = WebApp(folder, keys)
    config = uvicorn.Config(
        site.app(),
        # What goes wrong with a page is said by the page.
        log_level="critical",
        timeout_keep_alive=_IDLE_SECONDS,
        access_log=False,
        # There is no proxy: such headers would be what a visitor claims.
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=_GRACE_SECONDS,
        ws="none",
    )
    server = _Server(config, site.feed.close)
    asyncio.run(server.serve([listening]))
