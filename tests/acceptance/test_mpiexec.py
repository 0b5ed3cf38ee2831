"""The mpiexec of each real MPI is found and starts local jobs, whatever surrounds it."""

from __future__ import annotations

import json
import os
import subprocess
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from environments import LAUNCH_VARIABLES, Environment

from tests.acceptance.conftest import EVERY_MPI, require

LIMIT_SECONDS = 60
RANKS = 4

# What a process does that wants to start ranks: it has loaded MPI, and not started it.
_STARTS_RANKS = """
    import json, os, subprocess, sys
    import mpi4py
    mpi4py.rc.initialize = False
    from mpi4py import MPI
    from rankwise.launch.mpi import without_job
    from rankwise.launch.mpiexec import find_mpiexec, loaded_library

    mpiexec = find_mpiexec(MPI.Get_library_version(), loaded_library())
    environment = without_job(os.environ)
    environment |= mpiexec.environment(environment)
    ranks = subprocess.run(
        [*mpiexec.command(int(sys.argv[1])), sys.executable, sys.argv[2]],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    print(json.dumps({
        "path": mpiexec.path,
        "family": mpiexec.family,
        "cores": len(os.sched_getaffinity(0)),
        "code": ranks.returncode,
        "output": ranks.stdout,
    }))
"""

_RANK = """
    import os
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    node = world.Split_type(MPI.COMM_TYPE_SHARED)
    cores = len(os.sched_getaffinity(0))
    # One call, or the lines of several ranks would be mixed.
    os.write(1, f"rank {world.rank} of {world.size}, {node.size} here, {cores} cores\\n".encode())
    world.Barrier()
"""

# A rank of another MPI's job, at work as one, that starts the process above.
_SURROUNDS = """
    import os, subprocess, sys
    from mpi4py import MPI

    assert MPI.COMM_WORLD.allreduce(1) == 1
    # An Open MPI puts its own folder there, and mpi4py would find that one instead of Debian's.
    os.environ.pop("LD_LIBRARY_PATH", None)
    sys.exit(subprocess.run(sys.argv[1:], stdin=subprocess.DEVNULL).returncode)
"""


@pytest.fixture
def scripts(tmp_path: Path) -> Mapping[str, Path]:
    """The three programs, as files."""
    texts = {"start": _STARTS_RANKS, "rank": _RANK, "surround": _SURROUNDS}
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
    return {name: tmp_path / f"{name}.py" for name in texts}


def start_ranks(mpi: Environment, scripts: Mapping[str, Path], ranks: int = RANKS) -> list[str]:
    """Return the command that starts ranks of an MPI."""
    return [str(mpi.python), str(scripts["start"]), str(ranks), str(scripts["rank"])]


def clean_environment() -> dict[str, str]:
    """Leave out all that would help or disturb an mpiexec."""
    ours = (*LAUNCH_VARIABLES, "RANKWISE_MPIEXEC")
    families = ("OMPI_", "PRTE_", "PMI", "HYD", "I_MPI_", "SLURM_")
    return {n: v for n, v in os.environ.items() if n not in ours and not n.startswith(families)}


