"""Each MPI runs across virtual nodes, and its ranks' failures are found.

VARIABLES is what it takes, for all of them at once: each MPI ignores what is another's.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
from environments import ENVIRONMENTS, Environment, why_unavailable

from rankwise.launch.cores import does_yielding_starve
from rankwise.plan import later
from tests.node.test_runner import Attempt, process, without_privileges

HOSTFILE = f"{later('folder')}/hostfile"
AGENT = f"{later('folder')}/bin/rankwise-node"
RANK = f"{later('folder')}/bin/rankwise-rank"
SCRIPT = f"{later('folder')}/script.py"

NODES: Mapping[str, str] = {
    "OMPI_MCA_plm_rsh_agent": AGENT,  # Open MPI 4
    "PRTE_MCA_plm_ssh_agent": AGENT,  # Open MPI 5
    "HYDRA_LAUNCHER": "ssh",  # MPICH and Intel MPI
    "HYDRA_LAUNCHER_EXEC": AGENT,
}
"""How to start something on another node."""
LOOPBACK: Mapping[str, str] = {
    "OMPI_MCA_oob_tcp_if_include": "127.0.0.0/8",  # Open MPI 4
    "OMPI_MCA_btl_tcp_if_include": "127.0.0.0/8",  # Open MPI 4 and 5
    "HYDRA_IFACE": "lo",
}
"""Open MPI 5's daemons, however, refuse to."""
DEFAULT_HOSTFILE: Mapping[str, str] = {
    "OMPI_MCA_orte_default_hostfile": HOSTFILE,
    "PRTE_MCA_prte_default_hostfile": HOSTFILE,
    "HYDRA_HOST_FILE": HOSTFILE,
}
ROOT: Mapping[str, str] = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}
MORE_RANKS_THAN_CORES: Mapping[str, str] = {
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    # Without `slot`, all would be on the first node.
    "PRTE_MCA_rmaps_default_mapping_policy": "slot:oversubscribe",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "OMPI_MCA_mpi_yield_when_idle": "0" if does_yielding_starve() else "1",
    "I_MPI_PIN": "0",
}
FASTER: Mapping[str, str] = {
    "OMPI_MCA_btl": "^ofi",
    "OMPI_MCA_pml": "ob1",
}
VARIABLES = {
    **NODES,
    **LOOPBACK,
    **DEFAULT_HOSTFILE,
    **ROOT,
    **MORE_RANKS_THAN_CORES,
    **FASTER,
}

OPEN_MPIS = [name for name in sorted(ENVIRONMENTS) if "openmpi" in name]
# Open MPI 5 knows `--bind-to` and `--map-by`, but not with one dash.
SEED = (
    "{dash}bind-to none {dash}map-by slot -x NCCL_DEBUG=INFO -x LD_LIBRARY_PATH -x PATH "
    "-mca pml ob1 -mca btl ^openib"
)

MEET = """
import os
from mpi4py import MPI
world = MPI.COMM_WORLD
world.barrier()
total = world.allreduce(world.rank)
places = world.allgather(f"{os.environ['RANKWISE_NODE']}/{os.path.basename(os.getcwd())}")
names = world.allgather(MPI.Get_processor_name())
if world.rank == 0:
    print("RESULT", total, ",".join(places), ",".join(names))
"""
FAIL = """
import os, signal, time
from mpi4py import MPI
world = MPI.COMM_WORLD
world.barrier()
if world.rank == 2:
    {what}
world.barrier()
time.sleep(600)
"""


@pytest.fixture(params=sorted(ENVIRONMENTS))
def mpi(request: pytest.FixtureRequest) -> Environment:
    """Each MPI in turn; skipped where it is missing, unless everything is required."""
    environment = ENVIRONMENTS[request.param]
    reason = why_unavailable(environment)
    interfaces = psutil.net_if_addrs().items()
    others = [one for name, all_of_it in interfaces if name != "lo" for one in all_of_it]
    if environment.name == "openmpi5" and socket.AF_INET not in {one.family for one in others}:
        reason = "Open MPI 5 needs a network besides the loopback"
    if reason is not None:
        if os.environ.get("RANKWISE_REQUIRE_ALL"):
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    return environment


def job(
    folder: Path,
    environment: Environment,
    options: str,
    script: str,
    *,
    nodes: int = 4,
    variables: Mapping[str, str] = VARIABLES,
) -> Attempt:
    """Make an attempt with mpirun on virtual nodes that have two slots each."""
    mpirun = environment.mpiexec.with_name(environment.mpiexec.name.replace("mpiexec", "mpirun"))
    hosts = "".join(f"{later(f'host:{number}')}\n" * 2 for number in range(nodes))
    return Attempt(
        folder,
        process("launcher", f"{mpirun} {options} '{RANK}' {environment.python} '{SCRIPT}'"),
        nodes=nodes,
        environment=dict(variables),
        files={"hostfile": hosts, "script.py": script},
        path=[str(environment.mpiexec.parent), str(environment.folder / "bin")],
        timeout=150.0,
        grace=5.0,
    )


def places_of(attempt: Attempt, end: Mapping[str, Any]) -> tuple[int, list[str], list[str]]:
    """Read what the ranks found out about each other."""
    assert end["outcome"] == "passed", attempt.log("launcher")
    (line,) = [one for one in attempt.log("launcher").splitlines() if one.startswith("RESULT")]
    _, total, places, names = line.split()
    return int(total), places.split(","), names.split(",")


def two_on_each(pattern: str, nodes: int = 4) -> list[str]:
    return [pattern.format(number) for number in range(nodes) for _ in range(2)]


