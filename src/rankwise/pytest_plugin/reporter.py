"""Report to pytest, where the user sees it, the tests and results of other processes."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.terminal import TerminalReporter

from rankwise.pytest_plugin import collection, interop, serialize
from rankwise.pytest_plugin.collection import FolderHooks, ListedTest
from rankwise.pytest_plugin.connections import Header, WireError
from rankwise.pytest_plugin.output import PastCapture, filter_output
from rankwise.pytest_plugin.serialize import RankResult, RecordedWarning, ReportedTest
from rankwise.pytest_plugin.verdict import merge_phase, merge_phases

if TYPE_CHECKING:
    from rankwise.pytest_plugin.timeline import Timekeeper

Collected = dict[str, Any]


class CollectionRecord:
    """Records what happens while tests are collected; a plugin of the process that does so."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self.past_capture: PastCapture | None = None
        self._reports: list[pytest.CollectReport] = []
        self._warnings: list[RecordedWarning] = []
        self._text: Mapping[str, str] = {}

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection(self) -> Generator[None, object, object]:
        past = self.past_capture
        if past is None:
            return (yield)
        with past:
            try:
                return (yield)
            finally:
                self._text = past.take()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._reports.append(report)

    @pytest.hookimpl
    def pytest_warning_recorded(self, warning_message: Any, when: Any, nodeid: str) -> None:
        if when == "collect":
            self._warnings.append(RecordedWarning.of(warning_message, when, nodeid))

    def describe(self, session: pytest.Session) -> Collected:
        """Return the record in plain values; reports that did not pass are sent elsewhere."""
        numbers = {item: number for number, item in enumerate(session.items)}
        collectors = [
            [report.nodeid, [_describe_node(node, numbers) for node in report.result]]
            if report.passed
            else None
            for report in self._reports
        ]
        # They would keep all collectors alive.
        self._reports.clear()
        config = self._config
        lines = config.hook.pytest_report_collectionfinish(
            config=config, start_path=config.invocation_params.dir, items=session.items
        )
        return {
            "collectors": collectors,
            "warnings": self._warnings,
            "text": self._text,
            "lines": lines,
            "cache": interop.describe_cache(config),
        }


def _describe_node(node: Any, numbers: Mapping[Any, int]) -> list[Any]:
    kind = type(node).__name__
    if node in numbers:
        return [kind, numbers[node]]
    return [kind, node.nodeid, getattr(node, "location", None)]


class CollectedNode:
    """Stands for a collector or a test in a process that did not collect it."""

    def __init__(
        self, session: pytest.Session, nodeid: str, location: Sequence[Any] | None = None
    ) -> None:
        self.session = session
        self.config = session.config
        self.nodeid = nodeid
        # Newer versions of pytest know nodes by it.
        self.id = collection.node_id(nodeid)
        if location is not None:
            self.location = tuple(location)


def report_collection(
    session: pytest.Session,
    said: Collected,
    tests: Sequence[ListedTest],
    errors: Sequence[Mapping[str, Any]],
    deselected: Sequence[str],
) -> None:
    """Report to pytest and its plugins what another process has collected."""
    config = session.config
    serialize.show_text(config, {0: said["text"]}, 1)
    for values in said["warnings"]:
        RecordedWarning(*values).record_in(config)
    kinds: dict[str, type[CollectedNode]] = {}
    nodes: dict[str, CollectedNode] = {}

    def stand_in(kind: str, which: int | str, location: Sequence[Any] | None = None) -> Any:
        if kind not in kinds:
            kinds[kind] = type(kind, (CollectedNode,), {})
        if isinstance(which, int):
            test = tests[which]
            return kinds[kind](session, test.nodeid, test.location)
        nodes[which] = kinds[kind](session, which, location)
        return nodes[which]

    left = iter(errors)
    hooks = FolderHooks(config)
    for entry in said["collectors"]:
        if entry is None:
            report = serialize.unpack_any_report(dict(next(left)), config)
        else:
            nodeid, children = entry
            result = [stand_in(*child) for child in children]
            report = pytest.CollectReport(nodeid, "passed", None, result)
        path = config.rootpath / report.nodeid.split("::")[0]
        hooks.at(str(path)).pytest_collectreport(report=report)
    if deselected:
        left_out = [nodes.get(nodeid) or CollectedNode(session, nodeid) for nodeid in deselected]
        config.hook.pytest_deselected(items=left_out)
    interop.adopt_cache(config, said["cache"], tests)


