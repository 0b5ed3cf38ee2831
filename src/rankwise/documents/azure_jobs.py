"""Models of what Azure ML has beside command jobs: components, pipeline jobs and sweep jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from rankwise.documents import values
from rankwise.documents.common import ComputeRef, Conflict, Input, JobOutputs, Model
from rankwise.documents.jobs import CommandJob, DocumentModel
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
    values: tuple[values.Written, ...]


def _kind_in(given: Any, known: str) -> str:
    """Return the kind of a part that only Azure ML can run; empty: it is of the known kind."""
    kind = str(mapping_in(given).get("type") or known)
    return "" if kind == known else kind


def _ours(known: str) -> BeforeValidator:
    # The error of such a part is that of its kind, not of its fields.
    return BeforeValidator(lambda given: None if _kind_in(given, known) else given)


class AzureJob(DocumentModel):
    """What pipeline jobs and sweep jobs have in common."""

    display_name: str = ""
    compute: ComputeRef = Field(default_factory=ComputeRef)
    inputs: dict[values.Variable, Input] = Field(default={})
    outputs: JobOutputs = Field(default={})
    identity: Any = None
    services: Any = None
    queue_settings: Any = None


class PipelineJob(AzureJob):
    """Command jobs, some of which read what others have written."""

    type: Literal["pipeline"]
    jobs: dict[values.Name, Annotated[PipelineNode | None, _ours("command")]]
    settings: Any = None

    @classmethod
    def conflicts(cls, contents: Mapping[str, Any]) -> Iterator[Conflict]:
        for name, job in mapping_in(contents, "jobs").items():
            if kind := _kind_in(job, "command"):
                why = f"{code(kind)} is for Azure ML alone: in a pipeline, rankwise runs `command`"
                yield Conflict(("jobs", name, "type"), why)


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
    search_space: dict[values.Variable, Annotated[ChoiceOfValues | None, _ours("choice")]]
    sampling_algorithm: Any = "random"
    limits: SweepLimits = Field(default_factory=SweepLimits)
    objective: Any = None
    early_termination: Any = None
    resources: Any = None

    @classmethod
    def conflicts(cls, contents: Mapping[str, Any]) -> Iterator[Conflict]:
        for name, space in mapping_in(contents, "search_space").items():
            if kind := _kind_in(space, "choice"):
                why = f"{code(kind)} draws values at random: write those to try as a `choice`"
                yield Conflict(("search_space", name, "type"), why)
