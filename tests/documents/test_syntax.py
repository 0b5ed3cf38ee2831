"""What is no YAML, in plain words."""

from __future__ import annotations

import pytest

from rankwise.documents.yaml_reader import read_text
from rankwise.errors import InputError

TAB = "a tab; YAML is indented with spaces"
INNER_TAB = "a tab is not allowed here: use spaces, or put the text in quotes"
COLON = "this `:` is unexpected: check the indentation, or put the text in quotes"
MIXED = "a list and `name: value` lines are mixed here: check the indentation"
ESCAPE = r"this `\` means nothing in double quotes: write `\\`, or use single quotes"


def needs_quotes(letter: str) -> str:
    return f"a text that begins with {letter} needs quotes"


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("\ta: 1", "1:1", TAB),
        ("a:\n\tb: 1", "2:1", TAB),
        ("a:\n  b: 1\n  \tc: 2", "3:3", TAB),
        ("a:\tb", "1:3", INNER_TAB),
        ("a: x\ty", "1:5", INNER_TAB),
        ("a: b: c", "1:5", COLON),
        ("a: 1\n  b: 2", "2:4", COLON),
        ("a:\n  b: 1\n c: 2", "3:2", "this line is indented differently from those that it belongs to"),
        ("a: 'x' y", "1:8", "there is text after the end of a value: put the whole value in quotes"),
        ("- a\nb: 1", "2:1", MIXED),
        ("a: 1\n- b", "2:1", MIXED),
        ("a: - b", "1:4", "a list cannot begin here: put its first `-` on a line of its own"),
        ("a: 1\nb: 'x\nc: 1\n", "4:1", "the quote that was opened in line 2 is never closed"),
        ('a: "x\n---\n"', "2:1", "the quote that was opened in line 1 is never closed"),
        ("a: [1, 2\nb: 1", "2:2", "a `,` is missing here, or the `]` for what was opened in line 1"),
        ("a: {b: 1", "1:9", "a `,` is missing here, or the `}` for what was opened in line 1"),
        ("a: 1\nb\nc: 1", "3:1", "this line is neither `name: value` nor part of the text above: check the indentation"),
        (r'a: "\q"', "1:6", ESCAPE),
        (r'a: "\xZZ"', "1:7", ESCAPE),
        ("a: 1\nb: \"\\U00110000\"", "2:2", ESCAPE),
        ("a: @x", "1:4", needs_quotes("`@`")),
        ("a: %x", "1:4", needs_quotes("`%`")),
        ("a: `ls`", "1:4", needs_quotes("a backtick")),
        ("a: }", "1:4", needs_quotes("`}`")),
        ("a: , b", "1:4", needs_quotes("`,`")),
        ("a: & b", "1:5", needs_quotes("`&` or `*`")),
        ("a: !x!y z", "1:4", needs_quotes("`!`")),
        ("a: !<x", "1:7", needs_quotes("`!`")),
        ("a: |x\n  y", "1:5", "after `|` or `>` only `-`, `+` or a digit may follow: put the text on the lines below"),
        ("'a' b", "1:5", "there is something after the end of the document"),
        ("%YAML 3.0\n---\na: 1", "1:1", "this version of YAML is unknown: leave the `%YAML` line out"),
        ("a: [", "1:5", "a value is missing here"),
    ],
)  # fmt: skip
def test_what_is_no_yaml_is_explained_at_its_place(text: str, place: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        read_text(text, "job.yaml")
    assert str(caught.value) == f"job.yaml:{place}: {message}"


def test_a_tab_within_a_text_is_fine() -> None:
    contents = read_text('a: "x\ty"\nb: |\n  make:\n  \tcc x.c\n', "x").contents
    assert contents == {"a": "x\ty", "b": "make:\n\tcc x.c\n"}
