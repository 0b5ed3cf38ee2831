"""Files for a CI: they are what the CI reads, and what they run, runs."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from rankwise.cli.documents import SERVICES, ci_file
from rankwise.errors import InputError
from tests.documents.json_schema_subset import is_valid

ROOT = Path(__file__).resolve().parents[2]
TEXT = {"type": "string"}
TEXTS = {"type": "array", "items": TEXT}


def mapping(required: list[str], **properties: Any) -> dict[str, Any]:
    """Give the schema of a mapping that has these keys and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


# What matters to us of the schemas that the services publish.
_STEP = mapping(
    [],
    name=TEXT,
    uses={"type": "string", "pattern": r"^[\w-]+/[\w-]+@v\d+$"},
    run=TEXT,
    **{"if": TEXT, "with": {"type": "object", "additionalProperties": TEXT}},
)
_BRANCHES = mapping(["include"], include=TEXTS)
_AZURE_STEP = mapping(
    [],
    task={"type": "string", "pattern": r"^\w+@\d+$"},
    script=TEXT,
    displayName=TEXT,
    condition=TEXT,
    inputs={"type": "object", "additionalProperties": {"type": ["string", "boolean"]}},
)
SCHEMAS: dict[str, dict[str, Any]] = {
    "github": mapping(
        ["on", "jobs"],
        name=TEXT,
        on=mapping(
            ["pull_request"],
            pull_request={"type": ["object", "null"]},
            push=mapping([], branches=TEXTS),
        ),
        permissions={"type": "object", "additionalProperties": {"enum": ["read", "write", "none"]}},
        jobs={
            "type": "object",
            "additionalProperties": mapping(
                ["runs-on", "steps"],
                **{
                    "runs-on": TEXT,
                    "timeout-minutes": {"type": "number"},
                    "steps": {"type": "array", "items": _STEP},
                },
            ),
        },
    ),
    "gitlab": {
        "type": "object",
        "additionalProperties": mapping(
            ["script"],
            image=TEXT,
            timeout=TEXT,
            rules={"type": "array", "items": mapping([], **{"if": TEXT})},
            before_script=TEXTS,
            script=TEXTS,
            after_script=TEXTS,
            artifacts=mapping(
                [],
                when={"enum": ["on_success", "on_failure", "always"]},
                paths=TEXTS,
                reports=mapping([], junit=TEXT),
            ),
        ),
    },
    "azure": mapping(
        ["steps"],
        trigger=TEXTS,
        pr=mapping(["branches"], branches=_BRANCHES),
        pool=mapping(["vmImage"], vmImage=TEXT),
        steps={"type": "array", "items": _AZURE_STEP},
    ),
}


def contents(service: str) -> Any:
    return YAML(typ="safe", pure=True).load(ci_file(service, "suite.yaml")[1])


def commands(service: str) -> list[str]:
    """Give the lines that a service would run, in their order."""
    text = ci_file(service, "suite.yaml")[1]
    match service:
        case "github":
            (job,) = contents(service)["jobs"].values()
            return [step["run"] for step in job["steps"] if "run" in step]
        case "gitlab":
            job = contents(service)["suite"]
            return [*job["before_script"], *job["script"], *job["after_script"]]
        case "azure":
            return [step["script"] for step in contents(service)["steps"] if "script" in step]
    return [line.replace(".venv/bin/", "") for line in re.findall(r"sh '([^']+)'", text)]


@pytest.mark.parametrize("service", SCHEMAS)
def test_a_file_follows_the_schema_of_its_service(service: str) -> None:
    schema = SCHEMAS[service]
    assert is_valid(contents(service), schema, schema)


def test_the_schemas_can_refuse() -> None:
    schema = SCHEMAS["github"]
    wrong = {**contents("github"), "job": {}}
    assert not is_valid(wrong, schema, schema)
    assert not is_valid({"on": {"push": {}}, "jobs": {}}, schema, schema)


def test_a_file_for_jenkins_has_the_sections_of_a_declarative_pipeline() -> None:
    text = ci_file("jenkins", "suite.yaml")[1]
    assert text.count("{") == text.count("}")
    assert re.findall(r"^( *)(\w+) \{$", text, re.MULTILINE) == [
        ("", "pipeline"),
        ("    ", "options"),
        ("    ", "stages"),
        ("            ", "steps"),
        ("            ", "steps"),
        ("    ", "post"),
        ("        ", "always"),
    ]
    assert "junit 'results.xml'" in text


@pytest.mark.parametrize("service", SERVICES)
def test_what_a_file_installs_is_what_we_are(service: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (install,) = [line for line in commands(service) if "pip install" in line]
    assert install == f'python -m pip install "{project["name"]}[mpi]"'
    assert "mpi" in project["optional-dependencies"]


@pytest.mark.parametrize("passes", [True, False])
def test_what_files_run_is_run_and_what_they_publish_is_there(tmp_path: Path, passes: bool) -> None:
    lines = [[line for line in commands(one) if line.startswith("rankwise")] for one in SERVICES]
    assert all(some == lines[0] for some in lines)
    (tmp_path / "suite.yaml").write_text(f"type: Suite\ntests: ['{str(passes).lower()}']\n")
    codes = []
    for line in lines[0]:
        words = [sys.executable, "-m", "rankwise.cli.main", *line.split()[1:]]
        codes.append(subprocess.run(words, cwd=tmp_path, check=False).returncode)
    assert codes == [0 if passes else 1, 0]
    for service in SERVICES:
        for name in re.findall(r"[\w]+\.(?:xml|html|md)", ci_file(service, "suite.yaml")[1]):
            assert (tmp_path / name).stat().st_size, name


@pytest.mark.parametrize(
    ("service", "document", "complaint"),
    [
        ("git-hub", "suite.yaml", "--ci git-hub: there is github, gitlab, azure, jenkins; did you"),
        ("github", "a b.yaml", "'a b.yaml': a path in a CI file is made of"),
        ("github", "$(x)", "a path in a CI file is made of"),
        ("github", "/etc/x", "begins in the folder of the repository"),
    ],
)
def test_what_cannot_be_written_is_refused(service: str, document: str, complaint: str) -> None:
    with pytest.raises(InputError) as caught:
        ci_file(service, document)
    assert complaint in str(caught.value)


def test_init_writes_the_file_where_the_service_looks_and_never_over_another(
    tmp_path: Path,
) -> None:
    words = [sys.executable, "-m", "rankwise.cli.main", "init", "--ci", "github", "ci/suite.yaml"]
    said = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert said.stdout.splitlines() == [
        ".github/workflows/rankwise.yml is there; it runs ci/suite.yaml on every pull request",
        "ci/suite.yaml is not there yet; to begin with:  rankwise init Suite ci/suite.yaml",
    ]
    path = tmp_path / ".github/workflows/rankwise.yml"
    assert path.read_text() == ci_file("github", "ci/suite.yaml")[1]
    again = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert again.returncode == 2
    assert "it is there already" in again.stderr
