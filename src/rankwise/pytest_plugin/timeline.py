"""Keep the times of all tests on all ranks for a timeline: `--timeline=FILE`."""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

    from rankwise.pytest_plugin.serialize import RankResult
    from rankwise.reports.lanes import Timeline

NAME = "rankwise-timeline"
_LONGEST_TITLE = 120
# What matters most of what the reports of a test say is what is shown.
_WEIGHTS = ("passed", "skipped", "failed", "timed out", "crashed")


@dataclass(slots=True)
class _Entry:
    """One test, and from when to when each of its lanes had it. Unix times."""

    nodeid: str
    spans: dict[int, tuple[float, float]]


class Timekeeper:
    """Notes what is reported and when that was, and writes it down at the end.

    Under a scheduler it is told which ranks had which test. Without one, each process that tests
    are reported from is a lane: one, or the workers of pytest-xdist.
    """

    def __init__(self, config: pytest.Config, path: str, begun: float) -> None:
        self._config = config
        # Of a name that no user has, this leaves the path as it is.
        self._path = Path(os.path.expanduser(path)).absolute()  # noqa: PTH111
        self._begun = begun
        self._width = 0
        self._order = "sequential"
        self._is_fresh = False
        self._entries: list[_Entry] = []
        self._states: dict[str, tuple[str, str]] = {}
        self._alone: dict[tuple[str, int], _Entry] = {}
        self._workers: dict[str, int] = {}
        self._milestones: list[tuple[float, str]] = []
        self._said = ""

    # What schedulers say

    def know(self, *, width: int, order: str, is_fresh: bool = False) -> None:
        """Learn on how many ranks tests run, and by which rule."""
        self._width = width
        self._order = order
        self._is_fresh = is_fresh
        if not self._milestones:
            # Others have collected.
            self._milestones.append((time.time(), "collected"))

    def note(self, nodeid: str, results: Mapping[int, RankResult]) -> None:
        """Learn what ranks say about a test that each of them has ended."""
        spans = {}
        for rank, result in results.items():
            reports = [*(report for run in result.reruns for report in run), *result.reports]
            starts = [report.start for report in reports if report.start]
            if starts:
                spans[rank] = min(starts), max(report.stop for report in reports)
        if spans:
            self._entries.append(_Entry(nodeid, spans))

    def note_ended(
        self, nodeid: str, ranks: Sequence[int], how: str, reports: Sequence[pytest.TestReport]
    ) -> None:
        """Learn that a test was ended, and when it had begun as far as that is known."""
        now = time.time()
        before = [
            entry.spans[rank][1] for entry in self._entries for rank in ranks if rank in entry.spans
        ]
        starts = [report.start for report in reports if report.start]
        # Its ranks were busy with their tests before: it cannot have begun earlier.
        start = min(now, max([min(starts, default=now), *before]))
        self._entries.append(_Entry(nodeid, dict.fromkeys(ranks, (start, now))))
        self._states[nodeid] = how, ""

    # Hooks

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self) -> None:
        self._milestones.append((time.time(), "collected"))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        state, note = _state_of(report)
        known = self._states.get(report.nodeid)
        if state and (known is None or _WEIGHTS.index(state) >= _WEIGHTS.index(known[0])):
            self._states[report.nodeid] = state, note
        if not self._width and report.start:
            self._note_alone(report)

    def _note_alone(self, report: pytest.TestReport) -> None:
        # pytest-xdist puts it there.
        worker = getattr(report, "worker_id", "")
        lane = self._workers.setdefault(worker, len(self._workers))
        entry = self._alone.get((report.nodeid, lane))
        if entry is None:
            entry = _Entry(report.nodeid, {lane: (report.start, report.stop)})
            self._alone[report.nodeid, lane] = entry
            self._entries.append(entry)
        start, stop = entry.spans[lane]
        entry.spans[lane] = min(start, report.start), max(stop, report.stop)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        now = time.time()
        # Heavy, and needed only where a timeline is asked for.
        from rankwise.node.files import write_file
        from rankwise.reports.html import timeline_page
        from rankwise.reports.timeline import timeline_data

        timeline = self._timeline(now)
        if self._path.suffix == ".json":
            text = json.dumps(timeline_data(timeline), indent=1)
        else:
            text = timeline_page(timeline)
        try:
            write_file(self._path, text)
        except OSError as error:
            self._said = f"the timeline could not be written: {error}"

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        terminalreporter.write_sep("-", self._said or f"timeline: {self._path}")

    def _timeline(self, now: float) -> Timeline:
        from rankwise.reports.lanes import Timeline, TimelineBar
        from rankwise.store import State

        zero = self._begun
        bars = []
        for entry in self._entries:
            spans = [(start - zero, stop - zero) for start, stop in entry.spans.values()]
            state, note = self._states.get(entry.nodeid, ("lost", "no verdict"))
            bars.append(
                TimelineBar(
                    lanes=tuple(entry.spans),
                    start=min(start for start, _ in spans),
                    end=max(stop for _, stop in spans),
                    name=entry.nodeid,
                    state=State(state),
                    note=note,
                    spans=tuple(spans) if len(spans) > 1 else (),
                )
            )
        return Timeline(
            title=self._title(),
            lanes=self._lanes(),
            bars=sorted(bars, key=lambda bar: bar.start),
            end=now - zero,
            order=self._order if len(self._lanes()) > 1 else "",
            is_fresh=self._is_fresh,
            begun=zero,
            milestones=tuple((when - zero, words) for when, words in self._milestones),
            lane_noun="rank" if self._width else "process",
        )

    def _lanes(self) -> tuple[str, ...]:
        if self._width:
            return tuple(f"rank {number}" for number in range(self._width))
        return tuple(name or "pytest" for name in self._workers) or ("pytest",)

    def _title(self) -> str:
        arguments = [str(one) for one in self._config.invocation_params.args]
        line = shlex.join(["pytest", *(one for one in arguments if "--timeline" not in one)])
        return line if len(line) <= _LONGEST_TITLE else f"{line[:_LONGEST_TITLE]} …"


def _state_of(report: pytest.TestReport) -> tuple[str, str]:
    """Return the state that a report speaks for, and what is special about it; empty: none."""
    expected = hasattr(report, "wasxfail")
    match str(report.outcome):
        case "failed":
            return "failed", "" if report.when == "call" else f"error in {report.when}"
        case "skipped":
            return "skipped", "xfailed" if expected else ""
        case "passed" if report.when == "call":
            return "passed", "xpassed" if expected else ""
    return "", ""
