"""Logs that are mirrored as they grow, and what is fetched at the end."""

from __future__ import annotations

import base64
import io
import os
import resource
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rankwise.backends.remote.packing import AttemptMirror
from rankwise.logs import LogFollower
from rankwise.node.agent import FETCHED
from rankwise.node.mirror import news_of

_LOG = "processes/worker-0/output.log"


def _bring(mirror: AttemptMirror, there: Path) -> None:
    """Do what a look does, with both sides in one process."""
    mirror.take(news_of(str(there), mirror.known(), [1 << 20]))


def test_a_log_grows_here_as_it_does_there_also_when_it_is_moved(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    log = there / _LOG
    log.parent.mkdir(parents=True)
    mirror, follower, seen = AttemptMirror(here), LogFollower(), []
    follower.add(here)
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
    _bring(AttemptMirror(here), there)
    inode = (here / _LOG).stat().st_ino
    log.write_text("one\ntwo\n")
    second = AttemptMirror(here)
    _bring(second, there)
    _bring(second, there)
    assert (here / _LOG).read_text() == "one\ntwo\n"
    assert (here / _LOG).stat().st_ino == inode, "those who follow it know it by that"


def test_pieces_that_are_too_large_for_one_look_come_with_the_next(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    log = there / _LOG
    log.parent.mkdir(parents=True)
    log.write_bytes(os.urandom(300_000))
    mirror = AttemptMirror(here)
    pieces = news_of(str(there), mirror.known(), [1 << 20])
    mirror.take(pieces)
    assert not mirror.is_level(pieces)
    for _ in range(3):
        pieces = news_of(str(there), mirror.known(), [1 << 20])
        mirror.take(pieces)
    assert mirror.is_level(pieces)
    assert (here / _LOG).read_bytes() == log.read_bytes()


def _add(parcel: tarfile.TarFile, name: str, data: bytes, mode: int = 0o644) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(data), mode
    parcel.addfile(member, io.BytesIO(data))


def _packed(**files: bytes) -> io.BytesIO:
    """Pack files as a machine does: what could not be read behind them, and the end at last."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as parcel:
        for name, data in files.items():
            _add(parcel, name, data, 0o444)
        for name in (FETCHED, "end.json"):
            _add(parcel, name, b"[]")
    packed.seek(0)
    return packed


@pytest.fixture
def small_disk() -> Iterator[Callable[[], None]]:
    """A limit to the size of files, which the kernel answers as it does a full disk; lifts it."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))

    def lift() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    try:
        yield lift
    finally:
        lift()


def test_what_does_not_fit_here_is_no_end_and_is_taken_in_when_there_is_room(
    tmp_path: Path, small_disk: Callable[[], None]
) -> None:
    mirror = AttemptMirror(tmp_path)
    with pytest.raises(OSError, match="too large"):
        mirror.unpack(_packed(small=b"small", large=b"x" * 20_000))
    assert not (tmp_path / "end.json").exists(), "with it, the machine would be told to remove all"
    small_disk()
    mirror.unpack(_packed(small=b"small", large=b"x" * 20_000))
    assert (tmp_path / "large").stat().st_size == 20_000
    assert (tmp_path / "end.json").exists()


def test_a_piece_of_a_log_that_fits_only_in_part_comes_again(
    tmp_path: Path, small_disk: Callable[[], None]
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    log = there / _LOG
    log.parent.mkdir(parents=True)
    mirror = AttemptMirror(here)
    log.write_bytes(b"a" * 8_000)
    _bring(mirror, there)
    with pytest.raises(OSError, match="too large"):
        mirror.take([[_LOG, log.stat().st_ino, 8_000, 12_000, base64.b64encode(b"b" * 4_000)]])
    small_disk()
    log.write_bytes(b"a" * 8_000 + b"b" * 4_000)
    _bring(mirror, there)
    assert (here / _LOG).read_bytes() == log.read_bytes()


@pytest.mark.parametrize("end", [b"", b"end.json"], ids=["lost", "over"])
def test_a_stream_that_was_cut_is_not_taken_for_all(tmp_path: Path, end: bytes) -> None:
    """Cut between two files, where tar by itself does not notice."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as parcel:
        for name in ("first", *([end.decode()] if end else [])):
            _add(parcel, name, b"{}")
    packed.seek(0)
    with pytest.raises(EOFError):
        AttemptMirror(tmp_path).unpack(packed)
    assert not (tmp_path / "end.json").exists()


def test_what_could_not_be_read_there_is_known_here(tmp_path: Path) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as parcel:
        _add(parcel, FETCHED, b'["nodes/node0/x: Input/output error"]')
    packed.seek(0)
    AttemptMirror(tmp_path).unpack(packed)
    assert AttemptMirror(tmp_path).left_there() == ["nodes/node0/x: Input/output error"]


@pytest.fixture(params=["3.11.2", "3.11.4"])
def python_with_its_tarfile(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Python of Debian 12, which has no filters, and one that has."""
    if request.param == "3.11.2":
        for name in ("data_filter", "FilterError"):
            monkeypatch.delattr(tarfile, name, raising=False)


@pytest.mark.usefixtures("python_with_its_tarfile")
@pytest.mark.parametrize(
    "name", ["../out.txt", "/etc/out.txt", "nodes/../../out.txt", "link/out.txt"]
)
def test_nothing_that_is_fetched_leaves_its_folder(tmp_path: Path, name: str) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as parcel:
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, ".."
        parcel.addfile(link)
        for path in (name, "kept.txt"):
            member = tarfile.TarInfo(path)
            member.size = 2
            parcel.addfile(member, io.BytesIO(b"x\n"))
        _add(parcel, FETCHED, b"[]")
    packed.seek(0)
    (tmp_path / "here").mkdir()
    AttemptMirror(tmp_path / "here").unpack(packed)
    found = [one.relative_to(tmp_path).as_posix() for one in tmp_path.rglob("*") if one.is_file()]
    # Where the link is left, a folder may have its name.
    assert sorted(found) == ["here/kept.txt", *["here/link/out.txt"] * (name == "link/out.txt")]


def test_no_log_is_written_outside_of_the_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no name for a log"):
        AttemptMirror(tmp_path / "here").take(
            [["../x.log", 1, 0, 1, base64.b64encode(b"x").decode()]]
        )
