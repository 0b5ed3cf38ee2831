"""Mistakes: their order, their number, and what is safe to repeat of what somebody wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwise.documents.written import MOST_SHOWN, Problem, Scalar, SourcePosition, as_error
from rankwise.wording import alternatives, clipped, nearest, printable_name, quoted


def test_mistakes_come_in_the_order_of_the_document_and_once_each() -> None:
    late, early = Problem(SourcePosition(10, 1), "late"), Problem(SourcePosition(2, 30), "early")
    first = Problem(SourcePosition(2, 4), "first")
    error = as_error("job.yaml", [late, early, first, late])
    assert str(error) == "job.yaml:2:4: first\njob.yaml:2:30: early\njob.yaml:10:1: late"


def test_more_mistakes_than_anybody_reads_are_counted() -> None:
    found = [Problem(SourcePosition(line, 1), "wrong") for line in range(1, MOST_SHOWN + 8)]
    lines = str(as_error("job.yaml", found)).split("\n")
    assert len(lines) == MOST_SHOWN + 1
    assert lines[-1] == "job.yaml: and 7 more mistakes"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("four", "'four'"),
        ("it's", "'it's'"),
        ("a\nb\x1b[31m", r"'a\nb\x1b[31m'"),
        ("x" * 100, f"'{'x' * 60}…'"),
        (Scalar.of("1.10", 1.1), "1.10"),
        (None, "empty"),
        ({}, "a mapping"),
        ([], "a list"),
        (True, "true"),
        (3, "3"),
    ],
)
def test_what_was_written_is_quoted_on_one_short_line(value: object, shown: str) -> None:
    assert quoted(value) == shown


def test_a_long_name_is_clipped() -> None:
    assert clipped("n" * 61) == "n" * 60 + "…"


@pytest.mark.parametrize(
    ("names", "phrase"),
    [([], ""), (["a"], "a"), (["a", "b"], "a or b"), (["a", "b", "c"], "a, b or c")],
)
def test_names_are_joined_into_a_phrase(names: list[str], phrase: str) -> None:
    assert alternatives(names) == phrase


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("instance_cout", "instance_count"),
        ("instanceCount", "instance_count"),
        ("Instance-Count", "instance_count"),
        ("targets", "target"),
        ("frobnicate", None),
        ("", None),
    ],
)
def test_the_nearest_name_is_found_whatever_its_spelling(name: str, meant: str | None) -> None:
    assert nearest(name, ["target", "instance_count"]) == meant


def test_a_file_name_is_shown_so_that_every_terminal_can_print_it() -> None:
    assert printable_name(Path("dir/jöb.yaml")) == "dir/jöb.yaml"
    assert printable_name(Path("a\nb\x1b.yaml")) == r"a\nb\x1b.yaml"
    assert printable_name(Path("bad\udcff.yaml")) == r"bad\udcff.yaml"
