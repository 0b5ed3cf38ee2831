"""What ranks print: past pytest's capturing, kept back for later, or not shown at all."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

import pytest
from _pytest import junitxml
from _pytest._io import TerminalWriter
from _pytest.capture import FDCapture
from _pytest.terminal import TerminalReporter

from rankwise.pytest_plugin.serialize import RankResult

if TYPE_CHECKING:
    from rankwise.pytest_plugin.failure_report import AbortedTest


class LastWords:
    """Stands for `sys.stderr` and keeps what is written, until it is known what it was.

    A wrong option, a broken conftest and the warnings of plugins are mostly the same on all ranks,
    and rank 0 shows them. If only this rank ends by them, rank 0 is told its last words.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._kept: list[str] | None = []

    @classmethod
    def begin(cls) -> LastWords:
        """Take the place of `sys.stderr`."""
        words = cls(sys.stderr)
        sys.stderr = cast(TextIO, words)
        return words

    def write(self, text: str) -> int:
        if self._kept is None:
            return self._stream.write(text)
        self._kept.append(text)
        return len(text)

    def end(self) -> str:
        """Let everything through from now on; returns what was kept, and nothing a second time."""
        kept, self._kept = self._kept or [], None
        return "".join(kept).strip()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


# Own references: a test may have put something else in their place, and this runs in its middle.
_dup2, _lseek, _pread, _ftruncate = os.dup2, os.lseek, os.pread, os.ftruncate

_STREAMS = {"stdout": 1, "stderr": 2}


class PastCapture:
    """Keeps what is written to the terminal while tests run.

    This one, for -s, keeps nothing: the standard streams of ranks are those of the run.
    """

    def __init__(self, config: pytest.Config) -> None:
        terminal = config.pluginmanager.get_plugin("terminalreporter")
        self._writer: Any = terminal._tw if isinstance(terminal, TerminalReporter) else None
        self._usual: TextIO | None = None
        self.outputs: Mapping[str, int] = {}
        """The files by name, for a controller that looks what a rank wrote before it died."""

    def open(self) -> None:
        """Keep what is written from now on."""
        if self._writer is not None:
            self._usual, self._writer._file = self._writer._file, self._place()

    def close(self) -> None:
        """Keep nothing more; what was kept and not taken is lost."""
        if self._writer is not None:
            self._writer._file = self._usual

    def _place(self) -> TextIO:
        """Return where pytest's terminal writer writes meanwhile."""
        # The same as that of `print`, so that everything stays in its order.
        return sys.stdout

    def take(self) -> dict[str, str]:
        """Return what was written since it was last asked for, by stream."""
        return {}


class WriterOnly(PastCapture):
    """Under mpirun: what tests print arrives at the terminal by itself, what pytest writes not."""

    def __init__(self, config: pytest.Config) -> None:
        super().__init__(config)
        self._text = io.StringIO()

    def _place(self) -> TextIO:
        return self._text

    def take(self) -> dict[str, str]:
        text = self._text.getvalue()
        if not text:
            return {}
        self._text.seek(0)
        self._text.truncate()
        return {"stdout": text}


class OwnStreams(PastCapture):
    """In a pool: the standard streams of ranks lead to a file that no user sees."""

    def __init__(self, config: pytest.Config) -> None:
        super().__init__(config)
        self._files = {name: os.memfd_create(name) for name in _STREAMS}
        saved = _saved_by_capture(config)
        # Files, what they take the place of, and what is put back there.
        self._places = [
            (self._files[name], target, os.dup(target))
            for name, number in _STREAMS.items()
            for target in (number, *saved.get(name, ()))
        ]
        self.outputs = (
            {f"terminal {name}": file for name, file in self._files.items()}
            if saved
            else self._files
        )

    def open(self) -> None:
        _flush()
        for file, target, _ in self._places:
            _dup2(file, target, inheritable=target in _STREAMS.values())
        super().open()

    def close(self) -> None:
        super().close()
        _flush()
        for _, target, usual in self._places:
            _dup2(usual, target, inheritable=target in _STREAMS.values())

    def take(self) -> dict[str, str]:
        _flush()
        found = {}
        for name, file in self._files.items():
            # The position is where the last one has written to.
            if size := _lseek(file, 0, os.SEEK_END):
                found[name] = _pread(file, size, 0).decode(errors="replace")
                _lseek(file, 0, os.SEEK_SET)
                _ftruncate(file, 0)
        return found


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        # A test may have put anything there, or closed it.
        with contextlib.suppress(Exception):
            stream.flush()


def _saved_by_capture(config: pytest.Config) -> dict[str, Sequence[int]]:
    """Return the descriptors that pytest's capture puts back when it is suspended."""
    capture: Any = config.pluginmanager.get_plugin("capturemanager")
    streams = getattr(capture, "_global_capturing", None)
    return {
        name: (one.targetfd_save,)
        for name, attribute in (("stdout", "out"), ("stderr", "err"))
        if isinstance(one := getattr(streams, attribute, None), FDCapture)
    }


