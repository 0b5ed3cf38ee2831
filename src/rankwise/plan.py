"""What is to run: tasks, their processes and what they need. Plain data, no effects.

Some values are known only where and when a task runs: addresses, free ports, folders. They stand in
commands, variables and files as marks made by `later`, and whoever starts the task fills them in
with `fill_in`. `show` makes them readable for people.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# Characters that nobody writes: what people write needs no escapes then.
_OPEN, _CLOSE = "\ue000", "\ue001"
_MARK = re.compile(f"{_OPEN}([^{_OPEN}{_CLOSE}]*){_CLOSE}")


def later(what: str) -> str:
    """Stand for a value that is known when the task starts.

    `address:N` and `host:N` are those of node N, `port:NAME@N` is a free port there (the same one
    for the same name), `folder` is the attempt's folder and `folder:N` the one in which processes
    on node N work.
    """
    return f"{_OPEN}{what}{_CLOSE}"


def fill_in(text: str, value_of: Callable[[str], str]) -> str:
    """Replace every mark by its value."""
    return _MARK.sub(lambda found: value_of(found[1]), text)


def show(text: str) -> str:
    """Make marks readable: `<address of node 0>`."""
    return _MARK.sub(lambda found: f"<{_in_words(found[1])}>", text)


def _in_words(what: str) -> str:
    kind, _, rest = what.partition(":")
    name, _, node = rest.rpartition("@")
    match kind:
        case "address" | "host":
            return f"{kind} of node {rest}"
        case "port":
            return f"free port {name} of node {node}"
        case "folder":
            return f"folder of node {rest}" if rest else "folder of the attempt"
    return what


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What a task claims of a compute, or what a compute has. Zero: it does not matter."""

    cores: float = 0
    memory: int = 0
    """In bytes."""
    gpus: int = 0

    def __add__(self, other: Resources) -> Resources:
        return Resources(
            cores=self.cores + other.cores,
            memory=self.memory + other.memory,
            gpus=self.gpus + other.gpus,
        )

    def __sub__(self, other: Resources) -> Resources:
        return Resources(
            cores=self.cores - other.cores,
            memory=self.memory - other.memory,
            gpus=self.gpus - other.gpus,
        )

    def __mul__(self, times: int) -> Resources:
        return Resources(
            cores=self.cores * times, memory=self.memory * times, gpus=self.gpus * times
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process that is started on one node."""

    name: str
    """Unique in the task, and fit for a file name: `worker-2`."""
    role: str
    node: int = 0
    command: str | tuple[str, ...]
    """A line for the shell, or the arguments themselves."""
    environment: Mapping[str, str] = field(default_factory=dict)
    rank: int | None = None
    """Its number among all; None: it is no rank, or starts ranks itself."""
    is_awaited: bool = True
    """Whether the task goes on as long as it does; others are ended when no awaited one is left."""
    is_vital: bool = True
    """Whether its failure is the task's failure, and ends the others."""
    speaks_for_ranks: bool = False
    """Whether all is well if it says so, whatever has become of the ranks that it has started."""
    resources: Resources = Resources()


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """When to start a task again that has failed, all of its processes together."""

    most: int = 0
    on_exit_codes: tuple[int, ...] = ()
    """None given: after every failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeChoice:
    """What commands run in; `kind` says which of the others count."""

    name: str = "current"
    """As the document calls it."""
    kind: str = "current"
    """`current` (the interpreter of rankwise), `python` (that of a folder), `uv`, `container`."""
    python: str = ""
    """python: the interpreter; uv: the version that is wanted."""
    requirements: tuple[str, ...] = ()
    image: str = ""
    engine: str = ""
    """docker, podman or apptainer; empty: the first that is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One thing to run."""

    key: str
    """Unique in the plan, and fit for a folder name."""
    processes: tuple[Process, ...]
    nodes: int = 1
    width: int = 0
    """How many processes work at a time, with those that a launcher starts; 0: those above."""
    needs: tuple[str, ...] = ()
    """Keys of the tasks that must have passed before."""
    code: str = ""
    """A folder to copy for each node, to work in; empty: they work in `folder`."""
    folder: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    """Files to write into the attempt's folder before anything starts."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """For all processes; a process's own go before these."""
    secrets: tuple[str, ...] = ()
    """Names of variables whose values come from the client's environment."""
    resources: Resources = Resources()
    """Of all processes together."""
    compute: str = "local"
    runtime: RuntimeChoice = RuntimeChoice()
    timeout: float | None = None
    """In seconds."""
    restart: Restart = Restart()
    notes: tuple[str, ...] = ()
    """What was derived or mended, for people to see."""
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that one document asks for."""

    name: str
    kind: str
    """The document's `type`, for people to see."""
    tasks: tuple[Task, ...]
    experiment: str = ""
    source: str = ""
    """The document's path."""
    notices: tuple[str, ...] = ()
    """What people must know that is not the matter of one task."""
    tags: Mapping[str, str] = field(default_factory=dict)

    def task(self, key: str) -> Task:
        return next(task for task in self.tasks if task.key == key)


def to_data(value: Task | Plan) -> dict[str, Any]:
    """Make plain data of it, for JSON."""
    return dataclasses.asdict(value)


def task_from_data(data: Mapping[str, Any]) -> Task:
    """Make a task of what `to_data` gave, with or without a detour through JSON."""
    restart, runtime = data["restart"], data["runtime"]
    return Task(
        **{
            **data,
            "processes": tuple(map(_process, data["processes"])),
            "resources": Resources(**data["resources"]),
            "restart": Restart(most=restart["most"], on_exit_codes=tuple(restart["on_exit_codes"])),
            "runtime": RuntimeChoice(**{**runtime, "requirements": tuple(runtime["requirements"])}),
            **{name: tuple(data[name]) for name in ("needs", "secrets", "notes")},
        }
    )


def _process(data: Mapping[str, Any]) -> Process:
    command: str | Sequence[str] = data["command"]
    return Process(
        **{
            **data,
            "command": command if isinstance(command, str) else tuple(command),
            "resources": Resources(**data["resources"]),
        }
    )
