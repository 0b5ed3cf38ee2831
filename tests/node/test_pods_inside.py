"""What runs in pods: folders that are the same in two places, and lines that only ours can use."""

from __future__ import annotations

import contextlib
import hmac
import io
import json
import os
import random
import socket
import tarfile
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rankwise.node import pod_worker
from rankwise.node import wire as lines
from rankwise.node.mirror import (
    FolderMirror,
    Taker,
    from_line,
    new_files,
    to_line,
    whole_file,
)
from rankwise.node.output import ProcessLog
from rankwise.node.pod import ContainerLog, Pod
from rankwise.node.pod_worker import Worker
from rankwise.node.wire import (
    PodConnection,
    PodConnectionError,
    answer,
    answer_all,
    call,
    listen,
)


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def through(frame: dict[str, object]) -> dict[str, object]:
    """Send a frame as a line of text."""
    line = to_line({"n": 1, **frame})
    assert "\n" not in line
    found = from_line(line)
    assert found is not None
    return found


def test_a_folder_is_the_same_in_the_other_place_whenever_it_is_looked_at(tmp_path: Path) -> None:
    """Logs grow, are put aside and cut while records are replaced: as a runner does."""
    here, there = tmp_path / "here", tmp_path / "there"
    process = here / "processes" / "worker-0"
    process.mkdir(parents=True)
    there.mkdir()
    mirror, taker = FolderMirror(str(here)), Taker(str(there))
    draw = random.Random(6)
    log = ProcessLog(str(process), 20_000)
    for number in range(200):
        log.write(draw.choice([b"text\n", "ä€\n".encode(), b"\xff\x00\xfe"]) * draw.randrange(400))
        if draw.random() < 0.3:
            (process / "end.json.new").write_text(json.dumps({"number": number}))
            (process / "end.json.new").replace(process / "end.json")
        if draw.random() < 0.5:
            for frame in mirror.look():
                taker.take(through(frame))
            assert contents(there) == contents(here)
    log.close()
    assert (process / "output.log.first").exists(), "it was never cut"
    for frame in mirror.look():
        taker.take(through(frame))
    assert contents(there) == contents(here)
    assert [*mirror.look()] == []


def test_frames_that_were_lost_leave_a_notice(tmp_path: Path) -> None:
    taker = Taker(str(tmp_path))
    taker.take({"path": "a.log", "at": 0, "text": "begin\n"})
    taker.take({"path": "a.log", "at": 1000, "text": "end\n"})
    text = (tmp_path / "a.log").read_text()
    assert text.startswith("begin\n")
    assert text.endswith("[rankwise: 994 bytes are left out here]\nend\n")
    assert len(text) == 1004


@pytest.mark.parametrize("path", ["../a", "/etc/passwd", "a/../../b", "", "link/a", 7, None])
def test_frames_do_not_leave_the_folder(tmp_path: Path, path: object) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "link").symlink_to(tmp_path)
    with pytest.raises(ValueError, match=r"no such path|not in the folder"):
        Taker(str(inside)).take({"path": path, "at": 0, "whole": 1, "text": "x"})
    assert {one.name for one in tmp_path.iterdir()} == {"inside"}


def test_new_files_are_brought_and_large_ones_named(tmp_path: Path) -> None:
    there = tmp_path / "there"
    work = tmp_path / "work"
    (work / "deep").mkdir(parents=True)
    old = work / "old.py"
    old.write_text("old")
    new = {"deep/new.bin": bytes(range(256)) * 100, "moved": b"from elsewhere"}
    new["large"] = b"x" * 2_000_000
    for name, content in new.items():
        (work / name).write_bytes(content)
    with (work / "larger").open("wb") as file:
        file.truncate(17 << 20)
    (work / "link").symlink_to("/etc/passwd")
    # What was unpacked, or moved here, is as old as it says.
    os.utime(work / "moved", (1000, 1000))
    since = max((work / name).lstat().st_ctime for name in (*new, "larger", "link"))
    os.utime(old, (1000, 1000))
    frames = [*new_files(str(work), 0, name="nodes/node0")]
    assert [one for one in frames if "left_out" in one] == [
        {"left_out": "larger", "size": 17 << 20}
    ]
    there.mkdir()
    taker = Taker(str(there))
    for frame in frames:
        if "path" in frame:
            taker.take(through(frame))
    assert contents(there) == {
        "nodes/node0/old.py": b"old",
        **{f"nodes/node0/{name}": content for name, content in new.items()},
    }
    later = [*new_files(str(work), since + 3600, name="nodes/node0")]
    assert later == [], "nothing has come since"


