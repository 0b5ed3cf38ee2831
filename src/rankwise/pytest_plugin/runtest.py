"""Tests on one rank, as it is told: setup, call and teardown in step with the others."""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import pytest
from _pytest.capture import CaptureManager
from _pytest.runner import call_and_report, show_test_item
from _pytest.unittest import TestCaseFunction

from rankwise.pytest_plugin import interop, serialize
from rankwise.pytest_plugin.collection import number_groups, without_rank
from rankwise.pytest_plugin.communicators import Communicators
from rankwise.pytest_plugin.connections import Channel, Header
from rankwise.pytest_plugin.output import PastCapture
from rankwise.pytest_plugin.rank_status import Hopeless, Phase, SetupState, StatusWriter
from rankwise.pytest_plugin.serialize import RankResult, RecordedWarning, pack
from rankwise.pytest_plugin.setup_state import (
    SetupTree,
    await_end,
    end_forked_child,
    has_aborted,
    has_plain_setup,
)
from rankwise.pytest_plugin.stacks import describe_ranks

if TYPE_CHECKING:
    from _pytest.nodes import Node

    from rankwise.pytest_plugin.reporter import Reporter

# Own references: a test may have put something else in their place, and this runs in its middle.
_getpid = os.getpid


class RankRunner:
    """Runs tests on this process as it is told, and says what came of them.

    It is registered as a plugin: what pytest and its plugins report while a test runs is harvested.
    """

    def __init__(
        self,
        session: pytest.Session,
        communicators: Communicators,
        box: StatusWriter | None = None,
    ) -> None:
        self._session = session
        self._box = box
        self._index = -1
        self._indices: dict[str, int] = {}
        self.on_failure: Callable[[int, RankResult | None], None] | None = None
        """Told of the first failure of a test on several ranks, before its teardown."""
        self.past_capture: PastCapture | None = None
        """Keeps what tests write to the terminal; None: this process has one."""
        self.sources: list[Callable[[], serialize.Beside]] = []
        """Asked after each phase what there is to say beside the report."""
        self._has_failed_rank = False
        self._communicators = communicators
        self._fixtures = session._setupstate = SetupTree()
        if session.config.getoption("leak_check", False):
            from rankwise.pytest_plugin.setup_state import LeakCheck

            session.config.pluginmanager.register(LeakCheck(communicators), "rankwise-leaks")
        self._result = RankResult()
        self._own_protocol = False
        self._stand_ins: dict[Node, pytest.Item] = {}
        self._last_user: dict[Node, pytest.Item] = {}
        self._running = False
        self._pid = _getpid()
        self.stderr: int | None = None
        """The file that this rank's stderr is captured in."""

    def watch_fixtures(
        self, tell: Callable[[str, str, SetupState], None], hopeless: Mapping[str, Hopeless]
    ) -> None:
        """Report fixtures of a wide scope as they are set up; those that are hopeless fail."""
        self._fixtures.on_setup, self._fixtures.hopeless = tell, hopeless

    def run(
        self,
        item: pytest.Item,
        index: int,
        ranks: Sequence[int],
        closing: Iterable[Node],
        *,
        keep: bool,
        alone: bool = False,
        is_last: bool = False,
    ) -> RankResult:
        """Run a test, and close those collectors that end with it.

        If this process is for this test `alone`, MPI.COMM_WORLD is left as it is. After the `last`
        test no other will come to this rank, and hooks are told so.

        Raises KeyboardInterrupt and pytest's Exit when the test does.
        """
        result = self._result = RankResult()
        wanted = "comm" in getattr(item, "fixturenames", ())
        self._own_protocol = len(ranks) > 1
        self._fixtures.closing = set(closing)
        for node in item.listchain()[:-1]:
            self._last_user[node] = item
        self._index = index
        self._indices[item.nodeid] = index
        self._has_failed_rank = False
        if self._box is not None:
            self._box.begin(index)
        self._running = self._fixtures.is_running = True
        orderly = False
        try:
            self._communicators.open(ranks, wanted=wanted, keep=keep, alone=alone)
            nextitem = None if is_last else self._some_next(item)
            with self._listening():
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=nextitem)
                if result.reports:
                    serialize.attach(result.reports[-1], serialize.gather(self.sources))
            _fail_for_subtests(item, result)
            orderly = all(report.passed for report in result.reports)
        finally:
            self._running = self._fixtures.is_running = False
            self._communicators.close(orderly=orderly)
        if self._box is not None:
            self._box.rest()
        return result

    def _some_next(self, item: pytest.Item) -> pytest.Item:
        """Return a test of the same collector: which one is really next is not known yet.

        None would end every fixture, and the test itself would keep its own from ending.
        """
        assert item.parent is not None
        if item.parent not in self._stand_ins:
            self._stand_ins[item.parent] = copy.copy(item)
        return self._stand_ins[item.parent]

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        """Keep what is written to a terminal that this process does not have."""
        past = self.past_capture
        if past is None:
            yield
            return
        past.open()
        try:
            yield
        finally:
            past.close()

    def close(self, nodes: Iterable[Node]) -> Iterator[tuple[pytest.Item, RankResult]]:
        """Tear down collectors that no more tests will come for.

        After each of them, gives the error, or what there is to say beside it, with the last test
        that had used the collector.
        """
        for node in sorted(nodes, key=lambda node: -len(node.listchain())):
            item = self._last_user.get(node)
            if item is not None and node in self._fixtures.stack:
                if self._box is not None:
                    self._box.begin(self._indices[item.nodeid])
                    self._box.enter("closing")
                report = self._tear_down(item, node)
                yield item, RankResult(reports=[] if report is None else [report])
        if self._box is not None:
            self._box.rest()

    def close_all(self) -> Iterator[tuple[pytest.Item, RankResult]]:
        """Tear down everything that is still set up."""
        return self.close([node for node in self._fixtures.stack if hasattr(node, "collect")])

    def note_end(self) -> None:
        """Be on the way out from now on: what is yet to come follows the last test."""
        if self._box is not None and self._index >= 0:
            self._box.begin(self._index)
            self._box.enter("ending")

    def _tear_down(self, item: pytest.Item, node: Node) -> pytest.TestReport | None:
        """Tear a collector down; returns a report if that did not go well, or wrote something."""
        inner = [other for other in self._fixtures.stack if node in other.listchain()]
        with self._listening():
            with _captured(item):
                call = pytest.CallInfo.from_call(
                    lambda: self._fixtures.tear_down(inner),
                    when="teardown",
                    reraise=(pytest.exit.Exception, KeyboardInterrupt),
                )
            said = serialize.gather(self.sources)
        if call.excinfo is not None:
            report = _make_late_report(item, call)
        elif said:
            # Plugins that count a test's reports have seen all of this one: only trouble is news.
            report = pytest.TestReport.from_item_and_call(item, call)
        else:
            return None
        serialize.attach(report, said)
        return report

    # Hooks

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> bool | None:
        """Run a test on several ranks; tests on one rank are left to pytest and its plugins."""
        if not self._own_protocol:
            return None
        result = self._result
        closing = self._fixtures.closing
        for left in reversed(range(interop.attempts(item))):
            self._fixtures.closing = closing
            result.reports = self._attempt(item, nextitem, is_last=not left)
            if not left or not self._agree_to_repeat(item, result.reports):
                break
            _fail_for_subtests(item, result)
            result.reruns.append(result.reports)
            result.subtests.clear()
            if self.on_failure is not None and self._has_failed_rank:
                self._has_failed_rank = False
                self.on_failure(self._index, None)
            interop.prepare_rerun(item, len(result.reruns))
            self._communicators.renew()
        return True

    def _agree_to_repeat(self, item: pytest.Item, reports: Sequence[pytest.TestReport]) -> bool:
        """If one rank runs the test again, all must; they don't if one finds it hopeless."""
        failed = any(report.failed for report in (*reports, *self._result.subtests))
        useful = not failed or interop.is_worth_repeating(item)
        all_agree = self._communicators.all_agree
        return all_agree(useful) and not all_agree(not failed)

    def _attempt(
        self, item: pytest.Item, nextitem: pytest.Item | None, *, is_last: bool
    ) -> list[pytest.TestReport]:
        # Mirrors what pytest does for one process; all ranks go from setup to call together, so
        # that a fixture that fails on one of them cannot leave the others waiting in the test.
        has_request = hasattr(item, "_request")
        if has_request and not item._request:  # type: ignore[attr-defined]
            # A rerun needs a new one.
            item._initrequest()  # type: ignore[attr-defined]
        option = item.config.getoption
        try:
            setup = self._report(item, "setup")
            reports = [setup]
            self._tell_if_failed(reports)
            ready = setup.passed
            if not has_plain_setup(item):
                ready = self._communicators.all_agree(ready)
            if ready and option("setupshow", False):
                show_test_item(item, add_space=not option("setuponly", False))
            if ready and not option("setuponly", False):
                reports.append(self._report(item, "call"))
                self._tell_if_failed(reports)
            if not is_last and self._agree_to_repeat(item, reports):
                # The next attempt finds wider fixtures as this one has left them.
                self._fixtures.closing = set()
            reports.append(self._report(item, "teardown", nextitem=nextitem))
            self._tell_if_failed(reports)
        finally:
            if has_request:
                item._request = False  # type: ignore[attr-defined]
                item.funcargs = None  # type: ignore[attr-defined]
        return reports

    def _report(
        self, item: pytest.Item, when: Literal["setup", "call", "teardown"], **options: Any
    ) -> pytest.TestReport:
        report = call_and_report(item, when, log=False, **options)
        serialize.attach(report, serialize.gather(self.sources))
        return report

    def _tell_if_failed(self, reports: list[pytest.TestReport]) -> None:
        """Let it be known at once when this rank leaves the test: others may be waiting for it."""
        if self.on_failure is None or self._has_failed_rank or reports[-1].passed:
            # Of a phase before this one, it is known.
            return
        result = RankResult(reports=reports)
        if result.failed or reports[-1].when == "call":
            self._has_failed_rank = True
            self.on_failure(self._index, result)

    # The innermost wrappers: what a phase has printed has yet to be read by pytest.

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        return (yield from self._phase("setup", item))

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        return (yield from self._phase("call", item))

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        return (yield from self._phase("teardown", item))

    def _phase(self, phase: Phase, item: pytest.Item) -> Generator[None, object, object]:
        if self._box is not None:
            self._box.enter(phase)
        try:
            return (yield)
        finally:
            if _getpid() != self._pid:
                end_forked_child(item.nodeid)
            if self.stderr is not None and has_aborted(self.stderr):
                await_end()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not self._running:
            return
        if self._own_protocol or type(report) is not pytest.TestReport:
            if self._own_protocol:
                number, size = self._communicators.slot
                path, line, domain = report.location
                report.location = (path, line, f"{domain} ({describe_ranks([number], size)})")
            self._result.subtests.append(report)
        else:
            if report.when == "call" or not report.passed:
                # Others are not shown; what is left is on the last one.
                serialize.attach(report, serialize.gather(self.sources))
            self._result.reports.append(report)

    @pytest.hookimpl
    def pytest_warning_recorded(self, warning_message: object, when: object, nodeid: str) -> None:
        if self._running:
            self._result.warnings.append(
                RecordedWarning.of(warning_message, when, nodeid)  # type: ignore[arg-type]
            )


