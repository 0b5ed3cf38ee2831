"""One rank's part in a test: setup, call and teardown, in step with its peers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import pytest
from _pytest.runner import call_and_report, show_test_item

from rankwise.testing.blackbox import BlackBox
from rankwise.testing.communicators import Communicators
from rankwise.testing.crew.plain_setup import has_plain_setup
from rankwise.testing.interop import rerunfailures
from rankwise.testing.naming import describe_ranks
from rankwise.testing.results import RankResult, RecordedWarning
from rankwise.testing.setup_tree import SetupTree

if TYPE_CHECKING:
    from _pytest.nodes import Node


class Rank:
    """Runs tests on this process as it is told, and says what came of them.

    It is registered as a plugin: what pytest and its plugins report while a test runs is harvested.
    """

    def __init__(
        self,
        session: pytest.Session,
        communicators: Communicators,
        box: BlackBox | None = None,
    ) -> None:
        self._session = session
        self._box = box
        self._index = -1
        self._indices: dict[str, int] = {}
        self.on_failure: Callable[[int, RankResult], None] | None = None
        """Told of the first failure of a test on several ranks, before its teardown."""
        self._has_stumbled = False
        self._communicators = communicators
        self._fixtures = session._setupstate = SetupTree()
        if session.config.getoption("leak_check", False):
            from rankwise.testing.leaks import LeakCheck

            session.config.pluginmanager.register(LeakCheck(communicators), "rankwise-leaks")
        self._result = RankResult()
        self._own_protocol = False
        self._stand_ins: dict[Node, pytest.Item] = {}
        self._last_user: dict[Node, pytest.Item] = {}
        self._running = False

    def run(
        self,
        item: pytest.Item,
        index: int,
        ranks: Sequence[int],
        closing: Iterable[Node],
        *,
        keep: bool,
        alone: bool = False,
    ) -> RankResult:
        """Run a test, and close those collectors that end with it.

        A test that is `alone` in its world may use all of MPI.COMM_WORLD.

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
        self._has_stumbled = False
        if self._box is not None:
            self._box.begin(index)
        self._running = True
        orderly = False
        try:
            self._communicators.open(ranks, wanted=wanted, keep=keep, alone=alone)
            nextitem = self._some_next(item)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=nextitem)
            _fail_for_subtests(result)
            orderly = all(report.passed for report in result.reports)
        finally:
            self._running = False
            self._communicators.close(orderly=orderly)
        if self._box is not None:
            self._box.rest()
        return result

    def _some_next(self, item: pytest.Item) -> pytest.Item:
        """Give a test of the same collector: which one is really next is not known yet.

        None would end every fixture, and the test itself would keep its own from ending.
        """
        assert item.parent is not None
        stand_in = self._stand_ins.get(item.parent)
        if stand_in is None:
            stand_in = self._stand_ins[item.parent] = copy.copy(item)
        return stand_in

    def close(self, nodes: Iterable[Node]) -> list[tuple[pytest.Item, RankResult]]:
        """Tear down collectors that no more tests will come for.

        Gives the errors, each with the last test that had used the collector.
        """
        results = []
        for node in sorted(nodes, key=lambda node: -len(node.listchain())):
            item = self._last_user.get(node)
            if item is not None and node in self._fixtures.stack:
                if self._box is not None:
                    self._box.begin(self._indices[item.nodeid])
                    self._box.enter("closing")
                report = self._tear_down(item, node)
                if report.failed:
                    results.append((item, RankResult(reports=[report])))
        if self._box is not None:
            self._box.rest()
        return results

    def close_all(self) -> list[tuple[pytest.Item, RankResult]]:
        """Tear down everything that is still set up."""
        return self.close([node for node in self._fixtures.stack if hasattr(node, "collect")])

    def _tear_down(self, item: pytest.Item, node: Node) -> pytest.TestReport:
        inner = [other for other in self._fixtures.stack if node in other.listchain()]
        call = pytest.CallInfo.from_call(lambda: self._fixtures.tear_down(inner), when="teardown")
        report = item.ihook.pytest_runtest_makereport(item=item, call=call)
        assert isinstance(report, pytest.TestReport)
        return report

    # Hooks

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item) -> bool | None:
        """Run a test on several ranks; tests on one rank are left to pytest and its plugins."""
        if not self._own_protocol:
            return None
        result = self._result
        closing = self._fixtures.closing
        for left in reversed(range(rerunfailures.attempts(item))):
            self._fixtures.closing = closing
            result.reports = self._attempt(item, nextitem, is_last=not left)
            if not left or not self._agree_to_repeat(item, result.reports):
                break
            _fail_for_subtests(result)
            result.reruns.append(result.reports)
            result.subtests.clear()
            rerunfailures.prepare_rerun(item, len(result.reruns))
            self._communicators.renew()
        return True

    def _agree_to_repeat(self, item: pytest.Item, reports: Sequence[pytest.TestReport]) -> bool:
        """If one rank runs the test again, all must; they don't if one finds it hopeless."""
        failed = any(report.failed for report in (*reports, *self._result.subtests))
        useful = not failed or rerunfailures.is_worth_repeating(item)
        all_agree = self._communicators.all_agree
        return all_agree(useful) and not all_agree(not failed)

    def _attempt(
        self, item: pytest.Item, nextitem: pytest.Item, *, is_last: bool
    ) -> list[pytest.TestReport]:
        # Mirrors what pytest does for one process; all ranks go from setup to call together, so
        # that a fixture that fails on one of them cannot leave the others waiting in the test.
        has_request = hasattr(item, "_request")
        if has_request and not item._request:  # type: ignore[attr-defined]
            # A rerun needs a new one.
            item._initrequest()  # type: ignore[attr-defined]
        option = item.config.getoption
        try:
            setup = call_and_report(item, "setup", log=False)
            reports = [setup]
            self._tell_if_failed(reports)
            ready = setup.passed
            if not has_plain_setup(item):
                ready = self._communicators.all_agree(ready)
            if ready and option("setupshow", False):
                show_test_item(item, add_space=not option("setuponly", False))
            if ready and not option("setuponly", False):
                reports.append(call_and_report(item, "call", log=False))
                self._tell_if_failed(reports)
            if not is_last and self._agree_to_repeat(item, reports):
                # The next attempt finds wider fixtures as this one has left them.
                self._fixtures.closing = set()
            reports.append(call_and_report(item, "teardown", log=False, nextitem=nextitem))
        finally:
            if has_request:
                item._request = False  # type: ignore[attr-defined]
                item.funcargs = None  # type: ignore[attr-defined]
        return reports

    def _tell_if_failed(self, reports: list[pytest.TestReport]) -> None:
        """Let it be known at once when this rank leaves the test: others may be waiting for it."""
        result = RankResult(reports=reports)
        left = result.failed or (reports[-1].when == "call" and not reports[-1].passed)
        if self.on_failure is not None and left and not self._has_stumbled:
            self._has_stumbled = True
            self.on_failure(self._index, result)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        if self._box is not None:
            self._box.enter("setup")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self) -> None:
        if self._box is not None:
            self._box.enter("call")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self) -> None:
        if self._box is not None:
            self._box.enter("teardown")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not self._running:
            return
        if self._own_protocol or type(report) is not pytest.TestReport:
            if self._own_protocol:
                number, size = self._communicators.seat
                path, line, domain = report.location
                report.location = (path, line, f"{domain} ({describe_ranks([number], size)})")
            self._result.subtests.append(report)
        else:
            self._result.reports.append(report)

    @pytest.hookimpl
    def pytest_warning_recorded(self, warning_message: object, when: object, nodeid: str) -> None:
        if self._running:
            self._result.warnings.append(
                RecordedWarning.of(warning_message, when, nodeid)  # type: ignore[arg-type]
            )


def _fail_for_subtests(result: RankResult) -> None:
    """Fail a test for its failed subtests, as pytest does only where it reports them."""
    failed = sum(report.failed for report in result.subtests)
    for report in result.reports:
        if failed and report.when == "call" and report.passed:
            report.outcome = "failed"
            report.longrepr = f"contains {failed} failed subtest{'s' * (failed > 1)}"
