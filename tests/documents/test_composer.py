"""Structure: keys, aliases, tags, limits."""

from __future__ import annotations

from typing import Any

import pytest

from rankwise.documents import yaml_reader
from rankwise.documents.yaml_reader import DocumentSource, read_text
from rankwise.errors import InputError
from tests.documents.conftest import plain


def read(text: str) -> Any:
    reading = read_text(text, "x")
    assert reading.problems == ()
    return plain(reading.contents)


def mistakes_in(text: str) -> list[str]:
    reading: DocumentSource = read_text(text, "x")
    return [f"{at.line}:{at.column}: {message}" for at, message in reading.problems]


def error_for(text: str) -> str:
    with pytest.raises(InputError) as caught:
        read_text(text, "x")
    return str(caught.value)


def test_merged_entries_keep_the_order_in_which_they_are_written() -> None:
    names = [f"stage{number}" for number in range(20)]
    entries = ", ".join(f"{name}: x" for name in names)
    contents = read_text(f"all: &all {{{entries}}}\nmore:\n  last: x\n  <<: *all\n", "x").contents
    assert [*contents["more"]] == ["last", *names]


def test_contents_are_plain() -> None:
    assert read("a: [1, yes, {b: null, 'c': '2'}]\nd: |\n  x\n  y\n") == {
        "a": [1, "yes", {"b": None, "c": "2"}],
        "d": "x\ny\n",
    }


def test_names_are_text_as_it_was_written() -> None:
    assert read("1: a\ntrue: b\n1.10: c\nnull: d\n") == {
        "1": "a", "true": "b", "1.10": "c", "null": "d"
    }  # fmt: skip


def test_a_name_that_stands_twice_is_a_mistake_with_the_place_of_the_first() -> None:
    assert mistakes_in("a: 1\nb: {c: 1, 'c': 2}\na: 3\n") == [
        "2:11: `c` stands twice; the first is in line 2",
        "3:1: `a` stands twice; the first is in line 1",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (": x", "1:1: a name is missing before the `:`; a text with `{`, `[` or `?` in front needs quotes"),
        ("'': x", "1:1: a name is missing before the `:`; a text with `{`, `[` or `?` in front needs quotes"),
        ("[a]: x", "1:1: a name must stand before the `:`, not a list or a mapping; a text with `{`, `[` or `?` in front needs quotes"),
        ("? {a: b}\n: x", "1:3: a name must stand before the `:`, not a list or a mapping; a text with `{`, `[` or `?` in front needs quotes"),
    ],
)  # fmt: skip
def test_what_is_no_name_is_a_mistake(text: str, message: str) -> None:
    assert mistakes_in(text) == [message]


def test_an_alias_repeats_what_has_the_anchor() -> None:
    assert read("a: &x {b: [1]}\nc: *x\n") == {"a": {"b": [1]}, "c": {"b": [1]}}


def test_an_alias_can_be_a_name() -> None:
    assert read("a: &x b\n*x : c\n") == {"a": "b", "b": "c"}


def test_the_same_anchor_may_be_set_again() -> None:
    assert read("a: &x 1\nb: *x\nc: &x 2\nd: *x\n") == {"a": 1, "b": 1, "c": 2, "d": 2}


def test_mappings_are_merged_and_what_is_written_goes_before() -> None:
    text = "one: &one {a: 1, b: 1}\ntwo: &two {b: 2, c: 2}\nall: {c: 3, <<: [*one, *two]}\n"
    assert read(text)["all"] == {"a": 1, "b": 1, "c": 3}


def test_what_was_merged_has_the_place_where_it_was_written() -> None:
    contents = read_text("one: &one\n  a: 1\ntwo:\n  <<: *one\n", "x").contents
    assert contents["two"].keys_at["a"] == (2, 3)


def test_a_name_in_quotes_does_not_merge() -> None:
    assert read("'<<': 1\n") == {"<<": 1}


def test_only_mappings_can_be_merged() -> None:
    message = "`<<` must name a mapping: write `<<: *NAME`, with `&NAME` at the mapping"
    assert mistakes_in("<<: 3\n") == [f"1:5: {message}"]
    assert mistakes_in("a: &a {b: 1}\n<<: [*a, 1]\n") == [f"2:5: {message}"]


def test_an_alias_without_an_anchor_may_be_a_text_without_quotes() -> None:
    assert error_for("a: *.py") == (
        "x:1:4: there is no `&.py` above for the alias `*.py`; a text that begins with `*` needs quotes"
    )


