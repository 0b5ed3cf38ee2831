"""Say in plain words what is wrong with a document, all of it at once."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from rankwise.spec.base import Review
from rankwise.spec.mistakes import Mistake, code, listed, nearest, quoted
from rankwise.spec.values import OWN_WORDS
from rankwise.spec.written import Found, Section

# In the path of an error this says that the name of an entry is meant, not its value.
_KEY = "[key]"
# Valid names, as errors quote them.
_NAMES = re.compile(r"'([^']*)'")


def complaints(error: ValidationError, contents: Section, review: Review) -> list[Mistake]:
    """Make a mistake of each error of a validation, in the document's own terms."""
    details = error.errors(include_url=False)
    unknown: dict[tuple[int | str, ...], list[str]] = {}
    for each in details:
        if each["type"] == "extra_forbidden":
            unknown.setdefault(each["loc"][:-1], []).append(str(each["loc"][-1]))
    return [
        _complaint(each, contents, review)
        for each in details
        if not (each["type"] == "missing" and _is_misspelt(each["loc"], unknown))
    ]


def _is_misspelt(
    path: tuple[int | str, ...], unknown: Mapping[tuple[int | str, ...], Iterable[str]]
) -> bool:
    """Tell whether a missing field is there under a wrong name, about which enough is said."""
    return nearest(str(path[-1]), unknown.get(path[:-1], ())) is not None


def _complaint(error: ErrorDetails, contents: Section, review: Review) -> Mistake:
    path = error["loc"]
    match error["type"]:
        case "missing":
            return _missing(path, contents)
        case "extra_forbidden":
            return _unknown(path, contents, review)
        case "union_tag_not_found" if isinstance(error["input"], Section):
            return _missing((*path, "type"), contents)
        case "union_tag_invalid":
            kind = Found(contents, (*path, "type"))
            valid = _NAMES.findall(error["ctx"]["expected_tags"])
            return Mistake(kind.value_at, f"{code(kind.name)} {choice(kind.value, valid)}")
    found = Found(contents, path)
    at = found.key_at if path[-1:] == (_KEY,) else found.value_at
    name = code(found.name) if found.name else "the document"
    return Mistake(at, f"{name} {_words_for(error)}")


def _missing(path: Sequence[int | str], contents: Section) -> Mistake:
    parent = Found(contents, path[:-1])
    within = f" in {code(parent.name)}" if parent.name else ""
    return Mistake(parent.key_at, f"{code(str(path[-1]))} is missing{within}")


def _unknown(path: Sequence[int | str], contents: Section, review: Review) -> Mistake:
    name = str(path[-1])
    model = review.model_of(Found(contents, path[:-1]).value)
    fields = model.fields() if model else ()
    if model and name in model.hints:
        remedy = model.hints[name]
    elif field := nearest(name, fields):
        remedy = f"did you mean `{field}`?"
    else:
        remedy = f"there are {listed([f'`{each}`' for each in fields], 'and')}"
    return Mistake(Found(contents, path).key_at, f"unknown field {code(name)}: {remedy}")


def _words_for(error: ErrorDetails) -> str:
    kind, given = error["type"], error["input"]
    if kind == OWN_WORDS:
        return str(error["ctx"]["message"])
    if given is None:
        return "is empty; give it a value, or leave it out"
    return _WORDS.get(kind, _unlike_anything)(error)


def _unlike_anything(error: ErrorDetails) -> str:
    return f"is not valid: {quoted(error['input'])}"


def _must_be(what: str) -> Callable[[ErrorDetails], str]:
    return lambda error: f"must be {what}, not {quoted(error['input'])}"


def _one_of(error: ErrorDetails) -> str:
    return choice(error["input"], _NAMES.findall(error["ctx"]["expected"]))


def choice(given: object, valid: Sequence[str]) -> str:
    """Say which names are valid, and which of them was most likely meant."""
    meant = nearest(given, valid) if isinstance(given, str) else None
    remedy = f"; did you mean `{meant}`?" if meant else ""
    return f"must be {listed([f'`{each}`' for each in valid])}, not {quoted(given)}{remedy}"


_WORDS: dict[str, Callable[[ErrorDetails], str]] = {
    "string_type": _must_be("text"),
    "dict_type": _must_be("a mapping of `name: value` lines"),
    "model_type": _must_be("a mapping of `name: value` lines"),
    "tuple_type": _must_be("a list"),
    "list_type": _must_be("a list"),
    "literal_error": _one_of,
    "enum": _one_of,
    "model_attributes_type": _must_be("a mapping of `name: value` lines"),
    "union_tag_not_found": _must_be("a mapping of `name: value` lines"),
}
