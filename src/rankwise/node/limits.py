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

from .files import end_of_log, listed, read_record, read_text, say, try_to, write_file
from .outcome import spoken
from .processes import read_small

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from .order import Order, ProcessOrder

# In the folder of an attempt: where its cgroups are.
HOME = "cgroup"
LAUNCHER = "launcher"
KILLED = 137
_SCOPE_SECONDS = 5.0
_CONTROLLERS = "+cpu +memory"
_PERIOD = 100_000
# What programs say that got no more memory: Python, C++, the system, PyTorch.
_SHORT = (b"MemoryError", b"std::bad_alloc", b"Cannot allocate memory", b"can't allocate memory")
_UNITS = (("Gi", 1 << 30), ("G", 10**9), ("Mi", 1 << 20), ("M", 10**6), ("Ki", 1 << 10))


def has_cgroups() -> bool:
    """Return whether this user may have cgroups here that limit cores and memory."""
    top = _mount()
    known = read_small(f"{top}/cgroup.controllers").split()
    may_make = bool(_systemd()) or os.access(top, os.W_OK)
    return bool(top) and b"cpu" in known and b"memory" in known and may_make


def _mount() -> str:
    mounts = (line.split() for line in read_text("/proc/self/mounts").splitlines())
    return next((fields[1] for fields in mounts if fields[2] == "cgroup2"), "")


def _systemd() -> list[str]:
    """Return the words that call the manager which owns our cgroup; none: there is none."""
    runtime = f"/run/user/{os.getuid()}"
    is_there = os.path.isdir("/run/systemd/system") and os.path.exists("/usr/bin/busctl")
    if os.getuid() == 0:
        return ["busctl", "--system"] if is_there else []
    has_bus = is_there and os.path.exists(f"{runtime}/bus")
    return ["env", f"XDG_RUNTIME_DIR={runtime}", "busctl", "--user"] if has_bus else []


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


def _enter_scope(words: Sequence[str], unit: str) -> str:
    """Have systemd move this process into a scope that is ours, and return its cgroup."""
    from .equipment import ask

    manager = "org.freedesktop.systemd1"
    call = [*words, "call", manager, "/org/freedesktop/systemd1", f"{manager}.Manager"]
    properties = ["2", "PIDs", "au", "1", str(os.getpid()), "Delegate", "b", "true"]
    start = ["StartTransientUnit", "ssa(sv)a(sa(sv))", unit, "fail", *properties, "0"]
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


def confine(order: Order, number: int, about: ProcessOrder | None = None) -> None:
    """Hold this process, and what it starts, to its limits: those of its own, or of its node.

    A rank leaves what its launcher is held to.
    """
    if about is not None and about.limits_itself:
        return None
    limits, group = order.nodes[number].limits, _group(number)
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


def _group(number: int) -> str:
    return f"node.{number}"


