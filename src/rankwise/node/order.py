"""What the runner of an attempt is told: the order, and where it is carried out.

FOLDER/order.json says what is to be done. The client writes it, and it is never changed.
FOLDER/placement.json says what is known only later: which nodes there are and how they are reached,
and what the machine adds to PATH and to variables. It is written where that is known, as a whole:
in an allocation, in the first pod, on a host. Where the client knows all, there is none.
"""

from __future__ import annotations

from .files import read_json, to_json, write_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence
    from typing import Any, Self, dataclass_transform

    @dataclass_transform(kw_only_default=True)
    class DataclassLike:
        """Has checkers of types read the fields of subclasses as those of a dataclass."""
else:
    DataclassLike = object


# An order may wait in a queue while the client is replaced by one of another version.
VERSION, PLACEMENT_VERSION = 2, 1
ORDER, PLACEMENT = "order.json", "placement.json"
# Where all nodes are one machine: what picks an interface by the host name would find none.
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "TP_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}


class Plain(DataclassLike):
    """Data with a fixed set of fields, as it stands in a file; it is not changed.

    The class has the defaults. No dataclass: every rank loads this, and the module `dataclasses`
    takes longer than all the rest.
    """

    def __init__(self, **given: Any) -> None:
        kind = type(self)
        for name in kind.__annotations__:
            setattr(self, name, given.pop(name) if name in given else vars(kind)[name])
        if given:
            raise TypeError(f"{kind.__name__} has no field {', '.join(given)}")

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Self:
        """Return what plain data says, without the fields of a later version.

        LookupError: a field without a default is missing.
        """
        return cls(**{name: data[name] for name in cls.__annotations__ if name in data})

    def data(self) -> dict[str, Any]:
        """Return it as plain data."""
        return dict(vars(self))

    def replace(self, **changes: Any) -> Self:
        """Return one in which some fields are different."""
        return type(self)(**{**vars(self), **changes})


class NodeOrder(Plain):
    """A node on which processes of an order run: virtual, a part of this machine, or another."""

    name: str
    address: str
    folder: str
    """In which its processes work."""
    cores: Sequence[int] | None = None
    is_apart: bool = False
    """Whether it is there for a launcher alone, which starts no ranks beside itself."""
    host: str = ""
    """By which others reach it, if not by its name."""
    reach: Sequence[str] | None = None
    """The words that start something there; empty: the runner is on it. None: it is virtual."""
    limits: Mapping[str, float] = {}
    """The `cores` and bytes of `memory` that processes without limits of their own may use."""


class ProcessOrder(Plain):
    """A process that the runner starts."""

    name: str
    role: str = ""
    node: int = 0
    """The number of its node."""
    rank: int | None = None
    command: str | Sequence[str]
    environment: Mapping[str, str] = {}
    gpus: Sequence[str] = ()
    """Those of the order's that are its own."""
    path: Sequence[str] = ()
    """Folders before all others of PATH."""
    unset: Sequence[str] = ()
    folder: str = ""
    """In which it works, if that is not its node's."""
    limits: Mapping[str, float] | None = None
    """The `cores` and bytes of `memory` that it may use; None: those of its node."""
    is_contained: bool = False
    """Whether its command starts a container, in which it has its limits."""
    cores: Sequence[int] = ()
    """Those to which it is bound; none: those of its node."""

    is_awaited: bool = True
    is_vital: bool = True
    speaks_for_ranks: bool = False


