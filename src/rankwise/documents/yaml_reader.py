"""Read YAML with positions and limits, and explain syntax errors."""

from __future__ import annotations

import copy
import io
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ruamel.yaml import YAML, events
from ruamel.yaml.error import MarkedYAMLError

from rankwise.documents import written
from rankwise.documents.written import LocatedList, LocatedMapping, Problem, SourcePosition
from rankwise.errors import InputError
from rankwise.wording import clipped, code, printable_name, quoted

# A document that a person writes has some hundred values, three to five levels deep.
MOST_VALUES = 20_000
MOST_CHARACTERS = 2_000_000
DEEPEST = 40

# An escape can bring in what the text itself must not have: the system takes no NUL in arguments,
# files take no half of a surrogate pair, and plans have marks of their own.
_UNFIT_IN_VALUES = re.compile("[\0\ud800-\udfff\ue000\ue001]")
_STANDARD_TAG = "tag:yaml.org,2002:"
# A file of data, which is read only when there is an error to explain.
_MEANINGS = Path(__file__).with_name("yaml_errors.toml")
_NUMBERS_BEGIN = frozenset("+-.0123456789")
_NO_TEXTS = frozenset({"", "~", "null", "true", "false"})
_KIND_OF_TAG = {"bool": (bool,), "int": (int,), "float": (int, float)}


class Unreadable(Exception):
    """A problem after which the rest of a document means nothing."""

    def __init__(self, position: SourcePosition, message: str) -> None:
        super().__init__(message)
        self.problem = Problem(position, message)


class _Anchored(NamedTuple):
    value: Any
    values: int
    characters: int


