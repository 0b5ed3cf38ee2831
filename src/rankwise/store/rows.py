"""The states, rows and events of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from rankwise.plan import DOCUMENTS, Task

_Stage = Literal["run started", "task started", "attempt ended", "task over", "run over"]
Kind = _Stage | Literal["notice", "stopping"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that has happened to a run."""

    kind: Kind
    run: str
    time: float
    task: str = ""
    attempt: int = 0
    state: str = ""
    exit_code: int | None = None
    reason: str = ""
    culprit: str = ""
    folder: Path | None = None
    """That of the attempt."""
    counts: Mapping[str, int] = field(default_factory=dict)


Observer = Callable[[Event], None]


class State(StrEnum):
    """How far something has come, or how it ended."""

    QUEUED = "queued"
    SUBMITTING = "submitting"
    """An attempt is announced or handed over, and no backend has seen it start."""
    RUNNING = "running"
    PASSED = "passed"
    FAILED = "failed"
    CRASHED = "crashed"
    """Ended by a signal."""
    TIMED_OUT = "timed out"
    CANCELLED = "cancelled"
    LOST = "lost"
    """Its runner is gone and has left no outcome."""
    NOT_RUN = "not run"
    SKIPPED = "skipped"
    """It need not run: the document says so, there was no failure for it, or too little for
    something optional."""

    is_over: bool
    """Whether this is an end: nothing leaves such a state."""
    is_green: bool
    """Whether all is well; what did not run is not well."""
    has_failed: bool
    """Whether it ran to an end of its own that is not good: what `soft_fail` forgives.

    What did not run, was lost or cancelled says nothing about what was to be tried.
    """

    def __init__(self, value: str) -> None:
        # Fields of the members, so that a reader asks a state and needs no list of states.
        self.is_over = value not in ("queued", "submitting", "running")
        self.is_green = value in ("passed", "skipped")
        self.has_failed = value in ("failed", "crashed", "timed out")


# In SQL, these stand in conditions: a row in another state is never changed.
OPEN = tuple(state for state in State if not state.is_over)
RED = tuple(state for state in State if state.is_over and not state.is_green)
"""What is over and not well."""


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
    """What the engine of this run is asked to do."""
    parent: str = ""
    """The run of which a stage has submitted this one."""

    @property
    def documents(self) -> list[str]:
        """The paths of all documents that it was planned from."""
        several = self.tags.get(DOCUMENTS, "")
        # A run of one document has no tag: its source is the only one.
        return several.splitlines() if several else [self.source] if self.source else []


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
    """What its outcome depends on; empty: it is not known."""
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
    """What the compute calls it; None: it is not known whether it was submitted."""
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
    """None: never, or it was stored with `attempt_heard`."""
    exit_code: int | None = None
    signal: int | None = None
    culprit: str | None = None
    reason: str = ""


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
