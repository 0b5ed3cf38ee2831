"""`rankwise schema`."""

from __future__ import annotations

import json


def command() -> None:
    """Print the JSON Schema of documents, for editors.

    \b
    For example:
      rankwise schema > rankwise.schema.json
      # then, as the first line of a document:
      # yaml-language-server: $schema=rankwise.schema.json
    """
    from rankwise.spec.schema import json_schema

    print(json.dumps(json_schema(), indent=2))
