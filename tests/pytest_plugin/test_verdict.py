"""Reports of several ranks, made by hand, and the one that comes of them."""

from __future__ import annotations

import io
import itertools
from collections.abc import Sequence
from typing import Any, Literal

import pytest
from _pytest._code.code import TerminalRepr
from _pytest._io import TerminalWriter
from hypothesis import given
from hypothesis import strategies as st

from rankwise.pytest_plugin.stacks import describe_ranks
from rankwise.pytest_plugin.verdict import RankedRepr, merge_phase, merge_phases

When = Literal["setup", "call", "teardown"]
Kind = Literal["passed", "failed", "skipped", "xfailed", "xpassed", "xpassed strict"]

KINDS: Sequence[Kind] = ("passed", "failed", "skipped", "xfailed", "xpassed", "xpassed strict")


def traceback(message: str) -> Any:
    try:
        raise AssertionError(message)
    except AssertionError:
        return pytest.ExceptionInfo.from_current().getrepr(style="long")


def report(
    kind: Kind = "passed",
    message: str = "wrong",
    *,
    when: When = "call",
    duration: float = 1.0,
    start: float = 0.0,
    **attributes: Any,
) -> pytest.TestReport:
    longrepr: Any = None
    match kind:
        case "failed" | "xfailed":
            longrepr = traceback(message)
        case "skipped":
            longrepr = ("/suite/test_it.py", 7, f"Skipped: {message}")
        case "xpassed strict":
            longrepr = f"[XPASS(strict)] {message}"
    outcomes: dict[Kind, Literal["passed", "failed", "skipped"]] = {
        "passed": "passed",
        "failed": "failed",
        "skipped": "skipped",
        "xfailed": "skipped",
        "xpassed": "passed",
        "xpassed strict": "failed",
    }
    made = pytest.TestReport(
        nodeid="test_it.py::test_it",
        location=("test_it.py", 7, "test_it"),
        keywords={"test_it": 1},
        outcome=outcomes[kind],
        longrepr=longrepr,
        when=when,
        duration=duration,
        start=start,
        stop=start + duration,
    )
    if kind in ("xfailed", "xpassed"):
        made.wasxfail = message
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def phase(*reports: pytest.TestReport) -> dict[int, pytest.TestReport]:
    return dict(enumerate(reports))


def kind_of(merged: pytest.TestReport) -> str:
    """Return what a terminal reporter would count."""
    if hasattr(merged, "wasxfail"):
        return "xfailed" if merged.skipped else "xpassed"
    return merged.outcome


def shown(longrepr: object) -> str:
    text = io.StringIO()
    assert isinstance(longrepr, TerminalRepr)
    longrepr.toterminal(TerminalWriter(text))
    return text.getvalue()


# Names of ranks


@pytest.mark.parametrize(
    ("ranks", "size", "expected"),
    [
        ([1], 2, "rank 1 of 2"),
        ([0, 1], 2, "all 2 ranks"),
        ([0, 1], 3, "ranks 0-1 of 3"),
        ([0, 1, 2, 5], 8, "ranks 0-2, 5 of 8"),
        ([6, 0, 4, 2], 8, "ranks 0, 2, 4, 6 of 8"),
        ([3, 2, 1], 4, "ranks 1-3 of 4"),
        (range(4), 4, "all 4 ranks"),
    ],
)
def test_ranks_are_named_as_people_do(ranks: Sequence[int], size: int, expected: str) -> None:
    assert describe_ranks(ranks, size) == expected


@given(st.sets(st.integers(0, 40), min_size=1), st.integers(41, 60))
def test_a_description_names_exactly_the_ranks_it_is_of(ranks: set[int], size: int) -> None:
    words = describe_ranks(ranks, size).removeprefix("ranks ").removeprefix("rank ")
    named: list[int] = []
    for part in words.removesuffix(f" of {size}").split(", "):
        first, _, last = part.partition("-")
        named += range(int(first), int(last or first) + 1)
    assert named == sorted(ranks)


# Which outcome wins


def expected_of(kinds: Sequence[Kind]) -> str:
    if "failed" in kinds:
        return "failed"
    if "xfailed" in kinds:
        return "xfailed"
    if "skipped" in kinds:
        return "skipped"
    if "xpassed strict" in kinds:
        return "failed"
    return kinds[0]


