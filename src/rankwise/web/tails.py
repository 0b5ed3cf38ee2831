"""The end of a log, and what is written after it: never more of it in memory than is shown."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from rankwise.logs import Lines
from rankwise.records import LOGS

SHOWN_BYTES = 64 * 1024
"""So much of the end of a log is on a page."""
# Who writes faster than anybody reads is not followed word for word.
_MOST_BEHIND = 512 * 1024


@dataclass(frozen=True, slots=True)
class Position:
    """How far a log was read: which file, and how much of it."""

    inode: int = 0
    offset: int = 0

    def __str__(self) -> str:
        return f"{self.inode}.{self.offset}"

    @classmethod
    def read(cls, text: str) -> Position:
        """Read what `str` wrote; anything else is the beginning."""
        inode, _, offset = text.partition(".")
        if text.isascii() and inode.isdigit() and offset.isdigit() and len(text) < 40:
            return cls(int(inode), int(offset))
        return cls()


class Tail:
    """Reads on in the log of one process, also where the log is moved away meanwhile."""

    def __init__(self, place: Path, position: Position) -> None:
        self._place = place
        self.position = position
        self._lines = Lines()
        self._held = 0
        self.skipped = 0
        """How many bytes were left out in the last read, because there were too many."""

    @property
    def given(self) -> Position:
        """How far lines were given: who goes on from here misses nothing."""
        return Position(self.position.inode, max(0, self.position.offset - self._held))

    def read(self) -> list[str]:
        """Give the lines that have come since; none: there are none now."""
        self.skipped = 0
        try:
            data = self._read()
        except OSError:
            # Not there yet, or removed by somebody.
            return []
        # What comes after the last end of a line is held back.
        self._held = len(data) - data.rfind(b"\n") - 1 + (0 if b"\n" in data else self._held)
        return self._lines.feed(data)

    def rest(self) -> list[str]:
        """Give the line that has not ended, of a process that has."""
        return self._lines.flush()

    def _read(self) -> bytes:
        for path in self._parts():
            with path.open("rb", buffering=0) as file:
                status = os.fstat(file.fileno())
                offset = self.position.offset if status.st_ino == self.position.inode else 0
                # Somebody may have emptied it.
                offset = offset if offset <= status.st_size else 0
                behind = status.st_size - offset
                if behind > _MOST_BEHIND:
                    self.skipped += behind - SHOWN_BYTES
                    offset = status.st_size - SHOWN_BYTES
                    self._lines.flush()
                    self._held = 0
                data = os.pread(file.fileno(), _MOST_BEHIND, offset)
                self.position = Position(status.st_ino, offset + len(data))
            if data:
                return data
        return b""

    def _parts(self) -> list[Path]:
        """Give the part that is being read, wherever it is now, and the newest."""
        parts = [self._place / name for name in LOGS]
        there = [path for path in parts if path.exists()]
        old = [path for path in there[:-1] if path.stat().st_ino == self.position.inode]
        return [*old, *there[-1:]]


def tail_of(place: Path, *, is_over: bool) -> tuple[list[str], Position, int]:
    """Give the last lines of a log, how far that is, and how many bytes come before them.

    A line that has not ended is given only if the process has: it would be torn in two.
    """
    log = place / LOGS[-1]
    try:
        with log.open("rb") as file:
            status = os.fstat(file.fileno())
            first = max(0, status.st_size - SHOWN_BYTES)
            data = os.pread(file.fileno(), SHOWN_BYTES, first)
    except OSError:
        return [], Position(), 0
    rest = b"" if is_over else data[data.rfind(b"\n") + 1 :]
    lines = Lines()
    whole = lines.feed(data[: len(data) - len(rest)]) + lines.flush()
    before = first + _size(place / LOGS[0]) + _size(place / LOGS[1])
    if first and len(whole) > 1:
        # The first one has lost its beginning.
        del whole[0]
    return whole, Position(status.st_ino, first + len(data) - len(rest)), before


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
