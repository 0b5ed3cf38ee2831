"""Orders: what a compute hands to the runner of an attempt."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rankwise import records
from rankwise.compute.code import copy_code
from rankwise.compute.contract import Job
from rankwise.errors import ComputeFailure
from rankwise.launch.mpiexec import without_job
from rankwise.plan import Task

ORDER_VERSION = 1
_LOG_BYTES = 50_000_000
_HEARTBEAT_SECONDS = 5.0
_GRACE_SECONDS = 3.0
# What the runner adds to every process's environment.
_OWN_NAMES = (
    *("RANKWISE_ATTEMPT", "RANKWISE_FOLDER", "RANKWISE_HOSTS", "RANKWISE_NODE"),
    *("RANKWISE_NODE_RANK", "RANKWISE_SECRETS", "HOSTNAME"),
)


def make_folders(folder: Path, task: Task) -> list[Path]:
    """Make the folders in which the processes of each node work, with the code in them.

    ComputeFailure: there is no such code, or no such folder.
    """
    if not task.code:
        if not Path(task.folder).is_dir():
            raise ComputeFailure(f"{task.folder}: there is no such folder to work in")
        return [Path(task.folder)] * task.nodes
    places = [folder / "nodes" / f"node{number}" for number in range(task.nodes)]
    for place in places:
        copy_code(Path(task.code), place)
    return places


def write_order(
    job: Job,
    nodes: Sequence[Mapping[str, Any]],
    *,
    gpus: Sequence[str] = (),
    defaults: Mapping[str, str] | None = None,
    starts_by_srun: bool = False,
) -> None:
    """Write the order of a job, for processes on these nodes.

    `gpus` are those to be shared among them, `defaults` variables that anybody's own go before.
    With `starts_by_srun`, processes keep what srun must know of the job that they are in.
    """
    order = make_order(job, nodes, gpus=gpus, defaults=defaults or {})
    order["starts_by_srun"] = starts_by_srun
    write_beside(job.attempt.folder / records.ORDER, json.dumps(order))


def make_order(
    job: Job,
    nodes: Sequence[Mapping[str, Any]],
    *,
    gpus: Sequence[str] = (),
    defaults: Mapping[str, str],
) -> dict[str, Any]:
    """Say in plain data what a runner has to do."""
    task, attempt, runtime = job.task, job.attempt, job.runtime
    outer = without_job(os.environ)
    environment = {
        **{name: value for name, value in defaults.items() if name not in outer},
        **runtime.environment,
        **task.environment,
    }
    shares = _share_gpus(task, gpus)
    processes = []
    for process in task.processes:
        own = {**process.environment, **shares.get(process.name, {})}
        processes.append(
            {
                "name": process.name,
                "role": process.role,
                "node": process.node,
                "command": runtime.wrap(
                    process.command,
                    folder=nodes[process.node]["folder"],
                    mounts=[str(attempt.folder)],
                    names=[*_OWN_NAMES, *environment, *own, *task.secrets],
                    gpus=process.resources.gpus,
                ),
                "environment": own,
                "rank": process.rank,
                "is_awaited": process.is_awaited,
                "is_vital": process.is_vital,
                "speaks_for_ranks": process.speaks_for_ranks,
            }
        )
    return {
        "version": ORDER_VERSION,
        "attempt": attempt.label,
        "marker": attempt.marker,
        "folder": str(attempt.folder),
        "nodes": nodes,
        "processes": processes,
        "environment": environment,
        "unset": [*sorted(os.environ.keys() - outer.keys()), *runtime.unset],
        "path": list(runtime.path),
        "files": dict(task.files),
        "secrets": list(task.secrets),
        "timeout": task.timeout,
        "is_measured": task.measuring is not None,
        "grace": _GRACE_SECONDS,
        "log_bytes": _LOG_BYTES,
        "heartbeat": _HEARTBEAT_SECONDS,
    }


def _share_gpus(task: Task, gpus: Sequence[str]) -> dict[str, dict[str, str]]:
    """Give each process the GPUs that it claims, as the variable by which it sees no others."""
    shares = {}
    left = list(gpus)
    for process in task.processes:
        if own := left[: process.resources.gpus]:
            del left[: len(own)]
            shares[process.name] = {"CUDA_VISIBLE_DEVICES": ",".join(own)}
    return shares


def write_beside(path: Path, text: str) -> None:
    """Write a file beside its place and move it there: readers find all or nothing."""
    beside = path.with_name(f".{path.name}")
    beside.write_text(text)
    beside.replace(path)
