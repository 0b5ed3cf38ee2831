"""What became of single tests, from JUnit files of several programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwise.checks.single_tests import read_tests
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
