"""How a batch system speaks to its jobs, as plain data that travels beside our own files."""

from __future__ import annotations

import os

from .files import read_json
from .order import Plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

FILE = "dialect.json"
VERSION = 1


class Dialect(Plain):
    """The names of variables and the words of commands that a job of one batch system needs.

    In commands, `{job}`, `{node}` and `{nodes}` (with commas between them) are filled in.
    """

    version: int = VERSION
    system: str
    """Its name for people."""
    job: str
    """The variable that has the number of the job. Those below are names of variables too."""
    array_index: str = ""
    first_index: int = 0
    """The value of `array_index` for the first job of an array."""
    restarts: str = ""
    """How often the job was started again."""
    nodes: str = ""
    """The names of its nodes."""
    node_file: str = ""
    """A file with a line for each core: the name of its node; or for each node, with a count."""
    cores: str = ""
    """The cores of each node, as `4(x2),2`."""
    expand: Sequence[str] = ()
    """The command that prints the names behind `n[1-3]`; empty: there is no such list."""
    addresses: Sequence[str] = ()
    """The command that knows addresses."""
    address: str = ""
    """The pattern of a name and its address in what that command prints."""
    reach: Sequence[str] = ()
    """The words that start a process on a node of the job, beside whatever runs there."""
    has_shell: bool = False
    """Whether a shell there reads what follows these words, without our environment, as of ssh."""
    binding: Sequence[str] = ()
    """If what this command prints matches `binds`, `reach` needs the words `unbound` too."""
    binds: str = ""
    unbound: Sequence[str] = ()
    dropped: Sequence[str] = ()
    """How variables begin that are the system's and mislead an mpirun."""
    kept: Sequence[str] = ()
    """Variables to keep although they begin like that."""
    allocation: Sequence[str] = ()
    """What processes keep that start their ranks by the system's own command."""

    def is_own(self, name: str, *, keeps_job: bool = False) -> bool:
        """Return whether a variable is the system's, and would mislead an mpirun."""
        if name in self.kept or (keeps_job and name in self.allocation):
            return False
        return name.startswith(tuple(self.dropped))


def read_dialect() -> Dialect:
    """Return the dialect that was sent with our own files."""
    found = Dialect.read(read_json(f"{os.path.dirname(os.path.abspath(__file__))}/{FILE}"))
    if found.version != VERSION:
        raise ValueError(f"dialect of version {found.version}, not {VERSION}")
    return found


def fill(words: Sequence[str], **values: str) -> list[str]:
    """Return a command with its placeholders filled in."""
    return [word.format(**values) for word in words]
