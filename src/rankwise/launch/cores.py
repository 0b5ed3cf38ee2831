"""The cores of this machine, and which of them a rank is given."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

_NODES = Path("/sys/devices/system/node")


def available_cores() -> list[int]:
    """Give the cores that this process may use."""
    return sorted(os.sched_getaffinity(0))


def parse_list(text: str) -> list[int]:
    """Read a list of cores as the kernel writes it: `0-3,8`."""
    numbers: list[int] = []
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            numbers += range(int(first), int(last or first) + 1)
    return numbers


def domains_of(cores: Sequence[int], nodes: Path = _NODES) -> list[int]:
    """Give the NUMA domain of each core, counted from 0; all in one where that is not known."""
    domain_of_core: dict[int, int] = {}
    for path in nodes.glob("node*/cpulist"):
        number = path.parent.name.removeprefix("node")
        if number.isdigit():
            domain_of_core.update(dict.fromkeys(parse_list(path.read_text()), int(number)))
    found = [domain_of_core.get(core, 0) for core in cores]
    order = {number: place for place, number in enumerate(sorted(set(found)))}
    return [order[number] for number in found]


def cores_for(seats: Sequence[int], ranks: int, cores: Sequence[int]) -> str:
    """Say which cores each rank of a world gets, seat by seat: `0,1;2,3` for two with two each."""
    threads = len(seats) // ranks
    groups = [seats[rank * threads : (rank + 1) * threads] for rank in range(ranks)]
    return ";".join(",".join(str(cores[seat]) for seat in group) for group in groups)


def bind_to(text: str, rank: int) -> None:
    """Keep this process on its cores; before MPI starts, so that MPI's own threads stay there."""
    groups = text.split(";")
    if rank < len(groups):
        os.sched_setaffinity(0, parse_list(groups[rank]))
