"""What every compute can do, so that the engine need not know which one it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from rankwise.plan import Resources, Task
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


class Compute(Protocol):
    """A place where tasks run. What it has started goes on without it."""

    def capacity(self) -> Resources:
        """Tell how much there is of everything, in use or not."""

    def submit(self, job: Job) -> str:
        """Start an attempt and give its number there; ComputeFailure: nothing was started."""

    def adopt(self, attempt: Attempt, job_id: str) -> None:
        """Watch an attempt that another client has submitted."""

    def wait(self, seconds: float) -> Sequence[Attempt]:
        """Give those attempts whose runners are gone, as soon as there is one."""

    def cancel(self, attempt: Attempt) -> None:
        """Have a runner end what it has started; returns at once."""

    def clean(self, attempt: Attempt) -> None:
        """End whatever an attempt has left behind whose runner was lost."""
