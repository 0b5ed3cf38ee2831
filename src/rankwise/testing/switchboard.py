"""The process between the ranks: it knows who is free and says what runs next.

It is not a rank and runs no test, so that a test that computes, waits or holds the interpreter on
rank 0 never keeps the other ranks from working. It lives as long as the line that its parent holds,
and may be started without site-packages: standard library and this package only.
"""

from __future__ import annotations

import json
import logging
import shutil
import socket
import sys
from pathlib import Path

from rankwise.testing.dispatch import Dispatcher, Suite, make_policy
from rankwise.testing.exchange import Exchange
from rankwise.testing.lookout import Lookout
from rankwise.testing.policy import Case, Pace
from rankwise.testing.wire import Header, Name

_LOOK_SECONDS = 0.2


class Switchboard:
    """Connects `width` ranks and a dispatcher; rank `reporter` says what the suite is."""

    def __init__(
        self,
        listener: socket.socket,
        secret: str,
        *,
        width: int,
        reporter: int = 0,
        folder: str = "",
    ) -> None:
        self._width = width
        # Ranks of other machines cannot be looked after from here.
        self._lookout = Lookout(Path(folder), width) if folder else None
        self._reporter = reporter
        self._lines = Exchange(
            listener,
            secret,
            is_expected=lambda name: type(name) is int and 0 <= name < width,
            on_message=self._take,
            on_gone=self._gone,
        )
        self._dispatcher: Dispatcher | None = None
        self._closed = False

    def tether(self, lifeline: socket.socket) -> None:
        """End when this line ends: whoever holds its other side is gone then."""
        self._lines.tether(lifeline, self._end)

    def run(self) -> None:
        """Serve until the reporter or the lifeline is gone, then hang up."""
        while not self._closed:
            watched = self._lookout is not None and self._dispatcher is not None
            self._lines.step(_LOOK_SECONDS if watched else None)
            if self._lookout is not None and self._dispatcher is not None:
                self._lookout.look(self._dispatcher)
        self._lines.close()

    def _end(self) -> None:
        self._closed = True

    def _gone(self, rank: Name) -> None:
        if rank == self._reporter:
            self._closed = True
        else:
            self._lines.send(self._reporter, {"kind": "gone", "rank": rank})

    def _take(self, rank: Name, header: Header, body: bytes) -> None:
        assert isinstance(rank, int), f"{rank!r} is no rank"
        dispatcher = self._dispatcher
        match header["kind"]:
            case "begin":
                dispatcher = self._dispatcher = make_dispatcher(header, body, self._width)
                if self._lookout is not None:
                    self._lookout.begin(header, body)
                dispatcher.begin()
            case "here" | "stumbled" | "noted":
                if self._lookout is not None:
                    self._lookout.note(rank, header)
            case "done" if dispatcher is not None:
                dispatcher.done(rank, header, body)
            case "logged" if dispatcher is not None:
                dispatcher.logged(header["case"])
            case "stop" if dispatcher is not None:
                dispatcher.stop(at_once=header.get("at_once", False))
            case "stop":
                self._share({"kind": "finish"}, b"")
            case "share":
                self._share({**header, "kind": header["what"]}, body)
            case _:
                if header["kind"] == "interrupt" and dispatcher is not None:
                    # The reporter may be in a long test, or have much to report before it knows.
                    dispatcher.stop()
                self._lines.send(self._reporter, {**header, "rank": rank}, body)
        while dispatcher is not None and dispatcher.outbox:
            self._lines.send(*dispatcher.outbox.popleft())

    def _share(self, header: Header, body: bytes) -> None:
        """Tell every rank but the reporter, also those that have yet to connect."""
        for rank in range(self._width):
            if rank != self._reporter:
                self._lines.send(rank, header, body)


def make_dispatcher(header: Header, body: bytes, width: int) -> Dispatcher:
    """Build the dispatcher that the reporter's `begin` asks for."""
    tests = json.loads(body)
    cases = [
        Case(index=index, size=size, seconds=seconds)
        for index, (size, seconds, *_) in enumerate(tests)
    ]
    suite = Suite(cases=cases, groups=[groups for _, _, groups, *_ in tests])
    pace = Pace(batching=not header["careful"])
    policy = make_policy(header["scheduler"], suite, width, pace, strict=header["strict"])
    return Dispatcher(
        suite, policy, pace, width=width, maxfail=header["maxfail"], acknowledged=header["careful"]
    )


def serve(descriptor: int) -> None:
    """Serve a run, as the process at the other end of the line `descriptor` says."""
    logging.basicConfig(format="rankwise: %(message)s", stream=sys.stderr)
    with socket.socket(fileno=descriptor) as line:
        message, descriptors, _, _ = socket.recv_fds(line, 4096, 1)
        if not message:
            return
        settings = json.loads(message)
        with socket.socket(fileno=descriptors[0]) as listener:
            board = Switchboard(
                listener,
                settings["secret"],
                width=settings["width"],
                folder=settings.get("folder", ""),
            )
            board.tether(line)
            try:
                board.run()
            finally:
                _remove_socket_file(listener)


def _remove_socket_file(listener: socket.socket) -> None:
    """Leave nothing behind, also if rank 0 was killed before it could tidy up."""
    if listener.family == socket.AF_UNIX:
        path = Path(listener.getsockname())
        shutil.rmtree(path.parent, ignore_errors=True)
