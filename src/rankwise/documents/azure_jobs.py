"""Models of what Azure ML has beside command jobs: components, pipeline jobs and sweep jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from rankwise.documents import values
from rankwise.documents.common import ComputeRef, Conflict, Input, JobOutputs, Model
from rankwise.documents.jobs import CommandJob, DocumentModel
from rankwise.documents.values import wrong
from rankwise.documents.written import mapping_in
from rankwise.wording import code


class ComponentInput(Input):
    """An input that a component expects; Azure ML also has bounds for it."""

    model_config = ConfigDict(extra="allow")

    default: values.Written | None = None
    """What it is unless a job gives it."""
    optional: values.Bool = False
    """Whether it may be missing: then what stands in `$[[…]]` around it is left out."""

    @classmethod
    def conflicts(cls, contents: Mapping[str, Any]) -> Iterator[Conflict]:
        yield from ()


class Component(CommandJob):
    """A command with named inputs and outputs, which jobs give it."""

    type: Literal["component"]  # type: ignore[assignment]  # the file says `command`
    inputs: dict[values.Variable, ComponentInput] = Field(default={})  # type: ignore[assignment]  # they are inputs
    version: Any = None
    is_deterministic: Any = None


class PipelineNode(CommandJob):
    """A job of a pipeline, or the trials of a sweep: a command, or, as a text, a component."""

    short_form: ClassVar[str] = "component"

    command: values.Text = ""
    component: values.Text = ""
    """The file of a component."""

    @classmethod
    def conflicts(cls, contents: Mapping[str, Any]) -> Iterator[Conflict]:
        # What it refers to is known when it is planned.
        yield from cls.exactly_one(contents, ("command", "component"), "a job")


class ChoiceOfValues(Model):
    """Values of which each is tried."""

    type: Literal["choice"]
    values: Annotated[tuple[values.Written, ...], Field(min_length=1)]


def _only(known: str, why: str) -> BeforeValidator:
    """Return a validator that refuses a part of another kind, without a look at its fields."""

    def check(given: Any) -> Any:
        if (kind := mapping_in(given).get("type") or known) != known:
            raise wrong(f"cannot be {code(str(kind))}: {why}")
        return given

    return BeforeValidator(check)


_COMMAND = _only("command", "in a pipeline, jobs other than `command` are for Azure ML alone")
_CHOICE = _only("choice", "nothing is drawn at random here; write the values to try as a `choice`")


class AzureJob(DocumentModel):
    """What pipeline jobs and sweep jobs have in common; Azure ML has more of it."""

    model_config = ConfigDict(extra="allow")

    display_name: str = ""
    compute: ComputeRef = Field(default_factory=ComputeRef)
    inputs: dict[values.Variable, Input] = Field(default={})
    outputs: JobOutputs = Field(default={})


class PipelineJob(AzureJob):
    """Command jobs, some of which read what others have written."""

    type: Literal["pipeline"]
    jobs: dict[values.Name, Annotated[PipelineNode, _COMMAND]] = Field(min_length=1)
    settings: Any = None


class SweepLimits(Model):
    """What a sweep job must keep to."""

    max_total_trials: values.PositiveInt | None = None
    max_concurrent_trials: values.PositiveInt = 1
    timeout: Any = None
    trial_timeout: values.Seconds | None = None


class SweepJob(AzureJob):
    """One command with many values."""

    type: Literal["sweep"]
    trial: PipelineNode
    search_space: dict[values.Variable, Annotated[ChoiceOfValues, _CHOICE]]
    sampling_algorithm: Any = "random"
    limits: SweepLimits = Field(default_factory=SweepLimits)
