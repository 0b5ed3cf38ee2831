"""Results as bytes and back: nothing of what pytest shows may be lost on the way."""

from __future__ import annotations

import copy
import json
import math
import warnings
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwise.pytest_plugin.serialize import (
    RankResult,
    RecordedWarning,
    is_strict_xpass,
    merge_warnings,
    pack,
    pack_any_report,
    unpack,
    unpack_any_report,
)

EVERY_KIND = """
    import unittest
    import pytest

    @pytest.fixture
    def broken():
        raise RuntimeError("in setup")

    @pytest.fixture
    def broken_late():
        yield
        print("late words")
        raise RuntimeError("in teardown")

    def helper(value):
        raise ValueError(f"bad value {value!r}")

    def test_passes(): pass
    def test_prints(capfd):
        print("out"); import sys; print("err", file=sys.stderr)
    def test_speaks(): print("spoken é \\ud800".encode("utf-8", "replace").decode())
    def test_fails(): assert [1, 2] == [1, 3]
    def test_fails_with_output(): print("before"); assert False, "after"
    def test_raises_in_helper(): helper("x")
    def test_raises_from():
        try: helper(1)
        except ValueError as error: raise KeyError("k") from error
    def test_raises_group():
        raise ExceptionGroup("several", [ValueError("a"), TypeError("b")])
    def test_fails_without_traceback(): pytest.fail("only this", pytrace=False)
    def test_recurses(): test_recurses()
    def test_skips(): pytest.skip("in the body")
    @pytest.mark.skip(reason="by mark")
    def test_skipped(): pass
    def test_xfails(): pytest.xfail("in the body")
    @pytest.mark.xfail(reason="by mark")
    def test_xfailed(): assert 0
    @pytest.mark.xfail(reason="lenient")
    def test_xpassed(): pass
    @pytest.mark.xfail(reason="strict", strict=True)
    def test_xpassed_strictly(): pass
    def test_setup_error(broken): pass
    def test_teardown_error(broken_late): pass
    def test_properties(record_property): record_property("key", [1, {"a": None}])
    def test_raises_object_with_bad_repr():
        class Bad:
            def __repr__(self): raise RuntimeError("no repr")
        bad = Bad()
        assert not bad
    @pytest.mark.parametrize("value", ["a b;c", "é/\\\\x00"])
    def test_parameters(value): assert 0
    def test_subtests(subtests):
        with subtests.test("one"): assert 0
        with subtests.test("two", i=2): pass
    class TestUnit(unittest.TestCase):
        def test_unit(self): self.assertEqual(1, 2)
        @unittest.expectedFailure
        def test_expected(self): self.fail()
"""


class RoundTrip:
    """Sends each report through bytes as soon as it is made."""

    def __init__(self) -> None:
        self.pairs: list[tuple[pytest.TestReport, pytest.TestReport]] = []

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        data = pack(RankResult(reports=[report]), item.config)
        (restored,) = unpack(data, item).reports
        # Other plugins may go on changing it.
        self.pairs.append((copy.copy(report), restored))
        return report


@pytest.mark.parametrize("style", ["long", "short", "line", "native", "no"])
def test_every_kind_of_report_comes_back_as_it_was(pytester: pytest.Pytester, style: str) -> None:
    pytester.makepyfile(EVERY_KIND)
    trip = RoundTrip()
    pytester.inline_run(
        "-p", "no:randomly", "-p", "no:asyncio", f"--tb={style}", "--showlocals", plugins=[trip]
    )
    outcomes = {(report.when, report.outcome) for report, _ in trip.pairs}
    assert outcomes >= {
        *(("setup", outcome) for outcome in ("passed", "failed", "skipped")),
        *(("call", outcome) for outcome in ("passed", "failed", "skipped")),
        *(("teardown", outcome) for outcome in ("passed", "failed")),
    }
    for report, restored in trip.pairs:
        assert restored.longreprtext == report.longreprtext
        assert isinstance(restored.longrepr, tuple) == isinstance(report.longrepr, tuple)
        assert is_strict_xpass(restored) == is_strict_xpass(report)
        for name in (
            *("nodeid", "location", "keywords", "outcome", "when", "duration", "start", "stop"),
            *("sections", "user_properties", "caplog", "capstdout", "capstderr", "head_line"),
        ):
            assert getattr(restored, name) == getattr(report, name), name
        assert getattr(restored, "wasxfail", None) == getattr(report, "wasxfail", None)


def test_the_terminal_shows_a_restored_failure_as_the_original(pytester: pytest.Pytester) -> None:
    """The short summary reads the place of the crash, not the text."""
    pytester.makepyfile(EVERY_KIND)
    trip = RoundTrip()
    pytester.inline_run("-p", "no:randomly", "-p", "no:asyncio", plugins=[trip])
    failures = [(report, restored) for report, restored in trip.pairs if report.failed]
    crashes = 0
    for report, restored in failures:
        crash = getattr(report.longrepr, "reprcrash", None)
        if crash is not None:
            again = restored.longrepr.reprcrash  # type: ignore[union-attr]
            assert (again.path, again.lineno, again.message) == (
                *(crash.path, crash.lineno),
                crash.message,
            )
            crashes += 1
    assert crashes > 5


