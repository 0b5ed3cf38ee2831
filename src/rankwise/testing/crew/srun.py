"""The command lines by which Slurm starts ranks, and what else it has to start on its nodes."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field

from rankwise.errors import ComputeFailure
from rankwise.slurm import commands
from rankwise.testing.crew.slurm_options import SlurmWishes

# By what the version of a library begins with: how Slurm talks to it, the best first.
_TALKS = (("Open MPI", ("pmix",)), ("MPICH", ("pmi2", "pmix")), ("Intel", ("pmi2", "pmix")))
_OTHERS = ("pmix", "pmi2")


@dataclass(slots=True, kw_only=True)
class Srun:
    """How steps of one allocation are started."""

    wishes: SlurmWishes
    job: str
    nodes: Sequence[str]
    talk: str = ""
    """How Slurm and the MPI library talk; empty: as the user or the site says."""
    shares: bool = False
    """Whether steps are not to wait for cores that Slurm takes for busy."""
    lost: list[str] = field(default_factory=list)
    """Nodes that are not there any more."""

    @property
    def left(self) -> list[str]:
        """The nodes that are still there."""
        return [node for node in self.nodes if node not in self.lost]

    def of_world(self, size: int, threads: int, *, is_alone: bool, node: str = "") -> list[str]:
        """Give what comes before the program that is to run on `size` ranks.

        With a node, all of them are there. A world that is used again shares its cores with
        others: they take turns.
        """
        cores = self.wishes.cores_per_task * threads
        share = ["--exact" if is_alone and not self.shares else "--overlap"]
        if node:
            # Slurm would spread it over all nodes of the job, and start a daemon on each.
            share += ["--nodes=1", f"--nodelist={node}"]
        if self.lost:
            # What ran on a lost node holds its cores until Slurm has noticed, and there may be
            # fewer cores than ranks now.
            share = ["--overlap", "--overcommit", f"--nodelist={','.join(self.left)}"]
            share.append(f"--nodes={min(size, len(self.left))}")
        talk = [f"--mpi={self.talk}"] if self.talk else []
        return [
            *self._usual(),
            *share,
            f"--ntasks={size}",
            *([f"--cpus-per-task={cores}"] if cores > 1 else []),
            *talk,
            # The user's come last: the last one counts.
            *self.wishes.srun_options,
        ]

    def of_outposts(self) -> list[str]:
        """Give what comes before the program that is to run once on each node."""
        count = len(self.nodes)
        return [
            *self._usual(),
            *("--overlap", "--mpi=none", "--cpu-bind=none", "--mem=0", "--no-kill"),
            *(f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1"),
        ]

    def _usual(self) -> list[str]:
        return [
            # What the job's environment has on its PATH is for the tests.
            *(shutil.which("srun") or "srun", f"--jobid={self.job}", "--quiet", "--input=none"),
            # We say what happens to the others when one rank has ended.
            *("--kill-on-bad-exit=0", "--wait=0"),
        ]


def choose_talk(library: str, wishes: SlurmWishes) -> str:
    """Choose how Slurm and an MPI library talk; empty: the user has said.

    Raises ComputeFailure if this Slurm cannot.
    """
    if any(word.startswith("--mpi") for word in wishes.srun_options):
        return ""
    wanted = next((talks for name, talks in _TALKS if library.startswith(name)), _OTHERS)
    offered = _offered_talks()
    for talk in wanted:
        if talk in offered:
            return talk
    raise ComputeFailure(
        f"{library} needs {' or '.join(f'srun --mpi={talk}' for talk in wanted)}, and this Slurm "
        f"has {', '.join(sorted(offered)) or 'none'} (srun --mpi=list). Another way can be named "
        'with --slurm-srun-options="--mpi=…", or mpiexec can be taken: --no-use-srun'
    )


def _offered_talks() -> set[str]:
    import subprocess

    try:
        said = subprocess.run(
            ["srun", "--mpi=list"],
            env=commands.plain_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=commands.CALL_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ComputeFailure(f"srun cannot be asked for its kinds of MPI: {error}") from error
    # It has said so on stderr in some versions, and with "srun: " before each line.
    return read_talks(said.stdout + said.stderr)


def read_talks(text: str) -> set[str]:
    """Read what `srun --mpi=list` says."""
    words = set(re.findall(r"^(?:srun: )?\s*(\w+)$", text, re.MULTILINE))
    return words - {"none"}
