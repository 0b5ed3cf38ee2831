"""Lines of mpirun, turned into those of srun where a cluster starts ranks that way."""

from __future__ import annotations

from rankwise.launch.command import Launch
from rankwise.launch.words import in_shell
from rankwise.plan import later


def by_srun(
    line: str, launch: Launch, plugin: str, *, nodes: int, processes: int
) -> tuple[str, str]:
    """Give the line with srun in the place of mpirun and its options, and a note that says so.

    With a note and the same line, if there is nothing that could be replaced. What mpirun's options
    say is left out: srun hands on all variables, and where ranks go is for Slurm to decide.
    """
    if launch.is_torch or launch.dialect == "srun" or launch.launcher == "horovodrun":
        return line, f"srun: `{launch.launcher}` starts its ranks itself"
    if len(launch.segments) > 1:
        return line, "srun: several programs in one line stay with mpirun"
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
