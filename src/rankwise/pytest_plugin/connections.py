"""Messages between the processes of a run: addresses, names, channels, and lines to many."""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
import selectors
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

# Own references: a test may have put something else in their place, and this runs in its middle.
_dumps, _loads, _monotonic = json.dumps, json.loads, time.monotonic
_receive, _send_all = socket.socket.recv, socket.socket.sendall

_LENGTHS = struct.Struct("!II")
_RECEIVE_BYTES = 1 << 18
# A stranger may not make us keep more than this before it has shown the secret.
UNAUTHENTICATED_LIMIT = 4096
_CONNECT_SECONDS = 60.0
_LONGEST_WAIT = 1e9
# The address of a socket has room for so many bytes of a path; TMPDIR may have more.
_LONGEST_PATH = 107
# Some short tests long, and nothing that a person who watches the progress would notice.
_ASIDE_SECONDS = 0.02

Header = dict[str, Any]
Name = int | str
"""By what name the one end of a line is known at the other: a rank's number, or what it is."""


class WireError(Exception):
    """The other side closed the connection, or does not speak our protocol."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where the coordinator listens: a socket file on one machine, host and port across nodes."""

    path: str = ""
    host: str = ""
    port: int = 0

    def connect(self, timeout: float) -> socket.socket:
        """Open a connection.

        Raises OSError when no process listens there within `timeout` seconds.
        """
        if self.path:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.settimeout(timeout)
            try:
                with reachable(self.path) as path:
                    connection.connect(path)
            except OSError:
                connection.close()
                raise
        else:
            connection = socket.create_connection((self.host, self.port), timeout)
            tune(connection)
        return connection


def pair() -> tuple[socket.socket, socket.socket]:
    """Return the two ends of a line, on which no wait has a limit.

    A module of the user's may have set such a limit for all new sockets.
    """
    ends = socket.socketpair()
    for end in ends:
        end.settimeout(None)
    return ends


