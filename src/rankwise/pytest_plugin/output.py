"""Output of ranks that pytest does not capture: kept for later, or not shown at all."""

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
    """Takes the place of `sys.stderr` at the start of a rank, and keeps what is written.

    A wrong option, a broken conftest and the warnings of plugins are mostly the same on all ranks,
    and rank 0 shows them. If only this rank ends because of them, rank 0 gets the text.
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
        """Write to the stream from now on; returns what was kept, the second time nothing."""
        kept, self._kept = self._kept or [], None
        return "".join(kept).strip()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


# Own references: a test may have replaced these functions, and they are called in its middle.
_dup2, _lseek, _ftruncate = os.dup2, os.lseek, os.ftruncate
_pread: Any = getattr(os, "pread", None)  # For a pool: Windows has neither.

_STREAMS = {"stdout": 1, "stderr": 2}


class PastCapture:
    """Keeps what is written to the terminal in a `with` block; what is not taken there is lost.

    This one, for -s, keeps nothing: the standard streams of ranks are those of the run.
    """

    def __init__(self, config: pytest.Config) -> None:
        terminal = config.pluginmanager.get_plugin("terminalreporter")
        self._writer: Any = terminal._tw if isinstance(terminal, TerminalReporter) else None
        self._usual: TextIO | None = None
        self.outputs: Mapping[str, int] = {}
        """The files by name: the controller reads them when a rank has died."""

    def __enter__(self) -> None:
        if self._writer is not None:
            self._usual, self._writer._file = self._writer._file, self._place()

    def __exit__(self, *raised: object) -> None:
        if self._writer is not None:
            self._writer._file = self._usual

    def _place(self) -> TextIO:
        """Return the stream for pytest's terminal writer: that of `print`, to keep the order."""
        return sys.stdout

    def take(self) -> dict[str, str]:
        """Return what was written since the last call, by stream."""
        return {}


class WriterOnly(PastCapture):
    """For mpirun, which shows what tests print; only what pytest writes is kept."""

    def __init__(self, config: pytest.Config) -> None:
        super().__init__(config)
        self._text = io.StringIO()

    def _place(self) -> TextIO:
        return self._text

    def take(self) -> dict[str, str]:
        text = self._text.getvalue()
        self._text.seek(0)
        self._text.truncate()
        return {"stdout": text} if text else {}


class OwnStreams(PastCapture):
    """For a pool, where the standard streams of ranks are files that no user sees."""

    def __init__(self, config: pytest.Config) -> None:
        super().__init__(config)
        # In memory: no disk can be full, and nothing is left after a crash.
        self._files = {name: os.memfd_create(name) for name in _STREAMS}
        saved = _saved_by_capture(config)
        # For each stream: its file, the descriptor that it replaces, and what is restored there.
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

    def __enter__(self) -> None:
        _flush()
        for file, target, _ in self._places:
            # Only standard streams may reach programs that tests start.
            _dup2(file, target, inheritable=target in _STREAMS.values())
        super().__enter__()

    def __exit__(self, *raised: object) -> None:
        super().__exit__(*raised)
        _flush()
        for _, target, usual in self._places:
            _dup2(usual, target, inheritable=target in _STREAMS.values())

    def take(self) -> dict[str, str]:
        _flush()
        found = {}
        for name, file in self._files.items():
            # The position is the end of what was written: it is shared by all writers.
            if size := _lseek(file, 0, os.SEEK_END):
                found[name] = _pread(file, size, 0).decode(errors="replace")
                _lseek(file, 0, os.SEEK_SET)
                _ftruncate(file, 0)
        return found


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        # A test may have replaced or closed it.
        with contextlib.suppress(Exception):
            stream.flush()


def _saved_by_capture(config: pytest.Config) -> dict[str, Sequence[int]]:
    """Return the descriptors that pytest's capture restores when it is suspended."""
    capture: Any = config.pluginmanager.get_plugin("capturemanager")
    streams = getattr(capture, "_global_capturing", None)
    return {
        name: (one.targetfd_save,)
        for name, attribute in (("stdout", "out"), ("stderr", "err"))
        if isinstance(one := getattr(streams, attribute, None), FDCapture)
    }