def _make_late_report(item: pytest.Item, call: pytest.CallInfo[None]) -> pytest.TestReport:
    """Have plugins make a report for a test that is over."""
    # pytest has taken this from the test; hooks look into it, as it is there when they are called.
    is_over = getattr(item, "funcargs", {}) is None
    if is_over:
        item.funcargs = {}  # type: ignore[attr-defined]
    try:
        report = item.ihook.pytest_runtest_makereport(item=item, call=call)
    finally:
        if is_over:
            item.funcargs = None  # type: ignore[attr-defined]
    assert isinstance(report, pytest.TestReport)
    return report


def _captured(item: pytest.Item) -> contextlib.AbstractContextManager[None]:
    """Capture output as pytest does in the phases of a test."""
    capture = item.config.pluginmanager.get_plugin("capturemanager")
    if not isinstance(capture, CaptureManager):
        return contextlib.nullcontext()
    return capture.item_capture("teardown", item)


def _fail_for_subtests(item: pytest.Item, result: RankResult) -> None:
    """Fail a test for its failed subtests, as pytest does only where it reports them.

    Those of unittest fail for themselves.
    """
    if isinstance(item, TestCaseFunction):
        return
    failed = sum(report.failed for report in result.subtests)
    for report in result.reports:
        if failed and report.when == "call" and report.passed:
            report.outcome = "failed"
            report.longrepr = f"contains {failed} failed subtest{'s' * (failed > 1)}"


