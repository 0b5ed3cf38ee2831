"""Command jobs, as Azure ML has them."""

from __future__ import annotations

import pytest

from rankwise.documents.jobs import (
    CommandJob,
    MpiDistribution,
    PytorchDistribution,
    TensorflowDistribution,
)
from tests.documents.conftest import complaints_about, parsed

TYPICAL = """\
$schema: https://azuremlschemas.azureedge.net/latest/commandJob.schema.json
display_name: Digits on two nodes
description: Learns to read digits.
experiment_name: digits
code: src
command: >-
  python train.py
  --rate ${{inputs.rate}} --data ${{inputs.data}} --out ${{outputs.model}}
inputs:
  rate: 0.10
  data:
    type: uri_folder
    path: azureml:digits@latest
outputs:
  model:
    type: uri_folder
    mode: rw_mount
  plots:
environment: azureml:digits-environment@latest
environment_variables: {DEBUG: 1}
compute: azureml:gpu-cluster
distribution:
  type: pytorch
  process_count_per_instance: 2
resources:
  instance_count: 2
  instance_type: Standard_NC6
  shm_size: 8g
limits:
  timeout: 3600
services:
  board: {job_service_type: tensor_board}
tags: {stage: test}
"""


def typical() -> CommandJob:
    job = parsed(TYPICAL)
    assert isinstance(job, CommandJob)
    return job


def test_the_schema_of_azure_ml_stands_for_the_type() -> None:
    assert typical().type == "command"
    with_type = parsed(TYPICAL + "type: command\n")
    assert with_type == typical()


def test_all_fields_are_read() -> None:
    job = typical()
    assert job.code is not None
    assert (job.code.path, job.compute.target) == ("src", "gpu-cluster")
    assert (job.resources.instance_count, job.limits.timeout) == (2, 3600.0)
    assert job.distribution == PytorchDistribution(type="pytorch", process_count_per_instance=2)
    assert {name: given.text for name, given in job.inputs.items()} == {
        "rate": "0.10",
        "data": "azureml:digits@latest",
    }
    assert list(job.outputs) == ["model", "plots"]


def test_fields_that_are_only_read_are_named() -> None:
    assert typical().without_effect() == (
        "resources.instance_type",
        "resources.shm_size",
        "services",
    )


def test_the_least_that_it_needs() -> None:
    job = parsed("type: command\ncommand: hostname\n")
    assert isinstance(job, CommandJob)
    assert (job.resources.instance_count, job.distribution, job.compute.target) == (
        1,
        None,
        "",
    )
    assert job.without_effect() == ()


@pytest.mark.parametrize(
    ("written", "distribution"),
    [
        ("{type: mpi}", MpiDistribution(type="mpi", process_count_per_instance=1)),
        ("{type: pytorch}", PytorchDistribution(type="pytorch", process_count_per_instance=1)),
        (
            "{type: tensorflow, worker_count: 3, parameter_server_count: 1}",
            TensorflowDistribution(type="tensorflow", worker_count=3, parameter_server_count=1),
        ),
        ("{type: tensorflow}", TensorflowDistribution(type="tensorflow")),
    ],
)
def test_distributions(written: str, distribution: object) -> None:
    job = parsed(f"type: command\ncommand: x\ndistribution: {written}\n")
    assert isinstance(job, CommandJob)
    assert job.distribution == distribution


LEAST = "type: command\ncommand: x\n"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("distribution: {type: PyTorch}", "3:22: `distribution.type` must be `mpi`, `pytorch` or `tensorflow`, not 'PyTorch'; did you mean `pytorch`?"),
        ("distribution: {type: ray}", "3:22: `distribution.type` must be `mpi`, `pytorch` or `tensorflow`, not 'ray'"),
        ("distribution: {type: [mpi]}", "3:22: `distribution.type` must be `mpi`, `pytorch` or `tensorflow`, not a list"),
        ("distribution: {process_count_per_instance: 2}", "3:1: `type` is missing in `distribution`"),
        ("distribution: mpi", "3:15: `distribution` must be a mapping of `name: value` lines, not 'mpi'"),
        ("distribution: {type: mpi, process_count_per_instance: two}", "3:55: `distribution.process_count_per_instance` must be a whole number, not 'two'"),
        ("distribution: {type: mpi, worker_count: 2}", "3:27: unknown field `worker_count`: there are `type` and `process_count_per_instance`"),
        ("distribution: {type: mpi, process_count: 2}", "3:27: unknown field `process_count`: did you mean `process_count_per_instance`?"),
        ("resources: {instance_count: 2}", "3:13: 2 nodes need a `distribution` that says how they work together"),
        ("compute: {target: a, instance_count: 2}", "3:22: in a command job the number of nodes is `resources.instance_count`"),
        ("timeout: 3", "3:1: unknown field `timeout`: put it into `limits`"),
        ("environment: {image: x}", "3:14: `environment` must be text, not a mapping"),
        ("inputs: {a: [1]}", "3:13: `inputs.a` must be a mapping of `name: value` lines, not a list"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_at_its_place(more: str, message: str) -> None:
    assert complaints_about(LEAST + more) == [message]