def show_collection(config: pytest.Config, said: Collected, count: int) -> None:
    """Write the number of tests, and what hooks say about them."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if isinstance(terminal, TerminalReporter):
        terminal._numcollected = count
        terminal.report_collect(final=True)
        terminal._write_report_lines_from_hooks(said["lines"])


def show_notice(config: pytest.Config, text: str) -> None:
    """Write a line while the user waits."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if isinstance(terminal, TerminalReporter):
        terminal.ensure_newline()
        terminal.write_line(f"rankwise: {text}")
        terminal.flush()


_DURATIONS = "rankwise/durations"
_SHOWN_LOST = 20


class Reporter:
    """Reports the results of all ranks, as one process would."""

    def __init__(
        self,
        session: pytest.Session,
        tell: Callable[[Header], None],
        tests: Sequence[ReportedTest],
        *,
        size: int,
        rank: int | None,
        policy: str,
        is_fresh: bool = False,
    ) -> None:
        self._session = session
        self._config = session.config
        self._tell = tell
        self._tests = tests
        self._size = size
        self._rank = rank
        self._in_order = policy == "sequential"
        self._kept: dict[int, RankResult] = {}
        self._judged: set[int] = set()
        self._started: set[str] = set()
        self._gone: set[int] = set()
        self.lost: list[int] = []
        """Ranks that have ended unexpectedly."""
        self._durations: dict[str, float] = {}
        self._times: Timekeeper | None = self._config.pluginmanager.get_plugin("rankwise-timeline")
        if self._times is not None:
            self._times.know(width=size, order=policy, is_fresh=is_fresh)
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if not self._in_order and isinstance(terminal, TerminalReporter):
            # File names before the dots make sense only if tests are reported in their order.
            terminal.showfspath = False
        option = self._config.getoption
        self.maxfail: int = option("maxfail", 0) or 0
        self.careful = bool(self.maxfail or option("stepwise", False))
        """Whether the next test may start only when the verdict on this one is known."""
        # With -v, the name that is shown is that of the test that is running.
        self.strict = self.careful or self._config.get_verbosity() > 0

    # While tests run

    def starts(self, item: ReportedTest, ranks: Sequence[int]) -> None:
        """Announce a test on several ranks; one on this rank alone announces itself."""
        if self._in_order and len(ranks) > 1:
            self._announce(item)

    def keep(self, index: int, ranks: Sequence[int], result: RankResult) -> None:
        """Keep this rank's result of a test until those of the other ranks have come."""
        if len(ranks) > 1:
            self._kept[index] = result
        else:
            self._judged.add(index)
            self._remember(self._tests[index], result.reports)
            if self._times is not None:
                self._times.note(self._tests[index].nodeid, {ranks[0]: result})

    def take(self, header: Header, body: bytes) -> None:
        """Report what the dispatcher passes on.

        Raises KeyboardInterrupt or pytest's Exit when another rank's test did, WireError when a
        rank has left.
        """
        match header["kind"]:
            case "verdict":
                self._log_verdict(header, body)
            case "late":
                item = self._tests[header["case"]]
                self.log_late(item, serialize.unpack(body, item), header["rank"])
            case "stopped":
                self._session.shouldfail = self._session.shouldfail or header["fail"] or False
                self._session.shouldstop = self._session.shouldstop or header["stop"] or False
            case "interrupt":
                collection.raise_interrupt(collection.name_rank(header))
            case "gone":
                self._gone.add(header["rank"])
                self.lost += [header["rank"]] if header.get("lost") else []
                # Under mpirun a rank cannot be replaced, so the run is over.
                raise WireError(explain_gone(header))

    def _log_verdict(self, header: Header, body: bytes) -> None:
        index, ranks = header["case"], header["ranks"]
        self._judged.add(index)
        item = self._tests[index]
        own = self._kept.pop(index, None)
        parts = _cut(body, header["lengths"])
        others = [part for rank, part in zip(ranks, parts, strict=True) if rank != self._rank]
        if own is not None and self._times is None and self._is_uneventful(own, others):
            self._log_single(item, own)
        else:
            results = [
                own if own and rank == self._rank else serialize.unpack(part, item)
                for rank, part in zip(ranks, parts, strict=True)
            ]
            if self._times is not None:
                # There may be more of them: for threads of ranks, or to be idle meanwhile.
                slots: Sequence[int] = header.get("slots") or ranks
                each = {slot: n * len(results) // len(slots) for n, slot in enumerate(slots)}
                self._times.note(item.nodeid, {slot: results[n] for slot, n in each.items()})
            if len(results) == 1:
                self._log_single(item, results[0])
            else:
                # Warnings of this rank are known to pytest already.
                own_number = ranks.index(self._rank) if own else None
                self._log_merged(item, dict(enumerate(results)), own_number)
        if self._session.shouldfail or self._session.shouldstop:
            self._tell({"kind": "stop"})
        if self.careful:
            self._tell({"kind": "logged", "case": index})

    def _is_uneventful(self, own: RankResult, others: Sequence[bytes]) -> bool:
        """Return whether a test passed on all ranks with nothing else to report than its time.

        If so, the reports of this rank get the longest durations.
        """
        durations = [serialize.durations_if_uneventful(part) for part in others]
        if None in durations or not serialize.is_uneventful(own):
            return False
        for report, *seconds in zip(own.reports, *filter(None, durations), strict=True):
            report.duration = max(report.duration, *seconds)
        return True

    def _log_single(self, item: ReportedTest, result: RankResult) -> None:
        self._announce(item)
        self._warn([result])
        self.log_more(item, (*result.subtests, *result.reports))
        reruns = sum(str(report.outcome) == "rerun" for report in result.reports)
        interop.note_attempts(item, reruns + 1)
        self._finish(item, result.reports)

    def _log_merged(
        self, item: ReportedTest, results: Mapping[int, RankResult], own: int | None
    ) -> None:
        self._announce(item)
        filter_output(results, self._config.getoption("rank_output", "all"))
        others = [result for number, result in results.items() if number != own]
        self._warn(others, known=results[own].warnings if own is not None else ())
        for result in others:
            # Subtests that passed are counted for one rank only.
            self.log_more(item, [report for report in result.subtests if not report.passed])
        attempts = max(len(result.reruns) for result in results.values())
        interop.note_attempts(item, attempts + 1)
        for attempt in range(attempts):
            runs = {number: result.reruns[attempt] for number, result in results.items()}
            self._log_all(item, runs, rerun=attempt)
        reports = {number: result.reports for number, result in results.items()}
        self._finish(item, self._log_all(item, reports))

    def _log_all(
        self,
        item: ReportedTest,
        results: Mapping[int, Sequence[pytest.TestReport]],
        *,
        rerun: int | None = None,
    ) -> Sequence[pytest.TestReport]:
        """Report one attempt of all ranks of a test."""
        said: dict[str | None, dict[int, serialize.Beside]] = {}
        for number, reports in results.items():
            for report in reports:
                said.setdefault(report.when, {})[number] = serialize.detach(report)
        merged = merge_phases(results)
        hook = item.ihook
        for report in merged:
            if rerun is not None:
                report.rerun = rerun  # type: ignore[attr-defined]  # pytest-rerunfailures' own
                if report.failed:
                    report.outcome = "rerun"  # type: ignore[assignment]  # that plugin's outcome
            serialize.tell(self._config, report, said[report.when], len(results))
            hook.pytest_runtest_logreport(report=report)
        return merged

    def log_late(self, item: ReportedTest, result: RankResult, rank: int) -> None:
        """Report a fixture of a wider scope that was torn down after its last test was reported."""
        for report in result.reports:
            serialize.tell(self._config, report, {rank: serialize.detach(report)}, self._size)
            if not report.failed:
                continue
            merged = merge_phase({rank: report}, self._size) if self._size > 1 else report
            item.ihook.pytest_runtest_logreport(report=merged)

    def log_ended(
        self, index: int, reports: Sequence[pytest.TestReport], *, how: str, slots: Sequence[int]
    ) -> None:
        """Report a test that was ended: it crashed, or took too long."""
        item = self._tests[index]
        self._judged.add(index)
        self._announce(item)
        if self._times is not None:
            self._times.note_ended(item.nodeid, slots, how, reports)
        self.log_more(item, reports)
        self._finish(item, reports)

    def fail_session(self, reason: str) -> None:
        """Let the run fail for a reason that is not in a test; report files have the reason."""
        # pytest takes its exit code from this count.
        self._session.testsfailed += 1
        interop.add_error(self._config, reason)

    def end_session(self, reason: str, details: str = "") -> None:
        """End the run, which fails for this reason; report files have the reason."""
        self._session.shouldfail = self._session.shouldfail or reason
        interop.add_error(self._config, f"{reason}\n{details}" if details else reason)

    def log_more(self, item: ReportedTest, reports: Sequence[pytest.TestReport]) -> None:
        """Report what one rank says, or what is not part of the phases of a test."""
        hook = item.ihook
        for report in reports:
            if said := serialize.detach(report):
                serialize.tell(self._config, report, {0: said}, 1)
            hook.pytest_runtest_logreport(report=report)

    def _announce(self, item: ReportedTest) -> None:
        if item.nodeid not in self._started:
            self._started.add(item.nodeid)
            item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)

    def _finish(self, item: ReportedTest, reports: Sequence[pytest.TestReport]) -> None:
        self._started.discard(item.nodeid)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        self._remember(item, reports)

    def _remember(self, item: ReportedTest, reports: Sequence[pytest.TestReport]) -> None:
        self._durations[item.nodeid] = round(sum(report.duration for report in reports), 4)

    def _warn(self, results: Sequence[RankResult], known: Sequence[RecordedWarning] = ()) -> None:
        """Show warnings of other ranks that pytest does not know from this one."""
        for warning in serialize.merge_warnings(results):
            if warning not in known:
                warning.record_in(self._config)

    # After the last test

    def conclude(self) -> None:
        """Raise what pytest raises for a run that was stopped; else every test must have a verdict.

        A result that was lost must never look like success.
        """
        session = self._session
        lost = [one.nodeid for n, one in enumerate(self._tests) if n not in self._judged]
        if lost and not session.shouldfail and not session.shouldstop:
            number = f"{len(lost)} collected {'test has' if len(lost) == 1 else 'tests have'}"
            shown = ", ".join(lost[:_SHOWN_LOST]) + (", …" if len(lost) > _SHOWN_LOST else "")
            self.end_session(f"{number} no verdict; please report this: {shown}")
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)

    def known_durations(self) -> Mapping[str, float]:
        """Return how long tests took in earlier runs."""
        return {} if self._cache is None else self._cache.get(_DURATIONS, {})

    def save_durations(self) -> None:
        """Store how long tests took, for the scheduler of the next run."""
        if self._durations and self._cache is not None:
            self._cache.set(_DURATIONS, {**self.known_durations(), **self._durations})

    @property
    def _cache(self) -> Any:
        """The cache of pytest; None with -p no:cacheprovider."""
        return getattr(self._config, "cache", None)


def explain_gone(header: Header) -> str:
    """Return which rank is gone, and where it was."""
    return f"rank {header['rank']} left the run before it was over{header.get('where', '')}"


def _cut(body: bytes, lengths: Sequence[int]) -> list[bytes]:
    """Cut a body into the parts of the ranks."""
    ends = list(accumulate(lengths))
    return [body[end - length : end] for end, length in zip(ends, lengths, strict=True)]
