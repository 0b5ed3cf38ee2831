"""From what a document asks of a job (its counts, inputs and processes) to the task."""

from __future__ import annotations

import math
import pkgutil
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from rankwise.errors import InputError
from rankwise.launch.rewriting import PreparedLine
from rankwise.plan import Process, Resources, Restart, RuntimeChoice, Task, fill_in_line, later
from rankwise.wording import counted, hint

if TYPE_CHECKING:
    from rankwise.launch.commandline import Launch
    from rankwise.launch.mpiexec import Family

Kind = Literal["mpi", "pytorch", "tensorflow", "plain"]
Success = Literal["all", "launcher", "chief"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleRequest:
    """One part that processes of a job play."""

    name: str
    replicas: int | None = None
    command: str = ""
    code: str = ""
    """An absolute folder; empty: the role does not say."""
    runtime: RuntimeChoice = RuntimeChoice()
    resources: Resources = Resources()
    """Of one replica."""
    place: str = ""
    """Where its environment is written: FILE:LINE:COLUMN."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """One distributed job; what is None was not said, and is derived."""

    kind: Kind
    name: str
    roles: tuple[RoleRequest, ...]
    key: str = "train"
    """The task's name within its plan."""
    instance_count: int | None = None
    process_count_per_instance: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict)
    """The paths of `inputs.NAME` and `outputs.NAME`, which commands have as one word."""
    secrets: tuple[str, ...] = ()
    timeout: float | None = None
    restart: Restart = Restart()
    success: Success | None = None
    compute: str = "local"
    folder: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    generate_launcher: bool = False
    """Whether the command is a plain program for which the mpiexec is yet to be written."""
    is_limited: bool = False
    """Whether replicas may use no more than what they claim."""

    @property
    def common(self) -> RoleRequest:
        """Return the role whose code and runtime are those of the task.

        There is one replica of it on each instance.
        """
        return next((role for role in self.roles if role.name == "worker"), self.roles[0])

    def limits(self, claimed: Resources) -> Resources | None:
        """Return what something may use that claims so much; GPUs are given out, not limited."""
        return replace(claimed, gpus=0) if self.is_limited else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known about the machine on which the job is to run."""

    cores: int = 1
    has_mpi4py: bool = False
    """Whether the Python that the job would find has it."""
    srun_plugin: str | None = None
    """By which of its plugins srun starts the ranks of MPI; empty: its own; None: mpirun does."""
    has_machines: bool = False
    """Whether nodes are machines, which a batch system chooses."""
    has_pods: bool = False
    """Whether each replica of a role has a place of its own, and the launcher too."""
    mpi_family: Family = "unknown"
    """Whose the mpirun is that the job would find."""


PlannedProcess = tuple[Process, Sequence[str]]
"""A process, and notes about it."""


def assemble(
    request: JobRequest,
    planned: Sequence[PlannedProcess],
    *,
    notes: Iterable[str],
    environment: Mapping[str, str] | None = None,
    **more: Any,
) -> Task:
    """Make the task; the variables of the document go before those given here.

    `more` are fields of the task.
    """
    told = (note for _, own in planned for note in own)
    return Task(
        key=request.key,
        processes=tuple(process for process, _ in planned),
        code=request.common.code,
        folder=request.folder,
        environment={**(environment or {}), **request.environment},
        secrets=request.secrets,
        compute=request.compute,
        runtime=request.common.runtime,
        timeout=request.timeout,
        restart=request.restart,
        # Of many processes alike, a note is given once.
        notes=tuple(dict.fromkeys([*notes, *told])),
        tags=dict(request.tags),
        **more,
    )


def commanding_role(request: JobRequest, *names: str) -> RoleRequest:
    """Return the role whose command is run: the first of these names, or else the first at all."""
    with_command = [role for role in request.roles if role.command.strip()]
    if not with_command:
        raise InputError(
            f"{request.name}: no role has a command: write one, as `command: python train.py`"
        )
    named = (role for name in names for role in with_command if role.name == name)
    return next(named, with_command[0])


def unused_commands(request: JobRequest, used: RoleRequest) -> list[str]:
    """Return which commands are not run, since that of another role is."""
    return [
        f"the command of {role.name} is not used: that of {used.name} is"
        for role in request.roles
        if role is not used and role.command.strip()
    ]


def process_of(
    request: JobRequest,
    role: RoleRequest,
    prepared: PreparedLine,
    number: int,
    *,
    who: Mapping[str, str],
    defaults: Mapping[str, str] | None = None,
    **more: Any,
) -> PlannedProcess:
    """Return a process of a role with its command and variables, and notes about them.

    `who` are the variables that say which process it is; whatever the document says, they win:
    with another RANK, ranks would not find each other. Before `defaults`, the document's win.
    `more` are fields of the process.
    """
    said = request.environment
    notes = [
        f"variables: {name} is set for each process: {said[name]!r} of the document is not used"
        for name in who
        if name in said
    ]
    added = {**(defaults or {}), **prepared.environment}
    kept = {name: value for name, value in added.items() if name not in said}
    environment = {**kept, **who}
    known = {**said, **environment}
    # The caller may name the process otherwise, or give it a share of what its role claims.
    named = {"name": f"{role.name}-{number}", "role": role.name, "resources": role.resources}
    named["runtime"] = role.runtime if differ(role.runtime, request.common.runtime) else None
    named["code"] = role.code if role.code != request.common.code else ""
    notes += prepared.word_notes(known)
    command = prepared.for_process(known)
    return Process(**{**named, **more}, command=command, environment=environment), notes


def differ(one: RuntimeChoice, other: RuntimeChoice) -> bool:
    """Return whether two runtimes are not the same, whatever they are called."""
    return replace(one, name=other.name) != other


# Larger than any cluster that is known: a number with a digit too many is not planned for minutes.
_MOST_INSTANCES = 10_000
MOST_PROCESSES = 100_000
"""More are taken for a typing error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """The size of a job, and how it was found."""

    instances: int
    per_instance: int
    notes: tuple[str, ...] = ()

    @property
    def processes(self) -> int:
        return self.instances * self.per_instance


