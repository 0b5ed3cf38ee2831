"""Authenticated messages between the switchboard or a controller and the ranks.

A message is a small JSON header and an opaque body, so that whoever only passes a body on never
decodes it. Nothing is ever unpickled. Both sides prove that they know the secret of the run
before anything else is said:

    rank                                      switchboard
    hello {name, nonce: a}              ->
                                        <-    challenge {nonce: b, proof: HMAC(a, "switchboard")}
    answer {proof: HMAC(b, "rank")}     ->
"""

from __future__ import annotations

import contextlib
import hmac
import json
import secrets
import socket
import struct
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_LENGTHS = struct.Struct("!II")
_RECEIVE_BYTES = 1 << 18
# A stranger may not make us keep more than this before it has shown the secret.
UNAUTHENTICATED_LIMIT = 4096
_CONNECT_SECONDS = 60.0
# Some short tests long, and nothing that a person who watches the progress would notice.
_ASIDE_SECONDS = 0.02

Header = dict[str, Any]
Name = int | str
"""By what name the one end of a line is known at the other: a rank's number, or what it is."""


class WireError(Exception):
    """The other side closed the connection, or does not speak our protocol."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where the switchboard listens: a socket file on one machine, host and port across nodes."""

    path: str = ""
    host: str = ""
    port: int = 0

    def connect(self, timeout: float) -> socket.socket:
        """Open a connection.

        Raises OSError when nobody listens there within `timeout` seconds.
        """
        if self.path:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.settimeout(timeout)
            try:
                connection.connect(self.path)
            except OSError:
                connection.close()
                raise
        else:
            connection = socket.create_connection((self.host, self.port), timeout)
            tune(connection)
        return connection


def tune(connection: socket.socket) -> None:
    """Have small messages sent at once, and notice within a minute that a machine is gone."""
    if connection.family == socket.AF_UNIX:
        return
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def listen_on_file(path: Path) -> tuple[socket.socket, Address]:
    """Listen on a socket file; its folder is what keeps other users out.

    Raises OSError, also when the path has more than about a hundred characters.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        listener.listen(4096)
    except OSError:
        listener.close()
        raise
    return listener, Address(path=str(path))


def listen_on_host(host: str) -> tuple[socket.socket, Address]:
    """Listen on a free port of one address of this machine."""
    listener = socket.create_server((host, 0), backlog=4096)
    return listener, Address(host=host, port=listener.getsockname()[1])


def encode(header: Header, body: bytes = b"") -> bytes:
    """Turn a message into the bytes that travel."""
    head = json.dumps(header, separators=(",", ":")).encode()
    return _LENGTHS.pack(len(head), len(body)) + head + body


class Decoder:
    """Cut a stream of bytes into messages."""

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[Header, bytes]]:
        """Take in what arrived and give out each message that is complete.

        Raises WireError when a message is larger than the limit or is not ours.
        """
        self._buffer += data
        while len(self._buffer) >= _LENGTHS.size:
            head, body = _LENGTHS.unpack_from(self._buffer)
            if self.limit is not None and head + body > self.limit:
                raise WireError(f"a message of {head + body} bytes is over the limit")
            end = _LENGTHS.size + head + body
            if len(self._buffer) < end:
                return
            payload = bytes(self._buffer[_LENGTHS.size : end])
            del self._buffer[:end]
            yield _parse_header(payload[:head]), payload[head:]


def _parse_header(data: bytes) -> Header:
    try:
        header = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise WireError("a message that is not ours") from error
    if not isinstance(header, dict):
        raise WireError("a message that is not ours")
    return header


def prove(secret: str, nonce: str, role: str) -> str:
    """Show that one knows the secret without saying it."""
    return hmac.new(secret.encode(), f"{role}:{nonce}".encode(), "sha256").hexdigest()


def is_proof(given: object, secret: str, nonce: str, role: str) -> bool:
    """Check the other side's proof, in constant time."""
    return isinstance(given, str) and hmac.compare_digest(
        given.encode(errors="replace"), prove(secret, nonce, role).encode()
    )


