"""Connections between the pods of a task: both ends prove first that they know its key.

    caller                              listener
    {nonce: a}                      ->
                                    <-  {nonce: b, proof: HMAC(key, "listener" a b)}
    {proof: HMAC(key, "caller" a b)} ->

Then messages go both ways: a small JSON header and a body.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

_LENGTHS = struct.Struct("!II")
_GREATEST = 64 << 20
# Before a caller has proved that it knows the key, it must not make us keep more than this.
_GREATEST_OF_STRANGERS = 1024
# How long the other end may take to prove that it knows the key.
_GREETING_SECONDS = 20.0


class PodConnectionError(OSError):
    """The other end is gone, or is none of ours."""


class PodConnection:
    """One connection; several threads may write, one reads."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._writing = threading.Lock()
        self._greatest = _GREATEST_OF_STRANGERS
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        # A node that loses its power does not hang up. USER_TIMEOUT, in milliseconds, is for what
        # was sent and never arrived: a quarter of an hour otherwise.
        options = {"KEEPIDLE": 20, "KEEPINTVL": 10, "KEEPCNT": 3, "USER_TIMEOUT": 50_000}
        for name, value in ((f"TCP_{name}", value) for name, value in options.items()):
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    @contextlib.contextmanager
    def greeting(self) -> Iterator[None]:
        """Trust the other end after the block: messages have any size, and come at any time.

        If the block raises, the line is closed.
        """
        try:
            yield
        except OSError:
            self.close()
            raise
        self._greatest = _GREATEST
        self._connection.settimeout(None)

    def send(self, header: dict[str, Any], body: bytes = b"") -> None:
        """Send one message; PodConnectionError: the other end is gone."""
        head = json.dumps(header).encode()
        try:
            with self._writing:
                self._connection.sendall(_LENGTHS.pack(len(head), len(body)) + head + body)
        except OSError as error:
            raise PodConnectionError(str(error)) from error

    def receive(self) -> tuple[dict[str, Any], bytes]:
        """Wait for one message; PodConnectionError: there will be none."""
        try:
            lengths = _LENGTHS.unpack(self._read(_LENGTHS.size))
            if sum(lengths) > self._greatest:
                raise PodConnectionError("a message is too long")
            header, body = self._read(lengths[0]), self._read(lengths[1])
            found = json.loads(header)
        except (OSError, ValueError) as error:
            raise PodConnectionError(str(error)) from error
        if not isinstance(found, dict):
            raise PodConnectionError("a message has no header")
        return found, body

    def _read(self, count: int) -> bytes:
        parts = []
        while count:
            part = self._connection.recv(min(count, 1 << 18))
            if not part:
                raise PodConnectionError("the other end has hung up")
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def close(self) -> None:
        # It is closed already.
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()


def call(
    address: str, port: int, key: bytes, *, seconds: float = _GREETING_SECONDS
) -> PodConnection:
    """Open a connection; PodConnectionError: nothing listens there that knows the key."""
    try:
        connection = socket.create_connection((address, port), timeout=seconds)
    except OSError as error:
        raise PodConnectionError(str(error)) from error
    line = PodConnection(connection)
    with line.greeting():
        mine = os.urandom(16).hex()
        line.send({"nonce": mine})
        said, _ = line.receive()
        theirs = str(said.get("nonce"))
        if not hmac.compare_digest(str(said.get("proof")), _proof(key, "listener", mine, theirs)):
            raise PodConnectionError("the listener does not know the key")
        line.send({"proof": _proof(key, "caller", mine, theirs)})
    return line


def answer(connection: socket.socket, key: bytes) -> PodConnection:
    """Take a call; PodConnectionError: the caller does not know the key."""
    connection.settimeout(_GREETING_SECONDS)
    line = PodConnection(connection)
    with line.greeting():
        said, _ = line.receive()
        theirs, mine = str(said.get("nonce")), os.urandom(16).hex()
        line.send({"nonce": mine, "proof": _proof(key, "listener", theirs, mine)})
        said, _ = line.receive()
        if not hmac.compare_digest(str(said.get("proof")), _proof(key, "caller", theirs, mine)):
            raise PodConnectionError("the caller does not know the key")
    return line


def answer_all(door: socket.socket, take: Callable[[socket.socket], None]) -> NoReturn:
    """Accept all connections, each in a thread of its own: a silent caller holds up no other."""
    while True:
        connection, _ = door.accept()
        threading.Thread(target=take, args=(connection,), daemon=True).start()


def _proof(key: bytes, who: str, first: str, second: str) -> str:
    return hmac.new(key, f"{who} {first} {second}".encode(), "sha256").hexdigest()


def listen(address: str, port: int) -> socket.socket:
    """Listen at an address; at all of them where it is not our own."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((address, port))
    except OSError:
        sock.bind(("", port))
    sock.listen(256)
    return sock
