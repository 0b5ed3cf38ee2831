"""What the store takes and gives: plain data, a class for each table. Times are Unix times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from rankwise.plan import Task
from rankwise.store.states import State

Wish = Literal["cancel"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """One execution of a plan; its document is read with `Store.spec_text`."""

    id: str
    """`<name>-<number>`."""
    name: str
    number: int
    kind: str
    experiment: str
    source: str
    created: float
    started: float | None
    ended: float | None
    state: State
    exit_code: int | None
    reason: str
    tags: Mapping[str, str]
    notices: tuple[str, ...]
    wanted: Wish | None
    """What somebody asks the engine of this run to do."""
    parent: str = ""
    """The run of which a stage has submitted this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRow:
    """What became of one task of a run."""

    run: str
    key: str
    position: int
    """Its place in the plan, from 0."""
    state: State
    reason: str
    exit_code: int | None
    attempts: int
    """How many were begun; the last one has this number."""
    started: float | None
    """When the first attempt did."""
    ended: float | None
    digest: str = ""
    """What its outcome depends on; empty: on nobody knows what."""
    origin: str = ""
    """The run from which the outcome was taken over; empty: it is of this one."""
    body: Task | None = None
    """The task itself, where it was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRow:
    """One try to run a task."""

    run: str
    task: str
    number: int
    """From 1."""
    state: State
    marker: str
    """Unique: its processes have it in their environment."""
    folder: Path
    job_id: str | None
    """What the compute calls it; None: nobody knows whether it was submitted."""
    begun: float
    """When it was announced, before the submit."""
    submitted: float | None
    started: float | None
    ended: float | None
    exit_code: int | None
    signal: int | None
    culprit: str | None
    """The name of the process that is to blame."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How an attempt ended."""

    state: State
    ended: float
    started: float | None = None
    """None: never, or it was told with `attempt_started`."""
    exit_code: int | None = None
    signal: int | None = None
    culprit: str | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        if not self.state.is_over:
            raise ValueError(f"{self.state.value!r} is no end of an attempt")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRow:
    """One process of an attempt, as its runner has recorded it."""

    name: str
    role: str
    node: int = 0
    rank: int | None = None
    pid: int | None = None
    started: float | None = None
    ended: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    peak_memory: int | None = None
    """In bytes."""
    cpu_seconds: float | None = None
    by_us: bool = False
    """Whether rankwise has ended it."""
    log_lost: int = 0
    """Bytes of output that are not in its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultRow:
    """What became of one single test among those that an attempt has run."""

    name: str
    state: State
    seconds: float = 0.0
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    """Something that happened in a run; ids grow in the order in which it was stored."""

    id: int
    run: str
    time: float
    kind: str
    body: Mapping[str, Any]


AnyRow = RunRow | TaskRow | AttemptRow | ProcessRow | EventRow


def columns_of(kind: type[AnyRow]) -> tuple[str, ...]:
    """Give the columns of a table that a row shows; they have the names of its fields."""
    return tuple(field.name for field in fields(kind))
