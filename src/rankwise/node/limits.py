"""Hold processes to the limits of an order: by cgroups where we may make some, else by rlimits.

A group is a process with limits of its own, or all others of a node. Where cgroups (version 2) can
be made, each group has one. Elsewhere each process has an rlimit for the memory that it asks for,
and is bound to as many cores as it may use. In a job of a batch system it is always so: the job has
a cgroup already, which we must not leave.
"""

from __future__ import annotations

import math
import os
import time
from itertools import islice

from .files import end_of_log, listed, read_record, read_text, say, try_to, write_file
from .outcome import spoken
from .processes import read_small

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from .order import Order

# In the folder of an attempt: where its cgroups are.
HOME = "cgroup"
_SCOPE_SECONDS = 5.0
_CONTROLLERS = "+cpu +memory"
# What programs say that got no more memory: Python, C++, the system, PyTorch.
_SHORT = (b"MemoryError", b"std::bad_alloc", b"Cannot allocate memory", b"can't allocate memory")
_UNITS = (("Gi", 1 << 30), ("G", 10**9), ("Mi", 1 << 20), ("M", 10**6), ("Ki", 1 << 10), ("", 1))


def has_cgroups() -> bool:
    """Return whether this user may have cgroups here that limit cores and memory."""
    top = _mount()
    known = read_small(f"{top}/cgroup.controllers").split()
    return {b"cpu", b"memory"} <= {*known} and bool(_systemd() or os.access(top, os.W_OK))


def _mount() -> str:
    mounts = (line.split() for line in read_small("/proc/self/mounts").decode().splitlines())
    return next((fields[1] for fields in mounts if fields[2] == "cgroup2"), "")


def _systemd() -> list[str]:
    """Return the words that call the manager which owns our cgroup; none: there is none."""
    user, runtime = os.getuid(), f"/run/user/{os.getuid()}"
    needed = ("/run/systemd/system", "/usr/bin/busctl", f"{runtime}/bus" if user else "/")
    if not all(map(os.path.exists, needed)):
        return []
    return ["env", f"XDG_RUNTIME_DIR={runtime}", "busctl", "--user" if user else "--system"]


def _make_home(marker: str) -> str:
    """Return a cgroup that is ours, and has others with limits below it; raises OSError."""
    top = _mount()
    home = f"{top}/rankwise-{marker}"
    if words := _systemd():
        home = top + _enter_scope(words, f"rankwise-{marker}.scope")
        # A cgroup with others below it must have no process of its own.
        os.mkdir(f"{home}/runner")
        _put(f"{home}/runner/cgroup.procs", "0")
    else:
        os.mkdir(home)
        _put(f"{top}/cgroup.subtree_control", _CONTROLLERS)
    _put(f"{home}/cgroup.subtree_control", _CONTROLLERS)
    return home


def _make_group(place: str, limits: Mapping[str, float]) -> None:
    os.mkdir(place)
    if memory := int(limits.get("memory", 0)):
        _put(f"{place}/memory.max", str(memory))
        # Where the kernel accounts for swap, that must not be a way out.
        try_to(_put, f"{place}/memory.swap.max", "0")
    if cores := limits.get("cores"):
        _put(f"{place}/cpu.max", f"{int(cores * 100_000)} 100000")


def _enter_scope(words: Sequence[str], unit: str) -> str:
    """Have systemd move this process into a scope that is ours, and return its cgroup."""
    from .equipment import ask

    manager = "org.freedesktop.systemd1"
    call = [*words, "call", manager, "/org/freedesktop/systemd1", f"{manager}.Manager"]
    properties = f"3 PIDs au 1 {os.getpid()} Delegate b true CollectMode s inactive-or-failed"
    start = ["StartTransientUnit", "ssa(sv)a(sa(sv))", unit, "fail", *properties.split(), "0"]
    if ask([*call, *start], _SCOPE_SECONDS) is None:
        raise OSError(0, f"systemd makes no scope {unit}")
    deadline = time.monotonic() + _SCOPE_SECONDS
    while unit not in (own := read_text("/proc/self/cgroup").rpartition("0::")[2].strip()):
        if time.monotonic() > deadline:
            raise OSError(0, f"systemd has not moved us to {unit}")
        time.sleep(0.01)
    return own


