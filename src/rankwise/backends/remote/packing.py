"""An attempt as it is sent to a machine elsewhere, and what comes back of it."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import json
import os
import re
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import IO, Any

from rankwise import records
from rankwise.backends.base import Submission
from rankwise.backends.orders import make_order
from rankwise.backends.remote.connection import HostFacts, add_file, chunks_of
from rankwise.backends.remote.tracked import Tracked
from rankwise.errors import ComputeFailure
from rankwise.files import copy_code
from rankwise.node.agent import FETCHED, WHOLE
from rankwise.node.files import rename, to_json, write_file
from rankwise.node.order import NodeOrder
from rankwise.plan import TOOLS_PYTHON, RuntimeChoice, Task, with_texts
from rankwise.runtimes.base import Modules, PreparedRuntime
from rankwise.runtimes.container import Container
from rankwise.runtimes.uv import texts_of

_END = "end.json"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HostPolicy:
    """How one backend treats its machines."""

    backend: str
    tracked: Tracked
    python: str = ""
    is_shared: bool = False
    """Whether the machines see the files of this one, under the same names."""
    patience: float = 600.0
    """For how many seconds a machine may be silent before what was not sent goes elsewhere."""
    look_seconds: float = 0.4
    """How long a machine may wait for something new before it answers."""
    is_tracked: bool = True
    """Whether folders there are recorded: an instance that is deleted takes its folders with it."""


class AttemptMirror:
    """The files of one attempt here, in step with those over there.

    Logs grow in place and move as they do over there: readers follow them by inode.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.known: dict[str, list[int]] = {}
        """What is here, by name: the inode over there, and how many bytes of it are here."""

    def take(self, pieces: Sequence[Sequence[Any]]) -> None:
        """Write pieces of logs; a log that was moved over there is moved here first."""
        # All moves first: a rotated log must leave its name before the next one is written there.
        for path, inode, *_ in pieces:
            self._follow(path, inode)
        for path, inode, offset, _, text in pieces:
            self._write(path, inode, offset, base64.b64decode(text))

    def is_level(self, pieces: Sequence[Sequence[Any]]) -> bool:
        """Return whether nothing is missing of the logs that these pieces are from."""
        return all(self.known[path][1] >= size for path, _, _, size, _ in pieces)

    def _follow(self, path: str, inode: int) -> None:
        """Move a file here that was moved there."""
        if self.known.get(path, [0])[0] == inode:
            return
        old = next((name for name, (number, _) in self.known.items() if number == inode), None)
        if old is not None:
            with contextlib.suppress(OSError):
                rename(self._place(old), self._place(path))
            self.known[path] = self.known.pop(old)

    def _write(self, path: str, inode: int, offset: int, data: bytes) -> None:
        place = self._place(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        known = self.known.get(path, [0, 0])
        if known[0] != inode and place.exists() and offset == 0 and not known[0]:
            # Another client has mirrored it before: the same file from its beginning.
            self._continue(path, inode, data)
            return
        # Another file has this name there now: readers keep the old one, by its inode.
        if known[0] not in (0, inode):
            place.unlink(missing_ok=True)
        file = os.open(place, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            # More is here than comes before this piece: the log was cut, or it is sent once more.
            if offset < known[1]:
                os.ftruncate(file, offset)
            written = 0
            while written < len(data):  # A disk that is nearly full takes only a part.
                written += os.pwrite(file, data[written:], offset + written)
        finally:
            os.close(file)
        self.known[path] = [inode, offset + len(data)]

    def _continue(self, path: str, inode: int, data: bytes) -> None:
        """Continue the file of an earlier client, if it begins as this one does."""
        place = self._place(path)
        size = place.stat().st_size
        with place.open("r+b") as file:
            if file.read(len(data)) != data[:size]:
                file.truncate(size := 0)
            file.seek(0)
            file.write(data)
        self.known[path] = [inode, max(size, len(data))]

    def unpack(self, file: IO[bytes]) -> None:
        """Write the other files that an attempt has left; its end comes last, and is synced.

        OSError: not all could be written here. EOFError, TarError: not all has come.
        """
        # A stream that was cut has no FETCHED: what came is fetched again, and nothing removed.
        is_whole = False
        with tarfile.open(fileobj=file, mode="r|") as parcel:
            for member in parcel:
                if not _is_inside(member):
                    continue
                if member.name == FETCHED:
                    is_whole = True
                    if json.loads(data := _content(parcel, member)):
                        (self._folder / FETCHED).write_bytes(data)
                elif member.name == _END:
                    if not is_whole:
                        raise EOFError("its end came too early")
                    # Synced: the copy over there is removed once this one is here.
                    write_file(f"{self._folder}/{_END}", _content(parcel, member), is_synced=True)
                else:
                    self._take(parcel, member)
        if not is_whole:
            raise EOFError("what was fetched has no end")

    def left_there(self) -> list[str]:
        """Return the files that could not be read over there, each with the reason."""
        try:
            found: list[str] = json.loads((self._folder / FETCHED).read_bytes())
        except FileNotFoundError:
            return []
        return found

    def _take(self, parcel: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        """Write a file here, but for a link that leads out of the folder."""
        if hasattr(tarfile, "data_filter"):
            try:
                tarfile.data_filter(member, str(self._folder))
            except tarfile.FilterError:
                return
            self._make_room(member)
            parcel.extract(member, self._folder, filter="data")
        elif member.isfile() or member.isdir():
            # A Python before 3.11.4 cannot tell where a link leads: they are all left.
            self._make_room(member)
            member.mode = member.mode & 0o755 | (0o700 if member.isdir() else 0o600)
            member.uid, member.gid = os.getuid(), os.getgid()
            member.uname = member.gname = ""
            parcel.extract(member, self._folder)

    def _make_room(self, member: tarfile.TarInfo) -> None:
        """Remove what an earlier try has written, which may be for reading only."""
        place = self._folder / member.name
        if place.is_symlink() or place.is_file():
            place.unlink()

    def _place(self, path: str) -> Path:
        if ".." in Path(path).parts or path.startswith("/"):
            raise ValueError(f"{path} is no name for a log")
        return self._folder / path


def _is_inside(member: tarfile.TarInfo) -> bool:
    """Return whether a file belongs into the folder: the other side is not ours to trust."""
    path = Path(member.name)
    return not path.is_absolute() and ".." not in path.parts and not member.isdev()


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    content = archive.extractfile(member)
    assert content is not None  # both are plain files, as the agent writes them
    return content.read()


# What the other side can make; it ignores all other fields of a runtime.
_KNOWN = (
    *("name", "kind", "python", "requirements", "lock", "lock_digest", "modules", "image"),
    "engine",
)
_INCLUDES = re.compile(r"\s*(?:-r|-c|--requirement|--constraint)\b")
# A path begins where no other goes on: `-I/a/b` and `@/a/b` name /a/b, and /x/a/b does not.
_BEFORE_PATH = r"(?P<before>(?:^|(?<=[^\w./+@%~$})`-]))(?:-{1,2}[A-Za-z][\w-]*|@)?/*?)"
# It ends with a part of it: /a/b/c is in /a/b, and neither /a/b-old nor /a/b.txt is.
_BEHIND_PATH = r"(?![\w.+@%~-])"
_KINDS = ("current", "python", "uv", "modules", "container")


@contextlib.contextmanager
def packed(
    job: Submission, found: HostFacts, *, policy: HostPolicy, gpus: Sequence[str] = ()
) -> Iterator[Iterator[bytes]]:
    """Return an attempt as it is sent: the values of secrets first, then a tar.

    ComputeFailure, OSError: it cannot be made. The values never come to a disk here.
    """
    values = json.dumps(dict(job.secrets)).encode()
    with tempfile.TemporaryFile() as file:
        _pack(file, job, found, policy, gpus)
        file.seek(0)
        yield chain([b"%d\n%s" % (len(values), values)], chunks_of(file))


def _pack(
    file: IO[bytes], job: Submission, found: HostFacts, policy: HostPolicy, gpus: Sequence[str]
) -> None:
    here, source = job.attempt.folder, job.task.code or job.task.folder
    there = f"{found.root}/attempts/{job.attempt.marker}"
    # A task without code of its own works in place, where the host sees our files.
    is_copied = bool(job.task.code) or not policy.is_shared
    work = f"{there}/nodes/node0" if is_copied else source
    python = policy.python or found.python
    runtime, prepared = _runtime(job.task.runtime, job.runtime, found, python)
    own = {one: _runtime(one, given, found, python) for one, given in job.runtimes.items()}
    runtime |= {"tools": job.task.tools, "tools_python": TOOLS_PYTHON, "processes": {}}
    for process in job.task.processes if own else ():
        made = own[process.runtime][0] if process.runtime in own else dict(runtime, processes={})
        runtime["processes"][process.name] = made
    if is_cloned := is_copied and bool(job.task.repository):
        where = {"url": job.task.repository, "commit": job.task.commit}
        runtime["repository"] = {**where, "into": work}
    moved = dataclasses.replace(
        job,
        attempt=dataclasses.replace(job.attempt, folder=Path(there)),
        task=_moved(job.task, source, work) if is_copied else job.task,
        runtime=prepared,
        runtimes={one: given for one, (_, given) in own.items()},
    )
    node = NodeOrder(name=found.host, address="127.0.0.1", folder=work)
    order = make_order(moved, [node], gpus=gpus)
    # Checks and metrics find what was left here, under the names that it has here.
    place = str(here / "nodes" / "node0") if is_copied else source
    order.replace(folder=str(here), nodes=[node.replace(folder=place)]).write(here)
    with tarfile.open(fileobj=file, mode="w") as archive:
        add_file(archive, records.ORDER, to_json(order.data()).encode())
        add_file(archive, "runtime.json", json.dumps(runtime).encode())
        codes = {f"-{one.role}": one.code for one in job.task.processes if one.code}
        codes |= {"": source} if is_copied and not is_cloned else {}
        for name, code in codes.items():
            with tempfile.TemporaryDirectory(prefix=".sending-", dir=here) as copy:
                copy_code(Path(code), Path(copy))
                archive.add(copy, f"nodes/node0{name}", filter=_writable)
        # Last of all: without it, the agent takes what came for a part.
        add_file(archive, WHOLE, b"")


def _writable(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Make sure that the folders can be removed again."""
    if member.isdir():
        member.mode |= 0o700
    return member


def _runtime(
    choice: RuntimeChoice, given: PreparedRuntime, found: HostFacts, python: str
) -> tuple[dict[str, Any], PreparedRuntime]:
    """Return the runtime to make there, and how commands are started in it."""
    data = dataclasses.asdict(choice)
    empty = dataclasses.asdict(RuntimeChoice())
    more = [name for name in data if name not in _KNOWN and data[name] != empty[name]]
    if choice.kind not in _KINDS or more:
        raise ComputeFailure(
            f'runtime "{choice.name}" cannot be made on {found.host}: '
            f"{more[0] if more else choice.kind} is for this machine and for clusters only"
        )
    has_path = choice.kind == "current" and bool(given.path)
    locked = _lock_of(choice) if choice.lock else None
    runtime = {**data, "host_python": python, "has_path": has_path, "locked": locked}
    if choice.kind == "modules":
        return runtime, dataclasses.replace(given, wrap=Modules(names=choice.modules))
    if choice.kind != "container":
        return runtime, given
    names = [choice.engine] if choice.engine else list(found.engines)
    engine = next((name for name in names if name in found.engines), None)
    if engine is None:
        raise ComputeFailure(
            f'runtime "{choice.name}" is the container image {choice.image}, and {found.host} has '
            f"no {choice.engine or 'docker, podman or apptainer'}"
        )
    executable, image = found.engines[engine], choice.image
    wrap = Container(
        engine=engine, executable=executable, image=image, uid=found.uid, gid=found.gid
    )
    prepared = dataclasses.replace(given, wrap=wrap, is_container=True)
    return {**runtime, "engine": executable}, prepared


def _lock_of(choice: RuntimeChoice) -> tuple[str, str]:
    """Return the name and the content of a lock file, with all that it includes in one."""
    path = Path(choice.lock)
    try:
        texts = texts_of(path)
    except OSError as error:
        raise ComputeFailure(f'runtime "{choice.name}": {path}: {error.strerror}') from error
    # The machine has none of the files that a lock file includes.
    lines = [line for text in texts for line in text.splitlines()]
    return path.name, "".join(f"{line}\n" for line in lines if not _INCLUDES.match(line))


def _moved(task: Task, source: str, work: str) -> Task:
    """Return a task with the folder there for the one here, wherever its texts have it."""
    places = {place.rstrip("/") for place in (source, os.path.realpath(source))} - {""}
    # Our interpreter first, which may be in the folder; what is below it is no interpreter.
    # The longer path first, where one begins with the other.
    folders = sorted(map(re.escape, places), key=len, reverse=True)
    known = "|".join([rf"{re.escape(sys.executable)}(?!/)", *folders])
    pattern = re.compile(f"{_BEFORE_PATH}(?P<path>{known}){_BEHIND_PATH}")

    def moved(found: re.Match[str]) -> str:
        return f"{found['before']}{work if found['path'] in places else 'python'}"

    return with_texts(task, lambda text: pattern.sub(moved, text))
