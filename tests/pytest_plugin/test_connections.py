"""Framing, proofs and channels, and the hub: who may connect and what it passes on."""

from __future__ import annotations

import json
import shutil
import socket
import struct
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwise.pytest_plugin import connections
from rankwise.pytest_plugin import connections as exchange_module
from rankwise.pytest_plugin.connections import (
    Channel,
    Decoder,
    Exchange,
    Header,
    Name,
    WireError,
    encode,
    prove,
)

SECRET = "the secret of this run"
# Nothing here takes long; without a limit a defect would be a hang.
LIMIT = 20.0

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
headers = st.dictionaries(st.text(), json_values, max_size=5)
messages = st.lists(st.tuples(headers, st.binary(max_size=300)), max_size=8)


def in_pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    ends = [*sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    starts = [0, *ends[:-1]]
    return [data[start:end] for start, end in zip(starts, ends, strict=True)]


# Framing


@given(messages, st.lists(st.integers(0, 1 << 20), max_size=20))
def test_messages_come_out_as_they_went_in_however_the_bytes_are_cut(
    sent: list[tuple[Header, bytes]], cuts: list[int]
) -> None:
    stream = b"".join(encode(header, body) for header, body in sent)
    decoder = Decoder()
    received = [message for piece in in_pieces(stream, cuts) for message in decoder.feed(piece)]
    assert received == sent


@given(st.dictionaries(st.text(), json_values, max_size=3), st.binary(max_size=50))
def test_a_message_is_given_out_with_its_last_byte_and_not_before(
    header: Header, body: bytes
) -> None:
    stream = encode(header, body)
    decoder = Decoder()
    assert list(decoder.feed(stream[:-1])) == []
    assert list(decoder.feed(stream[-1:])) == [(header, body)]


@pytest.mark.parametrize("text", ["\ud800", "\x00", "naïve 中文 🎲", "\u2028"])
def test_any_text_travels_in_a_header(text: str) -> None:
    ((header, _),) = Decoder().feed(encode({"text": text}))
    assert header == {"text": text}


def test_numbers_that_json_does_not_know_travel_too() -> None:
    ((header, _),) = Decoder().feed(encode({"infinite": float("inf"), "none": float("nan")}))
    assert header["infinite"] == float("inf")
    assert header["none"] != header["none"]


@given(st.integers(0, 200), st.integers(0, 200))
def test_what_is_over_the_limit_is_refused_before_it_has_arrived(head: int, body: int) -> None:
    decoder = Decoder(limit=100)
    announced = struct.pack("!II", head, body)
    if head + body > 100:
        with pytest.raises(WireError, match=f"{head + body} bytes"):
            list(decoder.feed(announced))
    elif head:
        assert list(decoder.feed(announced)) == []


def test_lifting_the_limit_lets_large_messages_through() -> None:
    decoder = Decoder(limit=10)
    decoder.limit = None
    assert list(decoder.feed(encode({}, b"x" * 1000))) == [({}, b"x" * 1000)]


@pytest.mark.parametrize(
    "head", [b"", b"{", b"[]", b"1", b"null", b'"text"', b"\xff\xfe", b"{'a': 1}", b"[" * 3000]
)
def test_a_header_that_is_not_ours_is_refused(head: bytes) -> None:
    with pytest.raises(WireError, match="not ours"):
        list(Decoder().feed(struct.pack("!II", len(head), 0) + head))


@given(st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=5))
def test_garbage_is_refused_or_waited_on_but_never_anything_else(
    garbage: bytes, cuts: list[int]
) -> None:
    decoder = Decoder(limit=connections.UNAUTHENTICATED_LIMIT)
    try:
        for piece in in_pieces(garbage, cuts):
            for header, body in decoder.feed(piece):
                assert isinstance(header, dict)
                assert isinstance(body, bytes)
    except WireError:
        pass


# Proofs


# HMAC fills short keys up with NUL: secrets have none.
SECRETS = st.text(st.characters(exclude_characters="\0"))


@given(SECRETS, st.text(), SECRETS)
def test_a_proof_convinces_only_for_the_same_secret_and_nonce(
    secret: str, nonce: str, other: str
) -> None:
    def encodable(text: str) -> str:
        return text.encode(errors="replace").decode()

    secret, nonce, other = encodable(secret), encodable(nonce), encodable(other)
    proof = connections.prove(secret, nonce, "rank")
    assert connections.is_proof(proof, secret, nonce, "rank")
    assert connections.is_proof(proof, other, nonce, "rank") == (other == secret)
    assert connections.is_proof(proof, secret, other, "rank") == (other == nonce)


