"""Files and their bytes."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from rankwise.documents.yaml_reader import MOST_BYTES, read_document
from rankwise.errors import InputError


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
