"""Complete an order on the nodes that Slurm has given, and become its runner.

    python -I -S inside.py RUNNER FOLDER          FOLDER of an attempt
    python -I -S inside.py RUNNER @LIST           the line of LIST that a job array's index names

Runs in the batch script, on the first node. One file that needs the standard library only and
imports nothing of rankwise: it is copied to where all nodes can read it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

# How long the values of secrets may take: after a job was put back into the queue, the client
# hands them over once more, if there is one.
SECRETS_SECONDS = 60.0
CANNOT = 3
KEPT = ("SLURM_CONF",)
# What srun needs to start ranks in the allocation that we are in.
ALLOCATION = re.compile(
    r"SLURM_(JOB_ID|JOBID|CONF|JOB_NODELIST|NODELIST|NNODES|JOB_NUM_NODES|CLUSTER_NAME"
    r"|JOB_CPUS_PER_NODE|TASKS_PER_NODE|JOB_PARTITION|WORKING_CLUSTER|SUBMIT_HOST|JOB_NAME)"
)
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "TP_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
# Ends by which nothing is decided, also those by a signal that Slurm may have sent: the job was on
# its way back into the queue.
UNDECIDED = ("cancelled", "lost")
SLURMS_SIGNALS = (15, 9)


def main(runner: str, place: str) -> int:
    folder = _folder(place)
    if place.startswith("@"):
        log = os.open(folder / "runner.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        os.dup2(log, 1)
        os.dup2(log, 2)
    if not make_way(folder):
        return 0
    allocation = Allocation()
    if complete(folder, allocation, allocation.names)["secrets"]:
        os.dup2(secrets_of(folder), 0)
    return os.execv(sys.executable, [sys.executable, "-I", "-S", runner, "gang", str(folder)])


def _folder(place: str) -> Path:
    if not place.startswith("@"):
        return Path(place)
    lines = Path(place[1:]).read_text().splitlines()
    return Path(lines[int(os.environ["SLURM_ARRAY_TASK_ID"])])


def make_way(folder: Path) -> bool:
    """Put aside what an earlier start of this job has left; tells whether to go on.

    A claim without a word in it is that of a client which has given the attempt up.
    """
    restarts = os.environ.get("SLURM_RESTART_COUNT", "0")
    claim, end = folder / "claim", folder / "end.json"
    if not claim.exists():
        return True
    if restarts == "0" or not claim.read_bytes():
        print("rankwise: somebody else has taken this attempt; nothing is started")
        return False
    if end.exists() and _is_decided(json.loads(end.read_text())):
        print("rankwise: this attempt is over; it is not started again")
        return False
    aside = folder / f"before-{restarts}"
    aside.mkdir(exist_ok=True)
    # The claim last: whoever finds none may begin.
    for place in (folder / "processes", end, claim):
        if place.exists():
            place.rename(aside / place.name)
    return True


def _is_decided(end: dict[str, Any]) -> bool:
    return end["outcome"] not in UNDECIDED and end["signal"] not in SLURMS_SIGNALS


class Allocation:
    """The nodes of this job, and how they are reached."""

    def __init__(self) -> None:
        self.job = os.environ["SLURM_JOB_ID"]
        self.names = _names()
        self._addresses = _addresses(self.names)
        self._unbound = _unbound() if len(self.names) > 1 else []

    def node(self, name: str, *, is_first: bool) -> dict[str, Any]:
        """Say what a runner must know of a node; the first one of an order is its own."""
        address = self._addresses.get(name, name)
        reach = [] if is_first else self.reach(name)
        return {"name": name, "address": address, "reach": reach}

    def reach(self, name: str) -> list[str]:
        return _reach(self.job, name, self._unbound)


def complete(folder: Path, allocation: Allocation, names: list[str]) -> dict[str, Any]:
    """Fill in on which nodes an order is carried out, and drop what is Slurm's; gives the order."""
    order: dict[str, Any] = json.loads((folder / "order.json").read_text())
    for number, (node, name) in enumerate(zip(order["nodes"], names, strict=True)):
        node.update(allocation.node(name, is_first=number == 0))
    keeps_job = bool(order.get("starts_by_srun"))
    drop = [name for name in os.environ if is_slurms(name, keeps_job=keeps_job)]
    order["unset"] = sorted({*order.get("unset", ()), *drop})
    mine = {"RANKWISE_SLURM_JOB": allocation.job}
    if all(node["address"].startswith("127.") for node in order["nodes"]):
        mine.update(LOOPBACK)
    order["environment"] = {**mine, **order.get("environment", {})}
    order.setdefault("secrets", [])
    write(folder / "order.json", order)
    return order


def is_slurms(name: str, *, keeps_job: bool = False) -> bool:
    """Tell whether a variable is Slurm's, and would mislead an mpirun."""
    if name in KEPT or (keeps_job and ALLOCATION.fullmatch(name)):
        return False
    return name.startswith(("SLURM", "SRUN_", "PMI_", "PMIX_"))


def _names() -> list[str]:
    listed = os.environ["SLURM_JOB_NODELIST"]
    if "[" not in listed and "," not in listed:
        return [listed]
    return _ask("scontrol", "show", "hostnames", listed).split()


def _addresses(names: list[str]) -> dict[str, str]:
    """Give the address of each node: its name will do where Slurm knows no other."""
    try:
        said = _ask("scontrol", "--oneliner", "show", "node", ",".join(names))
    except (OSError, subprocess.SubprocessError):
        return {}
    pairs = re.findall(r"NodeName=(\S+).*?NodeAddr=(\S+)", said)
    return dict(pairs)


def _unbound() -> list[str]:
    """Have Slurm leave a process all cores of its job, where it would bind it to some."""
    said = re.search(r"TaskPlugin\s*=\s*(\S+)", _ask("scontrol", "show", "config"))
    return [] if said is None or said[1] in ("task/none", "(null)") else ["--cpu-bind=none"]


def _reach(job: str, name: str, unbound: list[str]) -> list[str]:
    """Give the words that start one process on a node of this job, beside whatever runs there."""
    return [
        *("srun", f"--jobid={job}", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={name}"),
        *("--mem=0", "--mpi=none", "--export=ALL", "--unbuffered", "--quiet", *unbound),
        "--job-name=rankwise",
    ]


def secrets_of(folder: Path) -> int:
    """Read the values of secrets, remove their file at once, and give where they can be read."""
    path = folder / "secrets.json"
    deadline = time.monotonic() + SECRETS_SECONDS
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    held = os.memfd_create("secrets")
    os.write(held, path.read_bytes() if path.exists() else b"{}")
    path.unlink(missing_ok=True)
    os.lseek(held, 0, os.SEEK_SET)
    return held


def _ask(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout


def write(path: Path, data: dict[str, Any]) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(json.dumps(data))
    beside.replace(path)


if __name__ == "__main__":
    try:
        code = main(*sys.argv[1:])
    except (OSError, ValueError, LookupError, subprocess.SubprocessError) as error:
        print(f"rankwise: cannot start here: {error!r}", file=sys.stderr)
        code = CANNOT
    sys.exit(code)
