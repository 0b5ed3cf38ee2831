"""Models of jobs: fields, defaults, and fields that do not go together."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from rankwise.documents.jobs import (
    CommandJob,
    MpiDistribution,
    MpiJob,
    PytorchDistribution,
    PytorchJob,
    ResourceLimits,
    TensorflowDistribution,
    TensorflowJob,
)
from tests.documents.conftest import complaints_about, parsed

FULL = """\
$schema: ./rankwise.schema.json
type: TensorflowJob
name: full
experiment_name: 42
description: All there is.
tags: {version: 1.10, on: yes, stable: true, 2024: 007}
environment_variables:
  OMP_NUM_THREADS: 1
  RATIO: 1.10
  VERBOSE: true
  COUNTRY: no
  PORT: 0080
  EMPTY: ''
secrets: [HF_TOKEN, API_KEY]
inputs:
  rate: 1e-4
  data: {type: uri_folder, path: ./data, mode: ro_mount}
timeout: 1h30m
restart: {max: 2, on_exit_codes: [75, 137], scope: gang}
success: chief
chief:
  num_replicas: 1
  spec: {command: python chief.py, code: ./src, resource_limits: {cpu: 500m, memory: 2Gi}}
worker:
  num_replicas: 2
  spec:
    command: python train.py --rate ${{inputs.rate}} --data ${{ inputs.data }}
    code: {path: ./src}
    environment: azureml:tensorflow-2.3:1
  resource_limits: {gpu: 4}
parameter_server:
  spec: {command: true}
evaluator:
  spec: {command: python evaluate.py}