def test_a_proof_cannot_be_sent_back_to_its_sender() -> None:
    assert not connections.is_proof(
        connections.prove(SECRET, "n", "coordinator"), SECRET, "n", "rank"
    )


@pytest.mark.parametrize("given_proof", [None, 0, 1.5, True, [], {}, "", "é", "\ud800"])
def test_what_is_no_proof_at_all_does_not_convince(given_proof: object) -> None:
    assert not connections.is_proof(given_proof, SECRET, "n", "rank")


def test_the_secret_is_not_in_the_proof() -> None:
    assert SECRET not in connections.prove(SECRET, "n", "rank")


# Channels


class Peer:
    """Plays the coordinator on one connection."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(LIMIT)
        self._connection = connection
        self._decoder = Decoder()
        self._messages: deque[tuple[Header, bytes]] = deque()

    def send(self, data: bytes) -> None:
        self._connection.sendall(data)

    def read(self) -> tuple[Header, bytes]:
        while not self._messages:
            data = self._connection.recv(1 << 16)
            assert data, "the rank hung up"
            self._messages.extend(self._decoder.feed(data))
        return self._messages.popleft()

    def has_hung_up(self) -> bool:
        return not self._messages and not self._connection.recv(1 << 16)

    def challenge(self, secret: str = SECRET) -> None:
        hello, _ = self.read()
        proof = connections.prove(secret, hello["nonce"], "coordinator")
        self.send(encode({"kind": "challenge", "nonce": "n", "proof": proof}))

    def welcome(self) -> Header:
        """Greet a rank; gives its answer."""
        self.challenge()
        return self.read()[0]


@contextmanager
def served(play: Callable[[Peer], None], path: Path) -> Iterator[connections.Address]:
    """Let a function play the coordinator for the first one who connects."""
    listener, address = connections.listen_on_file(path)

    def run() -> None:
        connection, _ = listener.accept()
        with connection:
            play(Peer(connection))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield address
    finally:
        thread.join(LIMIT)
        listener.close()
        assert not thread.is_alive()


def test_a_rank_shows_the_secret_without_saying_it(tmp_path: Path) -> None:
    answers: list[Header] = []
    with served(lambda peer: answers.append(peer.welcome()), tmp_path / "s") as address:
        channel = Channel.open(address, SECRET, name=3)
        with pytest.raises(WireError, match="gone"):
            channel.receive()
        channel.close()
    (answer,) = answers
    assert connections.is_proof(answer["proof"], SECRET, "n", "rank")
    assert SECRET not in json.dumps(answer)


def test_a_rank_does_not_talk_to_a_coordinator_with_another_secret(tmp_path: Path) -> None:
    heard_nothing: list[bool] = []

    def play(peer: Peer) -> None:
        peer.challenge("another secret")
        heard_nothing.append(peer.has_hung_up())

    with served(play, tmp_path / "s") as address:
        channel = Channel.open(address, SECRET, name=0)
        with pytest.raises(WireError, match="does not know the secret"):
            channel.send({"kind": "collected"})
        channel.close()
    assert heard_nothing == [True]


@pytest.mark.parametrize("challenge", [b"\0" * 8, b"GET / HTTP/1.0\r\n\r\n", encode({})])
def test_a_rank_does_not_talk_to_what_is_no_coordinator(tmp_path: Path, challenge: bytes) -> None:
    def play(peer: Peer) -> None:
        peer.read()
        peer.send(challenge)

    with served(play, tmp_path / "s") as address:
        channel = Channel.open(address, SECRET, name=0)
        with pytest.raises(WireError):
            channel.receive()
        channel.close()


def test_a_rank_can_connect_before_the_coordinator_serves(tmp_path: Path) -> None:
    """It may still be starting: the answer is waited for when the line is first used."""
    listener, address = connections.listen_on_file(tmp_path / "s")
    channel = Channel.open(address, SECRET, name=0)
    connection, _ = listener.accept()
    with listener, connection:
        peer = Peer(connection)
        thread = threading.Thread(target=peer.welcome)
        thread.start()
        channel.send({"kind": "collected"})
        thread.join(LIMIT)
        assert peer.read() == ({"kind": "collected"}, b"")
    channel.close()


def test_a_rank_that_hangs_up_without_a_word_says_first_who_it_was(tmp_path: Path) -> None:
    """Only of a rank that it knows can the coordinator tell others that it has left."""
    answers: list[Header] = []
    with served(lambda peer: answers.append(peer.welcome()), tmp_path / "s") as address:
        Channel.open(address, SECRET, name=0).close()
    assert connections.is_proof(answers[0]["proof"], SECRET, "n", "rank")


# What the address of a socket has room for, one byte more, and far more.
@pytest.mark.parametrize("length", [107, 108, 250])
def test_the_path_of_a_socket_may_have_any_length(
    request: pytest.FixtureRequest, length: int
) -> None:
    # Not where TMPDIR is, whose name may be long.
    base = Path(tempfile.mkdtemp(prefix="rw", dir="/tmp"))
    request.addfinalizer(lambda: shutil.rmtree(base))
    folder = base / ("x" * (length - len(str(base)) - len("//s")))
    folder.mkdir()
    assert len(str(folder / "s")) == length
    answers: list[Header] = []
    before = len([*Path("/proc/self/fd").iterdir()])
    with served(lambda peer: answers.append(peer.welcome()), folder / "s") as address:
        Channel.open(address, SECRET, name=0).close()
    assert len(answers) == 1
    assert [path.name for path in folder.iterdir()] == ["s"]
    assert len([*Path("/proc/self/fd").iterdir()]) == before


def test_a_rank_gets_an_error_where_no_process_listens(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        Channel.open(connections.Address(path=str(tmp_path / "missing")), SECRET, name=0)


def test_large_bodies_arrive_whole_in_both_directions(tmp_path: Path) -> None:
    body = bytes(range(256)) * 40_000

    def play(peer: Peer) -> None:
        peer.welcome()
        peer.send(encode(*peer.read()))

    with served(play, tmp_path / "s") as address:
        channel = Channel.open(address, SECRET, name=0)
        channel.send({"kind": "done"}, body)
        assert channel.receive() == ({"kind": "done"}, body)
        channel.close()


def test_messages_that_arrive_together_are_given_out_one_by_one(tmp_path: Path) -> None:
    def play(peer: Peer) -> None:
        peer.welcome()
        peer.send(b"".join(encode({"number": number}) for number in range(5)))

    with served(play, tmp_path / "s") as address:
        channel = Channel.open(address, SECRET, name=0)
        assert [channel.receive()[0]["number"] for _ in range(5)] == list(range(5))
        with pytest.raises(WireError, match="gone"):
            channel.receive()
        channel.close()


def test_messages_put_aside_go_with_the_next_that_is_sent_and_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_ASIDE_SECONDS", LIMIT)
    received: list[Header] = []
    aside = threading.Event()

    def play(peer: Peer) -> None:
        peer.welcome()
        assert aside.wait(LIMIT)
        received.extend(peer.read()[0] for _ in range(3))

    with served(play, tmp_path / "s") as address:
        channel = Channel.open(address, SECRET, name=0)
        # Also before the rank has shown that it knows the secret.
        channel.put({"number": 0})
        channel.put({"number": 1})
        aside.set()
        channel.send({"number": 2})
        with pytest.raises(WireError, match="gone"):
            channel.receive()
        channel.close()
    assert [header["number"] for header in received] == [0, 1, 2]


def test_a_wait_can_be_bounded(tmp_path: Path) -> None:
    done = threading.Event()

    def play(peer: Peer) -> None:
        peer.welcome()
        done.wait(LIMIT)

    with served(play, tmp_path / "s") as address:
        channel = Channel.open(address, SECRET, name=0)
        channel.send({})
        channel.set_timeout(0.01)
        with pytest.raises(WireError):
            channel.receive()
        done.set()
        channel.close()
        channel.close()


def test_a_host_and_a_free_port_will_do_as_well() -> None:
    listener, address = connections.listen_on_host("127.0.0.1")
    with listener:
        assert address.port > 0
        with address.connect(LIMIT) as ours:
            theirs, _ = listener.accept()
            with theirs:
                ours.sendall(encode({"kind": "hello"}))
                assert Peer(theirs).read() == ({"kind": "hello"}, b"")


# The exchange on real sockets: who is let in, by which name, and what is passed on
STEP = 0.05
MOST_STEPS = 400


class Hub:
    """An exchange that is moved by hand, and what it was told."""

    def __init__(self, folder: Path) -> None:
        self.listener, self.address = connections.listen_on_file(folder / "s")
        self.expected: set[object] = {0, 1, "supervisor"}
        self.messages: list[tuple[Name, Header, bytes]] = []
        self.gone: list[Name] = []
        self.strangers: list[str] = []
        self._open: list[Any] = []
        self.exchange = Exchange(
            self.listener,
            SECRET,
            is_expected=lambda name: name in self.expected,
            on_message=lambda *message: self.messages.append(message),
            on_gone=self.gone.append,
            on_stranger=self.strangers.append,
        )

    def until(self, condition: Callable[[], bool]) -> None:
        """Move on until something is so."""
        for _ in range(MOST_STEPS):
            if condition():
                return
            self.exchange.step(STEP)
        raise AssertionError("it did not come to that")

    def stranger(self) -> socket.socket:
        connection = self.address.connect(LIMIT)
        self._open.append(connection)
        return connection

    def join(self, name: Name) -> Line:
        """Come in as one who knows the secret."""
        line = Line(self, self.stranger())
        line.greet(name)
        self.until(lambda: self.exchange.has(name))
        return line

    def close(self) -> None:
        self.exchange.close()
        for connection in self._open:
            connection.close()
        self.listener.close()


class Line:
    """The other end, in the same thread: it moves the exchange while it waits."""

    def __init__(self, hub: Hub, connection: socket.socket) -> None:
        self._hub = hub
        self.connection = connection
        self._decoder = connections.Decoder()
        self._received: list[tuple[Header, bytes]] = []
        connection.setblocking(False)

    def say(self, header: Header, body: bytes = b"") -> None:
        self.connection.sendall(encode(header, body))

    def hear(self) -> tuple[Header, bytes]:
        self._hub.until(self._has_heard)
        return self._received.pop(0)

    def _has_heard(self) -> bool:
        try:
            data = self.connection.recv(1 << 20)
        except BlockingIOError:
            return bool(self._received)
        self._received += self._decoder.feed(data)
        return bool(self._received)

    def is_dropped(self) -> bool:
        try:
            return not self.connection.recv(1 << 16)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            return True

    def greet(self, name: object, secret: str = SECRET) -> None:
        self.say({"kind": "hello", "name": name, "nonce": "mine"})
        challenge, _ = self.hear()
        assert challenge["proof"] == prove(SECRET, "mine", "coordinator")
        self.say({"kind": "answer", "proof": prove(secret, challenge["nonce"], "rank")})


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    hub = Hub(tmp_path)
    yield hub
    hub.close()


# Who is let in


@pytest.mark.parametrize("name", [0, 1, "supervisor"])
def test_an_expected_process_with_the_secret_is_accepted_by_name(hub: Hub, name: Name) -> None:
    line = hub.join(name)
    line.say({"kind": "here"}, b"body")
    hub.until(lambda: bool(hub.messages))
    assert hub.messages == [(name, {"kind": "here"}, b"body")]
    assert hub.gone == []


def test_the_blocking_end_of_a_rank_gets_in_too(hub: Hub) -> None:
    channel = Channel.open(hub.address, SECRET, 1)
    try:
        hub.exchange.step(LIMIT)  # lets it in
        hub.exchange.step(LIMIT)  # reads its hello and answers
        channel.send({"kind": "here"})
        hub.until(lambda: bool(hub.messages))
    finally:
        channel.close()
    assert hub.messages == [(1, {"kind": "here"}, b"")]


@pytest.mark.parametrize("name", [2, "template", None, 1.5, "0"], ids=repr)
def test_an_unexpected_name_is_refused(hub: Hub, name: object) -> None:
    line = Line(hub, hub.stranger())
    line.say({"kind": "hello", "name": name, "nonce": "mine"})
    hub.until(line.is_dropped)
    assert hub.messages == []
    assert hub.gone == []


@pytest.mark.parametrize("name", [[0], {"a": 1}], ids=repr)
def test_a_name_that_can_be_none_is_not_let_in(hub: Hub, name: object) -> None:
    """It cannot be looked up."""
    line = Line(hub, hub.stranger())
    line.say({"kind": "hello", "name": name, "nonce": "mine"})
    hub.until(line.is_dropped)
    assert hub.gone == []


def test_who_is_expected_is_asked_anew_each_time(hub: Hub) -> None:
    early = Line(hub, hub.stranger())
    early.say({"kind": "hello", "name": 7, "nonce": "mine"})
    hub.until(early.is_dropped)
    hub.expected.add(7)
    hub.join(7)
    assert hub.exchange.has(7)


def test_a_process_without_the_secret_is_refused(hub: Hub) -> None:
    line = Line(hub, hub.stranger())
    line.greet(0, secret="a guess")
    hub.until(line.is_dropped)
    assert not hub.exchange.has(0)
    assert hub.gone == [], "who was never here is not gone"


@pytest.mark.parametrize(
    "header",
    [
        {"kind": "answer", "proof": prove(SECRET, "", "rank")},
        {"kind": "done", "case": 0},
        {"kind": "hello"},
        {"kind": "hello", "name": 0},
        {},
        {"kind": "answer", "proof": None},
    ],
    ids=str,
)
def test_a_connection_that_does_not_begin_with_a_hello_is_dropped(hub: Hub, header: Header) -> None:
    line = Line(hub, hub.stranger())
    line.say(header)
    hub.until(line.is_dropped)
    assert hub.messages == []


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64, b"\0" * 8])
def test_a_connection_with_another_protocol_is_dropped(hub: Hub, data: bytes) -> None:
    line = Line(hub, hub.stranger())
    line.connection.sendall(data)
    hub.until(line.is_dropped)


def test_a_stranger_cannot_make_us_keep_much(hub: Hub) -> None:
    line = Line(hub, hub.stranger())
    line.say({"kind": "hello", "name": 0, "nonce": "x" * connections.UNAUTHENTICATED_LIMIT})
    hub.until(line.is_dropped)


def test_silent_strangers_are_dropped_after_a_while(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = Line(hub, hub.stranger())
    known = hub.join(0)
    monkeypatch.setattr(exchange_module, "_HANDSHAKE_SECONDS", 0.0)
    hub.until(silent.is_dropped)
    assert hub.exchange.has(0), "who has shown the secret may be silent"
    assert not known.is_dropped()


def test_strangers_do_not_disturb_ranks(hub: Hub) -> None:
    line = hub.join(0)
    for data in (b"\xff" * 64, b""):
        stranger = hub.stranger()
        stranger.sendall(data)
        stranger.close()
    line.say({"kind": "here"})
    hub.until(lambda: bool(hub.messages))
    assert hub.exchange.has(0)


# Lines that need not show the secret


def test_a_line_that_was_given_to_a_process_is_adopted_without_a_greeting(hub: Hub) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        hub.exchange.adopt("supervisor", ours)
        assert hub.exchange.has("supervisor")
        line = Line(hub, theirs)
        # More than a stranger may say at once.
        line.say({"kind": "mpi"}, b"x" * (4 * connections.UNAUTHENTICATED_LIMIT))
        hub.until(lambda: bool(hub.messages))
        ((name, _, body),) = hub.messages
        assert (name, len(body)) == ("supervisor", 4 * connections.UNAUTHENTICATED_LIMIT)
        hub.exchange.send("supervisor", {"kind": "end"})
        assert line.hear() == ({"kind": "end"}, b"")
    hub.until(lambda: hub.gone == ["supervisor"])
    assert not hub.exchange.has("supervisor")


def test_it_is_told_when_the_lifeline_ends(hub: Hub) -> None:
    ours, theirs = socket.socketpair()
    ends: list[str] = []

    def end() -> None:
        ends.append("end")

    with ours:
        hub.exchange.tether(ours, end)
        hub.exchange.step(0)
        assert not ends
        theirs.close()
        hub.until(lambda: bool(ends))


# What is said


def test_messages_to_a_name_that_is_not_connected_yet_are_kept_in_order(hub: Hub) -> None:
    for number in range(3):
        hub.exchange.send(1, {"kind": "order", "number": number}, b"abc"[:number])
    line = hub.join(1)
    heard = [line.hear() for _ in range(3)]
    assert heard == [({"kind": "order", "number": n}, b"abc"[:n]) for n in range(3)]


def test_a_message_that_is_larger_than_any_buffer_arrives_whole(hub: Hub) -> None:
    line = hub.join(0)
    body = bytes(range(256)) * (1 << 14)
    hub.exchange.send(0, {"kind": "order"}, body)
    hub.exchange.send(0, {"kind": "next"})
    assert line.hear() == ({"kind": "order"}, body)
    assert line.hear() == ({"kind": "next"}, b"")


def test_a_closed_connection_is_reported_once(hub: Hub) -> None:
    line = hub.join(0)
    line.say({"kind": "last words"})
    line.connection.close()
    hub.until(lambda: bool(hub.gone))
    hub.exchange.step(0)
    assert hub.gone == [0]
    assert [header["kind"] for _, header, _ in hub.messages] == ["last words"]


def test_a_goodbye_is_read_although_a_message_to_its_sender_fails_first(hub: Hub) -> None:
    """A rank leaves at the moment in which another one's message is passed on to it."""
    line = hub.join(0)
    line.say({"kind": "bye"})
    line.connection.close()
    hub.exchange.send(0, {"kind": "refused"})
    hub.exchange.flush()
    hub.until(lambda: bool(hub.gone))
    assert hub.gone == [0]
    assert [header["kind"] for _, header, _ in hub.messages] == ["bye"]


