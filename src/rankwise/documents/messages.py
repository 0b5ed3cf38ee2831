"""Say what pydantic found in the words of documents, with places and remedies."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from rankwise.documents.common import Model, ValidationContext
from rankwise.documents.values import OWN_WORDS
from rankwise.documents.written import LocatedMapping, Location, Problem
from rankwise.wording import alternatives, code, grouped, nearest, quoted

_M = TypeVar("_M", bound=Model)
# In the path of an error this says that the name of an entry is meant, not its value.
_KEY = "[key]"
# Valid names, as errors quote them.
_NAMES = re.compile(r"'([^']*)'")


def validated(
    model: type[_M], contents: LocatedMapping, context: ValidationContext | None = None
) -> tuple[_M | None, list[Problem]]:
    """Make a model of contents; None if they have problems, which come with it."""
    context = context or ValidationContext()
    try:
        made, problems = model.model_validate(contents, context=context), context.problems
    except ValidationError as error:
        made, problems = None, [*problems_of(error, contents, context), *context.problems]
    # Conflicts between fields are not pydantic's: it makes the model all the same.
    return (None if problems else made), problems


def problems_of(
    error: ValidationError, contents: LocatedMapping, context: ValidationContext
) -> list[Problem]:
    """Make a problem of each error of a validation, in the document's own terms."""
    details = error.errors(include_url=False)
    # Names of unknown fields, by the mapping that has them: a missing field may be one of these,
    # misspelt. Then one message is enough.
    unknown = grouped(
        (each["loc"][:-1], str(each["loc"][-1]))
        for each in details
        if each["type"] == "extra_forbidden"
    )
    return [
        _problem_of(each, contents, context)
        for each in details
        if not (
            each["type"] == "missing"
            and nearest(str(each["loc"][-1]), unknown.get(each["loc"][:-1], ()))
        )
    ]


def _problem_of(
    error: ErrorDetails, contents: LocatedMapping, context: ValidationContext
) -> Problem:
    path = error["loc"]
    match error["type"]:
        case "missing":
            return _missing(path, contents)
        case "extra_forbidden":
            return _unknown(path, contents, context)
        # The field that decides about the type of a part is missing.
        case "union_tag_not_found" if isinstance(error["input"], LocatedMapping):
            return _missing((*path, _discriminator(error)), contents)
        case "union_tag_invalid":
            kind = Location(contents, (*path, _discriminator(error)))
            # pydantic has the valid names only in this text.
            valid = _NAMES.findall(error["ctx"]["expected_tags"])
            return Problem(kind.value_at, f"{code(kind.name)} {choice(kind.value, valid)}")
    found = Location(contents, path)
    at = found.key_at if path[-1:] == (_KEY,) else found.value_at
    name = code(found.name) if found.name else "the document"
    return Problem(at, f"{name} {_words_for(error, context)}")


def _discriminator(error: ErrorDetails) -> str:
    return str(error["ctx"]["discriminator"]).strip("'")


def _missing(path: Sequence[int | str], contents: LocatedMapping) -> Problem:
    parent = Location(contents, path[:-1])
    within = f" in {code(parent.name)}" if parent.name else ""
    return Problem(parent.key_at, f"{code(str(path[-1]))} is missing{within}")


def _unknown(
    path: Sequence[int | str], contents: LocatedMapping, context: ValidationContext
) -> Problem:
    name = str(path[-1])
    model = context.model_of(Location(contents, path[:-1]).value)
    fields = model.fields() if model else ()
    if model and (said := model.hint_for(name)):
        remedy = said
    elif outer := _outer_with(name, path, contents, context):
        remedy = outer
    elif field := nearest(name, fields):
        remedy = f"did you mean `{field}`?"
    else:
        remedy = f"there are {alternatives([f'`{each}`' for each in fields], 'and')}"
    return Problem(Location(contents, path).key_at, f"unknown field {code(name)}: {remedy}")


def _outer_with(
    name: str, path: Sequence[int | str], contents: LocatedMapping, context: ValidationContext
) -> str:
    """Return where a field belongs that a part around it has; empty: none has it."""
    for end in range(len(path) - 2, -1, -1):
        around = Location(contents, path[:end])
        model = context.model_of(around.value)
        # Each part has a `type` of its own; a site file has no fields of this kind at its top.
        if model and name in model.fields() and name != "type":
            if around.name:
                return f"put it into {code(around.name)}"
            return "put it at the top, beside `type`" if "type" in model.fields() else ""
    return ""


def _words_for(error: ErrorDetails, context: ValidationContext) -> str:
    given = error["input"]
    match error["type"]:
        case kind if kind == OWN_WORDS:
            return str(error["ctx"]["message"])
        # pydantic would say that None is not a string. Its error comes from required fields only.
        case _ if given is None:
            return "is empty; give it a value, or leave it out"
        case "literal_error" | "enum":
            return choice(given, _NAMES.findall(error["ctx"]["expected"]))
        case "string_type":
            # In YAML a number is text as well, in TOML it is not.
            what = "text" if isinstance(given, Mapping | list) else "text in quotes"
        case "int_type" | "int_parsing" | "int_from_float":
            what = "a whole number"
        case "float_type" | "float_parsing":
            what = "a number"
        case "bool_type" | "bool_parsing":
            what = "true or false"
        case "tuple_type" | "list_type":
            what = "a list"
        case "dict_type" | "model_type" | "model_attributes_type" | "union_tag_not_found":
            what = context.mapping
        case _:
            return f"is not valid: {quoted(given)}"
    return f"must be {what}, not {quoted(given)}"


def choice(given: object, valid: Sequence[str]) -> str:
    """Say which names are valid, and which of them was most likely meant."""
    # The empty name stands for a field that is left out, and is not to be written.
    valid = [name for name in valid if name]
    meant = nearest(given, valid) if isinstance(given, str) else None
    remedy = f"; did you mean `{meant}`?" if meant else ""
    return f"must be {alternatives([f'`{each}`' for each in valid])}, not {quoted(given)}{remedy}"