def tune(connection: socket.socket) -> None:
    """Have small messages sent at once, and notice within a minute that a machine is gone."""
    if connection.family == getattr(socket, "AF_UNIX", None):
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # Of 120 minutes, a minute: 20 s, and then 3 probes at intervals of 10 s.
    options = {"TCP_NODELAY": 1, "TCP_KEEPIDLE": 20, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
    for name, value in options.items():
        # Not every system has all of them.
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


@contextlib.contextmanager
def reachable(path: str) -> Iterator[str]:
    """Return a short name for a socket file; raises OSError when its folder is not there."""
    # Without these names of descriptors, as on macOS, the system refuses a path that is too long.
    if len(os.fsencode(path)) <= _LONGEST_PATH or not hasattr(os, "O_PATH"):
        yield path
        return
    folder, name = os.path.split(path)
    # A short path to the same folder, by a descriptor of it.
    number = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{number}/{name}"
    finally:
        os.close(number)


def listen_on_file(path: Path) -> tuple[socket.socket, Address]:
    """Listen on a socket file, or raise OSError; its folder is what keeps other users out."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with reachable(str(path)) as name:
            listener.bind(name)
        # All ranks connect at the same moment: a short queue would refuse some.
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
    head = _dumps(header, separators=(",", ":")).encode()
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
    header = None
    with contextlib.suppress(ValueError, RecursionError):
        header = _loads(data)
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
    """A rank's blocking end of the line. A rank that waits here uses no CPU.

    Whatever sends or receives raises WireError when the other side is gone.
    """

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

        The coordinator may still be starting: its answer is waited for, and its knowledge of the
        secret checked, when the line is first used. Raises OSError when no process listens there.
        """
        channel = cls(address.connect(_CONNECT_SECONDS))
        nonce = secrets.token_hex(16)
        channel._connection.sendall(encode({"kind": "hello", "name": name, "nonce": nonce}))
        channel._unproven = secret, nonce
        return channel

    def _authenticate(self) -> None:
        """Check that the coordinator knows the secret, and show it that we do.

        Raises WireError when it does not know it, or does not answer in time.
        """
        assert self._unproven is not None
        (secret, nonce), self._unproven = self._unproven, None
        challenge, _ = self.receive()
        if not is_proof(challenge.get("proof"), secret, nonce, "coordinator"):
            raise WireError("the coordinator does not know the secret of this run")
        answer = {"kind": "answer", "proof": prove(secret, str(challenge["nonce"]), "rank")}
        try:
            self._connection.sendall(encode(answer))
        except OSError as error:
            raise WireError(f"the coordinator is gone: {error}") from error
        self._connection.settimeout(None)

    def send(self, header: Header, body: bytes = b"") -> None:
        """Send one message, after those that were put aside."""
        self.put(header, body, at_once=True)

    def put(self, header: Header, body: bytes = b"", *, at_once: bool = False) -> None:
        """Put a message aside, to go with others in one; not for longer than a moment."""
        now = _monotonic()
        if not self._aside:
            self._aside_since = now
        self._aside += encode(header, body)
        if at_once or now - self._aside_since > _ASIDE_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Send what was put aside."""
        if self._unproven is not None:
            self._authenticate()
        # Before it is sent: if that fails, it must not be sent twice.
        data, self._aside = self._aside, bytearray()
        try:
            if data:
                _send_all(self._connection, data)
        except OSError as error:
            raise WireError(f"the coordinator is gone: {error}") from error

    def fileno(self) -> int:
        """Let a selector wait for messages."""
        return self._connection.fileno()

    def receive_all(self) -> Iterator[tuple[Header, bytes]]:
        """Wait for messages and give all that have come."""
        yield self.receive()
        while self._messages:
            yield self._messages.popleft()

    def receive(self) -> tuple[Header, bytes]:
        """Wait for the next message."""
        if self._unproven is not None:
            self._authenticate()
        while not self._messages:
            try:
                data = _receive(self._connection, _RECEIVE_BYTES)
            except OSError as error:
                raise WireError(f"the coordinator is gone: {error}") from error
            if not data:
                raise WireError("the coordinator is gone")
            self._messages.extend(self._decoder.feed(data))
        return self._messages.popleft()

    def receive_only(self, kind: str) -> Header:
        """Wait for a message of this kind; what comes before it is kept for later."""
        earlier: list[tuple[Header, bytes]] = []
        while True:
            header, body = self.receive()
            if header["kind"] == kind:
                self._messages.extendleft(reversed(earlier))
                return header
            earlier.append((header, body))

    def set_timeout(self, seconds: float | None) -> None:
        """Bound each further wait; WireError when one takes longer."""
        # Python refuses to wait for centuries.
        self._connection.settimeout(seconds if seconds is None else min(seconds, _LONGEST_WAIT))

    def close(self) -> None:
        """Hang up; idempotent."""
        if self._unproven is not None:
            # The coordinator tells others that a rank has left only if it knows that it was one.
            with contextlib.suppress(WireError):
                self._authenticate()
        self._connection.close()


INVITATION = "RANKWISE_INVITATION"
WORLD = "RANKWISE_WORLD"
CORES = "RANKWISE_CORES"
TEMPLATE = "template"
SUPERVISOR = "supervisor"

# More ranks than this in one world would have the numbers of another's.
_RANKS_OF_A_WORLD = 1 << 20


def worker_number(world: int, rank: int) -> int:
    """Return the number by which a rank of a world is known in the run."""
    # One number, as schedulers and the coordinator of an mpirun know workers, too.
    return world * _RANKS_OF_A_WORLD + rank


def world_and_rank(worker: int) -> tuple[int, int]:
    """Return the world and the rank behind such a number."""
    return divmod(worker, _RANKS_OF_A_WORLD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Invitation:
    """What a process needs to know to take part in a run."""

    address: Address
    secret: str
    folder: str
    width: int
    settings: Mapping[str, Any]
    is_distant: bool = False
    """Whether it is for processes on nodes that have a folder of their own each."""

    @property
    def own_folder(self) -> Path:
        """The folder of the run on this machine."""
        folder = Path(self.folder)
        # Folders above it may have any name.
        return folder.with_name(folder.name.replace("%n", node_name()))

    def to_text(self) -> str:
        """Write it down for a process that is started from nothing."""
        return json.dumps(asdict(self))

    @classmethod
    def from_environment(cls) -> Invitation:
        """Read what a controller wrote down for this process, which it has started."""
        data = json.loads(os.environ.pop(INVITATION))
        return cls(**{**data, "address": Address(**data["address"])})


def node_name() -> str:
    """Return the name of the node that a batch system has started this process on."""
    return os.environ.get("SLURMD_NODENAME", "")


def name_on_node(name: str, node: str) -> str:
    """Return the name by which a server on a node is known in the run."""
    return f"{name}@{node}"


def name_and_node(name: Name) -> tuple[str, str]:
    """Return the kind of server behind such a name, and its node."""
    kind, _, node = str(name).partition("@")
    return kind, node


_HANDSHAKE_SECONDS = 30.0
Event = tuple[Name, Header | None, bytes]
"""A message and who sent it; without a header: who has closed the connection."""


@dataclass(slots=True, eq=False)
class _Line:
    """One connection; it has a name once it has shown the secret."""

    connection: socket.socket
    opened: float
    name: Name | None = None
    claimed: Name | None = None
    nonce: str = ""
    decoder: Decoder = field(default_factory=lambda: Decoder(limit=UNAUTHENTICATED_LIMIT))
    pending: bytearray = field(default_factory=bytearray)


class Exchange:
    """Accepts processes that know the secret, and passes on what they say, by their names."""

    def __init__(
        self,
        listener: socket.socket,
        secret: str,
        *,
        is_expected: Callable[[object], bool],
        on_message: Callable[[Name, Header, bytes], None],
        on_gone: Callable[[Name], None],
        on_stranger: Callable[[str], None],
    ) -> None:
        self._listener = listener
        self._secret = secret
        self._is_expected = is_expected
        self._on_message = on_message
        self._on_gone = on_gone
        self._on_stranger = on_stranger
        self._selector = selectors.DefaultSelector()
        self._lines: dict[Name, _Line] = {}
        self._strangers: set[_Line] = set()
        self._unsent: set[_Line] = set()
        self._early: dict[Name, list[tuple[Header, bytes]]] = {}
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, self._accept)

    def tether(self, lifeline: socket.socket, on_end: Callable[[], None]) -> None:
        """Call back when this line ends: the process at its other side is gone then."""
        self._selector.register(lifeline, selectors.EVENT_READ, lambda _stream, _mask: on_end())

    def adopt(self, name: Name, connection: socket.socket) -> None:
        """Take in a line to a process that need not show the secret: it was started with it."""
        connection.setblocking(False)
        line = _Line(connection, opened=time.monotonic(), name=name)
        line.decoder.limit = None
        self._lines[name] = line
        self._watch(line)

    def has(self, name: Name) -> bool:
        """Return whether this one is connected."""
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

    def collect(
        self, is_enough: Callable[[list[Event]], bool], seconds: float | None = None
    ) -> list[Event]:
        """Return what comes until it is enough or the time is over; `deliver` deals with it."""
        # The usual callbacks would act at once, in the middle of what waits for this answer.
        events: list[Event] = []
        usual = self._on_message, self._on_gone
        self._on_message = lambda name, header, body: events.append((name, header, body))
        self._on_gone = lambda name: events.append((name, None, b""))
        deadline = None if seconds is None else time.monotonic() + seconds
        try:
            while not is_enough(events) and (deadline is None or time.monotonic() < deadline):
                self.step(0.1)
        finally:
            self._on_message, self._on_gone = usual
        return events

    def deliver(self, events: Sequence[Event]) -> None:
        """Deal with what was collected."""
        for name, header, body in events:
            if header is None:
                self._on_gone(name)
            else:
                self._on_message(name, header, body)

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
        # Ranks connect one after the other; what is for all of them need not wait.
        if line is None:
            self._early.setdefault(name, []).append((header, body))
            return
        line.pending += encode(header, body)
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
            tune(connection)
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
        # Never registered, or closed by the other side in this very step: both are fine.
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
                # The first message of a stranger may be anything: errors of it close this line
                # alone.
                for header, body in line.decoder.feed(data):
                    self._take(line, header, body)
                self.flush()
        except BlockingIOError:
            pass
        except (OSError, WireError, KeyError, TypeError, ValueError, OverflowError) as error:
            # A process with the secret is one of ours: what is wrong then is a defect, to be seen.
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
        except OSError:
            # The other side hung up. What it sent before, such as its goodbye, is yet to be read.
            line.pending.clear()
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
                raise WireError("its name is not expected")
            line.claimed, line.nonce = name, f"{header['nonce']}:{time.time_ns()}"
            # Both sides prove it, with nonces of the other: neither proof can be used a second
            # time.
            proof = prove(self._secret, header["nonce"], "coordinator")
            line.pending += encode({"kind": "challenge", "nonce": line.nonce, "proof": proof})
            self._flush(line)
            return
        if line.claimed is None or not is_proof(
            header.get("proof"), self._secret, line.nonce, "rank"
        ):
            raise WireError("it does not know the secret of this run")
        line.name = line.claimed
        line.decoder.limit = None
        self._strangers.discard(line)
        self._lines[line.name] = line
        for early, body in self._early.pop(line.name, []):
            self.send(line.name, early, body)
