"""Values as they are written in a document: with positions, and the problems found in them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from rankwise.errors import InputError

# Enough to mend a document by; more would only scroll the first ones away.
MOST_SHOWN = 100


class SourcePosition(NamedTuple):
    """A place in a document, counted from 1 as editors do; 0: unknown."""

    line: int
    column: int = 0

    def __str__(self) -> str:
        return "".join(f":{number}" for number in self if number)


class Problem(NamedTuple):
    """One thing that is wrong."""

    position: SourcePosition
    message: str


def as_error(name: str, problems: Iterable[Problem]) -> InputError:
    """Put all problems of a document into one error, a line for each, in the document's order."""
    # The same problem may be found twice: by a field, and by a check of several fields.
    found = sorted(set(problems))
    lines = [f"{name}{at}: {message}" for at, message in found[:MOST_SHOWN]]
    if len(found) > MOST_SHOWN:
        lines.append(f"{name}: and {len(found) - MOST_SHOWN} more mistakes")
    return InputError("\n".join(lines))


class Faults:
    """Collects what is wrong with several parts, to say all of it at once."""

    def __init__(self, messages: Iterable[str] = ()) -> None:
        self._messages = dict.fromkeys(messages)

    @contextmanager
    def collected(self) -> Iterator[None]:
        """Take note of an InputError, and go on after the block."""
        try:
            yield
        except InputError as error:
            self._messages[str(error)] = None

    def raise_all(self) -> None:
        """Raise one InputError with all messages, each once; does nothing if there are none."""
        if self._messages:
            raise InputError("\n".join(self._messages))


class Scalar(str):
    """A number or a truth value: a text as it was written, with what YAML takes it for.

    Where a document wants text (`PORT: 0080`, `command: true`) it is text already; where it wants
    a number, that is `value`.
    """

    # A document of 20,000 values has as many of these.
    __slots__ = ("value",)

    value: int | float | bool

    @classmethod
    def of(cls, text: str, value: int | float | bool) -> Scalar:
        """Put a text and its value together."""
        made = cls(text)
        made.value = value
        return made


class LocatedMapping(dict[str, Any]):
    """A mapping."""

    __slots__ = ("keys_at", "position", "values_at")

    def __init__(self, position: SourcePosition) -> None:
        super().__init__()
        self.position = position
        self.keys_at: dict[str, SourcePosition] = {}
        self.values_at: dict[str, SourcePosition] = {}

    def put(self, key: str, value: Any, key_at: SourcePosition, value_at: SourcePosition) -> None:
        """Add an entry."""
        self[key] = value
        self.keys_at[key] = key_at
        self.values_at[key] = value_at


class LocatedList(list[Any]):
    """A list."""

    __slots__ = ("position", "values_at")

    def __init__(self, position: SourcePosition) -> None:
        super().__init__()
        self.position = position
        self.values_at: list[SourcePosition] = []

    def put(self, value: Any, at: SourcePosition) -> None:
        """Add an entry at the end."""
        self.append(value)
        self.values_at.append(at)


class Location:
    """Where a path into a document leads, as far as the document goes along with it.

    Steps that the document does not have are passed over: a checker's path also names the kind
    that it has chosen.
    """

    def __init__(self, root: LocatedMapping, path: Sequence[int | str]) -> None:
        self.value: Any = root
        self.parent: LocatedMapping | LocatedList | None = None
        self.key_at = self.value_at = root.position
        self.name = ""
        for step in path:
            self._go(step)

    def _go(self, step: int | str) -> None:
        here = self.value
        # A path of pydantic may name the chosen type of a union as well, which the document does
        # not have.
        if isinstance(here, LocatedMapping) and isinstance(step, str) and step in here:
            self.key_at, self.value_at = here.keys_at[step], here.values_at[step]
            self.name += f".{step}" if self.name else step
        elif isinstance(here, LocatedList) and isinstance(step, int) and step < len(here):
            self.key_at = self.value_at = here.values_at[step]
            # People count from 1.
            self.name += f"[{step + 1}]"
        else:
            return
        self.parent, self.value = here, here[step]


def expanded(path: str) -> Path:
    """Put the home folder in for `~`; a path from a home that is not there stays as it is."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def mapping_in(contents: Any, *path: str) -> Mapping[str, Any]:
    """Follow a path through mappings; an empty one if there is none at its end."""
    for step in path:
        contents = contents.get(step) if isinstance(contents, Mapping) else None
    return contents if isinstance(contents, Mapping) else {}


def entries_in(contents: Any, *path: str) -> Sequence[Any]:
    """Follow a path to a list; an empty one if there is none at its end."""
    found = mapping_in(contents, *path[:-1]).get(path[-1])
    return found if isinstance(found, list | tuple) else ()


def given_in(contents: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """Return which of some fields are there; a field without a value counts as left out."""
    return [name for name in names if contents.get(name) is not None]


def plain_data(value: Any) -> Any:
    """Return numbers and truth values in place of their texts, at any depth."""
    if isinstance(value, Scalar):
        return value.value
    if isinstance(value, Mapping):
        return {str(name): plain_data(one) for name, one in value.items()}
    return [plain_data(one) for one in value] if isinstance(value, list | tuple) else value


# The core schema of YAML 1.2: `yes`, `on` and `0755` are not what they were in 1.1.
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_TRUTHS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_WHOLE = re.compile(r"[-+]?[0-9]+")
_OTHER_BASE = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FRACTION = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NO_NUMBER = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
# Longer ones are no numbers that anybody means, and Python refuses to read the longest.
_LONGEST_NUMBER = 100


def resolve(text: str) -> str | Scalar | None:
    """Return what a plain word stands for; numbers and truth values keep how they were written."""
    if text in _NULLS:
        return None
    if text in _TRUTHS:
        return Scalar.of(text, _TRUTHS[text])
    if len(text) > _LONGEST_NUMBER:
        return text
    if _WHOLE.fullmatch(text):
        return Scalar.of(text, int(text))
    # 0o17 and 0xff; int() reads the base from the prefix.
    if _OTHER_BASE.fullmatch(text):
        return Scalar.of(text, int(text, 0))
    if _FRACTION.fullmatch(text):
        return Scalar.of(text, float(text))
    if _NO_NUMBER.fullmatch(text):
        return Scalar.of(text, float(text.replace(".", "")))
    return text
