"""What the head of an attempt writes: followed by a thread, and turned into files here."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from rankwise.compute.kubernetes.client import Cluster, Gone
from rankwise.compute.kubernetes.inside.mirror import Frame, Taker, from_line
from rankwise.errors import ComputeFailure

NUMBER = ".frames"
"""The file with the number of the last frame that was taken in."""
_SOONEST_SECONDS, _LATEST_SECONDS = 0.2, 5.0
# What was written while the line was broken is asked for with some seconds to spare.
_MORE_SECONDS = 30
_SAID_LINES = 20
_QUIET_SECONDS = 0.5
_NOTE_SECONDS = 0.2


class Stream:
    """The log of one pod."""

    def __init__(
        self, cluster: Cluster, pod: str, folder: Path, *, poke: Callable[[], None]
    ) -> None:
        self.has_begun = False
        """Whether a process of the task was started."""
        self.is_whole = False
        """Whether the last frame has arrived."""
        self.is_at_end = False
        """Whether the log has ended: its container has, then, whether it has said so or not."""
        self.is_out_of_memory = False
        """Whether the kernel has ended something in a pod, because it had no more memory."""
        self.gathered = ""
        """How many pods have come, in words."""
        self.left_out: list[str] = []
        self.said: deque[str] = deque(maxlen=_SAID_LINES)
        """The last lines that were no frames."""
        self.trouble = ""
        self._cluster = cluster
        self._pod = pod
        self._folder = folder
        self._taker = Taker(str(folder))
        self._poke = poke
        self._last = _number(folder)
        self._heard = self._noted = time.monotonic()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._go, daemon=True, name=f"log of {pod}")
        self._thread.start()

    def is_behind(self) -> bool:
        """Tell whether more is probably on its way, of what is there already."""
        return not self.is_whole and time.monotonic() < self._heard + _QUIET_SECONDS

    def close(self) -> None:
        self._is_over.set()

    def _go(self) -> None:
        pause = _SOONEST_SECONDS
        since: int | None = None
        while not self._is_over.is_set():
            try:
                for line in self._cluster.log(self._pod, since=since):
                    self._heard = time.monotonic()
                    pause = _SOONEST_SECONDS
                    self._take(line)
                    if self._is_over.is_set():
                        break
                self.trouble, self.is_at_end = "", True
            except (ComputeFailure, Gone) as failure:
                self.trouble = str(failure)
                self._cluster.forget()
            self._note_number()
            since = int(time.monotonic() - self._heard) + _MORE_SECONDS if self._last else None
            self._is_over.wait(pause)
            pause = min(pause * 2, _LATEST_SECONDS)
        self._cluster.forget()
        self._poke()

    def _take(self, line: str) -> None:
        frame = from_line(line)
        if frame is None:
            self._note_words(line)
            return
        is_known = frame["n"] <= self._last
        with contextlib.suppress(OSError, ValueError, LookupError):
            if "path" not in frame:
                self._hear(frame)
            elif not is_known:
                self._taker.take(frame)
            self._note_begin(frame)
        if is_known:
            return
        self._last = frame["n"]
        self.is_at_end = False
        # What was moved must not be moved again; all else may be done twice.
        if "from" in frame or time.monotonic() > self._noted + _NOTE_SECONDS:
            self._note_number()

    def _note_number(self) -> None:
        self._noted = time.monotonic()
        with contextlib.suppress(OSError):
            (self._folder / NUMBER).write_text(str(self._last))

    def _note_begin(self, frame: Frame) -> None:
        if not self.has_begun and str(frame.get("path", "")).startswith("processes/"):
            self.has_begun = True
            self._poke()

    def _hear(self, frame: Frame) -> None:
        """Take in what is told, beside what is in files."""
        if frame.get("note") == "out of memory":
            self.is_out_of_memory = True
        elif "note" in frame:
            there, wanted = frame["values"]
            self.gathered = f"{there} of {wanted} pods are there"
        elif "left_out" in frame:
            self.left_out.append(f"{frame['left_out']} ({int(frame['size']) / 1e6:.1f} MB)")
        elif "end" in frame:
            self.is_whole = True
            self._is_over.set()

    def _note_words(self, line: str) -> None:
        """Keep what is for people: what our part says in trouble."""
        if line in self.said or not line.strip():
            return
        self.said.append(line)
        with contextlib.suppress(OSError), (self._folder / "kubernetes.log").open("a") as file:
            file.write(f"{line}\n")


def _number(folder: Path) -> int:
    try:
        return int((folder / NUMBER).read_text())
    except (OSError, ValueError):
        return 0