def test_a_connection_that_breaks_during_a_send_is_reported_once(hub: Hub) -> None:
    hub.join(0).connection.close()
    hub.exchange.send(0, {"kind": "order"}, b"x" * (1 << 20))
    hub.exchange.flush()
    hub.until(lambda: bool(hub.gone))
    hub.exchange.step(0)
    assert hub.gone == [0]


def test_a_new_connection_of_a_name_replaces_the_old_one(hub: Hub) -> None:
    old, new = hub.join(0), Line(hub, hub.stranger())
    new.greet(0)
    new.say({"kind": "here"})
    hub.until(lambda: bool(hub.messages))
    old.connection.close()
    hub.exchange.send(0, {"kind": "order"})
    assert new.hear() == ({"kind": "order"}, b"")
    assert hub.gone == [], "the one by that name is still here"


# Forgetting


def test_a_forgotten_name_is_disconnected_and_not_reported(hub: Hub) -> None:
    line = hub.join(0)
    hub.exchange.send(0, {"kind": "never sent"})
    hub.exchange.forget(0)
    assert not hub.exchange.has(0)
    hub.until(line.is_dropped)
    hub.exchange.step(0)
    assert hub.gone == []


def test_messages_kept_for_a_forgotten_name_are_dropped(hub: Hub) -> None:
    hub.exchange.send(0, {"kind": "old"})
    hub.exchange.forget(0)
    line = hub.join(0)
    hub.exchange.send(0, {"kind": "new"})
    assert line.hear() == ({"kind": "new"}, b"")