def counts(request: JobRequest, facts: Facts, launch: Launch | None) -> Counts:
    """Find out how large a job is; raises InputError if it is larger than anything."""
    instances, notes = instances_of(request, launch)
    per_instance, why = _per_instance(request, facts, launch, instances)
    if why:
        notes += (f"{counted(per_instance, 'process')} per instance: {why}",)
    if launch is not None:
        notes += tuple(_conflicts(request, launch, instances, per_instance))
    found = Counts(instances=instances, per_instance=per_instance, notes=notes)
    if found.processes > MOST_PROCESSES:
        raise InputError(
            f"{request.name}: {instances} instances with {per_instance} processes each are more "
            f"than {MOST_PROCESSES} processes: check `-np` and `process_count_per_instance`"
        )
    return found


def instances_of(request: JobRequest, launch: Launch | None) -> tuple[int, tuple[str, ...]]:
    """Find out how many instances there are, with a note if it was derived."""
    count, note = _instances(request, launch)
    if count < 1:
        raise InputError(
            f"{request.name}: {count} instances cannot run anything: ask for 1 at least"
        )
    if count > _MOST_INSTANCES:
        raise InputError(
            f"{request.name}: {count} instances are more than {_MOST_INSTANCES}: check "
            "`instance_count`, `num_replicas` and the numbers in the command"
        )
    return count, (f"{counted(count, 'instance')}: {note}",) if note else ()


def _instances(request: JobRequest, launch: Launch | None) -> tuple[int, str]:
    if request.instance_count is not None:
        return request.instance_count, ""
    role = request.common
    if role.replicas is not None:
        return role.replicas, f"num_replicas of {role.name}"
    if launch is not None and launch.nodes is not None:
        return launch.nodes[1], "as many nodes as the command asks for"
    # As many instances as the ranks need, with a rank for each GPU of an instance.
    gpus = role.resources.gpus
    if launch is not None and launch.processes is not None and gpus:
        count = math.ceil(launch.processes / gpus)
        return count, f"{_np(launch)} with {counted(gpus, 'GPU')} each"
    return 1, ""


