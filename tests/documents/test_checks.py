"""Checks, as documents have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwise import plan
from rankwise.documents.suite import Suite
from tests.documents.conftest import complaints_about, parsed

SUITE = "type: Suite\ntests:\n- run: echo\n  checks:\n"


def planned(check: str) -> plan.Check:
    suite = parsed(f"{SUITE}  - {check}\n")
    assert isinstance(suite, Suite)
    (one,) = suite.tests[0].checks
    return one.planned(Path("/d"))


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("all is well", plan.Check(kind="contains", what="all is well")),
        ("12", plan.Check(kind="contains", what="12")),
        ("absent: Traceback", plan.Check(kind="absent", what="Traceback")),
        (
            r"{regex: 'rank (\d+)', count: 4, on: stdout, rank: all}",
            plan.Check(kind="regex", what=r"rank (\d+)", on="stdout", rank="all", least=4, most=4),
        ),
        ("{regex: a, count: '>= 2'}", plan.Check(kind="regex", what="a", least=2)),
        ("{regex: a, count: '> 2'}", plan.Check(kind="regex", what="a", least=3)),
        ("{regex: a, count: <= 2}", plan.Check(kind="regex", what="a", least=0, most=2)),
        ("{regex: a, count: <2}", plan.Check(kind="regex", what="a", least=0, most=1)),
        ("{contains: a, count: 1..3}", plan.Check(kind="contains", what="a", least=1, most=3)),
        ("{contains: a, rank: 0}", plan.Check(kind="contains", what="a", rank="0")),
        (
            "{json: $.loss, on: metrics.json, less_than: 0.5}",
            plan.Check(
                kind="json", what="$.loss", on="metrics.json", compare="less_than", value=0.5
            ),
        ),
        (
            "{json: $.ok, equals: true}",
            plan.Check(kind="json", what="$.ok", compare="equals", value=True),
        ),
        (
            "{json: $.n, equals: '4'}",
            plan.Check(kind="json", what="$.n", compare="equals", value="4"),
        ),
        (
            "{json: $.n, approx: 4, tolerance: 0.5}",
            plan.Check(kind="json", what="$.n", compare="approx", value=4.0, tolerance=0.5),
        ),
        ("exists: model.pt", plan.Check(kind="exists", what="model.pt")),
        ("exit_code: 3", plan.Check(kind="exit_code", codes=(3,))),
        ("exit_code: [0, 3]", plan.Check(kind="exit_code", codes=(0, 3))),
        (
            "{python: checks.py:small, timeout: 1m}",
            plan.Check(kind="python", what="/d/checks.py:small", seconds=60.0),
        ),
    ],
)
def test_a_check_means_what_it_says(written: str, meant: plan.Check) -> None:
    assert planned(written) == meant


@pytest.mark.parametrize(
    ("written", "meant"), [("4", 4), ("4.0", 4.0), ("'4'", "4"), ("true", True), ("yes", "yes")]
)
def test_a_value_stays_what_it_is(written: str, meant: str | float) -> None:
    found = planned(f"{{json: $.n, equals: {written}}}").value
    assert (found, type(found)) == (meant, type(meant))


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        ("contain: x", "5:5: unknown field `contain`: did you mean `contains`?"),
        ("{regx: x, count: 2}", "5:6: unknown field `regx`: did you mean `regex`?"),
        ("not_contains: x", "5:5: unknown field `not_contains`: did you mean `absent`?"),
        (
            "{count: 2}",
            (
                "5:5: a check needs one of `contains`, `absent`, `regex`, `json`, `exists`, "
                "`exit_code` or `python`"
            ),
        ),
        ("{contains: x, regex: y}", "5:19: a check has `contains` or `regex`, not both"),
        (
            "{exists: x, count: 2}",
            "5:17: `count` goes with `contains` or `regex`, not with `exists`",
        ),
        (
            "{absent: x, less_than: 2}",
            "5:17: `less_than` goes with `json`, not with `absent`",
        ),
        ("{json: $.a, tolerance: 2}", "5:17: `tolerance` goes with `approx`"),
        (
            "{json: $.a, equals: 2, approx: 3}",
            "5:28: a check has `equals` or `approx`, not both",
        ),
        (
            "regex: a(",
            (
                "5:12: `tests[1].checks[1].regex` is no regular expression of Python: "
                "missing ), unterminated subpattern at position 1"
            ),
        ),
        (
            "json: loss",
            (
                "5:11: `tests[1].checks[1].json` must begin with `$`, which is the whole, "
                "as in `$.loss`"
            ),
        ),
        (
            "{contains: x, count: many}",
            (
                "5:26: `tests[1].checks[1].count` must be a number, or such as `>= 2`, `< 5` or "
                "`1..3`, not 'many'"
            ),
        ),
        (
            "{contains: x, count: 3..1}",
            "5:26: `tests[1].checks[1].count` must go up, not down: '3..1'",
        ),
        (
            "{contains: x, rank: last}",
            "5:25: `tests[1].checks[1].rank` must be the number of a rank, or `all`, not 'last'",
        ),
        (
            "exit_code: 256",
            "5:16: `tests[1].checks[1].exit_code` must be at most 255, not 256",
        ),
        (
            "python: small",
            (
                "5:13: `tests[1].checks[1].python` must be FILE.py:FUNCTION, such as "
                "`checks.py:is_small`, not 'small'"
            ),
        ),
    ],
)
def test_a_check_that_is_wrong_is_told_so(written: str, complaint: str) -> None:
    assert complaints_about(f"{SUITE}  - {written}\n") == [complaint]
