"""Put the events of a YAML parser together into contents with places.

Everything that could grow without bounds has a limit here, before it grows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
)

from rankwise.spec.mistakes import Mistake, Position, clipped, code
from rankwise.spec.scalars import resolve
from rankwise.spec.written import Listing, Scalar, Section, copied

# A document that a person writes has some hundred values, three to five levels deep.
MOST_VALUES = 20_000
MOST_CHARACTERS = 2_000_000
DEEPEST = 40

# An escape can bring in what the text itself must not have: neither the system nor a plan takes it.
_UNFIT = re.compile("[\0\ud800-\udfff\ue000\ue001]")
_STANDARD_TAG = "tag:yaml.org,2002:"
_KIND_OF_TAG = {"bool": (bool,), "int": (int,), "float": (int, float)}


class Unreadable(Exception):
    """A mistake after which the rest of a document means nothing."""

    def __init__(self, position: Position, message: str) -> None:
        super().__init__(message)
        self.mistake = Mistake(position, message)


class _Anchored(NamedTuple):
    value: Any
    values: int
    characters: int


class Composer:
    """Makes one document of events; `mistakes` are those after which it could go on."""

    def __init__(self, events: Iterator[Event]) -> None:
        self.mistakes: list[Mistake] = []
        self._events = events
        self._anchors: dict[str, _Anchored | None] = {}
        self._depth = self._values = self._characters = 0

    def document(self) -> tuple[Any, Position]:
        """Compose the only document of the stream; None if there is none."""
        self._next()
        event = self._next()
        if isinstance(event, StreamEndEvent):
            return None, Position(1, 1)
        first = self._next()
        root = self._node(first)
        self._next()
        extra = self._next()
        if isinstance(extra, DocumentStartEvent):
            raise Unreadable(
                _start(extra), "a second document begins here; put each into a file of its own"
            )
        return root, _start(first)

    def _next(self) -> Event:
        return next(self._events)

    def _node(self, event: Event) -> Any:
        if isinstance(event, AliasEvent):
            return self._alias(event)
        assert isinstance(event, NodeEvent)
        anchor, values, characters = event.anchor, self._values, self._characters
        if anchor is not None:
            self._anchors[anchor] = None
        self._count(_start(event), 1, 0)
        value = self._content(event)
        if anchor is not None:
            self._anchors[anchor] = _Anchored(
                value, self._values - values, self._characters - characters
            )
        return value

    def _content(self, event: NodeEvent) -> Any:
        return self._scalar(event) if isinstance(event, ScalarEvent) else self._collection(event)

    def _count(self, at: Position, values: int, characters: int) -> None:
        """Take note of what comes in before it does, be it written or repeated by an alias."""
        self._values += values
        self._characters += characters
        if self._values > MOST_VALUES:
            raise Unreadable(
                at, f"the document has more than {MOST_VALUES} values, aliases filled in; split it"
            )
        if self._characters > MOST_CHARACTERS:
            raise Unreadable(
                at,
                f"the document has more than {MOST_CHARACTERS} characters, aliases filled in; "
                "split it",
            )

    def _alias(self, event: AliasEvent) -> Any:
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
        return copied(anchored.value)

    def _scalar(self, event: ScalarEvent) -> Any:
        text = event.value = self._fit(event)
        self._count(_start(event), 0, len(text))
        is_plain = not event.style
        return self._tagged(event, resolve(text) if is_plain else text)

    def _fit(self, event: ScalarEvent) -> str:
        text = str(event.value)
        if _UNFIT.search(text) is None:
            return text
        # JSON writes some letters as two escapes, which are one letter only together.
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
        if unfit := _UNFIT.search(text):
            self._complain(event, f"the character {unfit[0]!r} cannot be passed on; leave it out")
        return _UNFIT.sub("\ufffd", text)

    def _tagged(self, event: ScalarEvent, value: Any) -> Any:
        tag = _tag_of(event)
        if tag is None:
            return value
        if tag in ("!", _STANDARD_TAG + "str"):
            return str(event.value)
        kinds = _KIND_OF_TAG.get(tag.removeprefix(_STANDARD_TAG))
        if kinds and isinstance(value, Scalar) and type(value.value) in kinds:
            return value
        if tag == _STANDARD_TAG + "null" and value is None:
            return value
        self._complain_of_tag(event, tag)
        return value

    def _collection(self, event: NodeEvent) -> Any:
        self._depth += 1
        if self._depth > DEEPEST:
            raise Unreadable(_start(event), f"the document is nested deeper than {DEEPEST} levels")
        is_list = isinstance(event, SequenceStartEvent)
        tag = _tag_of(event)
        if tag not in (None, "!", _STANDARD_TAG + ("seq" if is_list else "map")):
            self._complain_of_tag(event, str(tag))
        value: Any = self._listing(event) if is_list else self._section(event)
        self._depth -= 1
        return value

    def _listing(self, start: NodeEvent) -> Listing:
        listing = Listing(_start(start))
        while not isinstance(event := self._next(), SequenceEndEvent):
            listing.put(self._node(event), _start(event))
        return listing

    def _section(self, start: NodeEvent) -> Section:
        section = Section(_start(start))
        merged: list[Section] = []
        while not isinstance(event := self._next(), MappingEndEvent):
            key, at = self._key(event), _start(event)
            value_event = self._next()
            value = self._node(value_event)
            # What is not written has no place of its own: the parser names that of what follows.
            value_at = at if value is None else _start(value_event)
            if key is None:
                continue
            if key in section:
                self.mistakes.append(
                    Mistake(
                        at,
                        f"{code(key)} stands twice; the first is in line "
                        f"{section.keys_at[key].line}",
                    )
                )
            elif key == "<<" and isinstance(event, ScalarEvent) and not event.style:
                merged += self._to_merge(value, value_at)
            else:
                section.put(key, value, at, value_at)
        for other in merged:
            for key in other.keys() - section.keys():
                section.put(key, other[key], other.keys_at[key], other.values_at[key])
        return section

    def _key(self, event: Event) -> str | None:
        """Read a key, always as the text that was written; None if it is none."""
        value = self._node(event)
        if isinstance(event, ScalarEvent) and event.value:
            return str(event.value)
        if isinstance(value, str) and value:
            return str(value)
        what = "a name is missing before the `:`"
        if isinstance(value, (Section, Listing)):
            what = "a name must stand before the `:`, not a list or a mapping"
        self._complain(event, f"{what}; a text with `{{`, `[` or `?` in front needs quotes")
        return None

    def _to_merge(self, value: Any, at: Position) -> list[Section]:
        sections = value if isinstance(value, Listing) else [value]
        if all(isinstance(each, Section) for each in sections):
            return list(sections)
        self.mistakes.append(
            Mistake(at, "`<<` must name a mapping: write `<<: *NAME`, with `&NAME` at the mapping")
        )
        return []

    def _complain(self, event: Event, message: str) -> None:
        self.mistakes.append(Mistake(_start(event), message))

    def _complain_of_tag(self, event: Event, tag: str) -> None:
        shown = "!!" + tag.removeprefix(_STANDARD_TAG) if tag.startswith(_STANDARD_TAG) else tag
        self._complain(
            event,
            f"the tag {code(shown)} means nothing here; leave it out, or put the text in quotes",
        )


def _start(event: Event) -> Position:
    return Position(event.start_mark.line + 1, event.start_mark.column + 1)


def _tag_of(event: NodeEvent) -> str | None:
    assert isinstance(event, (ScalarEvent, SequenceStartEvent, MappingStartEvent))
    return event.tag
