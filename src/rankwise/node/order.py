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
    from typing import Any, ClassVar, Self

VERSION, PLACEMENT_VERSION = 2, 1
ORDER, PLACEMENT = "order.json", "placement.json"


class Plain:
    """Data with a fixed set of fields, as it stands in a file; it is not changed.

    No dataclass: every rank loads this, and `dataclasses` takes longer than all the rest.
    """

    __slots__: tuple[str, ...] = ()
    DEFAULTS: ClassVar[Mapping[str, Any]] = {}
    """Of the fields that need not be given."""

    def __init__(self, **given: Any) -> None:
        for name in self.__slots__:
            setattr(self, name, given.pop(name) if name in given else self.DEFAULTS[name])
        if given:
            raise TypeError(f"{type(self).__name__} has no field {', '.join(given)}")

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Self:
        """Take what is known of it; raises LookupError if something is missing."""
        return cls(**{name: data[name] for name in cls.__slots__ if name in data})

    def data(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {name: getattr(self, name) for name in self.__slots__}

    def replace(self, **changes: Any) -> Self:
        """Return one in which some fields are different."""
        return type(self)(**{**Plain.data(self), **changes})


class NodeOrder(Plain):
    """A node on which processes of an order run: virtual, a part of this machine, or another."""

    name: str
    address: str
    folder: str
    """In which its processes work."""
    cores: Sequence[int] | None
    is_apart: bool
    """Whether it is there for a launcher alone, which starts no ranks beside itself."""
    host: str
    """By which others reach it, if not by its name."""
    reach: Sequence[str] | None
    """The words that start something there; empty: the runner is on it. None: it is virtual."""

    __slots__ = tuple(__annotations__)
    DEFAULTS: ClassVar[Mapping[str, Any]] = {
        "cores": None,
        "host": "",
        "is_apart": False,
        "reach": None,
    }


class ProcessOrder(Plain):
    """A process that the runner starts."""

    name: str
    role: str
    node: int
    """The number of its node."""
    rank: int | None
    command: str | Sequence[str]
    environment: Mapping[str, str]
    gpus: Sequence[str]
    """Those of the order's that are its own."""
    is_awaited: bool
    is_vital: bool
    speaks_for_ranks: bool

    __slots__ = tuple(__annotations__)
    DEFAULTS: ClassVar[Mapping[str, Any]] = {
        "environment": {},
        "gpus": (),
        "is_awaited": True,
        "is_vital": True,
        "node": 0,
        "rank": None,
        "role": "",
        "speaks_for_ranks": False,
    }


class Order(Plain):
    """What is to be done in one attempt."""

    version: int
    attempt: str
    """Its name, for people."""
    marker: str
    """By which everything that it starts is known."""
    folder: str
    nodes: Sequence[NodeOrder]
    processes: Sequence[ProcessOrder]
    environment: Mapping[str, str]
    unset: Sequence[str]
    path: Sequence[str]
    """Folders before all others of PATH."""
    files: Mapping[str, str]
    """Files to write into its folder, by name."""
    secrets: Sequence[str]
    """Names of variables whose values come by another way."""
    gpus: Sequence[str]
    timeout: float | None
    is_measured: bool
    """Whether it is to be left alone, because something is measured."""
    grace: float
    """How many seconds processes have to end by themselves, and then when they are asked to."""
    log_bytes: int
    heartbeat: float
    """How often records and usage are written, in seconds."""
    keeps_allocation: bool
    """Whether processes may start others by the batch system."""
    brings_files: bool
    """Whether what processes leave in their folders is brought to the client."""

    __slots__ = tuple(__annotations__)
    DEFAULTS: ClassVar[Mapping[str, Any]] = {
        "attempt": "",
        "brings_files": True,
        "environment": {},
        "files": {},
        "gpus": (),
        "grace": 3.0,
        "heartbeat": 5.0,
        "is_measured": False,
        "keeps_allocation": False,
        "log_bytes": 50_000_000,
        "path": (),
        "secrets": (),
        "timeout": None,
        "unset": (),
        "version": VERSION,
    }

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Self:
        """Take an order from its file; raises ValueError for one of a version to come."""
        known = dict(data)
        if known["version"] not in (1, VERSION):
            raise ValueError(f"its version is {known['version']!r}, and this is for {VERSION}")
        known["nodes"] = [NodeOrder.read(one) for one in known["nodes"]]
        known["processes"] = [ProcessOrder.read(one) for one in known["processes"]]
        if known["version"] == 1:
            known["keeps_allocation"] = bool(known.get("starts_by_srun"))
            known.setdefault("gpus", _gpus_before(known["processes"]))
        return super().read(known)

    def data(self) -> dict[str, Any]:
        """Return it as plain data."""
        nodes = [one.data() for one in self.nodes]
        return {**super().data(), "nodes": nodes, "processes": [p.data() for p in self.processes]}

    def placed(self, there: Placement) -> Self:
        """Return it with what is known of where it is carried out."""
        nodes = [
            node.replace(**more)
            for node, more in zip(self.nodes, there.nodes or [{} for _ in self.nodes], strict=True)
        ]
        return self.replace(
            nodes=nodes,
            environment={**there.environment, **self.environment},
            unset=(*self.unset, *there.unset),
            path=(*there.path, *self.path, *there.path_behind),
        )


def _gpus_before(processes: Sequence[ProcessOrder]) -> list[str]:
    """Return the GPUs of an order of the first clients: there, only the processes know them."""
    told = [one.environment.get("CUDA_VISIBLE_DEVICES", "") for one in processes]
    return [name for text in told for name in text.split(",") if name]


class Placement(Plain):
    """What is known only where an order is carried out."""

    version: int
    nodes: Sequence[Mapping[str, Any]]
    """Fields of each node of the order; none: they are as the order says."""
    environment: Mapping[str, str]
    """Variables, unless the order has its own."""
    unset: Sequence[str]
    path: Sequence[str]
    """Folders before those of the order."""
    path_behind: Sequence[str]

    __slots__ = tuple(__annotations__)
    DEFAULTS: ClassVar[Mapping[str, Any]] = {
        "environment": {},
        "nodes": (),
        "path": (),
        "path_behind": (),
        "unset": (),
        "version": PLACEMENT_VERSION,
    }

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


BAD_ORDER = (OSError, ValueError, LookupError, TypeError, AttributeError)
"""What reading an order may raise."""