def test_what_a_plugin_adds_to_a_passed_report_comes_along(request: pytest.FixtureRequest) -> None:
    report = _report(request.node)
    report.extra_of_a_plugin = ["x"]  # type: ignore[attr-defined]
    assert _through_bytes(report, request.node).extra_of_a_plugin == ["x"]


def test_a_test_that_passed_and_wrote_nothing_is_a_few_bytes(
    request: pytest.FixtureRequest,
) -> None:
    reports = [_report(request.node, when=when) for when in ("setup", "call", "teardown")]
    data = pack(RankResult(reports=reports), request.config)
    assert len(data) < 100
    restored = unpack(data, request.node).reports
    assert [one.when for one in restored] == ["setup", "call", "teardown"]
    assert {(one.duration, one.start, one.stop) for one in restored} == {(0.25, 1.0, 1.25)}


def test_a_result_with_everything_comes_back_whole(request: pytest.FixtureRequest) -> None:
    node: pytest.Item = request.node
    warning = _warning(UserWarning("careful"))
    result = RankResult(
        reports=[_report(node, when="setup"), _report(node)],
        subtests=[_report(node, outcome="failed", longrepr="sub")],
        reruns=[[_report(node, outcome="failed", longrepr="first")], [_report(node)]],
        warnings=[warning],
    )
    restored = unpack(pack(result, request.config), node)
    assert [report.when for report in restored.reports] == ["setup", "call"]
    assert [report.longrepr for report in restored.subtests] == ["sub"]
    assert [[report.outcome for report in run] for run in restored.reruns] == [
        ["failed"],
        ["passed"],
    ]
    assert restored.warnings == [warning]


def test_an_empty_result_comes_back_empty(request: pytest.FixtureRequest) -> None:
    assert unpack(pack(RankResult(), request.config), request.node) == RankResult()


# Values that are hard to pack


def _report(item: pytest.Item, **changes: Any) -> pytest.TestReport:
    values: dict[str, Any] = {
        "nodeid": item.nodeid,
        "location": item.location,
        "keywords": {},
        "outcome": "passed",
        "longrepr": None,
        "when": "call",
        "duration": 0.25,
        "start": 1.0,
        "stop": 1.25,
    }
    return pytest.TestReport(**{**values, **changes})


def _through_bytes(report: pytest.TestReport, item: pytest.Item) -> Any:
    (restored,) = unpack(pack(RankResult(reports=[report]), item.config), item).reports
    return restored


class _Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


_CIRCLE: list[Any] = []
_CIRCLE.append(_CIRCLE)

_DEEP: list[Any] = []
for _ in range(5000):
    _DEEP = [_DEEP]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (float("inf"), float("inf")),
        ("\ud800 lone", "\ud800 lone"),
        ("\x00\x1b[31m", "\x00\x1b[31m"),
        (2**200, 2**200),
        ((1, 2), [1, 2]),
        ({"a": (1,)}, {"a": [1]}),
        (Path("/a/b"), repr(Path("/a/b"))),
        (b"\xff", "b'\\xff'"),
        (1 + 2j, "(1+2j)"),
        (
            {
                1,
            },
            "{1}",
        ),
        (ValueError, "<class 'ValueError'>"),
    ],
    ids=repr,
)
def test_properties_come_back_as_json_has_them_or_as_text(
    request: pytest.FixtureRequest, value: object, expected: object
) -> None:
    report = _report(request.node, user_properties=[("value", value)])
    assert _through_bytes(report, request.node).user_properties == [("value", expected)]


@pytest.mark.parametrize(
    "value",
    [
        {(1, 2): "tuple as key"},
        {None: 1, 2: 3, "deep": {b"bytes": 1}},
        _CIRCLE,
        _DEEP,
        _Unshowable(),
        [_Unshowable(), 1],
        10**5000,
        {"nested": {_Unshowable(): 1}},
    ],
    ids=["tuple key", "odd keys", "circle", "deep", "unshowable", "inside", "huge", "odd key"],
)
def test_a_property_that_cannot_travel_costs_neither_the_report_nor_other_properties(
    request: pytest.FixtureRequest, value: object
) -> None:
    report = _report(
        request.node,
        outcome="failed",
        longrepr="the error",
        user_properties=[("fine", 1), ("strange", value), ("also fine", [2])],
    )
    restored = _through_bytes(report, request.node)
    assert (restored.outcome, restored.longrepr) == ("failed", "the error")
    assert restored.user_properties[0] == ("fine", 1)
    assert [name for name, _ in restored.user_properties] == ["fine", "strange", "also fine"]


def test_not_a_number_comes_back_as_such(request: pytest.FixtureRequest) -> None:
    report = _report(request.node, user_properties=[("value", math.nan)])
    ((_, value),) = _through_bytes(report, request.node).user_properties
    assert math.isnan(value)