def run(command: Sequence[str], environment: Mapping[str, str]) -> dict[str, Any]:
    """Run a command that ends with `start`, and give what that says."""
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        output, errors = process.communicate(timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        end(process)
        raise
    assert process.returncode == 0, f"{output}\n--- stderr\n{errors}"
    said: dict[str, Any] = json.loads(output.splitlines()[-1])
    return said


def end(process: subprocess.Popen[str]) -> None:
    """End a process and all that it has started, from the leaves up: an mpiexec ends its ranks."""
    import psutil

    below = psutil.Process(process.pid).children(recursive=True)
    for child in reversed(below):
        child.terminate()
    _, alive = psutil.wait_procs(below, timeout=5)
    for child in alive:
        child.kill()
    process.kill()
    process.communicate()


def check(said: Mapping[str, Any], mpi: Environment) -> None:
    """Check that the ranks of one job saw each other, on this machine, bound to no core."""
    assert said["code"] == 0, said["output"]
    # Debian's /usr/bin/mpiexec may be a link to the one that is named after its MPI.
    assert Path(said["path"]).resolve() == mpi.mpiexec.resolve()
    expected = [
        f"rank {rank} of {RANKS}, {RANKS} here, {said['cores']} cores" for rank in range(RANKS)
    ]
    assert sorted(said["output"].splitlines()) == expected


@pytest.mark.parametrize("name", EVERY_MPI)
def test_a_job_starts_in_a_clean_environment(name: str, scripts: Mapping[str, Path]) -> None:
    mpi = require(name)
    said = run(start_ranks(mpi, scripts), clean_environment())
    check(said, mpi)
    assert said["family"] == {"impi": "intel", "debian-openmpi": "openmpi4"}.get(name, name)


@pytest.mark.parametrize("outer", EVERY_MPI)
@pytest.mark.parametrize("name", EVERY_MPI)
def test_a_job_starts_within_a_rank_of_a_job(
    name: str, outer: str, scripts: Mapping[str, Path]
) -> None:
    mpi, surrounding = require(name), require(outer)
    said = run(
        [
            *(str(surrounding.mpiexec), "-n", "1"),
            *(str(surrounding.python), str(scripts["surround"])),
            *start_ranks(mpi, scripts),
        ],
        {**clean_environment(), **LAUNCH_VARIABLES},
    )
    check(said, mpi)


def allocations(folder: Path) -> dict[str, dict[str, str]]:
    """Return what batch systems and users set, who would have jobs run on other machines."""
    hosts = folder / "hosts"
    hosts.write_text("ghost1\nghost2\n")
    slurm = {
        "SLURM_JOB_ID": "77",
        "SLURM_JOBID": "77",
        "SLURM_JOB_NODELIST": "ghost[1-2]",
        "SLURM_NODELIST": "ghost[1-2]",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_NNODES": "2",
        "SLURM_NTASKS": "4",
        "SLURM_NPROCS": "4",
        "SLURM_TASKS_PER_NODE": "2(x2)",
        "SLURM_JOB_CPUS_PER_NODE": "2(x2)",
        "SLURM_CPUS_ON_NODE": "2",
    }
    hostfile = dict.fromkeys(
        (
            *("HYDRA_HOST_FILE", "I_MPI_HYDRA_HOST_FILE"),
            *("OMPI_MCA_orte_default_hostfile", "PRTE_MCA_prte_default_hostfile"),
        ),
        str(hosts),
    )
    pbs = {"PBS_JOBID": "88", "PBS_ENVIRONMENT": "PBS_BATCH", "PBS_NODEFILE": str(hosts)}
    return {"slurm": slurm, "hostfile": hostfile, "pbs": pbs}


@pytest.mark.parametrize("surroundings", ["slurm", "hostfile", "pbs"])
@pytest.mark.parametrize("name", EVERY_MPI)
def test_a_job_stays_on_this_machine_within_an_allocation_of_others(
    name: str, surroundings: str, scripts: Mapping[str, Path], tmp_path: Path
) -> None:
    mpi = require(name)
    variables = allocations(tmp_path)[surroundings]
    check(run(start_ranks(mpi, scripts), clean_environment() | variables), mpi)


@pytest.mark.parametrize("name", EVERY_MPI)
def test_a_job_starts_without_ssh(name: str, scripts: Mapping[str, Path], tmp_path: Path) -> None:
    mpi = require(name)
    if mpi.mpiexec.parent == Path("/usr/bin"):
        (tmp_path / "mpiexec").symlink_to(mpi.mpiexec)
    check(run(start_ranks(mpi, scripts), clean_environment() | {"PATH": str(tmp_path)}), mpi)
