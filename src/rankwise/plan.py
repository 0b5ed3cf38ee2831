"""What is to run: tasks, their processes and what they need. Plain data, no effects.

Some values are known only where and when a task runs: addresses, free ports, folders. They stand in
commands, variables and files as marks made by `later`. The process that starts the task fills them
in with `fill_in`. `show` makes them readable for people."""

from __future__ import annotations

import dataclasses
import json
import math
import operator
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

# Private characters: what people write does not have them, and needs no escapes.
_OPEN, _CLOSE = "\ue000", "\ue001"
_MARK = re.compile(f"{_OPEN}([^{_OPEN}{_CLOSE}]*){_CLOSE}")

DOCUMENTS = "rankwise.documents"
"""The tag of a run of several documents: their paths, a line each."""
REPORTED = "rankwise.report"
"""The tag of a run that is followed by a report: `when-complete`."""
NOTIFIED = "rankwise.notify"
"""The tag of a run with the names of its recipients, separated by commas."""
MERGED = "rankwise.merged"
"""The tag of a run that was merged from another store: which run it was there."""
REPEATED = "repeats"
"""The tag that names what a task is one more try of."""
CASES = "cases.log"
"""What the runner writes of a program that says which of its cases begins, for each process."""
PART = "part"
"""The tag that says what a task of a cell of a matrix is: `environment` or `test`."""
LOOK = "environment"
"""The part, and the name, of the task that says what a cell has around it."""


def later(what: str) -> str:
    """Stand for a value that is known when the task starts.

    `address:N` and `host:N` are those of node N, `port:NAME@N` is a free port there (the same one
    for the same name), `folder` is the attempt's folder and `folder:N` the one in which processes
    on node N work, `own` that of the program that runs them. `run` is the run's id, `store` the
    folder of the store, and `artifacts:NAME` the folder in which a stage's artifacts are kept.
    """
    return f"{_OPEN}{what}{_CLOSE}"


def fill_in(text: str, value_of: Callable[[str], str]) -> str:
    """Replace every mark by its value."""
    return _MARK.sub(lambda found: value_of(found[1]), text)


# Up to a quotation mark that is not closed.
_CLOSED = re.compile(r"""\A(?:[^\\'"]|\\.|'[^']*'|"(?:[^\\"]|\\.)*")*""", re.DOTALL)


def fill_in_line(line: str, value_of: Callable[[str], str]) -> str:
    """Replace every mark of a line for the shell: each value stays a part of its word.

    `value_of` may return a mark again, also within a path.
    """

    def value(found: re.Match[str]) -> str:
        value = value_of(found[1])
        # A folder of the run may have any name; what the runner fills in needs no quotes.
        sample = fill_in(value, lambda what: " " if what.startswith("artifacts:") else "0")
        if shlex.quote(sample) == sample:
            return value
        quote = _CLOSED.sub("", line[: found.start()])[:1]
        if not quote:
            return shlex.quote(value)
        return value.replace("'", "'\\''") if quote == "'" else re.sub(r'([\\"$`])', r"\\\1", value)

    return _MARK.sub(value, line)


def show(text: str) -> str:
    """Make marks readable: `<address of node 0>`."""
    return _MARK.sub(lambda found: f"<{_in_words(found[1])}>", text)