@pytest.mark.parametrize("text", ["a: &a [*a]", "a: &a\n  b:\n    c: *a", "&a [*a]"])
def test_nothing_can_stand_within_itself(text: str) -> None:
    assert error_for(text).endswith(": `*a` stands within itself")


@pytest.mark.parametrize(
    ("text", "contents"),
    [
        ("a: !!str 5", {"a": "5"}),
        ("a: ! 5", {"a": "5"}),
        ("a: !!int 5", {"a": 5}),
        ("a: !!float 5", {"a": 5}),
        ("a: !!bool true", {"a": True}),
        ("a: !!null ~", {"a": None}),
        ("!!map {a: !!seq [1]}", {"a": [1]}),
    ],
)
def test_a_tag_that_says_what_is_there_anyway_is_fine(text: str, contents: object) -> None:
    assert read(text) == contents


@pytest.mark.parametrize(
    ("text", "tag"),
    [
        ("a: !!python/object/apply:os.system [ls]", "!!python/object/apply:os.system"),
        ("a: !!python/name:os.system x", "!!python/name:os.system"),
        ("a: !mine 5", "!mine"),
        ("a: !!int five", "!!int"),
        ("a: !!int true", "!!int"),
        ("a: !!binary aGk=", "!!binary"),
        ("a: !!null 3", "!!null"),
        ("a: !!seq {b: c}", "!!seq"),
        ("a: !!set {b, c}", "!!set"),
        ("a: !!timestamp 2024-01-01", "!!timestamp"),
    ],
)
def test_every_other_tag_is_a_mistake(text: str, tag: str) -> None:
    assert mistakes_in(text) == [
        f"1:4: the tag `{tag}` means nothing here; leave it out, or put the text in quotes"
    ]


@pytest.mark.parametrize(
    ("escape", "shown"),
    [
        (r"\0", r"'\x00'"),
        (r"\ud800", r"'\ud800'"),
        (r"\ue000", r"'\ue000'"),
        (r"\ue001", r"'\ue001'"),
    ],
)
def test_characters_that_nothing_can_take_are_mistakes_even_if_escaped(
    escape: str, shown: str
) -> None:
    assert mistakes_in(f'a: "x{escape}"') == [
        f"1:4: the character {shown} cannot be passed on; leave it out"
    ]


def test_two_escapes_that_are_one_letter_in_json_are_one_here() -> None:
    assert read(r'{"\ud83d\ude00": "a\ud83d\ude00"}') == {"\U0001f600": "a\U0001f600"}


def test_a_colour_for_the_terminal_is_text() -> None:
    assert read(r'a: "\e[31m"') == {"a": "\x1b[31m"}


# Limits


def test_aliases_that_explode_are_refused_before_they_do() -> None:
    text = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 30)
    )
    assert error_for(text) == (
        "x:5:15: the document has more than 20000 values, aliases filled in; split it"
    )


def test_a_long_text_that_is_repeated_is_refused() -> None:
    text = f"a: &a {'x' * 100_000}\nb: [{', '.join(['*a'] * 30)}]\n"
    assert error_for(text) == (
        "x:2:77: the document has more than 2000000 characters, aliases filled in; split it"
    )


def test_too_many_values_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_reader, "MOST_VALUES", 7)
    assert read("a: [1, 2, 3]") == {"a": [1, 2, 3]}
    assert error_for("a: [1, 2, 3]\nb: 4") == (
        "x:2:4: the document has more than 7 values, aliases filled in; split it"
    )


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("[" * 2000, "1:41"),
        ("[\n" * 2000, "41:1"),
        ("{a: " * 2000, "1:161"),
        ("- " * 2000, "1:81"),
        ("? " * 2000, "1:81"),
        ("".join(f"{' ' * level}a:\n" for level in range(200)), "41:41"),
    ],
)
def test_deep_nesting_is_refused(text: str, place: str) -> None:
    assert error_for(text) == f"x:{place}: the document is nested deeper than 40 levels"


def test_forty_levels_are_allowed() -> None:
    assert read("".join(f"{' ' * level}a:\n" for level in range(40)))


def test_mistakes_before_the_end_of_all_reading_are_told_too() -> None:
    assert error_for("a: 1\na: 2\nb: [\n").split("\n") == [
        "x:2:1: `a` stands twice; the first is in line 1",
        "x:4:1: a value is missing here",
    ]
