"""The packages that rankwise is compared with, each in a virtual environment of its own.

They cannot share one: two of them are called pytest_mpi, and several own the same marks. Those that
run tests have the pytest, the mpi4py and the MPICH that rankwise is measured with.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from functools import cache

from bench.environment import (
    BENCH,
    MARK,
    ROOT,
    Environment,
    EnvironmentFailure,
    Framework,
    VirtualEnvironment,
    prepare,
    versions,
)

_IN_COMMON = ("pytest", "mpi4py", "mpich", "numpy", "scipy")
_MOST_CHARACTERS = 300


class Peer(StrEnum):
    """A project, by its name on the package index."""

    MPI_PYTEST = "mpi-pytest"
    NBCLIENT = "nbclient"
    NBMAKE = "nbmake"
    PAPERMILL = "papermill"
    PYTEST_ISOLATE_MPI = "pytest-isolate-mpi"
    PYTEST_MPI = "pytest-mpi"
    PYTEST_XDIST = "pytest-xdist"
    REFRAME = "reframe-hpc"
    SNAKEMAKE = "snakemake"
    TESTFLO = "testflo"

    @property
    def environment(self) -> VirtualEnvironment:
        """Return its environment, which may not be made yet; rankwise's must be."""
        folder = ROOT / ".venvs" / f"bench-{self}"
        if self in _MODULES:
            return Framework(
                name=f"bench-{self}",
                folder=folder,
                requirements=(str(self), *_MORE.get(self, ())),
                library=str(self),
                arguments=("-c", f"import {_MODULES[self]}\nprint('\\n{MARK} 2 {self}')"),
            )
        return Environment(
            name=f"bench-{self}",
            folder=folder,
            requirements=(*_same_versions(), str(self)),
            library="MPICH",
            mpiexec=folder / "bin" / "mpiexec",
        )


# Those that run tasks or notebooks and need no MPI, with what is imported to try them.
_MODULES = {
    Peer.NBCLIENT: "nbclient",
    Peer.NBMAKE: "nbmake",
    Peer.PAPERMILL: "papermill",
    Peer.REFRAME: "reframe.frontend.cli",
    Peer.SNAKEMAKE: "snakemake.cli",
}
# What they need beside themselves for what is measured.
_MORE = {
    Peer.NBCLIENT: ("ipykernel",),
    Peer.NBMAKE: ("ipykernel", "pytest-xdist"),
    Peer.PAPERMILL: ("ipykernel",),
}


@cache
def obstacle(peer: Peer) -> str | None:
    """Make the peer's environment if need be; say why there is none, or None if there is."""
    try:
        prepare(peer.environment)
    except EnvironmentFailure as failure:
        print(f"bench: {failure}", file=sys.stderr)
        return f"cannot be installed: {in_short(str(failure))}"
    return None


def in_short(reason: str) -> str:
    """Return the end of a program's output, where the reason mostly is, on one line."""
    line = " ".join(reason.split())
    return line if len(line) <= _MOST_CHARACTERS else f"... {line[-_MOST_CHARACTERS:]}"


@cache
def version(peer: Peer) -> str:
    """Return the version of a peer that is installed."""
    return versions(peer.environment, peer)[peer]


@cache
def _same_versions() -> tuple[str, ...]:
    return tuple(f"{name}=={found}" for name, found in versions(BENCH, *_IN_COMMON).items())
