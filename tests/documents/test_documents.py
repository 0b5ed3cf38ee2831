"""From a file to a document."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwise.documents.jobs import CommandJob, MpiJob, PytorchJob, TensorflowJob
from rankwise.documents.load import TYPES, load, model_of
from rankwise.errors import InputError
from rankwise.wording import alternatives
from tests.documents.conftest import SEEDS, complaints_about

LEAST = "type: PytorchJob\nworker: {spec: {command: x}}\n"
VALID = alternatives([f"`{name}`" for name in TYPES])


def test_there_are_eight_seeds() -> None:
    assert len(SEEDS) == 8


@pytest.mark.parametrize("path", SEEDS, ids=lambda path: path.stem)
def test_a_seed_is_a_document(path: Path) -> None:
    document = load(path)
    assert (document.path, document.text) == (path, path.read_text())
    assert type(document.model) is model_of(document.model.type)
    assert document.model.name.startswith("sample-")


def seed(name: str) -> Path:
    return next(path for path in SEEDS if path.stem == name)


def test_the_seeds_say_what_they_mean() -> None:
    mpi = load(seed("mpi-k8s")).model
    assert isinstance(mpi, MpiJob)
    assert mpi.launcher.spec.command.startswith("mpirun -np 16 --allow-run-as-root -bind-to none")
    assert mpi.launcher.limits.memory == 2**31
    assert mpi.worker is not None
    assert mpi.worker.limits.gpu == 4
    assert mpi.compute.instance_count is None
    torch = load(seed("pytorch-launch")).model
    assert isinstance(torch, PytorchJob)
    assert torch.worker.spec.environment == "azureml:pytorch-1.7:1"
    assert (torch.compute.target, torch.compute.instance_count) == ("gpu-cluster", 4)
    tensorflow = load(seed("tensorflow-k8s")).model
    assert isinstance(tensorflow, TensorflowJob)
    assert tensorflow.parameter_server is not None
    assert tensorflow.parameter_server.num_replicas == 2
    assert tensorflow.parameter_server.limits.cpu == 1.0
    assert tensorflow.parameter_server.spec.code is not None
    assert tensorflow.parameter_server.spec.code.path == "./src"


@pytest.mark.parametrize(
    ("file", "name"),
    [("train.yaml", "train"), ("my job.v2.yml", "my-job.v2"), ("日本.yaml", "document")],
)
def test_a_document_without_a_name_has_that_of_its_file(
    tmp_path: Path, file: str, name: str
) -> None:
    path = tmp_path / file
    path.write_text(LEAST)
    assert load(path).model.name == name


def test_a_name_goes_before_that_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "train.yaml"
    path.write_text(LEAST + "name: mine\n")
    assert load(path).model.name == "mine"


def test_every_line_of_an_error_begins_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("type: PytorchJob\nwrong: 1\nwrong: 2\n")
    with pytest.raises(InputError) as caught:
        load(path)
    lines = str(caught.value).split("\n")
    assert len(lines) == 3
    assert all(line.startswith(f"{path}:") for line in lines)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("mpijob", "MpiJob"),
        ("MPIJob", "MpiJob"),
        ("MpiJb", "MpiJob"),
        ("PyTorchJob", "PytorchJob"),
        ("TensorFlowJob", "TensorflowJob"),
        ("tensorflow_job", "TensorflowJob"),
        ("Command", "command"),
    ],
)
def test_an_almost_right_type_is_recognized(given: str, meant: str) -> None:
    first = complaints_about(f"name: x\ntype: {given}\n")[1]
    assert first == f"2:7: `type` must be {VALID}, not '{given}'; did you mean `{meant}`?"


@pytest.mark.parametrize(
    ("given", "shown"),
    [("Frob", "'Frob'"), ("[MpiJob]", "a list"), ("{}", "a mapping"), ("3", "3")],
)
def test_an_unknown_type_comes_with_the_valid_ones(given: str, shown: str) -> None:
    assert complaints_about(f"type: {given}") == [f"1:7: `type` must be {VALID}, not {shown}"]


@pytest.mark.parametrize("text", ["name: x\n", "name: x\ntype:\n"])
def test_a_missing_type_comes_with_the_valid_ones(text: str) -> None:
    line = 2 if "type" in text else 1
    assert complaints_about(text) == [f"{line}:1: `type` is missing; it must be {VALID}"]


def test_the_rest_is_checked_as_the_type_that_was_meant() -> None:
    assert complaints_about("type: pytorch_job\nworker: {spec: {command: x}}\ntimeouts: 3\n") == [
        f"1:7: `type` must be {VALID}, not 'pytorch_job'; did you mean `PytorchJob`?",
        "3:1: unknown field `timeouts`: did you mean `timeout`?",
    ]


def test_a_type_under_a_wrong_name_is_recognized() -> None:
    assert complaints_about("typ: PytorchJob\nworker: {spec: {command: x}}\n") == [
        "1:1: unknown field `typ`: did you mean `type`?"
    ]


def test_every_type_has_a_model_of_its_own() -> None:
    assert {"MpiJob", "PytorchJob", "TensorflowJob", "command", "Sweep"} <= TYPES.keys()
    assert model_of("command") is CommandJob
    for name, model in ((each, model_of(each)) for each in TYPES):
        assert name in str(model.model_fields["type"].annotation)
