"""The distributed jobs: MpiJob, PytorchJob and TensorflowJob."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from rankwise.spec.base import Clash, Model, mapping_in
from rankwise.spec.mistakes import code
from rankwise.spec.parts import Compute, Input, Restart, Tags, Variables, unknown_references
from rankwise.spec.roles import MpiWorker, Replicas, Single
from rankwise.spec.values import Count, Name, Seconds, Secrets, Text, Variable, number_in


class Success(StrEnum):
    """Whose success is the job's."""

    ALL = "all"
    LAUNCHER = "launcher"
    CHIEF = "chief"


class DocumentModel(Model):
    """What documents of every type may say about themselves."""

    type: Annotated[str, Field(description="What the document is.")]
    name: Annotated[
        Name,
        Field(
            description="Name of the runs; none given: that of the file.", examples=["train-mnist"]
        ),
    ] = ""
    experiment_name: Annotated[
        Text, Field(description="What the run is part of.", examples=["mnist"])
    ] = ""
    description: Annotated[str, Field(description="A note for people.")] = ""
    tags: Annotated[
        Tags, Field(description="Notes by which runs are found.", examples=[{"team": "vision"}])
    ] = Field(default_factory=dict)
    schema_uri: Annotated[
        Text,
        Field(
            alias="$schema",
            description="For editors: the JSON Schema that the document follows.",
            examples=["./rankwise.schema.json"],
        ),
    ] = ""


class Job(DocumentModel):
    """What all jobs have in common."""

    hints: ClassVar[Mapping[str, str]] = {
        "env": "did you mean `environment_variables`?",
        "command": "put it into the `spec` of a role",
        "instance_count": "put it into `compute`",
        "target": "put it into `compute`",
    }

    environment_variables: Annotated[
        Variables,
        Field(description="For all processes.", examples=[{"OMP_NUM_THREADS": 1}]),
    ] = Field(default_factory=dict)
    secrets: Annotated[
        Secrets,
        Field(
            description=(
                "Names of environment variables that are passed on from where `rankwise` is "
                "started. Their values are kept nowhere."
            ),
            examples=[["HF_TOKEN"]],
        ),
    ] = ()
    inputs: Annotated[
        dict[Variable, Input],
        Field(
            description="What `${{inputs.NAME}}` stands for in commands.",
            examples=[{"learning_rate": 0.01}],
        ),
    ] = Field(default_factory=dict)
    restart: Annotated[
        Restart | None, Field(description="When to start again; none given: never.")
    ] = None

    @classmethod
    def clashes(cls, contents: Mapping[str, Any]) -> Iterator[Clash]:
        secrets = contents.get("secrets")
        seen: set[str] = set()
        for index, name in enumerate(secrets if isinstance(secrets, list) else ()):
            if not isinstance(name, str):
                continue
            if name in mapping_in(contents, "environment_variables"):
                yield Clash(
                    ("environment_variables", name),
                    f"{code(name)} is one of `secrets` too; leave its value out here",
                )
            if name in seen:
                yield Clash(("secrets", index), "this name is in `secrets` already")
            seen.add(name)


class RoleJob(Job):
    """What the jobs made of roles have in common."""

    roles: ClassVar[tuple[str, ...]] = ()

    compute: Annotated[Compute, Field(description="Where to run, and on how many nodes.")] = Field(
        default_factory=Compute
    )
    timeout: Annotated[
        Seconds | None,
        Field(
            description="Longest run time of an attempt: seconds, or with units; none: no limit.",
            examples=["1h30m", 90],
        ),
    ] = None

    @classmethod
    def clashes(cls, contents: Mapping[str, Any]) -> Iterator[Clash]:
        yield from super().clashes(contents)
        known = {"inputs": mapping_in(contents, "inputs")}
        for role in cls.roles:
            command = mapping_in(contents, role, "spec").get("command")
            yield from unknown_references(command, (role, "spec", "command"), known)


class MpiJob(RoleJob):
    """A launcher that starts ranks on all nodes: mpirun, mpiexec, horovodrun."""

    roles: ClassVar[tuple[str, ...]] = ("launcher",)

    type: Annotated[Literal["MpiJob"], Field(description="Says that this is an MPI job.")]
    launcher: Annotated[Single, Field(description="What starts the ranks.")]
    worker: Annotated[
        MpiWorker | None, Field(description="The nodes on which the ranks are started.")
    ] = None
    process_count_per_instance: Annotated[
        Count | None,
        Field(
            description=(
                "Ranks on each node, for the host file; none given: from the launcher's `-np`, "
                "else from GPUs or cores."
            ),
            examples=[4],
        ),
    ] = None
    success: Annotated[
        Literal[Success.ALL, Success.LAUNCHER],
        Field(description="Whose success is the job's: that of every rank or of the launcher."),
    ] = Success.ALL

    @classmethod
    def clashes(cls, contents: Mapping[str, Any]) -> Iterator[Clash]:
        yield from super().clashes(contents)
        workers = number_in(mapping_in(contents, "worker").get("num_replicas"))
        nodes = number_in(mapping_in(contents, "compute").get("instance_count"))
        if workers is not None and nodes is not None and workers != nodes:
            yield Clash(
                ("worker", "num_replicas"),
                f"`worker.num_replicas` ({workers}) and `compute.instance_count` ({nodes}) are "
                "both the number of nodes; keep one of them",
            )


class PytorchJob(RoleJob):
    """The same command on every node, which finds the others by MASTER_ADDR and the like."""

    roles: ClassVar[tuple[str, ...]] = ("worker",)

    type: Annotated[Literal["PytorchJob"], Field(description="Says that this is a PyTorch job.")]
    worker: Annotated[Replicas, Field(description="What runs on each node.")]
    process_count_per_instance: Annotated[
        Count | None,
        Field(
            description=(
                "Processes on each node; none given: one if the command starts processes itself, "
                "else from GPUs or cores."
            ),
            examples=[4],
        ),
    ] = None
    success: Annotated[
        Literal[Success.ALL, Success.CHIEF],
        Field(description="Whose success is the job's: that of every process or of rank 0."),
    ] = Success.ALL


class TensorflowJob(RoleJob):
    """Workers, and perhaps parameter servers, which find each other by TF_CONFIG."""

    roles: ClassVar[tuple[str, ...]] = ("chief", "worker", "parameter_server", "evaluator")

    type: Annotated[
        Literal["TensorflowJob"], Field(description="Says that this is a TensorFlow job.")
    ]
    worker: Annotated[Replicas, Field(description="Those who train.")]
    parameter_server: Annotated[
        Replicas | None,
        Field(description="Those who keep the parameters; ended when the workers are done."),
    ] = None
    chief: Annotated[
        Single | None, Field(description="The one who leads; none given: the first worker.")
    ] = None
    evaluator: Annotated[
        Single | None, Field(description="One beside the others who evaluates.")
    ] = None
    success: Annotated[
        Literal[Success.ALL, Success.CHIEF],
        Field(description="Whose success is the job's: that of all workers or of the chief."),
    ] = Success.ALL
