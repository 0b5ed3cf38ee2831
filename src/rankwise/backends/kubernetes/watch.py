"""What a cluster sends while attempts run: the states of pods, and the log of the head."""

from __future__ import annotations

import contextlib
import errno
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from rankwise.backends.base import Unreachable, words_of
from rankwise.backends.kubernetes.client import ApiClient, Gone
from rankwise.backends.kubernetes.states import PodState, read_pod
from rankwise.errors import ComputeFailure
from rankwise.node.files import write_file
from rankwise.node.mirror import Frame, Taker, from_line

NUMBER = ".frames"
"""The file with the number of the last frame that was taken in."""
_SOONEST_SECONDS, _LATEST_SECONDS = 0.2, 5.0
# After a broken connection, the log is asked for from some seconds earlier: clocks differ.
_MORE_SECONDS = 30
_SAID_LINES = 20
# A line that begins so and is no frame: the writer of a frame was killed.
_FRAME = '{"n":'
_NOTE_SECONDS = 0.2
# Errors that do not pass: such a file cannot be written here.
_NEVER = (
    *(errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ, errno.ELOOP),
    *(errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENOTEMPTY),
)


class _Gap(Exception):
    """Frames are missing before one that has come."""


class LogStream:
    """The log of one pod."""

    def __init__(
        self, cluster: ApiClient, pod: str, folder: Path, *, poke: Callable[[], None]
    ) -> None:
        self.has_begun = False
        """Whether a process of the task was started."""
        self.is_whole = False
        """Whether the last frame has arrived."""
        self.is_at_end = False
        """Whether the log has ended, and so its container, even if no frame says so."""
        self.is_out_of_memory = False
        """Whether the kernel has killed a process in a pod for want of memory."""
        self.left_out: dict[str, str] = {}
        """What is not brought here, and why."""
        self.lost_pods: dict[str, str] = {}
        """Pods that were gone before their head released them, and what the head saw."""
        self.missing = 0
        """How many frames the cluster has dropped before they were read."""
        self.said: deque[str] = deque(maxlen=_SAID_LINES)
        """The last lines that were no frames."""
        self.is_away = False
        """Whether the cluster, or the node with the log, does not answer now."""
        self.trouble_here = ""
        """Why what has arrived cannot be written here; it is tried again."""
        self._cluster = cluster
        self._pod = pod
        self._folder = folder
        # Frames have numbers: what an earlier client has written is not written again.
        self._taker = Taker(str(folder))
        self._poke = poke
        self._last = _number(folder)
        self._asks_for_all = True
        self._heard = self._noted = time.monotonic()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._go, daemon=True, name=f"log of {pod}")
        self._thread.start()

    def close(self) -> None:
        self._is_over.set()

    def join(self) -> None:
        """Wait until nothing more is written here."""
        self._thread.join()

    def _go(self) -> None:
        pause = _SOONEST_SECONDS
        while not self._is_over.is_set():
            since = int(time.monotonic() - self._heard) + _MORE_SECONDS
            try:
                asked = None if self._asks_for_all else since
                for line in self._cluster.log(self._pod, since=asked):
                    # The API takes `since` in seconds before now.
                    self._heard = time.monotonic()
                    self.is_away = False
                    pause = _SOONEST_SECONDS
                    self._take(line)
                    if self._is_over.is_set():
                        break
                self.is_away, self.is_at_end = False, True
                self._asks_for_all = not self._last
            except _Gap:
                # Clocks differ, and this machine may have slept.
                self._asks_for_all = True
                self._cluster.forget()
                continue
            except (ComputeFailure, Gone) as failure:
                self._note_break(is_away=isinstance(failure, Unreachable))
            except Exception as error:  # Whatever it is, a run waits for what comes.
                self._note_words(f"rankwise: {error!r}")
                self._note_break(is_away=True)
            self._note_number()
            self._is_over.wait(pause)
            pause = min(pause * 2, _LATEST_SECONDS)
        self._cluster.forget()
        self._poke()

    def _note_break(self, *, is_away: bool) -> None:
        self.is_away = is_away
        self._asks_for_all = not self._last
        self._cluster.forget()

    def _take(self, line: str) -> None:
        frame = from_line(line)
        if frame is None:
            self._note_words(line)
            return
        is_known = frame["n"] <= self._last
        # After a broken connection, frames may overlap, but must not be missing.
        if frame["n"] > self._last + 1:
            self._note_gap(frame["n"] - self._last - 1)
        if "path" not in frame:
            with contextlib.suppress(ValueError, LookupError, TypeError):
                self._hear(frame)
        elif not is_known and not self._keep(frame):
            return
        if not self.has_begun and str(frame.get("path", "")).startswith("processes/"):
            self.has_begun = True
            self._poke()
        if is_known:
            return
        self._last = frame["n"]
        self.is_at_end = False
        if "from" in frame:
            # What was moved must not be moved again; all else may be done twice.
            self._insist(self._write_number)
        elif time.monotonic() > self._noted + _NOTE_SECONDS:
            self._note_number()

    def _note_gap(self, count: int) -> None:
        """Ask for what is missing, unless all was asked for: then it is lost."""
        if not self._asks_for_all:
            raise _Gap
        self.missing += count
        self._taker.note_gap()

    def _keep(self, frame: Frame) -> bool:
        """Write the content of a frame; False: it could not be written before `close`."""
        try:
            return self._insist(lambda: self._taker.take(frame))
        except (OSError, ValueError, LookupError, TypeError) as error:
            self._leave_out(str(frame.get("path")), str(error))
            return True

    def _insist(self, write: Callable[[], None]) -> bool:
        """Write something, again and again while the disk is full; False: `close` was called.

        Meanwhile no more is read: the cluster keeps it. OSError: it can never be written.
        """
        pause = _SOONEST_SECONDS
        while True:
            try:
                write()
            except OSError as error:
                if error.errno in _NEVER:
                    raise
                self.trouble_here = f"{self._folder}: {error.strerror}"
                if self._is_over.wait(pause):
                    return False
                pause = min(pause * 2, _LATEST_SECONDS)
            else:
                self.trouble_here = ""
                return True

    def _leave_out(self, path: str, why: str) -> None:
        if path not in self.left_out:
            self._note_words(f"rankwise: {path} is not brought: {why}")
        self.left_out[path] = why

    def _write_number(self) -> None:
        self._noted = time.monotonic()
        # Beside its place: half a number would have the next client do all of it again.
        write_file(self._folder / NUMBER, str(self._last))

    def _note_number(self) -> None:
        with contextlib.suppress(OSError):
            self._write_number()

    def _hear(self, frame: Frame) -> None:
        """Note what a frame reports that is no file."""
        if frame.get("note") == "out of memory":
            self.is_out_of_memory = True
        elif frame.get("note") == "pod lost":
            self.lost_pods.setdefault(str(frame["pod"]), str(frame["why"]))
        elif "left_out" in frame:
            size = f"{int(frame['size']) / 1e6:.1f} MB"
            self._leave_out(str(frame["left_out"]), str(frame.get("why") or size))
        elif "end" in frame:
            self.is_whole = True
            self._is_over.set()

    def _note_words(self, line: str) -> None:
        """Keep a line that is no frame: an error message of our part, for people."""
        if line in self.said or not line.strip() or line.startswith(_FRAME):
            return
        self.said.append(line)
        with contextlib.suppress(OSError), (self._folder / "kubernetes.log").open("a") as file:
            file.write(f"{line}\n")


