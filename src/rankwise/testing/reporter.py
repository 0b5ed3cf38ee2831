"""What the user sees goes through pytest's own hooks here, wherever the tests ran."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.cacheprovider import Cache

from rankwise.testing.interop import rerunfailures
from rankwise.testing.rank_output import silence
from rankwise.testing.results import (
    RankResult,
    RecordedWarning,
    ReportedTest,
    durations_if_uneventful,
    is_uneventful,
    merge_warnings,
    unpack,
)
from rankwise.testing.verdict import merge_phase, merge_phases
from rankwise.testing.wire import Header, WireError

if TYPE_CHECKING:
    from rankwise.testing.timekeeping import Timekeeper

_DURATIONS = "rankwise/durations"


class Reporter:
    """Reports what ranks say as one process would."""

    def __init__(
        self,
        session: pytest.Session,
        tell: Callable[[Header], None],
        tests: Sequence[ReportedTest],
        *,
        size: int,
        rank: int | None,
        in_order: bool,
    ) -> None:
        self._session = session
        self._config = session.config
        self._tell = tell
        self._tests = tests
        self._size = size
        self._rank = rank
        self._in_order = in_order
        self._kept: dict[int, RankResult] = {}
        self._started: set[str] = set()
        self._gone: set[int] = set()
        self._durations: dict[str, float] = {}
        self._times: Timekeeper | None = self._config.pluginmanager.get_plugin("rankwise-timeline")
        option = self._config.getoption
        self.maxfail: int = option("maxfail", 0) or 0
        self.careful = bool(self.maxfail or option("stepwise", False))
        """Whether the next test may start only when the verdict on this one is known."""
        # Whoever has the names of the tests shown wants to see which one is running.
        self.strict = self.careful or self._config.get_verbosity() > 0

    # While tests run

    def starts(self, item: ReportedTest, ranks: Sequence[int]) -> None:
        """Announce a test; one on this rank alone announces itself."""
        if self._in_order and len(ranks) > 1:
            self._announce(item)

    def keep(self, index: int, ranks: Sequence[int], result: RankResult) -> None:
        """Keep this rank's own part of a verdict until the other ranks' parts have come."""
        if len(ranks) > 1:
            self._kept[index] = result
        else:
            self._remember(self._tests[index], result.reports)
            if self._times is not None:
                self._times.note(self._tests[index].nodeid, {ranks[0]: result})

    def take(self, header: Header, body: bytes) -> None:
        """Report what the switchboard passes on.

        Raises KeyboardInterrupt or pytest's Exit when another rank's test did, WireError when a
        rank has left.
        """
        match header["kind"]:
            case "verdict":
                self._log_verdict(header, body)
            case "late":
                item = self._tests[header["case"]]
                self.log_late(unpack(body, item), header["rank"])
            case "interrupt" if header["exit"]:
                pytest.exit(f"{header['reason']} (rank {header['rank']})", header["code"])
            case "interrupt":
                raise KeyboardInterrupt(f"on rank {header['rank']}")
            case "gone":
                self._gone.add(header["rank"])
                raise WireError(f"rank {header['rank']} left the run before it was over")

    def _log_verdict(self, header: Header, body: bytes) -> None:
        index, ranks = header["case"], header["ranks"]
        item = self._tests[index]
        own = self._kept.pop(index, None)
        parts = _cut(body, header["lengths"])
        others = [part for rank, part in zip(ranks, parts, strict=True) if rank != self._rank]
        if self._times is not None:
            seats: Sequence[int] = header.get("seats") or ranks
            said = {
                seat: own if own and rank == self._rank else unpack(part, item)
                for seat, rank, part in zip(seats, ranks, parts, strict=True)
            }
            self._times.note(item.nodeid, said)
        if own is not None and self._is_uneventful(own, others):
            self._log_single(item, own)
        else:
            results = {
                number: own if own and rank == self._rank else unpack(part, item)
                for number, (rank, part) in enumerate(zip(ranks, parts, strict=True))
            }
            if len(ranks) == 1:
                self._log_single(item, results[0])
            else:
                own_number = list(ranks).index(self._rank) if own else None
                self._log_merged(item, results, own_number)
        if self._session.shouldfail or self._session.shouldstop:
            self._tell({"kind": "stop"})
        if self.careful:
            self._tell({"kind": "logged", "case": index})

    def _is_uneventful(self, own: RankResult, others: Sequence[bytes]) -> bool:
        """Tell whether a test passed on all ranks with nothing to report but how long it took.

        If so, this rank's reports are made those of all.
        """
        if not is_uneventful(own):
            return False
        durations = [durations_if_uneventful(part) for part in others]
        if None in durations:
            return False
        for report, *seconds in zip(own.reports, *filter(None, durations), strict=True):
            report.duration = max(report.duration, *seconds)
        return True

    def _log_single(self, item: ReportedTest, result: RankResult) -> None:
        self._announce(item)
        self._warn([result])
        for report in (*result.subtests, *result.reports):
            self._config.hook.pytest_runtest_logreport(report=report)
        reruns = sum(str(report.outcome) == "rerun" for report in result.reports)
        rerunfailures.note_attempts(item, reruns + 1)
        self._finish(item, result.reports)

    def _log_merged(
        self, item: ReportedTest, results: Mapping[int, RankResult], own: int | None
    ) -> None:
        self._announce(item)
        silence(results, self._config.getoption("rank_output", "all"))
        others = [result for number, result in results.items() if number != own]
        self._warn(others, known=results[own].warnings if own is not None else ())
        for result in others:
            self._log_subtests(result)
        attempts = max(len(result.reruns) for result in results.values())
        rerunfailures.note_attempts(item, attempts + 1)
        for attempt in range(attempts):
            runs = {number: result.reruns[attempt] for number, result in results.items()}
            self._log_rerun(merge_phases(runs), attempt)
        merged = merge_phases({number: result.reports for number, result in results.items()})
        for report in merged:
            self._config.hook.pytest_runtest_logreport(report=report)
        self._finish(item, merged)

    def _log_rerun(self, reports: Sequence[pytest.TestReport], attempt: int) -> None:
        for report in reports:
            report.rerun = attempt  # type: ignore[attr-defined]  # pytest-rerunfailures' own
            if report.failed:
                report.outcome = "rerun"  # type: ignore[assignment]  # that plugin's outcome
            self._config.hook.pytest_runtest_logreport(report=report)

    def _log_subtests(self, result: RankResult) -> None:
        """Report other ranks' subtests that did not pass; those that did are counted once."""
        for report in result.subtests:
            if not report.passed:
                self._config.hook.pytest_runtest_logreport(report=report)

    def log_late(self, result: RankResult, rank: int) -> None:
        """Report an error in a fixture of a wider scope after its last test was reported."""
        for report in result.reports:
            merged = merge_phase({rank: report}, self._size) if self._size > 1 else report
            self._config.hook.pytest_runtest_logreport(report=merged)

    def log_ended(
        self,
        item: ReportedTest,
        reports: Sequence[pytest.TestReport],
        *,
        how: str,
        seats: Sequence[int],
    ) -> None:
        """Report a test that did not come to its end by itself."""
        self._announce(item)
        if self._times is not None:
            self._times.note_ended(item.nodeid, seats, how, reports)
        self.log_more(reports)
        self._finish(item, reports)

    def log_more(self, reports: Sequence[pytest.TestReport]) -> None:
        """Report what is not, or no longer, part of a test's own phases."""
        for report in reports:
            self._config.hook.pytest_runtest_logreport(report=report)

    def _announce(self, item: ReportedTest) -> None:
        if item.nodeid not in self._started:
            self._started.add(item.nodeid)
            item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)

    def _finish(self, item: ReportedTest, reports: Sequence[pytest.TestReport]) -> None:
        self._started.discard(item.nodeid)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        self._remember(item, reports)

    def _remember(self, item: ReportedTest, reports: Sequence[pytest.TestReport]) -> None:
        seconds = sum(report.duration for report in reports)
        self._durations[item.nodeid] = round(seconds, 4)

    def _warn(self, results: Sequence[RankResult], known: Sequence[RecordedWarning] = ()) -> None:
        """Show other ranks' warnings that pytest does not already know from this one."""
        for warning in merge_warnings(results):
            if warning in known:
                continue
            self._config.hook.pytest_warning_recorded.call_historic(
                kwargs={
                    "warning_message": warning.restore(),
                    "when": warning.when,
                    "nodeid": warning.nodeid,
                    "location": None,
                }
            )

    # What is known about durations

    def known_durations(self) -> Mapping[str, float]:
        """Give how long tests took in earlier runs."""
        known: Mapping[str, float] = self._cache().get(_DURATIONS, {})
        return known

    def save_durations(self) -> None:
        """Remember how long tests took, for the next run."""
        if self._durations:
            cache = self._cache()
            cache.set(_DURATIONS, {**cache.get(_DURATIONS, {}), **self._durations})

    def _cache(self) -> Cache | _NoCache:
        return getattr(self._config, "cache", None) or _NoCache()


def _cut(body: bytes, lengths: Sequence[int]) -> list[bytes]:
    """Cut what the ranks said out of what came in one piece."""
    ends = list(accumulate(lengths))
    return [body[end - length : end] for end, length in zip(ends, lengths, strict=True)]


class _NoCache:
    """For runs with `-p no:cacheprovider`."""

    def get(self, _key: str, default: Any) -> Any:
        return default

    def set(self, _key: str, _value: object) -> None:
        pass
