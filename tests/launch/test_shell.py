from __future__ import annotations

import shlex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise.launch.shell import Edit, apply, in_short, read, remove, skip_prefixes

# What a shell's grammar is made of, so that the interesting lines are found soon.
LINES = st.text("ab$ '\"\\`(){}|&;<>\n#=-:{}", max_size=40) | st.text(max_size=40)


def words_of(line: str) -> list[list[str | None]]:
    parts = read(line)
    assert parts is not None
    return [[word.text for word in command.words] for command in parts.commands]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("python train.py", [["python", "train.py"]]),
        ("  a\tb ", [["a", "b"]]),
        ("a 'b c' \"d e\"", [["a", "b c", "d e"]]),
        (r"a\ b c\"d", [["a b", 'c"d']]),
        ("a \\\n b", [["a", "b"]]),
        ("a'b'\"c\"d", [["abcd"]]),
        (r'"a \"b\" \$c \n"', [['a "b" $c \\n']]),
        ("a ''", [["a", ""]]),
        ("a $B ${C} $(d e) `f g`", [["a", None, None, None, None]]),
        ('a "$B" "x${C}y"', [["a", None, None]]),
        ("a $(b \"c)\" '(' ) d", [["a", None, "d"]]),
        (
            "cd x && mpirun a | tee b; c & d",
            [["cd", "x"], ["mpirun", "a"], ["tee", "b"], ["c"], ["d"]],
        ),
        ("a > b 2>&1 < c d", [["a", "d"]]),
        ("a 2 > b", [["a", "2"]]),
        ("a # b 'c\nd", [["a"], ["d"]]),
        ("a#b", [["a#b"]]),
        ("(cd x; a)", [["cd", "x"], ["a"]]),
        ("a\nb\n", [["a"], ["b"]]),
        ("", []),
    ],
)
def test_a_line_is_taken_apart_as_the_shell_does(line: str, words: list[list[str | None]]) -> None:
    assert words_of(line) == words


@pytest.mark.parametrize(
    "line",
    [
        "a 'b",
        'a "b',
        "a $(b",
        "a ${b",
        "a `b",
        "a \\",
        "cat <<END\nx\nEND",
        "a <(b)",
        "a >",
        "a $'b'",
    ],
)
def test_what_is_beyond_the_reader_is_not_read(line: str) -> None:
    assert read(line) is None


def test_the_words_know_where_they_stand_and_how_they_are_written() -> None:
    line = "a 'b c' $D"
    parts = read(line)
    assert parts is not None
    words = parts.commands[0].words
    assert [line[word.start : word.end] for word in words] == ["a", "'b c'", "$D"]
    assert [word.raw for word in words] == ["a", "'b c'", "$D"]
    assert [word.is_plain for word in words] == [True, False, False]
    assert [word.may_split for word in words] == [False, False, True]


@pytest.mark.parametrize(
    ("line", "is_redirected", "is_compound"),
    [
        ("a b", False, False),
        ("a < b", False, False),
        ("a > b", True, False),
        ("a 2>> b", True, False),
        ("(a)", True, False),
        ("a && b", False, False),
        ("if a; then b; fi", False, True),
        ("for i in 1 2; do a; done", False, True),
        ("{ a; }", False, True),
    ],
)
def test_redirections_and_loops_are_seen(line: str, is_redirected: bool, is_compound: bool) -> None:
    parts = read(line)
    assert parts is not None
    assert (parts.is_redirected, parts.is_compound) == (is_redirected, is_compound)


def test_the_operator_after_a_command_is_kept() -> None:
    parts = read("a | b && c")
    assert parts is not None
    assert [command.after for command in parts.commands] == ["|", "&&", ""]


def test_deep_nesting_is_not_read_and_breaks_nothing() -> None:
    assert read("a " + "$(" * 5000 + ")" * 5000) is None
    assert read("a " + "(" * 5000) is not None


@settings(deadline=None)
@given(LINES)
def test_words_stand_where_they_say_in_any_line(line: str) -> None:
    parts = read(line)
    if parts is not None:
        for command in parts.commands:
            for word in command.words:
                assert line[word.start : word.end] == word.raw


@settings(deadline=None)
@given(st.lists(st.text("ab \t'\"\\$;|&><()`#*~", max_size=8), min_size=1, max_size=6))
def test_quoted_words_are_read_back(words: list[str]) -> None:
    assert words_of(shlex.join(words)) == [words]


def test_edits_change_nothing_but_their_places() -> None:
    line = "one two three"
    assert apply(line, []) == line
    assert apply(line, [Edit(4, 7, "2")]) == "one 2 three"
    assert apply(line, [Edit(8, 8, "x "), Edit(4, 4, "y ")]) == "one y two x three"
    assert apply(line, [remove(line, 4, 7)]) == "one three"
    assert apply(line, [Edit(4, 4, "a "), Edit(4, 4, "b ")]) == "one a b two three"


def test_an_edit_within_another_is_left_out() -> None:
    assert apply("one two three", [Edit(4, 7, "2"), Edit(0, 8)]) == "three"


def test_an_insertion_stands_before_what_is_taken_out() -> None:
    assert apply("one two", [Edit(4, 7), Edit(4, 4, "x")]) == "one x"


def test_pieces_are_shown_on_one_line_and_not_too_long() -> None:
    assert in_short("a \\\n  b\nc") == "a b c"
    assert in_short("x" * 100, most=10) == "x" * 9 + "…"


# prefixes


def first_program(line: str) -> str | None:
    parts = read(line)
    assert parts is not None
    words = parts.commands[0].words
    place = next(skip_prefixes(words), None)
    return None if place is None else words[place].raw


@pytest.mark.parametrize(
    "line",
    [
        "prog -x",
        "A=b C='d e' prog",
        "env A=b prog",
        "env -i -u C A=b prog",
        "/usr/bin/env prog",
        "exec prog",
        "exec -a name prog",
        "time -p prog",
        "nohup nice -n 5 prog",
        "timeout -k 5 -s TERM 60 prog",
        "timeout --signal=KILL 1h prog",
        "stdbuf -oL -e L prog",
        "env -- prog",
        "A=b env C=d exec prog",
    ],
)
def test_what_stands_before_a_program_is_skipped(line: str) -> None:
    assert first_program(line) == "prog"


def test_a_program_within_a_word_is_not_found() -> None:
    assert first_program('env -S "A=b prog"') is None


def test_nothing_is_found_where_there_is_nothing() -> None:
    assert first_program("A=b") is None
    assert first_program("timeout 5") is None


def test_any_word_after_an_environment_tool_may_be_the_program() -> None:
    parts = read("uv run --with x torchrun a")
    assert parts is not None
    words = parts.commands[0].words
    assert [words[place].raw for place in skip_prefixes(words)] == [
        "uv",
        "run",
        "x",
        "torchrun",
        "a",
    ]
