"""The JSON Schema of documents and of the site file."""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import JsonSchemaMode, models_json_schema

from rankwise.documents.load import TYPES, model_of
from rankwise.documents.site_tables import SiteFile

_DRAFT = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of all documents, draft 2020-12."""
    mode: JsonSchemaMode = "validation"
    models = [(model_of(name), mode) for name in TYPES]
    references, definitions = models_json_schema(models, ref_template="#/$defs/{model}")
    parts = definitions["$defs"]
    _tidy(list(parts.values()))
    return {
        "$schema": _DRAFT,
        "title": "rankwise document",
        "description": "What `rankwise run` takes; `type` says which kind of document it is.",
        "type": "object",
        "oneOf": [references[each] for each in models],
        "$defs": parts,
    }


def site_schema() -> dict[str, Any]:
    """Return the JSON Schema of the site file, draft 2020-12."""
    schema = SiteFile.model_json_schema(ref_template="#/$defs/{model}")
    _tidy([schema, *schema["$defs"].values()])
    return {"$schema": _DRAFT, **schema}


def _tidy(schema: Any) -> None:
    """Remove keywords that are not JSON Schema, and defaults that only mean "left out"."""
    if isinstance(schema, list):
        for each in schema:
            _tidy(each)
    if not isinstance(schema, dict):
        return
    # A keyword of OpenAPI, which pydantic adds.
    schema.pop("discriminator", None)
    # None, and an empty text, list or mapping, is how models say that nothing is given.
    if not isinstance(schema.get("default"), (str, int)) or schema["default"] == "":
        schema.pop("default", None)
    for keyword, value in schema.items():
        # The keys of these are names that documents use, not keywords.
        if keyword in ("properties", "patternProperties"):
            _tidy(list(value.values()))
        else:
            _tidy(value)
