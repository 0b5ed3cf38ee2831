"""Tests that crashed, hung or were lost, as text and reports."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from _pytest._code.code import ReprFileLocation, TerminalRepr
from _pytest._io import TerminalWriter

from rankwise.pytest_plugin import rank_status
from rankwise.pytest_plugin.collection import ListedTest
from rankwise.pytest_plugin.connections import world_and_rank
from rankwise.pytest_plugin.rank_status import AFTER, Overdue, Phase, RankStatus
from rankwise.pytest_plugin.schedulers.dispatcher import RunningTest
from rankwise.pytest_plugin.serialize import RankResult, ReportedTest, unpack
from rankwise.pytest_plugin.stacks import (
    Stack,
    describe_ranks,
    describe_stacks,
    hint_at_world,
    of_the_test,
    read_crash,
)
from rankwise.pytest_plugin.verdict import merge_phases, write_part
from rankwise.pytest_plugin.workers.worlds import World, abort_of

_PHASES = ("setup", "call", "teardown")
# By name: not every system has all of them.
_MEANINGS: Mapping[str, str] = {
    "SIGSEGV": "segmentation fault",
    "SIGBUS": "bus error",
    "SIGFPE": "arithmetic error",
    "SIGILL": "illegal instruction",
    "SIGABRT": "abort",
}


def describe_status(status: int | None, *, out_of_memory: bool = False) -> str:
    """Say how a process ended, from its exit status (negative: a signal)."""
    if status is None:
        return "was lost (its process is gone, or it closed its connection to the controller)"
    if status >= 0:
        return f"exited with code {status} (os._exit, MPI_Abort or exit of a C library)"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    meaning = _MEANINGS.get(name)
    if name == "SIGKILL" and out_of_memory:
        meaning = "the machine is out of memory"
    return f"was killed by {name}" + (f" ({meaning})" if meaning else "")


@dataclass(slots=True, kw_only=True)
class AbortedTest:
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
    hint: str = ""
    """What may be the reason, if it is not in the stacks."""
    output: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    log: str = ""
    """What mpiexec and ranks have printed outside of tests."""


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
            write_part(tw, title, content)


def report_ending(test: ReportedTest, ending: AbortedTest, root: Path) -> list[pytest.TestReport]:
    """Make the reports of a test that was ended; the last of them has failed."""
    # If ranks failed by themselves, that is what went wrong; the rest followed from it.
    failing = [
        report for result in ending.failed.values() for report in result.reports if report.failed
    ]
    last = str(failing[0].when) if failing else _phase_name(ending.phase)
    reports = []
    # After the last phase all reports of the test are there already.
    if ending.phase not in AFTER:
        reports += [_earlier(test, ending, phase) for phase in _PHASES[: _PHASES.index(last)]]
    now = time.time()
    reports.append(
        _make_report(
            test,
            last,
            outcome="failed",
            longrepr=_explain(test, ending, root),
            sections=_sections(ending),
            duration=ending.seconds,
            start=now - ending.seconds,
            stop=now,
        )
    )
    if last != "teardown":
        # pytest takes a test for over only when its teardown was reported.
        reports.append(_make_report(test, "teardown"))
    return reports


def _phase_name(phase: Phase) -> str:
    return "teardown" if phase in AFTER else phase


def _earlier(test: ReportedTest, ending: AbortedTest, phase: str) -> pytest.TestReport:
    """Return the report of a phase before the one that went wrong."""
    known = {**ending.failed, **ending.ended}
    found = merge_phases(
        {
            rank: [report for report in result.reports if report.when == phase]
            for rank, result in known.items()
        }
    )
    # A phase of which no rank has said anything has passed: the test came to the next one.
    return found[0] if found and found[0].passed else _make_report(test, phase)


def _make_report(test: ReportedTest, phase: str, **more: Any) -> pytest.TestReport:
    """Make the report of a phase, which has passed if nothing else is said."""
    keywords: Mapping[str, Any] = dict.fromkeys(test.keywords, 1)
    plain = {"outcome": "passed", "longrepr": None, "when": phase}
    return pytest.TestReport(test.nodeid, test.location, keywords, **{**plain, **more})


def _explain(test: ReportedTest, ending: AbortedTest, root: Path) -> EndedRepr:
    parts: list[tuple[str, object]] = []
    for rank, result in sorted(ending.failed.items()):
        who = describe_ranks([rank], ending.size)
        for report in result.reports:
            if report.failed:
                parts.append((f"{who} failed first", report.longrepr))
            elif report.skipped:
                parts.append((f"{who} left first", _why_skipped(report)))
    waiting = describe_stacks(ending.waiting, ending.size, root)
    if ending.unanswered:
        waiting.append(f"{describe_ranks(ending.unanswered, ending.size)}: did not answer")
    places = [
        ("where it was", "\n".join(describe_stacks(ending.crashes, ending.size, root))),
        ("where the others wait" if ending.failed else "where every rank is", "\n".join(waiting)),
        ("what it may wait for", ending.hint),
    ]
    parts += [(title, text) for title, text in places if text]
    return EndedRepr(ending.headline, parts, _location(test, ending))


def _why_skipped(report: pytest.TestReport) -> str:
    """Say why a rank has left a test without a failure."""
    if hasattr(report, "wasxfail"):
        return f"it failed as expected: {report.longreprtext}"
    return str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else report.longreprtext


def _location(test: ReportedTest, ending: AbortedTest) -> ReprFileLocation:
    """Return the line that the short summary names, and what it says."""
    for rank, result in sorted(ending.failed.items()):
        for report in result.reports:
            crash = getattr(report.longrepr, "reprcrash", None)
            if report.failed and crash is not None:
                who = describe_ranks([rank], ending.size)
                message = f"[{who}] {crash.message}; the others did not end"
                return ReprFileLocation(crash.path, crash.lineno, message)
    # What crashed is more to the point than where others wait.
    for stacks in (ending.crashes, ending.waiting):
        for stack in stacks.values():
            if frames := of_the_test(stack):
                return ReprFileLocation(frames[-1].file, frames[-1].line, ending.headline)
    path, line, _ = test.location
    return ReprFileLocation(path, (line or 0) + 1, ending.headline)


def _sections(ending: AbortedTest) -> list[tuple[str, str]]:
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
    sections = [
        (f"{name} ({describe_ranks(ranks, ending.size)})", text)
        for (name, text), ranks in sorted(ranks_by_section.items(), key=lambda entry: entry[1])
    ]
    if ending.log:
        sections.append(("Printed outside of tests", ending.log))
    return sections


def name_world(world: World) -> str:
    """Name a world in a sentence."""
    return "a world of 1 rank" if world.size == 1 else f"a world of {world.size} ranks"


class FailureReport:
    """Describes endings; the world's files must still be there."""

    def __init__(self, tests: Sequence[ListedTest], *, grace: float, memory_kills: int) -> None:
        self._tests = tests
        self._grace = grace
        self._memory_kills = memory_kills

    def on_crash(self, world: World, culprit: int, running: RunningTest) -> AbortedTest:
        """Describe the end of a test that one of its ranks has not survived."""
        ranks = {world_and_rank(worker)[1]: place for place, worker in enumerate(running.workers)}
        moment = world.status_of(culprit).read_status()
        phase = moment.phase if moment is not None else "call"
        ending = self._on_death(world, culprit, ranks, phase)
        ending.ended = self._results(running, running.bodies)
        return ending

    def on_end_after(
        self, world: World, culprit: int | None, log: str
    ) -> tuple[int | None, AbortedTest]:
        """Describe the end of a world in which no test ran, and name the last one that did.

        None: there was none. `log` is what the world's processes printed outside of tests.
        """
        moments = {rank: world.status_of(rank).read_status() for rank in range(world.size)}
        case, phase = _last_test(world, culprit, moments)
        if culprit is not None:
            ending = self._on_death(world, culprit, {rank: rank for rank in moments}, phase)
        else:
            who = "its worker process was" if world.size == 1 else f"all {world.size} ranks were"
            headline = f"{who} ended from outside {rank_status.describe_phase(phase)}"
            ending = AbortedTest(size=world.size, phase=phase, headline=headline)
        ending.log = log
        return case, ending

    def on_lost(self, running: RunningTest, headline: str, said: str = "") -> AbortedTest:
        """Describe the end of a test by something outside of it; `said` is what was printed."""
        return AbortedTest(
            size=len(running.workers),
            phase="call",
            headline=headline,
            ended=self._results(running, running.bodies),
            output={0: {"stderr": said}} if said else {},
        )

    def on_overdue(
        self, world: World, one: Overdue, running: RunningTest, rank_failed: Mapping[int, bytes]
    ) -> AbortedTest:
        """Describe a test over its limit; `rank_failed` has what ranks said that left it."""
        size = len(running.workers)
        failed = self._results(running, rank_failed)
        ended = self._results(running, running.bodies)
        # A rank that failed may have come to its end since: its whole result says more.
        failed |= {place: ended[place] for place in ended if place in failed}
        # Places in the test to ranks in the world: a test may have any ranks of a shared one.
        ranks = dict(enumerate(world_and_rank(worker)[1] for worker in running.workers))
        at_it = {
            place: rank
            for place, rank in ranks.items()
            if place not in ended and _is_at(world, rank, one.case)
        }
        waiting, silent = _stacks(world, at_it)
        if one.why == "grace":
            who = describe_ranks(sorted(failed), size)
            verb = "failed" if any(result.failed for result in failed.values()) else "left the test"
            headline = rank_status.describe_grace(who, self._grace, verb=verb)
        else:
            headline = self._over_limit(one)
        return AbortedTest(
            size=size,
            phase=one.phase,
            headline=headline,
            how="failed" if one.why == "grace" else "timed out",
            seconds=one.seconds,
            failed=failed,
            ended=ended,
            waiting=waiting,
            unanswered=silent,
            hint=hint_at_world(waiting, size, world.size) if one.why == "limit" else "",
            output={
                place: world.outputs[rank].read()
                for place, rank in ranks.items()
                if rank in world.outputs and place not in ended
            },
        )

    def on_overdue_after(
        self, world: World, one: Overdue, moments: Mapping[int, RankStatus], log: str
    ) -> AbortedTest:
        """Describe ranks that take too long over what comes after their last test."""
        busy = {rank: rank for rank, moment in moments.items() if moment.phase in AFTER}
        waiting, silent = _stacks(world, busy)
        return AbortedTest(
            size=world.size,
            phase=one.phase,
            headline=self._over_limit(one),
            how="timed out",
            seconds=one.seconds,
            waiting=waiting,
            unanswered=silent,
            log=log,
        )

    def _over_limit(self, one: Overdue) -> str:
        test = self._tests[one.case]
        return rank_status.describe_overdue(test.nodeid, test.limit, one.phase)

    def _on_death(
        self, world: World, culprit: int, ranks: Mapping[int, int], phase: Phase
    ) -> AbortedTest:
        """Describe how a rank ended; `ranks` are the places in the test of a world's ranks."""
        moment = world.status_of(culprit).read_status()
        status = world.ended.get(culprit)
        # Counted by the kernel for the whole machine: what was killed since the last look counts.
        kills, self._memory_kills = self._memory_kills, rank_status.count_memory_kills()
        how = describe_status(status, out_of_memory=self._memory_kills > kills)
        # What a signal has ended is not explained by what was printed before.
        if (status is None or status >= 0) and (abort := abort_of(world, culprit)):
            how = abort if status is None else f"{abort} (exit code {status})"
        if phase == "ending" and status:
            # Of a process that is at its end, this is no more than its exit code.
            how = describe_status(status) if status < 0 else f"ended with exit code {status}"
        how = world.reasons.get(culprit, how)
        # Others may have crashed in the same way at the same moment.
        fellows = {culprit: read_crash(world.status_of(culprit).read_crash())}
        for rank in world.failed_ranks:
            stack = read_crash(world.status_of(rank).read_crash())
            if rank in ranks and stack and world.ended.get(rank) == status:
                fellows[rank] = stack
        were = how.replace("was ", "were ", 1) if len(fellows) > 1 else how
        who = describe_ranks([ranks[rank] for rank in fellows], len(ranks))
        return AbortedTest(
            size=len(ranks),
            phase=phase,
            headline=f"{who} {were} {rank_status.describe_phase(phase)}",
            seconds=time.monotonic() - moment.since if moment is not None else 0.0,
            crashes={ranks[rank]: stack for rank, stack in fellows.items() if stack},
            output={
                ranks[rank]: world.outputs[rank].read() for rank in fellows if rank in world.outputs
            },
        )

    def _results(self, running: RunningTest, bodies: Mapping[int, bytes]) -> dict[int, RankResult]:
        return {
            place: unpack(bodies[worker], self._tests[running.case])
            for place, worker in enumerate(running.workers)
            if worker in bodies
        }