@pytest.mark.parametrize(
    "kinds",
    [
        kinds
        for kinds in itertools.product(KINDS, repeat=3)
        # A test that passes everywhere is expected to fail everywhere or nowhere.
        if set(kinds) != {"passed", "xpassed"}
    ],
    ids="-".join,
)
def test_the_worst_outcome_of_all_ranks_is_the_tests(kinds: Sequence[Kind]) -> None:
    merged = merge_phase(phase(*(report(kind) for kind in kinds)), 3)
    assert kind_of(merged) == expected_of(kinds)
    assert (merged.nodeid, merged.when) == ("test_it.py::test_it", "call")


def test_a_failure_as_expected_on_one_rank_is_enough_where_it_must_fail() -> None:
    """A strict mark asks for a failure; that one rank of two has none is no surprise."""
    merged = merge_phase(phase(report("xpassed strict"), report("xfailed", "known")), 2)
    assert kind_of(merged) == "xfailed"
    assert merged.wasxfail == "known (rank 1 of 2)"


def test_an_expected_failure_on_all_ranks_needs_no_ranks_in_its_reason() -> None:
    merged = merge_phase(phase(report("xfailed", "known"), report("xfailed", "known")), 2)
    assert merged.wasxfail == "known"


def test_an_unexpected_pass_everywhere_says_so_as_pytest_does() -> None:
    strict = report("xpassed strict", "should fail")
    assert merge_phase(phase(strict, strict), 2).longrepr == "[XPASS(strict)] should fail"


def test_a_skip_on_some_ranks_names_them() -> None:
    merged = merge_phase(phase(report(), report("skipped", "no GPU"), report()), 3)
    assert merged.longrepr == ("/suite/test_it.py", 7, "Skipped: no GPU (rank 1 of 3)")


def test_a_skip_on_all_ranks_keeps_its_reason() -> None:
    merged = merge_phase(phase(report("skipped", "no GPU"), report("skipped", "no GPU")), 2)
    assert merged.longrepr == ("/suite/test_it.py", 7, "Skipped: no GPU")


# What is shown


def test_equal_tracebacks_are_shown_once_under_their_ranks() -> None:
    merged = merge_phase(phase(*(report("failed", "same") for _ in range(3)), report()), 4)
    assert isinstance(merged.longrepr, RankedRepr)
    text = shown(merged.longrepr)
    assert "ranks 0-2 of 4" in text
    assert text.count("E           AssertionError: same") == 1


def test_different_tracebacks_follow_each_other_under_their_ranks() -> None:
    messages = ("one", "two", "one", "three")
    merged = merge_phase(phase(*(report("failed", message) for message in messages)), 4)
    text = shown(merged.longrepr)
    places = [
        text.index(part)
        for part in (
            *("ranks 0, 2 of 4", "AssertionError: one"),
            *("rank 1 of 4", "AssertionError: two"),
            *("rank 3 of 4", "AssertionError: three"),
        )
    ]
    assert places == sorted(places)


def test_tracebacks_that_differ_by_addresses_only_are_equal() -> None:
    messages = (f"<Thing at 0x{address:012x}> is wrong" for address in (0x7F01, 0xBEEF))
    merged = merge_phase(phase(*(report("failed", message) for message in messages)), 2)
    assert "all 2 ranks" in shown(merged.longrepr)


def test_ranks_that_passed_are_not_blamed() -> None:
    merged = merge_phase(phase(report(), report("failed"), report("skipped")), 3)
    text = shown(merged.longrepr)
    assert "rank 1 of 3" in text
    assert "rank 0" not in text
    assert "rank 2" not in text


def test_the_one_line_summary_names_the_ranks_and_the_first_error() -> None:
    merged = merge_phase(phase(report(), report("failed", "first"), report("failed", "second")), 3)
    assert isinstance(merged.longrepr, RankedRepr)
    assert merged.longrepr.reprcrash.message == "[rank 1 of 3] AssertionError: first"


def test_failures_without_a_traceback_are_labelled_too() -> None:
    reports = [report("failed"), report("failed"), report("failed")]
    for made, text in zip(reports, ("no luck", "no luck", "bad luck"), strict=True):
        made.longrepr = text
    merged = merge_phase(phase(*reports), 3)
    assert merged.longreprtext.splitlines() == [
        "[ranks 0-1 of 3] no luck",
        "[rank 2 of 3] bad luck",
    ]