class Order(Plain):
    """What is to be done in one attempt."""

    version: int = VERSION
    attempt: str = ""
    """Its name, for people."""
    marker: str
    """By which everything that it starts is known."""
    folder: str
    nodes: Sequence[NodeOrder]
    processes: Sequence[ProcessOrder]
    environment: Mapping[str, str] = {}
    unset: Sequence[str] = ()
    path: Sequence[str] = ()
    """Folders before all others of PATH."""
    files: Mapping[str, str] = {}
    """Files to write into its folder, by name."""
    folders: Sequence[str] = ()
    """Folders to make, with marks."""
    secrets: Sequence[str] = ()
    """Names of variables whose values come by another way."""
    gpus: Sequence[str] = ()
    timeout: float | None = None
    is_measured: bool = False
    """Whether it is to be left alone, because something is measured."""
    grace: float = 3.0
    """How many seconds processes have to end by themselves, and then when they are asked to."""
    log_bytes: int = 50_000_000
    heartbeat: float = 5.0
    """How often records and usage are written, in seconds."""
    keeps_allocation: bool = False
    """Whether processes may start others by the batch system."""
    brings_files: bool = True
    """Whether what processes leave in their folders is brought to the client."""
    is_contained: bool = False
    """Whether each process is the client of an engine, and runs its command in a container."""
    has_limits: bool = False
    """Whether a node or a process has some."""

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Self:
        """Return the order in a file; raises ValueError for one of a later version."""
        if data["version"] not in (1, VERSION):
            raise ValueError(f"its version is {data['version']!r}, and this is for {VERSION}")
        nodes = [NodeOrder.read(one) for one in data["nodes"]]
        processes = [ProcessOrder.read(one) for one in data["processes"]]
        limits = [*(one.limits for one in nodes), *(one.limits for one in processes)]
        known = {**data, "nodes": nodes, "processes": processes, "has_limits": any(limits)}
        if data["version"] == 1:
            known["keeps_allocation"] = bool(data.get("starts_by_srun"))
            # In such an order, only the processes name their GPUs.
            told = [one.environment.get("CUDA_VISIBLE_DEVICES", "") for one in processes]
            known.setdefault("gpus", [name for text in told for name in text.split(",") if name])
        return super().read(known)

    def data(self) -> dict[str, Any]:
        """Return it as plain data."""
        nodes = [one.data() for one in self.nodes]
        return {**super().data(), "nodes": nodes, "processes": [p.data() for p in self.processes]}

    def write(self, folder: str | os.PathLike[str]) -> None:
        """Write it into the folder of its attempt."""
        write_file(f"{folder}/{ORDER}", to_json(self.data()))

    def placed(self, there: Placement) -> Self:
        """Return it with what is known of where it is carried out."""
        # Where it says nothing about the nodes, they are as in the order.
        known = there.nodes or [{} for _ in self.nodes]
        if len(known) != len(self.nodes):
            raise ValueError(f"{len(known)} nodes are placed, and the order has {len(self.nodes)}")
        return self.replace(
            nodes=[*map(lambda node, more: node.replace(**more), self.nodes, known)],
            environment={**there.environment, **self.environment},
            unset=(*self.unset, *there.unset),
            path=(*there.path, *self.path, *there.path_behind),
            processes=[
                one.replace(**made, environment={**variables, **one.environment})
                for one in self.processes
                for variables, made in [there.processes[one.name]]
            ]
            if there.processes
            else self.processes,
        )


class Placement(Plain):
    """What is known only where an order is carried out."""

    version: int = PLACEMENT_VERSION
    nodes: Sequence[Mapping[str, Any]] = ()
    """Fields of each node of the order; none: they are as the order says."""
    environment: Mapping[str, str] = {}
    """Variables, unless the order has its own."""
    unset: Sequence[str] = ()
    path: Sequence[str] = ()
    """Folders before those of the order."""
    path_behind: Sequence[str] = ()
    processes: Mapping[str, tuple[Mapping[str, str], Mapping[str, Any]]] = {}
    """Where runtimes differ: variables and other fields of each process, by its name."""

    def write(self, folder: str | os.PathLike[str]) -> None:
        """Write it into the folder of an attempt."""
        write_file(f"{folder}/{PLACEMENT}", to_json(self.data()))


def read_order(folder: str | os.PathLike[str]) -> Order:
    """Read what an attempt is to do, where it is carried out; raises what a bad file raises."""
    order = Order.read(read_json(f"{folder}/{ORDER}"))
    try:
        there = read_json(f"{folder}/{PLACEMENT}")
    except FileNotFoundError:
        return order
    return order.placed(Placement.read(there))


# What reading an order may raise.
BAD_ORDER = (OSError, ValueError, LookupError, TypeError, AttributeError)
