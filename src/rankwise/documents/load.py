"""Load documents by their type and headers of scripts, with pydantic's errors in our words."""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from rankwise.documents.jobs import DocumentModel
from rankwise.documents.messages import choice, validated
from rankwise.documents.values import fit_name
from rankwise.documents.written import (
    LocatedList,
    LocatedMapping,
    Location,
    Problem,
    SourcePosition,
    as_error,
    copied,
    resolve,
)
from rankwise.documents.yaml_reader import DocumentSource, read_document
from rankwise.errors import InputError
from rankwise.wording import alternatives, code, nearest, printable_name, quoted

if TYPE_CHECKING:
    from rankwise.documents.suite import Header


class _Types(Mapping[str, type[DocumentModel]]):
    """Models by their names; each is loaded when it is looked up, since few are needed at once."""

    _places: ClassVar = {
        "MpiJob": "jobs:MpiJob",
        "PytorchJob": "jobs:PytorchJob",
        "TensorflowJob": "jobs:TensorflowJob",
        "command": "jobs:CommandJob",
        "Pipeline": "pipeline:Pipeline",
        "Suite": "suite:Suite",
        "Sweep": "sweep:Sweep",
        "Matrix": "matrix:Matrix",
    }

    def __getitem__(self, name: str) -> type[DocumentModel]:
        model: type[DocumentModel] = pkgutil.resolve_name(
            f"rankwise.documents.{self._places[name]}"
        )
        return model

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


TYPES: Mapping[str, type[DocumentModel]] = _Types()
"""What `type:` may say, and the model of each. A new type is one entry more."""

# Azure ML lets a document's schema stand for its type.
_TYPE_OF_SCHEMA = {"commandJob.schema.json": "command"}


STARTERS = Path(__file__).parent / "starters"
"""The folder of documents to start from, one of each type."""


def starter(type_name: str) -> str:
    """Return a commented document of a type; raises InputError if there is no such type."""
    if type_name not in TYPES:
        raise InputError(f"the type {choice(type_name, list(TYPES))}")
    return (STARTERS / f"{type_name}.yaml").read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A document that is right, as far as can be told without running it."""

    path: Path
    text: str
    model: DocumentModel
    """Its name is never empty."""
    contents: LocatedMapping
    """What it was made from, for the places."""

    def at(self, *path: int | str) -> str:
        """Name the place of the value to which a path leads."""
        return f"{self.path}{Location(self.contents, path).value_at}"

    def place(self, keys: Container[str], text: str) -> str:
        """Name the first place where one of these keys has this value, or ends in it."""
        at = _find(self.contents, keys, text)
        return f"{self.path}{at or ''}"


def load(path: Path) -> Document:
    """Read and check a document; raises InputError with a line for every problem."""
    reading = read_document(path)
    model = parse(reading)
    if not model.name:
        model = model.model_copy(update={"name": fit_name(path.stem)})
    return Document(path=path, text=reading.text, model=model, contents=reading.contents)


def _find(value: Any, keys: Container[str], text: str) -> SourcePosition | None:
    if isinstance(value, LocatedMapping):
        for key, entry in value.items():
            if key in keys and isinstance(entry, str) and entry.strip().endswith(text):
                return value.values_at[key]
    inner = value.values() if isinstance(value, LocatedMapping) else value
    if not isinstance(value, LocatedMapping | LocatedList):
        return None
    return next(filter(None, (_find(entry, keys, text) for entry in inner)), None)


def parse(reading: DocumentSource) -> DocumentModel:
    """Make a model of what was read; raises InputError with a line for every problem."""
    problems = list(reading.problems)
    contents: LocatedMapping = copied(reading.contents)
    problems += _find_type(contents)
    chosen = contents.get("type")
    name = chosen if isinstance(chosen, str) and chosen in TYPES else None
    if name is None:
        problems.append(_wrong_type(contents))
        # The rest is checked as what was most likely meant, so that all is said at once.
        name = nearest(chosen, TYPES) if isinstance(chosen, str) else None
    if name is None:
        raise as_error(reading.name, problems)
    contents["type"] = name
    model, found = validated(TYPES[name], contents)
    problems += found
    if model is None or problems:
        raise as_error(reading.name, problems)
    return model


def _find_type(contents: LocatedMapping) -> Iterator[Problem]:
    """See that there is a `type`, if something else stands for it."""
    if contents.get("type") is not None:
        return
    schema = contents.get("$schema")
    kind = _TYPE_OF_SCHEMA.get(schema.rpartition("/")[2]) if isinstance(schema, str) else None
    if kind is not None:
        at = contents.keys_at["$schema"]
        contents.put("type", kind, at, at)
    elif "type" not in contents and (alike := nearest("type", contents)):
        at = contents.keys_at[alike]
        yield Problem(at, f"unknown field {code(alike)}: did you mean `type`?")
        contents.put("type", contents.pop(alike), at, contents.values_at[alike])


def _wrong_type(contents: LocatedMapping) -> Problem:
    given = contents.get("type")
    valid = list(TYPES)
    if given is None:
        at = Location(contents, ("type",)).key_at
        names = alternatives([f"`{each}`" for each in valid])
        return Problem(at, f"`type` is missing; it must be {names}")
    return Problem(contents.values_at["type"], f"`type` {choice(given, valid)}")


# Who looks for it, looks at the beginning.
_MOST_LINES = 30
_MOST_BYTES = 20_000
_HEADER = re.compile(r"\s*#\s*rankwise:\s*(?P<rest>.*?)\s*")
_WORD = re.compile(r"\S+")

# Thousands of scripts say the same.
_KNOWN: dict[tuple[str, ...], Header] = {}


@cache
def silent() -> Header:
    """Return what a script says that says nothing: always the same object."""
    from rankwise.documents.suite import Header

    return Header()


def header_of(path: Path) -> Header:
    """Read what a script says of itself; raises InputError with a line for every problem."""
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES).decode(errors="replace")
    except OSError as error:
        raise InputError(f"{printable_name(path)}: it cannot be read: {error.strerror}") from error
    if "rankwise:" not in text:
        return silent()
    lines = [
        (number, found["rest"], found.start("rest"))
        for number, line in enumerate(text.splitlines()[:_MOST_LINES], start=1)
        if (found := _HEADER.fullmatch(line))
    ]
    said = tuple(rest for _, rest, _ in lines)
    if not said:
        return silent()
    if said not in _KNOWN:
        _KNOWN[said] = _read_all(path, lines)
    return _KNOWN[said]


def _read_all(path: Path, lines: Iterable[tuple[int, str, int]]) -> Header:
    from rankwise.documents.suite import Header

    contents = LocatedMapping(SourcePosition(1, 1))
    problems: list[Problem] = []
    for number, rest, column in lines:
        problems += _read(rest, number, column, contents)
    header, found = validated(Header, contents)
    problems += found
    if header is None or problems:
        raise as_error(printable_name(path), problems)
    return header


def _read(text: str, line: int, before: int, contents: LocatedMapping) -> list[Problem]:
    """Put `name=value` words into a section, each with its place."""
    problems = []
    for word in _WORD.finditer(text):
        at = SourcePosition(line, before + word.start() + 1)
        name, equals, value = word[0].partition("=")
        if not equals:
            problems.append(Problem(at, f"must be `name=value`, not {quoted(word[0])}"))
        elif name in contents:
            problems.append(Problem(at, f"`{name}` is there already"))
        else:
            value_at = SourcePosition(line, at.column + len(name) + 1)
            contents.put(name, resolve(value), at, value_at)
    return problems