class Composer:
    """Makes one document of events; `problems` are errors after which it could go on."""

    def __init__(self, events: Iterator[events.Event]) -> None:
        self.problems: list[Problem] = []
        self._events = events
        self._anchors: dict[str, _Anchored | None] = {}
        self._depth = self._values = self._characters = 0

    def document(self) -> tuple[Any, SourcePosition]:
        """Return the only document of the stream, or None, and its place."""
        next(self._events)
        event = next(self._events)
        if isinstance(event, events.StreamEndEvent):
            return None, SourcePosition(1, 1)
        first = next(self._events)
        root = self._node(first)
        # The end of the document, and what comes after it.
        next(self._events)
        extra = next(self._events)
        if isinstance(extra, events.DocumentStartEvent):
            why = "a second document begins here; put each into a file of its own"
            raise Unreadable(_start(extra), why)
        return root, _start(first)

    def _node(self, event: events.Event) -> Any:
        if isinstance(event, events.AliasEvent):
            return self._alias(event)
        assert isinstance(event, events.NodeEvent)
        anchor, values, characters = event.anchor, self._values, self._characters
        if anchor is not None:
            # Until its end is read: an alias to it in between would make it part of itself.
            self._anchors[anchor] = None
        self._count(_start(event), 1, 0)
        value = (
            self._scalar(event)
            if isinstance(event, events.ScalarEvent)
            else self._collection(event)
        )
        if anchor is not None:
            self._anchors[anchor] = _Anchored(
                value, self._values - values, self._characters - characters
            )
        return value

    def _count(self, at: SourcePosition, values: int, characters: int) -> None:
        """Count what is written, or repeated by an alias, before it takes any memory."""
        self._values += values
        self._characters += characters
        for count, most, what in (
            (self._values, MOST_VALUES, "values"),
            (self._characters, MOST_CHARACTERS, "characters"),
        ):
            if count > most:
                why = f"the document has more than {most} {what}, aliases filled in; split it"
                raise Unreadable(at, why)

    def _alias(self, event: events.AliasEvent) -> Any:
        at, name = _start(event), event.anchor
        if name not in self._anchors:
            raise Unreadable(
                at,
                f"there is no `&{clipped(name)}` above for the alias `*{clipped(name)}`; "
                "a text that begins with `*` needs quotes",
            )
        anchored = self._anchors[name]
        if anchored is None:
            raise Unreadable(at, f"`*{clipped(name)}` stands within itself")
        self._count(at, anchored.values, anchored.characters)
        # A copy: models change nothing, but positions and conflicts are kept by the identity of a
        # mapping.
        return copy.deepcopy(anchored.value)

    def _scalar(self, event: events.ScalarEvent) -> Any:
        text = event.value = self._fit(event)
        self._count(_start(event), 0, len(text))
        is_plain = not event.style
        tag = _tag_of(event)
        # Most words are no number, truth value or null, and that is seen at once.
        is_text = text[:1] not in _NUMBERS_BEGIN and text.lower() not in _NO_TEXTS
        value = written.resolve(text) if is_plain and not is_text else text
        return value if tag is None else self._tagged(event, tag, value)

    def _fit(self, event: events.ScalarEvent) -> str:
        """Return a text without the characters that nothing behind us takes; they are reported."""
        text = str(event.value)
        if _UNFIT_IN_VALUES.search(text) is None:
            return text
        # JSON writes some letters as two escapes, which are one letter only together.
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
        if unfit := _UNFIT_IN_VALUES.search(text):
            self._report(
                _start(event), f"the character {unfit[0]!r} cannot be passed on; leave it out"
            )
        return _UNFIT_IN_VALUES.sub("\ufffd", text)

    def _tagged(self, event: events.ScalarEvent, tag: str, value: Any) -> Any:
        if tag in ("!", _STANDARD_TAG + "str"):
            return str(event.value)
        kinds = _KIND_OF_TAG.get(tag.removeprefix(_STANDARD_TAG))
        if kinds and isinstance(value, written.Scalar) and type(value.value) in kinds:
            return value
        if tag == _STANDARD_TAG + "null" and value is None:
            return value
        self._report_tag(event, tag)
        return value

    def _collection(self, event: events.NodeEvent) -> Any:
        # Bounded, because the parser and the models call themselves for each level.
        self._depth += 1
        if self._depth > DEEPEST:
            raise Unreadable(_start(event), f"the document is nested deeper than {DEEPEST} levels")
        is_list = isinstance(event, events.SequenceStartEvent)
        tag = _tag_of(event)
        if tag not in (None, "!", _STANDARD_TAG + ("seq" if is_list else "map")):
            self._report_tag(event, str(tag))
        value: Any = self._listing(event) if is_list else self._section(event)
        self._depth -= 1
        return value

    def _listing(self, start: events.NodeEvent) -> LocatedList:
        listing = LocatedList(_start(start))
        while not isinstance(event := next(self._events), events.SequenceEndEvent):
            listing.put(self._node(event), _start(event))
        return listing

    def _section(self, start: events.NodeEvent) -> LocatedMapping:
        section = LocatedMapping(_start(start))
        merged: list[LocatedMapping] = []
        while not isinstance(event := next(self._events), events.MappingEndEvent):
            at, key = _start(event), self._key(event)
            value_event = next(self._events)
            value_at = _start(value_event)
            value = self._node(value_event)
            if value is None:
                # It is not written, and has no place: the parser names that of what follows.
                value_at = at
            if key is None:
                continue
            if key in section:
                first = section.keys_at[key].line
                self._report(at, f"{code(key)} stands twice; the first is in line {first}")
            # `"<<"` in quotes is an ordinary name.
            elif key == "<<" and isinstance(event, events.ScalarEvent) and not event.style:
                merged += self._to_merge(value, value_at)
            else:
                section.put(key, value, at, value_at)
        # What the mapping has itself goes before what is merged into it, and earlier ones before
        # later ones.
        for other in merged:
            for key, value in other.items():
                if key not in section:
                    section.put(key, value, other.keys_at[key], other.values_at[key])
        return section

    def _key(self, event: events.Event) -> str | None:
        """Return a key as the text that was written; None, and a problem, if it is not a text."""
        value = self._node(event)
        # Also `true` and `1` are names here. An alias may stand for a text.
        text = event.value if isinstance(event, events.ScalarEvent) else value
        if isinstance(text, str) and text:
            return str(text)
        what = "a name is missing before the `:`"
        if isinstance(value, (LocatedMapping, LocatedList)):
            what = "a name must stand before the `:`, not a list or a mapping"
        self._report(_start(event), f"{what}; a text with `{{`, `[` or `?` in front needs quotes")
        return None

    def _to_merge(self, value: Any, at: SourcePosition) -> list[LocatedMapping]:
        sections = value if isinstance(value, LocatedList) else [value]
        if all(isinstance(each, LocatedMapping) for each in sections):
            return list(sections)
        self._report(at, "`<<` must name a mapping: write `<<: *NAME`, with `&NAME` at the mapping")
        return []

    def _report(self, at: SourcePosition, message: str) -> None:
        self.problems.append(Problem(at, message))

    def _report_tag(self, event: events.Event, tag: str) -> None:
        shown = "!!" + tag.removeprefix(_STANDARD_TAG) if tag.startswith(_STANDARD_TAG) else tag
        self._report(
            _start(event),
            f"the tag {code(shown)} means nothing here; leave it out, or put the text in quotes",
        )


def _start(event: events.Event) -> SourcePosition:
    return SourcePosition(event.start_mark.line + 1, event.start_mark.column + 1)


def _tag_of(event: events.NodeEvent) -> str | None:
    assert isinstance(
        event, (events.ScalarEvent, events.SequenceStartEvent, events.MappingStartEvent)
    )
    return event.tag


