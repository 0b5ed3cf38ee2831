"""What a runner needs: the order of an attempt, its folders, and our own files."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import py_compile
import sys
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path

from rankwise import node, records
from rankwise.backends.base import Submission
from rankwise.errors import ComputeFailure, RankwiseError
from rankwise.files import copy_code, read_left
from rankwise.launch.mpi import without_job
from rankwise.node.files import Beside, is_plain, temporary
from rankwise.node.order import BAD_ORDER, NodeOrder, Order, ProcessOrder
from rankwise.plan import OWN_VARIABLES, Process, Resources, Task
from rankwise.runtimes.base import PreparedRuntime, cache_folder

MAIN = "__main__.py"
"""The file of the folder that is started."""
_SOURCE = Path(str(node.__file__)).parent


@functools.cache
def own_files() -> Mapping[str, bytes]:
    """Return the files of the folder that is sent to other machines."""
    return {path.name: path.read_bytes() for path in sorted(_SOURCE.glob("*.py"))}


def digest_of(files: Mapping[str, bytes]) -> str:
    """Return a digest: the same for the same files."""
    # With names and lengths: a byte that moves from one file to the next must change it.
    known = hashlib.sha256()
    for name, content in sorted(files.items()):
        known.update(f"{name} {len(content)}\n".encode() + content)
    return known.hexdigest()[:16]


@functools.cache
def compiled_node() -> Path:
    """Return the folder to start our own part from on this machine, compiled if that is possible.

    Its name is the digest of its files: one that exists is right, and stays while anything may use
    it, also when another version is installed meanwhile.
    """
    try:
        name = f"{sys.implementation.cache_tag}-{digest_of(own_files())}"
        place = cache_folder() / "nodes" / name
        if not place.exists():
            # Moved into place when it is whole: several clients may do this at a time.
            with Beside(place) as beside:
                _compile(Path(beside), place)
    except (OSError, RankwiseError, py_compile.PyCompileError):
        return _SOURCE
    return place


def _compile(folder: Path, place: Path) -> None:
    """Copy our files into a folder that will be at a place, with their bytecode."""
    (folder / "__pycache__").mkdir(parents=True, exist_ok=True)
    for name, content in own_files().items():
        (folder / name).write_bytes(content)
        py_compile.compile(
            str(folder / name),
            cfile=f"{folder}/__pycache__/{Path(name).stem}.{sys.implementation.cache_tag}.pyc",
            dfile=str(place / name),
            doraise=True,
            optimize=0,
            # Python need not compare it with the source: the folder is named by their digest.
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        )


def start_words(python: str, folder: Path | str) -> list[str]:
    """Return the words that start our own part from a folder."""
    # Variables and packages of the user must not change our part, and it starts faster.
    return [python, "-I", "-S", f"{folder}/{MAIN}"]


# What an order says of a process as the plan does.
_AS_PLANNED = ("name", "role", "node", "rank", "is_awaited", "is_vital", "speaks_for_ranks")


def make_folders(folder: Path, task: Task) -> list[Path]:
    """Make the folders in which the processes of each node work, with the code in them.

    ComputeFailure: there is no such code, or no such folder.
    """
    for own, code in {_own_folder(folder, one): one.code for one in task.processes}.items():
        if own:
            copy_code(Path(code), Path(own))
    if not task.code:
        if not Path(task.folder).is_dir():
            raise ComputeFailure(f"{task.folder}: there is no such folder to work in")
        return [Path(task.folder)] * task.nodes
    places = [folder / "nodes" / f"node{number}" for number in range(task.nodes)]
    for place in places:
        if task.repository:
            _clone(task, place)
        else:
            copy_code(Path(task.code), place)
    return places


def _clone(task: Task, place: Path) -> None:
    # Late: most tasks have no repository.
    from rankwise.node.repository import GitFailure, clone

    try:
        clone(repositories(), task.repository, os.environ, task.commit, str(place))
    except (GitFailure, OSError) as failure:
        raise ComputeFailure(f"{task.repository} could not be cloned: {failure}") from failure


def repositories() -> str:
    """Return the folder in which repositories are kept on this machine."""
    return str(cache_folder() / "repositories")


def _own_folder(folder: Path, process: Process) -> str:
    """Return where a process with code of its own works; empty: where its node does."""
    return f"{folder}/nodes/node{process.node}-{process.role}" if process.code else ""


def make_order(
    job: Submission,
    nodes: Sequence[NodeOrder],
    *,
    gpus: Sequence[str] = (),
    defaults: Mapping[str, str] | None = None,
    keeps_allocation: bool = False,
) -> Order:
    """Return what a runner has to do, with processes on these nodes.

    `gpus` are those to be shared among them, `defaults` variables that all others override.
    With `keeps_allocation`, processes keep what srun must know of the job that they are in.
    """
    task, attempt = job.task, job.attempt
    # Where processes have runtimes of their own, nothing of one must be seen in another.
    runtime = PreparedRuntime() if job.runtimes else job.runtime
    outer = without_job(os.environ)
    environment = {
        **{name: value for name, value in (defaults or {}).items() if name not in outer},
        **runtime.environment,
        **task.environment,
    }
    left = iter(gpus)
    return Order(
        attempt=attempt.label,
        marker=attempt.marker,
        folder=str(attempt.folder),
        is_contained=any(one.is_container for one in (job.runtime, *job.runtimes.values())),
        nodes=[node.replace(limits=_limits(task.node_limits)) for node in nodes]
        if task.node_limits
        else nodes,
        processes=[
            _process_order(job, one, nodes, environment, [*islice(left, one.resources.gpus)])
            for one in task.processes
        ],
        environment=environment,
        # This process may itself be a rank of a job, and the runner inherits its environment.
        unset=[*sorted(os.environ.keys() - outer.keys()), *runtime.unset],
        path=runtime.path,
        files=task.files,
        folders=task.folders,
        secrets=task.secrets,
        gpus=gpus,
        timeout=task.timeout,
        is_measured=task.measuring is not None,
        keeps_allocation=keeps_allocation,
    )


def _process_order(
    job: Submission,
    process: Process,
    nodes: Sequence[NodeOrder],
    environment: Mapping[str, str],
    gpus: Sequence[str],
) -> ProcessOrder:
    # By this variable it sees no others.
    visible = {"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {}
    runtime = job.runtimes.get(process.runtime, job.runtime) if process.runtime else job.runtime
    special = runtime if job.runtimes else PreparedRuntime()
    made = {name: one for name, one in special.environment.items() if name not in environment}
    own = {**made, **process.environment, **visible}
    command, place = process.command, _own_folder(job.attempt.folder, process)
    if runtime.wrap is not None:
        folder = str(job.attempt.folder)
        command = runtime.wrap(
            command,
            name=process.name,
            folder=place or nodes[process.node].folder,
            # The runner keeps logs and records of all processes in this folder.
            mounts=[folder, *job.task.mounts],
            # Where its name is not plain, the runner gives it another one.
            aliases={} if is_plain(folder) else {folder: f"{temporary(job.attempt.marker)}.folder"},
            names=[*OWN_VARIABLES, *environment, *own, *job.task.secrets],
            gpus=process.resources.gpus,
        )
    return ProcessOrder(
        **{name: getattr(process, name) for name in _AS_PLANNED},
        command=command,
        environment=own,
        gpus=gpus,
        path=special.path,
        unset=special.unset,
        folder=place,
        limits=_limits(process.limits),
        is_contained=runtime.is_container,
    )


def _limits(limits: Resources | None) -> Mapping[str, float] | None:
    if limits is None:
        return None
    amounts = {"cores": limits.cores, "memory": limits.memory}
    return {name: amount for name, amount in amounts.items() if amount}


def gpus_of(folder: Path) -> tuple[str, ...]:
    """Return the GPUs that an attempt was given, from its order; none if there is no order."""
    try:
        return tuple(Order.read(json.loads(read_left(folder / records.ORDER))).gpus)
    except BAD_ORDER:
        return ()