def _in_words(what: str) -> str:
    kind, _, rest = what.partition(":")
    name, _, node = rest.rpartition("@")
    match kind:
        case "port":
            return f"free port {name} of node {node}"
        case "address" | "host" | "folder" if rest:
            return f"{kind} of node {rest}"
        case "folder":
            return "folder of the attempt"
        case "run" | "store":
            return f"the {kind}"
        case "artifacts":
            return f"artifacts of {rest}"
    return what


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What a task claims of a compute, or what a compute has. Zero: it does not matter."""

    cores: float = 0
    memory: int = 0
    """In bytes."""
    gpus: int = 0

    def combined(self, other: Resources, how: Callable[[Any, Any], Any]) -> Resources:
        """Return what a function makes of both amounts of each."""
        return Resources(
            cores=how(self.cores, other.cores),
            memory=how(self.memory, other.memory),
            gpus=how(self.gpus, other.gpus),
        )

    def __add__(self, other: Resources) -> Resources:
        return self.combined(other, operator.add)

    def __sub__(self, other: Resources) -> Resources:
        return self.combined(other, operator.sub)

    def __mul__(self, times: int) -> Resources:
        return Resources(
            cores=self.cores * times, memory=self.memory * times, gpus=self.gpus * times
        )

    def share(self, count: int) -> Resources:
        """Return one of `count` equal parts."""
        # Bytes and GPUs are whole: what cannot be divided is in no part.
        return Resources(
            cores=self.cores / count, memory=self.memory // count, gpus=self.gpus // count
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
    limits: Resources | None = None
    """What it may use at most; None: with the others of its node, what the node may."""
    runtime: RuntimeChoice | None = None
    """What it runs in; None: in that of the task."""
    code: str = ""
    """The folder to copy for it, to work in; empty: that of the task."""


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
    """`current` (the interpreter of rankwise), `python` (that of a folder), `uv`, `conda`,
    `container`, `modules`."""
    python: str = ""
    """python: the interpreter; uv: the version that is wanted."""
    requirements: tuple[str, ...] = ()
    """uv: packages; conda: what stands in the conda file, as JSON."""
    lock: str = ""
    """uv: a file with more of them."""
    lock_digest: str = ""
    """What was in it when it was planned."""
    modules: tuple[str, ...] = ()
    image: str = ""
    build: str = ""
    """container: the Dockerfile that the image is built from; empty: the image is fetched."""
    context: str = ""
    """The folder whose files are there for a build."""
    build_args: tuple[str, ...] = ()
    """`NAME=value`, of a build."""
    engine: str = ""
    """docker, podman or apptainer; empty: the first that is there. conda: what makes it."""


TOOLS_PYTHON = "rankwise-python"
"""A Python on a machine elsewhere that has the tools of a task: that of the runtime if it has them,
or else one of an environment of their own."""

When = Literal["passed", "failed", "always"]
"""What must have become of what a task needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reuse:
    """What a task depends on; where nothing of it has changed, it need not run again."""

    definition: str
    """A digest of all that is known before the run: the document's path, the command."""
    inputs: tuple[str, ...] = ()
    """Patterns of files, whose contents count; they are looked at when the task would start."""
    outputs: tuple[str, ...] = ()
    """Patterns of what it leaves behind; where nothing fits one, it has to run."""
    folder: str = ""
    """Where those files are."""
    is_wanted: bool = True
    """Whether an earlier outcome may be taken; otherwise this one is only noted."""
    is_taken: bool = False
    """Whether the last time that it passed counts, whatever has changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What must be true of a task that has run; `kind` says which of the others count."""

    kind: str
    """`contains`, `absent`, `regex`, `json`, `exists`, `exit_code` or `python`."""
    what: str = ""
    """The text, the pattern, the path into JSON, the file or FILE:FUNCTION."""
    on: str = "output"
    """Where to look: `output`, `stdout`, `stderr` or a file's name."""
    rank: str = ""
    """A number, or `all`: each of them; empty: all processes together."""
    least: int = 1
    most: int | None = None
    """How often it must be found; None: as often as it likes."""
    compare: str = ""
    """json: `equals`, `less_than`, `greater_than` or `approx`; empty: it must be there."""
    value: str | float | bool | None = None
    tolerance: float | None = None
    codes: tuple[int, ...] = ()
    seconds: float = 10.0
    """The longest that the check itself may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """What to read from what a task has written; `parser` says which of the others count."""

    parser: str
    name: str = ""
    """What to call it; empty: as the output does."""
    unit: str = ""
    """What it is measured in, `1` for a plain number; empty: as the output says."""
    better: Literal["lower", "higher", ""] = ""
    """Empty: as it follows from the unit."""
    pattern: str = ""
    """regex: with a group `value`; `metric` and `unit` if they are there, others say where on its
    axes a value was taken."""
    function: str = ""
    """python: FILE:FUNCTION."""
    only: tuple[str, ...] = ()
    """Which metrics to keep, by the names that the output gives them; empty: all."""
    axes: tuple[str, ...] = ()
    """For `json-lines`: the keys that say where on its axes a value was taken."""
    on: str = "output"
    """Where to look: `output`, `stdout`, `stderr`, or a file's name."""
    seconds: float = 60.0
    """How long a pattern or a function may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measuring:
    """What a task measures, and which of several tries at the same it is."""

    metrics: tuple[Metric, ...]
    case: str = ""
    """What it has in common with the other trials: `ranks=2 size=8`."""
    trial: int = 1


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
    """Keys of the tasks that must be over before."""
    when: When = "passed"
    """What must have become of those; `failed`: one of them has not passed, for whatever reason."""
    exports: bool = False
    """Whether it leaves variables behind for those that inherit them."""
    inherits: tuple[str, ...] = ()
    """Keys of the tasks whose variables it has below its own, with all that those inherited."""
    reuse: Reuse | None = None
    """None: it always runs."""
    submits: bool = False
    """Whether it leaves runs behind that go on by themselves."""
    code: str = ""
    """A folder to copy for each node, to work in; empty: they work in `folder`."""
    folder: str = ""
    repository: str = ""
    """The address of a repository of git, of which each node gets a clone to work in; `code` is a
    copy of it on the client."""
    commit: str = ""
    """What is checked out of it."""
    outputs: str = ""
    """Where the notebooks, pages and pictures that it leaves are copied to: a folder, or an address
    that fsspec knows."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Files to write into the attempt's folder before anything starts."""
    folders: tuple[str, ...] = ()
    """Folders to make before anything starts."""
    mounts: tuple[str, ...] = ()
    """Files and folders elsewhere that its containers see too."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """For all processes; a process's own go before these."""
    secrets: tuple[str, ...] = ()
    """Names of variables whose values come from the client's environment."""
    resources: Resources = Resources()
    """Of all processes together."""
    node_limits: Resources | None = None
    """What the processes of each node may use together, but for those with limits of their own."""
    is_alone: bool = False
    """Whether nothing else may run on its nodes meanwhile: it would be measured, too."""
    compute: str = "local"
    runtime: RuntimeChoice = RuntimeChoice()
    """Of its processes, and of the ranks that they start; a process may have one of its own."""
    tools: tuple[str, ...] = ()
    """Packages that its own command needs on a machine elsewhere, beside the runtime: there, it is
    run by `TOOLS_PYTHON`."""
    timeout: float | None = None
    """In seconds."""
    restart: Restart = Restart()
    checks: tuple[Check, ...] = ()
    """What must be true when it has run, beside its exit code."""
    measuring: Measuring | None = None
    """None: nothing is read from its output."""
    is_optional: bool = False
    """Whether all is well as well if it does not run at all."""
    skip: str = ""
    """Why it does not run at all; empty: it does. It is skipped where it is optional, as when the
    document says so, and otherwise it was not run, because something is missing."""
    is_soft: bool = False
    """Whether its failure is shown but does not make the run fail."""
    lane: str = ""
    """Tasks of one lane are counted together."""
    lane_width: int = 0
    """How many of its lane may run at a time; 0: as many as fit."""
    ends_run: bool = False
    """Whether its failure ends the run: what runs is cancelled, and nothing more starts."""
    results: str = ""
    """A JUnit file in the attempt's folder, with what became of single tests in it; or CASES, which
    processes have in theirs."""
    place: str = ""
    """Where it is asked for: FILE:LINE:COLUMN."""
    notes: tuple[str, ...] = ()
    """What was derived or mended, for people to see."""
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def calls_functions(self) -> bool:
        """Whether functions of the user's are called to judge what it has left."""
        metrics = self.measuring.metrics if self.measuring is not None else ()
        return any(check.kind == "python" for check in self.checks) or any(
            metric.parser == "python" for metric in metrics
        )


