"""What the head of an attempt writes, turned into files here: nothing of it is lost unseen."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from rankwise.backends.base import Unreachable
from rankwise.backends.kubernetes import watch as module
from rankwise.backends.kubernetes.client import ApiClient
from rankwise.backends.kubernetes.watch import NUMBER, LogStream
from rankwise.documents.site_models import KubernetesConfig
from rankwise.node.mirror import Frame, to_line, whole_file
from tests.kubernetes.kubelet import wait_until

_LOG = "processes/worker-0/output.log"


class Kept(ApiClient):
    """What a cluster has of a log, each time that it is asked for it."""

    def __init__(self, *answers: Sequence[Frame]) -> None:
        super().__init__(KubernetesConfig())
        self.asked: list[int | None] = []
        self._answers = list(answers)

    def log(self, pod: str, *, since: int | None) -> Iterator[str]:
        del pod
        self.asked.append(since)
        frames = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        yield from map(to_line, frames)
        if self._answers[0] is not frames:
            raise Unreachable("the line has broken")


def numbered(*frames: Frame) -> list[Frame]:
    return [{"n": number, **frame} for number, frame in enumerate(frames, 1)]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SOONEST_SECONDS", 0.01)


def follow(cluster: ApiClient, folder: Path) -> LogStream:
    return LogStream(cluster, "pod", folder, poke=lambda: None)


def test_what_cannot_be_written_is_waited_for_and_nothing_is_lost(tmp_path: Path) -> None:
    """The disk is full: first for a log, and then for a file."""
    frames = numbered(
        {"path": _LOG, "at": 0, "text": "one\n"},
        *whole_file("processes/worker-0/end.json", b"{}"),
        {"end": True},
    )
    process = (tmp_path / _LOG).parent
    process.mkdir(parents=True)
    obstacles = {tmp_path / _LOG: tmp_path / _LOG, process / ".end.json.part": process / "end.json"}
    for obstacle in obstacles:
        obstacle.symlink_to("/dev/full")
    stream = follow(Kept(frames), tmp_path)
    for obstacle, place in obstacles.items():
        wait_until(lambda: "No space left" in stream.trouble_here)
        assert (stream.is_whole, stream.left_out) == (False, {})
        obstacle.unlink()
        wait_until(place.exists)
    wait_until(lambda: stream.is_whole)
    assert stream.trouble_here == ""
    assert (tmp_path / _LOG).read_text() == "one\n"
    assert (process / "end.json").read_text() == "{}"


def test_a_client_that_ends_while_it_waits_leaves_the_rest_to_the_next_one(tmp_path: Path) -> None:
    frames = numbered({"path": _LOG, "at": 0, "text": "one\n"}, {"end": True})
    (tmp_path / _LOG).parent.mkdir(parents=True)
    (tmp_path / _LOG).symlink_to("/dev/full")
    first = follow(Kept(frames), tmp_path)
    wait_until(lambda: bool(first.trouble_here))
    first.close()
    first.join()
    assert int((tmp_path / NUMBER).read_text()) == 0, "the next one asks for it again"
    (tmp_path / _LOG).unlink()
    second = follow(Kept(frames), tmp_path)
    wait_until(lambda: second.is_whole)
    assert (tmp_path / _LOG).read_text() == "one\n"


def test_a_full_disk_does_not_make_a_client_forget_what_it_has_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that was moved would be moved again, over what was moved before."""
    (tmp_path / NUMBER).write_text("1")

    def write_on_a_full_disk(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, "write_file", write_on_a_full_disk)
    frames = numbered(*({"path": "a.log", "at": 0, "text": "x"} for _ in range(3)), {"end": True})
    stream = follow(Kept(frames), tmp_path)
    stream.join()
    assert stream.is_whole
    assert (tmp_path / NUMBER).read_text() == "1"


def test_a_file_where_a_folder_is_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a file")
    frames = numbered(*whole_file("a/b", b"x"), {"end": True})
    stream = follow(Kept(frames), tmp_path)
    wait_until(lambda: stream.is_whole)
    assert [*stream.left_out] == ["a/b"]


def test_a_file_that_can_never_be_here_is_named(tmp_path: Path) -> None:
    name = f"nodes/node0/{'x' * 300}"
    frames = numbered(*whole_file(name, b"x"), *whole_file("a", b"a"), {"end": True})
    stream = follow(Kept(frames), tmp_path)
    wait_until(lambda: stream.is_whole)
    assert [*stream.left_out] == [name]
    assert "File name too long" in stream.left_out[name]
    assert (tmp_path / "a").read_text() == "a"


def test_frames_that_were_written_while_nobody_heard_are_asked_for_again(tmp_path: Path) -> None:
    frames = numbered(
        *({"path": _LOG, "at": 4 * count, "text": f"{count:03}\n"} for count in range(9)),
        {"end": True},
    )
    # The line breaks; what is asked for is too late, and all is asked for.
    cluster = Kept(frames[:3], frames[6:], frames)
    stream = follow(cluster, tmp_path)
    wait_until(lambda: stream.is_whole)
    assert (tmp_path / _LOG).read_text() == "".join(f"{count:03}\n" for count in range(9))
    assert stream.missing == 0
    assert [since is None for since in cluster.asked] == [True, False, True]


def test_frames_that_the_cluster_has_no_more_are_counted(tmp_path: Path) -> None:
    first, second, *rest = whole_file("result.bin", b"x" * 20_000)
    frames = numbered({"path": _LOG, "at": 0, "text": "one\n"}, first, second, *rest, {"end": True})
    stream = follow(Kept(frames[:2], frames[3:], frames[3:]), tmp_path)
    wait_until(lambda: stream.is_whole)
    assert stream.missing == 1
    assert not (tmp_path / "result.bin").exists()
    assert stream.left_out == {"result.bin": "a part of it was lost on the way"}
