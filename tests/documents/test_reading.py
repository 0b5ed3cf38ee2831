"""Reading YAML: files, positions, limits, scalars and syntax errors."""

from __future__ import annotations

import errno
import math
import os
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from rankwise.documents import yaml_reader
from rankwise.documents.written import Location, Scalar, SourcePosition, resolve
from rankwise.documents.yaml_reader import MOST_BYTES, DocumentSource, read_document, read_text
from rankwise.errors import InputError
from tests.documents.conftest import plain


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path("job.yaml")


def error_for(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        read_document(path)
    return str(caught.value)


def test_a_file_is_read_with_its_text_and_places(file: Path) -> None:
    file.write_text("a: 1\nb: ü\n", encoding="utf-8")
    reading = read_document(file)
    assert (reading.name, reading.text) == ("job.yaml", "a: 1\nb: ü\n")
    assert reading.contents == {"a": "1", "b": "ü"}
    assert reading.contents["a"].value == 1
    assert reading.contents.values_at["b"] == (2, 4)


def test_lines_may_end_as_on_windows(file: Path) -> None:
    file.write_bytes(b"a: 1\r\nb:\r\n  c: 2\r\n")
    assert read_document(file).contents["b"].keys_at["c"] == (3, 3)


def test_a_mark_of_utf8_is_passed_over(file: Path) -> None:
    file.write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert read_document(file).contents.keys_at["a"] == (1, 1)


def test_a_file_that_is_not_there(file: Path) -> None:
    assert error_for(file) == "job.yaml: there is no such file"
    assert error_for(Path("no/such/job.yaml")) == "no/such/job.yaml: there is no such file"


def test_a_folder(file: Path) -> None:
    file.mkdir()
    assert error_for(file) == "job.yaml: this is a folder; name the document in it"


def test_a_pipe_is_not_waited_for(file: Path) -> None:
    os.mkfifo(file)
    assert error_for(file) == "job.yaml: this is not a regular file"


def test_a_device_is_not_read() -> None:
    assert error_for(Path("/dev/zero")) == "/dev/zero: this is not a regular file"


def test_a_path_through_a_file(file: Path) -> None:
    file.write_text("a: 1")
    assert error_for(file / "x") == "job.yaml/x: cannot be read: Not a directory"


def test_a_file_that_must_not_be_read(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text("a: 1")

    def refuse(*arguments: object, **options: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    # Rights do not bind root, who may run this.
    monkeypatch.setattr(Path, "open", refuse)
    assert error_for(file) == "job.yaml: cannot be read: Permission denied"


@pytest.mark.parametrize("name", ["a\0b", "x" * 300])
def test_a_name_that_no_file_can_have(name: str) -> None:
    assert ": cannot be read: " in error_for(Path(name))


def test_a_file_that_is_too_large_is_not_parsed(file: Path) -> None:
    file.write_bytes(b"a: [" + b"\x00" * 10_000_000)
    assert error_for(file) == (
        "job.yaml: larger than 1000000 bytes, the most that a document may have; is it the right file?"
    )


def test_a_file_may_be_as_large_as_that(file: Path) -> None:
    text = "a: 1\n# "
    file.write_text(text + "x" * (MOST_BYTES - len(text)))
    assert read_document(file).contents == {"a": "1"}


def test_what_is_not_utf8_has_a_place(file: Path) -> None:
    file.write_bytes("a: 1\nü: caf".encode() + b"\xe9\n")
    assert error_for(file) == "job.yaml:2:7: the byte 0xe9 is not UTF-8; save the file as UTF-8"


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf16_is_named(file: Path, encoding: str) -> None:
    file.write_bytes("\ufeffa: 1\n".encode(encoding))
    assert error_for(file) == "job.yaml: the file is in UTF-16; save it as UTF-8"


@pytest.mark.parametrize(
    ("letter", "shown"),
    [("\0", r"'\x00'"), ("\x1b", r"'\x1b'"), ("\x7f", r"'\x7f'"), ("\ue000", r"'\ue000'"), ("\ue001", r"'\ue001'")],
)  # fmt: skip
def test_control_characters_have_a_place(file: Path, letter: str, shown: str) -> None:
    file.write_text(f"a: 1\nb: {letter}\n", encoding="utf-8")
    assert error_for(file) == (
        f"job.yaml:2:4: the character {shown} is not allowed; is this a text file?"
    )


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n", "---\n", "~\n", "--- null\n"])
def test_an_empty_document(file: Path, text: str) -> None:
    file.write_text(text)
    assert error_for(file) == (
        "job.yaml: the document is empty; `rankwise init` writes one to start from"
    )


@pytest.mark.parametrize(
    ("text", "what"),
    [("- a\n", "a list"), ("hello\n", "'hello'"), ("42\n", "42"), ("[]", "a list")],
)
def test_what_is_not_a_mapping(file: Path, text: str, what: str) -> None:
    file.write_text(text)
    assert error_for(file) == (
        f"job.yaml:1:1: a document is made of `name: value` lines, this is {what}; "
        "`rankwise init` writes one to start from"
    )


@pytest.mark.parametrize(("text", "line"), [("a: 1\n---\nb: 2\n", 2), ("a: 1\n...\nb: 2\n", 3)])
def test_several_documents(file: Path, text: str, line: int) -> None:
    file.write_text(text)
    assert error_for(file) == (
        f"job.yaml:{line}:1: a second document begins here; put each into a file of its own"
    )


def test_one_document_may_have_a_beginning_and_an_end(file: Path) -> None:
    file.write_text("%YAML 1.2\n---\na: 1\n...\n")
    assert read_document(file).contents == {"a": "1"}


def test_yaml_1_1_changes_nothing(file: Path) -> None:
    file.write_text("%YAML 1.1\n---\na: no\nb: 010\nc: 1:30\n")
    assert read_document(file).contents == {"a": "no", "b": "010", "c": "1:30"}


# Structure: keys, aliases, tags, limits


def read(text: str) -> Any:
    reading = read_text(text, "x")
    assert reading.problems == ()
    return plain(reading.contents)


def mistakes_in(text: str) -> list[str]:
    reading: DocumentSource = read_text(text, "x")
    return [f"{at.line}:{at.column}: {message}" for at, message in reading.problems]


def error_for_text(text: str) -> str:
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
    assert error_for_text("a: *.py") == (
        "x:1:4: there is no `&.py` above for the alias `*.py`; a text that begins with `*` needs quotes"
    )


@pytest.mark.parametrize("text", ["a: &a [*a]", "a: &a\n  b:\n    c: *a", "&a [*a]"])
def test_nothing_can_stand_within_itself(text: str) -> None:
    assert error_for_text(text).endswith(": `*a` stands within itself")


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
    assert error_for_text(text) == (
        "x:5:15: the document has more than 20000 values, aliases filled in; split it"
    )


def test_a_long_text_that_is_repeated_is_refused() -> None:
    text = f"a: &a {'x' * 100_000}\nb: [{', '.join(['*a'] * 30)}]\n"
    assert error_for_text(text) == (
        "x:2:77: the document has more than 2000000 characters, aliases filled in; split it"
    )


def test_too_many_values_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_reader, "MOST_VALUES", 7)
    assert read("a: [1, 2, 3]") == {"a": [1, 2, 3]}
    assert error_for_text("a: [1, 2, 3]\nb: 4") == (
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
    assert error_for_text(text) == f"x:{place}: the document is nested deeper than 40 levels"


def test_forty_levels_are_allowed() -> None:
    assert read("".join(f"{' ' * level}a:\n" for level in range(40)))


def test_mistakes_before_the_end_of_all_reading_are_told_too() -> None:
    assert error_for_text("a: 1\na: 2\nb: [\n").split("\n") == [
        "x:2:1: `a` stands twice; the first is in line 1",
        "x:4:1: a value is missing here",
    ]


# What is no YAML, in plain words

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
        ("a: [1, 2\nb: 1", "2:2", "expected `,` or `]` here: the bracket opened in line 1 is not closed"),
        ("a: {b: 1", "1:9", "expected `,` or `}` here: the bracket opened in line 1 is not closed"),
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


# What words without quotes stand for


@pytest.mark.parametrize("text", ["", "~", "null", "Null", "NULL"])
def test_nothing_is_nothing(text: str) -> None:
    assert resolve(text) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("True", True),
        ("FALSE", False),
        ("4", 4),
        ("-3", -3),
        ("+3", 3),
        ("010", 10),
        ("0o17", 15),
        ("0x1F", 31),
        ("1.10", 1.1),
        (".5", 0.5),
        ("1e3", 1000.0),
        ("-.inf", -math.inf),
    ],
)
def test_numbers_and_truth_values_keep_how_they_were_written(text: str, value: object) -> None:
    found = resolve(text)
    assert isinstance(found, Scalar)
    assert (found, found.value, type(found.value)) == (text, value, type(value))


def test_what_is_no_number_is_a_scalar_too() -> None:
    found = resolve(".nan")
    assert isinstance(found, Scalar)
    assert math.isnan(found.value)


@pytest.mark.parametrize(
    "text",
    [
        # Truth values and numbers of YAML 1.1, and a date.
        *("yes", "no", "on", "off", "y", "1:30", "1_000", "0b11", "2024-01-01"),
        *("tRUE", "nan", "inf", "1.2.3", "0x", "٣", "9" * 101),
    ],
)
def test_all_else_is_text(text: str) -> None:
    found = resolve(text)
    assert found == text
    assert type(found) is str


# Contents and their places

CONTENTS = read_text("a: 1\nb:\n  c: [x, {d: y}]\n  e:\n", "x").contents


@pytest.mark.parametrize(
    ("path", "name", "key_at", "value_at"),
    [
        ((), "", (1, 1), (1, 1)),
        (("a",), "a", (1, 1), (1, 4)),
        (("b",), "b", (2, 1), (3, 3)),
        (("b", "c"), "b.c", (3, 3), (3, 6)),
        (("b", "c", 0), "b.c[1]", (3, 7), (3, 7)),
        (("b", "c", 1, "d"), "b.c[2].d", (3, 11), (3, 14)),
        # What is empty has the place of its name.
        (("b", "e"), "b.e", (4, 3), (4, 3)),
        # Steps that the document does not have are passed over.
        (("b", "kind", "c"), "b.c", (3, 3), (3, 6)),
        (("a", "path"), "a", (1, 1), (1, 4)),
        (("b", "c", 7), "b.c", (3, 3), (3, 6)),
    ],
)
def test_a_path_leads_to_a_name_and_two_places(
    path: tuple[int | str, ...], name: str, key_at: SourcePosition, value_at: SourcePosition
) -> None:
    found = Location(CONTENTS, path)
    assert (found.name, found.key_at, found.value_at) == (name, key_at, value_at)


def test_a_copy_is_equal_but_shares_nothing() -> None:
    copy = deepcopy(CONTENTS)
    assert copy == CONTENTS
    assert copy is not CONTENTS
    assert copy["b"]["c"] is not CONTENTS["b"]["c"]
    assert Location(copy, ("b", "c", 1, "d")).value_at == (3, 14)
    number = deepcopy(resolve("0x10"))
    assert isinstance(number, Scalar)
    assert (str(number), number.value) == ("0x10", 16)
