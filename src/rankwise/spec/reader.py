"""Read a YAML document: plain contents, and the place of each.

Whatever is in the file, the answer is a document or an `InputError`, and it comes soon: sizes are
limited before anything is parsed.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ruamel.yaml import YAML
from ruamel.yaml.events import Event

from rankwise.errors import InputError
from rankwise.spec.composer import Composer, Unreadable
from rankwise.spec.mistakes import Mistake, Position, as_error, printable_name, quoted
from rankwise.spec.syntax import explained
from rankwise.spec.written import Section

MOST_BYTES = 1_000_000

# What neither a person types nor YAML allows; the last two are marks of ours in plans.
_UNFIT = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue002-\ufffd\U00010000-\U0010ffff]")
_LINE_BREAK = re.compile("\r\n|[\r\n\x85\u2028\u2029]")
_OTHER_ENCODINGS = ((b"\xff\xfe", "UTF-16"), (b"\xfe\xff", "UTF-16"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A document as it was read."""

    name: str
    """The file, as messages call it."""
    text: str
    contents: Section
    mistakes: tuple[Mistake, ...] = ()
    """What is wrong already, though it can be read."""


def read_document(path: Path) -> Reading:
    """Read a file; raises InputError if it cannot be read as a YAML mapping."""
    name = printable_name(path)
    return read_text(_decoded(_bytes_of(path, name), name), name)


def read_text(text: str, name: str) -> Reading:
    """Read a text; raises InputError if it cannot be read as a YAML mapping."""
    if unfit := _UNFIT.search(text):
        at = _position_at_end(text[: unfit.start()])
        message = f"the character {unfit[0]!r} is not allowed; is this a text file?"
        raise as_error(name, [Mistake(at, message)])
    composer = Composer(_events(text))
    try:
        contents, at = composer.document()
    except Unreadable as reason:
        raise as_error(name, [*composer.mistakes, reason.mistake]) from None
    if contents is None:
        raise InputError(f"{name}: the document is empty; `rankwise init` writes one to start from")
    if not isinstance(contents, Section):
        message = (
            f"a document is made of `name: value` lines, this is {quoted(contents)}; "
            "`rankwise init` writes one to start from"
        )
        raise as_error(name, [*composer.mistakes, Mistake(at, message)])
    return Reading(name=name, text=text, contents=contents, mistakes=tuple(composer.mistakes))


def _bytes_of(path: Path, name: str) -> bytes:
    try:
        if path.is_dir():
            raise InputError(f"{name}: this is a folder; name the document in it")
        if path.exists() and not path.is_file():
            # A pipe or a device might never end, or never begin.
            raise InputError(f"{name}: this is not a regular file")
        with path.open("rb") as file:
            found = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        raise InputError(f"{name}: there is no such file") from None
    except (OSError, ValueError) as reason:
        why = getattr(reason, "strerror", None) or str(reason)
        raise InputError(f"{name}: cannot be read: {why}") from None
    if len(found) > MOST_BYTES:
        raise InputError(
            f"{name}: larger than {MOST_BYTES} bytes, the most that a document may have; "
            "is it the right file?"
        )
    return found


def _decoded(found: bytes, name: str) -> str:
    for mark, encoding in _OTHER_ENCODINGS:
        if found.startswith(mark):
            raise InputError(f"{name}: the file is in {encoding}; save it as UTF-8")
    found = found.removeprefix(b"\xef\xbb\xbf")
    try:
        return found.decode("utf-8")
    except UnicodeDecodeError as reason:
        at = _position_at_end(found[: reason.start].decode("utf-8"))
        message = f"the byte 0x{found[reason.start]:02x} is not UTF-8; save the file as UTF-8"
        raise as_error(name, [Mistake(at, message)]) from None


def _position_at_end(text: str) -> Position:
    lines = _LINE_BREAK.split(text)
    return Position(len(lines), len(lines[-1]) + 1)


def _events(text: str) -> Iterator[Event]:
    reached = Position(1, 1)
    try:
        for event in YAML(typ="safe", pure=True).parse(io.StringIO(text)):
            yield event
            reached = Position(event.end_mark.line + 1, event.end_mark.column + 1)
    except Exception as error:
        raise explained(error, _LINE_BREAK.split(text), reached) from None