def _number(folder: Path) -> int:
    try:
        return int((folder / NUMBER).read_text())
    except (OSError, ValueError):
        return 0


# Shorter than what is in between keeps a silent line open; and as long as the thread may live on.
_WATCH_SECONDS = 50
_RELIST_SECONDS = 60.0
_SOONEST_WATCH_SECONDS, _LATEST_WATCH_SECONDS = 0.2, 10.0


class PodWatch:
    """The states of pods with some labels; `poke` reports that there is something new."""

    def __init__(
        self, cluster: ApiClient, labels: Mapping[str, str], *, poke: Callable[[], None]
    ) -> None:
        self.pods: dict[str, PodState] = {}
        self.has_listed = False
        """Whether all pods were listed once."""
        self._watch_trouble = self._list_trouble = ""
        self._cluster = cluster
        self._labels = labels
        self._poke = poke
        self._news: queue.SimpleQueue[tuple[str, object]] = queue.SimpleQueue()
        self._is_over = threading.Event()
        self._listed = 0.0
        self._thread = threading.Thread(target=self._go, daemon=True, name="pods")
        self._thread.start()

    @property
    def trouble(self) -> str:
        """Return why pods cannot be watched or listed; empty: they can."""
        return self._watch_trouble or self._list_trouble

    def apply(self) -> None:
        """Apply what the thread has received."""
        # A watch can fall silent without an error, behind some proxies: the list makes up for it.
        self._list_anyway()
        with contextlib.suppress(queue.Empty):
            while True:
                self._note(*self._news.get_nowait())

    def _note(self, kind: str, what: object) -> None:
        if kind == "trouble":
            self._watch_trouble = str(what)
        elif kind == "all":
            assert isinstance(what, dict)
            for name in self.pods.keys() - what.keys():
                self._gone(name)
            self.pods |= what
            self.has_listed = True
        elif isinstance(what, PodState):
            self.pods[what.name] = what
            if kind == "DELETED":
                self._gone(what.name)

    def _gone(self, name: str) -> None:
        self.pods[name] = replace(self.pods[name], is_gone=True)

    def close(self) -> None:
        self._is_over.set()

    def _list_anyway(self) -> None:
        if time.monotonic() < self._listed + _RELIST_SECONDS:
            return
        # Before the call: a cluster that does not answer is not asked again at every look.
        self._listed = time.monotonic()
        try:
            found, _ = self._cluster.pods(self._labels)
        except ComputeFailure as failure:
            self._list_trouble = str(failure)
        else:
            self._list_trouble = ""
            self._note("all", {pod.name: pod for pod in map(read_pod, found)})

    # In the thread

    def _hear(self, kind: str, what: object) -> None:
        self._news.put((kind, what))
        self._poke()

    def _go(self) -> None:
        own = self._cluster.twin()
        try:
            # Until `close`, through all failures.
            self._follow(own)
        finally:
            own.forget()

    def _follow(self, own: ApiClient) -> None:
        pause, version = _SOONEST_WATCH_SECONDS, ""
        while not self._is_over.is_set():
            try:
                if not version:
                    version = self._list(own)
                for event, pod in own.watch(self._labels, version, seconds=_WATCH_SECONDS):
                    pause = _SOONEST_WATCH_SECONDS
                    # To go on from here: the server ends a watch after its seconds.
                    version = pod["metadata"]["resourceVersion"]
                    self._hear(event, read_pod(pod))
                    if self._is_over.is_set():
                        return
            except Gone:
                version = ""
                self._is_over.wait(_SOONEST_WATCH_SECONDS)
            except Exception as failure:  # Whatever it is, a run waits for pods.
                own.forget()
                version = ""
                self._hear("trouble", words_of(failure))
                self._is_over.wait(pause)
                pause = min(pause * 2, _LATEST_WATCH_SECONDS)

    def _list(self, own: ApiClient) -> str:
        found, version = own.pods(self._labels)
        self._hear("all", {pod.name: pod for pod in map(read_pod, found)})
        self._hear("trouble", "")
        return version
