"""Lines from many processes to this one: who is at the other end, and what they say.

Standard library and this package only: a switchboard may be started without site-packages.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from rankwise.testing import wire
from rankwise.testing.wire import Header, Name

_HANDSHAKE_SECONDS = 30.0
_log = logging.getLogger("rankwise.exchange")


@dataclass(slots=True, eq=False)
class _Line:
    """One connection; it has a name once it has shown the secret."""

    connection: socket.socket
    opened: float
    name: Name | None = None
    claimed: Name | None = None
    nonce: str = ""
    decoder: wire.Decoder = field(
        default_factory=lambda: wire.Decoder(limit=wire.UNAUTHENTICATED_LIMIT)
    )
    pending: bytearray = field(default_factory=bytearray)


class Exchange:
    """Lets in those who know the secret, and passes on what they say by the name they gave."""

    def __init__(
        self,
        listener: socket.socket,
        secret: str,
        *,
        is_expected: Callable[[object], bool],
        on_message: Callable[[Name, Header, bytes], None],
        on_gone: Callable[[Name], None],
        on_stranger: Callable[[str], None] | None = None,
    ) -> None:
        self._listener = listener
        self._secret = secret
        self._is_expected = is_expected
        self._on_message = on_message
        self._on_gone = on_gone
        self._on_stranger = on_stranger or _warn
        self._selector = selectors.DefaultSelector()
        self._lines: dict[Name, _Line] = {}
        self._strangers: set[_Line] = set()
        self._unsent: set[_Line] = set()
        self._early: dict[Name, list[tuple[Header, bytes]]] = {}
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, self._accept)

    def tether(self, lifeline: socket.socket, on_end: Callable[[], None]) -> None:
        """Tell when this line ends: whoever holds its other side is gone then."""
        self._selector.register(lifeline, selectors.EVENT_READ, lambda _stream, _mask: on_end())

    def adopt(self, name: Name, connection: socket.socket) -> None:
        """Take in a line to a process that need not show the secret: it was started with it."""
        connection.setblocking(False)
        line = _Line(connection, opened=time.monotonic(), name=name)
        line.decoder.limit = None
        self._lines[name] = line
        self._watch(line)

    def has(self, name: Name) -> bool:
        """Tell whether this one is connected."""
        return name in self._lines

    def step(self, seconds: float | None) -> None:
        """Wait for something to happen, for no longer than told; then deal with all of it."""
        if self._strangers:
            seconds = min(1.0, seconds if seconds is not None else 1.0)
        for key, mask in self._selector.select(seconds):
            handler: Callable[[object, int], None] = key.data
            handler(key.fileobj, mask)
        self._drop_slow_strangers()
        self.flush()

    def close(self) -> None:
        """Hang up on everybody; idempotent."""
        for line in (*self._lines.values(), *self._strangers):
            line.connection.close()
        self._lines.clear()
        self._strangers.clear()
        self._selector.close()

    def send(self, name: Name, header: Header, body: bytes = b"") -> None:
        """Send a message with the next `flush`; one who has yet to connect gets it then."""
        line = self._lines.get(name)
        if line is None:
            self._early.setdefault(name, []).append((header, body))
            return
        line.pending += wire.encode(header, body)
        self._unsent.add(line)

    def flush(self) -> None:
        """Send what has come together for each one while messages were read."""
        while self._unsent:
            self._flush(self._unsent.pop())

    def forget(self, name: Name) -> None:
        """Hang up on one, without telling that it is gone."""
        self._early.pop(name, None)
        line = self._lines.pop(name, None)
        if line is not None:
            self._hang_up(line)

    # Connections

    def _accept(self, _listener: object, _mask: int) -> None:
        # Also when a flood of strangers has used up the file descriptors: ours are connected then.
        with contextlib.suppress(OSError):
            connection, _ = self._listener.accept()
            wire.tune(connection)
            connection.setblocking(False)
            line = _Line(connection, opened=time.monotonic())
            self._strangers.add(line)
            self._watch(line)

    def _watch(self, line: _Line) -> None:
        self._selector.register(
            line.connection, selectors.EVENT_READ, lambda _, mask: self._ready(line, mask)
        )

    def _drop_slow_strangers(self) -> None:
        now = time.monotonic()
        for line in [s for s in self._strangers if now - s.opened > _HANDSHAKE_SECONDS]:
            self._drop(line, "it did not show the secret in time")

    def _hang_up(self, line: _Line) -> None:
        self._strangers.discard(line)
        self._unsent.discard(line)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(line.connection)
        line.connection.close()

    def _drop(self, line: _Line, reason: str) -> None:
        self._hang_up(line)
        if line.name is None:
            self._on_stranger(reason)
        elif self._lines.get(line.name) is line:
            del self._lines[line.name]
            self._on_gone(line.name)

    def _ready(self, line: _Line, mask: int) -> None:
        if line.connection.fileno() < 0:
            return  # dropped while others were dealt with
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
                self.flush()
        except BlockingIOError:
            pass
        except (OSError, wire.WireError, KeyError, TypeError, ValueError, OverflowError) as error:
            if line.name is not None and not isinstance(error, OSError):
                raise
            self._drop(line, str(error))

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
        if line.name is None:
            self._greet(line, header)
        else:
            self._on_message(line.name, header, body)

    def _greet(self, line: _Line, header: Header) -> None:
        if header["kind"] == "hello":
            name = header["name"]
            if not self._is_expected(name):
                raise wire.WireError("it has a name that nobody expects")
            line.claimed, line.nonce = name, f"{header['nonce']}:{time.time_ns()}"
            proof = wire.prove(self._secret, header["nonce"], "switchboard")
            line.pending += wire.encode({"kind": "challenge", "nonce": line.nonce, "proof": proof})
            self._flush(line)
            return
        if line.claimed is None or not wire.is_proof(
            header.get("proof"), self._secret, line.nonce, "rank"
        ):
            raise wire.WireError("it does not know the secret of this run")
        line.name = line.claimed
        line.decoder.limit = None
        self._strangers.discard(line)
        self._lines[line.name] = line
        for early, body in self._early.pop(line.name, []):
            self.send(line.name, early, body)


def _warn(reason: str) -> None:
    _log.warning("dropped a connection: %s", reason)
