"""Verbs that only deal with documents: validate, schema, init."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from rankwise.cli.documents import CI_FILES, ci_file
from rankwise.documents.load import TYPES, choices_of
from rankwise.errors import InputError
from tests.cli.conftest import Said
from tests.documents.json_schema_subset import is_valid
from tests.export.exporting import DOCUMENTS, EXAMPLES, read_back

Rankwise = Callable[..., Said]


def test_types_are_listed_with_what_they_are(rankwise: Rankwise) -> None:
    lines = rankwise("init").out.splitlines()
    assert [line.split()[0] for line in lines] == list(TYPES)
    assert all(len(line.split()) > 2 for line in lines)


@pytest.mark.parametrize("name", TYPES)
def test_a_document_to_start_from_is_valid(rankwise: Rankwise, name: str, project: Path) -> None:
    (project / "src").mkdir()
    said = rankwise("init", name, "job.yaml")
    assert said.code == 0
    found = re.fullmatch(
        r"created job\.yaml: edit (.+)\nto see what it would run:  rankwise plan job\.yaml\n",
        said.out,
    )
    assert found, said
    document = YAML(typ="safe").load(Path("job.yaml"))
    for field in re.split(", | and ", found[1]):
        value = document
        for part in field.split("."):
            value = value[part]
        assert value, field
    assert Path("job.yaml").read_text() == rankwise("init", name).out
    said = rankwise("validate", "job.yaml")
    assert (said.code, said.out.splitlines()[-1]) == (0, "job.yaml: ok")


# What starters leave open, by type: all options that it has, and what they become.
CHOICES = {
    "MpiJob": ("--nodes=3 --ranks=6 --on=x", "-np 6 |instance_count: 3|target: x"),
    "PytorchJob": ("--nodes=3 --ranks=6 --on=x", "per_instance: 6|instance_count: 3|target: x"),
    "TensorflowJob": ("--nodes=3 --on=x", "num_replicas: 3|instance_count: 3|target: x"),
    "command": (
        "--launcher=mpi --nodes=3 --ranks=6 --on=x",
        "type: mpi|instance_count: 3|per_instance: 6|compute: x",
    ),
    "Pipeline": ("--on=x", "\non: x\n"),
    "Suite": ("--ranks=6 --launcher=pytorch --on=x", " ranks: 6| launcher: pytorch|compute: x"),
    "Sweep": ("--nodes=1,3 --ranks=2 --on=x", "nodes: [1, 3]|ranks_per_node: [2]|compute: x"),
    "Matrix": ("--runtimes=current,p --on=local,x", "\n  p: p\n|\n  x:\n    compute: x\n"),
}


@pytest.mark.parametrize("name", TYPES)
def test_what_a_starter_leaves_open_is_an_option(
    rankwise: Rankwise, name: str, project: Path
) -> None:
    site = '[compute.x]\nbackend = "local"\n[runtime.p]\ncurrent = true\n'
    (project / "rankwise.toml").write_text(site)
    options, becomes = CHOICES[name]
    said = rankwise("init", name, "job.yaml", *options.split())
    assert said.code == 0, said
    text = Path("job.yaml").read_text()
    for part in becomes.split("|"):
        assert part in text
    assert "@" not in text
    assert rankwise("validate", "job.yaml", "--strict").code == 0
    given = {option.partition("=")[0].strip("-") for option in options.split()}
    assert given == choices_of(name).keys()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("Suite --launcher ppi", "--launcher must be `mpi` or `pytorch`, not 'ppi'"),
        ("Pipeline --ranks 2", "--ranks: a document of the type Pipeline has --on"),
        ("MpiJob --nodes 0", "--nodes must be a whole number from 1, not '0'"),
        ("MpiJob --nodes 1,2", "--nodes must be a whole number from 1, not '1,2'"),
        (
            "Sweep --ranks 1,x",
            "--ranks must be a whole number from 1, or several with commas between them, not '1,x'",
        ),
        ("MpiJob --on gpu", '--on gpu: compute "gpu" is not in rankwise.toml; write [compute.gpu]'),
        ("Matrix --runtimes current,p", '--runtimes p: runtime "p" is not in rankwise.toml'),
    ],
)
def test_a_wrong_answer_is_refused_and_nothing_is_written(
    rankwise: Rankwise, words: str, complaint: str
) -> None:
    said = rankwise("init", *words.split(), "job.yaml")
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith(f"rankwise: {complaint}")
    assert not Path("job.yaml").exists()


class Terminal(io.StringIO):
    """A stream that is taken for a terminal."""

    def isatty(self) -> bool:
        return True


def asked(
    rankwise: Rankwise, monkeypatch: pytest.MonkeyPatch, answers: str, *words: str
) -> tuple[str, str]:
    """Return what `init` asks on a terminal with these answers, and the document that it writes."""
    monkeypatch.setattr(sys, "stdin", Terminal(answers))
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    assert rankwise("init", *words).code == 0
    return terminal.getvalue(), Path("job.yaml").read_text()


def test_a_terminal_is_asked_for_what_no_option_says(
    rankwise: Rankwise, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("command", "job.yaml", "--nodes=1")
    questions, text = asked(rankwise, monkeypatch, "mip\nmpi\n\n\n", *words)
    assert questions == (
        "What starts the ranks (pytorch or mpi)? [pytorch] "
        "--launcher must be `pytorch` or `mpi`, not 'mip'; did you mean `mpi`?\n"
        "What starts the ranks (pytorch or mpi)? [pytorch] "
        "How many ranks on each node? [2] "
        "Which compute? [local] "
    )
    assert "type: mpi\n  process_count_per_instance: 2\n" in text


def test_what_is_not_answered_is_as_usual(
    rankwise: Rankwise, monkeypatch: pytest.MonkeyPatch, project: Path
) -> None:
    # A site file that is wrong: nothing is asked for ever because of it.
    (project / "rankwise.toml").write_text("[compute.x]\n")
    questions, text = asked(rankwise, monkeypatch, "", "Matrix", "job.yaml")
    assert questions == "Which runtimes? [current] Which computes? [local] "
    assert text == rankwise("init", "Matrix").out


@pytest.mark.parametrize("words", [("Suite", "job.yaml", "--yes"), ("Suite", "job.yaml", "-y")])
def test_with_yes_nothing_is_asked(
    rankwise: Rankwise, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    questions, text = asked(rankwise, monkeypatch, "4\n", *words)
    assert questions == ""
    assert "# ranks: 4\n" in text


def test_a_site_file_that_others_can_write_ends_every_verb_that_would_obey_it(
    rankwise: Rankwise, project: Path
) -> None:
    rankwise("init", "command", "job.yaml")
    (project / "rankwise.toml").write_text("")
    (project / "rankwise.toml").chmod(0o666)
    for words in (("plan", "job.yaml"), ("run", "job.yaml"), ("doctor",)):
        said = rankwise(*words)
        assert said.code == 2, said
        assert f"{project}/rankwise.toml: chmod o-w {project}/rankwise.toml" in said.err.replace(
            "go-w", "o-w"
        )
    assert not (project / ".rankwise" / "runs").exists()


def test_the_site_file_that_counts_is_named(
    rankwise: Rankwise, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "rankwise.toml").write_text("")
    inner = project / "inner"
    inner.mkdir()
    monkeypatch.chdir(inner)
    Path("src").mkdir()
    rankwise("init", "command", "job.yaml")
    planned = "".join(rankwise("plan", "job.yaml").out.split())
    assert f"thesitefileis{project}/rankwise.toml" in planned
    assert f"site file {project}/rankwise.toml\n" in rankwise("doctor").out


def test_doctor_checks_a_compute_that_stands_for_many_when_it_is_named(
    rankwise: Rankwise, project: Path
) -> None:
    (project / "rankwise.toml").write_text('[compute."odd*"]\nbackend = "local"\n')
    assert "it is this machine" not in rankwise("doctor").out
    said = rankwise("doctor", "odd*")
    assert (said.code, said.out) == (0, "odd*\n  ok    it is this machine\n")


def test_a_file_that_is_there_is_left_alone(rankwise: Rankwise) -> None:
    Path("job.yaml").write_text("mine")
    said = rankwise("init", "MpiJob", "job.yaml")
    assert said.code == 2
    assert said.err.startswith("rankwise: job.yaml: the file exists")
    assert Path("job.yaml").read_text() == "mine"


def test_a_place_that_cannot_be_written_is_reported(rankwise: Rankwise) -> None:
    said = rankwise("init", "MpiJob", "missing/job.yaml")
    assert said.code == 2
    assert said.err == (
        "rankwise: missing/job.yaml: cannot be written: No such file or directory\n"
    )


def test_a_folder_that_cannot_be_made_is_reported(rankwise: Rankwise) -> None:
    Path(".github").touch()
    said = rankwise("init", "--ci", "github", "suite.yaml")
    assert said.code == 2
    assert said.err == "rankwise: .github/workflows: cannot be made: Not a directory\n"


def test_a_wrong_type_is_refused_with_the_nearest(rankwise: Rankwise) -> None:
    said = rankwise("init", "MpiJbo")
    assert said.code == 2
    assert "MpiJob" in said.err


def test_validate_reports_all_errors_in_all_documents(rankwise: Rankwise) -> None:
    rankwise("init", "MpiJob", "good.yaml")
    Path("src").mkdir()
    Path("bad.yaml").write_text("type: MpiJob\nlauncer: 1\ncompute: {instance_cout: 2}\n")
    said = rankwise("validate", "bad.yaml", "missing.yaml", "good.yaml")
    assert said.code == 2
    assert said.out.splitlines()[-1] == "good.yaml: ok"
    assert "bad.yaml:2:1" in said.err
    assert "instance_count" in said.err
    assert "missing.yaml" in said.err
    assert "Traceback" not in said.err


def test_the_schema_is_json(rankwise: Rankwise) -> None:
    said = rankwise("schema")
    assert said.code == 0
    assert "$defs" in json.loads(said.out)


# `rankwise plan --on` a Kubernetes: every example of a job, in words and as pods
# With a pod for the launcher of MPI, and one for each parameter server.
NODES = {
    "mpi/amlcompute.yaml": (5, 16),
    "mpi/command-job.yaml": (3, 4),
    "mpi/horovodrun.yaml": (5, 16),
    "mpi/k8s.yaml": (5, 16),
    "pytorch/command-job.yaml": (2, 4),
    "pytorch/k8s.yaml": (4, 16),
    "pytorch/launch.yaml": (4, 16),
    "tensorflow/command-job.yaml": (2, 2),
    "tensorflow/k8s.yaml": (6, 6),
    "tensorflow/multiworker.yaml": (4, 4),
    "tensorflow/parameter-server.yaml": (6, 6),
}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_an_example_is_planned_for_a_cluster(
    rankwise: Rankwise, project: Path, document: str
) -> None:
    folder = document.partition("/")[0]
    shutil.copytree(EXAMPLES / folder, project / folder)
    nodes, processes = NODES[document]
    said = rankwise("plan", document, "--on", "k8s")
    assert said.code == 0, said.err
    lines = [line.strip() for line in said.out.splitlines()]
    assert f"compute  k8s, {nodes} nodes, {processes} processes" in lines
    assert any(line.startswith("runtime  ") and f"{folder}-jobs:1" in line for line in lines)
    assert any("python train.py" in line for line in lines)
    if folder == "mpi":
        assert f"launcher 0 on node {nodes - 1}" in lines
    # What is written has a pod for each node; without a launcher's, one more that looks after them.
    written = rankwise("export", document, "--to", "kubernetes", "--on", "k8s")
    assert written.code == 0, written.err
    pods = [int(count) for count in re.findall(r"(?m)^  completions: (\d+)$", written.out)]
    assert sum(pods) == nodes + (folder != "mpi")


# Files for a CI: they are what the CI reads, and what they run, runs

ROOT = Path(__file__).resolve().parents[2]
TEXT = {"type": "string"}
TEXTS = {"type": "array", "items": TEXT}


def mapping(required: list[str], **properties: Any) -> dict[str, Any]:
    """Return the schema of a mapping that has these keys and no others."""
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
    """Return the lines that a service would run, in their order."""
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


@pytest.mark.parametrize("service", CI_FILES)
def test_what_a_file_installs_is_what_we_are(service: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (install,) = [line for line in commands(service) if "pip install" in line]
    # A name alone would be looked up on an index, where it may be another project's.
    assert install == f'python -m pip install "./{project["name"]}[mpi]"'
    assert "mpi" in project["optional-dependencies"]


@pytest.mark.parametrize("passes", [True, False])
def test_what_files_run_is_run_and_what_they_publish_is_there(tmp_path: Path, passes: bool) -> None:
    lines = [[line for line in commands(one) if line.startswith("rankwise")] for one in CI_FILES]
    assert all(some == lines[0] for some in lines)
    (tmp_path / "suite.yaml").write_text(f"type: Suite\ntests: ['{str(passes).lower()}']\n")
    codes = []
    for line in lines[0]:
        words = [sys.executable, "-m", "rankwise.cli.main", *line.split()[1:]]
        codes.append(subprocess.run(words, cwd=tmp_path, check=False).returncode)
    assert codes == [0 if passes else 1, 0]
    for service in CI_FILES:
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
        "created .github/workflows/rankwise.yml; it runs ci/suite.yaml on every pull request",
        "ci/suite.yaml does not exist yet; to begin with:  rankwise init Suite ci/suite.yaml",
    ]
    path = tmp_path / ".github/workflows/rankwise.yml"
    assert path.read_text() == ci_file("github", "ci/suite.yaml")[1]
    again = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert again.returncode == 2
    assert "the file exists" in again.stderr


# `rankwise export`: where it writes, and what it says
JOB = """\
type: MpiJob
launcher:
  spec: {command: mpirun -np 2 -bind-to none ./a, code: src, environment: "azureml:mpi:1"}
