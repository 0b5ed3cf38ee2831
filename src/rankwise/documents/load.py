"""Load documents by their type and headers of scripts, with pydantic's errors in our words."""

from __future__ import annotations

import pkgutil
import re
import tomllib
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankwise.documents import written
from rankwise.documents.jobs import DocumentModel
from rankwise.documents.messages import choice, validated
from rankwise.documents.values import fit_name
from rankwise.documents.written import LocatedMapping, Problem
from rankwise.documents.yaml_reader import DocumentSource, read_document
from rankwise.errors import InputError
from rankwise.wording import alternatives, code, nearest, printable_name, quoted

if TYPE_CHECKING:
    from rankwise.documents.suite import Header


TYPES: Mapping[str, str] = {
    "MpiJob": "jobs:MpiJob",
    "PytorchJob": "jobs:PytorchJob",
    "TensorflowJob": "jobs:TensorflowJob",
    "command": "jobs:CommandJob",
    "Pipeline": "pipeline:Pipeline",
    "Suite": "suite:Suite",
    "Sweep": "sweep:Sweep",
    "Matrix": "matrix:Matrix",
}
"""What `type:` may be, and the module and the model of each type."""

AZURE_TYPES: Mapping[str, str] = {
    "pipeline": "azure_jobs:PipelineJob",
    "sweep": "azure_jobs:SweepJob",
    "component": "azure_jobs:Component",
}
"""The types that only documents written for Azure ML have."""

# Azure ML lets a document's schema stand for its type.
_TYPE_OF_SCHEMA = {
    "commandJob.schema.json": "command",
    "commandComponent.schema.json": "component",
    "pipelineJob.schema.json": "pipeline",
    "sweepJob.schema.json": "sweep",
}

STARTERS = Path(__file__).parent / "starters"
"""The folder of documents to start from, one of each type."""


def model_of(type_name: str) -> type[DocumentModel]:
    """Return the model of a type. Imports only its module: a command needs few of them."""
    module = TYPES.get(type_name) or AZURE_TYPES[type_name]
    model: type[DocumentModel] = pkgutil.resolve_name(f"rankwise.documents.{module}")
    return model


def choices_of(type_name: str) -> dict[str, dict[str, Any]]:
    """Return what the starter of a type leaves open, as `choices.toml` says, with its `usual`.

    Raises InputError if there is no such type.
    """
    if type_name not in TYPES:
        raise InputError(f"the type {choice(type_name, [*TYPES])}")
    data = tomllib.loads((STARTERS / "choices.toml").read_text(encoding="utf-8"))
    own = data["in"].get(type_name, {})
    return {
        name: {**data["questions"][name], "usual": usual, **own.get(name, {})}
        for name, usual in data["choices"][type_name].items()
    }


def text_for(name: str, said: Mapping[str, Any], answer: str) -> str:
    """Return what stands for an answer in a starter; raises InputError if it is none."""
    texts: Mapping[str, str] = said.get("texts", {})
    if answer in texts:
        return texts[answer]
    if "form" not in said:
        raise InputError(f"--{name} {choice(answer, [*texts])}")
    is_one = "between" not in said
    answers = [answer] if is_one else re.split(r"\s*,\s*", answer)
    if not all(re.fullmatch(said["form"], one) for one in answers):
        more = "" if is_one else ", or several with commas between them"
        raise InputError(f"--{name} must be {said['what']}{more}, not {quoted(answer)}")
    each = said.get("each", "@")
    return str(said.get("between", "")).join(each.replace("@", one) for one in answers)


