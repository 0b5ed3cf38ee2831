"""The coordinator on real sockets, with ranks and strangers that live in this process."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rankwise.pytest_plugin import connections
from rankwise.pytest_plugin.connections import Channel, Header, WireError, encode
from rankwise.pytest_plugin.mpirun_coordinator import Coordinator, serve
from tests.seeds.sentences import sentence

SECRET = "the secret of this run"
# Nothing here takes long; without a limit a defect would be a hang.
LIMIT = 20.0


class Board:
    """A coordinator in a thread, and the lines to it."""

    def __init__(self, listener: socket.socket, address: connections.Address, width: int) -> None:
        self.address = address
        self.width = width
        self.lifeline, theirs = socket.socketpair()
        self._listener = listener
        self._theirs = theirs
        self._board = Coordinator(listener, SECRET, width=width)
        self._board.tether(theirs)
        self._channels: list[Channel] = []
        self._thread = threading.Thread(target=self._board.run)
        self._thread.start()

    def join(self, rank: int) -> Channel:
        channel = Channel.open(self.address, SECRET, rank)
        # Any word brings the greeting to its end; this one is passed on to the reporter.
        channel.send({"kind": "present"})
        channel.set_timeout(LIMIT)
        self._channels.append(channel)
        return channel

    def join_all(self) -> list[Channel]:
        channels = [self.join(rank) for rank in range(self.width)]
        said = [channels[0].receive()[0] for _ in channels]
        assert sorted(header["rank"] for header in said) == list(range(self.width))
        return channels

    def stranger(self) -> socket.socket:
        connection = self.address.connect(LIMIT)
        connection.settimeout(LIMIT)
        return connection

    def has_ended(self) -> bool:
        self._thread.join(LIMIT)
        return not self._thread.is_alive()

    def close(self) -> None:
        self.lifeline.close()
        ended = self.has_ended()
        for channel in self._channels:
            channel.close()
        self._theirs.close()
        self._listener.close()
        assert ended


@pytest.fixture(params=["file", "host"])
def board(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Board]:
    if request.param == "file":
        listener, address = connections.listen_on_file(tmp_path / "s")
    else:
        listener, address = connections.listen_on_host("127.0.0.1")
    board = Board(listener, address, width=2)
    yield board
    board.close()


def begin(
    tests: list[list[Any]], scheduler: str = "dynamic", **settings: Any
) -> tuple[Header, bytes]:
    header = {
        "kind": "begin",
        "scheduler": scheduler,
        "careful": False,
        "strict": True,
        "maxfail": 0,
        "grace": 5.0,
        "root": "",
        "domains": {},
        "aligned": True,
        **settings,
    }
    rows = [[*test, 0.0, f"test_{number}", None] for number, test in enumerate(tests)]
    return header, json.dumps(rows).encode()


def done(case: int) -> Header:
    return {"kind": "done", "case": case, "failed": False, "seconds": 0.0}


def is_dropped(connection: socket.socket) -> bool:
    """Wait until the other side has hung up; whatever it says before does not matter."""
    with connection:
        try:
            while connection.recv(1 << 16):
                pass
        except ConnectionResetError:
            pass
        except TimeoutError:
            return False
        return True


# A run


def test_a_suite_is_run_from_its_beginning_to_its_end(board: Board) -> None:
    first, second = board.join_all()
    first.send(*begin([[2, None, [0]], [1, None, [0]], [1, None, [1]]]))
    run, _ = first.receive()
    assert second.receive() == (run, b"")
    assert (run["kind"], run["cases"], run["ranks"]) == ("run", [0], [0, 1])
    first.send(done(0), b"from 0")
    second.send(done(0), b"from 1")
    verdict, body = first.receive()
    assert (verdict["kind"], verdict["case"], verdict["lengths"]) == ("verdict", 0, [6, 6])
    assert body == b"from 0from 1"
    verdicts, cases = [], []
    for channel in (first, second):
        while (header := channel.receive()[0])["kind"] != "run":
            assert header["kind"] == "close"
        cases += header["cases"]
        channel.send(done(header["cases"][0]), b"alone")
    for channel in (first, second):
        while (header := channel.receive()[0])["kind"] != "finish":
            if header["kind"] == "verdict":
                verdicts.append(header["ranks"])
    assert sorted(cases) == [1, 2]
    assert verdicts == [[1]], "rank 0 knows what it has run itself"


def test_what_it_does_not_know_is_passed_on_to_the_reporter_with_its_sender(board: Board) -> None:
    first, second = board.join_all()
    second.send({"kind": "collected", "digest": "d"}, b"body")
    assert first.receive() == ({"kind": "collected", "digest": "d", "rank": 1}, b"body")


def test_a_sender_cannot_pass_itself_off_as_another_rank(board: Board) -> None:
    first, second = board.join_all()
    second.send({"kind": "late", "rank": 0})
    assert first.receive()[0]["rank"] == 1


def test_what_is_shared_comes_to_the_others_also_if_they_connect_later(board: Board) -> None:
    first = board.join(0)
    first.send({"kind": "share", "what": "order", "temporary": "/tmp/x"}, b"body")
    second = board.join(1)
    header, body = second.receive()
    assert (header["kind"], header["temporary"], body) == ("order", "/tmp/x", b"body")


@sentence(
    "pytest_parallel",
    ran="the coordinator of mpirun",
    said="Future work: dynamic scheduler, more asynchrony (send -> isend).",
)
def test_large_bodies_pass_without_holding_up_others(board: Board) -> None:
    first, second = board.join_all()
    body = b"x" * 20_000_000
    sending = threading.Thread(target=second.send, args=({"kind": "late", "case": 0}, body))
    sending.start()
    assert first.receive() == ({"kind": "late", "case": 0, "rank": 1}, body)
    sending.join(LIMIT)
    assert not sending.is_alive()


def test_a_reporter_that_is_slow_to_read_does_not_stop_the_others(board: Board) -> None:
    first, second = board.join_all()
    body = b"x" * 3_000_000
    for _ in range(5):
        second.send({"kind": "late"}, body)
    second.send({"kind": "bye"})
    received = [first.receive() for _ in range(6)]
    assert [header["kind"] for header, _ in received] == ["late"] * 5 + ["bye"]
    assert all(got == body for header, got in received if header["kind"] == "late")


def test_stopping_before_anything_has_begun_tells_the_others_the_end(board: Board) -> None:
    first, second = board.join_all()
    first.send({"kind": "stop", "at_once": True})
    assert second.receive()[0]["kind"] == "finish"


# Ends


def test_it_ends_when_the_reporter_is_gone_and_the_others_learn_of_it(board: Board) -> None:
    first, second = board.join_all()
    first.close()
    assert board.has_ended()
    with pytest.raises(WireError, match="gone"):
        second.receive()


def test_it_ends_when_the_lifeline_is_cut(board: Board) -> None:
    board.join_all()
    board.lifeline.close()
    assert board.has_ended()


def test_it_ends_when_the_lifeline_is_cut_before_anybody_has_come(board: Board) -> None:
    board.lifeline.close()
    assert board.has_ended()


def test_the_reporter_is_told_of_a_rank_that_is_gone(board: Board) -> None:
    first, second = board.join_all()
    second.close()
    gone = {"kind": "gone", "rank": 1, "where": ""}
    assert first.receive()[0] == {**gone, "lost": True}


def test_a_rank_that_has_said_goodbye_is_not_lost(board: Board) -> None:
    first, second = board.join_all()
    second.send({"kind": "bye"})
    second.close()
    assert first.receive()[0] == {"kind": "bye", "rank": 1}
    assert first.receive()[0]["lost"] is False


def test_the_others_are_told_that_the_run_is_over_if_the_reporter_has_said_goodbye(
    board: Board,
) -> None:
    first, second = board.join_all()
    first.send({"kind": "bye"})
    first.close()
    assert second.receive_only("over") == {"kind": "over"}
    assert board.has_ended()


def test_a_rank_that_has_ended_the_run_may_end_all_if_the_reporter_does_not_react(
    board: Board,
) -> None:
    first, second = board.join_all()
    first.send(*begin([[2, None, [0]]], grace=0.0))
    second.receive_only("run")
    second.send({"kind": "interrupt", "how": "exit", "reason": "enough", "code": 7})
    assert second.receive_only("abort")["code"] == 7


def test_the_reporter_is_told_of_a_rank_that_went_before_it_came_itself(board: Board) -> None:
    Channel.open(board.address, SECRET, 1).close()
    first = board.join(0)
    kinds = {first.receive()[0]["kind"] for _ in range(2)}
    assert kinds == {"gone", "present"}


# Strangers

_NONCE = {"kind": "hello", "name": 1, "nonce": "n"}

HOSTILE = {
    "http": b"GET / HTTP/1.0\r\n\r\n",
    "no json": struct.pack("!II", 4, 0) + b"????",
    "no object": struct.pack("!II", 2, 0) + b"[]",
    "too large": struct.pack("!II", 1 << 31, 1 << 31),
    "deep": struct.pack("!II", 4000, 0) + b"[" * 4000,
    "no kind": encode({}),
    "kind of no text": encode({"kind": []}),
    "unknown kind": encode({"kind": "begin"}),
    "hello without a name": encode({"kind": "hello"}),
    "rank no number": encode({**_NONCE, "name": "one"}),
    "rank null": encode({**_NONCE, "name": None}),
    "rank infinite": encode({**_NONCE, "name": float("inf")}),
    "rank not a number": encode({**_NONCE, "name": float("nan")}),
    "rank of many digits": encode(_NONCE).replace(b":1,", b":" + b"9" * 12 + b","),
    "nonce no text": encode({**_NONCE, "nonce": {}}),
    "nonce not encodable": encode({**_NONCE, "nonce": "\ud800"}),
    "answer without hello": encode({"kind": "answer", "proof": "0" * 64}),
    "wrong proof": encode(_NONCE) + encode({"kind": "answer", "proof": "0" * 64}),
    "no proof": encode(_NONCE) + encode({"kind": "answer"}),
    "proof no text": encode(_NONCE) + encode({"kind": "answer", "proof": 1}),
    "proof not encodable": encode(_NONCE) + encode({"kind": "answer", "proof": "\ud800"}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_stranger_gets_nothing_and_disturbs_no_rank(board: Board, name: str) -> None:
    stranger = board.stranger()
    stranger.sendall(HOSTILE[name])
    stranger.shutdown(socket.SHUT_WR)
    assert is_dropped(stranger)
    first, second = board.join_all()
    second.send({"kind": "fine"})
    assert first.receive()[0] == {"kind": "fine", "rank": 1}


def test_a_stranger_with_another_secret_is_dropped(board: Board) -> None:
    stranger = board.stranger()
    stranger.sendall(encode(_NONCE))
    decoder = connections.Decoder()
    ((challenge, _),) = decoder.feed(stranger.recv(1 << 16))
    proof = connections.prove("another secret", challenge["nonce"], "rank")
    stranger.sendall(encode({"kind": "answer", "proof": proof}))
    assert is_dropped(stranger)


def test_an_answer_cannot_be_used_twice(board: Board) -> None:
    """What a listener on the net has heard from a rank is of no use to it."""

    def greet(answer: Header | None) -> tuple[socket.socket, Header]:
        connection = board.stranger()
        connection.sendall(encode(_NONCE))
        ((challenge, _),) = connections.Decoder().feed(connection.recv(1 << 16))
        answer = answer or {
            "kind": "answer",
            "proof": connections.prove(SECRET, challenge["nonce"], "rank"),
        }
        connection.sendall(encode(answer))
        return connection, answer

    honest, answer = greet(None)
    copy, _ = greet(answer)
    assert is_dropped(copy)
    honest.close()


def test_a_stranger_is_told_nothing_that_is_said_to_ranks(board: Board) -> None:
    first = board.join(0)
    stranger = board.stranger()
    stranger.sendall(encode(_NONCE))
    first.send({"kind": "share", "what": "order", "temporary": "secret place"})
    first.send({"kind": "fine"})
    while first.receive()[0]["kind"] != "fine":
        pass
    stranger.shutdown(socket.SHUT_WR)
    heard = b""
    with stranger:
        while data := stranger.recv(1 << 16):
            heard += data
    assert b"challenge" in heard
    assert b"secret place" not in heard


def test_a_slow_stranger_delays_no_rank(board: Board) -> None:
    with board.stranger() as stranger:
        stranger.sendall(encode(_NONCE)[:5])
        first, second = board.join_all()
        first.send(*begin([[2, None, []]]))
        for channel in (first, second):
            assert channel.receive()[0]["kind"] == "run"
            channel.send(done(0))
        assert second.receive()[0]["kind"] == "finish"


def test_a_stranger_that_says_nothing_is_dropped_in_the_end(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_HANDSHAKE_SECONDS", 0.05)
    assert is_dropped(board.stranger())


def test_many_strangers_at_once_are_all_dropped(board: Board) -> None:
    strangers = [board.stranger() for _ in range(50)]
    for stranger in strangers:
        stranger.sendall(b"\xff" * 64)
    assert all(is_dropped(stranger) for stranger in strangers)
    board.join_all()


# As a process serves it


def test_a_reporter_that_is_lost_is_reported_also_by_a_coordinator_that_sees_no_rank(
    board: Board, capsys: pytest.CaptureFixture[str]
) -> None:
    # As with ranks on several machines, where it has no folder.
    first, second = board.join_all()
    first.send(*begin([[2, None, []], [1, None, []]]))
    assert second.receive()[0]["kind"] == "run"
    first.close()
    assert board.has_ended()
    said = capsys.readouterr().err
    assert "rank 0 of 2 exited unexpectedly" in said
    assert "in test_0" in said
    assert "not finished:\n  test_0" in said


def test_it_is_told_the_secret_and_where_to_listen_over_its_line(tmp_path: Path) -> None:
    line, theirs = socket.socketpair()
    descriptor = theirs.detach()
    thread = threading.Thread(target=serve, args=[descriptor])
    thread.start()
    listener, address = connections.listen_on_file(tmp_path / "s")
    with line, listener:
        settings = json.dumps({"secret": SECRET, "width": 1, "folder": ""}).encode()
        socket.send_fds(line, [settings], [listener.fileno()])
        channel = Channel.open(address, SECRET, 0)
        channel.send({"kind": "present"})
        channel.set_timeout(LIMIT)
        assert channel.receive()[0] == {"kind": "present", "rank": 0}
    channel.close()
    thread.join(LIMIT)
    assert not thread.is_alive()


def test_it_ends_if_its_parent_is_gone_before_it_has_said_anything() -> None:
    line, theirs = socket.socketpair()
    descriptor = theirs.detach()
    line.close()
    thread = threading.Thread(target=serve, args=[descriptor])
    thread.start()
    thread.join(LIMIT)
    assert not thread.is_alive()