# pytest declares the class final, but plugins that look for the terminal reporter expect one of it.
class SilentReporter(TerminalReporter):  # type: ignore[misc]
    """Takes the place of the terminal reporter, for plugins that look for it, and shows nothing.

    It counts what was collected, and warnings, as other plugins may ask for them. It does not let
    plugins make headers and summaries: the process that shows them does that, and it takes longer
    than a short test (Hypothesis imports all of itself).
    """

    def __init__(self, config: pytest.Config, *, columns: int) -> None:
        # Never closed: other plugins may write to it until the process ends.
        super().__init__(config, Path(os.devnull).open("w"))  # noqa: SIM115
        # What tests write is shown in a terminal of that width.
        self._tw.fullwidth = columns
        self._replaced: TerminalWriter | None = None

    def take_over(self, other: TerminalReporter) -> None:
        """Redirect users of the other reporter, such as live logs, to this one."""
        self._replaced, other._tw = other._tw, self._tw

    def give_back(self, other: TerminalReporter) -> None:
        """End the redirection."""
        if self._replaced is not None:
            other._tw = self._replaced

    def report_collect(self, final: bool = False) -> None:
        """Write nothing, even while other output is shown."""

    @property
    def showheader(self) -> bool:
        """Return False: `pytest_sessionstart` does not ask plugins for their lines."""
        return False

    def pytest_internalerror(self) -> bool:  # type: ignore[override]
        """Let pytest show it on stderr: no other process knows of it."""
        return False


# For pytest, an attribute that is not callable is no hook.
for _name in (
    *("collection", "collection_finish", "runtestloop", "keyboard_interrupt", "sessionfinish"),
    *("runtest_logstart", "runtest_logreport", "runtest_logfinish"),
    *("terminal_summary", "unconfigure"),
):
    setattr(SilentReporter, f"pytest_{_name}", None)


def speak_up(config: pytest.Config, session: pytest.Session, terminal: TerminalReporter) -> None:
    """Restore the reporter that a silent one has replaced; it shows what it has missed."""
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


def write_own_junit(
    config: pytest.Config, path_of_rank_0: str | None, terminal: TerminalReporter | None
) -> None:
    """Stop being a worker: write a JUnit file, unless it has the name of rank 0's.

    Several ranks that wrote one file would damage it.
    """
    del config.workerinput  # type: ignore[attr-defined]
    path = config.getoption("xmlpath", None)
    # pytest did not do this when it was configured: then it was a worker.
    if path and path != path_of_rank_0:
        junitxml.pytest_configure(config)
        writer = config.stash[junitxml.xml_key]
        writer.pytest_sessionstart()
        # It has missed the modules that are skipped as a whole or cannot be imported.
        stats: Mapping[str, list[Any]] = terminal.stats if terminal is not None else {}
        for report in (*stats.get("skipped", ()), *stats.get("error", ())):
            if isinstance(report, pytest.CollectReport):
                writer.pytest_collectreport(report)


def filter_output(results: Mapping[int, RankResult], which: str) -> None:
    """Remove the output of ranks that --rank-output leaves out; ranks are those of the test."""
    if which == "all":
        return
    failed = [rank for rank, result in results.items() if result.has_ever_failed]
    _remove_output(results, _wanted(which, failed))


def filter_aborted_output(ending: AbortedTest, which: str) -> None:
    """Do the same for a test that was ended; if no rank has failed, all count as failed."""
    if which == "all":
        return
    blamed = {*ending.failed, *ending.crashes} or {*ending.output, *ending.ended}
    wanted = _wanted(which, blamed)
    for results in (ending.failed, ending.ended):
        _remove_output(results, wanted)
    ending.output = {rank: text for rank, text in ending.output.items() if rank in wanted}


def _wanted(which: str, failed: Collection[int]) -> Collection[int]:
    return failed if which == "failed" else (int(which),)


def _remove_output(results: Mapping[int, RankResult], wanted: Collection[int]) -> None:
    for rank, result in results.items():
        if rank not in wanted:
            for report in chain(result.reports, result.subtests, *result.reruns):
                report.sections = []
