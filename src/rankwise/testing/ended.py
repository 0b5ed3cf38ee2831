"""Reports on tests that were ended from outside: a rank died, waited for ever, or took too long."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest
from _pytest._code.code import ReprFileLocation, TerminalRepr
from _pytest._io import TerminalWriter

from rankwise.testing.blackbox import Phase
from rankwise.testing.hang import Stack, describe_stacks, of_the_test
from rankwise.testing.naming import describe_ranks
from rankwise.testing.results import RankResult, ReportedTest
from rankwise.testing.verdict import merge_phases

_PHASES = ("setup", "call", "teardown")
_MEANINGS = {
    signal.SIGSEGV: "segmentation fault",
    signal.SIGBUS: "bus error",
    signal.SIGFPE: "arithmetic error",
    signal.SIGILL: "illegal instruction",
    signal.SIGABRT: "abort",
}
_OTHER_PARTS = {"closing": "when fixtures of a wider scope were torn down"}


def describe_phase(phase: Phase) -> str:
    """Name a part of a test in a sentence."""
    return _OTHER_PARTS.get(phase, f"in {phase}")


def describe_status(status: int | None, *, out_of_memory: bool = False) -> str:
    """Say how a process ended, from its exit status (negative: a signal)."""
    if status is None:
        return "was lost (its process is gone, or has closed its line to the controller)"
    if status >= 0:
        return f"left with exit code {status} (os._exit, MPI_Abort or exit of a C library)"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    meaning = _MEANINGS.get(signal.Signals(-status)) if name.startswith("SIG") else None
    if status == -signal.SIGKILL and out_of_memory:
        meaning = "the machine is out of memory"
    return f"was killed by {name}" + (f" ({meaning})" if meaning else "")


@dataclass(slots=True, kw_only=True)
class Ending:
    """What is known about the end of a test, by rank of the test."""

    size: int
    phase: Phase
    headline: str
    how: Literal["failed", "timed out", "crashed"] = "crashed"
    seconds: float = 0.0
    crashes: Mapping[int, Stack] = field(default_factory=dict)
    """Where ranks were that a signal ended."""
    failed: Mapping[int, RankResult] = field(default_factory=dict)
    """What those said that failed by themselves."""
    ended: Mapping[int, RankResult] = field(default_factory=dict)
    """What those said that came to the end of the test."""
    waiting: Mapping[int, Stack] = field(default_factory=dict)
    """Where the others were."""
    unanswered: Sequence[int] = ()
    """Ranks that did not say where they are."""
    output: Mapping[int, Mapping[str, str]] = field(default_factory=dict)


class EndedRepr(TerminalRepr):
    """Why a test was ended, what failed first, and where everybody was."""

    def __init__(
        self, headline: str, parts: Sequence[tuple[str, object]], location: ReprFileLocation
    ) -> None:
        self.headline = headline
        self.parts = parts
        self.reprcrash = location

    def toterminal(self, tw: TerminalWriter) -> None:
        tw.line(f"E   {self.headline}", red=True, bold=True)
        for title, content in self.parts:
            tw.line()
            tw.sep("-", title, bold=True)
            if isinstance(content, TerminalRepr):
                content.toterminal(tw)
            else:
                tw.line(str(content))


def report_ending(test: ReportedTest, ending: Ending, root: Path) -> list[pytest.TestReport]:
    """Make the reports of a test that was ended; the last of them has failed."""
    # If ranks failed by themselves, that is what went wrong; the rest followed from it.
    failing = [
        report for result in ending.failed.values() for report in result.reports if report.failed
    ]
    last = str(failing[0].when) if failing else _phase_name(ending.phase)
    reports = []
    if ending.phase != "closing":
        reports += [_earlier(test, ending, phase) for phase in _PHASES[: _PHASES.index(last)]]
    now = time.time()
    reports.append(
        pytest.TestReport(
            nodeid=test.nodeid,
            location=test.location,
            keywords=dict.fromkeys(test.keywords, 1),
            outcome="failed",
            longrepr=_explain(test, ending, root),
            when=last,  # type: ignore[arg-type]
            sections=_sections(ending),
            duration=ending.seconds,
            start=now - ending.seconds,
            stop=now,
        )
    )
    if last != "teardown":
        # pytest takes a test for over only when its teardown was reported.
        reports.append(_plain(test, "teardown"))
    return reports


def _phase_name(phase: Phase) -> str:
    return "teardown" if phase == "closing" else phase


def _earlier(test: ReportedTest, ending: Ending, phase: str) -> pytest.TestReport:
    """Give the report of a phase before the one that went wrong."""
    known = {**ending.failed, **ending.ended}
    found = merge_phases(
        {
            rank: [report for report in result.reports if report.when == phase]
            for rank, result in known.items()
        }
    )
    return found[0] if found and found[0].passed else _plain(test, phase)


def _plain(test: ReportedTest, phase: str) -> pytest.TestReport:
    return pytest.TestReport(
        nodeid=test.nodeid,
        location=test.location,
        keywords=dict.fromkeys(test.keywords, 1),
        outcome="passed",
        longrepr=None,
        when=phase,  # type: ignore[arg-type]
    )


def _explain(test: ReportedTest, ending: Ending, root: Path) -> EndedRepr:
    parts: list[tuple[str, object]] = []
    for rank, result in sorted(ending.failed.items()):
        who = describe_ranks([rank], ending.size)
        for report in result.reports:
            if report.failed:
                parts.append((f"{who} failed first", report.longrepr))
            elif report.skipped:
                parts.append((f"{who} left first", _why_skipped(report)))
    crashed = _tell_where(ending.crashes, ending.size, root)
    if crashed:
        parts.append(("where it was", crashed))
    where = _tell_where(ending.waiting, ending.size, root)
    if ending.unanswered:
        silent = describe_ranks(ending.unanswered, ending.size)
        where = f"{where}\n{silent}: did not answer".lstrip()
    if where:
        parts.append(("where the others wait" if ending.failed else "where every rank is", where))
    return EndedRepr(ending.headline, parts, _location(test, ending))


def _why_skipped(report: pytest.TestReport) -> str:
    """Say why a rank has left a test without a failure."""
    if hasattr(report, "wasxfail"):
        return f"it failed as expected: {report.longreprtext}"
    return str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else report.longreprtext


def _tell_where(stacks: Mapping[int, Stack], size: int, root: Path) -> str:
    return "\n".join(describe_stacks(stacks, size, root)) if stacks else ""


def _location(test: ReportedTest, ending: Ending) -> ReprFileLocation:
    """Give the line that the short summary names, and what it says."""
    for rank, result in sorted(ending.failed.items()):
        for report in result.reports:
            crash = getattr(report.longrepr, "reprcrash", None)
            if report.failed and crash is not None:
                who = describe_ranks([rank], ending.size)
                message = f"[{who}] {crash.message}; the others did not end"
                return ReprFileLocation(crash.path, crash.lineno, message)
    for stacks in (ending.crashes, ending.waiting):
        for stack in stacks.values():
            if frames := of_the_test(stack):
                return ReprFileLocation(frames[-1].file, frames[-1].line, ending.headline)
    path, line, _ = test.location
    return ReprFileLocation(path, (line or 0) + 1, ending.headline)


def _sections(ending: Ending) -> list[tuple[str, str]]:
    """Show the last lines that ranks have written; what several have written alike, once."""
    ranks_by_section: dict[tuple[str, str], list[int]] = {}
    for rank, result in ending.failed.items():
        for section in dict.fromkeys(s for report in result.reports for s in report.sections):
            ranks_by_section.setdefault(section, []).append(rank)
    for rank, streams in ending.output.items():
        for name, text in streams.items():
            section = (f"Captured {name} {_phase_name(ending.phase)}", text)
            if rank not in ending.failed:
                ranks_by_section.setdefault(section, []).append(rank)
    return [
        (f"{name} ({describe_ranks(ranks, ending.size)})", text)
        for (name, text), ranks in sorted(ranks_by_section.items(), key=lambda entry: entry[1])
    ]
