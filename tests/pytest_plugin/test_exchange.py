"""The exchange on real sockets: who is let in, by which name, and what is passed on."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rankwise.pytest_plugin import connections
from rankwise.pytest_plugin import connections as exchange_module
from rankwise.pytest_plugin.connections import Channel, Exchange, Header, Name, encode, prove

SECRET = "the secret of this run"
# Nothing here takes long; without a limit a defect would be a hang.
LIMIT = 20.0
STEP = 0.05
MOST_STEPS = 400


class Hub:
    """An exchange that is moved by hand, and what it was told."""

    def __init__(self, folder: Path) -> None:
        self.listener, self.address = connections.listen_on_file(folder / "s")
        self.expected: set[object] = {0, 1, "supervisor"}
        self.messages: list[tuple[Name, Header, bytes]] = []
        self.gone: list[Name] = []
        self._open: list[Any] = []
        self.exchange = Exchange(
            self.listener,
            SECRET,
            is_expected=lambda name: name in self.expected,
            on_message=lambda *message: self.messages.append(message),
            on_gone=self.gone.append,
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
        assert challenge["proof"] == prove(SECRET, "mine", "switchboard")
        self.say({"kind": "answer", "proof": prove(secret, challenge["nonce"], "rank")})


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    hub = Hub(tmp_path)
    yield hub
    hub.close()


# Who is let in


@pytest.mark.parametrize("name", [0, 1, "supervisor"])
def test_one_who_is_expected_and_knows_the_secret_is_let_in_by_name(hub: Hub, name: Name) -> None:
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
def test_a_name_that_nobody_expects_is_not_let_in(hub: Hub, name: object) -> None:
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


def test_one_who_does_not_know_the_secret_is_not_let_in(hub: Hub) -> None:
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
def test_whoever_begins_with_anything_but_a_greeting_is_dropped(hub: Hub, header: Header) -> None:
    line = Line(hub, hub.stranger())
    line.say(header)
    hub.until(line.is_dropped)
    assert hub.messages == []


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64, b"\0" * 8])
def test_whoever_speaks_another_language_is_dropped(hub: Hub, data: bytes) -> None:
    line = Line(hub, hub.stranger())
    line.connection.sendall(data)
    hub.until(line.is_dropped)


def test_a_stranger_cannot_make_us_keep_much(hub: Hub) -> None:
    line = Line(hub, hub.stranger())
    line.say({"kind": "hello", "name": 0, "nonce": "x" * connections.UNAUTHENTICATED_LIMIT})
    hub.until(line.is_dropped)


def test_strangers_who_say_nothing_are_dropped_after_a_while(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = Line(hub, hub.stranger())
    known = hub.join(0)
    monkeypatch.setattr(exchange_module, "_HANDSHAKE_SECONDS", 0.0)
    hub.until(silent.is_dropped)
    assert hub.exchange.has(0), "who has shown the secret may be silent"
    assert not known.is_dropped()


def test_strangers_do_not_disturb_those_who_belong_here(hub: Hub) -> None:
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


def test_what_is_said_to_one_who_has_yet_to_come_is_kept_for_it_in_order(hub: Hub) -> None:
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


def test_one_who_hangs_up_is_reported_once(hub: Hub) -> None:
    line = hub.join(0)
    line.say({"kind": "last words"})
    line.connection.close()
    hub.until(lambda: bool(hub.gone))
    hub.exchange.step(0)
    assert hub.gone == [0]
    assert [header["kind"] for _, header, _ in hub.messages] == ["last words"]


def test_one_who_is_gone_when_something_is_sent_is_reported_once(hub: Hub) -> None:
    hub.join(0).connection.close()
    hub.exchange.send(0, {"kind": "order"}, b"x" * (1 << 20))
    hub.exchange.flush()
    hub.until(lambda: bool(hub.gone))
    hub.exchange.step(0)
    assert hub.gone == [0]


def test_one_who_comes_again_under_its_name_replaces_the_line(hub: Hub) -> None:
    old, new = hub.join(0), Line(hub, hub.stranger())
    new.greet(0)
    new.say({"kind": "here"})
    hub.until(lambda: bool(hub.messages))
    old.connection.close()
    hub.exchange.send(0, {"kind": "order"})
    assert new.hear() == ({"kind": "order"}, b"")
    assert hub.gone == [], "the one by that name is still here"


# Forgetting


def test_one_who_is_forgotten_is_hung_up_on_and_not_reported(hub: Hub) -> None:
    line = hub.join(0)
    hub.exchange.send(0, {"kind": "never sent"})
    hub.exchange.forget(0)
    assert not hub.exchange.has(0)
    hub.until(line.is_dropped)
    hub.exchange.step(0)
    assert hub.gone == []


def test_what_was_kept_for_one_who_never_came_is_forgotten_too(hub: Hub) -> None:
    hub.exchange.send(0, {"kind": "old"})
    hub.exchange.forget(0)
    line = hub.join(0)
    hub.exchange.send(0, {"kind": "new"})
    assert line.hear() == ({"kind": "new"}, b"")


def test_one_who_is_not_known_can_be_forgotten(hub: Hub) -> None:
    hub.exchange.forget("nobody")


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
