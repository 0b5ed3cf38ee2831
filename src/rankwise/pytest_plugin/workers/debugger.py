"""A debugger on a rank, and the terminal that it borrows."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Generator, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.capture import CaptureManager, FDCapture
from _pytest.config import create_terminal_writer
from _pytest.debugging import PdbInvoke
from _pytest.terminal import TerminalReporter

from rankwise.pytest_plugin.communicators import Communicators
from rankwise.pytest_plugin.connections import Channel, Exchange, WireError
from rankwise.pytest_plugin.stacks import describe_ranks

if TYPE_CHECKING:
    from pdb import Pdb

_PDB_PLUGIN = "pdbinvoke"
# What a rank says that has no use for the terminal any more.
_ENDS_OF_LOANS = ("debugged", "interrupt", "done", "broken")
_MODES = {0: os.O_RDONLY, 1: os.O_WRONLY | os.O_APPEND, 2: os.O_WRONLY | os.O_APPEND}


def postpone_debugger(config: pytest.Config) -> None:
    """Keep pytest from starting a debugger where it has no terminal: in the collection."""
    invoke = config.pluginmanager.get_plugin(_PDB_PLUGIN)
    if invoke is not None:
        config.pluginmanager.unregister(invoke)


def captured_streams(capture: object) -> dict[int, FDCapture]:
    """Return what keeps the standard streams in files, by the number of the stream."""
    streams = getattr(capture, "_global_capturing", None)
    found = enumerate(getattr(streams, name, None) for name in ("in_", "out", "err"))
    return {number: one for number, one in found if isinstance(one, FDCapture)}


class RankDebugger:
    """Lets pdb on this rank talk to the user, for `--pdb` and for `breakpoint()`.

    The terminal is opened where the controller has it, and takes the place of this process's own
    standard streams until it is given back. The controller deals with nothing else meanwhile.
    """

    def __init__(
        self, config: pytest.Config, channel: Channel, communicators: Communicators
    ) -> None:
        self._config = config
        self._channel = channel
        self._communicators = communicators
        self._kept: dict[int, int] = {}
        self._writer: Any = None
        self._test = ""

    @classmethod
    def add_to(cls, config: pytest.Config, channel: Channel, communicators: Communicators) -> None:
        """Let debuggers work on this rank."""
        debugger = cls(config, channel, communicators)
        config.pluginmanager.register(debugger, "rankwise-debugger")
        if config.getoption("usepdb", False):
            config.pluginmanager.register(PdbInvoke(), _PDB_PLUGIN)

    # Hooks

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self._test = item.nodeid

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_exception_interact(self) -> Generator[None, None, None]:
        """Have the terminal before pytest's own part of this writes to it."""
        if not self._config.getoption("usepdb", False):
            return (yield)
        self._borrow("failed")
        try:
            return (yield)
        finally:
            self._give_back()

    def pytest_enter_pdb(self) -> None:
        if not self._kept:
            self._borrow("stopped at a breakpoint")

    def pytest_leave_pdb(self, pdb: Pdb) -> None:
        # It will want the terminal again where it has set breakpoints of its own.
        if not pdb.get_all_breaks():
            self._give_back()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self) -> None:
        self._give_back()

    # The terminal

    def _borrow(self, why: str) -> None:
        """Ask for the terminal, and wait until it is free; raises WireError."""
        number, size = self._communicators.slot
        where = f" on {describe_ranks([number], size)}" if size > 1 else ""
        words = f"{self._test} {why}{where}"
        self._channel.send({"kind": "debug", "words": words})
        header = self._channel.receive_only("terminal")
        capture = self._config.pluginmanager.get_plugin("capturemanager")
        if isinstance(capture, CaptureManager):
            capture.suspend_global_capture(in_=True)
        for number, target in self._targets(capture):
            with contextlib.suppress(OSError):
                self._put(header["pid"], number, target)
        terminal: Any = self._config.pluginmanager.get_plugin("terminalreporter")
        # pytest has chosen width and colours for its own output: the terminal may have others.
        self._writer, terminal._tw = terminal._tw, create_terminal_writer(self._config, sys.stdout)

    def _targets(self, capture: object) -> list[tuple[int, int]]:
        """Name the descriptors that become the terminal's, and which of its three each becomes.

        Those that the capture has kept are what it restores when a debugger comes back to its
        prompt by itself.
        """
        kept = [(number, one.targetfd_save) for number, one in captured_streams(capture).items()]
        return [*((number, number) for number in _MODES), *kept]

    def _put(self, pid: int, number: int, target: int) -> None:
        # Not our controlling terminal: Ctrl-C there is for the controller to pass on.
        opened = os.open(f"/proc/{pid}/fd/{number}", _MODES[number] | os.O_NOCTTY)
        # To be put back when the terminal is returned.
        self._kept[target] = os.dup(target)
        os.dup2(opened, target)
        os.close(opened)

    def _give_back(self) -> None:
        if not self._kept:
            return
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        while self._kept:
            target, kept = self._kept.popitem()
            os.dup2(kept, target)
            os.close(kept)
        terminal: Any = self._config.pluginmanager.get_plugin("terminalreporter")
        terminal._tw = self._writer
        with contextlib.suppress(WireError):
            self._channel.send({"kind": "debugged"})


def lend_terminal(
    config: pytest.Config, lines: Exchange, worker: int, pid: int, words: str
) -> None:
    """Let the debugger of a rank talk to the user; all else waits until it is done."""
    with _terminal_lent(config, words, pid):
        lines.send(worker, {"kind": "terminal", "pid": os.getpid()})
        lines.flush()
        events = lines.collect(
            lambda events: any(
                name == worker and (header is None or header["kind"] in _ENDS_OF_LOANS)
                for name, header, _ in events
            )
        )
    lines.deliver(events)


@contextlib.contextmanager
def _terminal_lent(config: pytest.Config, words: str, pid: int) -> Iterator[None]:
    """Have standard streams as the user gave them, and pass Ctrl-C on.

    Ctrl-C is for the rank that has the terminal, and it is in no foreground group that would get
    it. Its process may not be known: 0.
    """
    capture = config.pluginmanager.get_plugin("capturemanager")
    if isinstance(capture, CaptureManager):
        capture.suspend_global_capture(in_=True)
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if isinstance(terminal, TerminalReporter):
        if terminal._tw.width_of_current_line:
            terminal._tw.line()
        terminal.write_sep(">", f"{words}; the other ranks wait")
        terminal.flush()

    def pass_on(number: int, _frame: FrameType | None) -> None:
        if pid:
            with contextlib.suppress(OSError):
                os.kill(pid, number)

    # pdb on the rank takes it as it does everywhere.
    before = signal.signal(signal.SIGINT, pass_on)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        for number in (1, 2):
            # In a file, what the rank has written is not to be written over.
            with contextlib.suppress(OSError):
                os.lseek(number, 0, os.SEEK_END)
        if isinstance(terminal, TerminalReporter):
            terminal.currentfspath = None