def starter(type_name: str, answers: Mapping[str, str] | None = None) -> str:
    """Return a commented document of a type, with these answers to what it leaves open.

    Raises InputError if there is no such type, choice or answer.
    """
    known, answers = choices_of(type_name), answers or {}
    if unknown := [name for name in answers if name not in known]:
        those = alternatives([f"--{name}" for name in known], "and")
        raise InputError(f"--{unknown[0]}: a document of the type {type_name} has {those}")
    text = (STARTERS / f"{type_name}.yaml").read_text(encoding="utf-8")
    for name, said in known.items():
        text = text.replace(f"@{name}@", text_for(name, said, answers.get(name, said["usual"])))
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A document without errors, as far as can be checked without running it."""

    path: Path
    text: str
    model: DocumentModel
    """Its name is never empty."""
    contents: LocatedMapping
    """What the model was made from, for the places of errors."""

    def at(self, *path: int | str) -> str:
        """Return the place of the value at a path, as FILE:LINE:COLUMN."""
        return f"{self.path}{written.Location(self.contents, path).value_at}"

    def place(self, keys: Container[str], text: str) -> str:
        """Return the first place at which one of these keys has this value, or ends in it."""
        at = _find(self.contents, keys, text)
        return f"{self.path}{at or ''}"


def load(path: Path, kind: str = "") -> Document:
    """Read and check a document, of a type that is known; raises InputError for every problem."""
    reading = read_document(path)
    if kind:
        at = reading.contents.position
        reading.contents.put("type", kind, at, at)
    model = parse(reading)
    # Runs have the name of the document, or of its file.
    if not model.name:
        shown = getattr(model, "display_name", "")
        # Of a name in another script, nothing would be left.
        name = shown if re.search("[A-Za-z0-9]", shown) else path.stem
        model = model.model_copy(update={"name": fit_name(name)})
    return Document(path=path, text=reading.text, model=model, contents=reading.contents)


def _find(value: Any, keys: Container[str], text: str) -> written.SourcePosition | None:
    """Return the first place at which one of these keys has this value, or ends in it."""
    inner: Iterable[Any] = value if isinstance(value, written.LocatedList) else ()
    if isinstance(value, LocatedMapping):
        inner = value.values()
        for key, entry in value.items():
            if key in keys and isinstance(entry, str) and entry.strip().endswith(text):
                return value.values_at[key]
    return next(filter(None, (_find(entry, keys, text) for entry in inner)), None)


def parse(reading: DocumentSource) -> DocumentModel:
    """Return the model of what was read; raises InputError with a line for every problem."""
    problems = list(reading.problems)
    # A missing `type` is added here: all errors are places in what was read, which stay.
    contents = reading.contents
    _refuse_azures_own(contents, reading.name)
    problems += _find_type(contents)
    chosen = contents.get("type")
    # `stages` and `parameters` are of ours, whose type is misspelt.
    known = {**TYPES, **({} if contents.keys() & {"stages", "parameters"} else AZURE_TYPES)}
    name = chosen if isinstance(chosen, str) and chosen in known else None
    if name is None:
        problems.append(_wrong_type(contents))
        # The rest is checked as the type that was most likely meant, to report all at once.
        name = nearest(chosen, TYPES) if isinstance(chosen, str) else None
        if name is None:
            raise written.as_error(reading.name, problems)
    contents["type"] = name
    model, found = validated(model_of(name), contents)
    problems += found
    if model is None or problems:
        raise written.as_error(reading.name, problems)
    return model


def _refuse_azures_own(contents: LocatedMapping, name: str) -> None:
    """Raise InputError for a document of Azure ML of which there is no counterpart."""
    folder, _, schema = str(contents.get("$schema")).rpartition("/")
    if "azureml" in folder and schema not in _TYPE_OF_SCHEMA:
        message = f"{code(schema.partition('.')[0])} is for Azure ML alone: no such thing runs here"
        raise written.as_error(name, [Problem(contents.values_at["$schema"], message)])


def _find_type(contents: LocatedMapping) -> Iterator[Problem]:
    """Add `type` if a schema or a misspelt `type` stands for it; yield a problem for the latter."""
    schema = contents.get("$schema")
    kind = _TYPE_OF_SCHEMA.get(schema.rpartition("/")[2]) if isinstance(schema, str) else None
    # A component says `command`, which is what it runs.
    if contents.get("type") is not None and kind != "component":
        return
    if kind is not None:
        at = contents.keys_at["$schema"]
        contents.put("type", kind, at, at)
    # Azure ML takes a document without either for a command job.
    elif "command" in contents and contents.keys() <= {*model_of("command").fields()}:
        contents.put("type", "command", contents.position, contents.position)
    # The rest is checked with this type, to report all errors at once.
    elif "type" not in contents and (alike := nearest("type", contents)):
        at = contents.keys_at[alike]
        yield Problem(at, f"unknown field {code(alike)}: did you mean `type`?")
        contents.put("type", contents.pop(alike), at, contents.values_at[alike])


def _wrong_type(contents: LocatedMapping) -> Problem:
    given = contents.get("type")
    if given is None:
        at = written.Location(contents, ("type",)).key_at
        names = alternatives([f"`{each}`" for each in TYPES])
        return Problem(at, f"`type` is missing; it must be {names}")
    return Problem(contents.values_at["type"], f"`type` {choice(given, [*TYPES])}")


# A header stands at the beginning; the rest of a script, which may be long, is not searched.
_MOST_LINES = 30
_MOST_BYTES = 20_000
_HEADER = re.compile(r"\s*#\s*rankwise:\s*(?P<rest>.*?)\s*")
_WORD = re.compile(r"\S+")

# Headers by their lines: thousands of scripts have the same, and pydantic takes its time for each.
_KNOWN: dict[tuple[str, ...], Header] = {}


@cache
def silent() -> Header:
    """Return the header of a script that has none: always the same object, to compare with `is`."""
    from rankwise.documents.suite import Header

    return Header()


def header_of(path: Path) -> Header:
    """Read the header of a script; raises InputError with a line for every problem."""
    try:
        with path.open("rb") as file:
            start = file.read(_MOST_BYTES)
    except OSError as error:
        raise InputError(f"{printable_name(path)}: it cannot be read: {error.strerror}") from error
    if len(start) == _MOST_BYTES:
        # The last line is cut off: a number in it would lose its last digits.
        start = start.rpartition(b"\n")[0]
    # Also scripts in other encodings may have a header, which is plain ASCII.
    text = start.decode(errors="replace")
    # Quick, because most scripts have no header and there may be thousands of them.
    if "rankwise:" not in text:
        return silent()
    lines = [
        (number, found["rest"], found.start("rest"))
        for number, line in enumerate(text.splitlines()[:_MOST_LINES], start=1)
        if (found := _HEADER.fullmatch(line))
    ]
    said = tuple(rest for _, rest, _ in lines)
    if said and said not in _KNOWN:
        _KNOWN[said] = _read_all(path, lines)
    return _KNOWN[said] if said else silent()


def _read_all(path: Path, lines: Iterable[tuple[int, str, int]]) -> Header:
    from rankwise.documents.suite import Header

    contents = LocatedMapping(written.SourcePosition(1, 1))
    problems: list[Problem] = []
    for number, rest, column in lines:
        problems += _read(rest, number, column, contents)
    header, found = validated(Header, contents)
    problems += found
    if header is None or problems:
        raise written.as_error(printable_name(path), problems)
    return header


def _read(text: str, line: int, before: int, contents: LocatedMapping) -> list[Problem]:
    """Put `name=value` words into a mapping, each with its place; return the problems."""
    problems = []
    for word in _WORD.finditer(text):
        at = written.SourcePosition(line, before + word.start() + 1)
        name, equals, value = word[0].partition("=")
        if not equals:
            problems.append(Problem(at, f"must be `name=value`, not {quoted(word[0])}"))
        elif name in contents:
            problems.append(Problem(at, f"`{name}` is there already"))
        else:
            value_at = written.SourcePosition(line, at.column + len(name) + 1)
            contents.put(name, written.resolve(value), at, value_at)
    return problems