def test_a_file_that_is_moved_into_the_folder_is_new_however_old_it_is(tmp_path: Path) -> None:
    (tmp_path / "old.txt").write_text("old")
    os.utime(tmp_path / "old.txt", (1000, 1000))
    [frame] = new_files(str(tmp_path), 2000.0, name="nodes/node0")
    assert (frame["path"], frame["text"]) == ("nodes/node0/old.txt", "old")


def test_a_large_file_of_an_attempt_comes_with_the_last_look(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    process = here / "processes" / "worker-0"
    process.mkdir(parents=True)
    there.mkdir()
    (here / "end.json").write_text("{}")
    (process / "result.bin").write_bytes(random.Random(1).randbytes(3_000_000))
    with (process / "larger.bin").open("wb") as file:
        file.truncate(17 << 20)
    mirror, taker = FolderMirror(str(here)), Taker(str(there))
    assert [*mirror.look()] == [], "large files and the end are for the last look"
    frames = [*mirror.look(is_last=True)]
    assert [one for one in frames if "path" not in one] == [
        {"left_out": "processes/worker-0/larger.bin", "size": 17 << 20}
    ]
    for frame in frames:
        if "path" in frame:
            taker.take(through(frame))
    assert frames[-1]["path"] == "end.json", "who has the end has everything"
    (process / "larger.bin").unlink()
    assert contents(there) == contents(here)


def test_a_file_of_which_a_piece_was_lost_is_not_taken_for_whole(tmp_path: Path) -> None:
    data = b"x" * 20_000
    first, second, *rest = whole_file("a.bin", data)
    taker = Taker(str(tmp_path))
    taker.take(first)
    with pytest.raises(ValueError, match="a part of it was lost"):
        taker.take(rest[0])
    taker.take(second)
    taker.note_gap()
    for frame in rest:
        with pytest.raises(ValueError, match="a part of it was lost"):
            taker.take(frame)
    assert not (tmp_path / "a.bin").exists()
    for frame in (first, second, *rest):
        taker.take(frame)
    assert (tmp_path / "a.bin").read_bytes() == data


def test_another_client_goes_on_in_the_middle_of_a_file(tmp_path: Path) -> None:
    data = bytes(range(250)) * 100
    frames = [*whole_file("a.bin", data)]
    for part in (frames[:2], frames[1:]):
        taker = Taker(str(tmp_path))
        for frame in part:
            taker.take(frame)
    assert (tmp_path / "a.bin").read_bytes() == data


def test_frames_of_several_threads_have_numbers_in_the_order_in_which_they_are_written(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Who reads them leaves out what has a smaller number than the one before."""
    output = ContainerLog(has_frames=True)

    def write() -> None:
        for _ in range(300):
            output.put({"note": "n", "values": [1]})

    threads = [threading.Thread(target=write) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    numbers = [json.loads(line)["n"] for line in capfd.readouterr().out.splitlines()]
    assert numbers == [*range(1, 2401)]


def test_lines_that_are_no_frames_are_not_taken_for_some() -> None:
    for text in ("hello", '{"a": 1}', "{", '{"n": "1"}', "[1]", ""):
        assert from_line(text) is None


def connected(caller_key: bytes, listener_key: bytes) -> list[PodConnection | Exception]:
    """Have two ends greet each other."""
    found: list[PodConnection | Exception] = []
    with listen("127.0.0.1", 0) as door:

        def take() -> None:
            connection, _ = door.accept()
            try:
                found.append(answer(connection, listener_key))
            except PodConnectionError as error:
                found.append(error)

        listener = threading.Thread(target=take)
        listener.start()
        try:
            found.append(call("127.0.0.1", door.getsockname()[1], caller_key))
        except PodConnectionError as error:
            found.append(error)
        listener.join()
    return found


def test_both_ends_prove_that_they_know_the_key() -> None:
    ends = connected(b"key", b"key")
    assert all(isinstance(end, PodConnection) for end in ends)
    first, second = (end for end in ends if isinstance(end, PodConnection))
    first.send({"a": 1}, b"body" * 100_000)
    assert second.receive() == ({"a": 1}, b"body" * 100_000)
    first.close()
    with pytest.raises(PodConnectionError):
        second.receive()
    second.close()


def test_ends_with_different_keys_do_not_connect() -> None:
    assert all(isinstance(end, PodConnectionError) for end in connected(b"wrong", b"key"))


_KEY = b"key"


def _overheard() -> tuple[dict[str, str], dict[str, str]]:
    """Listen in on two of ours: what the caller said, and what the listener did."""
    caller: dict[str, str] = {}
    listener: dict[str, str] = {}
    with listen("127.0.0.1", 0) as front, listen("127.0.0.1", 0) as back:

        def pass_on() -> None:
            theirs = PodConnection(socket.create_connection(back.getsockname()[:2]))
            with closing(PodConnection(front.accept()[0])) as ours, closing(theirs):
                for source, sink, heard in (
                    (ours, theirs, caller),
                    (theirs, ours, listener),
                    (ours, theirs, caller),
                ):
                    said, _ = source.receive()
                    heard.update(said)
                    sink.send(said)

        def take() -> None:
            answer(back.accept()[0], _KEY).close()

        threads = [threading.Thread(target=one) for one in (pass_on, take)]
        for thread in threads:
            thread.start()
        call("127.0.0.1", front.getsockname()[1], _KEY).close()
        for thread in threads:
            thread.join()
    return caller, listener


def _wrong_key(who: str, first: str, second: str) -> str:
    return hmac.new(b"wrong", f"{who} {first} {second}".encode(), "sha256").hexdigest()


@pytest.mark.parametrize("how", ["no proof", "wrong key", "sent back", "replayed"])
def test_a_caller_without_the_key_is_refused(how: str) -> None:
    """It goes on after the listener's proof, as a stranger would who does not care for that."""
    known, _ = _overheard()
    with listen("127.0.0.1", 0) as door:

        def intrude() -> None:
            nonce = known["nonce"] if how == "replayed" else "00"
            with closing(PodConnection(socket.create_connection(door.getsockname()[:2]))) as line:
                line.send({"nonce": nonce})
                said, _ = line.receive()
                proofs = {
                    "no proof": None,
                    "wrong key": _wrong_key("caller", nonce, said["nonce"]),
                    "sent back": said["proof"],
                    "replayed": known["proof"],
                }
                line.send({"proof": proofs[how]})

        stranger = threading.Thread(target=intrude)
        stranger.start()
        with pytest.raises(PodConnectionError, match="the caller does not know the key"):
            answer(door.accept()[0], _KEY).close()
        stranger.join()


@pytest.mark.parametrize("how", ["no proof", "wrong key", "replayed"])
def test_a_listener_without_the_key_is_told_nothing(how: str) -> None:
    _, known = _overheard()
    heard: list[object] = []
    with listen("127.0.0.1", 0) as door:

        def pretend() -> None:
            with closing(PodConnection(door.accept()[0])) as line:
                said, _ = line.receive()
                proofs = {
                    "no proof": None,
                    "wrong key": _wrong_key("listener", said["nonce"], known["nonce"]),
                    "replayed": known["proof"],
                }
                line.send({"nonce": known["nonce"], "proof": proofs[how]})
                try:
                    heard.append(line.receive())
                except PodConnectionError:
                    heard.append(None)

        stranger = threading.Thread(target=pretend)
        stranger.start()
        with pytest.raises(PodConnectionError, match="does not know the key"):
            call("127.0.0.1", door.getsockname()[1], _KEY).close()
        stranger.join()
    assert heard == [None], "no proof of ours is for a stranger"


def test_a_stranger_may_not_send_much() -> None:
    with listen("127.0.0.1", 0) as door:
        stranger = socket.create_connection(door.getsockname()[:2])
        stranger.sendall(lines._LENGTHS.pack(1 << 30, 0) + b"x" * 100)
        connection, _ = door.accept()
        with pytest.raises(PodConnectionError, match="too long"):
            answer(connection, b"key")
        stranger.close()


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pod:
    """A pod whose volumes are folders here."""
    for name in ("parts", "keys", "work"):
        (tmp_path / name).mkdir()
        monkeypatch.setenv(f"RANKWISE_{name.upper()}", str(tmp_path / name))
    monkeypatch.setenv("RANKWISE_PORT", "0")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "keys" / "key").write_bytes(_KEY)
    node = {"name": "node0", "address": "", "folder": str(tmp_path / "work" / "code")}
    order = {"version": 2, "marker": "rw-1", "folder": "", "nodes": [node], "processes": []}
    (tmp_path / "parts" / "order.json").write_text(json.dumps(order))
    return Pod()


def wait_for_threads() -> None:
    """Wait for the threads that serve one command."""
    for thread in threading.enumerate():
        if thread.name.endswith(("(_serve)", "(_pump)", "(_obey)")):
            thread.join(30)


class SlowHead(PodConnection):
    """The head of a task, as another pod sees it: takes its time with what it is shown."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def send(self, header: dict[str, Any], body: bytes = b"") -> None:
        self.shown.append(header["frame"]["path"])


def test_a_caller_hears_of_an_end_once_the_head_has_the_records(
    pod: Pod, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank whose record came later than that was once taken for killed."""
    monkeypatch.setenv("RANKWISE_NODES", "0")
    monkeypatch.setattr(pod_worker, "_ACK_SECONDS", 0.01)
    pod.nodes = [0]
    record = Path(pod.folder, "processes", "rank-0", "end.json")
    Path(pod.order.nodes[0].folder).mkdir(parents=True)
    head = SlowHead()
    worker = Worker(pod)
    worker._head = head
    is_taken = threading.Event()

    def take() -> None:
        is_taken.set()
        with worker._heard:
            worker._acknowledged = 1
            worker._heard.notify_all()

    def answer_calls() -> None:
        with contextlib.suppress(OSError):  # The door is closed at the end.
            answer_all(door, worker._serve)

    with listen("127.0.0.1", 0) as door:
        threading.Thread(target=answer_calls, daemon=True).start()
        with closing(call("127.0.0.1", door.getsockname()[1], _KEY)) as line:
            write = f"mkdir -p {record.parent}; echo '{{}}' > {record}"
            line.send({"command": ["sh", "-c", write], "set": {}, "unset": [], "files": {}})
            threading.Timer(0.5, take).start()
            while "exit" not in (said := line.receive()[0]):
                pass
            assert is_taken.is_set()
        wait_for_threads()
    assert said == {"exit": 0}
    assert head.shown == ["processes/rank-0/end.json"]


def _archive(path: Path, *members: tarfile.TarInfo) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for member in members:
            archive.addfile(member, io.BytesIO(b"x" * member.size))


def _member(name: str, **more: object) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    for key, value in more.items():
        setattr(member, key, value)
    return member


@pytest.mark.skipif(not hasattr(tarfile, "data_filter"), reason="this Python has no filters")
@pytest.mark.parametrize("name", ["../out.txt", "link/out.txt"])
def test_code_that_is_unpacked_in_a_pod_does_not_leave_its_folder(
    pod: Pod, tmp_path: Path, name: str
) -> None:
    link = _member("link", type=tarfile.SYMTYPE, linkname="..")
    members = [link] * name.startswith("link") + [_member(name, size=1)]
    _archive(tmp_path / "parts" / "code.tgz", *members)
    with pytest.raises(tarfile.FilterError):
        pod.unpack(0)
    assert [*tmp_path.rglob("out.txt")] == []


@pytest.mark.skipif(not hasattr(tarfile, "data_filter"), reason="this Python has no filters")
def test_code_that_is_unpacked_in_a_pod_gains_no_rights(pod: Pod, tmp_path: Path) -> None:
    _archive(tmp_path / "parts" / "code.tgz", _member("program", size=1, mode=0o6777))
    pod.unpack(0)
    assert (tmp_path / "work" / "code" / "program").stat().st_mode & 0o7022 == 0
