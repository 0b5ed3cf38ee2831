"""How a batch system speaks to its jobs, as plain data that travels beside our own files."""

from __future__ import annotations

import os

from .files import read_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

FILE = "dialect.json"
VERSION = 1


class Dialect:
    """The names of variables and the words of commands that a job of one batch system needs.

    In commands, `{job}`, `{node}` and `{nodes}` (with commas between them) are filled in.
    """

    def __init__(
        self,
        *,
        system: str,
        job: str,
        array_index: str = "",
        restarts: str = "",
        nodes: str = "",
        node_file: str = "",
        cores: str = "",
        expand: Sequence[str] = (),
        addresses: Sequence[str] = (),
        address: str = "",
        reach: Sequence[str] = (),
        binding: Sequence[str] = (),
        binds: str = "",
        unbound: Sequence[str] = (),
        dropped: Sequence[str] = (),
        kept: Sequence[str] = (),
        allocation: Sequence[str] = (),
        version: int = VERSION,
    ) -> None:
        if version != VERSION:
            raise ValueError(f"dialect of version {version}, not {VERSION}")
        self.version = version
        self.system = system
        """Its name for people."""
        self.job, self.array_index, self.restarts = job, array_index, restarts
        """Variables: the job's number, the index in an array, how often it was started again."""
        self.nodes, self.node_file, self.cores = nodes, node_file, cores
        """Variables: names of nodes; or a file with a line for each core; cores, as `4(x2),2`."""
        self.expand = list(expand)
        """The command that prints the names behind `n[1-3]`; empty: there is no such list."""
        self.addresses, self.address = list(addresses), address
        """The command that knows addresses, and the pattern of a name and its address."""
        self.reach = list(reach)
        """The words that start a process on a node of the job, beside whatever runs there."""
        self.binding, self.binds, self.unbound = list(binding), binds, list(unbound)
        """If what this command prints matches this pattern, `reach` needs these words too."""
        self.dropped, self.kept = list(dropped), list(kept)
        """How variables begin that are the system's and mislead an mpirun; those to keep anyway."""
        self.allocation = list(allocation)
        """What processes keep that start their ranks by the system's own command."""

    def to_data(self) -> dict[str, Any]:
        """Return what `Dialect(**data)` makes an equal one of."""
        return dict(vars(self))

    def is_own(self, name: str, *, keeps_job: bool = False) -> bool:
        """Return whether a variable is the system's, and would mislead an mpirun."""
        if name in self.kept or (keeps_job and name in self.allocation):
            return False
        return name.startswith(tuple(self.dropped))

    def value(self, variable: str, environment: Mapping[str, str], default: str = "") -> str:
        """Return the value of one of its variables; the default if it has none of this kind."""
        return environment.get(variable, default) if variable else default


def read_dialect() -> Dialect:
    """Return the dialect that was sent with our own files."""
    return Dialect(**read_json(f"{os.path.dirname(os.path.abspath(__file__))}/{FILE}"))


def fill(words: Sequence[str], **values: str) -> list[str]:
    """Return a command with its placeholders filled in."""
    return [word.format(**values) for word in words]
