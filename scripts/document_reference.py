"""Write the reference of all documents from their JSON Schema.

python scripts/document_reference.py > docs/spec-reference.md"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from rankwise.documents.load import TYPES, model_of, starter
from rankwise.documents.schema import json_schema
from rankwise.documents.yaml_reader import DEEPEST, MOST_BYTES, MOST_VALUES
from rankwise.wording import alternatives

_HEAD = Path(__file__).with_name("document_reference.md")
"""How the page begins."""


def reference() -> str:
    """Return the page with all fields, as Markdown."""
    parts = _parts()
    models = {name: model_of(name).__name__ for name in TYPES}
    lines = [
        _HEAD.read_text(encoding="utf-8").format(
            types=alternatives([f"[`{name}`](#{each.lower()})" for name, each in models.items()]),
            bytes=MOST_BYTES,
            values=MOST_VALUES,
            levels=DEEPEST,
        )
    ]
    for name, model in models.items():
        lines += _section(model, parts[model])
        lines += [f"To start from (`rankwise init {name}`):", "", "```yaml"]
        lines += [starter(name).rstrip("\n"), "```", ""]
    lines += ["# Parts of documents", ""]
    for name in sorted(parts.keys() - {*models.values()}):
        if _mapping_of(parts[name]):
            lines += _section(name, parts[name])
    return "\n".join(lines).rstrip("\n") + "\n"


@cache
def _parts() -> Any:
    return json_schema()["$defs"]


def _mapping_of(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema of a mapping with fields, which may be the long form of a text."""
    every = (schema, *schema.get("anyOf", ()))
    return next((each for each in every if "properties" in each), {})


def _section(name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    mapping = _mapping_of(schema)
    required = mapping.get("required", ())
    yield from (f"## {name}", "", schema.get("description", ""), "")
    yield from ("| field | value | meaning | if left out |", "| --- | --- | --- | --- |")
    for field, described in mapping["properties"].items():
        shown = f"**`{field}`**" if field in required else f"`{field}`"
        meaning = described.get("description", "")
        cells = (shown, _value(described), meaning, _default(described))
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
    yield ""


def _value(schema: Mapping[str, Any]) -> str:
    words = _words(schema)
    examples = [f"`{_flow(each)}`" for each in schema.get("examples", ())]
    return f"{words}, such as {alternatives(examples)}" if examples else words


def _words(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        return _link(schema["$ref"].rpartition("/")[2])
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return alternatives([f"`{each}`" for each in schema["enum"]])
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        # null only says that the field may be empty, as every field may.
        found = [_words(each) for each in choices if each.get("type") != "null"]
        return alternatives(list(dict.fromkeys(found)))
    return _words_for_type(schema)


def _words_for_type(schema: Mapping[str, Any]) -> str:
    match schema.get("type"):
        case "integer":
            upper = f" to {schema['maximum']}" if "maximum" in schema else ""
            return f"whole number from {schema['minimum']}{upper}"
        case "array":
            return f"list: {_words(schema['items'])}"
        case "object":
            values = schema.get("additionalProperties")
            for each in schema.get("patternProperties", {}).values():
                values = each
            return f"names, each with {_words(values)}" if isinstance(values, dict) else "mapping"
        case list():
            return "text or number"
        case kind:
            return {"number": "number", "string": "text"}.get(str(kind), "anything")


def _link(name: str) -> str:
    schema = _parts()[name]
    if _mapping_of(schema):
        return f"[{name}](#{name.lower()})"
    return _words(schema)


def _default(schema: Mapping[str, Any]) -> str:
    default = schema.get("default")
    is_told = isinstance(default, str | int | float) and default != ""
    return f"`{default}`" if is_told else ""


def _flow(value: object) -> str:
    """Write a value as YAML does on one line."""
    match value:
        case dict():
            return "{" + ", ".join(f"{key}: {_flow(each)}" for key, each in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(_flow, value)) + "]"
    return str(value)


if __name__ == "__main__":
    print(reference(), end="")
