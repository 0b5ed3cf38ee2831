"""Those who look on while a run is driven: they never make the engine wait."""

from __future__ import annotations

import contextlib
import os
import queue
import select
import signal
import threading
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from rankwise.engine.events import Event
from rankwise.logs import Follower, Line
from rankwise.records import read_processes

_PAUSE_SECONDS = 0.1
_LINES_AT_ONCE = 1000
_PIPE_BYTES = 65536
_ENDING = frozenset({signal.SIGINT, signal.SIGTERM})


class View(Protocol):
    """Shows what happens; called by one thread only."""

    follows: bool
    """Whether it shows what processes write."""

    def event(self, event: Event) -> None:
        """Show that something has happened."""

    def lines(self, lines: Sequence[Line]) -> None:
        """Show what processes have written."""

    def ending(self, processes: int) -> None:
        """Show that somebody has pressed Ctrl-C, or the like, and how many processes that ends."""

    def refresh(self) -> None:
        """Bring to the screen what is not there yet; called several times a second."""

    def close(self) -> None:
        """Leave the screen."""


class Onlooker:
    """Shows a run in a thread of its own.

    A terminal that is stopped, or a reader that is slow, holds up this thread and not the run. If
    the reader is gone, the run goes on unseen.
    """

    def __init__(self, view: View, *, running: Iterable[Path] = ()) -> None:
        self._view = view
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._follower = Follower()
        self._running = set(running)
        """Folders of the attempts that are being made."""
        if view.follows:
            for folder in self._running:
                self._follower.add(folder, from_now=True)
        self._thread = threading.Thread(target=self._look_on, name="onlooker", daemon=True)
        self._bell = _Bell()
        self._fault: BaseException | None = None

    def observe(self, event: Event) -> None:
        """Take in an event, to be shown when there is time."""
        self._events.put(event)
        self._bell.ring()

    def __enter__(self) -> Self:
        self._bell.open()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._events.put(None)
        self._bell.ring()
        self._thread.join()
        self._bell.close()
        if self._fault is not None and error is None:
            raise self._fault

    def _look_on(self) -> None:
        try:
            while self._show_round():
                self._view.refresh()
            self._show_lines(self._follower.finish_all())
            self._view.refresh()
        except OSError:
            # Nobody reads any more: the terminal was closed, or a pipe.
            self._running.clear()
        except BaseException as fault:
            # Raised where the run is driven, when it is over.
            self._fault = fault
        finally:
            with contextlib.suppress(OSError):
                self._view.close()

    def _show_round(self) -> bool:
        """Show what is new, and wait a moment if nothing is; tell whether to go on."""
        lines = self._follower.poll()
        self._view.lines(lines)
        if self._bell.wait(0.0 if lines else _PAUSE_SECONDS):
            self._view.ending(self._count_processes())
        with contextlib.suppress(queue.Empty):
            while (event := self._events.get_nowait()) is not None:
                self._show(event)
            return False
        return True

    def _show(self, event: Event) -> None:
        folder = event.folder
        if folder is not None and event.kind == "task started":
            self._running.add(folder)
            if self._view.follows:
                self._follower.add(folder)
        if folder is not None and event.kind == "attempt ended":
            self._running.discard(folder)
            self._show_lines(self._follower.finish(folder))
        self._view.event(event)

    def _show_lines(self, lines: Iterator[Line]) -> None:
        """Show many lines, without having them all in memory."""
        while some := list(islice(lines, _LINES_AT_ONCE)):
            self._view.lines(some)

    def _count_processes(self) -> int:
        return sum(
            process.started is not None and process.ended is None
            for folder in self._running
            for process in read_processes(folder)
        )


class _Bell:
    """Wakes one thread: when another rings, and when a signal arrives that ends the run."""

    def __init__(self) -> None:
        self._reader = self._writer = self._before = -1

    def open(self) -> None:
        """Hear signals from now on; only the main thread can ask for that."""
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        self._before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)

    def close(self) -> None:
        """Hear nothing any more."""
        signal.set_wakeup_fd(self._before)
        os.close(self._reader)
        os.close(self._writer)

    def ring(self) -> None:
        """Wake the thread that waits."""
        # A pipe that is full has woken it long ago.
        with contextlib.suppress(BlockingIOError):
            os.write(self._writer, b"\0")

    def wait(self, seconds: float) -> bool:
        """Wait to be woken, but no longer than this; tell whether a signal was the cause."""
        waiting = select.poll()
        waiting.register(self._reader, select.POLLIN)
        if not waiting.poll(seconds * 1000):
            return False
        return not _ENDING.isdisjoint(os.read(self._reader, _PIPE_BYTES))
