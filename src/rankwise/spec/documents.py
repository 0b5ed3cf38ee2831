"""From a file to a checked document."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rankwise.spec.base import Review
from rankwise.spec.command_job import CommandJob
from rankwise.spec.complaints import choice, complaints
from rankwise.spec.matrix import Matrix
from rankwise.spec.mistakes import Mistake, Position, as_error, code, listed, nearest
from rankwise.spec.models import DocumentModel, MpiJob, PytorchJob, TensorflowJob
from rankwise.spec.pipeline import Pipeline
from rankwise.spec.reader import Reading, read_document
from rankwise.spec.suite import Suite
from rankwise.spec.sweep import Sweep
from rankwise.spec.values import fit_name
from rankwise.spec.written import Found, Listing, Section, copied

TYPES: dict[str, type[DocumentModel]] = {
    "MpiJob": MpiJob,
    "PytorchJob": PytorchJob,
    "TensorflowJob": TensorflowJob,
    "command": CommandJob,
    "Pipeline": Pipeline,
    "Suite": Suite,
    "Sweep": Sweep,
    "Matrix": Matrix,
}
"""What `type:` may say, and the model of each. A new type is one entry more."""

# Azure ML lets a document's schema stand for its type.
_TYPE_OF_SCHEMA = {"commandJob.schema.json": "command"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A document that is right, as far as can be told without running it."""

    path: Path
    text: str
    model: DocumentModel
    """Its name is never empty."""
    contents: Section
    """What it was made from, for the places."""

    def place(self, keys: Container[str], text: str) -> str:
        """Name the first place where one of these keys has this value, or ends in it."""
        at = _find(self.contents, keys, text)
        return f"{self.path}:{at.line}:{at.column}" if at is not None else str(self.path)


def load(path: Path) -> Document:
    """Read and check a document; raises InputError with a line for every mistake."""
    reading = read_document(path)
    model = parse(reading)
    if not model.name:
        model = model.model_copy(update={"name": fit_name(path.stem)})
    return Document(path=path, text=reading.text, model=model, contents=reading.contents)


def _find(value: Any, keys: Container[str], text: str) -> Position | None:
    if isinstance(value, Section):
        for key, entry in value.items():
            if key in keys and isinstance(entry, str) and entry.strip().endswith(text):
                return value.values_at[key]
    inner = value.values() if isinstance(value, Section) else value
    if not isinstance(value, Section | Listing):
        return None
    return next(filter(None, (_find(entry, keys, text) for entry in inner)), None)


def parse(reading: Reading) -> DocumentModel:
    """Make a model of what was read; raises InputError with a line for every mistake."""
    mistakes = list(reading.mistakes)
    contents: Section = copied(reading.contents)
    mistakes += _find_type(contents)
    chosen = contents.get("type")
    name = chosen if isinstance(chosen, str) and chosen in TYPES else None
    if name is None:
        mistakes.append(_wrong_type(contents))
        # The rest is checked as what was most likely meant, so that all is said at once.
        name = nearest(chosen, TYPES) if isinstance(chosen, str) else None
    if name is None:
        raise as_error(reading.name, mistakes)
    contents["type"] = name
    review = Review()
    try:
        model = TYPES[name].model_validate(contents, context=review)
    except ValidationError as error:
        mistakes += complaints(error, contents, review)
    mistakes += review.mistakes
    if mistakes:
        raise as_error(reading.name, mistakes)
    return model


def _find_type(contents: Section) -> Iterator[Mistake]:
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
        yield Mistake(at, f"unknown field {code(alike)}: did you mean `type`?")
        contents.put("type", contents.pop(alike), at, contents.values_at[alike])


def _wrong_type(contents: Section) -> Mistake:
    given = contents.get("type")
    valid = list(TYPES)
    if given is None:
        at = Found(contents, ("type",)).key_at
        names = listed([f"`{each}`" for each in valid])
        return Mistake(at, f"`type` is missing; it must be {names}")
    return Mistake(contents.values_at["type"], f"`type` {choice(given, valid)}")
