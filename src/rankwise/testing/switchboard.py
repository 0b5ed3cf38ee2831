"""The process between the ranks: it knows who is free and says what runs next.

It is not a rank and runs no test, so that a test that computes, waits or holds the interpreter on
rank 0 never keeps the other ranks from working. It lives as long as the line that its parent holds,
and may be started without site-packages: standard library and this package only.
"""

from __future__ import annotations

import contextlib
import json
import logging
import selectors
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rankwise.testing import wire
from rankwise.testing.dispatch import Dispatcher, Suite, make_policy
from rankwise.testing.policy import Case, Pace
from rankwise.testing.wire import Header

_HANDSHAKE_SECONDS = 30.0
_log = logging.getLogger("rankwise.switchboard")


@dataclass(slots=True, eq=False)
class _Line:
    """One connection; it has a rank once it has shown the secret."""

    connection: socket.socket
    opened: float
    rank: int | None = None
    claimed: int | None = None
    nonce: str = ""
    decoder: wire.Decoder = field(
        default_factory=lambda: wire.Decoder(limit=wire.UNAUTHENTICATED_LIMIT)
    )
    pending: bytearray = field(default_factory=bytearray)


class Switchboard:
    """Connects `width` ranks and a dispatcher; rank `reporter` says what the suite is."""

    def __init__(
        self, listener: socket.socket, secret: str, *, width: int, reporter: int = 0
    ) -> None:
        self._listener = listener
        self._secret = secret
        self._width = width
        self._reporter = reporter
        self._selector = selectors.DefaultSelector()
        self._lines: dict[int, _Line] = {}
        self._strangers: set[_Line] = set()
        self._unsent: set[_Line] = set()
        self._early: dict[int, list[tuple[Header, bytes]]] = {}
        self._dispatcher: Dispatcher | None = None
        self._closed = False
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, self._accept)

    def tether(self, lifeline: socket.socket) -> None:
        """End when this line ends: whoever holds its other side is gone then."""
        self._selector.register(lifeline, selectors.EVENT_READ, self._end)

    def run(self) -> None:
        """Serve until the reporter or the lifeline is gone, then hang up."""
        while not self._closed:
            for key, mask in self._selector.select(1.0 if self._strangers else None):
                handler: Callable[[object, int], None] = key.data
                handler(key.fileobj, mask)
            self._drop_slow_strangers()
        for line in (*self._lines.values(), *self._strangers):
            line.connection.close()
        self._selector.close()

    # Connections

    def _end(self, _stream: object, _mask: int) -> None:
        self._closed = True

    def _accept(self, _listener: object, _mask: int) -> None:
        # Also when a flood of strangers has used up the file descriptors: ours are connected then.
        with contextlib.suppress(OSError):
            connection, _ = self._listener.accept()
            connection.setblocking(False)
            line = _Line(connection, opened=time.monotonic())
            self._strangers.add(line)
            self._selector.register(
                connection, selectors.EVENT_READ, lambda _, mask: self._ready(line, mask)
            )

    def _drop_slow_strangers(self) -> None:
        now = time.monotonic()
        for line in [s for s in self._strangers if now - s.opened > _HANDSHAKE_SECONDS]:
            self._drop(line, "it did not show the secret in time")

    def _drop(self, line: _Line, reason: str) -> None:
        self._strangers.discard(line)
        self._unsent.discard(line)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(line.connection)
        line.connection.close()
        if line.rank is None:
            _log.warning("dropped a connection: %s", reason)
            return
        self._lines.pop(line.rank, None)
        if line.rank == self._reporter:
            self._closed = True
        else:
            self._send(self._reporter, {"kind": "gone", "rank": line.rank})
            self._flush_all()

    def _ready(self, line: _Line, mask: int) -> None:
        try:
            if mask & selectors.EVENT_WRITE:
                self._flush(line)
            if mask & selectors.EVENT_READ:
                data = line.connection.recv(1 << 18)
                if not data:
                    self._drop(line, "it closed before it had shown the secret")
                    return
                for header, body in line.decoder.feed(data):
                    self._take(line, header, body)
                self._flush_all()
        except BlockingIOError:
            pass
        except (OSError, wire.WireError, KeyError, TypeError, ValueError, OverflowError) as error:
            if line.rank is not None and not isinstance(error, OSError):
                raise
            self._drop(line, str(error))

    def _send(self, rank: int, header: Header, body: bytes = b"") -> None:
        line = self._lines.get(rank)
        if line is None:
            self._early.setdefault(rank, []).append((header, body))
            return
        line.pending += wire.encode(header, body)
        self._unsent.add(line)

    def _flush_all(self) -> None:
        """Send what has come together for each rank while messages were read."""
        while self._unsent:
            self._flush(self._unsent.pop())

    def _flush(self, line: _Line) -> None:
        try:
            while line.pending:
                sent = line.connection.send(line.pending)
                del line.pending[:sent]
        except BlockingIOError:
            pass
        except OSError as error:
            self._drop(line, str(error))
            return
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if line.pending else 0)
        key = self._selector.get_key(line.connection)
        if key.events != wanted:
            self._selector.modify(line.connection, wanted, key.data)

    # Messages

    def _take(self, line: _Line, header: Header, body: bytes) -> None:
        if line.rank is None:
            self._greet(line, header)
        else:
            self._obey(line.rank, header, body)

    def _greet(self, line: _Line, header: Header) -> None:
        if header["kind"] == "hello":
            line.claimed, line.nonce = int(header["rank"]), f"{header['nonce']}:{time.time_ns()}"
            proof = wire.prove(self._secret, header["nonce"], "switchboard")
            line.pending += wire.encode({"kind": "challenge", "nonce": line.nonce, "proof": proof})
            self._flush(line)
            return
        if line.claimed is None or not wire.is_proof(
            header.get("proof"), self._secret, line.nonce, "rank"
        ):
            raise wire.WireError("it does not know the secret of this run")
        line.rank = line.claimed
        line.decoder.limit = None
        self._strangers.discard(line)
        self._lines[line.rank] = line
        for early, body in self._early.pop(line.rank, []):
            self._send(line.rank, early, body)

    def _obey(self, rank: int, header: Header, body: bytes) -> None:
        dispatcher = self._dispatcher
        match header["kind"]:
            case "begin":
                dispatcher = self._dispatcher = make_dispatcher(header, body, self._width)
                dispatcher.begin()
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
                self._send(self._reporter, {**header, "rank": rank}, body)
        while dispatcher is not None and dispatcher.outbox:
            self._send(*dispatcher.outbox.popleft())

    def _share(self, header: Header, body: bytes) -> None:
        """Tell every rank but the reporter, also those that have yet to connect."""
        for rank in range(self._width):
            if rank != self._reporter:
                self._send(rank, header, body)


def make_dispatcher(header: Header, body: bytes, width: int) -> Dispatcher:
    """Build the dispatcher that the reporter's `begin` asks for."""
    tests = json.loads(body)
    cases = [
        Case(index=index, size=size, seconds=seconds)
        for index, (size, seconds, _) in enumerate(tests)
    ]
    suite = Suite(cases=cases, groups=[groups for _, _, groups in tests])
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
            board = Switchboard(listener, settings["secret"], width=settings["width"])
            board.tether(line)
            try:
                board.run()
            finally:
                _remove_socket_file(listener)


def _remove_socket_file(listener: socket.socket) -> None:
    """Leave nothing behind, also if rank 0 was killed before it could tidy up."""
    if listener.family == socket.AF_UNIX:
        path = Path(listener.getsockname())
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
            path.parent.rmdir()