class Channel:
    """A rank's blocking end of the line. A rank that waits here uses no CPU."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._decoder = Decoder()
        self._messages: deque[tuple[Header, bytes]] = deque()
        self._unproven: tuple[str, str] | None = None
        self._aside = bytearray()
        self._aside_since = 0.0

    @classmethod
    def open(cls, address: Address, secret: str, name: Name) -> Channel:
        """Connect and say hello.

        The switchboard may still be starting: its answer is waited for, and its knowledge of the
        secret checked, when the line is first used. Raises OSError when nobody listens there.
        """
        channel = cls(address.connect(_CONNECT_SECONDS))
        nonce = secrets.token_hex(16)
        channel._connection.sendall(encode({"kind": "hello", "name": name, "nonce": nonce}))
        channel._unproven = secret, nonce
        return channel

    def _authenticate(self) -> None:
        """Check that the switchboard knows the secret, and show it that we do.

        Raises WireError when it does not know it, or does not answer in time.
        """
        assert self._unproven is not None
        (secret, nonce), self._unproven = self._unproven, None
        challenge, _ = self.receive()
        if not is_proof(challenge.get("proof"), secret, nonce, "switchboard"):
            raise WireError("the switchboard does not know the secret of this run")
        answer = {"kind": "answer", "proof": prove(secret, str(challenge["nonce"]), "rank")}
        try:
            self._connection.sendall(encode(answer))
        except OSError as error:
            raise WireError(f"the switchboard is gone: {error}") from error
        self._connection.settimeout(None)

    def send(self, header: Header, body: bytes = b"") -> None:
        """Send one message, after those that were put aside.

        Raises WireError when the other side is gone.
        """
        self.put(header, body, at_once=True)

    def put(self, header: Header, body: bytes = b"", *, at_once: bool = False) -> None:
        """Put a message aside, to go with others in one; not for longer than a moment.

        Raises WireError when the other side is gone.
        """
        now = time.monotonic()
        if not self._aside:
            self._aside_since = now
        self._aside += encode(header, body)
        if at_once or now - self._aside_since > _ASIDE_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Send what was put aside.

        Raises WireError when the other side is gone.
        """
        if self._unproven is not None:
            self._authenticate()
        data, self._aside = self._aside, bytearray()
        try:
            if data:
                self._connection.sendall(data)
        except OSError as error:
            raise WireError(f"the switchboard is gone: {error}") from error

    def fileno(self) -> int:
        """Let a selector wait for messages."""
        return self._connection.fileno()

    def receive_all(self) -> Iterator[tuple[Header, bytes]]:
        """Wait for messages and give all that have come.

        Raises WireError when the other side is gone.
        """
        yield self.receive()
        while self._messages:
            yield self._messages.popleft()

    def receive(self) -> tuple[Header, bytes]:
        """Wait for the next message.

        Raises WireError when the other side is gone.
        """
        if self._unproven is not None:
            self._authenticate()
        while not self._messages:
            try:
                data = self._connection.recv(_RECEIVE_BYTES)
            except OSError as error:
                raise WireError(f"the switchboard is gone: {error}") from error
            if not data:
                raise WireError("the switchboard is gone")
            self._messages.extend(self._decoder.feed(data))
        return self._messages.popleft()

    def receive_only(self, kind: str) -> Header:
        """Wait for a message of this kind; what comes before it is kept for later.

        Raises WireError when the other side is gone.
        """
        earlier: list[tuple[Header, bytes]] = []
        while True:
            header, body = self.receive()
            if header["kind"] == kind:
                self._messages.extendleft(reversed(earlier))
                return header
            earlier.append((header, body))

    def set_timeout(self, seconds: float | None) -> None:
        """Bound each further wait; WireError when one takes longer."""
        self._connection.settimeout(seconds)

    def drop(self) -> None:
        """Let go of a line that another process goes on with."""
        self._connection.close()

    def close(self) -> None:
        """Hang up; idempotent."""
        if self._unproven is not None:
            # The switchboard tells others that a rank has left only if it knows that it was one.
            with contextlib.suppress(WireError):
                self._authenticate()
        self._connection.close()