def test_megabytes_of_output_come_back(request: pytest.FixtureRequest) -> None:
    text = "x" * 5_000_000
    report = _report(request.node, sections=[("Captured stdout call", text)])
    assert _through_bytes(report, request.node).capstdout == text


@given(
    st.lists(st.tuples(st.text(), st.text()), max_size=3),
    st.floats(0, 1e9),
    st.text(),
    st.sampled_from(("setup", "call", "teardown")),
)
def test_any_text_and_any_number_of_a_report_come_back(
    request: pytest.FixtureRequest,
    sections: list[tuple[str, str]],
    duration: float,
    message: str,
    when: str,
) -> None:
    report = _report(
        request.node,
        outcome="failed",
        longrepr=message,
        sections=sections,
        duration=duration,
        when=when,
    )
    restored = _through_bytes(report, request.node)
    assert (restored.sections, restored.longrepr) == (sections, message)
    assert (restored.duration, restored.when) == (duration, when)


def test_the_bytes_are_json_without_what_is_empty(request: pytest.FixtureRequest) -> None:
    data = pack(RankResult(reports=[_report(request.node)]), request.config)
    (report,) = json.loads(data).pop("reports")
    assert list(json.loads(data)) == ["reports"]
    assert (report["when"], report["duration"]) == ("call", 0.25)


# Collection


def test_an_error_of_the_collection_comes_back(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import nothing_of_this_name")
    record = pytester.inline_run("-p", "no:randomly", "-p", "no:asyncio")
    failed = [r for r in record.getreports("pytest_collectreport") if r.failed]
    (report,) = failed
    config = pytester.parseconfig()
    data = json.loads(json.dumps(pack_any_report(report, config)))
    restored = unpack_any_report(data, config)
    assert isinstance(restored, pytest.CollectReport)
    assert "nothing_of_this_name" in restored.longreprtext
    assert restored.longreprtext == report.longreprtext


# Warnings


class SuitesOwnWarning(DeprecationWarning):
    """A category that only the suite knows."""


def _warning(message: Warning, line: int = 3) -> RecordedWarning:
    recorded = warnings.WarningMessage(message, type(message), "/suite/test_it.py", line)
    return RecordedWarning.of(recorded, "runtest", "test_it.py::test_it")


@pytest.mark.parametrize(
    "category",
    [
        UserWarning,
        DeprecationWarning,
        RuntimeWarning,
        ResourceWarning,
        pytest.PytestWarning,
        pytest.PytestUnraisableExceptionWarning,
    ],
)
def test_a_warning_that_everybody_knows_is_the_same_again(category: type[Warning]) -> None:
    restored = _warning(category("careful")).restore()
    assert restored.category is category
    assert type(restored.message) is category
    assert (str(restored.message), restored.filename, restored.lineno) == (
        *("careful", "/suite/test_it.py"),
        3,
    )


def test_a_warning_of_the_suites_own_is_shown_by_its_name() -> None:
    restored = _warning(SuitesOwnWarning("careful")).restore()
    assert issubclass(restored.category, Warning)
    shown = warnings.formatwarning(
        str(restored.message), restored.category, restored.filename, restored.lineno, ""
    )
    assert "SuitesOwnWarning: careful" in shown


@pytest.mark.parametrize("name", ["print", "Exception", "fail", "Item", "object"])
def test_a_category_with_the_name_of_something_else_is_still_a_warning(name: str) -> None:
    category = type(name, (UserWarning,), {})
    restored = _warning(category("careful")).restore()
    assert issubclass(restored.category, Warning)
    assert restored.category.__name__ == name


def test_a_warning_that_several_ranks_had_is_given_once() -> None:
    same, other = _warning(UserWarning("a")), _warning(UserWarning("a"), line=9)
    results = [
        RankResult(warnings=[same, other]),
        RankResult(warnings=[_warning(UserWarning("a"))]),
    ]
    assert merge_warnings(results) == [same, other]


# Judgement


def test_a_result_has_failed_if_any_phase_or_subtest_has(request: pytest.FixtureRequest) -> None:
    node: pytest.Item = request.node
    fine, bad = _report(node), _report(node, outcome="failed", longrepr="x")
    assert not RankResult(reports=[fine]).failed
    assert RankResult(reports=[fine, bad]).failed
    assert RankResult(reports=[fine], subtests=[bad]).failed


def test_an_unexpected_pass_is_no_failure_of_this_rank_alone(
    request: pytest.FixtureRequest,
) -> None:
    too_good = _report(request.node, outcome="failed", longrepr="[XPASS(strict)] reason")
    assert is_strict_xpass(too_good)
    assert not RankResult(reports=[too_good]).failed


def test_a_result_takes_as_long_as_its_phases_together(request: pytest.FixtureRequest) -> None:
    node: pytest.Item = request.node
    assert RankResult(reports=[_report(node), _report(node)]).seconds == 0.5
