"""The JSON Schema and the reader agree."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from rankwise.spec.documents import TYPES
from rankwise.spec.reader import read_text
from rankwise.spec.schema import json_schema
from rankwise.spec.starters import starter
from tests.spec.conftest import SEEDS, plain
from tests.spec.json_schema_subset import is_valid
from tests.spec.test_command_job import TYPICAL
from tests.spec.test_models import FULL

SCHEMA = json_schema()
GOOD = {
    **{path.stem: path.read_text() for path in SEEDS},
    **{name: starter(name) for name in TYPES},
    "typical": TYPICAL.replace("  plots:\n", ""),
    "full": FULL.replace("42", "'42'").replace("command: true", "command: 'true'"),
}


def validates(text: str) -> bool:
    return is_valid(plain(read_text(text, "x").contents), SCHEMA, SCHEMA)


def parts_of(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        for each in value.values():
            yield from parts_of(each)
    elif isinstance(value, list):
        for each in value:
            yield from parts_of(each)


@pytest.mark.parametrize("name", GOOD)
def test_what_the_reader_takes_is_valid(name: str) -> None:
    assert validates(GOOD[name])


@pytest.mark.parametrize(
    "text",
    [
        "type: MpiJob",
        "type: mpijob\nlauncher: {spec: {command: x}}",
        "command: x",
        "type: PytorchJob\nworker: {spec: {command: x}}\ncompute: {instance_cout: 4}",
        "type: PytorchJob\nworker: {spec: {command: x}}\ncompute: {instance_count: 0}",
        "type: PytorchJob\nworker: {spec: {command: x}}\nname: a b",
        "type: PytorchJob\nworker: {spec: {command: x}}\nsuccess: launcher",
        "type: PytorchJob\nworker: {spec: {command: x}}\ntimeout: '1:30'",
        "type: PytorchJob\nworker: {spec: {command: x, resource_limits: {memory: 2gb}}}",
        "type: PytorchJob\nworker: {spec: {command: x}}\nrestart: {max: 1, on_exit_codes: [0]}",
        "type: MpiJob\nlauncher: {num_replicas: 2, spec: {command: x}}",
        "type: command\ncommand: x\ndistribution: {type: ray}",
        "type: command\ncommand: x\ndistribution: {type: mpi, worker_count: 1}",
    ],
)
def test_what_the_reader_refuses_is_not_valid(text: str) -> None:
    assert not validates(text)


def test_it_is_json_of_the_draft_that_it_names() -> None:
    assert json.loads(json.dumps(SCHEMA)) == SCHEMA
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert len(SCHEMA["oneOf"]) == len(TYPES)


def test_every_reference_leads_somewhere_and_every_part_is_used() -> None:
    named = {part["$ref"] for part in parts_of(SCHEMA) if "$ref" in part}
    assert named == {f"#/$defs/{name}" for name in SCHEMA["$defs"]}


def test_every_field_and_every_part_is_described() -> None:
    silent = [
        f"{part.get('title')}.{name}"
        for part in parts_of(SCHEMA["$defs"])
        if isinstance(part.get("properties"), dict) and part.get("type") == "object"
        for name, described in part["properties"].items()
        if not described.get("description")
    ]
    assert silent == []
    assert [name for name, part in SCHEMA["$defs"].items() if not part.get("description")] == []


def test_nothing_of_the_library_shows() -> None:
    text = json.dumps(SCHEMA)
    assert "discriminator" not in text
    assert "pydantic" not in text
    assert '"default": null' not in text


def test_defaults_are_valid_themselves() -> None:
    with_default = [part for part in parts_of(SCHEMA["$defs"]) if "default" in part]
    assert with_default
    assert [part for part in with_default if not is_valid(part["default"], part, SCHEMA)] == []