class Loop:
    """Follows the coordinator's orders on one rank; with a reporter, it also reports."""

    def __init__(
        self,
        session: pytest.Session,
        rank: RankRunner,
        channel: Channel,
        reporter: Reporter | None,
        *,
        at_once: bool = False,
    ) -> None:
        self._session = session
        # Whether each test's end is told before the next one begins: then what was done stays done
        # if this process dies.
        self._at_once = at_once
        self.rank = rank
        rank.on_failure = self.tell_of_failure
        self._channel = channel
        self._reporter = reporter
        self._items: Sequence[pytest.Item] = session.items
        self._nodes: Sequence[Node] = ()

    def tell_of_failure(self, index: int, result: RankResult | None) -> None:
        """Say that a test has failed here, while others are still at it; None: they repeat it."""
        if result is None:
            self._channel.send({"kind": "repeats", "case": index})
            return
        text = "\n".join(report.longreprtext for report in result.reports if report.failed)
        header = {"kind": "rank_failed", "case": index, "text": text}
        self._channel.send(header, pack(result, self._session.config))

    def tell_of_fixture(self, key: str, words: str, state: SetupState) -> None:
        """Say that a fixture of a wide scope is being set up here, or how that has ended."""
        self._channel.send({"kind": "fixture", "key": key, "words": words, "state": state})

    def adopt(self, nodeids: Sequence[str]) -> None:
        """Number the tests as the reporter does, whatever order this rank has collected them in."""
        own = [item.nodeid for item in self._session.items]
        if sorted(own) != sorted(nodeids):
            own, nodeids = without_rank(own), without_rank(nodeids)
        waiting: dict[str, list[pytest.Item]] = {}
        for nodeid, item in zip(own, self._session.items, strict=True):
            waiting.setdefault(nodeid, []).append(item)
        self._items = [waiting[nodeid].pop(0) for nodeid in nodeids]
        self._session.items[:] = self._items

    def run(self) -> None:
        """Work until the coordinator says that the run is over."""
        _, self._nodes = number_groups(self._items)
        while True:
            header, body = self._channel.receive()
            match header["kind"]:
                case "run":
                    self._run_row(header)
                    if header.get("world_kind") == "fresh":
                        return
                case "close":
                    self._send_late(self.rank.close(self._nodes[g] for g in header["groups"]))
                    self._tell_if_stopped()
                case "finish":
                    self._send_late(self.rank.close_all(), is_awaited=True)
                    self._tell_if_stopped()
                    return
                case _:
                    assert self._reporter is not None, f"rank got {header['kind']!r}"
                    self._reporter.take(header, body)

    def _run_row(self, header: Header) -> None:
        cases, ranks = header["cases"], header["ranks"]
        is_fresh = header.get("world_kind") == "fresh"
        over = self._last_users(cases, header["close"])
        try:
            for index in cases:
                item = self._items[index]
                if self._reporter is not None and index == cases[0]:
                    # Of the others in a row, those before have yet to be reported.
                    self._reporter.starts(item, ranks)
                result = self.rank.run(
                    item,
                    index,
                    ranks,
                    item.listchain()[:-1] if is_fresh else over[index],
                    keep=header["keep"],
                    alone=is_fresh,
                    is_last=is_fresh or ("last" in header and index == cases[-1]),
                )
                if self._send_done(index, ranks, result):
                    return
        finally:
            self._channel.flush()

    def _last_users(self, cases: Sequence[int], groups: Sequence[int]) -> dict[int, set[Node]]:
        """Find the collectors that end with each test of a row."""
        closing = {self._nodes[group] for group in groups}
        over = {}
        for index in reversed(cases):
            over[index] = closing.intersection(self._items[index].listchain()) if closing else set()
            closing -= over[index]
        return over

    def _send_done(self, index: int, ranks: Sequence[int], result: RankResult) -> bool:
        """Say what came of a test; returns whether this rank stops here."""
        why = self._why_stopped()
        leave = why is not None and len(ranks) == 1
        header = {
            "kind": "done",
            "case": index,
            "failed": result.failed,
            "seconds": round(result.seconds, 6),
        }
        if why is not None:
            header |= {"stop": True, "leave": leave, "why": why}
        body = b""
        if self._reporter is None:
            body = pack(result, self._session.config)
        else:
            self._reporter.keep(index, ranks, result)
        # Nobody waits for a test in the middle of a row, unless it has failed.
        self._channel.put(header, body, at_once=self._at_once or result.failed or "stop" in header)
        return leave

    def _why_stopped(self) -> Header | None:
        """Return why a test or a hook wants this rank's session to stop; None: nothing does."""
        fail, stop = self._session.shouldfail, self._session.shouldstop
        return {"fail": str(fail or ""), "stop": str(stop or "")} if fail or stop else None

    def _tell_if_stopped(self) -> None:
        why = self._why_stopped()
        if why is not None and self._reporter is None:
            self._channel.send({"kind": "stopped", **why})

    def _send_late(
        self, late: Iterable[tuple[pytest.Item, RankResult]], *, is_awaited: bool = False
    ) -> None:
        """Report fixtures that failed when their module or session was over.

        Who is awaited says after each collector that it goes on, also without a failure.
        """
        for item, result in late:
            if not result.reports and not is_awaited:
                continue
            if self._reporter is not None:
                self._reporter.log_late(item, result, 0)
            else:
                header = {"kind": "late", "case": self._items.index(item)}
                self._channel.send(header, pack(result, self._session.config))
