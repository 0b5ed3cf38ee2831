"""The contract of batch systems that run tasks and tests, and its data.

One is found by the entry point `rankwise.batch_systems` under the name that `backend = "NAME"` has
in rankwise.toml. `slurm.py` is one of them; CONTRIBUTING has a worked example of another.
"""

from __future__ import annotations

import enum
import math
import os
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

from rankwise.backends.base import Unreachable, largest
from rankwise.documents.site_models import BatchConfig, ComputeConfig
from rankwise.errors import ComputeFailure
from rankwise.node.dialect import Dialect
from rankwise.plan import Resources, Task
from rankwise.plugins import BATCH_SYSTEMS

INDEX = "{index}"
"""Stands for the index of a member, in the path of an array's output."""
# A busy controller may answer late; after this time it counts as away.
CALL_SECONDS = 60.0
_MIB = 1 << 20
_PATH = "RANKWISE_PATH"
# What ending a task may take after its own limit, so that it is the runner who ends it.
_MORE_SECONDS = 60


class QueueFull(ComputeFailure):
    """A limit on the number of jobs is reached; there will be room later."""


class Phase(enum.Enum):
    """How far a job is."""

    WAITING = "waiting"
    """It has no nodes yet, or has none any more."""
    STARTING = "starting"
    """It has nodes, but its script has not begun."""
    RUNNING = "running"
    ENDING = "ending"
    """It is being ended, or anything else that leaves it open what becomes of it."""
    OVER = "over"
    """The system will do nothing more with it."""


class Cause(enum.Enum):
    """Why a job is over, as far as its batch system knows."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIME_LIMIT = "time limit"
    OUT_OF_MEMORY = "out of memory"
    NODE_LOST = "node lost"
    NODE_NOT_BOOTED = "node not booted"
    PREEMPTED = "preempted"
    FORGOTTEN = "forgotten"
    """The system does not know the job any more."""


class Ending(enum.Enum):
    """How a job is to be ended."""

    IF_WAITING = "if waiting"
    """Remove it from the queue; leave it alone if it runs."""
    GENTLY = "gently"
    """Remove it from the queue; if it runs, send SIGTERM to its script and to nothing else."""
    NOW = "now"
    """Kill everything that belongs to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """How a job stands."""

    phase: Phase
    cause: Cause | None = None
    """Why it is over; None: it is not."""
    word: str = ""
    """The system's own name for the state."""
    reason: str = ""
    """Why it waits, or why it ended so; empty: the system does not say."""
    line: str = ""
    """What stands about it in the output of the job; empty: nothing."""
    nodes: str = ""
    name: str = ""
    exit_code: str = ""
    """As the system writes it; empty: it was not asked."""

    @property
    def is_over(self) -> bool:
        """Return whether the system will do nothing more with it."""
        return self.phase is Phase.OVER

    @property
    def is_waiting(self) -> bool:
        """Return whether it has no nodes yet, or has none any more."""
        return self.phase is Phase.WAITING


