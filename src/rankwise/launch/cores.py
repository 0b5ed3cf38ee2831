"""The cores of this machine, and which of them a rank is given."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

_NODES = Path("/sys/devices/system/node")


def available_cores() -> list[int]:
    """Return the cores that this process may use."""
    return sorted(os.sched_getaffinity(0))


def use_cores_of_parent() -> None:
    """Leave the core that a launcher has bound this rank to, for all cores that the launcher has.

    What this process starts would share that one core otherwise.
    """
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, os.sched_getaffinity(os.getppid()))


def does_yielding_starve(release: str = "") -> bool:
    """Return whether processes that give way while they wait keep others from running at all.

    From Linux 6.17.13 on, and 6.12.63 of the long-term series, a process that calls sched_yield
    again and again takes a core for itself and its neighbour: with as many such ranks as cores,
    whatever else runs on the machine stands still for minutes, and no time limit is kept.
    """
    numbers = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", release or os.uname().release)
    if sys.platform != "linux" or numbers is None:
        return False
    # The series between the two ended before the change.
    version = tuple(int(number or 0) for number in numbers.groups())
    return (6, 12, 63) <= version < (6, 13) or version >= (6, 17, 13)


def parse_list(text: str) -> list[int]:
    """Read a list of cores as the kernel writes it: `0-3,8`."""
    numbers: list[int] = []
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            numbers += range(int(first), int(last or first) + 1)
    return numbers


def domains_of(cores: Sequence[int], nodes: Path = _NODES) -> list[int]:
    """Return the NUMA domain of each core, counted from 0; all in one where that is not known."""
    domain_of_core: dict[int, int] = {}
    for path in nodes.glob("node*/cpulist"):
        number = path.parent.name.removeprefix("node")
        if number.isdigit():
            domain_of_core.update(dict.fromkeys(parse_list(path.read_text()), int(number)))
    # Numbers of domains may have gaps: a container sees only some of them.
    found = [domain_of_core.get(core, 0) for core in cores]
    order = {number: place for place, number in enumerate(sorted(set(found)))}
    return [order[number] for number in found]


def cores_for(seats: Sequence[int], ranks: int, cores: Sequence[int]) -> str:
    """Write which cores each rank of a world gets, by seats: `0,1;2,3` for two with two each."""
    threads = len(seats) // ranks
    groups = [seats[rank * threads : (rank + 1) * threads] for rank in range(ranks)]
    return ";".join(",".join(str(cores[seat]) for seat in group) for group in groups)


def bind_to(text: str, rank: int) -> None:
    """Keep this process on its cores; before MPI starts, so that MPI's own threads stay there."""
    groups = text.split(";")
    if rank < len(groups):
        os.sched_setaffinity(0, parse_list(groups[rank]))
