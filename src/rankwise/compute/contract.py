"""What every compute can do, so that the engine need not know which one it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from rankwise.plan import Resources, Task
from rankwise.records import AttemptEnd
from rankwise.runtime.contract import Prepared


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One try at a task, as a compute knows it."""

    label: str
    """For people: run, task and number."""
    marker: str
    """Unique among all attempts that there ever were."""
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Everything that a compute needs to start an attempt."""

    attempt: Attempt
    task: Task
    runtime: Prepared
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """Something that a compute has heard of an attempt, or of itself, while it waited."""

    attempt: Attempt | None = None
    job_id: str = ""
    """The number that the attempt has there from now on."""
    has_started: bool = False
    text: str = ""
    """For people: why it waits, or who does not answer."""


class Compute(Protocol):
    """A place where tasks run. What it has started goes on without it."""

    @property
    def makes_runtimes(self) -> bool:
        """Tell whether runtimes are made where its tasks run; otherwise they are made here."""

    def capacity(self) -> Resources:
        """Tell how much there is of everything, in use or not."""

    def room(self) -> Resources:
        """Tell how much all tasks together may claim; what has a queue of its own takes any."""

    def place(self, folder: Path) -> Path:
        """Give the folder that an attempt can have there, if it would be this one here."""

    def submit(self, job: Job) -> str | None:
        """Start an attempt and give its number there; None: it is taken, the news will tell.

        ComputeFailure: nothing was started.
        """

    def adopt(self, attempt: Attempt, job_id: str) -> bool:
        """Watch an attempt that another client has submitted.

        False: it never came to that, and never will.
        """

    def wait(self, seconds: float) -> Sequence[Attempt]:
        """Give those attempts whose runners are gone, as soon as there is one."""

    def news(self) -> Sequence[News]:
        """Give what was heard since the last time."""

    def end_of(self, attempt: Attempt) -> AttemptEnd | None:
        """Say how an attempt ended that `wait` has given; None: as its runner has written."""

    def cancel(self, attempt: Attempt) -> None:
        """Have a runner end what it has started; returns at once."""

    def clean(self, attempt: Attempt) -> None:
        """End whatever an attempt has left behind whose runner was lost."""

    def close(self) -> None:
        """Keep nothing for later: the run is over."""
