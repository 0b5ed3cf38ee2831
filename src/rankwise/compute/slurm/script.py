"""What is handed to sbatch: its options, and the script."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from rankwise.errors import ComputeFailure
from rankwise.plan import Resources, Task
from rankwise.site.choices import ComputeChoice, SlurmChoice
from rankwise.slurm import commands

_MIB = 1 << 20
# What ending a task may take after its own limit, so that it is the runner who ends it.
_MORE_SECONDS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a job asks of Slurm: of each node, not of all together."""

    nodes: int = 1
    cores: int = 1
    memory: int = 0
    """In MiB; 0: what the partition gives to a core."""
    gpus: int = 0
    minutes: int = 0
    """0: what the site file or the partition says."""


def needs_of(task: Task, *, most_cores: int = 0, counts_gpus: bool = False) -> Needs:
    """Say what a task asks for.

    Where nobody has claimed cores, there is one for each process, as far as a node has so many.
    With `counts_gpus` they are only counted, since Slurm does not know of them.
    """
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
    )


def node_of(choice: ComputeChoice) -> Resources | None:
    """Tell what one node of a cluster has, as a plan must know it; None: nobody answers here."""
    try:
        nodes = commands.nodes(choice.slurm.partition)
    except ComputeFailure:
        return None
    if not nodes:
        return None
    return Resources(
        cores=max(node.cores for node in nodes),
        memory=max(node.memory for node in nodes) * _MIB,
        gpus=max(node.gpus for node in nodes),
    )


def options_of(choice: SlurmChoice, needs: Needs) -> list[str]:
    """Give sbatch's options that say where a job runs and on what; the site's own come last."""
    options = [
        f"--nodes={needs.nodes}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={needs.cores}",
        # What was appended before a job was put back into the queue tells why it was.
        "--open-mode=append",
        "--export=ALL",
    ]
    options += [f"--mem={needs.memory}M"] if needs.memory else []
    options += [f"--gpus-per-node={needs.gpus}"] if needs.gpus else []
    time = choice.time or (str(needs.minutes) if needs.minutes else "")
    said = {
        "partition": choice.partition,
        "account": choice.account,
        "qos": choice.qos,
        "constraint": choice.constraint,
        "time": time,
    }
    options += [f"--{name}={value}" for name, value in said.items() if value]
    return [*options, *choice.options]


def script_text(choice: SlurmChoice, label: str, command: Sequence[str]) -> str:
    """Write the script: modules, the site's own lines, and then our part in place of the shell.

    What it is to work on is still missing at its end. A line that fails ends it: what would come
    after needs it. Modules are there in login shells.
    """
    lines = ["#!/bin/bash -l" if choice.modules else "#!/bin/bash", f"# {label}, by rankwise"]
    if choice.modules or choice.init:
        lines.append("set -e")
    lines += [f"module load {shlex.quote(module)}" for module in choice.modules]
    lines += choice.init
    lines.append(f"exec {shlex.join(command)}")
    return "\n".join(lines)
