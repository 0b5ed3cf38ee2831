"""Jobs of MPI, started by an mpiexec or by srun."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import replace

from rankwise.errors import InputError
from rankwise.launch.commandline import Launch, read_command
from rankwise.launch.jobs import (
    Counts,
    Facts,
    JobRequest,
    assemble,
    commanding_role,
    counts,
    differ,
    process_of,
    unused_commands,
)
from rankwise.launch.mpiexec import Family, Mpiexec, traits_of
from rankwise.launch.rewriting import (
    WITH_MPI4PY,
    WITH_MPI4PY_IF_THERE,
    in_shell,
    prepare,
    substitute,
)
from rankwise.launch.shell import Edit, apply, read, skip_prefixes
from rankwise.plan import Resources, Task, later


def by_srun(
    line: str, launch: Launch, plugin: str, *, nodes: int, processes: int
) -> tuple[str, str]:
    """Return the line with srun in the place of mpirun and its options, and a note that says so.

    With a note and the same line, if there is nothing that could be replaced. What mpirun's options
    say is left out: srun hands on all variables, and where ranks go is for Slurm to decide.
    """
    if launch.is_torch or launch.dialect == "srun" or launch.launcher == "horovodrun":
        return line, f"srun: `{launch.launcher}` starts its ranks itself"
    if len(launch.segments) > 1:
        return line, "srun: several programs in one line stay with mpirun"
    # The launcher's own word is not kept: it is the last one of its name before its options.
    program = launch.segments[0].program[0].start
    options = [option.start for option in launch.segments[0].options]
    start = line.rfind(launch.path, 0, min([*options, program]))
    if start < 0:
        return line, f"srun: `{launch.path}` is not found in the line, and stays"
    hosts = ",".join(later(f"host:{node}") for node in range(nodes))
    words = [
        "srun",
        *([f"--mpi={plugin}"] if plugin else []),
        # Beside what else runs in the job, and more ranks than cores if need be.
        *("--overlap", "--overcommit", "--mem=0"),
        *(f"--nodes={nodes}", f"--ntasks={processes}", f"--nodelist={in_shell(hosts)}"),
    ]
    new = f"{line[:start]}{' '.join(words)} {line[program:]}"
    return new, f"srun: `{launch.launcher}` became `{' '.join(words[:2])}`, as the site file says"


HOSTFILE = later("folder") + "/hostfile"
NODE_PROGRAM = later("folder") + "/bin/rankwise-node"
"""What starts a command on another node, in the place of ssh."""

_VARIABLES = {"AZUREML_MPI_HOSTFILE": HOSTFILE, "RANKWISE_HOSTFILE": HOSTFILE}
_FAMILIES: tuple[Family, ...] = ("openmpi4", "openmpi5", "mpich", "intel")


def mpi_task(request: JobRequest, facts: Facts) -> Task:
    """Plan an MPI job: a launcher on the first node, which starts the ranks on all."""
    role = commanding_role(request, "launcher")
    family = facts.mpi_family
    said = request.environment
    reading = read_command(role.command, family, said)
    found = counts(request, facts, reading.launch)
    line, notes = role.command, [*found.notes, *unused_commands(request, role)]
    # A launcher that is not understood stays: a second one around it would start ranks of ranks.
    if request.generate_launcher and not reading.has_launcher:
        line = generated(role.command, found.processes)
        reading = read_command(line, family, said)
    is_contained = role.runtime.kind == "container" and not facts.has_pods
    if is_contained and facts.has_machines and found.instances > 1:
        raise InputError(
            f"{request.name}: in containers, all ranks of MPI are on one node, and there are "
            f"{found.instances} instances: set `instance_count: 1` and more processes per instance,"
            f" or name an environment that the nodes have (`python`, `modules`)"
        )
    # An image has no srun that knows the cluster.
    if facts.srun_plugin is not None and is_contained:
        notes.append("srun: in a container, the image's own mpirun starts the ranks")
    elif facts.srun_plugin is not None and reading.launch is not None:
        size = {"nodes": found.instances, "processes": found.processes}
        line, note = by_srun(line, reading.launch, facts.srun_plugin, **size)
        reading = read_command(line, family, said)
        notes.append(note)
    mpi4py = WITH_MPI4PY_IF_THERE if is_contained else WITH_MPI4PY if facts.has_mpi4py else ""
    prepared = prepare(line, reading, family, mpi4py=mpi4py)
    at_nodes = request.common
    if differ(role.runtime, at_nodes.runtime) and not facts.has_pods:
        raise InputError(
            f"{at_nodes.place or request.name}: the ranks of an MPI job run in the environment of "
            f"the mpirun that starts them: `{role.runtime.name}` on compute `{request.compute}`, "
            f"not `{at_nodes.runtime.name}`; name the same `environment` in each role, or run the "
            "job on Kubernetes, where each role has its own image"
        )
    # A document without workers says of its launcher what each node needs.
    own = Resources() if role is at_nodes else role.resources
    # The launcher claims less than the ranks do: where it can be, it is by itself.
    is_apart = facts.has_pods and (found.instances > 1 or role is not at_nodes)
    # One process: the ranks are the launcher's, and report to the runner through their wrapper.
    launcher = process_of(
        request,
        replace(role, name="launcher"),
        prepared,
        0,
        who=_VARIABLES,
        node=found.instances if is_apart else 0,
        speaks_for_ranks=request.success == "launcher",
        resources=own,
        limits=request.limits(own),
    )
    return assemble(
        request,
        [launcher],
        nodes=found.instances + is_apart,
        width=found.processes,
        files={"hostfile": hostfile(family, found, reading.launch)},
        environment=mpi_variables(family, said, names_hosts=bool(_HOST_OPTIONS.search(line))),
        resources=own + at_nodes.resources * found.instances,
        node_limits=request.limits(at_nodes.resources),
        notes=[*notes, *prepared.notes],
    )


def hostfile(family: Family, found: Counts, launch: Launch | None = None) -> str:
    """Write the file of hosts, as the launcher reads it.

    Where it is not known whose the launcher is, each host stands there as often as it has places:
    Open MPI, MPICH and Intel MPI all read that.
    """
    hosts = [later(f"host:{node}") for node in range(found.instances)]
    places = found.per_instance
    is_horovod = launch is not None and launch.launcher == "horovodrun"
    if is_horovod or family in ("openmpi4", "openmpi5"):
        lines = [f"{host} slots={places}" for host in hosts]
    elif family in ("mpich", "intel"):
        lines = [f"{host}:{places}" for host in hosts]
    else:
        lines = [host for host in hosts for _ in range(places)]
    return "".join(f"{line}\n" for line in lines)


def mpi_variables(
    family: Family, present: Mapping[str, str], *, names_hosts: bool = False
) -> dict[str, str]:
    """Return the variables for a launcher of this family; for one of any, if it is not known.

    Where the command names the hosts, the variables do not: Open MPI 4 does not take both. Root
    may start jobs, there may be more ranks than cores, and nothing is bound to cores that virtual
    nodes share, unless the command says so.
    """
    families = _FAMILIES if family == "unknown" else (family,)
    variables: dict[str, str] = {}
    # Each MPI looks only at variables of its own, so that those of all can be set side by side.
    for one in families:
        traits = traits_of(one)
        variables |= Mpiexec(path="", family=one).environment(present)
        own = traits.get("unbound", {})
        variables |= {name: value for name, value in own.items() if name not in present}
        named = {**({} if names_hosts else traits["hosts"]), **traits["agent"]}
        places = {"hostfile": HOSTFILE, "program": NODE_PROGRAM}
        variables |= {name: value.format(**places) for name, value in named.items()}
    return variables


# Found without reading the line: also in one that is not understood.
_HOST_OPTIONS = re.compile(
    r"(?:^|\s)--?(?:hostfile|machinefile|default-hostfile|hostlist|hosts?|H|f|machine)(?:[\s=]|$)"
)


def generated(command: str, processes: int) -> str:
    """Write the mpiexec for a plain program.

    What the shell would do with the program's line, it must do on every rank: `$RANK` differs.
    """
    filled = substitute(command, _VARIABLES).strip()
    program = filled if _is_program(filled) else f"sh -c {shlex.quote(filled)}"
    return f"mpiexec -n {processes} --hostfile {in_shell(HOSTFILE)} {program}"


def _is_program(line: str) -> bool:
    """Return whether a line is a program with its arguments, and nothing for a shell to do."""
    parts = read(line)
    if parts is None or len(parts.commands) != 1:
        return False
    words = parts.commands[0].words
    # What is left beside the words would be redirections and operators.
    rest = apply(line, [Edit(word.start, word.end) for word in words])
    is_fixed = all(word.text is not None for word in words)
    return is_fixed and not rest.strip() and next(skip_prefixes(words), None) == 0
