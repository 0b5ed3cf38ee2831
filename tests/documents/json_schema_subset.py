"""Check contents by a JSON Schema: the keywords that ours uses, and no other."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

_NOTES = {"title", "description", "examples", "default", "$schema", "$defs", "x-rankwise"}
_TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, (int, float)) and not isinstance(value, bool),
}


def is_valid(value: Any, schema: dict[str, Any], root: dict[str, Any]) -> bool:
    """Return whether a value follows a schema; a keyword that is not known here is an error."""
    return all(_CHECKS[keyword](value, schema, root) for keyword in schema if keyword not in _NOTES)


def _type(value: Any, schema: dict[str, Any], root: dict[str, Any]) -> bool:
    names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    return any(_TYPES[name](value) for name in names)


def _reference(value: Any, schema: dict[str, Any], root: dict[str, Any]) -> bool:
    start, defs, name = schema["$ref"].split("/")
    assert (start, defs) == ("#", "$defs")
    return is_valid(value, root["$defs"][name], root)


def _properties(value: Any, schema: dict[str, Any], root: dict[str, Any]) -> bool:
    if not isinstance(value, dict):
        return True
    return all(
        is_valid(value[name], part, root)
        for name, part in schema["properties"].items()
        if name in value
    )


def _pattern_properties(value: Any, schema: dict[str, Any], root: dict[str, Any]) -> bool:
    if not isinstance(value, dict):
        return True
    return all(
        is_valid(entry, part, root)
        for pattern, part in schema["patternProperties"].items()
        for name, entry in value.items()
        if re.search(pattern, name)
    )


def _additional(value: Any, schema: dict[str, Any], root: dict[str, Any]) -> bool:
    if not isinstance(value, dict):
        return True
    others = [entry for name, entry in value.items() if name not in schema.get("properties", {})]
    allowed = schema["additionalProperties"]
    if isinstance(allowed, bool):
        return allowed or not others
    return all(is_valid(entry, allowed, root) for entry in others)


def _number_of_matches(value: Any, schemas: list[dict[str, Any]], root: dict[str, Any]) -> int:
    return sum(is_valid(value, each, root) for each in schemas)


_CHECKS: dict[str, Callable[[Any, dict[str, Any], dict[str, Any]], bool]] = {
    "type": _type,
    "$ref": _reference,
    "properties": _properties,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional,
    "propertyNames": lambda value, schema, root: (
        not isinstance(value, dict)
        or all(is_valid(name, schema["propertyNames"], root) for name in value)
    ),
    "required": lambda value, schema, root: (
        not isinstance(value, dict) or all(name in value for name in schema["required"])
    ),
    "items": lambda value, schema, root: (
        not isinstance(value, list) or all(is_valid(each, schema["items"], root) for each in value)
    ),
    "anyOf": lambda value, schema, root: _number_of_matches(value, schema["anyOf"], root) > 0,
    "oneOf": lambda value, schema, root: _number_of_matches(value, schema["oneOf"], root) == 1,
    "not": lambda value, schema, root: not is_valid(value, schema["not"], root),
    "const": lambda value, schema, root: value == schema["const"],
    "enum": lambda value, schema, root: value in schema["enum"],
    "pattern": lambda value, schema, root: (
        not isinstance(value, str) or re.search(schema["pattern"], value) is not None
    ),
    "maxLength": lambda value, schema, root: (
        not isinstance(value, str) or len(value) <= schema["maxLength"]
    ),
    "minimum": lambda value, schema, root: (
        not _TYPES["number"](value) or value >= schema["minimum"]
    ),
    "maximum": lambda value, schema, root: (
        not _TYPES["number"](value) or value <= schema["maximum"]
    ),
    "exclusiveMinimum": lambda value, schema, root: (
        not _TYPES["number"](value) or value > schema["exclusiveMinimum"]
    ),
}