def test_forgetting_an_unknown_name_does_nothing(hub: Hub) -> None:
    hub.exchange.forget("unknown")


def test_one_can_be_forgotten_while_others_are_dealt_with(tmp_path: Path) -> None:
    """Both have spoken before the exchange looks; the first one's words make it forget the other."""
    hub = Hub(tmp_path)
    try:
        lines = [hub.join(name) for name in (0, 1)]
        heard: list[Name] = []

        def forget_the_other(name: Name, _header: Header, _body: bytes) -> None:
            heard.append(name)
            hub.exchange.forget(1 - int(name))

        hub.exchange._on_message = forget_the_other
        for line in lines:
            line.say({"kind": "here"})
        hub.until(lambda: bool(heard))
        hub.exchange.step(0)
        assert len(heard) == 1
        assert hub.gone == []
    finally:
        hub.close()


def test_the_end_can_come_twice(hub: Hub) -> None:
    line = hub.join(0)
    stranger = Line(hub, hub.stranger())
    hub.exchange.step(STEP)
    hub.exchange.close()
    hub.exchange.close()
    assert line.is_dropped()
    assert stranger.is_dropped()
    assert not hub.exchange.has(0)


def test_what_comes_while_something_is_waited_for_is_dealt_with_later_in_its_order(
    hub: Hub,
) -> None:
    first, second = hub.join(0), hub.join(1)
    first.say({"kind": "report"}, b"1")
    second.connection.close()
    first.say({"kind": "answer"})
    events = hub.exchange.collect(
        lambda events: (
            {header and header["kind"] for _, header, _ in events} >= {"report", "answer", None}
        ),
        LIMIT,
    )
    assert (hub.messages, hub.gone) == ([], []), "nothing is dealt with meanwhile"
    hub.exchange.deliver(events)
    assert hub.messages == [(0, {"kind": "report"}, b"1"), (0, {"kind": "answer"}, b"")]
    assert hub.gone == [1]
    first.say({"kind": "next"})
    hub.until(lambda: len(hub.messages) == 3)


def test_an_answer_that_does_not_come_is_not_waited_for_without_end(hub: Hub) -> None:
    assert hub.exchange.collect(lambda _events: False, 0.01) == []
