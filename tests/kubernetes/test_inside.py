"""What runs in pods: folders that are the same in two places, and lines that only ours can use."""

from __future__ import annotations

import json
import os
import random
import socket
import threading
from pathlib import Path

import pytest

from rankwise.compute.kubernetes.inside import line as lines
from rankwise.compute.kubernetes.inside.line import Line, LineError, answer, call, listen
from rankwise.compute.kubernetes.inside.mirror import (
    Mirror,
    Taker,
    from_line,
    new_files,
    to_line,
)
from rankwise.runner import Log


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
    mirror, taker = Mirror(str(here)), Taker(str(there))
    draw = random.Random(6)
    log = Log(str(process), 20_000)
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
    (work / "old.py").write_text("old")
    os.utime(work / "old.py", (1000, 1000))
    (work / "deep" / "new.bin").write_bytes(bytes(range(256)) * 100)
    (work / "large").write_bytes(b"x" * 5_000_000)
    (work / "link").symlink_to("/etc/passwd")
    frames = [*new_files(str(work), 2000.0, name="nodes/node0", most=10_000_000)]
    assert [one for one in frames if "left_out" in one] == [
        {"left_out": "large", "size": 5_000_000}
    ]
    there.mkdir()
    for frame in frames:
        if "path" in frame:
            Taker(str(there)).take(through(frame))
    assert contents(there) == {"nodes/node0/deep/new.bin": bytes(range(256)) * 100}


def test_lines_that_are_no_frames_are_not_taken_for_some() -> None:
    for text in ("hello", '{"a": 1}', "{", '{"n": "1"}', "[1]", ""):
        assert from_line(text) is None


def connected(caller_key: bytes, listener_key: bytes) -> list[Line | Exception]:
    """Have two ends greet each other."""
    found: list[Line | Exception] = []
    with listen("127.0.0.1", 0) as door:

        def take() -> None:
            connection, _ = door.accept()
            try:
                found.append(answer(connection, listener_key))
            except LineError as error:
                found.append(error)

        listener = threading.Thread(target=take)
        listener.start()
        try:
            found.append(call("127.0.0.1", door.getsockname()[1], caller_key))
        except LineError as error:
            found.append(error)
        listener.join()
    return found


def test_both_ends_prove_that_they_know_the_key() -> None:
    ends = connected(b"key", b"key")
    assert all(isinstance(end, Line) for end in ends)
    first, second = (end for end in ends if isinstance(end, Line))
    first.send({"a": 1}, b"body" * 100_000)
    assert second.receive() == ({"a": 1}, b"body" * 100_000)
    first.close()
    with pytest.raises(LineError):
        second.receive()
    second.close()


def test_a_stranger_is_turned_away() -> None:
    assert all(isinstance(end, LineError) for end in connected(b"wrong", b"key"))


def test_a_stranger_may_not_send_much() -> None:
    with listen("127.0.0.1", 0) as door:
        stranger = socket.create_connection(door.getsockname()[:2])
        stranger.sendall(lines._LENGTHS.pack(1 << 30, 0) + b"x" * 100)
        connection, _ = door.accept()
        with pytest.raises(LineError, match="too long"):
            answer(connection, b"key")
        stranger.close()