def is_look(task: Task) -> bool:
    """Return whether a task only looks at what a cell of a matrix has around it."""
    return task.tags.get(PART) == LOOK


ANALYSIS = "analysis"
"""The role, and the name, of the task that makes something of what the others have measured."""

EARLIER = ".earlier"
"""The file of such a task that names trials that are not in its run: earlier ones count."""


def is_analysis(task: Task) -> bool:
    """Return whether a task makes something of what the tasks that it needs have measured."""
    return any(process.role == ANALYSIS for process in task.processes[:1])


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


def claim_of(task: Task, most: Resources) -> Resources:
    """Return what a task takes of a machine; one that claims no cores takes one for each process.

    A task wider than the machine has it all to itself. What must be alone takes all cores, where it
    is known how many there are.
    """
    width = task.width or len(task.processes)
    cores = task.resources.cores or min(float(width), most.cores)
    if task.is_alone and math.isfinite(most.cores):
        cores = most.cores
    return dataclasses.replace(task.resources, cores=cores)


_Change = Callable[[str], str]


def with_texts(task: Task, change: _Change, of_line: _Change | None = None, **more: Any) -> Task:
    """Return a task with another text wherever it has one: commands, variables and files.

    `of_line` is for lines that a shell reads. `more` are other fields to change; a copy of its own
    would take as long again.
    """

    def changed(values: Mapping[str, str]) -> dict[str, str]:
        return {name: change(value) for name, value in values.items()}

    processes = []
    for process in task.processes:
        old = process.command
        command = (of_line or change)(old) if isinstance(old, str) else tuple(map(change, old))
        environment = changed(process.environment)
        processes.append(dataclasses.replace(process, command=command, environment=environment))
    return dataclasses.replace(
        task,
        processes=tuple(processes),
        environment=changed(task.environment),
        files=changed(task.files),
        folders=tuple(map(change, task.folders)),
        mounts=tuple(map(change, task.mounts)),
        **more,
    )


