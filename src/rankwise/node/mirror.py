"""A folder that is the same in two places: what has changed in one travels as frames to the other.

A frame is a small dictionary. Those of logs say where a piece of them belongs, so that what is
written is sent once. All other files are small and sent as a whole, whenever they change. Frames
are numbered, so that a client that has read some of them before leaves those out.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os

from .files import listed, rename

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, BinaryIO, TypeAlias

Frame: TypeAlias = "dict[str, Any]"

# As a line of text, shorter than what a container's log keeps in one piece.
_PIECE_BYTES = 6000
# The most of a log in one answer to a client that asks again and again.
_NEWS_BYTES = 128 * 1024
# A file that is larger is sent once, when nothing more is written to it.
_GREATEST_WHOLE = 1 << 20
# What is larger, one file or all that is new in a folder, is not sent, but named.
_GREATEST_EVER = 16 << 20
# The beginning of a log ends in a notice, which the runner keeps shorter than half of this.
_NOTICE_BYTES = 200
# An earlier part of a log has another name: the oldest first.
_PARTS = (".first", ".1", "")
_NEVER = ("order.json", "placement.json", "claim")
_END = "end.json"


class _Log:
    """A log as the other side has it; open, so that no other file gets its number."""

    def __init__(self, file: int, path: str) -> None:
        self.file = file
        self.path = path
        self.size = 0
        self.age = 0


class FolderMirror:
    """One folder, looked at again and again."""

    def __init__(self, folder: str, *, is_partial: bool = False) -> None:
        self._folder = folder
        # Whether only what processes write is of interest.
        self._is_partial = is_partial
        self._logs: dict[tuple[int, int], _Log] = {}
        self._seen: set[tuple[int, int]] = set()
        self._wholes: dict[str, tuple[int, int, int]] = {}

    def look(self, *, is_last: bool = False) -> Iterator[Frame]:
        """Return what has changed since the last time.

        With the last look comes what is large, and the end of the attempt in the last frame: a
        client that has it has everything.
        """
        self._seen.clear()
        for path in sorted(self._paths(), key=_oldest_first):
            if path == _END and not is_last:
                continue
            try:
                yield from self._log(path) if is_log(path) else self._whole(path, is_last=is_last)
            except FileNotFoundError:
                # It was there a moment ago.
                continue
            except OSError as error:
                if is_last:
                    yield {"left_out": path, "size": 0, "why": str(error.strerror)}
        for key in self._logs.keys() - self._seen:
            os.close(self._logs.pop(key).file)

    def _paths(self) -> Iterator[str]:
        for name in () if self._is_partial else listed(self._folder):
            if os.path.isfile(f"{self._folder}/{name}") and not _is_left_out(name):
                yield name
        for process in listed(f"{self._folder}/processes"):
            for name in listed(f"{self._folder}/processes/{process}"):
                if not _is_left_out(name):
                    yield f"processes/{process}/{name}"

    def _whole(self, path: str, *, is_last: bool) -> Iterator[Frame]:
        state = os.stat(f"{self._folder}/{path}")
        now = state.st_mtime_ns, state.st_size, state.st_ino
        if is_last and state.st_size > _GREATEST_EVER:
            yield {"left_out": path, "size": state.st_size}
        elif self._wholes.get(path) != now and (is_last or state.st_size <= _GREATEST_WHOLE):
            with open(f"{self._folder}/{path}", "rb") as file:
                data = file.read()
            yield from whole_file(path, data)
            self._wholes[path] = now

    def _log(self, path: str) -> Iterator[Frame]:
        file = os.open(f"{self._folder}/{path}", os.O_RDONLY)
        state = os.fstat(file)
        key = state.st_dev, state.st_ino
        if (log := self._logs.get(key)) is not None:
            os.close(file)
        else:
            log = self._logs[key] = _Log(file, path)
            # Of what was there under this name, nothing may be left.
            yield {"path": path, "size": 0}
        self._seen.add(key)
        if log.path != path:
            yield {"path": path, "from": log.path}
            log.path = path
        if path.endswith(_PARTS[0]) and log.age != state.st_mtime_ns:
            # It was cut, and ends in another notice now.
            log.size = min(log.size, max(0, state.st_size - _NOTICE_BYTES))
            yield {"path": path, "size": log.size}
        elif state.st_size < log.size:
            log.size = state.st_size
            yield {"path": path, "size": log.size}
        log.age = state.st_mtime_ns
        # No more than there was: a process may write faster than we read.
        while log.size < state.st_size:
            wanted = min(_PIECE_BYTES, state.st_size - log.size)
            if not (data := os.pread(log.file, wanted, log.size)):
                break
            yield {"path": path, "at": log.size, **_as_text(data)}
            log.size += len(data)


def news_of(folder: str, known: dict[str, list[int]], left: list[int]) -> list[list[Any]]:
    """Return pieces of logs that are new: name, inode, offset, size of the file now, bytes.

    `known` has the inode and the size of each log as the client has it. No more than `left[0]`
    bytes are returned; they are taken off it.
    """
    sizes = {one[0]: one[1] for one in known.values()}
    found = []
    for path in log_files(folder):
        try:
            with open(os.path.join(folder, path), "rb") as file:
                status = os.fstat(file.fileno())
                # By its inode: the file may have had another name.
                have = sizes.get(status.st_ino, 0)
                if known.get(path) == [status.st_ino, status.st_size]:
                    continue
                if status.st_size < have:
                    have = 0
                file.seek(have)
                data = file.read(min(_NEWS_BYTES, left[0]))
        except OSError:
            continue
        left[0] -= len(data)
        text = base64.b64encode(data).decode()
        found.append([path, status.st_ino, have, status.st_size, text])
    return found


def log_files(folder: str) -> Iterator[str]:
    """Return the names of logs, the oldest part of each first."""
    if os.path.exists(f"{folder}/runner.log"):
        yield "runner.log"
    for place in listed(f"{folder}/processes"):
        logs = filter(is_log, listed(f"{folder}/processes/{place}"))
        for name in sorted(logs, key=_oldest_first):
            yield f"processes/{place}/{name}"


def is_log(path: str) -> bool:
    return path.endswith(tuple(f".log{part}" for part in _PARTS))


def whole_file(path: str, data: bytes) -> Iterator[Frame]:
    """Return the frames of a file that is sent as a whole."""
    pieces = [data[at : at + _PIECE_BYTES] for at in range(0, len(data), _PIECE_BYTES)] or [b""]
    for number, piece in enumerate(pieces):
        yield {"path": path, "at": number * _PIECE_BYTES, "whole": len(data), **_as_text(piece)}


def new_files(folder: str, since: float, *, name: str) -> Iterator[Frame]:
    """Return what has come into a folder since then, as if the folder were called `name`.

    What is too large is named in a frame of its own.
    """
    left = _GREATEST_EVER
    for place, folders, files in os.walk(folder):
        folders[:] = [one for one in folders if one not in ("__pycache__", ".git")]
        for file in files:
            path = os.path.join(place, file)
            inside = os.path.relpath(path, folder)
            try:
                state = os.lstat(path)
                # What was unpacked or moved here is new, however old it says it is.
                is_old = max(state.st_mtime, state.st_ctime) < since
                if not os.path.isfile(path) or os.path.islink(path) or is_old:
                    continue
                if state.st_size > left:
                    yield {"left_out": inside, "size": state.st_size}
                    continue
                with open(path, "rb") as opened:
                    data = opened.read()
            except FileNotFoundError:
                continue
            except OSError as error:
                yield {"left_out": inside, "size": 0, "why": str(error.strerror)}
                continue
            left -= len(data)
            yield from whole_file(f"{name}/{inside}", data)


class Taker:
    """The other side: makes a folder like the one that frames come from."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        # Of files of which some pieces are here: where the next one belongs.
        self._next: dict[str, int] = {}
        # Whether pieces that were here before are the beginning of what comes now.
        self._trusts_pieces = True

    def note_gap(self) -> None:
        """Note that frames were lost: what is not whole yet will never be."""
        self._next.clear()
        self._trusts_pieces = False

    def take(self, frame: Frame) -> None:
        """Do what a frame says; ValueError: it is none, OSError: it cannot be done."""
        path = self._place(frame["path"])
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if "from" in frame:
            # It was moved before.
            with contextlib.suppress(FileNotFoundError):
                rename(self._place(frame["from"]), path)
        elif "whole" in frame:
            self._take_whole(path, frame)
        elif "at" in frame:
            with _opened(path) as file:
                _fill_gap(file, int(frame["at"]))
                file.write(_data(frame))
        elif "size" in frame:
            with _opened(path) as file:
                file.truncate(int(frame["size"]))

    def _take_whole(self, path: str, frame: Frame) -> None:
        """Write a file beside its place, and move it there when all of it is there."""
        beside = os.path.join(os.path.dirname(path), f".{os.path.basename(path)[:60]}.part")
        at, data = int(frame["at"]), _data(frame)
        with _opened(beside) as file:
            have = file.seek(0, os.SEEK_END) if self._trusts_pieces else 0
            if at and at != self._next.get(path, min(at, have)):
                raise ValueError("a part of it was lost on the way")
            file.seek(at)
            file.write(data)
            file.truncate()
        self._next[path] = at + len(data)
        if at + len(data) >= int(frame["whole"]):
            rename(beside, path)
            del self._next[path]

    def _place(self, path: object) -> str:
        """Return where a path is here; ValueError: it is outside of the folder."""
        parts = str(path).split("/")
        if not isinstance(path, str) or any(part in ("", ".", "..") for part in parts):
            raise ValueError(f"no such path: {path!r}")
        place = os.path.join(self._folder, *parts)
        # Links lead out of it as well.
        inside = os.path.realpath(self._folder)
        if not f"{os.path.realpath(os.path.dirname(place))}/".startswith(f"{inside}/"):
            raise ValueError(f"not in the folder: {path!r}")
        return place


