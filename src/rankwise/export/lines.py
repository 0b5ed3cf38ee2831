"""Command lines for operators that set the ranks' variables themselves.

A line stays as people have written it, but for three things. The names of variables that stand in
it without `$` (`--node_rank NODE_RANK`) get one. Where the operator calls a variable otherwise, a
line before it gives it the name that rankwise has for it. And where a node has several processes
and the line starts only one, torch's own launcher starts them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping

from rankwise.export.contract import Job
from rankwise.launch.command import Launch
from rankwise.launch.compatibility import fixes_for, notes_for
from rankwise.launch.derive import Counts
from rankwise.launch.mpijob import generated
from rankwise.launch.shell import Edit, apply
from rankwise.launch.words import edits_for
from rankwise.plan import fill_in, later

HOSTFILES = ("AZUREML_MPI_HOSTFILE", "RANKWISE_HOSTFILE")
"""The variables that name the file of hosts."""
_OF_NODES = ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "WORLD_SIZE")
_OF_RANKS = (*_OF_NODES, "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")

_EXPANDED = re.compile(r"\$(?=[$(])")


def for_shell(line: str) -> list[str]:
    """Give the command of a container that has a shell run a line."""
    return ["/bin/sh", "-c", escaped(line)]


def escaped(text: str) -> str:
    """Keep Kubernetes from replacing `$(NAME)` and `$$`, which it does before any shell."""
    return _EXPANDED.sub("$$", text)


def with_dollars(line: str, names: Iterable[str]) -> str:
    """Put a `$` before the names of variables that stand in a line as words."""
    return _filled(apply(line, _dollars(line, names)))


def mpi_line(job: Job, hostfile: str) -> str:
    """Give the line of the launcher of an MPI job, which finds the file of hosts there."""
    line = job.role.command
    if job.request.generate_launcher and job.launch is None:
        folder = hostfile.rpartition("/")[0]
        return fill_in(generated(line, job.counts.processes), lambda _: folder)
    return with_dollars(line, HOSTFILES)


def torch_line(job: Job, known_as: Mapping[str, str]) -> tuple[str, list[str]]:
    """Give the line of each node of a PyTorch job, and notes on it.

    `known_as` says where the operator has the values of MASTER_ADDR, NODE_RANK and the like.
    """
    line, notes = job.role.command, list[str]()
    exports = {name: f'"{value}"' for name, value in known_as.items()}
    exports["WORLD_SIZE"] = str(job.counts.processes)
    if job.launch is not None:
        line, notes = torch_words(line, job.launch)
    elif job.counts.per_instance > 1:
        line = _by_torchrun(torch_words(line)[0], job.counts)
        count = job.counts.per_instance
        notes = [f"torchrun starts the {count} processes of each node: the image must have it"]
    else:
        line, _ = torch_words(line)
        alone = {"RANK": '"$NODE_RANK"', "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        exports |= {name: value for name, value in alone.items() if name not in exports}
    before = "".join(
        f"export {name}={value}\n" for name, value in exports.items() if value != f'"${name}"'
    )
    return before + line, notes


def torch_words(line: str, launch: Launch | None = None) -> tuple[str, list[str]]:
    """Put a `$` before the variables of torch, and mend what its launcher would misunderstand."""
    fixes = fixes_for(line, launch, "unknown") if launch is not None else []
    notes = notes_for(fixes, launch, "unknown") if launch is not None else []
    names = _OF_RANKS if launch is None else _OF_NODES
    return _filled(apply(line, [*(fix.edit for fix in fixes), *_dollars(line, names)])), notes


def _dollars(line: str, names: Iterable[str]) -> list[Edit]:
    return edits_for(line, {name: later(name) for name in names})


def _filled(line: str) -> str:
    return fill_in(line, lambda name: f"${name}")


def _by_torchrun(line: str, counts: Counts) -> str:
    return (
        f"exec torchrun --nnodes {counts.instances} --nproc_per_node {counts.per_instance} "
        "--node_rank $NODE_RANK --master_addr $MASTER_ADDR --master_port $MASTER_PORT "
        f"--no_python sh -c {shlex.quote(line)}"
    )
