"""Follow the logs that runners write, also those that other processes have started."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from rankwise.files import open_left
from rankwise.records import LOGS, PROCESSES, process_folders

_FIRST, _OLD, _LOG = LOGS
# A round takes no more than this of one process, so that a loud one does not keep the others back.
_CHUNK_BYTES = 256 * 1024
# A line that does not end is returned in pieces of this size, so that it does not fill the memory.
_LINE_BYTES = 1024 * 1024
TAIL_BYTES = 64 * 1024
"""So much is read where only the end is wanted."""


class LogLine(NamedTuple):
    """One line that a process has written."""

    process: str
    text: str
    folder: Path
    """That of the attempt."""


class LogFollower:
    """Returns what is new in the logs of attempts; a line that has not ended yet is held back."""

    def __init__(self) -> None:
        self._tails: dict[Path, dict[str, LogTail]] = {}
        # The processes of each attempt that are known, also those that are not followed.
        self._names: dict[Path, set[str]] = {}
        self._wanted: dict[Path, Callable[[str], bool]] = {}

    def add(
        self, folder: Path, *, wanted: Callable[[str], bool] = bool, from_now: bool = False
    ) -> None:
        """Follow an attempt too, from the beginning of its logs or from where they end now.

        `wanted` says by its name whether a process is to be followed; all are, if it is not given.
        """
        if folder in self._tails:
            return
        self._tails[folder], self._names[folder] = {}, set()
        self._wanted[folder] = wanted
        self._find(folder)
        if from_now:
            for tail in self._tails[folder].values():
                tail.skip()

    def poll(self) -> list[LogLine]:
        """Return the lines that have come since, at most a chunk of each process; empty: none."""
        found: list[LogLine] = []
        for folder, tails in self._tails.items():
            self._find(folder)
            for name, tail in tails.items():
                if data := tail.read():
                    found += (LogLine(name, text, folder) for text in tail.lines.feed(data))
        return found

    def finish(self, folder: Path) -> Iterator[LogLine]:
        """Return everything that is left of an attempt that is over, and follow it no longer."""
        if folder not in self._tails:
            return
        self._find(folder)
        del self._names[folder], self._wanted[folder]
        for name, tail in self._tails.pop(folder).items():
            while data := tail.read():
                yield from (LogLine(name, text, folder) for text in tail.lines.feed(data))
            yield from (LogLine(name, text, folder) for text in tail.lines.flush())

    def finish_all(self) -> Iterator[LogLine]:
        """Return everything that is left, and follow nothing any longer."""
        for folder in list(self._tails):
            yield from self.finish(folder)

    def _find(self, folder: Path) -> None:
        """Find processes that were not there before."""
        names = self._names[folder]
        try:
            # Often nothing is new: then names are enough.
            if names.issuperset(os.listdir(folder / PROCESSES)):  # noqa: PTH208 - called often
                return
        except OSError:
            return
        for place in process_folders(folder):
            if place.name not in names:
                names.add(place.name)
                if self._wanted[folder](place.name):
                    self._tails[folder][place.name] = LogTail(place)


class Lines:
    """Splits bytes into lines as they come; of a line that overwrites itself, the last state."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        """Take more bytes, and return the lines that have ended with them."""
        *whole, rest = (self._rest + data).split(b"\n")
        lines = [_text(line) for line in whole]
        # A progress bar writes for hours and never ends its line.
        if b"\r" in rest[:-1]:
            rest = rest[rest.rindex(b"\r", 0, -1) + 1 :]
        while len(rest) > _LINE_BYTES:
            lines.append(_text(rest[:_LINE_BYTES]))
            rest = rest[_LINE_BYTES:]
        self._rest = rest
        return lines

    def flush(self) -> list[str]:
        """Return the line that has not ended, if there is one."""
        rest, self._rest = self._rest, b""
        return [_text(rest)] if rest else []


class LogTail:
    """A place in the log of one process, also where the log has been moved away meanwhile.

    Of what is longer than `most_behind`, only the end is read.
    """

    def __init__(
        self, place: Path, inode: int = 0, offset: int = 0, *, most_behind: float = math.inf
    ) -> None:
        self.lines = Lines()
        self.skipped = 0
        """How many bytes were left out."""
        self._parts = [place / name for name in LOGS]
        self._log = self._parts[-1]
        self._inode, self._offset = inode, offset
        self._most_behind = most_behind

    def skip(self) -> None:
        """Leave out what is there now."""
        try:
            status = self._log.stat()
        except OSError:
            return
        self._inode, self._offset = status.st_ino, status.st_size

    def read(self) -> bytes:
        """Return the next bytes; none: there are no more now."""
        try:
            return self._read()
        except OSError:
            # Not there yet, or removed meanwhile.
            return b""

    def _read(self) -> bytes:
        current = self._log.stat()
        if current.st_ino != self._inode:
            return next(filter(None, map(self._take, self._parts_from_here())), b"")
        if current.st_size == self._offset:
            return b""  # Opening the file would be all that this costs, many times a second.
        if current.st_size < self._offset:
            self._offset = 0  # A user or a program has emptied it.
        return self._take(self._log)

    def _parts_from_here(self) -> Iterator[Path]:
        """Return the part that is being read, wherever it is now, and those that follow it."""
        found = [(path, path.stat().st_ino) for path in self._parts if path.exists()]
        inodes = [inode for _, inode in found]
        if self._inode in inodes:
            found = found[inodes.index(self._inode) :]
        elif self._inode:
            # It is gone: there was more than is kept. The beginning was read long ago.
            found = [one for one in found if one[0].name != _FIRST]
        for path, inode in found:
            if inode != self._inode:
                self._inode, self._offset = inode, 0
            yield path

    def _take(self, path: Path) -> bytes:
        with open_left(path) as file:
            status = os.fstat(file.fileno())
            if status.st_ino != self._inode:
                return b""
            if status.st_size - self._offset > self._most_behind:
                self.skipped += status.st_size - self._offset - TAIL_BYTES
                self._offset = status.st_size - TAIL_BYTES
                self.lines.flush()
            data = os.pread(file.fileno(), _CHUNK_BYTES, self._offset)
        self._offset += len(data)
        return data


def last_lines(place: Path, count: int) -> list[str]:
    """Return the last lines that a process has written, from the folder of its logs."""
    data = b""
    for name in (_LOG, _OLD):
        data = _last_bytes(place / name, TAIL_BYTES - len(data)) + data
        if len(data) >= TAIL_BYTES or data.count(b"\n") > count:
            break
    lines = Lines()
    whole = lines.feed(data) + lines.flush()
    if len(data) >= TAIL_BYTES and len(whole) > 1:
        # The first one has lost its beginning.
        del whole[0]
    return whole[-count:]


def _last_bytes(path: Path, count: int) -> bytes:
    try:
        with open_left(path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - count))
            return file.read(count)
    except OSError:
        return b""


def _text(line: bytes) -> str:
    line = line.rstrip(b"\r")
    if b"\r" in line:
        line = line[line.rindex(b"\r") + 1 :]
    return line.decode(errors="replace")