# What Slurm prints when it ends a step, and what that means.
_STEP_ENDS = (
    ("DUE TO TIME LIMIT", "because it had reached its time limit"),
    ("NODE FAILURE", "because a node was lost"),
    ("oom", "because it had used up its memory"),
    ("memory limit", "because it had used up its memory"),
    ("CANCELLED", "from outside (scancel)"),
)


def explain_step(said: str) -> str:
    """Say why Slurm has ended a step, from what it printed."""
    return next((meaning for words, meaning in _STEP_ENDS if words in said), "from outside")


def _last_test(
    world: World, culprit: int | None, moments: Mapping[int, RankStatus | None]
) -> tuple[int | None, Phase]:
    """Return the test that ran last where a world has ended, and what was done since."""
    ranks = list(moments) if culprit is None else [culprit]
    for rank in ranks:
        moment = moments[rank]
        if moment is not None and moment.phase in AFTER:
            return moment.case, moment.phase
    last = [case for rank, case in world.last_tests.items() if rank in ranks]
    return (last[-1] if last else None), "ending" if world.told_to_finish is not None else "idle"


def _is_at(world: World, rank: int, case: int) -> bool:
    """Return whether a rank has not gone on to another test."""
    moment = world.status_of(rank).read_status()
    return moment is None or moment.case == case


def _stacks(world: World, ranks: Mapping[int, int]) -> tuple[dict[int, Stack], list[int]]:
    """Return where ranks are, by their place in the test; and those that did not answer."""
    found = world.stacks_of(ranks.values())
    stacks = {place: found[rank] for place, rank in ranks.items() if rank in found}
    return stacks, [place for place in ranks if place not in stacks]
