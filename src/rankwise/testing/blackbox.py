"""What a rank is doing, where others can read it whatever becomes of the rank.

Each rank has three files in the run's folder: which test it is at and in which phase, its stacks
when somebody asks for them, and what the interpreter has to say when a signal ends it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import mmap
import os
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rankwise.testing.hang import StackFile

Phase = Literal["setup", "call", "teardown", "closing"]
"""`closing`: fixtures of a module or the session are torn down after the last test."""

_PHASES: tuple[Phase, ...] = ("setup", "call", "teardown", "closing")
# The test's number, the phase's, and since when: CLOCK_MONOTONIC is the same for all processes.
_MOMENT = struct.Struct("=qqd")
# Before it stands how often it was changed, and an odd number while it is being changed: a rank may
# lose the processor in the middle of that, and half a moment would be a wrong one.
_COUNT = struct.Struct("=q")
_SIZE = _COUNT.size + _MOMENT.size
_IDLE = -1
_TAIL_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What a rank was at when it last wrote it down."""

    case: int
    phase: Phase
    since: float


@dataclass(frozen=True, slots=True)
class BoxFiles:
    """The files of one rank."""

    folder: Path
    name: str

    @property
    def moment(self) -> Path:
        return self.folder / f"{self.name}.moment"

    @property
    def stacks(self) -> Path:
        return self.folder / f"{self.name}.stacks"

    @property
    def crash(self) -> Path:
        return self.folder / f"{self.name}.crash"

    def read_moment(self) -> Moment | None:
        """Give what the rank is at; None: nothing."""
        try:
            data, again = self.moment.read_bytes(), self.moment.read_bytes()
        except OSError:
            return None
        if len(data) < _SIZE or data != again or _COUNT.unpack_from(data)[0] % 2:
            return None
        case, phase, since = _MOMENT.unpack_from(data, _COUNT.size)
        if case == _IDLE:
            return None
        return Moment(case=case, phase=_PHASES[phase], since=since)

    def read_crash(self) -> str:
        """Give what the interpreter said at its end."""
        try:
            return self.crash.read_text(errors="replace")
        except OSError:
            return ""

    def remove(self) -> None:
        """Forget a rank that is gone."""
        for path in (self.moment, self.stacks, self.crash):
            path.unlink(missing_ok=True)


class BlackBox:
    """A rank's side: it writes."""

    def __init__(self, files: BoxFiles) -> None:
        descriptor = os.open(files.moment, os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(descriptor, _SIZE)
        # Memory that outlives the process: to write a moment down takes no system call.
        self._memory = mmap.mmap(descriptor, _SIZE)
        os.close(descriptor)
        self._case = _IDLE
        self._changes = 0
        self.rest()
        self._stacks = StackFile(files.stacks)
        self._crash = files.crash.open("wb", buffering=0)
        self.arm()

    def arm(self) -> None:
        """Have the interpreter write here what it has to say when a signal ends it.

        Not to stderr, as pytest arranges when it is configured: nobody may see that.
        """
        faulthandler.enable(file=self._crash)

    def begin(self, case: int) -> None:
        """Be at a test from now on."""
        self._case = case
        self.enter("setup")

    def enter(self, phase: Phase) -> None:
        """Be in this phase of the test from now on."""
        self._write(self._case, _PHASES.index(phase), time.monotonic())

    def rest(self) -> None:
        """Be at nothing."""
        self._write(_IDLE, 0, 0.0)

    def _write(self, case: int, phase: int, since: float) -> None:
        self._changes += 2
        _COUNT.pack_into(self._memory, 0, self._changes - 1)
        _MOMENT.pack_into(self._memory, _COUNT.size, case, phase, since)
        _COUNT.pack_into(self._memory, 0, self._changes)


class OutputTail:
    """The end of what a process has written to files that only it knows by name."""

    def __init__(self, pid: int, descriptors: dict[str, int]) -> None:
        self._files = {}
        for name, number in descriptors.items():
            # Opened while the process lives, they can be read when it is gone.
            with contextlib.suppress(OSError):
                self._files[name] = os.open(f"/proc/{pid}/fd/{number}", os.O_RDONLY)

    def read(self) -> dict[str, str]:
        """Give the last lines of each that has any."""
        found = {}
        for name, descriptor in self._files.items():
            size = os.fstat(descriptor).st_size
            start = max(0, size - _TAIL_BYTES)
            text = os.pread(descriptor, _TAIL_BYTES, start).decode(errors="replace")
            if start:
                text = f"… ({start} bytes before)\n{text.partition(chr(10))[2] or text}"
            if text.strip():
                found[name] = text
        return found

    def close(self) -> None:
        """Let go of the files; idempotent."""
        while self._files:
            os.close(self._files.popitem()[1])
