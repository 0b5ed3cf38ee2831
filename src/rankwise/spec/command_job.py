"""The command job: the shape of jobs in today's Azure ML."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from rankwise.spec.base import Clash, Model, mapping_in
from rankwise.spec.models import Job
from rankwise.spec.parts import Compute, Output, unknown_references
from rankwise.spec.roles import Code
from rankwise.spec.values import Amount, Count, Seconds, Text, Variable, number_in

_WITHOUT_EFFECT = "no effect"


def _foreign(description: str) -> Any:
    return Field(
        description=f"{description} Read, but without effect here.",
        json_schema_extra={"x-rankwise": _WITHOUT_EFFECT},
    )


class MpiDistribution(Model):
    """Ranks of MPI: the command is that of one rank."""

    type: Annotated[Literal["mpi"], Field(description="The ranks find each other by MPI.")]
    process_count_per_instance: Annotated[
        Count, Field(description="Ranks on each node.", examples=[4])
    ] = 1


class PytorchDistribution(Model):
    """Processes of torch.distributed: the command is that of one process."""

    type: Annotated[
        Literal["pytorch"],
        Field(description="The processes find each other by MASTER_ADDR and the like."),
    ]
    process_count_per_instance: Annotated[
        Count, Field(description="Processes on each node.", examples=[4])
    ] = 1


class TensorflowDistribution(Model):
    """Workers and parameter servers of TensorFlow."""

    type: Annotated[
        Literal["tensorflow"], Field(description="The processes find each other by TF_CONFIG.")
    ]
    worker_count: Annotated[
        Count | None, Field(description="Workers; none given: one on each node.", examples=[4])
    ] = None
    parameter_server_count: Annotated[
        Amount, Field(description="Parameter servers.", examples=[2])
    ] = 0


Distribution = Annotated[
    MpiDistribution | PytorchDistribution | TensorflowDistribution, Field(discriminator="type")
]


class JobResources(Model):
    """What the job needs."""

    instance_count: Annotated[Count, Field(description="Number of nodes.", examples=[4])] = 1
    instance_type: Annotated[Text, _foreign("Kind of the nodes.")] = ""
    shm_size: Annotated[Text, _foreign("Shared memory of the container.")] = ""
    docker_args: Annotated[Text, _foreign("Options for the container.")] = ""


class JobLimits(Model):
    """What the job must keep to."""

    timeout: Annotated[
        Seconds | None,
        Field(
            description="Longest run time: seconds, or with units; none given: no limit.",
            examples=[3600],
        ),
    ] = None


class CommandJob(Job):
    """One command, which rankwise starts once for each process of the distribution."""

    hints: ClassVar[Mapping[str, str]] = {
        "env": "did you mean `environment_variables`?",
        "timeout": "put it into `limits`",
        "instance_count": "put it into `resources`",
        "process_count_per_instance": "put it into `distribution`",
    }

    # Azure ML lets the schema stand for the type.
    model_config = ConfigDict(
        json_schema_extra={"anyOf": [{"required": ["type"]}, {"required": ["$schema"]}]}
    )

    type: Annotated[Literal["command"], Field(description="Says that this is a command job.")] = (
        "command"
    )
    command: Annotated[
        Text,
        Field(
            description="The line to run, by the shell.",
            examples=["python train.py --lr ${{inputs.lr}}"],
        ),
    ]
    code: Annotated[
        Code | None,
        Field(description="The folder with the program; none given: that of the document."),
    ] = None
    environment: Annotated[
        Text,
        Field(
            description=(
                "Name of what the command runs in. rankwise.toml says what it is: this Python, a "
                "virtual environment or a container."
            ),
            examples=["azureml:pytorch-1.7:1"],
        ),
    ] = ""
    compute: Annotated[Compute, Field(description="Where to run.")] = Field(default_factory=Compute)
    resources: Annotated[JobResources, Field(description="Number of nodes, and more.")] = Field(
        default_factory=JobResources
    )
    distribution: Annotated[
        Distribution | None,
        Field(description="How processes find each other; none given: there is one process."),
    ] = None
    outputs: Annotated[
        dict[
            Variable,
            Annotated[Output, BeforeValidator(lambda given: {} if given is None else given)],
        ],
        Field(description="What `${{outputs.NAME}}` stands for in the command."),
    ] = Field(default_factory=dict)
    limits: Annotated[JobLimits, Field(description="Limit of the run time.")] = Field(
        default_factory=JobLimits
    )
    display_name: Annotated[str, Field(description="A name for people.")] = ""
    identity: Annotated[Any, _foreign("Who the job acts for.")] = None
    services: Annotated[Any, _foreign("Ways into the running job.")] = None
    queue_settings: Annotated[Any, _foreign("How urgent the job is.")] = None

    @classmethod
    def clashes(cls, contents: Mapping[str, Any]) -> Iterator[Clash]:
        yield from super().clashes(contents)
        known = {kind: mapping_in(contents, kind) for kind in ("inputs", "outputs")}
        yield from unknown_references(contents.get("command"), ("command",), known)
        nodes = number_in(mapping_in(contents, "resources").get("instance_count"))
        if contents.get("distribution") is None and nodes is not None and nodes > 1:
            yield Clash(
                ("resources", "instance_count"),
                f"{nodes} nodes need a `distribution` that says how they work together",
            )
        if mapping_in(contents, "compute").get("instance_count") is not None:
            yield Clash(
                ("compute", "instance_count"),
                "in a command job the number of nodes is `resources.instance_count`",
            )

    def without_effect(self) -> tuple[str, ...]:
        """Name the fields that were given but are only read."""
        return tuple(_given_in_vain(self))


def _given_in_vain(model: Model, path: str = "") -> Iterator[str]:
    for name in sorted(model.model_fields_set):
        extra = type(model).model_fields[name].json_schema_extra
        value = getattr(model, name)
        if isinstance(extra, dict) and extra.get("x-rankwise") == _WITHOUT_EFFECT:
            yield path + name
        elif isinstance(value, Model):
            yield from _given_in_vain(value, f"{path}{name}.")
