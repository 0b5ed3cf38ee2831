"""Run tests on one rank: setup, call and teardown in step with the other ranks of a test."""

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

from rankwise.pytest_plugin import interop, serialize, setup_state
from rankwise.pytest_plugin.collection import number_groups, without_rank
from rankwise.pytest_plugin.communicators import Communicators
from rankwise.pytest_plugin.connections import Channel, Header
from rankwise.pytest_plugin.output import PastCapture
from rankwise.pytest_plugin.rank_status import Hopeless, Phase, SetupState, StatusWriter
from rankwise.pytest_plugin.serialize import RankResult, RecordedWarning, pack
from rankwise.pytest_plugin.stacks import describe_ranks

if TYPE_CHECKING:
    from _pytest.nodes import Node

    from rankwise.pytest_plugin.reporter import Reporter

# Own references: a test may have replaced these functions, and they are called in its middle.
_getpid = os.getpid


class RankRunner:
    """Runs tests in this process and returns their results.

    It is registered as a plugin: it collects what pytest and its plugins report during a test.
    """

    def __init__(
        self, session: pytest.Session, communicators: Communicators, box: StatusWriter | None
    ) -> None:
        self._session = session
        self._box = box
        self._index = -1
        self._indices: dict[str, int] = {}
        self.on_failure: Callable[[int, RankResult | None], None] | None = None
        """Called at the first failure of a test on several ranks, before its teardown."""
        self.past_capture: PastCapture | None = None
        """Keeps what tests write to the terminal; None: this process shows it."""
        self.sources: list[Callable[[], serialize.Beside]] = []
        """Called after each phase for what travels beside the report."""
        self._has_failed_rank = False
        self._communicators = communicators
        self._fixtures = session._setupstate = setup_state.SetupTree()
        if session.config.getoption("leak_check", False):
            session.config.pluginmanager.register(
                setup_state.LeakCheck(communicators), "rankwise-leaks"
            )
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
        """Report fixtures of a wide scope as they are set up; hopeless ones fail at once."""
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
        """Run a test, and tear down those collectors that end with it.

        If this process is for this test `alone`, MPI.COMM_WORLD is left as it is. With `is_last`
        hooks learn that no other test follows on this rank. `keep` says that the same ranks expect
        to meet again.

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
            with self.past_capture or contextlib.nullcontext():
                # The protocol of pytest and its plugins, or ours below for several ranks.
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=nextitem)
                if result.reports:
                    self._attach_said(result.reports[-1])
            _fail_for_subtests(item, result)
            orderly = all(report.passed for report in result.reports)
        finally:
            self._running = self._fixtures.is_running = False
            # In any case: the next test must find the real MPI.COMM_WORLD.
            self._communicators.close(orderly=orderly)
        if self._box is not None:
            self._box.rest()
        return result

    def _some_next(self, item: pytest.Item) -> pytest.Item:
        """Return a test of the same collector: which one is really next is not known yet.

        With None, pytest would end every fixture; with the test itself, not even those of the test.
        """
        assert item.parent is not None
        if item.parent not in self._stand_ins:
            self._stand_ins[item.parent] = copy.copy(item)
        return self._stand_ins[item.parent]

    def _attach_said(self, report: pytest.TestReport) -> None:
        """Let a report carry what there is to say beside it since the last one."""
        serialize.attach(report, serialize.gather(self.sources))

    def close(self, nodes: Iterable[Node]) -> Iterator[tuple[pytest.Item, RankResult]]:
        """Tear down collectors that no further test uses, the inner ones first.

        Yield for each of them the last test that has used it, with a report if there was an error
        or something to show, which is reported for that test.
        """
        # The inner ones first: they may use fixtures of the outer ones.
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
        """Write down that this rank ends: a crash from now on follows the last test."""
        if self._box is not None and self._index >= 0:
            self._box.begin(self._index)
            self._box.enter("ending")

    def _tear_down(self, item: pytest.Item, node: Node) -> pytest.TestReport | None:
        """Tear a collector down; returns a report if that failed or wrote something."""
        inner = [other for other in self._fixtures.stack if node in other.listchain()]
        with self.past_capture or contextlib.nullcontext():
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
            # Made without plugins: those that count a test's reports have seen all of this one.
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
        """Run a test on several ranks; pytest and its plugins run those on one rank."""
        if not self._own_protocol:
            return None
        result = self._result
        closing = self._fixtures.closing
        for left in reversed(range(interop.attempts(item))):
            self._fixtures.closing = closing
            result.reports = self._attempt(item, nextitem, is_last=not left)
            # Every rank asks: an attempt is repeated by all ranks or by none.
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
        """Return whether all ranks repeat the test: one has failed, and none finds it hopeless."""
        failed = any(report.failed for report in (*reports, *self._result.subtests))
        useful = not failed or interop.is_worth_repeating(item)
        all_agree = self._communicators.all_agree
        return all_agree(useful) and not all_agree(not failed)

    def _attempt(
        self, item: pytest.Item, nextitem: pytest.Item | None, *, is_last: bool
    ) -> list[pytest.TestReport]:
        # As in pytest's `runtestprotocol`, but all ranks go from setup to call together: a fixture
        # that fails on one of them must not leave the others waiting in the test.
        has_request = hasattr(item, "_request")
        if has_request and not item._request:  # type: ignore[attr-defined]
            # The attempt before has used it up.
            item._initrequest()  # type: ignore[attr-defined]
        option = item.config.getoption
        try:
            setup = self._report(item, "setup")
            reports = [setup]
            self._tell_if_failed(reports)
            ready = setup.passed
            if not setup_state.has_plain_setup(item):
                ready = self._communicators.all_agree(ready)
            if ready and option("setupshow", False):
                show_test_item(item, add_space=not option("setuponly", False))
            if ready and not option("setuponly", False):
                reports.append(self._report(item, "call"))
                self._tell_if_failed(reports)
            if not is_last and self._agree_to_repeat(item, reports):
                # Fixtures of a wider scope stay for the next attempt.
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
        self._attach_said(report)
        return report

    def _tell_if_failed(self, reports: list[pytest.TestReport]) -> None:
        """Report at once that this rank leaves the test: others may be waiting for it."""
        if self.on_failure is None or self._has_failed_rank or reports[-1].passed:
            return
        result = RankResult(reports=reports)
        if result.failed or reports[-1].when == "call":
            self._has_failed_rank = True
            self.on_failure(self._index, result)

    # The innermost wrappers: they run before pytest reads what a phase has printed.

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
                setup_state.end_forked_child(item.nodeid)
            if self.stderr is not None and setup_state.has_aborted(self.stderr):
                setup_state.await_end()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not self._running:
            return
        if self._own_protocol or type(report) is not pytest.TestReport:
            if self._own_protocol:
                number, size = self._communicators.slot
                path, line, domain = report.location
                # Several ranks report the same subtest: its name says which.
                report.location = (path, line, f"{domain} ({describe_ranks([number], size)})")
            self._result.subtests.append(report)
        else:
            if report.when == "call" or not report.passed:
                # pytest shows nothing for the others; what is left is attached to the last one.
                self._attach_said(report)
            self._result.reports.append(report)

    @pytest.hookimpl
    def pytest_warning_recorded(self, warning_message: object, when: object, nodeid: str) -> None:
        if self._running:
            self._result.warnings.append(
                RecordedWarning.of(warning_message, when, nodeid)  # type: ignore[arg-type]
            )


def _make_late_report(item: pytest.Item, call: pytest.CallInfo[None]) -> pytest.TestReport:
    """Let plugins make a report for a test that is over."""
    # Afterwards pytest has removed `funcargs`, which plugins expect in this hook.
    with pytest.MonkeyPatch.context() as patch:
        if getattr(item, "funcargs", {}) is None:
            patch.setattr(item, "funcargs", {})
        report = item.ihook.pytest_runtest_makereport(item=item, call=call)
    assert isinstance(report, pytest.TestReport)
    return report


def _captured(item: pytest.Item) -> contextlib.AbstractContextManager[None]:
    """Capture output as pytest does in the phases of a test."""
    capture = item.config.pluginmanager.get_plugin("capturemanager")
    if not isinstance(capture, CaptureManager):
        return contextlib.nullcontext()
    return capture.item_capture("teardown", item)


def _fail_for_subtests(item: pytest.Item, result: RankResult) -> None:
    """Fail a test for its failed subtests: pytest does so only in the process that reports.

    The subtests of unittest fail their test by themselves.
    """
    failed = sum(report.failed for report in result.subtests)
    if not failed or isinstance(item, TestCaseFunction):
        return
    for report in result.reports:
        if report.when == "call" and report.passed:
            report.outcome = "failed"
            report.longrepr = f"contains {failed} failed subtest{'s' * (failed > 1)}"


class Loop:
    """Follows the dispatcher's orders on one rank; with a reporter, it also reports."""

    def __init__(
        self,
        session: pytest.Session,
        rank: RankRunner,
        channel: Channel,
        reporter: Reporter | None,
        *,
        at_once: bool = False,
    ) -> None:
        """With `at_once`, report each test before the next begins, in case this process dies."""
        self._session = session
        self._at_once = at_once
        self.rank = rank
        rank.on_failure = self.tell_of_failure
        self._channel = channel
        self._reporter = reporter
        self._items: Sequence[pytest.Item] = session.items
        self._nodes: Sequence[Node] = ()

    def tell_of_failure(self, index: int, result: RankResult | None) -> None:
        """Report a failure while other ranks still run the test; None: all ranks repeat it."""
        if result is None:
            self._channel.send({"kind": "repeats", "case": index})
            return
        text = "\n".join(report.longreprtext for report in result.reports if report.failed)
        header = {"kind": "rank_failed", "case": index, "text": text}
        self._channel.send(header, pack(result, self._session.config))

    def tell_of_fixture(self, key: str, words: str, state: SetupState) -> None:
        """Report that a fixture of a wide scope is being set up here, or how that has ended."""
        self._channel.send({"kind": "fixture", "key": key, "words": words, "state": state})

    def adopt(self, nodeids: Sequence[str]) -> None:
        """Bring the tests into the order of the reporter, by which it numbers them."""
        own = [item.nodeid for item in self._session.items]
        if sorted(own) != sorted(nodeids):
            own, nodeids = without_rank(own), without_rank(nodeids)
        waiting: dict[str, list[pytest.Item]] = {}
        for nodeid, item in zip(own, self._session.items, strict=True):
            waiting.setdefault(nodeid, []).append(item)
        # Ids may repeat: equal ones are taken in the order in which they were collected.
        self._items = [waiting[nodeid].pop(0) for nodeid in nodeids]
        # Plugins that look at the session see the same order.
        self._session.items[:] = self._items

    def run(self) -> None:
        """Follow orders until the run is over."""
        _, self._nodes = number_groups(self._items)
        while True:
            header, body = self._channel.receive()
            match header["kind"]:
                case "run":
                    self._run_batch(header)
                    # Such a process is for one test.
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

    def _run_batch(self, header: Header) -> None:
        cases, ranks = header["cases"], header["ranks"]
        is_fresh = header.get("world_kind") == "fresh"
        over = self._last_users(cases, header["close"])
        try:
            for index in cases:
                item = self._items[index]
                if self._reporter is not None and index == cases[0]:
                    # Before the others of this batch, the one before has to be reported.
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
        """Return the collectors that end with each test of a batch."""
        closing = {self._nodes[group] for group in groups}
        over = {}
        for index in reversed(cases):
            over[index] = closing.intersection(self._items[index].listchain()) if closing else set()
            closing -= over[index]
        return over

    def _send_done(self, index: int, ranks: Sequence[int], result: RankResult) -> bool:
        """Report the result of a test; returns whether this rank stops here."""
        why = self._why_stopped()
        leave = why is not None and len(ranks) == 1
        header = {"kind": "done", "case": index, "failed": result.failed}
        header["seconds"] = round(result.seconds, 6)
        if why is not None:
            header |= {"stop": True, "leave": leave, "why": why}
        body = b""
        if self._reporter is None:
            body = pack(result, self._session.config)
        else:
            self._reporter.keep(index, ranks, result)
        # No other rank waits for a test in the middle of a batch, unless it has failed.
        self._channel.put(header, body, at_once=self._at_once or result.failed or "stop" in header)
        return leave

    def _why_stopped(self) -> Header | None:
        """Return why a test or a hook wants this session to stop; None: none does."""
        fail, stop = self._session.shouldfail, self._session.shouldstop
        return {"fail": str(fail or ""), "stop": str(stop or "")} if fail or stop else None

    def _tell_if_stopped(self) -> None:
        why = self._why_stopped()
        if why is not None and self._reporter is None:
            self._channel.send({"kind": "stopped", **why})

    def _send_late(
        self, late: Iterable[tuple[pytest.Item, RankResult]], *, is_awaited: bool = False
    ) -> None:
        """Report fixtures that failed after the last test of their module or session.

        With `is_awaited`, send a message after each collector, which shows that this rank is alive.
        """
        for item, result in late:
            if not result.reports and not is_awaited:
                continue
            if self._reporter is not None:
                self._reporter.log_late(item, result, 0)
            else:
                header = {"kind": "late", "case": self._items.index(item)}
                self._channel.send(header, pack(result, self._session.config))
