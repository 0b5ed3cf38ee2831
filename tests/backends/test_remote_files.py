"""Logs that are mirrored as they grow, and what is fetched at the end."""

from __future__ import annotations

import base64
import io
import json
import os
import resource
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rankwise import files
from rankwise.backends.base import Attempt, Submission
from rankwise.backends.remote.connection import HostFacts
from rankwise.backends.remote.packing import AttemptMirror, HostPolicy, packed
from rankwise.backends.remote.tracked import Tracked
from rankwise.errors import ComputeFailure
from rankwise.files import copy_code
from rankwise.logs import LogFollower
from rankwise.node import agent
from rankwise.node.agent import FETCHED
from rankwise.node.mirror import news_of
from rankwise.plan import Process, Task
from rankwise.runtimes.base import PreparedRuntime
from rankwise.steps.keeping import restore_cache, save_cache

_LOG = "processes/worker-0/output.log"


def _bring(mirror: AttemptMirror, there: Path) -> None:
    """Do what a look does, with both sides in one process."""
    mirror.take(news_of(str(there), mirror.known, [1 << 20]))


def test_a_mirrored_log_grows_and_rotates_as_the_remote_one_does(tmp_path: Path) -> None:
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


def test_another_client_continues_mirroring_where_the_first_stopped(tmp_path: Path) -> None:
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
    assert (here / _LOG).stat().st_ino == inode, "readers follow it by its inode"