class Limits:
    """What the runner does for the limits of an order."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._home = ""
        own = {one.name: one.limits for one in order.processes if one.limits is not None}
        nodes = {_group(number): node.limits for number, node in enumerate(order.nodes)}
        self._groups: Mapping[str, Mapping[str, float]] = {**own, **nodes}

    def begin(self) -> Order:
        """Prepare what holds processes, and return the order with what is to be known of it."""
        order = self._order
        is_here = all(node.reach is None for node in order.nodes)
        if is_here and not order.is_contained and has_cgroups():
            try:
                self._home = _make_home(order.marker)
                for name, limits in self._groups.items():
                    self._make(name, limits)
                write_file(f"{order.folder}/{HOME}", self._home)
                return order
            except OSError as error:
                say(f"no cgroups here: {error}; limits of memory are rlimits")
                self._home = ""
                forget(order.marker)
        return self._bound(order)

    def _make(self, name: str, limits: Mapping[str, float]) -> None:
        place = f"{self._home}/{name}"
        os.mkdir(place)
        if memory := int(limits.get("memory", 0)):
            _put(f"{place}/memory.max", str(memory))
            # Where the kernel accounts for swap, that must not be a way out.
            try_to(_put, f"{place}/memory.swap.max", "0")
        if cores := limits.get("cores"):
            _put(f"{place}/cpu.max", f"{int(cores * _PERIOD)} {_PERIOD}")

    def _bound(self, order: Order) -> Order:
        """Bind what runs on this machine to as many cores as it may use."""
        from .placeholders import Ports

        locks = Ports()
        taken: list[int] = []
        usable = sorted(os.sched_getaffinity(0))

        def take(limits: Mapping[str, float] | None, known: Sequence[int]) -> Sequence[int]:
            known = known or usable
            wanted = math.ceil((limits or {}).get("cores", 0))
            found: list[int] = []
            for core in known:
                # Those first that neither we nor other runners have taken.
                if len(found) < wanted and core not in taken and locks.lock(core):
                    found.append(core)
            left = sorted(set(known).difference(found), key=lambda core: (taken.count(core), core))
            found += left[: wanted - len(found)]
            taken.extend(found)
            return found

        # Nodes that share this machine have cores of their own already. What a launcher starts
        # would be bound as it is.
        nodes = [
            node if node.cores or node.reach else node.replace(cores=take(node.limits, ()))
            for node in order.nodes
        ]
        processes = [
            one
            if one.role == LAUNCHER or order.nodes[one.node].reach
            else one.replace(cores=take(one.limits, order.nodes[one.node].cores or ()))
            for one in order.processes
        ]
        return order.replace(nodes=nodes, processes=processes)

    def explain(self, end: dict[str, Any]) -> dict[str, Any]:
        """Return the outcome of an attempt, which names the limit that was exceeded."""
        culprit = self._group_of(end["culprit"])
        killed = [name for name in self._groups if self._kills(name)]
        if killed:
            name = culprit if culprit in killed else killed[0]
            reason = f"{self._who(name)} exceeded {self._limit(name)}"
            if end["outcome"] == "passed":
                # A program that does without the process that was killed is not well.
                return {**end, "outcome": "failed", "exit_code": KILLED, "reason": reason}
            return {**end, "reason": f"{reason}: {end['reason']}"}
        has_limit = bool(culprit and self._groups[culprit].get("memory"))
        if not has_limit or end["outcome"] not in ("failed", "crashed"):
            return end
        limit = self._limit(culprit)
        if said := self._said(end["culprit"]):
            who = spoken(end["culprit"])
            return {**end, "reason": f"{who} exceeded {limit} ({said}): {end['reason']}"}
        if end["exit_code"] > 128:  # by a signal: it wrote where it had got no memory
            return {**end, "reason": f"{end['reason']}; {limit} may be why"}
        return end

    def _kills(self, group: str) -> int:
        """Return how many processes the kernel has killed because the group used too much."""
        events = read_small(f"{self._home}/{group}/memory.events") if self._home else b""
        lines = (line.split() for line in events.splitlines())
        return sum(int(count) for name, count in lines if name == b"oom_kill")

    def _group_of(self, name: str | None) -> str:
        """Return the group of a process or a rank; empty: it has none."""
        if name is None or name in self._groups:
            return name or ""
        node = next((one.node for one in self._order.processes if one.name == name), None)
        if node is None:
            start = read_record(f"{self._order.folder}/processes/{name}/start.json", "node")
            node = start["node"] if start else -1
        return _group(node) if _group(node) in self._groups else ""

    def _who(self, group: str) -> str:
        own = [one.name for one in self._order.processes if self._group_of(one.name) == group]
        return own[0] if len(own) == 1 else self._order.nodes[int(group.partition(".")[2])].name

    def _limit(self, group: str) -> str:
        memory = int(self._groups[group]["memory"])
        amounts = ((memory // size, unit) for unit, size in _UNITS if memory % size == 0)
        amount, unit = next(amounts, (memory, " bytes"))
        return f"its memory limit of {amount}{unit}"

    def _said(self, culprit: str) -> str:
        """Return how the culprit, or the launcher that has its output, says that memory ran out."""
        names = [one.name for one in self._order.processes]
        for name in [culprit] if culprit in names else [culprit, *names]:
            text = end_of_log(f"{self._order.folder}/processes/{name}/output.log")
            if found := next((words for words in _SHORT if words in text), b""):
                return found.decode()
        return ""