def test_ranks_on_four_nodes_meet(tmp_path: Path, mpi: Environment) -> None:
    attempt = job(tmp_path, mpi, f"-np 8 --hostfile {HOSTFILE}", MEET)
    total, places, names = places_of(attempt, attempt.run())
    assert total == 28
    assert places == two_on_each("node{0}/node{0}")
    assert set(names) in ({f"node{number}" for number in range(4)}, {os.uname().nodename})
    assert [attempt.begin(f"rank-{rank}")["node"] for rank in range(8)] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_hostfile_need_not_be_named(tmp_path: Path, mpi: Environment) -> None:
    attempt = job(tmp_path, mpi, "-np 4", MEET, nodes=2)
    assert places_of(attempt, attempt.run())[:2] == (6, two_on_each("node{0}/node{0}", 2))


@pytest.mark.parametrize("prepare", [None, without_privileges], ids=["root", "user"])
def test_folders_may_have_blanks_and_quotes_in_their_names(
    tmp_path: Path, mpi: Environment, prepare: Callable[[], object] | None
) -> None:
    folder = tmp_path / 'it\'s a "path" (of $HOME)'
    folder.mkdir()
    attempt = job(folder, mpi, f"-np 4 --hostfile '{HOSTFILE}'", MEET, nodes=2)
    total, places, _ = places_of(attempt, attempt.run(prepare, TMPDIR=str(folder)))
    assert (total, places) == (6, two_on_each("node{0}/node{0}", 2))
    assert not list(Path("/tmp").glob(f"*{attempt.marker}*"))


def test_only_the_agent_is_needed(tmp_path: Path, mpi: Environment) -> None:
    attempt = job(
        tmp_path, mpi, f"-np 4 --hostfile {HOSTFILE}", MEET, nodes=2, variables={**NODES, **ROOT}
    )
    assert places_of(attempt, attempt.run())[:2] == (6, two_on_each("node{0}/node{0}", 2))


def test_more_ranks_than_slots_are_spread(tmp_path: Path, mpi: Environment) -> None:
    attempt = job(tmp_path, mpi, "-np 8", MEET, nodes=2)
    total, places, _ = places_of(attempt, attempt.run())
    assert total == 28
    assert [places.count(f"node{number}/node{number}") for number in range(2)] == [4, 4]


def test_host_names_are_not_needed(tmp_path: Path, mpi: Environment) -> None:
    attempt = job(tmp_path, mpi, "-np 4", MEET, nodes=2)
    total, places, names = places_of(attempt, attempt.run(without_privileges))
    assert (total, places) == (6, two_on_each("node{0}/node{0}", 2))
    assert set(names) == {os.uname().nodename}


@pytest.mark.parametrize("mpi", OPEN_MPIS, indirect=True)
def test_the_options_of_the_seed_are_understood(tmp_path: Path, mpi: Environment) -> None:
    options = SEED.format(dash="--" if mpi.name == "openmpi5" else "-")
    attempt = job(tmp_path, mpi, f"-np 8 --hostfile {HOSTFILE} --allow-run-as-root {options}", MEET)
    total, places, _ = places_of(attempt, attempt.run())
    assert (total, places) == (28, two_on_each("node{0}/node{0}"))


@pytest.mark.parametrize(
    ("what", "expected", "reason"),
    [
        ("os._exit(7)", ("failed", 7), "rank 2 left with exit code 7"),
        (
            "os.kill(os.getpid(), signal.SIGKILL)",
            ("crashed", 137),
            "rank 2 was ended by signal 9 (SIGKILL)",
        ),
        ("world.Abort(3)", ("failed", 3), "rank 2 left with exit code 3"),
    ],
    ids=["exit", "kill", "abort"],
)
def test_the_rank_that_fails_is_found(
    tmp_path: Path, mpi: Environment, what: str, expected: tuple[str, int], reason: str
) -> None:
    attempt = job(tmp_path, mpi, "-np 6", FAIL.format(what=what), nodes=3)
    end = attempt.run()
    found = (end["outcome"], end["exit_code"], end["culprit"])
    if "Abort" in what and mpi.name in ("mpich", "impi") and end["culprit"] == "launcher":
        # Hydra kills all at once, sometimes before anybody could say whose call it was.
        assert found == (*expected, "launcher"), attempt.log("launcher")
        return
    assert found == (*expected, "rank-2"), attempt.log("launcher")
    assert end["reason"].startswith(reason)
    others = [attempt.end(f"rank-{rank}") for rank in (0, 1, 3, 4, 5)]
    assert all(other["exit_code"] != 0 for other in others)


@pytest.mark.parametrize("ranks", [1, 2, 6])
@pytest.mark.parametrize("code", [0, 256])
def test_an_abort_whose_code_the_system_makes_zero_has_failed(
    tmp_path: Path, mpi: Environment, code: int, ranks: int
) -> None:
    script = FAIL.replace("rank == 2", f"rank == {ranks // 2}")
    nodes = 3 if ranks == 6 else 1
    attempt = job(
        tmp_path, mpi, f"-np {ranks}", script.format(what=f"world.Abort({code})"), nodes=nodes
    )
    end = attempt.run()
    assert end["outcome"] in ("failed", "crashed"), attempt.log("launcher")
    assert end["exit_code"] != 0
    # Open MPI 4 loses the message every other time, and with it the number of the rank.
    if "MPI_A" in attempt.log("launcher"):
        assert end["culprit"] == f"rank-{ranks // 2}", attempt.log("launcher")
        assert end["reason"] == f"rank {ranks // 2} called MPI_Abort({code})"