compute: {type: AmlCompute, target: azureml:gpu-cluster, instance_count: 3}
"""


def test_a_document_with_every_field() -> None:
    job = parsed(FULL)
    assert isinstance(job, TensorflowJob)
    assert (job.name, job.experiment_name, job.timeout) == ("full", "42", 5400.0)
    assert job.secrets == ("HF_TOKEN", "API_KEY")
    assert {name: given.text for name, given in job.inputs.items()} == {
        "rate": "1e-4",
        "data": "./data",
    }
    assert job.restart is not None
    assert (job.restart.max, job.restart.on_exit_codes) == (2, (75, 137))
    assert job.restart.scope == "gang"
    assert job.success == "chief"
    assert (job.compute.target, job.compute.instance_count) == ("gpu-cluster", 3)
    assert job.parameter_server is not None
    assert job.parameter_server.spec.command == "true"


def test_numbers_and_truth_values_are_text_as_written_where_text_is_wanted() -> None:
    job = parsed(FULL)
    assert isinstance(job, TensorflowJob)
    assert job.tags == {"version": "1.10", "on": "yes", "stable": "true", "2024": "007"}
    assert job.environment_variables == {
        "OMP_NUM_THREADS": "1",
        "RATIO": "1.10",
        "VERBOSE": "true",
        "COUNTRY": "no",
        "PORT": "0080",
        "EMPTY": "",
    }
    assert {type(value) for value in job.environment_variables.values()} == {str}


def test_limits_stand_within_the_spec_or_beside_it() -> None:
    job = parsed(FULL)
    assert isinstance(job, TensorflowJob)
    assert job.chief is not None
    assert job.chief.limits == ResourceLimits(cpu=0.5, memory=2**31)
    assert job.worker.limits == ResourceLimits(gpu=4)
    assert job.parameter_server is not None
    assert job.parameter_server.limits == ResourceLimits()


def test_code_may_be_a_path_alone() -> None:
    job = parsed(FULL)
    assert isinstance(job, TensorflowJob)
    assert job.chief is not None
    assert job.chief.spec.code == job.worker.spec.code


def test_the_least_that_each_job_needs() -> None:
    mpi = parsed("type: MpiJob\nlauncher: {spec: {command: mpirun x}}\n")
    assert isinstance(mpi, MpiJob)
    assert (mpi.compute.target, mpi.compute.instance_count, mpi.worker) == ("", None, None)
    assert (mpi.success, mpi.timeout, mpi.restart) == ("all", None, None)
    torch = parsed("type: PytorchJob\nworker: {spec: {command: x}}\n")
    assert isinstance(torch, PytorchJob)
    assert (torch.worker.num_replicas, torch.worker.spec.environment) == (None, "")
    assert isinstance(parsed("type: TensorflowJob\nworker: {spec: {command: x}}\n"), TensorflowJob)


def test_launcher_and_worker_may_have_different_environments() -> None:
    job = parsed(
        "type: MpiJob\nlauncher: {spec: {command: x, environment: a}}\nworker: {spec: {environment: b}}\n"
    )
    assert isinstance(job, MpiJob)
    assert job.worker is not None
    assert (job.launcher.spec.environment, job.worker.spec.environment) == ("a", "b")


def test_what_is_there_but_empty_counts_as_left_out() -> None:
    job = parsed(
        "type: PytorchJob\nname:\nsecrets:\nenvironment_variables:\nrestart:\ncompute:\ntags:\n"
        "worker: {num_replicas: , spec: {command: x, code: , resource_limits: {gpu: }}}\n"
    )
    assert job == parsed("type: PytorchJob\nworker: {spec: {command: x, resource_limits: {}}}\n")


def test_anchors_share_what_roles_have_in_common() -> None:
    job = parsed(
        "type: TensorflowJob\nworker: &worker\n  num_replicas: 4\n  spec: {command: x}\n"
        "parameter_server: {<<: *worker, num_replicas: 2}\nchief: {spec: {command: y}}\n"
    )
    assert isinstance(job, TensorflowJob)
    assert job.parameter_server is not None
    assert (job.parameter_server.num_replicas, job.worker.num_replicas) == (2, 4)
    assert job.parameter_server.spec == job.worker.spec


def test_models_cannot_be_changed() -> None:
    job = parsed(FULL)
    with pytest.raises(ValidationError):
        job.name = "other"


MPI = "type: MpiJob\nlauncher: {spec: {command: x}}\n"
TORCH = "type: PytorchJob\nworker: {spec: {command: x}}\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (MPI + "worker: {spec: {command: x}}", "3:17: unknown field `command`: the command of `launcher` starts the workers; leave it out"),
        (MPI + "success: chief", "3:10: `success` must be `all` or `launcher`, not 'chief'"),
        (MPI + "success: al", "3:10: `success` must be `all` or `launcher`, not 'al'; did you mean `all`?"),
        (MPI + "worker: {num_replicas: 2}\ncompute: {instance_count: 4}", "3:10: `worker.num_replicas` (2) and `compute.instance_count` (4) are both the number of nodes; keep one of them"),
        ("type: MpiJob\nlauncher: {num_replicas: 2, spec: {command: x}}", "2:26: `launcher.num_replicas` must be at most 1, not 2"),
        ("type: MpiJob\nlauncher: {spec: {}}", "2:12: `command` is missing in `launcher.spec`"),
        ("type: MpiJob\nlauncher: {}", "2:1: `spec` is missing in `launcher`"),
        ("type: MpiJob\nlauncher: {spec: {command: ''}}", "2:28: `launcher.spec.command` must not be empty"),
        ("type: MpiJob\nlauncher:\n  spec:\n    command:\n", "4:5: `launcher.spec.command` is empty; give it a value, or leave it out"),
        ("# none\ntype: PytorchJob", "2:1: `worker` is missing"),
        (TORCH + "success: launcher", "3:10: `success` must be `all` or `chief`, not 'launcher'"),
        (TORCH + "command: x", "3:1: unknown field `command`: put it into the `spec` of a role"),
        ("type: PytorchJob\nworker: {num_replicas: 0, spec: {command: x}}", "2:24: `worker.num_replicas` must be at least 1, not 0"),
        ("type: PytorchJob\nworker: {command: y, spec: {command: x}}", "2:10: unknown field `command`: put it into `spec`"),
        ("type: PytorchJob\nworker: {resource_limits: {cpu: 1}, spec: {command: x, resource_limits: {gpu: 1}}}", "2:10: `resource_limits` stands in `spec` as well; keep one of them"),
        (TORCH + "secrets: [A, B]\nenvironment_variables:\n  C: 1\n  B: hunter2", "6:3: `B` is one of `secrets` too; leave its value out here"),
        (TORCH + "secrets: [A, B, A]", "3:17: this name is in `secrets` already"),
        (TORCH + "secrets: [TOKEN=hunter2]", "3:11: `secrets[1]` must be the name of an environment variable, never what it holds"),
        (TORCH + "secrets: hunter2", "3:10: `secrets` must be a list of names of environment variables, such as `[HF_TOKEN]`"),
        (TORCH + "environment_variables: [A=1]", "3:24: `environment_variables` must be a mapping of `name: value` lines, not a list"),
        (TORCH + "environment_variables: {A: [1]}", "3:28: `environment_variables.A` must be text, not a list"),
        (TORCH + "environment_variables: {A: }", "3:25: `environment_variables.A` is empty; give it a value, or leave it out"),
        (TORCH + "environment_variables: {A-B: 1}", "3:25: `environment_variables.A-B` must be a name of letters, digits and `_`, no digit first, not 'A-B'"),
        (TORCH + "restart: {}", "3:1: `max` is missing in `restart`"),
        (TORCH + "restart: {max: 1, scope: rank}", "3:26: `restart.scope` must be `gang`, not 'rank'"),
        (TORCH + "restart: {max: 1, on_exit_codes: 3}", "3:34: `restart.on_exit_codes` must be a list, not 3"),
        (TORCH + "restart: 3", "3:10: `restart` must be a mapping of `name: value` lines, not 3"),
        ("type: PytorchJob\nworker: {spec: {command: y, environment_variables: {A: 1}}}", "2:29: unknown field `environment_variables`: put it at the top, beside `type`"),
        ("type: PytorchJob\nworker: {timeout: 3, spec: {command: y}}", "2:10: unknown field `timeout`: put it at the top, beside `type`"),
        ("type: PytorchJob\nworker: {spec: {command: y, num_replicas: 3}}", "2:29: unknown field `num_replicas`: put it into `worker`"),
        (TORCH + "compute: {nodes: 3}", "3:11: unknown field `nodes`: did you mean `instance_count`?"),
        (TORCH + "inputs: {a: {value: 1, path: x}}", "3:24: an input has `value` or `path`, not both"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_said_at_its_place(text: str, message: str) -> None:
    assert complaints_about(text) == [message]


def test_clashes_are_found_in_contents_without_places_too() -> None:
    with pytest.raises(ValidationError, match="stands in `spec` as well"):
        PytorchJob.model_validate(
            {
                "type": "PytorchJob",
                "worker": {
                    "resource_limits": {"gpu": 1},
                    "spec": {"command": "x", "resource_limits": {"gpu": 1}},
                },
            }
        )


# Command jobs, as Azure ML has them

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
        ("environment: [x]", "3:14: `environment` must be a mapping of `name: value` lines, not a list"),
        ("environment: {images: x}", "3:15: unknown field `images`: did you mean `image`?"),
        ("environment: {image: x, build: {path: y}}", "3:15: an environment has `build` or `image`, not both"),
        ("inputs: {a: [1]}", "3:13: `inputs.a` must be a mapping of `name: value` lines, not a list"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_at_its_place(more: str, message: str) -> None:
    assert complaints_about(LEAST + more) == [message]


# References to inputs, and inputs themselves

JOB = "type: PytorchJob\ninputs: {rate: 1, data: x}\nworker:\n  spec:\n    command: run "


@pytest.mark.parametrize(
    "command", ["${{inputs.rate}} ${{ inputs.data }}", "$HOME ${HOME} {{x}} $"]
)
def test_references_to_inputs_are_known(command: str) -> None:
    job = parsed(JOB + command)
    assert isinstance(job, PytorchJob)
    assert job.worker.spec.command == f"run {command}"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("${{inputs.rat}}", "`${{inputs.rat}}`: `inputs` has no `rat`; did you mean `rate`?"),
        ("${{inputs.xyz}}", "`${{inputs.xyz}}`: `inputs` has no `xyz`; add it to `inputs`"),
        ("${{inputs}}", "`${{inputs}}`: `inputs` has no ``; add it to `inputs`"),
        ("${{outputs.x}}", "`${{outputs.x}}` is unknown here; there is `${{inputs.NAME}}`"),
    ],
)
def test_a_reference_to_nothing_is_a_mistake(command: str, message: str) -> None:
    assert complaints_about(JOB + command) == [f"5:5: {message}"]


def test_every_role_is_looked_through() -> None:
    text = "type: TensorflowJob\n" + "".join(
        f"{role}: {{spec: {{command: '${{{{inputs.x}}}}'}}}}\n"
        for role in ("worker", "chief", "parameter_server", "evaluator")
    )
    assert len(complaints_about(text)) == 4


def test_a_text_full_of_beginnings_of_references_is_only_text() -> None:
    assert isinstance(parsed(JOB + "${{" * 50_000), PytorchJob)


def test_an_input_needs_something_to_put_in() -> None:
    text = "type: PytorchJob\nworker: {spec: {command: x}}\ninputs:\n  a: {type: uri_file}\n  b:\n"
    assert complaints_about(text) == [
        "4:6: an input needs `value` or `path`",
        "5:3: `inputs.b` is empty; give it a value, or leave it out",
    ]