def _opened(path: str) -> BinaryIO:
    """Open a file to write anywhere in it; what is there stays."""
    return open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o666), "wb")


def _fill_gap(file: BinaryIO, at: int) -> None:
    """Go to a place in a log, and say what is missing before it, where frames were lost."""
    missing = at - file.seek(0, os.SEEK_END)
    if missing > 0:
        notice = f"\n[rankwise: {missing} bytes are left out here]\n".encode()
        file.write(notice[:missing].rjust(missing))
    file.seek(at)


def to_line(frame: Frame) -> str:
    """Write a frame as one line."""
    return json.dumps(frame, ensure_ascii=True, separators=(",", ":"))


def from_line(line: str) -> Frame | None:
    """Read a frame; None: it is something else."""
    if not line.startswith("{"):
        return None
    try:
        frame = json.loads(line)
    except ValueError:
        return None
    return frame if isinstance(frame, dict) and isinstance(frame.get("n"), int) else None


def _as_text(data: bytes) -> dict[str, str]:
    """Put data into a frame so that people can read it, if they can read it at all."""
    try:
        return {"text": data.decode()}
    except UnicodeDecodeError:
        return {"data": base64.b64encode(data).decode()}


def _data(frame: Frame) -> bytes:
    if "text" in frame:
        return str(frame["text"]).encode(errors="surrogateescape")
    return base64.b64decode(frame.get("data", ""))


def _is_left_out(name: str) -> bool:
    return name.startswith(("claim.", ".")) or name.endswith(".new") or name in _NEVER


def _oldest_first(path: str) -> tuple[str, int]:
    if path == _END:
        return "~~", 0
    for age, part in enumerate(_PARTS):
        if path.endswith(f".log{part}"):
            return path.removesuffix(part), age
    # After the logs: a client that knows that a process has ended has all that it has written.
    return f"~{path}", 0
