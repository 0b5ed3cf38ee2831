"""Serves the page on this machine until somebody ends it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import uvicorn

from rankwise.errors import InputError
from rankwise.web.app import Site
from rankwise.web.guard import Keys

HOST = "127.0.0.1"
PORT = 8765
_GRACE_SECONDS = 3
# Longer than browsers keep a connection that they do not use: they would ask just as it ends.
_IDLE_SECONDS = 330


def listen(port: int | None) -> socket.socket:
    """Take a port of this machine, 0 for any; None: the usual one, or any if that is taken.

    Raises InputError if it cannot be had.
    """
    wanted = PORT if port is None else port
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((HOST, wanted))
        # Only now it is known that nobody else listens there.
        found.listen()
    except OSError as error:
        found.close()
        if port is None and error.errno == errno.EADDRINUSE:
            return listen(0)
        raise InputError(why_not(wanted, error)) from error
    return found


def why_not(port: int, error: OSError) -> str:
    """Say why a port cannot be had, and what to do."""
    if error.errno == errno.EADDRINUSE:
        return f"--port {port}: another program listens there; --port 0 takes one that is free"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"--port {port}: only root may listen there; take one of 1024 or more"
    return f"--port {port}: {error.strerror}"


class _Server(uvicorn.Server):
    """Ends without a word when it is asked to, and tells who still listens."""

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
        # A second one does not wait for anybody.
        self.force_exit = self.should_exit
        self.should_exit = True
        self._leaving()


def serve(folder: Path, listening: socket.socket, keys: Keys) -> None:
    """Serve until Ctrl-C or SIGTERM."""
    site = Site(folder, keys)
    config = uvicorn.Config(
        site.app(),
        # What goes wrong with a page is said by the page. That somebody waits for one at the end is
        # no matter.
        log_level="critical",
        timeout_keep_alive=_IDLE_SECONDS,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=_GRACE_SECONDS,
        ws="none",
    )
    server = _Server(config, site.feed.close)
    asyncio.run(server.serve([listening]))


def keys_for(listening: socket.socket) -> Keys:
    """Make new secrets; the cookie is named after the port."""
    return Keys(name=f"rankwise-{port_of(listening)}")


def port_of(listening: socket.socket) -> int:
    """Give the port that was taken."""
    return int(listening.getsockname()[1])
