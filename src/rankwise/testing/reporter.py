"""Rank 0's other task: everything that the user sees goes through pytest's own hooks here."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import pytest
from _pytest.cacheprovider import Cache

from rankwise.testing.crew.loop import number_groups
from rankwise.testing.interop import rerunfailures
from rankwise.testing.results import (
    RankResult,
    RecordedWarning,
    durations_if_uneventful,
    is_uneventful,
    merge_warnings,
    unpack,
    unpack_any_report,
)
from rankwise.testing.sizes import size_of
from rankwise.testing.verdict import describe_ranks, merge_phase, merge_phases
from rankwise.testing.wire import Channel, Header, WireError

_DURATIONS = "rankwise/durations"
_SHOWN_DIFFERENCES = 10
# Ranks that have nothing left to do need no longer than this to say goodbye.
_GOODBYE_SECONDS = 10.0


class CollectionsDiffer(Exception):
    """The ranks have not collected the same tests; the message shows the difference."""


class Reporter:
    """Collects what the ranks say and reports it as one process would."""

    def __init__(
        self,
        session: pytest.Session,
        channel: Channel,
        *,
        size: int,
        rank: int = 0,
        in_order: bool,
    ) -> None:
        self._session = session
        self._config = session.config
        self._channel = channel
        self._size = size
        self._rank = rank
        self._in_order = in_order
        self._careful = False
        self._kept: dict[int, RankResult] = {}
        self._started: set[str] = set()
        self._gone: set[int] = set()
        self._broken: set[str] = set()
        self._durations: dict[str, float] = {}

    # Before the first test

    def gather_collections(self) -> dict[int, tuple[Header, bytes]]:
        """Wait until every rank has said what it has collected.

        Raises WireError when a rank has left instead, UsageError when it refused to collect.
        """
        collections: dict[int, tuple[Header, bytes]] = {}
        while len(collections) < self._size:
            header, body = self._channel.receive()
            if header["kind"] == "collected":
                collections[header["rank"]] = header, body
            elif header["kind"] == "interrupt":
                self.take(header, body)
            elif header["kind"] == "refused":
                where = describe_ranks([header["rank"]], self._size)
                raise pytest.UsageError(f"[{where}] {header['reason']}")
            elif header["kind"] == "gone":
                self._gone.add(header["rank"])
                raise WireError(
                    f"rank {header['rank']} ended before it had collected its tests; "
                    f"what it printed says why"
                )
        return collections

    def log_collection_errors(self, collections: Mapping[int, tuple[Header, bytes]]) -> None:
        """Report what could not be collected on other ranks and is not known from this one."""
        found: dict[str, tuple[dict[str, Any], list[int]]] = {}
        for rank, (_, body) in sorted(collections.items()):
            for data in json.loads(body)["errors"]:
                found.setdefault(data["nodeid"], (data, []))[1].append(rank)
        self._broken = set(found)
        for data, ranks in found.values():
            if self._rank not in ranks:
                report = unpack_any_report(data, self._config)
                report.nodeid = f"{report.nodeid} [{describe_ranks(ranks, self._size)}]"
                self._config.hook.pytest_collectreport(report=report)

    def agree_on_order(
        self, collections: Mapping[int, tuple[Header, bytes]], temporary: str
    ) -> None:
        """Make sure that all ranks have the same tests, and tell them in which order to count.

        Tests of a module that some rank could not collect are left out. Raises CollectionsDiffer.
        """
        digest = collections[self._rank][0]["digest"]
        items = self._session.items
        if self._broken:
            items[:] = [item for item in items if not self._is_broken(item.nodeid)]
        own = [item.nodeid for item in items]
        same = not self._broken
        for rank, (header, body) in sorted(collections.items()):
            if self._broken or header["digest"] != digest:
                theirs = [n for n in json.loads(body)["nodeids"] if not self._is_broken(n)]
                if sorted(theirs) != sorted(own):
                    raise CollectionsDiffer(
                        _show_difference(self._rank, own, rank, theirs, self._size)
                    )
                same = False
        order = b"" if same else json.dumps(own).encode()
        header = {"kind": "share", "what": "order", "temporary": temporary}
        self._channel.send(header, order)

    def _is_broken(self, nodeid: str) -> bool:
        return any(nodeid.startswith((f"{broken}::", f"{broken}/")) for broken in self._broken)

    def begin(self, scheduler: str) -> None:
        """Hand the suite over to the switchboard."""
        items = self._session.items
        known = self._cache().get(_DURATIONS, {})
        groups, _ = number_groups(items)
        tests = [
            [size_of(item), known.get(item.nodeid), numbers]
            for item, numbers in zip(items, groups, strict=True)
        ]
        option = self._config.getoption
        maxfail = option("maxfail", 0) or 0
        careful = self._careful = bool(maxfail or option("stepwise", False))
        # Whoever has the names of the tests shown wants to see which one is running.
        strict = careful or self._config.get_verbosity() > 0
        self._channel.send(
            {
                "kind": "begin",
                "scheduler": scheduler,
                "careful": careful,
                "strict": strict,
                "maxfail": maxfail,
            },
            json.dumps(tests).encode(),
        )

    # While tests run

    def starts(self, item: pytest.Item, ranks: Sequence[int]) -> None:
        """Announce a test; one on this rank alone announces itself."""
        if self._in_order and len(ranks) > 1:
            self._announce(item)

    def keep(self, index: int, ranks: Sequence[int], result: RankResult) -> None:
        """Keep this rank's own part of a verdict until the other ranks' parts have come."""
        if len(ranks) > 1:
            self._kept[index] = result
        else:
            self._remember(self._session.items[index], result.reports)

    def take(self, header: Header, body: bytes) -> None:
        """Report what the switchboard passes on.

        Raises KeyboardInterrupt or pytest's Exit when another rank's test did, WireError when a
        rank has left.
        """
        match header["kind"]:
            case "verdict":
                self._log_verdict(header, body)
            case "late":
                item = self._session.items[header["case"]]
                self.log_late(item, unpack(body, item), header["rank"])
            case "interrupt" if header["exit"]:
                pytest.exit(f"{header['reason']} (rank {header['rank']})", header["code"])
            case "interrupt":
                raise KeyboardInterrupt(f"on rank {header['rank']}")
            case "gone":
                self._gone.add(header["rank"])
                raise WireError(f"rank {header['rank']} left the run before it was over")

    def _log_verdict(self, header: Header, body: bytes) -> None:
        index, ranks = header["case"], header["ranks"]
        item = self._session.items[index]
        own = self._kept.pop(index, None)
        parts = _cut(body, header["lengths"])
        others = [part for rank, part in zip(ranks, parts, strict=True) if rank != self._rank]
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
                own_number = ranks.index(self._rank) if own else None
                self._log_merged(item, results, own_number)
        if self._session.shouldfail or self._session.shouldstop:
            self._channel.send({"kind": "stop"})
        if self._careful:
            self._channel.send({"kind": "logged", "case": index})

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

    def _log_single(self, item: pytest.Item, result: RankResult) -> None:
        self._announce(item)
        self._warn([result])
        for report in (*result.subtests, *result.reports):
            self._config.hook.pytest_runtest_logreport(report=report)
        reruns = sum(str(report.outcome) == "rerun" for report in result.reports)
        rerunfailures.note_attempts(item, reruns + 1)
        self._finish(item, result.reports)

    def _log_merged(
        self, item: pytest.Item, results: Mapping[int, RankResult], own: int | None
    ) -> None:
        self._announce(item)
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

    def log_late(self, item: pytest.Item, result: RankResult, rank: int | None) -> None:
        """Report an error in a fixture of a wider scope after its last test was reported."""
        for report in result.reports:
            number = self._rank if rank is None else rank
            merged = merge_phase({number: report}, self._size) if self._size > 1 else report
            self._config.hook.pytest_runtest_logreport(report=merged)

    def _announce(self, item: pytest.Item) -> None:
        if item.nodeid not in self._started:
            self._started.add(item.nodeid)
            item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)

    def _finish(self, item: pytest.Item, reports: Sequence[pytest.TestReport]) -> None:
        self._started.discard(item.nodeid)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        self._remember(item, reports)

    def _remember(self, item: pytest.Item, reports: Sequence[pytest.TestReport]) -> None:
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

    # After the last test

    def await_others(self) -> list[int]:
        """Wait until the other ranks have ended their sessions; gives those that did not."""
        missing = set(range(self._size)) - {self._rank} - self._gone
        deadline = time.monotonic() + _GOODBYE_SECONDS
        while missing:
            self._channel.set_timeout(max(0.01, deadline - time.monotonic()))
            try:
                header, body = self._channel.receive()
            except WireError:
                break
            if header["kind"] in ("bye", "gone"):
                missing.discard(header["rank"])
            elif header["kind"] in ("late", "verdict"):
                self.take(header, body)
        self._save_durations()
        return sorted(missing)

    def _save_durations(self) -> None:
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


def _show_difference(
    rank: int, own: Sequence[str], other: int, theirs: Sequence[str], size: int
) -> str:
    counts = f"rank {rank} {len(own)}, rank {other} {len(theirs)} (of {size} ranks)"
    lines = [f"the ranks have collected different tests: {counts}"]
    for who, here, there in ((rank, own, theirs), (other, theirs, own)):
        elsewhere = set(there)
        only = [nodeid for nodeid in here if nodeid not in elsewhere]
        lines += [f"  only on rank {who}: {nodeid}" for nodeid in only[:_SHOWN_DIFFERENCES]]
        if len(only) > _SHOWN_DIFFERENCES:
            lines.append(f"  … and {len(only) - _SHOWN_DIFFERENCES} more only on rank {who}")
    lines.append(
        "  Every rank must collect the same tests: collection must not depend on the rank, the "
        "order of a set, or chance."
    )
    return "\n".join(lines)
