"""The JSON Schema and the starters agree with the reader."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rankwise.documents.load import TYPES, load, starter
from rankwise.documents.schema import json_schema, site_schema
from rankwise.documents.site import find_site
from rankwise.documents.yaml_reader import read_text
from rankwise.errors import InputError
from rankwise.wording import alternatives
from tests.documents.conftest import SEEDS, plain
from tests.documents.json_schema_subset import is_valid
from tests.documents.test_jobs import FULL, TYPICAL

SCHEMA = json_schema()
SITE = site_schema()
EXAMPLES = sorted(Path(__file__).parents[2].glob("examples/**/rankwise.toml"))
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


SITES = {
    **{path.parent.name: path.read_text() for path in EXAMPLES},
    "local": '[compute.local]\ncores = 2\n[compute.all]\nbackend = "local"\noversubscribe = true\n',
    "slurm": '[compute.a]\nbackend = "slurm"\ntime = 90\noptions = "--exclusive"\ngpus = 2\n',
    "ssh": '[compute.a]\nbackend = "ssh"\nhosts = ["b", "c"]\nmemory = "2Gi"\n',
    "command": '[compute.a]\nbackend = "command"\ncreate = "c"\nrun = "r ${{command}}"\ndelete = "d"\n',
    "kubernetes": '[compute.a]\nbackend = "kubernetes"\nuser = "image"\nlabels = { b = "c" }\n',
    "runtimes": '[runtime.a]\nimage = "b"\n[runtime.c]\ncurrent = true\n[defaults]\nruntime = "a"\n',
    "mail": '[notify.a]\nhost = "b"\nfrom = "c@d"\nto = ["e@f"]\nport = 25\n',
    "chat": '[notify.a]\nurl = "https://b"\nstyle = "teams"\n',
}


@pytest.mark.parametrize("name", SITES)
def test_a_site_file_that_is_read_is_valid(name: str, tmp_path: Path) -> None:
    (tmp_path / "rankwise.toml").write_text(SITES[name])
    find_site(tmp_path, environ={})
    assert is_valid(tomllib.loads(SITES[name]), SITE, SITE)


@pytest.mark.parametrize(
    "text",
    [
        '[compute.a]\nbackend = "slrum"\n',
        '[compute.a]\nbackend = "slurm"\npartitoin = "b"\n',
        '[compute.a]\nbackend = "ssh"\n',
        '[compute.local]\ncores = "many"\n',
        '[runtime.a]\nengine = "dockr"\nimage = "b"\n',
        '[notify.a]\nhost = "b"\n',
        "[runtimes.a]\ncurrent = true\n",
    ],
)
def test_a_site_file_that_is_refused_is_not_valid(text: str, tmp_path: Path) -> None:
    (tmp_path / "rankwise.toml").write_text(text)
    with pytest.raises(InputError):
        find_site(tmp_path, environ={})
    assert not is_valid(tomllib.loads(text), SITE, SITE)


def test_the_keys_of_the_site_file_are_described_where_their_class_does() -> None:
    slurm = SITE["$defs"]["SlurmTable"]["properties"]
    assert slurm["modules"]["description"] == "Modules to load first, in a login shell."
    assert slurm["cores"]["description"].startswith("Cores that tasks may use")


# Documents to start from


@pytest.mark.parametrize("name", TYPES)
def test_a_starter_is_a_document_of_its_type(name: str, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(starter(name))
    model = load(path).model
    assert model.type == name
    assert model.name.startswith("my-")


@pytest.mark.parametrize("name", TYPES)
def test_what_a_starter_leaves_out_can_be_put_in(name: str, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(re.sub(r"(?m)^( *)# ( *[a-z_]+:( .*)?)$", r"\1\2", starter(name)))
    assert path.read_text() != starter(name)
    assert load(path).model.type == name


@pytest.mark.parametrize("name", TYPES)
def test_a_starter_is_commented_and_fits_the_screen(name: str) -> None:
    lines = starter(name).splitlines()
    assert sum(line.lstrip().startswith("#") for line in lines) > 10
    assert max(map(len, lines)) <= 100


def test_an_unknown_type_has_no_starter() -> None:
    with pytest.raises(InputError) as caught:
        starter("mpijob")
    valid = alternatives([f"`{name}`" for name in TYPES])
    assert str(caught.value) == f"the type must be {valid}, not 'mpijob'; did you mean `MpiJob`?"