def _put(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


def forget(marker: str) -> None:
    """Remove the cgroups of an attempt that is over; those in a scope are systemd's to remove."""
    home = f"{_mount()}/rankwise-{marker}"
    for name in listed(home):
        try_to(os.rmdir, f"{home}/{name}")
    try_to(os.rmdir, home)


def confine(order: Order, number: int, name: str) -> None:
    """Hold this process, and what it starts, to its limits: those of its own, or of its node.

    One that is not of the order is a rank, and leaves what its launcher is held to.
    """
    about = next((one for one in order.processes if one.name == name), None)
    number = about.node if about is not None else number
    limits, group = order.nodes[number].limits, f"node.{number}"
    if about is not None and about.limits is not None:
        limits, group = about.limits, about.name
    if os.path.exists(f"{order.folder}/{HOME}"):
        return _put(f"{read_text(f'{order.folder}/{HOME}')}/{group}/cgroup.procs", "0")
    if about is not None and about.cores:
        os.sched_setaffinity(0, about.cores)
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    memory = int(limits.get("memory", 0)) or most
    # Only the soft limit: ranks could not leave that of their launcher otherwise.
    least = memory if most == resource.RLIM_INFINITY else min(memory, most)
    return resource.setrlimit(resource.RLIMIT_DATA, (least, most))


class Limits:
    """What the runner does for the limits of an order."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._home = ""
        own = {one.name: one.limits for one in order.processes if one.limits is not None}
        nodes = {f"node.{number}": node.limits for number, node in enumerate(order.nodes)}
        self._groups: Mapping[str, Mapping[str, float]] = {**own, **nodes}

    def begin(self) -> Order:
        """Prepare what holds processes, and return the order with what is to be known of it."""
        order = self._order
        is_elsewhere = order.is_contained or any(node.reach is not None for node in order.nodes)
        if not is_elsewhere and has_cgroups():
            try:
                self._home = _make_home(order.marker)
                for name, limits in self._groups.items():
                    _make_group(f"{self._home}/{name}", limits)
                write_file(f"{order.folder}/{HOME}", self._home)
                return order
            except OSError as error:
                say(f"no cgroups here: {error}; limits of memory are rlimits")
                self._home = ""
                forget(order.marker)
        return self._bound(order)

    def _bound(self, order: Order) -> Order:
        """Bind what runs on this machine to as many cores as it may use."""
        from .placeholders import Ports

        locks = Ports()
        taken: list[int] = []
        usable = sorted(os.sched_getaffinity(0))

        def take(limits: Mapping[str, float] | None, known: Sequence[int]) -> Sequence[int]:
            wanted = math.ceil((limits or {}).get("cores", 0))
            # Those first that neither we nor other runners have taken.
            free = (core for core in known if core not in taken and locks.lock(core))
            found = [*islice(free, wanted)]
            left = [core for core in sorted(known, key=taken.count) if core not in found]
            found += left[: wanted - len(found)]
            taken.extend(found)
            return found

        # Nodes that share this machine have cores of their own already. What a launcher starts
        # would be bound as it is, and what is elsewhere is the batch system's to bind.
        nodes = [
            node if node.reach else node.replace(cores=node.cores or take(node.limits, usable))
            for node in order.nodes
        ]
        own = {
            one.name: take(one.limits, nodes[one.node].cores or usable)
            for one in order.processes
            if one.role != "launcher" and not nodes[one.node].reach
        }
        processes = [one.replace(cores=own.get(one.name, ())) for one in order.processes]
        return order.replace(nodes=nodes, processes=processes)

    def explain(self, end: dict[str, Any]) -> dict[str, Any]:
        """Return the outcome of an attempt, which names the limit that was exceeded."""
        killed = [name for name in self._groups if self._kills(name)]
        forget(self._order.marker)
        who, culprit = end["culprit"], self._group_of(end["culprit"])
        if killed:
            name = culprit if culprit in killed else killed[0]
            own = [one.name for one in self._order.processes if self._group_of(one.name) == name]
            # Of several processes that share a limit, none exceeds it by itself.
            who = own[0] if len(own) == 1 else self._order.nodes[int(name.partition(".")[2])].name
            reason = f"{who} exceeded {self._limit(name)}"
            if end["outcome"] == "passed":
                # A program that does without the process that was killed is not well.
                return {**end, "outcome": "failed", "exit_code": 137, "reason": reason}
            return {**end, "reason": f"{reason}: {end['reason']}"}
        if end["outcome"] == "passed" or "memory" not in self._groups.get(culprit, {}):
            return end
        limit = self._limit(culprit)
        if said := self._said(who):
            return {**end, "reason": f"{spoken(who)} exceeded {limit} ({said}): {end['reason']}"}
        if end["exit_code"] > 128:  # by a signal: it wrote where it had got no memory
            return {**end, "reason": f"{end['reason']}; {limit} may be why"}
        return end

    def _kills(self, group: str) -> int:
        """Return how many processes the kernel has killed because the group used too much."""
        events = read_small(f"{self._home}/{group}/memory.events") if self._home else b""
        return int((events.partition(b"\noom_kill ")[2].split() or [b"0"])[0])

    def _group_of(self, name: str | None) -> str:
        """Return the group of a process or a rank; there may be none of that name."""
        if name is None or name in self._groups:
            return name or ""
        known = {one.name: one.node for one in self._order.processes}
        start = read_record(f"{self._order.folder}/processes/{name}/start.json", "node") or {}
        return f"node.{known.get(name, start.get('node'))}"

    def _limit(self, group: str) -> str:
        memory = int(self._groups[group]["memory"])
        unit, size = next(one for one in _UNITS if memory % one[1] == 0)
        return f"its memory limit of {memory // size}{unit}"

    def _said(self, culprit: str) -> str:
        """Return how the culprit, or the launcher that has its output, says that memory ran out."""
        names = [one.name for one in self._order.processes]
        asked = [culprit] if culprit in names else [culprit, *names]
        logs = [end_of_log(f"{self._order.folder}/processes/{name}/output.log") for name in asked]
        return next((words.decode() for words in _SHORT if words in b"".join(logs)), "")
