"""Command lines, as operators are given them."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwise.export.commands import escaped, with_dollars
from tests.export.exporting import example, job_in, templates_in, written

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
