"""Merge the reports of all ranks of a test into one report for each phase.

any rank failed                      failed
else any rank failed as expected     xfailed
else any rank was skipped            skipped: a test that ran in part has not passed
else                                 passed (xpassed if the test was expected to fail)
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from _pytest._code.code import ExceptionInfo, ReprFileLocation, TerminalRepr
from _pytest._io import TerminalWriter

from rankwise.pytest_plugin.serialize import is_plain_pass, is_strict_xpass
from rankwise.pytest_plugin.stacks import describe_ranks

RankReports = Mapping[int, pytest.TestReport]
LongRepr = ExceptionInfo[BaseException] | tuple[str, int, str] | str | TerminalRepr | None

# Addresses, as in `<mpi4py.MPI.Intracomm object at 0x7f5b0e4410d0>`, differ between ranks.
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]+")


class RankedRepr(TerminalRepr):
    """Failures of ranks, each under the ranks that had it."""

    def __init__(self, parts: Sequence[tuple[str, object]]) -> None:
        self.parts = parts
        label, first = parts[0]
        crash = getattr(first, "reprcrash", None)
        if crash is not None:
            # The short summary, --tb=line and JUnit show this.
            message = f"[{label}] {crash.message}"
            self.reprcrash = ReprFileLocation(crash.path, crash.lineno, message)

    def toterminal(self, tw: TerminalWriter) -> None:
        for label, longrepr in self.parts:
            write_part(tw, label, longrepr)


def write_part(tw: TerminalWriter, title: str, content: object) -> None:
    """Write a text, or something of pytest, under a title."""
    tw.sep("-", title, bold=True)
    if hasattr(content, "toterminal"):
        content.toterminal(tw)
    else:
        tw.line(str(content))


def merge_phases(results: Mapping[int, Sequence[pytest.TestReport]]) -> list[pytest.TestReport]:
    """Merge the reports of all ranks of a test, by rank of its communicator."""
    phases = (
        {rank: one for rank, reports in results.items() for one in reports if one.when == when}
        for when in ("setup", "call", "teardown")
    )
    return [merge_phase(phase, len(results)) for phase in phases if phase]


def merge_phase(phase: RankReports, size: int) -> pytest.TestReport:
    """Merge the reports of one phase; ranks that did not reach it have none."""
    # By far the most frequent case.
    if all(is_plain_pass(report) for report in phase.values()):
        return max(phase.values(), key=lambda report: report.duration)
    deciding = _deciding(phase)
    model = next(iter(deciding.values()))
    report = pytest.TestReport(
        nodeid=model.nodeid,
        location=model.location,
        keywords=model.keywords,
        outcome=model.outcome,
        longrepr=_merge_longrepr(deciding, size),
        when=model.when,
        sections=_merge_sections(phase, size),
        duration=max(report.duration for report in phase.values()),
        start=min(report.start for report in phase.values()),
        stop=max(report.stop for report in phase.values()),
        user_properties=_join_lists(phase, "user_properties"),
    )
    # Attributes that plugins have added to the report of the deciding rank stay (wasxfail, …).
    for name, value in model.__dict__.items():
        report.__dict__.setdefault(name, value)
    if extras := _join_lists(phase, "extras"):
        report.extras = extras  # type: ignore[attr-defined]  # attachments of pytest-html
    if not deciding.keys() >= phase.keys() and hasattr(model, "wasxfail"):
        report.wasxfail = f"{model.wasxfail} ({describe_ranks(deciding, size)})".lstrip()
    return report


def _deciding(phase: RankReports) -> dict[int, pytest.TestReport]:
    """Return the reports of the ranks that decide the outcome."""
    skipped = {r: p for r, p in phase.items() if p.skipped}
    expected = {r: p for r, p in skipped.items() if hasattr(p, "wasxfail")}
    too_good = {r: p for r, p in phase.items() if is_strict_xpass(p)}
    failed = {r: p for r, p in phase.items() if p.failed and r not in too_good}
    # A test that ran in part has not passed, so it has not passed unexpectedly either: a strict
    # xpass is a failure only if no rank has failed as expected or skipped.
    return failed or expected or skipped or too_good or dict(phase)


def _merge_longrepr(deciding: RankReports, size: int) -> LongRepr:
    first = next(iter(deciding.values()))
    # A skip: file, line and reason.
    if isinstance(first.longrepr, tuple):
        path, line, reason = first.longrepr
        if len(deciding) < size:
            reason = f"{reason} ({describe_ranks(deciding, size)})"
        return (path, line, reason)
    if first.longrepr is None or first.skipped or is_strict_xpass(first):
        return first.longrepr
    ranks_by_text: dict[str, list[int]] = {}
    for rank, report in deciding.items():
        ranks_by_text.setdefault(_ADDRESS.sub("0x", report.longreprtext), []).append(rank)
    parts = [
        (describe_ranks(ranks, size), deciding[ranks[0]].longrepr)
        for ranks in ranks_by_text.values()
    ]
    if all(isinstance(longrepr, str) for _, longrepr in parts):
        # Without a traceback, pytest shows the text itself in the short summary.
        return "\n".join(f"[{label}] {text}" for label, text in parts)
    return RankedRepr(parts)


def _merge_sections(phase: RankReports, size: int) -> list[tuple[str, str]]:
    """Label captured output by rank; the same output of several ranks is shown once."""
    ranks_by_section: dict[tuple[str, str], list[int]] = {}
    for rank, report in phase.items():
        # Each attempt of a repeated test has the output of the earlier ones too.
        for section in dict.fromkeys(report.sections):
            ranks_by_section.setdefault(section, []).append(rank)
    names = dict.fromkeys(name for name, _ in ranks_by_section)
    return [
        (f"{name} ({describe_ranks(ranks, size)})", text)
        for wanted in names
        for (name, text), ranks in ranks_by_section.items()
        if name == wanted
    ]


def _join_lists(phase: RankReports, name: str) -> list[Any]:
    """Join the lists that the reports have as this attribute, without duplicates."""
    joined: list[Any] = []
    # Compared by their `repr`: arrays, for example, cannot be compared by ==.
    seen: set[str] = set()
    for report in phase.values():
        new = [value for value in getattr(report, name, ()) if repr(value) not in seen]
        seen.update(map(repr, new))
        joined += new
    return joined
