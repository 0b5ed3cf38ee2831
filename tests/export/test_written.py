"""Whatever a job is called, what is written has names that Kubernetes takes."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]  # it has no types of its own
import pytest
import yaml  # type: ignore[import-untyped]  # it has no types of its own
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise.backends.kubernetes.objects import dns_name
from rankwise.export.base import TARGETS, to_yaml, unique
from rankwise.export.commands import escaped, with_dollars
from tests.export.exporting import example, job_in, read_back, templates_in, written
from tests.lengths import part

LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20)
# As documents may have them, and what they may say of variables and tags.
NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,90}", fullmatch=True)


@given(NAMES, NAMES)
def test_names_are_of_dns_and_never_the_same(first: str, second: str) -> None:
    taken: set[str] = set()
    names = [unique(dns_name(one, 40), taken) for one in (first, second, first)]
    assert len(set(names)) == len(names)
    for name in names:
        assert LABEL.fullmatch(f"{name}-worker-1023")


@settings(max_examples=part(8, 200), deadline=None)
@given(
    name=NAMES,
    value=TEXT,
    line=st.text("ab $(){}'\"\\;|&#~:-\n", min_size=1, max_size=30).filter(str.strip),
    target=st.sampled_from([name for name in TARGETS if name != "azureml"]),
)
def test_hostile_jobs_are_written_and_read_back(
    name: str, value: str, line: str, target: str
) -> None:
    document = {
        "type": "MpiJob",
        "name": name,
        "experiment_name": f"x{value}",
        "tags": {f"t{value}": value},
        "environment_variables": {"A": value},
        "launcher": {"spec": {"command": f"mpirun -np 2 {line}", "code": "src"}},
        "compute": {"instance_count": 2},
    }
    with TemporaryDirectory() as folder:
        made = written(Path(folder), to_yaml([document]), target)
    found = read_back(to_yaml(made.objects))
    assert found == list(made.objects)
    for one in found:
        metadata = one["metadata"]
        assert LABEL.fullmatch(metadata["name"])
        assert all(VALUE.fullmatch(label) for label in metadata["labels"].values())
        for template in templates_in(one):
            if "image" in template["spec"]["containers"][0]:
                wrapped = {"apiVersion": "v1", "kind": "PodTemplate", "template": template}
                kubernetes_validate.validate(wrapped, "1.36", strict=True)


# What is written is read back, by readers of both versions of YAML

# Surrogates are no characters: nothing that was read from a file has them.
TEXTS = st.text(st.characters(exclude_categories=["Cs"])) | st.text(
    "ab: #-'\"|>\n\t\\{}[]$&*!%@`~=,?"
)
VALUES = st.recursive(
    TEXTS | st.integers() | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=part(120, 3000), deadline=None)
@given(st.lists(st.dictionaries(TEXTS, VALUES, min_size=1, max_size=4), min_size=1, max_size=2))
def test_whatever_is_written_is_read_back_the_same(documents: list[dict[str, Any]]) -> None:
    text = to_yaml(documents)
    assert read_back(text) == documents
    assert list(yaml.safe_load_all(text)) == documents


@pytest.mark.parametrize(
    "text",
    [
        *("on", "Off", "yes", "NO", "y", "n", "true", "null", "~", "", "None", ".nan", "nan"),
        *("1", "010", "0o7", "0x1f", "1e3", "1_000", "12:30", "1:30:00", "-1", "+1", ".5", "1."),
        *(
            "2026-01-02",
            "<<",
            "=",
            "a: b",
            "a #b",
            "- a",
            "? a",
            "a:",
            " a",
            "a ",
            "&a",
            "*a",
            "!a",
        ),
        *("%a", "@a", "`a`", "a\\b", "'a'", '"a"', "---", "...", "a\nb", "a\n", "\na", " a\nb\n\n"),
        *("a\r\nb", "a\x85b", "a\u2028b", "\ufeffa", "\x00", "\x7f", "a\tb", "ä", "\U0001f600"),
    ],
)
def test_a_text_stays_a_text(text: str) -> None:
    shown = to_yaml([{"key": text, text: [text]}])
    for found in (read_back(shown), list(yaml.safe_load_all(shown))):
        assert found == [{"key": text, text: [text]}]


def test_people_can_read_it() -> None:
    data = {"kind": "Job", "spec": {"args": ["a", {"b": 1, "c": []}], "run": "one\n  two\n"}}
    assert to_yaml([data, {"a": "azureml:x:1"}]) == (
        "kind: Job\nspec:\n  args:\n    - a\n    - b: 1\n      c: []\n"
        "  run: |\n    one\n      two\n---\na: azureml:x:1\n"
    )


# Command lines, as operators are given them

TORCH = """
type: PytorchJob
worker:
  spec:
    command: {command}
    code: src
    environment: some
