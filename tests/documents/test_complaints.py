"""All mistakes at once, in plain words."""

from __future__ import annotations

import pytest

from tests.documents.conftest import complaints_about

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