def explained(error: Exception, lines: Sequence[str], reached: SourcePosition) -> Unreadable:
    """Return a parser's error in the words of users; `reached` is how far the parser came."""
    if not isinstance(error, MarkedYAMLError):
        # ruamel.yaml has bugs: on some texts it raises an IndexError, for example.
        return Unreadable(reached, _meaning(str(error), "the document"))
    # The problem is where the parser stopped, the context is where the part began that it was
    # reading.
    mark = error.problem_mark or error.context_mark
    at = SourcePosition(mark.line + 1, mark.column + 1) if mark else reached
    line = lines[at.line - 1] if at.line <= len(lines) else ""
    # The parser calls a tab in the indentation something else, depending on what is before it.
    if tab := re.match(r" *\t", line):
        return Unreadable(SourcePosition(at.line, tab.end()), "a tab; YAML is indented with spaces")
    opened = f"line {error.context_mark.line + 1}" if error.context_mark else "the document"
    return Unreadable(at, _meaning(f"{error.context}: {error.problem}", opened))


def _meaning(problem: str, opened: str) -> str:
    meanings: dict[str, str] = tomllib.loads(_MEANINGS.read_text(encoding="utf-8"))
    for pattern, meaning in meanings.items():
        if found := re.search(pattern, problem):
            letter = found.groupdict().get("letter") or ""
            return meaning.replace("{opened}", opened).replace("{letter}", clipped(letter))
    return f"this is not YAML: {clipped(problem)}"


# The parser is pure Python: it would be busy for long with a file of data named by mistake.
MOST_BYTES = 1_000_000

# Characters that YAML does not allow, and U+E000 and U+E001, which mark later values in plans.
_UNFIT = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue002-\ufffd\U00010000-\U0010ffff]")
_LINE_BREAK = re.compile("\r\n|[\r\n\x85\u2028\u2029]")
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentSource:
    """A document as it was read, before its type is known."""

    name: str
    """The file, as messages call it."""
    text: str
    contents: LocatedMapping
    problems: tuple[Problem, ...] = ()
    """Errors that do not prevent reading, such as a key that stands twice."""


def read_document(path: Path) -> DocumentSource:
    """Read a file; raises InputError if it cannot be read as a YAML mapping."""
    name = printable_name(path)
    return read_text(_decoded(_bytes_of(path, name), name), name)


def read_text(text: str, name: str) -> DocumentSource:
    """Read a text; raises InputError if it cannot be read as a YAML mapping."""
    if unfit := _UNFIT.search(text):
        at = _position_at_end(text[: unfit.start()])
        message = f"the character {unfit[0]!r} is not allowed; is this a text file?"
        raise written.as_error(name, [Problem(at, message)])
    composer = Composer(_events(text))
    try:
        contents, at = composer.document()
    except Unreadable as reason:
        raise written.as_error(name, [*composer.problems, reason.problem]) from None
    if contents is None:
        raise InputError(f"{name}: the document is empty; `rankwise init` writes one to start from")
    if not isinstance(contents, LocatedMapping):
        message = (
            f"a document is made of `name: value` lines, this is {quoted(contents)}; "
            "`rankwise init` writes one to start from"
        )
        raise written.as_error(name, [*composer.problems, Problem(at, message)])
    problems = tuple(composer.problems)
    return DocumentSource(name=name, text=text, contents=contents, problems=problems)


def _bytes_of(path: Path, name: str) -> bytes:
    try:
        if path.is_dir():
            raise InputError(f"{name}: this is a folder; name the document in it")
        if path.exists() and not path.is_file():
            # Reading a pipe or a device might never end, or never begin.
            raise InputError(f"{name}: this is not a regular file")
        with path.open("rb") as file:
            # One more than allowed: so that a file of that very size can be told from a larger one.
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
    if found.startswith(_UTF_16):
        raise InputError(f"{name}: the file is in UTF-16; save it as UTF-8")
    # The mark that editors on Windows put before UTF-8.
    found = found.removeprefix(b"\xef\xbb\xbf")
    try:
        return found.decode("utf-8")
    except UnicodeDecodeError as reason:
        at = _position_at_end(found[: reason.start].decode("utf-8"))
        message = f"the byte 0x{found[reason.start]:02x} is not UTF-8; save the file as UTF-8"
        raise written.as_error(name, [Problem(at, message)]) from None


def _position_at_end(text: str) -> SourcePosition:
    lines = _LINE_BREAK.split(text)
    return SourcePosition(len(lines), len(lines[-1]) + 1)


def _events(text: str) -> Iterator[events.Event]:
    # For errors of the parser that have no position.
    reached = SourcePosition(1, 1)
    try:
        # Events, not objects: events have positions, and no tag in them can create anything.
        for event in YAML(typ="safe", pure=True).parse(io.StringIO(text)):
            yield event
            reached = SourcePosition(event.end_mark.line + 1, event.end_mark.column + 1)
    except Exception as error:
        raise explained(error, _LINE_BREAK.split(text), reached) from None