FORGOTTEN = JobState(phase=Phase.OVER, cause=Cause.FORGOTTEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchNode:
    """One node that jobs may get."""

    name: str
    cores: int
    memory: int = 0
    """In MiB."""
    gpus: int = 0

    @property
    def resources(self) -> Resources:
        return Resources(cores=self.cores, memory=self.memory * _MIB, gpus=self.gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a job asks of a batch system: of each node, not of all together."""

    nodes: int = 1
    cores: int = 1
    memory: int = 0
    """In MiB; 0: what the system gives to a core."""
    gpus: int = 0
    minutes: int = 0
    """0: what the site file or the system says."""
    is_alone: bool = False
    """Whether nodes are the job's own: all of their cores, and no other job on them."""
    is_pilot: bool = False
    """Whether it carries out many tasks: then it needs all memory of its nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchJob:
    """What is submitted."""

    name: str
    """Unique: `find` looks for it when it is not known whether the job was taken."""
    script: str
    options: Sequence[str]
    output: Path
    """Where its output is appended; in an array, with INDEX in it."""
    count: int = 1
    """More than one: an array, with indices from 0."""
    environment: Mapping[str, str] = field(default_factory=dict)


class BatchSystem(Protocol):
    """The commands of a batch system. Calls may come from several threads.

    ComputeFailure has the message with which the system refused. Its subclass Unreachable: there
    was no answer, and the same call may succeed later.
    """

    Settings: ClassVar[type[BatchConfig]] = BatchConfig
    """A dataclass with what `[compute.NAME]` may have in it; pydantic checks the values."""
    title: ClassVar[str]
    """Its name for people."""
    dialect: Dialect
    """What its jobs must know."""
    most_in_array: int = 1
    """How many jobs can be submitted as one; 1: there are no arrays."""
    keeps_allocation: bool = False
    """Whether processes start their ranks by the system's own command."""

    def __init__(self, settings: Any) -> None: ...

    def options(self, needs: Needs) -> Sequence[str]:
        """Return the options of a job with such needs."""

    def submit(self, job: BatchJob) -> str:
        """Submit a job or an array, and return its id; not idempotent. QueueFull: not now."""

    def states(self, ids: Sequence[str]) -> Mapping[str, JobState]:
        """Return how these jobs stand, asked at once; forgotten ones are left out."""

    def past(self, job_id: str) -> JobState | None:
        """Return how a job ended that `states` has left out; None: it is forgotten."""
        del job_id
        return None

    def find(self, name: str) -> str:
        """Return the id of the job or array of a name, also if it is over; empty: none."""

    def member(self, job_id: str, index: int) -> str:
        """Return the id of a member of an array."""
        return f"{job_id}_{index}"

    def cancel(self, job_id: str, ending: Ending) -> None:
        """End a job; returns at once, and leaves alone what is over."""

    def nodes(self) -> Sequence[BatchNode]:
        """Return the nodes that jobs may get; empty: the system does not say."""
        return ()

    def check(self) -> Iterator[tuple[str, str]]:
        """Yield for `rankwise doctor` what there is, each with a remedy; empty: all is well.

        ComputeFailure: no job can run.
        """
        yield from ()

    def explain(self, state: JobState, lines: Sequence[str]) -> JobState:
        """Return a more exact state, from what the system wrote into the output of the job."""
        del lines
        return state

    def plain_environment(self, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Return the variables without those of the job that this process may itself be in."""
        return {name: value for name, value in environment.items() if not self.dialect.is_own(name)}

    def is_away(self, text: str) -> bool:
        """Return whether a command that failed only says that the system does not answer."""
        del text
        return False

    def is_full(self, text: str) -> bool:
        """Return whether a job was refused only because there are too many already."""
        del text
        return False

    def close(self) -> None:
        """End commands that are under way: no answer is wanted any more."""


def open_system(choice: ComputeConfig) -> BatchSystem:
    """Return the batch system of a backend, with its settings; ComputeFailure: there is none."""
    try:
        system: type[BatchSystem] = BATCH_SYSTEMS.load(choice.backend)
    except ImportError as error:
        raise ComputeFailure(str(error)) from error
    return system(choice.batch)


def needs_of(task: Task, *, most_cores: int = 0, counts_gpus: bool = False) -> Needs:
    """Return what a task asks for.

    Where no cores are claimed, there is one for each process, as far as a node has so many. With
    `counts_gpus` they are only counted, since the batch system does not know of them.
    """
    # Rounded up: a batch system gives whole cores.
    claimed = math.ceil(task.resources.cores / task.nodes)
    width = math.ceil((task.width or len(task.processes)) / task.nodes)
    gpus = 0 if counts_gpus else math.ceil(task.resources.gpus / task.nodes)
    minutes = math.ceil((task.timeout + _MORE_SECONDS) / 60) if task.timeout is not None else 0
    return Needs(
        nodes=task.nodes,
        cores=claimed or max(1, min(width, most_cores or width)),
        memory=math.ceil(task.resources.memory / task.nodes / _MIB),
        gpus=gpus,
        minutes=minutes,
        is_alone=task.is_alone,
    )


def standalone(job: BatchJob, index: str = "") -> str:
    """Return a script that does by itself what not every system has options for.

    It begins in our folder, with our PATH, which a login shell has replaced, and appends its output
    to a file of any name. `index` is what the shell makes the index of a member from.
    """
    first, _, rest = job.script.partition("\n")
    output = shlex.quote(str(job.output)).replace(INDEX, f"'{index}'")
    folder = shlex.quote(str(Path.cwd()))
    path = f'PATH="${{{_PATH}:-$PATH}}"'
    return "\n".join((first, f"exec >>{output} 2>&1", f"cd {folder} || cd /", path, rest))


def wall_time(minutes: int) -> str:
    """Return a limit of time as `1:30:00`; empty: there is none."""
    return f"{minutes // 60}:{minutes % 60:02}:00" if minutes else ""


def exported(job: BatchJob) -> dict[str, str]:
    """Return the environment of a command that passes its own on to a job."""
    # Systems that list variables in lines or with commas do not get functions of the shell right.
    plain = {name: value for name, value in job.environment.items() if "\n" not in value}
    return {**plain, _PATH: plain.get("PATH", os.defpath)}


def largest_node(nodes: Sequence[BatchNode]) -> Resources | None:
    """Return what one node has, as a plan must know it; None: there are no nodes."""
    return largest([node.resources for node in nodes]) if nodes else None


def node_of(choice: ComputeConfig) -> Resources | None:
    """Return what one node of a cluster has; None: the batch system does not answer here."""
    try:
        return largest_node(open_system(choice).nodes())
    except ComputeFailure:
        return None


class Commands:
    """Runs the commands of a batch system, each with a limit of time."""

    def __init__(self, system: BatchSystem) -> None:
        self._system = system
        self._running: set[subprocess.Popen[str]] = set()

    def __call__(
        self,
        command: Sequence[str],
        *,
        given: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> str:
        """Run one command to its end and return what it printed.

        ComputeFailure has what it said instead.
        """
        name = command[0]
        try:
            process = subprocess.Popen(
                command,
                env=dict(environment) if environment is not None else None,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                # Ctrl-C is for the client, which has more to ask.
                start_new_session=True,
            )
        except FileNotFoundError as error:
            # By far the most frequent reason: the command needs a module, or another machine.
            title = self._system.title
            raise ComputeFailure(
                f"{name} is not on PATH: this machine has no {title}, or it needs a module"
            ) from error
        except OSError as error:
            raise ComputeFailure(f"{name} cannot be started: {error.strerror}") from error
        self._running.add(process)
        with process:
            try:
                output, errors = process.communicate(given, timeout=CALL_SECONDS)
            except subprocess.TimeoutExpired as error:
                raise Unreachable(f"{name} gave no answer within {CALL_SECONDS:g} s") from error
            finally:
                process.kill()  # Harmless, if it has ended.
                self._running.discard(process)
        if process.returncode:
            raise failure_of(self._system, name, process.returncode, errors or output)
        return output

    def close(self) -> None:
        """End what is under way."""
        for process in list(self._running):
            process.kill()


def failure_of(system: BatchSystem, name: str, code: int, words: str) -> ComputeFailure:
    """Return an error that has what a command said before it left with a code."""
    # In one line: messages stand in tables and in the status of a task.
    text = "; ".join(line.strip() for line in words.splitlines() if line.strip())
    text = text or f"{name} exited with code {code}"
    if system.is_away(text):
        return Unreachable(text)
    if system.is_full(text):
        return QueueFull(text)
    return ComputeFailure(text)


class CommandSystem(BatchSystem):
    """A batch system by commands whose messages say what is the matter."""

    messages: ClassVar[Mapping[str, Sequence[str]]]
    """Parts of messages: `away`, there was no answer; `full`, there are too many jobs already;
    `over`, there was nothing to cancel."""

    def __init__(self, settings: Any) -> None:
        self._settings = settings
        self.call = Commands(self)

    def says(self, kind: str, text: str) -> bool:
        """Return whether a message is of this kind."""
        return any(words in text for words in self.messages[kind])

    def is_away(self, text: str) -> bool:
        return self.says("away", text)

    def is_full(self, text: str) -> bool:
        return self.says("full", text)

    def ask(self, *command: str) -> str | None:
        """Return what a command prints; None: it was refused. Unreachable: there is no answer."""
        try:
            return self.call(command)
        except ComputeFailure as failure:
            if isinstance(failure, Unreachable):
                raise
            return None

    def delete(self, job_id: str, ending: Ending, *command: str) -> None:
        """Cancel a job by a command that ends it gently where it runs."""
        if ending is Ending.IF_WAITING:
            state = self.states([job_id]).get(job_id)
            if state is None or not state.is_waiting:
                return
        try:
            self.call(command)
        except ComputeFailure as failure:
            if isinstance(failure, Unreachable) or not self.says("over", str(failure)):
                raise

    def close(self) -> None:
        self.call.close()
