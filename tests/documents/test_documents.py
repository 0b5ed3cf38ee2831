"""Documents: from files to models, and the errors of each field."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankwise.documents import common
from rankwise.documents.jobs import CommandJob, MpiJob, PytorchJob, TensorflowJob
from rankwise.documents.load import TYPES, load, model_of
from rankwise.documents.written import MOST_SHOWN, Problem, Scalar, SourcePosition, as_error
from rankwise.errors import InputError
from rankwise.wording import alternatives, clipped, nearest, printable_name, quoted
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


# All mistakes at once, in plain words

WRONG = """\
name: bad name!
type: MpiJob
launcher:
  spec:
    commands: mpirun -np four
    code: {pth: 3}
    environment: [a]
worker:
  num_replicas: four
  resource_limits: {gpu: "4", memory: 2gb}
timeout: 1:30
secrets: [A, hunter-2]
environment_variables:
  A: 1
success: everybody
compute:
  instance_cout: 4
  target:
    name: x
frobnicate: 1
name: twice
description: {}
"""


def test_every_mistake_is_told_at_once_and_in_order() -> None:
    assert complaints_about(WRONG) == [
        "1:7: `name` must be made of letters, digits, `.`, `_` and `-`, a letter or a digit first, not 'bad name!'",
        "5:5: unknown field `commands`: did you mean `command`?",
        "6:12: unknown field `pth`: did you mean `path`?",
        "7:18: `launcher.spec.environment` must be text, not a list",
        "9:17: `worker.num_replicas` must be a whole number, not 'four'",
        "10:26: `worker.resource_limits.gpu` must be a whole number, not the text '4'; leave the quotes out",
        "10:39: `worker.resource_limits.memory` must be a size: a number of bytes, or such as 500M, 2Gi (with a capital letter), not '2gb'",
        "11:10: `timeout` must be a time: a number of seconds, or such as 90s, 10m, 1h30m, not '1:30'",
        "12:14: `secrets[2]` must be the name of an environment variable, never what it holds",
        "14:3: `A` is one of `secrets` too; leave its value out here",
        "15:10: `success` must be `all` or `launcher`, not 'everybody'",
        "17:3: unknown field `instance_cout`: did you mean `instance_count`?",
        "19:5: `compute.target` must be text, not a mapping",
        "20:1: unknown field `frobnicate`: there are `type`, `name`, `experiment_name`, `description`, `tags`, `$schema`, `environment_variables`, `secrets`, `inputs`, `restart`, `compute`, `timeout`, `launcher`, `worker`, `process_count_per_instance` and `success`",
        "21:1: `name` stands twice; the first is in line 1",
        "22:14: `description` must be text, not a mapping",
    ]


@pytest.mark.parametrize(
    ("field", "meant"),
    [
        ("instance_cout", "instance_count"),
        ("instanceCount", "instance_count"),
        ("Target", "target"),
        ("instances_count", "instance_count"),
        ("node_count", "instance_count"),
    ],
)
def test_the_nearest_field_is_named(field: str, meant: str) -> None:
    text = f"type: PytorchJob\nworker: {{spec: {{command: x}}}}\ncompute: {{{field}: 1}}\n"
    assert complaints_about(text) == [f"3:11: unknown field `{field}`: did you mean `{meant}`?"]


def test_a_field_under_a_wrong_name_is_not_missing_as_well() -> None:
    assert complaints_about("type: PytorchJob\nworkr: {spec: {commands: x}}\n") == [
        "2:1: unknown field `workr`: did you mean `worker`?"
    ]
    assert complaints_about("type: PytorchJob\nworker: {spec: {commands: x}}\n") == [
        "2:17: unknown field `commands`: did you mean `command`?"
    ]


def test_an_unknown_field_that_is_empty_is_a_mistake_too() -> None:
    assert complaints_about("type: PytorchJob\nworker: {spec: {command: x}}\nworkers:\n") == [
        "3:1: unknown field `workers`: did you mean `worker`?"
    ]


def test_mistakes_within_an_alias_have_the_place_where_they_were_written() -> None:
    text = (
        "type: TensorflowJob\nworker: &worker\n  spec: {command: x, cod: y}\n"
        "parameter_server: *worker\n"
    )
    assert complaints_about(text) == ["3:22: unknown field `cod`: did you mean `code`?"]


def test_names_and_values_that_are_long_or_strange_are_shown_safely() -> None:
    text = f'type: command\ncommand: x\n"\\e[31m{"x" * 500}": 1\nlimits: {{timeout: "\\a"}}\n'
    first, second = complaints_about(text)
    assert first.startswith("3:1: unknown field `\\x1b[31m" + "x" * 55 + "…`: there are `type`, ")
    assert second.endswith(", not '\\x07'")


# Mistakes: their order, their number, and what is safe to repeat of what a user wrote


def test_mistakes_come_in_the_order_of_the_document_and_once_each() -> None:
    late, early = Problem(SourcePosition(10, 1), "late"), Problem(SourcePosition(2, 30), "early")
    first = Problem(SourcePosition(2, 4), "first")
    error = as_error("job.yaml", [late, early, first, late])
    assert str(error) == "job.yaml:2:4: first\njob.yaml:2:30: early\njob.yaml:10:1: late"


def test_more_mistakes_than_anybody_reads_are_counted() -> None:
    found = [Problem(SourcePosition(line, 1), "wrong") for line in range(1, MOST_SHOWN + 8)]
    lines = str(as_error("job.yaml", found)).split("\n")
    assert len(lines) == MOST_SHOWN + 1
    assert lines[-1] == "job.yaml: and 7 more mistakes"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("four", "'four'"),
        ("it's", "'it's'"),
        ("a\nb\x1b[31m", r"'a\nb\x1b[31m'"),
        ("x" * 100, f"'{'x' * 60}…'"),
        (Scalar.of("1.10", 1.1), "1.10"),
        (None, "empty"),
        ({}, "a mapping"),
        ([], "a list"),
        (True, "true"),
        (3, "3"),
    ],
)
def test_what_was_written_is_quoted_on_one_short_line(value: object, shown: str) -> None:
    assert quoted(value) == shown


def test_a_long_name_is_clipped() -> None:
    assert clipped("n" * 61) == "n" * 60 + "…"


@pytest.mark.parametrize(
    ("names", "phrase"),
    [([], ""), (["a"], "a"), (["a", "b"], "a or b"), (["a", "b", "c"], "a, b or c")],
)
def test_names_are_joined_into_a_phrase(names: list[str], phrase: str) -> None:
    assert alternatives(names) == phrase


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("instance_cout", "instance_count"),
        ("instanceCount", "instance_count"),
        ("Instance-Count", "instance_count"),
        ("targets", "target"),
        ("frobnicate", None),
        ("", None),
    ],
)
def test_the_nearest_name_is_found_whatever_its_spelling(name: str, meant: str | None) -> None:
    assert nearest(name, ["target", "instance_count"]) == meant


def test_a_file_name_is_shown_so_that_every_terminal_can_print_it() -> None:
    assert printable_name(Path("dir/jöb.yaml")) == "dir/jöb.yaml"
    assert printable_name(Path("a\nb\x1b.yaml")) == r"a\nb\x1b.yaml"
    assert printable_name(Path("bad\udcff.yaml")) == r"bad\udcff.yaml"


def test_what_is_said_of_a_field_that_does_not_exist_names_fields_that_do() -> None:
    hints = tomllib.loads(Path(common.__file__).with_name("hints.toml").read_text())
    models = {one.__name__: one for one in below(common.Model)}
    assert hints
    for name, said in hints.items():
        for names, remedy in said.items():
            assert not {*names.split()} & {*models[name].fields()}, (name, names)
            meant = re.match(r"did you mean `(\w+)[`:]", remedy)
            assert meant is None or meant[1] in models[name].fields(), (name, remedy)


def below(model: type[common.Model]) -> Iterator[type[common.Model]]:
    """Return all models made of one, once those of every type of document are loaded."""
    assert all(map(model_of, TYPES))
    for one in model.__subclasses__():
        yield one
        yield from below(one)
