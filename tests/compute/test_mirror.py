"""Logs that are mirrored as they grow, and what is fetched at the end."""

from __future__ import annotations

import base64
import io
import os
import tarfile
from pathlib import Path

import pytest

from rankwise.compute.remote.agent import news_of
from rankwise.compute.remote.mirror import Mirror
from rankwise.logs import Follower

_LOG = "processes/worker-0/output.log"


def _bring(mirror: Mirror, there: Path) -> None:
    """Do what a look does, with both sides in one process."""
    mirror.take(news_of(str(there), mirror.known(), [1 << 20]))


def test_a_log_grows_here_as_it_does_there_also_when_it_is_moved(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    log = there / _LOG
    log.parent.mkdir(parents=True)
    mirror, follower, seen = Mirror(here), Follower([here]), []
    for number in range(30):
        with log.open("a") as file:
            file.write(f"line {number}\n")
        if number % 7 == 6:
            log.replace(f"{log}.1")
            log.touch()
        if number % 3 == 2:
            _bring(mirror, there)
            seen += [line.text for line in follower.poll()]
    _bring(mirror, there)
    seen += [line.text for line in follower.finish(here)]
    for name in (_LOG, f"{_LOG}.1"):
        assert (here / name).read_text() == (there / name).read_text()
    # Only what was gone before anybody could look is missing, and nothing comes twice.
    assert len(seen) == len(set(seen)) >= 20


def test_another_client_goes_on_where_the_first_has_stopped(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    log = there / _LOG
    log.parent.mkdir(parents=True)
    log.write_text("one\n")
    _bring(Mirror(here), there)
    inode = (here / _LOG).stat().st_ino
    log.write_text("one\ntwo\n")
    second = Mirror(here)
    _bring(second, there)
    _bring(second, there)
    assert (here / _LOG).read_text() == "one\ntwo\n"
    assert (here / _LOG).stat().st_ino == inode, "those who follow it know it by that"


def test_pieces_that_are_too_large_for_one_look_come_with_the_next(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    log = there / _LOG
    log.parent.mkdir(parents=True)
    log.write_bytes(os.urandom(300_000))
    mirror = Mirror(here)
    pieces = news_of(str(there), mirror.known(), [1 << 20])
    mirror.take(pieces)
    assert not mirror.is_level(pieces)
    for _ in range(3):
        pieces = news_of(str(there), mirror.known(), [1 << 20])
        mirror.take(pieces)
    assert mirror.is_level(pieces)
    assert (here / _LOG).read_bytes() == log.read_bytes()


@pytest.mark.parametrize("name", ["../out.txt", "/etc/out.txt", "nodes/../../out.txt"])
def test_nothing_that_is_fetched_leaves_its_folder(tmp_path: Path, name: str) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as parcel:
        for path in (name, "kept.txt"):
            member = tarfile.TarInfo(path)
            member.size = 2
            parcel.addfile(member, io.BytesIO(b"x\n"))
    packed.seek(0)
    (tmp_path / "here").mkdir()
    Mirror(tmp_path / "here").unpack(packed)
    found = [one.relative_to(tmp_path).as_posix() for one in tmp_path.rglob("*") if one.is_file()]
    assert found == ["here/kept.txt"]


def test_no_log_is_written_outside_of_the_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no name for a log"):
        Mirror(tmp_path / "here").take([["../x.log", 1, 0, 1, base64.b64encode(b"x").decode()]])