compute: {{instance_count: {nodes}}}
"""


def kubernetes_expands(text: str, variables: dict[str, str]) -> str:
    """Do what Kubernetes does with `$(NAME)` and `$$` in commands and variables."""
    made, at = "", 0
    while at < len(text):
        if text[at] != "$" or at + 1 == len(text):
            made, at = made + text[at], at + 1
        elif text[at + 1] == "$":
            made, at = made + "$", at + 2
        elif text[at + 1] == "(" and (end := text.find(")", at)) > 0:
            name = text[at + 2 : end]
            made, at = made + variables.get(name, f"$({name})"), end + 1
        else:
            made, at = made + text[at : at + 2], at + 2
    return made


@given(st.text("$()aA B", max_size=12))
def test_kubernetes_leaves_what_is_for_the_shell(text: str) -> None:
    assert kubernetes_expands(escaped(text), {"a": "1", "A": "2", "": "3"}) == text


def test_what_needs_no_escape_has_none() -> None:
    assert escaped("$HOME ${HOME} a$") == "$HOME ${HOME} a$"
    assert escaped("$(id -u) $$") == "$$(id -u) $$$"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("run --hostfile NAME", "run --hostfile $NAME"),
        ("run --hostfile=NAME", "run --hostfile=$NAME"),
        ("run 'NAME' \"$NAME\" xNAME", "run 'NAME' \"$NAME\" xNAME"),
        ("mpirun -x NAME run", "mpirun -x NAME run"),
    ],
)
def test_names_of_variables_get_a_dollar(line: str, expected: str) -> None:
    name = "AZUREML_MPI_HOSTFILE"
    found = with_dollars(line.replace("NAME", name), [name])
    assert found == expected.replace("NAME", name)


def torch_script(made: Any) -> str:
    template = next(templates_in(job_in(made)))
    command: list[str] = template["spec"]["containers"][0]["command"]
    assert command[:2] == ["/bin/sh", "-c"]
    return command[2].replace("$$", "$")


def said_by(script: str, variables: dict[str, str], folder: Path) -> list[str]:
    """Run a script with a torchrun that says what it is given."""
    (folder / "torchrun").write_text('#!/bin/sh\nfor word; do echo "$word"; done\n')
    (folder / "torchrun").chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", "-c", script],
        env={"PATH": f"{folder}:/usr/bin:/bin", **variables},
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    return done.stdout.splitlines()


SHOWN = "echo $MASTER_ADDR $NODE_RANK $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE"
V1 = {"MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456", "RANK": "2", "WORLD_SIZE": "4"}


def test_one_process_a_pod_has_the_variables_of_a_rank(tmp_path: Path) -> None:
    made = written(tmp_path, TORCH.format(command=SHOWN, nodes=4), "kubeflow-v1")
    assert said_by(torch_script(made), V1, tmp_path) == ["job-master-0 2 2 4 0 1"]


def test_a_trainer_has_other_names_for_them(tmp_path: Path) -> None:
    made = written(
        tmp_path, TORCH.format(command=SHOWN, nodes=4), "kubeflow-trainer", code_in_image="/"
    )
    script = job_in(made)["spec"]["trainer"]["command"][2]
    theirs = {"PET_MASTER_ADDR": "there", "PET_MASTER_PORT": "29500", "PET_NODE_RANK": "3"}
    assert said_by(script, theirs, tmp_path) == ["there 3 3 4 0 1"]


def test_the_folder_of_the_code_may_have_blanks_in_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "it's here"
    folder.mkdir()
    text = TORCH.format(command="pwd", nodes=1)
    made = written(tmp_path, text, "kubeflow-trainer", code_in_image=str(folder))
    script = job_in(made)["spec"]["trainer"]["command"][2]
    assert said_by(script, {}, tmp_path) == [str(folder)]


def test_several_processes_a_pod_are_started_by_torch(tmp_path: Path) -> None:
    words = said_by(torch_script(example("pytorch/k8s.yaml", "kubeflow-v1")), V1, tmp_path)
    options = dict(zip(words[0:10:2], words[1:10:2], strict=True))
    assert options == {
        "--nnodes": "4",
        "--nproc_per_node": "4",
        "--node_rank": "2",
        "--master_addr": "job-master-0",
        "--master_port": "23456",
    }
    assert words[10:] == ["--no_python", "sh", "-c", "python train.py"]


def test_a_launcher_of_torch_stays_and_finds_its_variables() -> None:
    line = torch_script(example("pytorch/launch.yaml", "kubeflow-v1")).splitlines()[-1]
    words = shlex.split(line)
    assert words[words.index("--node_rank") + 1] == "$NODE_RANK"
    assert words[words.index("--master_addr") + 1] == "$MASTER_ADDR"
    assert words[-4:] == ["--use_env", "--no_python", "python", "train.py"]


def test_the_file_of_hosts_is_that_of_the_operator() -> None:
    launcher = next(templates_in(job_in(example("mpi/amlcompute.yaml", "mpi-operator"))))
    [container] = launcher["spec"]["containers"]
    assert "--hostfile $AZUREML_MPI_HOSTFILE -bind-to none" in container["command"][2]
    assert {"name": "AZUREML_MPI_HOSTFILE", "value": "/etc/mpi/hostfile"} in container["env"]


def test_an_mpirun_is_written_where_there_is_none() -> None:
    launcher = next(templates_in(job_in(example("mpi/command-job.yaml", "mpi-operator"))))
    line = launcher["spec"]["containers"][0]["command"][2]
    expected = "mpiexec -n 4 --hostfile /etc/mpi/hostfile python train.py"
    assert shlex.split(line) == shlex.split(expected)
