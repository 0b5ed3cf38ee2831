"""The JSON Schema of all documents, from which editors complete and check."""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import JsonSchemaMode, models_json_schema

from rankwise.spec.documents import TYPES


def json_schema() -> dict[str, Any]:
    """Describe all documents as JSON Schema, draft 2020-12."""
    mode: JsonSchemaMode = "validation"
    references, definitions = models_json_schema(
        [(model, mode) for model in TYPES.values()], ref_template="#/$defs/{model}"
    )
    parts = definitions["$defs"]
    _tidy(list(parts.values()))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "rankwise document",
        "description": "What `rankwise run` takes; `type` says which kind of document it is.",
        "type": "object",
        "oneOf": [references[model, mode] for model in TYPES.values()],
        "$defs": parts,
    }


def _tidy(schema: Any) -> None:
    """Remove what is no keyword of JSON Schema, and defaults that only say "left out"."""
    if isinstance(schema, list):
        for each in schema:
            _tidy(each)
    if not isinstance(schema, dict):
        return
    schema.pop("discriminator", None)
    if not isinstance(schema.get("default"), (str, int)) or schema["default"] == "":
        schema.pop("default", None)
    for keyword, value in schema.items():
        # The keys of these are names that documents use, not keywords.
        if keyword in ("properties", "patternProperties"):
            _tidy(list(value.values()))
        else:
            _tidy(value)