# Final for people who would change what it prints; this one prints nothing, and plugins that ask
# for the terminal reporter expect one of this class.
class SilentReporter(TerminalReporter):  # type: ignore[misc]
    """Stands where other plugins look for the terminal reporter, and says nothing.

    It counts what was collected, and warnings, as other plugins may ask for them. It does not let
    plugins make headers and summaries: the process that shows them does, and to make them costs
    more than a short test (Hypothesis imports all of itself to have nothing to say).
    """

    def __init__(self, config: pytest.Config, *, columns: int) -> None:
        # Never closed: other plugins may write to it until the process ends.
        super().__init__(config, Path("/dev/null").open("w"))  # noqa: SIM115
        # What tests write is shown elsewhere.
        self._tw.fullwidth = columns
        self._replaced: TerminalWriter | None = None

    def take_over(self, other: TerminalReporter) -> None:
        """Have whoever knows the other one, as live logs do, write to this one."""
        self._replaced, other._tw = other._tw, self._tw

    def give_back(self, other: TerminalReporter) -> None:
        """Let the other one write by itself again."""
        if self._replaced is not None:
            other._tw = self._replaced

    def report_collect(self, final: bool = False) -> None:
        """Write nothing, also while what others write is shown."""

    @property
    def showheader(self) -> bool:
        """Keep `pytest_sessionstart` from asking plugins for their lines."""
        return False

    def pytest_internalerror(self) -> bool:  # type: ignore[override]
        """Leave it to pytest to show this on stderr, for nobody else knows what happened."""
        return False

    # To pytest, what is not callable is no hook.
    pytest_collection = None  # type: ignore[assignment]
    pytest_collection_finish = None  # type: ignore[assignment]
    pytest_runtestloop = None  # type: ignore[assignment]
    pytest_runtest_logstart = None  # type: ignore[assignment]
    pytest_runtest_logreport = None  # type: ignore[assignment]
    pytest_runtest_logfinish = None
    pytest_keyboard_interrupt = None  # type: ignore[assignment]
    pytest_sessionfinish = None  # type: ignore[assignment]
    pytest_terminal_summary = None  # type: ignore[assignment]
    pytest_unconfigure = None  # type: ignore[assignment]


def speak_up(config: pytest.Config, session: pytest.Session, terminal: TerminalReporter) -> None:
    """Put the reporter back that was replaced by a silent one; it shows what it has missed."""
    silent = config.pluginmanager.get_plugin("terminalreporter")
    if not isinstance(silent, SilentReporter):
        return
    config.pluginmanager.unregister(silent)
    silent.give_back(terminal)
    config.pluginmanager.register(terminal, "terminalreporter")
    terminal.pytest_sessionstart(session)
    terminal.stats = silent.stats
    terminal._numcollected = silent._numcollected
    if terminal.verbosity >= 0:
        terminal.report_collect(final=True)
    terminal.pytest_collection_finish(session)


def write_own_junit(config: pytest.Config, path_of_rank_0: str | None) -> None:
    """Be no worker any more: write a JUnit file if it has another name than rank 0's.

    Ranks that wrote the same file would spoil it.
    """
    del config.workerinput  # type: ignore[attr-defined]
    path = config.getoption("xmlpath", None)
    if path and path != path_of_rank_0:
        junitxml.pytest_configure(config)
        config.stash[junitxml.xml_key].pytest_sessionstart()


def silence(results: Mapping[int, RankResult], which: str) -> None:
    """Take away the output of ranks whose output is not wanted, by rank of the test."""
    if which == "all":
        return
    failed = [rank for rank, result in results.items() if result.failed or _has_failed(result)]
    _take_away(results, _wanted(which, failed))


def silence_ended(ending: AbortedTest, which: str) -> None:
    """Do the same for a test that was ended; if no rank is to blame, all of them are shown."""
    if which == "all":
        return
    blamed = {*ending.failed, *ending.crashes} or {*ending.output, *ending.ended}
    wanted = _wanted(which, blamed)
    for results in (ending.failed, ending.ended):
        _take_away(results, wanted)
    ending.output = {rank: text for rank, text in ending.output.items() if rank in wanted}


def _wanted(which: str, failed: Collection[int]) -> Collection[int]:
    return failed if which == "failed" else (int(which),)


def _has_failed(result: RankResult) -> bool:
    """Return whether an attempt has failed that was repeated."""
    return any(report.failed for run in result.reruns for report in run)


def _take_away(results: Mapping[int, RankResult], wanted: Collection[int]) -> None:
    for rank, result in results.items():
        if rank not in wanted:
            for report in chain(result.reports, result.subtests, *result.reruns):
                report.sections = []
