"""What became of single tests, from JUnit files of several programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwise.checks.judge import judge_tests, read_tests
from rankwise.plan import Process, Task
from rankwise.records import AttemptEnd
from rankwise.store import ResultRow, State


def read(folder: Path, text: str) -> list[ResultRow]:
    path = folder / "results.xml"
    path.write_text(text)
    return list(read_tests(path))


def test_states_names_times_and_messages_are_read(tmp_path: Path) -> None:
    text = """
    <testsuite>
      <testcase classname="a.b" name="one" time="1,234.5"><system-out>x</system-out></testcase>
      <testcase name="two" time="soon"><error message="boom&#10;more">trace
boom</error></testcase>
      <testcase classname="c" name="three"><skipped message="no GPU">where: no GPU</skipped></testcase>
      <testcase><failure>only text</failure></testcase>
    </testsuite>
    """
    assert read(tmp_path, text.strip()) == [
        ResultRow(name="a.b::one", state=State.PASSED, seconds=1234.5),
        ResultRow(name="two", state=State.FAILED, message="trace\nboom"),
        ResultRow(name="c::three", state=State.SKIPPED, message="no GPU"),
        ResultRow(name="unnamed", state=State.FAILED, message="only text"),
    ]


def test_a_message_is_kept_within_limits(tmp_path: Path) -> None:
    (one,) = read(tmp_path, f"<testcase><failure>{'x' * 10_000} end</failure></testcase>")
    assert len(one.message) == 4000
    assert one.message.endswith("x end")


@pytest.mark.parametrize(
    "text", ["", "not XML", "<a><b></a>", "<?xml version='1.0' encoding='odd'?><a/>"]
)
def test_what_is_no_xml_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match=r"results\.xml is no XML"):
        read(tmp_path, text)


def test_entities_that_grow_without_bounds_are_refused(tmp_path: Path) -> None:
    entities = "".join(f'<!ENTITY e{level} "{f"&e{level - 1};" * 10}">' for level in range(1, 12))
    text = f'<!DOCTYPE a [<!ENTITY e0 "lol">{entities}]><a>&e11;</a>'
    with pytest.raises(ValueError, match="is no XML"):
        read(tmp_path, text)


def test_a_test_that_was_begun_and_has_no_name_has_not_passed(tmp_path: Path) -> None:
    """This is what pytest.exit(returncode=0) in a test leaves."""
    text = '<testsuite><testcase name="one" time="0.1" /><testcase time="0.000" /></testsuite>'
    assert [one.state for one in read(tmp_path, text)] == [State.PASSED, State.FAILED]


@pytest.mark.parametrize("time", ["inf", "nan", "1e999", "-1"])
def test_a_time_that_is_none_is_zero(tmp_path: Path, time: str) -> None:
    (one,) = read(tmp_path, f'<testcase name="one" time="{time}" />')
    assert one.seconds == 0.0


def test_a_long_message_keeps_what_it_says_in_short(tmp_path: Path) -> None:
    source = "x = 1\n" * 2000
    text = f'<failure message="cell 3: ValueError: boom">{source}end</failure>'
    (one,) = read(tmp_path, f"<testcase>{text}</testcase>")
    assert len(one.message) <= 4000
    assert one.message.startswith("cell 3: ValueError: boom\n")
    assert one.message.endswith("end")


@pytest.mark.parametrize(
    ("tests", "reason"),
    [
        (
            (
                '<testcase classname="plots" name="cell 3: x = load()">'
                '<failure message="cell 3: ValueError: boom">cell 3: ValueError: boom\n\n1 x = load()</failure>'
                "</testcase>"
            ),
            "1 of 2 tests failed: plots: cell 3: ValueError: boom",
        ),
        (
            (
                '<testcase classname="t" name="b"><failure message="assert 1 == 2">'
                "def test_b():\n>   assert 1 == 2\nE   assert 1 == 2\nt.py:2: AssertionError</failure></testcase>"
            ),
            "1 of 2 tests failed: t::b: assert 1 == 2",
        ),
        ('<testcase name="b"><failure/></testcase>', "1 of 2 tests failed: b"),
        (
            "".join(f'<testcase name="t{n}"><error message="no{n}"/></testcase>' for n in range(5)),
            "5 of 6 tests failed: t0: no0, t1: no1, t2: no2 and 2 more",
        ),
    ],
)
def test_a_task_whose_tests_failed_says_what_was_wrong_with_them(
    tmp_path: Path, tests: str, reason: str
) -> None:
    (tmp_path / "results.xml").write_text(f'<testsuite><testcase name="good"/>{tests}</testsuite>')
    process = Process(name="worker-0", role="worker", command="true")
    task = Task(key="a", processes=(process,), results="results.xml")
    end, _ = judge_tests(task, tmp_path, AttemptEnd(outcome="failed", exit_code=1))
    assert end.reason == reason
