"""The parts that processes play in a job, and what each of them runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, WithJsonSchema

from rankwise.spec.base import Clash, Model, mapping_in
from rankwise.spec.values import Amount, Bytes, Cores, Count, Text, whole


class Code(Model):
    """The folder with the program. A text alone is the path."""

    short_form: ClassVar[str] = "path"

    path: Annotated[
        Text,
        Field(
            description="A folder, from that of the document. Each node gets a copy to work in.",
            examples=["./src"],
        ),
    ]


class ResourceLimits(Model):
    """What each process of a role may use."""

    hints: ClassVar[Mapping[str, str]] = {
        "gpus": "did you mean `gpu`?",
        "nvidia.com/gpu": "did you mean `gpu`?",
        "mem": "did you mean `memory`?",
        "cores": "did you mean `cpu`?",
    }

    cpu: Annotated[
        Cores | None,
        Field(description="Cores: a number, or thousandths of one.", examples=[4, "500m"]),
    ] = None
    memory: Annotated[
        Bytes | None,
        Field(description="Memory: bytes, or with a unit.", examples=["2Gi", "500M"]),
    ] = None
    gpu: Annotated[Amount | None, Field(description="Number of GPUs.", examples=[4])] = None


class RoleSpec(Model):
    """What is there for a role."""

    code: Annotated[
        Code | None,
        Field(description="The folder with the program; none given: that of the document."),
    ] = None
    environment: Annotated[
        Text,
        Field(
            description=(
                "Name of what commands run in. rankwise.toml says what it is: this Python, a "
                "virtual environment or a container."
            ),
            examples=["azureml:pytorch-1.7:1"],
        ),
    ] = ""
    resource_limits: Annotated[
        ResourceLimits | None, Field(description="What each process may use.")
    ] = None


class CommandSpec(RoleSpec):
    """What a role runs."""

    hints: ClassVar[Mapping[str, str]] = {"args": "write the arguments into `command`"}

    command: Annotated[
        Text,
        Field(description="The line to run, by the shell.", examples=["python train.py"]),
    ]


class MpiWorkerSpec(RoleSpec):
    """What is there for the workers of an MPI job."""

    hints: ClassVar[Mapping[str, str]] = {
        "command": "the command of `launcher` starts the workers; leave it out"
    }


class Role(Model):
    """A part that processes play."""

    hints: ClassVar[Mapping[str, str]] = {
        "command": "put it into `spec`",
        "code": "put it into `spec`",
        "environment": "put it into `spec`",
    }

    spec: Annotated[RoleSpec, Field(description="What is there for it.")]
    resource_limits: Annotated[
        ResourceLimits | None,
        Field(description="What each process may use; the same as within `spec`."),
    ] = None

    @property
    def limits(self) -> ResourceLimits:
        """What each process may use, wherever it was written."""
        return self.spec.resource_limits or self.resource_limits or ResourceLimits()

    @classmethod
    def clashes(cls, contents: Mapping[str, Any]) -> Iterator[Clash]:
        within = mapping_in(contents, "spec").get("resource_limits")
        if within is not None and contents.get("resource_limits") is not None:
            yield Clash(
                ("resource_limits",), "`resource_limits` stands in `spec` as well; keep one of them"
            )


class Replicas(Role):
    """A role that several processes or nodes can play."""

    spec: Annotated[CommandSpec, Field(description="What each of them runs.")]
    num_replicas: Annotated[
        Count | None, Field(description="How many there are.", examples=[4])
    ] = None


class Single(Role):
    """A role that exactly one process plays."""

    spec: Annotated[CommandSpec, Field(description="What it runs.")]
    num_replicas: Annotated[
        int,
        BeforeValidator(whole(1, 1)),
        WithJsonSchema({"type": "integer", "const": 1}),
        Field(description="There is one."),
    ] = 1


class MpiWorker(Role):
    """The nodes on which the launcher starts ranks."""

    spec: Annotated[MpiWorkerSpec, Field(description="What is there for them.")] = Field(
        default_factory=MpiWorkerSpec
    )
    num_replicas: Annotated[
        Count | None,
        Field(description="How many nodes; the same as `compute.instance_count`.", examples=[4]),
    ] = None