"""


@pytest.fixture
def jobs(project: Path) -> None:
    (project / "src").mkdir()
    for name in ("one", "two"):
        (project / f"{name}.yaml").write_text(JOB)


@pytest.mark.usefixtures("jobs")
def test_jobs_are_one_stream_with_notes_beside_it(rankwise: Rankwise) -> None:
    said = rankwise("export", "one.yaml", "two.yaml", "--to", "azureml")
    assert said.code == 0
    assert [job["display_name"] for job in read_back(said.out)] == ["one", "two"]
    lost = "launcher.spec.command: `-bind-to none`: Azure ML writes the mpirun itself (lost)"
    assert [line for line in said.err.splitlines() if "lost" in line] == [
        f"{name}.yaml:3:10: {lost}" for name in ("one", "two")
    ]


@pytest.mark.usefixtures("jobs")
def test_strictly_nothing_is_written_that_loses_anything(rankwise: Rankwise) -> None:
    said = rankwise("export", "one.yaml", "--to", "azureml", "--strict", "-o", "job.yaml")
    assert (said.code, said.out) == (2, "")
    assert "one.yaml:3:10: launcher.spec.command: `-bind-to none`" in said.err
    assert not Path("job.yaml").exists()
    Path("one.yaml").write_text(JOB.replace("-bind-to none ", ""))
    assert rankwise("export", "one.yaml", "--to", "azureml", "--strict").code == 0


@pytest.mark.usefixtures("jobs")
def test_files_and_folders(rankwise: Rankwise) -> None:
    assert rankwise("export", "one.yaml", "--to", "azureml", "-o", "made/job.yaml").out == ""
    [job] = read_back(Path("made/job.yaml").read_text())
    assert job["code"] == "../src"
    said = rankwise("export", "one.yaml", "two.yaml", "--to", "azureml", "-o", "all/")
    assert said.code == 0
    assert sorted(path.name for path in Path("all").iterdir()) == ["one.yaml", "two.yaml"]
    said = rankwise("export", "one.yaml", "--to", "azureml", "-o", "one.yaml/x")
    assert said.code == 2
    assert "one.yaml/x: cannot be written: " in said.err.splitlines()[-1]


@pytest.mark.usefixtures("jobs")
def test_an_unknown_recipient_is_answered_with_the_known_ones(rankwise: Rankwise) -> None:
    said = rankwise("export", "one.yaml", "--to", "kubflow")
    assert said.code == 2
    assert "kubeflow-v1" in said.err


@pytest.mark.usefixtures("jobs")
def test_export_reports_all_errors_in_all_documents(rankwise: Rankwise) -> None:
    Path("bad.yaml").write_text("type: MpiJob\n")
    said = rankwise("export", "bad.yaml", "one.yaml", "missing.yaml", "--to", "mpi-operator")
    assert (said.code, said.out) == (2, "")
    for name in ("bad.yaml", "one.yaml:3:75", "missing.yaml"):
        assert name in said.err


SUITE = "type: Suite\nname: s\ntests: [{run: 'true', name: one}, {run: 'true', name: two}]\n"


def test_options_may_be_in_a_file(project: Path, rankwise: Callable[..., Said]) -> None:
    (project / "s.yaml").write_text(SUITE)
    (project / "options.yaml").write_text("only: two\nrepeat: 2\njson: true\n")
    said = rankwise("plan", "s.yaml", "--with", "options.yaml")
    assert [task["key"] for task in json.loads(said.out)["tasks"]] == ["two.1", "two.2"], said
    # What is on the command line is stronger.
    said = rankwise("plan", "s.yaml", "--with", "options.yaml", "--repeat", "1", "--only", "one")
    assert [task["key"] for task in json.loads(said.out)["tasks"]] == ["one"], said


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("onlyy: two\n", "options.yaml: there is no option --onlyy; did you mean `--only`?"),
        ("only: [two\n", "options.yaml:2:1: expected `,` or `]` here"),
        ("only: one\nonly: two\n", "options.yaml:2:1: `only` stands twice"),
        ("shard: [1/2]\n", "options.yaml: shard has one value, not"),
        ("repeat: many\n", "Invalid value for '--repeat'"),
        (None, "options.yaml: there is no such file"),
    ],
)
def test_what_is_wrong_in_a_file_of_options_is_named(
    project: Path, rankwise: Callable[..., Said], text: str | None, complaint: str
) -> None:
    (project / "s.yaml").write_text(SUITE)
    if text is not None:
        (project / "options.yaml").write_text(text)
    said = rankwise("plan", "s.yaml", "--with", "options.yaml")
    assert said.code == 2, said
    assert complaint in said.err, said