def test_pieces_that_are_too_large_for_one_look_come_with_the_next(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    log = there / _LOG
    log.parent.mkdir(parents=True)
    log.write_bytes(os.urandom(300_000))
    mirror = AttemptMirror(here)
    pieces = news_of(str(there), mirror.known, [1 << 20])
    mirror.take(pieces)
    assert not mirror.is_level(pieces)
    for _ in range(3):
        pieces = news_of(str(there), mirror.known, [1 << 20])
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


def test_a_full_disk_delays_the_end_of_an_attempt_and_loses_nothing(
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


def test_a_partly_written_piece_of_a_log_is_fetched_again(
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
def test_a_cut_off_fetch_is_not_taken_for_complete(tmp_path: Path, end: bytes) -> None:
    """Cut between two files, where tar by itself does not notice."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as parcel:
        for name in ("first", *([end.decode()] if end else [])):
            _add(parcel, name, b"{}")
    packed.seek(0)
    with pytest.raises(EOFError):
        AttemptMirror(tmp_path).unpack(packed)
    assert not (tmp_path / "end.json").exists()


def test_files_that_could_not_be_read_remotely_are_named_here(tmp_path: Path) -> None:
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
def test_fetched_files_stay_within_the_folder_of_the_attempt(tmp_path: Path, name: str) -> None:
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


# Archives are unpacked with the trust that their origin deserves, whatever Python's default is

pytestmark = pytest.mark.skipif(
    not hasattr(tarfile, "data_filter"), reason="this Python has no filters"
)


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the default of Python 3.14."""
    monkeypatch.setattr(tarfile.TarFile, "extraction_filter", staticmethod(tarfile.data_filter))


@pytest.fixture
def trusting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the default of Python 3.11."""
    default = staticmethod(tarfile.fully_trusted_filter)
    monkeypatch.setattr(tarfile.TarFile, "extraction_filter", default)


def tar_of(*members: tarfile.TarInfo) -> io.BytesIO:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for member in members:
            archive.addfile(member, io.BytesIO(b"0" * member.size))
    file.seek(0)
    return file


def link(name: str, to: str) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = tarfile.SYMTYPE, to
    return member


def plain(name: str, mode: int = 0o644) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.mode = 1, mode
    return member


@pytest.mark.usefixtures("trusting")
def test_fetched_files_neither_link_outside_nor_gain_permissions(tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    strange = [link("link", ".."), plain("link/out.txt"), plain("program", 0o6777)]
    parcel = tar_of(*strange, plain(agent.FETCHED))
    AttemptMirror(here).unpack(parcel)
    assert not (tmp_path / "out.txt").exists()
    assert not (here / "link").is_symlink()
    assert (here / "program").stat().st_mode & 0o7022 == 0


@pytest.mark.usefixtures("strict")
def test_an_attempt_arrives_on_another_machine_with_the_links_of_its_code(tmp_path: Path) -> None:
    parcel = tar_of(link("data", "/usr/share"), plain(agent.WHOLE))
    agent.unpack(parcel, str(tmp_path / "attempt"))
    assert (tmp_path / "attempt" / "data").readlink() == Path("/usr/share")


@pytest.mark.parametrize("name", ["../out.txt", "TMP/out.txt", "a/../../out.txt"])
def test_an_attempt_with_names_outside_of_its_folder_does_not_arrive(
    tmp_path: Path, name: str
) -> None:
    folder = tmp_path / "attempts" / "one"
    folder.parent.mkdir()
    with pytest.raises(OSError, match="no name for a file of an attempt"):
        agent.unpack(
            tar_of(plain(name.replace("TMP", str(tmp_path))), plain(agent.WHOLE)), str(folder)
        )
    assert [*tmp_path.rglob("*")] == [folder.parent]


@pytest.mark.usefixtures("strict")
def test_a_cache_is_put_back_with_its_links_and_modes(tmp_path: Path) -> None:
    made = tmp_path / "made"
    made.mkdir()
    (made / "python").symlink_to("/usr/bin/python3")
    (made / "shared").write_text("x")
    (made / "shared").chmod(0o666)
    assert save_cache(tmp_path / "cache.tar", ["made"], tmp_path)
    made.rename(tmp_path / "gone")
    assert restore_cache(tmp_path / "cache.tar", ["made"], tmp_path)
    assert (made / "python").readlink() == Path("/usr/bin/python3")
    assert (made / "shared").stat().st_mode & 0o777 == 0o666


# What is sent to another machine: paths of the folder here become those of the folder there

_THERE = "/far/attempts/rw-1/nodes/node0"


def _sent(folder: Path, command: str | tuple[str, ...], **variables: str) -> tuple[object, object]:
    """Return a command and its variables as they are in the order that is sent."""
    code, place = folder / "proj", folder / "attempt"
    code.mkdir(exist_ok=True)
    place.mkdir(exist_ok=True)
    process = Process(name="worker-0", role="worker", command=command)
    task = Task(
        key="task", processes=(process,), code=str(code), folder=str(code), environment=variables
    )
    attempt = Attempt(label="run-1/task/1", marker="rw-1", folder=place)
    found = HostFacts(
        root="/far",
        python="/usr/bin/python3",
        version="3.11.2",
        host="far",
        platform="Linux-x86_64",
        cores=1.0,
        memory=0,
    )
    job = Submission(attempt=attempt, task=task, runtime=PreparedRuntime())
    policy = HostPolicy(backend="it", tracked=Tracked(folder / "elsewhere"))
    with packed(job, found, policy=policy) as chunks:
        head, *body = chunks
    assert head == b"2\n{}"
    with tarfile.open(fileobj=io.BytesIO(b"".join(body))) as archive:
        content = archive.extractfile("order.json")
        assert content is not None
        order = json.load(content)
    return order["processes"][0]["command"], order["environment"]


@pytest.mark.parametrize(
    "text",
    [
        "HERE",
        "HERE/",
        "HERE/data.txt",
        "cat HERE/a HERE/b; cd HERE && ls",
        "--data=HERE",
        "--data=HERE/x",
        "-IHERE/include",
        "-L/HERE/lib",
        "@HERE/options",
        "file://HERE/x",
        "/usr/lib:HERE:HERE/lib",
        "sh -c 'cd \"HERE\"; (ls HERE)'",
        "HERE,HERE/x",
    ],
)
def test_paths_of_the_folder_are_those_of_the_folder_there(tmp_path: Path, text: str) -> None:
    here = text.replace("HERE", str(tmp_path / "proj"))
    command, variables = _sent(tmp_path, ("prog", here), PLACE=here)
    expected = text.replace("HERE", _THERE)
    assert command == ["prog", expected]
    assert variables["PLACE"] == expected  # type: ignore[index]  # a table


@pytest.mark.parametrize(
    "text",
    [
        "HEREect2/data.txt",
        "HERE-old",
        "--x=HERE-old",
        "--x=HERE-old/y",
        "HERE.bak/x",
        "HERE2",
        "HERE_x/y",
        "/mntHERE/x",
        "$PREFIXHERE/x",
        "${PREFIX}HERE/x",
        "~HERE",
        "..HERE/x",
        f"{sys.executable}-config",
        f"{sys.executable}.bak",
        f"/chroot{sys.executable}",
    ],
)
def test_paths_of_other_folders_stay_as_they_are(tmp_path: Path, text: str) -> None:
    here = text.replace("HERE", str(tmp_path / "proj"))
    command, variables = _sent(tmp_path, ("prog", here), PLACE=here)
    assert command == ["prog", here]
    assert variables["PLACE"] == here  # type: ignore[index]  # a table


def test_our_interpreter_is_the_one_there_also_within_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "proj" / ".venv" / "bin" / "python"))
    command, _ = _sent(tmp_path, f"{sys.executable} {tmp_path}/proj/run.py")
    assert command == f"python {_THERE}/run.py"


# Copies of people's code


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    for name in ("train.py", "data/a.bin", "data/b.txt", ".git/HEAD", "pkg/__pycache__/m.pyc"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return folder


def names(folder: Path) -> list[str]:
    return sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    )


def test_a_copy_of_code_leaves_out_what_is_never_code(source: Path, tmp_path: Path) -> None:
    copy_code(source, tmp_path / "copy")
    assert names(tmp_path / "copy") == ["data/a.bin", "data/b.txt", "train.py"]


@pytest.mark.parametrize("file", [".rankwiseignore", ".amlignore"])
@pytest.mark.parametrize(
    ("pattern", "left"),
    [
        ("*.bin", ["data/b.txt", "train.py"]),
        ("data/", ["train.py"]),
        ("data/a*", ["data/b.txt", "train.py"]),
        ("# data", ["data/a.bin", "data/b.txt", "train.py"]),
    ],
)
def test_a_copy_of_code_leaves_out_what_the_ignore_file_names(
    source: Path, tmp_path: Path, file: str, pattern: str, left: list[str]
) -> None:
    (source / file).write_text(f"\n{pattern}\n")
    copy_code(source, tmp_path / "copy")
    assert names(tmp_path / "copy") == sorted([file, *left])


def test_a_link_in_code_is_copied_as_a_link(source: Path, tmp_path: Path) -> None:
    (source / "nowhere").symlink_to("/no/such/file")
    copy_code(source, tmp_path / "copy")
    assert (tmp_path / "copy" / "nowhere").readlink() == Path("/no/such/file")


def test_a_missing_code_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ComputeFailure, match=r"/src: there is no such folder; `code\.path` must"):
        copy_code(tmp_path / "src", tmp_path / "copy")


def test_a_code_folder_that_is_too_large_is_refused_with_the_remedy(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_MOST_BYTES", 10)
    with pytest.raises(ComputeFailure, match=r"source: more than .* in .*/\.rankwiseignore"):
        copy_code(source, tmp_path / "copy")