def _per_instance(
    request: JobRequest, facts: Facts, launch: Launch | None, instances: int
) -> tuple[int, str]:
    """Return how many processes an instance has, and how that was derived, if it was."""
    count = request.process_count_per_instance
    if count is not None:
        if count < 1:
            raise InputError(
                f"{request.name}: `process_count_per_instance: {count}` runs nothing: set at least "
                "1"
            )
        return count, ""
    # From here on it is derived: first from the command, then from what an instance claims.
    claimed = request.common.resources
    # `facts.cores` are those of all instances together.
    gpus, cores = claimed.gpus, math.ceil(claimed.cores) or max(facts.cores // instances, 1)
    by_gpus = gpus, f"one for each of {counted(gpus, 'GPU')}"
    by_cores = cores, f"one for each of {counted(cores, 'core')}"
    if launch is not None:
        if launch.processes is not None:
            is_uneven = launch.processes % instances
            uneven = " (not even: not all places are taken)" if is_uneven else ""
            why = f"{_np(launch)} over {counted(instances, 'instance')}{uneven}"
            return math.ceil(launch.processes / instances), why
        wanted = launch.processes_per_node
        if (number := launch.count_per_node) is not None:
            why = f"--nproc_per_node {number}" if launch.is_torch else "as the command says"
            return number, why
        # torchrun counts GPUs where it runs; how many there are is known here only if claimed.
        if wanted in ("gpu", "auto") and gpus:
            return by_gpus
        if launch.is_torch and wanted is None:
            return 1, f"{launch.launcher} starts one unless --nproc_per_node says otherwise"
    return by_gpus if gpus else by_cores


def _conflicts(
    request: JobRequest, launch: Launch, instances: int, per_instance: int
) -> Iterator[str]:
    """Name where the document and its command disagree; raises InputError if they must not."""
    there_are = counted(instances, "instance")
    places = instances * per_instance
    if launch.processes is not None and launch.processes > places:
        yield (
            f"oversubscribed: {_np(launch)} on {there_are} with {counted(per_instance, 'process')} "
            f"each is {launch.processes - places} more than there are places"
        )
    wanted, said = launch.count_per_node, request.process_count_per_instance
    if wanted is not None and said is not None and wanted != said:
        yield f"process_count_per_instance is {said}, but the command wants {wanted} on each node"
    # srun's --nodes counts what it may use of an allocation; torchrun waits for all of its nodes.
    if launch.nodes is None or not launch.is_torch:
        return
    least, most = launch.nodes
    if least > instances:
        raise InputError(
            f"{request.name}: the command waits for {least} nodes (--nnodes), and there are "
            f"{there_are}: set `instance_count: {least}` or --nnodes {instances}"
        )
    if most < instances:
        wanted_nodes = counted(most, "node")
        yield f"the command wants {wanted_nodes} (--nnodes), and it runs on each of {there_are}"


def _np(launch: Launch) -> str:
    return f"-n {launch.processes}" if launch.dialect == "srun" else f"-np {launch.processes}"


_REFERENCE = re.compile(r"\$\{\{\s*(.*?)\s*\}\}", re.DOTALL)


def with_inputs(request: JobRequest) -> JobRequest:
    """Put the inputs into all commands and variables.

    Raises InputError, with a line for each reference to something that is no input.
    """
    known = {f"inputs.{name}": value for name, value in request.inputs.items()}
    known |= request.places
    available = ", ".join(f"`{name}`" for name in known)
    problems: list[str] = []

    def fill(text: str, where: str) -> str:
        for found in _REFERENCE.finditer(text):
            if (name := found[1]) not in known:
                otherwise = f"there is {available}" if known else "add it under `inputs:`"
                remedy = hint(name.removeprefix("inputs."), request.inputs, otherwise)
                problems.append(f"{request.name}: {where}: `{found[0]}` is unknown: {remedy}")
        return _REFERENCE.sub(lambda found: known.get(found[1], ""), text)

    def line(role: RoleRequest) -> str:
        marks = {name: later(name) for name in request.places}
        marked = _REFERENCE.sub(lambda found: marks.get(found[1], found[0]), role.command)
        filled = fill(marked, f"the command of {role.name}")
        return fill_in_line(filled, lambda m: known.get(m) or later(m)) if marks else filled

    roles = tuple(replace(role, command=line(role)) for role in request.roles)
    environment = {
        name: fill(value, f"the variable {name}") for name, value in request.environment.items()
    }
    if problems:
        raise InputError("\n".join(dict.fromkeys(problems)))
    return replace(request, roles=roles, environment=environment)


def plain_task(request: JobRequest, facts: Facts) -> Task:
    """Plan a command that runs once on each instance, and knows the number of its node."""
    del facts  # All planners are called alike; this one derives nothing from the machine.
    role = commanding_role(request)
    instances, notes = instances_of(request, None)
    prepared = PreparedLine(line=role.command)
    planned = [
        process_of(
            request, role, prepared, node, who={"NODE_RANK": str(node)}, node=node, rank=node
        )
        for node in range(instances)
    ]
    return assemble(
        request,
        planned,
        nodes=instances,
        resources=role.resources * instances,
        notes=[*notes, *unused_commands(request, role)],
    )


_PLANNERS: Mapping[Kind, str] = {
    "plain": "jobs:plain_task",
    "mpi": "mpi_jobs:mpi_task",
    "pytorch": "framework_jobs:pytorch_task",
    "tensorflow": "framework_jobs:tensorflow_task",
}
"""What plans each kind of jobs. Only where ranks are to be started, launchers are loaded."""


def task_for(request: JobRequest, facts: Facts | None = None) -> Task:
    """Plan a job; raises InputError if what it asks for cannot be.

    The same request and facts give the same task: nothing is looked up, started or written.
    """
    # By name: most plans have one kind of job, or none.
    planner = pkgutil.resolve_name(f"rankwise.launch.{_PLANNERS[request.kind]}")
    task: Task = planner(with_inputs(request), facts or Facts())
    return task
