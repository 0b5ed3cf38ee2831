"""Command lines as other systems expect them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence

from rankwise.export.base import ExportJob
from rankwise.launch.commandline import Launch, Option
from rankwise.launch.mpi_jobs import generated
from rankwise.launch.rewriting import edits_for, fixes_for, notes_for
from rankwise.launch.shell import Edit, apply
from rankwise.plan import fill_in, later

# Options that Azure ML needs no more: it counts processes, names hosts, and runs as root itself.
_ELSEWHERE = frozenset(
    {
        *("np", "n", "c", "num-proc", "npernode", "N", "ppn", "perhost", "slots-per-host"),
        *("hostfile", "machinefile", "default-hostfile", "f", "allow-run-as-root"),
    }
)
# Open MPI reads its parameters from variables with these prefixes, too.
_PARAMETERS = {"mca": "OMPI_MCA_", "gmca": "OMPI_MCA_", "omca": "OMPI_MCA_", "prtemca": "PRTE_MCA_"}


def without_launcher(line: str, launch: Launch) -> tuple[str, dict[str, str], list[str]] | None:
    """Return the line of a rank, variables that stand for options, and the options that are lost.

    None: the launcher starts several programs, or it is not clear where it begins.
    """
    if len(launch.segments) != 1:
        return None
    (segment,) = launch.segments
    program = segment.program[0].start
    first = segment.options[0].start if segment.options else program
    before = line[:first].rstrip().removesuffix("--").rstrip()
    if launch.python or not before.endswith(launch.path):
        return None
    variables: dict[str, str] = {}
    lost: list[str] = []
    for option in segment.options:
        said = _as_variable(option)
        if said is not None:
            variables |= said
        elif option.name not in _ELSEWHERE:
            lost.append(line[option.start : option.end])
    return before.removesuffix(launch.path) + line[program:], variables, lost


def _as_variable(option: Option) -> dict[str, str] | None:
    """Return the variable that says the same as an option; None: there is none."""
    values: Sequence[str | None] = option.values
    match option.name, values:
        case (("x" | "genv" | "env"), [str(text)]):
            name, has_value, value = text.partition("=")
            # Without a value it passes on a variable, which Azure ML does with all.
            return {name: value} if has_value else {}
        case (("genv" | "env"), [str(name), str(value)]):
            return {name: value}
        case name, [str(parameter), str(value)] if name in _PARAMETERS:
            return {_PARAMETERS[name] + parameter: value}
    return None


HOSTFILES = ("AZUREML_MPI_HOSTFILE", "RANKWISE_HOSTFILE")
"""The variables that name the file of hosts."""
_OF_NODES = ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "WORLD_SIZE")
_OF_RANKS = (*_OF_NODES, "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")

_EXPANDED = re.compile(r"\$(?=[$(])")


def for_shell(line: str) -> list[str]:
    """Return the command of a container that has a shell run a line."""
    return ["/bin/sh", "-c", escaped(line)]


def escaped(text: str) -> str:
    """Keep Kubernetes from replacing `$(NAME)` and `$$`, which it does before any shell."""
    return _EXPANDED.sub("$$", text)


def with_dollars(line: str, names: Iterable[str]) -> str:
    """Put a `$` before the names of variables that stand in a line as words."""
    return _filled(apply(line, _dollars(line, names)))


def mpi_line(job: ExportJob, hostfile: str) -> str:
    """Return the line of the launcher of an MPI job, which finds the file of hosts there."""
    line = job.role.command
    if job.request.generate_launcher and job.launch is None:
        folder = hostfile.rpartition("/")[0]
        return fill_in(generated(line, job.counts.processes), lambda _: folder)
    return with_dollars(line, HOSTFILES)


def torch_line(job: ExportJob, known_as: Mapping[str, str]) -> tuple[str, list[str]]:
    """Return the line of each node of a PyTorch job, and notes on it.

    `known_as` says where the operator has the values of MASTER_ADDR, NODE_RANK and the like.
    """
    line, notes = job.role.command, list[str]()
    exports = {name: f'"{value}"' for name, value in known_as.items()}
    exports["WORLD_SIZE"] = str(job.counts.processes)
    if job.launch is not None:
        line, notes = torch_words(line, job.launch)
    elif job.counts.per_instance > 1:
        count = job.counts.per_instance
        line = (
            f"exec torchrun --nnodes {job.counts.instances} --nproc_per_node {count} "
            "--node_rank $NODE_RANK --master_addr $MASTER_ADDR --master_port $MASTER_PORT "
            f"--no_python sh -c {shlex.quote(torch_words(line)[0])}"
        )
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
    # As marks first: whether quotes are needed is decided with them, and `$` must not be quoted.
    return edits_for(line, {name: later(name) for name in names})


def _filled(line: str) -> str:
    return fill_in(line, lambda name: f"${name}")