def test_captured_output_is_labelled_by_rank_and_equal_output_shown_once() -> None:
    reports = [report(), report(), report("failed")]
    out, err = "Captured stdout call", "Captured stderr call"
    for made, sections in zip(
        reports, ([(out, "a"), (err, "e")], [(out, "a")], [(out, "b"), (err, "e")]), strict=True
    ):
        made.sections = sections
    assert merge_phase(phase(*reports), 3).sections == [
        (f"{out} (ranks 0-1 of 3)", "a"),
        (f"{out} (rank 2 of 3)", "b"),
        (f"{err} (ranks 0, 2 of 3)", "e"),
    ]


def test_output_of_a_test_that_passed_is_kept_as_well() -> None:
    reports = [report(), report()]
    reports[1].sections = [("Captured stdout call", "from rank 1")]
    merged = merge_phase(phase(*reports), 2)
    assert merged.passed
    assert merged.capstdout == "from rank 1"


# Numbers and what plugins add


@pytest.mark.parametrize("kind", ["passed", "failed"])
def test_a_test_takes_as_long_as_its_slowest_rank(kind: Kind) -> None:
    merged = merge_phase(phase(report(kind, duration=1.0), report(kind, duration=3.0)), 2)
    assert merged.duration == 3.0


def test_a_failed_test_lasts_from_its_first_start_to_its_last_end() -> None:
    merged = merge_phase(
        phase(report("failed", start=5.0, duration=1.0), report("failed", start=4.0)), 2
    )
    assert (merged.start, merged.stop) == (4.0, 6.0)


def test_properties_of_all_ranks_are_kept_and_equal_ones_once() -> None:
    reports = [report(), report(), report()]
    reports[0].user_properties = [("a", 1)]
    reports[1].user_properties = [("a", 1), ("b", [2])]
    reports[2].user_properties = [("b", [2])]
    assert merge_phase(phase(*reports), 3).user_properties == [("a", 1), ("b", [2])]


class _Vague:
    """Like an array of numpy: whether two are equal is not one answer."""

    def __eq__(self, other: object) -> Any:
        return _Vague()

    def __bool__(self) -> bool:
        raise ValueError("the truth value is ambiguous")

    __hash__ = object.__hash__


def test_properties_that_cannot_be_compared_are_kept() -> None:
    reports = [report(), report()]
    for made in reports:
        made.user_properties = [("array", _Vague())]
    assert merge_phase(phase(*reports), 2).user_properties[0] is reports[0].user_properties[0]


def test_what_other_plugins_put_on_the_deciding_report_stays_on_it() -> None:
    merged = merge_phase(phase(report(), report("failed", remark="from rank 1")), 2)
    assert merged.remark == "from rank 1"


# Phases


def full(call: Kind | None, *, setup: Kind = "passed", teardown: Kind = "passed") -> list[Any]:
    """The reports of one rank; without `call` it did not come to it."""
    middle = [report(call)] if call is not None else []
    return [report(setup, when="setup"), *middle, report(teardown, when="teardown")]


def merged_kinds(*ranks: list[Any]) -> list[tuple[str | None, str]]:
    merged = merge_phases(dict(enumerate(ranks)))
    return [(made.when, kind_of(made)) for made in merged]


def test_each_phase_has_one_report_in_order() -> None:
    assert merged_kinds(full("passed"), full("failed")) == [
        ("setup", "passed"),
        ("call", "failed"),
        ("teardown", "passed"),
    ]


def test_a_setup_that_failed_on_one_rank_leaves_no_call() -> None:
    assert merged_kinds(full(None, setup="failed"), full(None)) == [
        ("setup", "failed"),
        ("teardown", "passed"),
    ]


def test_a_teardown_that_failed_on_one_rank_is_an_error_after_a_pass() -> None:
    assert merged_kinds(full("passed"), full("passed", teardown="failed")) == [
        ("setup", "passed"),
        ("call", "passed"),
        ("teardown", "failed"),
    ]


def test_a_phase_that_only_some_ranks_came_to_is_labelled_with_the_size_of_the_test() -> None:
    merged = merge_phases({0: full(None, setup="skipped"), 1: full("failed")})
    call = next(made for made in merged if made.when == "call")
    assert "rank 1 of 2" in shown(call.longrepr)


def test_an_error_that_one_rank_reports_late_is_labelled_by_that_rank() -> None:
    merged = merge_phase({3: report("failed", when="teardown")}, 4)
    assert "rank 3 of 4" in shown(merged.longrepr)
