"""The cores of a machine and the domains that they are in, and which of them a rank is given."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from rankwise.errors import ComputeFailure

_SYSTEM = Path("/sys/devices/system")

LEVELS = ("core", "l3", "numa", "socket")
"""The kinds of domains of a machine, the smallest first."""

# The files that list the cores of a core's domain; older kernels have the second name.
_LISTS = {
    "core": ("topology/core_cpus_list", "topology/thread_siblings_list"),
    "l3": ("cache/index3/shared_cpu_list",),
    "socket": ("topology/package_cpus_list", "topology/core_siblings_list"),
}


class Core(NamedTuple):
    """A core as the kernel counts them, with the first core of each domain that it is in."""

    number: int
    core: int
    l3: int
    numa: int
    socket: int


def available_cores() -> list[int]:
    """Return the cores that this process may use; all that there are where no system tells."""
    if not hasattr(os, "sched_getaffinity"):
        return list(range(os.cpu_count() or 1))
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


def read_cores(numbers: Sequence[int] | None = None, system: Path = _SYSTEM) -> list[Core]:
    """Return what is known of these cores, or of all that this process may use.

    Workers get them in this order: the first thread of each core first, and near ones one after
    the other. A level of which the system says nothing is the same as the next larger one.
    """
    numbers = available_cores() if numbers is None else numbers
    firsts: dict[str, dict[int, int]] = {level: {} for level in LEVELS}
    for path in system.glob("node/node*/cpulist"):
        firsts["numa"].update(_read_domain(path))
    for number in numbers:
        for level, names in _LISTS.items():
            for name in names:
                if number not in firsts[level]:
                    firsts[level].update(_read_domain(system / f"cpu/cpu{number}" / name))
    cores = []
    for number in numbers:
        socket = firsts["socket"].get(number, 0)
        numa = firsts["numa"].get(number, socket)
        l3 = firsts["l3"].get(number, numa)
        cores.append(Core(number, firsts["core"].get(number, number), l3, numa, socket))
    # By the largest domain first, and by the number last.
    return sorted(cores, key=lambda one: (one.number != one.core, one[::-1]))


def _read_domain(path: Path) -> dict[int, int]:
    """Return the first core of a domain for each of its cores; nothing if that is not known."""
    with contextlib.suppress(OSError, ValueError):
        cores = parse_list(path.read_text())
        return dict.fromkeys(cores, min(cores))
    return {}


_ENTRY = r"\d{1,5}(-\d{1,5})?"
_ENTRIES = rf"{_ENTRY}(\+{_ENTRY})*"


def read_map(text: str) -> list[list[int]]:
    """Read the cores of each worker, `0,2-3,4+6` for three of them; raises ValueError."""
    if not re.fullmatch(rf"{_ENTRIES}(,{_ENTRIES})*", text):
        raise ValueError(f"{text!r} is no list of cores such as 0,2-3,4+6")
    found = [parse_list(entry.replace("+", ",")) for entry in text.split(",")]
    if not all(found):
        raise ValueError(f"{text!r} has a range that ends before it begins")
    return found


def share_out(bind: str, workers: int, cores: Sequence[Core], each: int = 1) -> list[list[Core]]:
    """Return the cores that each worker of a machine may use, as --bind says.

    A worker has `each` cores, and with a level all that are in the same domains. There may be more
    workers than cores, except with `core`: then all of them may use all cores. Raises
    ComputeFailure for a map that does not fit.
    """
    if bind.startswith("map:"):
        return _by_map(bind, workers, cores)
    count = workers * each
    if bind not in LEVELS or not cores or (bind == "core" and count > len(cores)):
        return [list(cores)] * workers
    if count > len(cores):
        near = sorted(cores, key=lambda one: one[::-1])
        own = [[near[worker * len(near) // workers]] for worker in range(workers)]
    else:
        near = sorted(cores[:count], key=lambda one: one[::-1])
        own = [near[worker * each : (worker + 1) * each] for worker in range(workers)]
    if bind == "core":
        return own
    domains = [{getattr(one, bind) for one in mine} for mine in own]
    return [[one for one in cores if getattr(one, bind) in mine] for mine in domains]


def _by_map(bind: str, workers: int, cores: Sequence[Core]) -> list[list[Core]]:
    wanted = read_map(bind.removeprefix("map:"))
    known = {one.number: one for one in cores}
    missing = sorted({number for mine in wanted for number in mine} - known.keys())
    if len(wanted) < workers:
        raise ComputeFailure(
            f"--bind={bind} has cores for {len(wanted)} of {workers} workers: add an entry for "
            "each, separated by commas"
        )
    if missing:
        raise ComputeFailure(
            f"--bind={bind}: core {missing[0]} is none of those that the workers may use: "
            f"{', '.join(map(str, sorted(known)))}"
        )
    return [[known[number] for number in mine] for mine in wanted[:workers]]


def domains_of(seats: Sequence[Sequence[Core]], hosts: Sequence[Hashable]) -> dict[str, list[int]]:
    """Return for each level, and for the host (`node`), which domain each seat is in.

    A seat is what a process may run on. If that is in several domains, these count as one, also for
    other seats there: none of them could have one of these domains alone.
    """
    found = {
        level: _join_touching(
            {(host, getattr(one, level)) for one in seat} or {(host, 0)}
            for seat, host in zip(seats, hosts, strict=True)
        )
        for level in LEVELS
    }
    return {**found, "node": _join_touching({host} for host in hosts)}


def _join_touching(reaches: Iterable[set[Hashable]]) -> list[int]:
    """Number sets so that those have the same number that touch, if only by way of others."""
    parents: dict[Hashable, Hashable] = {}

    def top(one: Hashable) -> Hashable:
        while (above := parents.setdefault(one, one)) != one:
            one = above
        return one

    firsts = []
    for reach in reaches:
        first, *others = reach
        for one in others:
            parents[top(one)] = top(first)
        firsts.append(first)
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(top(first), len(numbers)) for first in firsts]


def cores_for(seats: Sequence[int], ranks: int, cores: Sequence[Sequence[Core]]) -> str:
    """Write which cores each rank of a world gets, by seats: `0,1;2,3` for two with two each."""
    threads = len(seats) // ranks
    groups = [seats[rank * threads : (rank + 1) * threads] for rank in range(ranks)]
    return ";".join(
        ",".join(map(str, sorted({one.number for seat in group for one in cores[seat]})))
        for group in groups
    )


def bind_to(text: str, rank: int) -> None:
    """Keep this process, with all threads that it has, on its cores, if there are any for it.

    Raises ComputeFailure.
    """
    groups = text.split(";") if text else []
    if rank >= len(groups):
        return
    try:
        for thread in Path("/proc/self/task").iterdir():
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread.name), parse_list(groups[rank]))
    except OSError as error:
        raise ComputeFailure(
            f"rank {rank} cannot be bound to the cores {groups[rank]} of {os.uname().nodename}: "
            f"{error.strerror}. This process may use {available_cores()}; --bind=none binds none"
        ) from None
