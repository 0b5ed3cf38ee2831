"""Complete an order on the nodes that a batch system has given, and become its runner.

    batch FOLDER          FOLDER of an attempt
    batch @LIST           the line of LIST that a job array's index names

Runs in the batch script, on the first node.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .dialect import Dialect, fill, read_dialect
from .files import own_command, parse, read_json, redirect, rename
from .order import Order, Placement, read_order
from .processes import OUR_FAULT

# How long the values of secrets may take: after a job was put back into the queue, a client that
# still runs hands them over once more.
SECRETS_SECONDS = 60.0
# All nodes are this machine: what picks an interface by the host name would find none.
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "TP_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
# Ends by which nothing is decided, also those by a signal that the batch system may have sent: the
# job was on its way back into the queue.
UNDECIDED = ("cancelled", "lost")
SYSTEMS_SIGNALS = (15, 9)


def main(place: str) -> int:
    """Become the runner of an attempt, or return an exit code if that is not possible."""
    try:
        return _begin(place)
    except (OSError, ValueError, LookupError, subprocess.SubprocessError) as error:
        print(f"rankwise: cannot start here: {error!r}", file=sys.stderr, flush=True)
        return OUR_FAULT


def _begin(place: str) -> int:
    dialect = read_dialect()
    folder = Path(place)
    if place.startswith("@"):
        lines = Path(place[1:]).read_text().splitlines()
        folder = Path(lines[int(os.environ[dialect.array_index])])
        # The jobs of an array write into one file otherwise.
        redirect(str(folder), 0)
    if not make_way(folder, dialect):
        return 0
    allocation = BatchAllocation(dialect)
    order = read_order(folder)
    write_placement(order, allocation, allocation.names)
    if order.secrets:
        os.dup2(secrets_of(folder), 0)
    return os.execv(sys.executable, [*own_command(), "run", str(folder)])


def make_way(folder: Path, dialect: Dialect) -> bool:
    """Put aside what an earlier start of this job has left; False: the attempt must not start.

    An empty claim is that of a client which has given the attempt up.
    """
    restarts = os.environ.get(dialect.restarts, "0")
    claim = folder / "claim"
    if not claim.exists():
        return True
    if restarts == "0" or not claim.read_bytes():
        print("rankwise: another process has taken this attempt; nothing is started", flush=True)
        return False
    if is_decided(folder):
        print("rankwise: this attempt is over; it is not started again", flush=True)
        return False
    aside = folder / f"before-{restarts}"
    aside.mkdir(exist_ok=True)
    # The claim last: as long as it is there, no other process begins with this attempt.
    for name in ("processes", "end.json", "claim"):
        if (folder / name).exists():
            rename(folder / name, aside / name)
    return True


def is_decided(folder: str | Path) -> bool:
    """Return whether an attempt has ended, and not by what ends its job as well."""
    try:
        end = read_json(f"{folder}/end.json")
    except FileNotFoundError:
        return False
    return end["outcome"] not in UNDECIDED and end["signal"] not in SYSTEMS_SIGNALS


class BatchAllocation:
    """The nodes of this job, and how they are reached."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.job = os.environ[dialect.job]
        self.names = _names(dialect)
        self._addresses = _addresses(dialect, self.names)
        self._unbound = _unbound(dialect) if len(self.names) > 1 else []

    def node(self, name: str, *, is_first: bool) -> dict[str, Any]:
        """Return what a runner must know of a node; the first one of an order is its own."""
        address = self._addresses.get(name, name)
        reach = [] if is_first else self.reach(name)
        return {"name": name, "address": address, "reach": reach}

    def reach(self, name: str) -> list[str]:
        """Return the words that start one process on a node, beside whatever runs there."""
        return [*fill(self.dialect.reach, job=self.job, node=name), *self._unbound]

    def cores(self) -> list[int]:
        """Return how many cores of each node are ours."""
        if self.dialect.node_file:
            lines = _lines_of_node_file(self.dialect)
            return [lines.count(name) for name in self.names]
        # `4(x2),2` is 4, 4, 2.
        parts = re.findall(r"(\d+)(?:\(x(\d+)\))?", os.environ[self.dialect.cores])
        counts = [int(cores) for cores, times in parts for _ in range(int(times or 1))]
        return counts[: len(self.names)]


def write_placement(order: Order, allocation: BatchAllocation, names: list[str]) -> None:
    """Write on which nodes an order is carried out, and that what is the system's is dropped."""
    dialect = allocation.dialect
    nodes = [allocation.node(name, is_first=number == 0) for number, name in enumerate(names)]
    drop = [name for name in os.environ if dialect.is_own(name, keeps_job=order.keeps_allocation)]
    environment = {f"RANKWISE_{dialect.system.upper()}_JOB": allocation.job}
    if all(node["address"].startswith("127.") for node in nodes):
        environment.update(LOOPBACK)
    there = Placement(nodes=nodes, unset=sorted(drop), environment=environment)
    order.placed(there)  # ValueError: there are not as many nodes as the order has
    there.write(order.folder)


def _names(dialect: Dialect) -> list[str]:
    if dialect.node_file:
        return list(dict.fromkeys(_lines_of_node_file(dialect)))
    listed = os.environ[dialect.nodes]
    if dialect.expand and ("[" in listed or "," in listed):
        return _ask(fill(dialect.expand, nodes=listed)).split()
    return listed.replace(",", " ").split()


def _lines_of_node_file(dialect: Dialect) -> list[str]:
    """Return the name of a node for each core."""
    return Path(os.environ[dialect.node_file]).read_text().split()


def _addresses(dialect: Dialect, names: list[str]) -> dict[str, str]:
    """Return the address of each node: its name will do where the system knows no other."""
    if not dialect.addresses:
        return {}
    try:
        said = _ask(fill(dialect.addresses, nodes=",".join(names)))
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(re.findall(dialect.address, said))


def _unbound(dialect: Dialect) -> Sequence[str]:
    """Have a process keep all cores of its job, where the system would bind it to some."""
    if not dialect.binding or not re.search(dialect.binds, _ask(dialect.binding)):
        return []
    return dialect.unbound


def secrets_of(folder: Path) -> int:
    """Move the values of secrets from their file into memory, and return a descriptor for it."""
    path = folder / "secrets.json"
    deadline = time.monotonic() + SECRETS_SECONDS
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    # In memory only: the disk that nodes share must not keep the values.
    held = os.memfd_create("secrets")
    os.write(held, path.read_bytes() if path.exists() else b"{}")
    path.unlink(missing_ok=True)
    os.lseek(held, 0, os.SEEK_SET)
    return held


def held_secrets(folder: str) -> dict[str, str]:
    """Return the values of secrets that the client has put beside an order; none: it has none."""
    if not os.path.exists(f"{folder}/secrets.json"):
        return {}
    with os.fdopen(secrets_of(Path(folder)), encoding="utf-8") as held:
        return dict(parse(held.read()))


def _ask(command: Sequence[str]) -> str:
    # So long may the system's own commands take: a busy controller answers late.
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