OWN_VARIABLES = (
    *("HOSTNAME", "RANKWISE_ATTEMPT", "RANKWISE_FOLDER", "RANKWISE_HOSTS", "RANKWISE_NODE"),
    *("RANKWISE_NODE_RANK", "RANKWISE_SECRETS"),
)
"""The variables that the runner sets for every process, whatever a task says."""


def filled_in(task: Task, value_of: Callable[[str], str], **more: Any) -> Task:
    """Return a task in which marks have their values; `value_of` may return a mark again."""

    return with_texts(task, lambda text: fill_in(text, value_of), **more)


# What stands in plain data under these names is an object again, or a list of some.
_PARTS: Mapping[str, Callable[..., Any]] = {
    "checks": Check,
    "limits": Resources,
    "measuring": Measuring,
    "metrics": Metric,
    "node_limits": Resources,
    "processes": Process,
    "resources": Resources,
    "restart": Restart,
    "reuse": Reuse,
    "runtime": RuntimeChoice,
}


def _made(kind: Callable[..., Any], data: Mapping[str, Any]) -> Any:
    """Make an object of plain data; JSON has lists where a plan has tuples."""
    found = {}
    for name, value in data.items():
        part = _PARTS.get(name)
        if isinstance(value, list | tuple):
            found[name] = tuple(_made(part, one) if part else one for one in value)
        else:
            found[name] = _made(part, value) if part and value is not None else value
    return kind(**found)


def body_of(task: Task) -> str:
    """Write a task as JSON."""
    return _encode(task)


def task_of(body: str) -> Task:
    """Read a task that `body_of` has written."""
    task: Task = _made(Task, json.loads(body))
    return task


def _fields(value: Any) -> dict[str, Any]:
    # What `dataclasses.fields` looks at: it makes a new tuple each time.
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


# Plans are trees: nothing in them can hold itself.
_encode = json.JSONEncoder(default=_fields, check_circular=False).encode
