"""Where workers run (this machine, or the nodes in `slurm_nodes`) and how a run begins there."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest

from rankwise.launch import mpi
from rankwise.launch.cores import (
    LEVELS,
    Core,
    available_cores,
    domains_of,
    read_cores,
    share_out,
    use_cores_of_parent,
)
from rankwise.pytest_plugin import connections
from rankwise.pytest_plugin.connections import Exchange, Header, Invitation, Name
from rankwise.pytest_plugin.interop import settle
from rankwise.pytest_plugin.options import BATCH_SCHEDULERS, SLURM_SCHEDULERS, STARTS_RANKS
from rankwise.pytest_plugin.workers.supervisor import FORK_SOCKETS, clean_command, supervise

if TYPE_CHECKING:
    from rankwise.pytest_plugin.collection import ListedTest
    from rankwise.pytest_plugin.failure_report import AbortedTest
    from rankwise.pytest_plugin.schedulers.base import Domains
    from rankwise.pytest_plugin.workers.run_options import SlurmOptions
    from rankwise.pytest_plugin.workers.worlds import Worlds


# More ranks than this would take the machine's memory before the first test has begun.
_MOST_ON_ANY = 256
_MOST_ON_A_CORE = 32

_TOO_LATE = (
    "MPI was started before the workers, mostly by a plugin that imports mpi4py.MPI: ranks start "
    "from nothing, as with --no-warm-start, which is slower; MPI4PY_RC_INITIALIZE=0 prevents that"
)


class RunOptions:
    """What the command line says about the workers, before it is read in full."""

    def __init__(
        self, config: pytest.Config, *, width: int | None = None, place: mpi.Place | None = None
    ) -> None:
        """Read it; with a width, what ranks are started with is settled already.

        If a launcher has given a place among many to this process, there are as many workers.
        """
        known = config.known_args_namespace
        self.scheduler: str = known.scheduler or ""
        asked = known.n_workers
        self.slurm: SlurmOptions | None = None
        """What the ranks are started with; None: with the mpiexec of this machine."""
        self.launched = 0 if place is None else place.size
        """How many ranks a launcher has started; this process is the one that goes on."""
        if place is not None and place.launcher:
            # An mpirun has all cores that the user has given to it. What srun's parent has is
            # not the user's.
            use_cores_of_parent()
        self.cores = available_cores()
        if width is not None:
            self.width: int = width
        elif self.scheduler in (*SLURM_SCHEDULERS, *BATCH_SCHEDULERS):
            from rankwise.pytest_plugin.workers import run_options

            is_slurm = self.scheduler in SLURM_SCHEDULERS
            read = run_options.read_slurm_options if is_slurm else run_options.read_batch_options
            self.slurm = read(known)
            self.width = self.slurm.tasks
        else:
            usual = self.launched if self.launched > 1 and asked is None else len(self.cores)
            self.width = usual if asked in (None, "auto") else int(asked)
            self._refuse_too_many()
        self.uses_srun: bool = known.use_srun and self.scheduler not in BATCH_SCHEDULERS
        self.fresh = self.scheduler in ("shell", "slurm", "batch")
        self.start_mode = self.scheduler if self.scheduler in STARTS_RANKS else "pool"
        named = "" if self.scheduler in STARTS_RANKS else self.scheduler
        self.policy: str = known.rankwise_policy or named or "dynamic"
        self.notices: list[str] = []
        """What the user is told about them at the end."""
        self.warm: bool = not known.no_warm_start
        # Plugins are loaded by now. A copy of a process with MPI at work cannot be a rank.
        if self.warm and mpi.is_mpi_started():
            self.warm = False
            self.notices.append(_TOO_LATE)
        self.quiet: bool = getattr(known, "capture", "no") != "no"
        # Batch systems bind by themselves.
        self.bind: str = known.bind or ("core" if self.scheduler == "shell" else "")
        """How ranks are bound, as --bind says; empty: the option is not set."""
        if self.bind == "core" and self.slurm is None and self.width > len(self.cores):
            # They would share some cores while others are idle.
            self.bind = "none"
            if known.bind:
                most = f"{len(self.cores)} workers, one for each core"
                self.notices.append(f"--bind=core has no effect with more than {most}")
        self.every_world: bool = known.world
        self.sets_threads = "OMP_NUM_THREADS" not in os.environ

    def _refuse_too_many(self) -> None:
        most = max(_MOST_ON_ANY, _MOST_ON_A_CORE * len(self.cores))
        if self.width > most:
            raise pytest.UsageError(
                f"--n-workers={self.width} is more than this machine can hold: it has "
                f"{len(self.cores)} cores, and more than {most} ranks are not started on it"
            )


class Workplace:
    """Starts what the worlds of a run need, and knows what became of it.

    This one is the machine that pytest runs on: it is there from the start and does not end before
    the run does. Others override what is different there.
    """

    on_notice: Callable[[str], None]
    """Told what a person who waits wants to know."""

    def __init__(
        self, fork_sockets: Mapping[str, str], *, width: int, cores: Sequence[int] = ()
    ) -> None:
        self.fork_sockets = fork_sockets
        """The sockets at which a rank's program gets its process, by kind of start."""
        self.title = ""
        """What the header of the run says of it; empty: that is not known yet."""
        self._width = width
        self._cores = cores
        self.keeps_slots = False
        """Whether ranks must run where their slots are, if a world could be elsewhere too."""

    @property
    def is_ready(self) -> bool:
        """Whether worlds can be started."""
        return True

    @property
    def starter(self) -> str:
        """Which supervisor starts the worlds."""
        return connections.SUPERVISOR

    @property
    def lost(self) -> Sequence[str]:
        """Nodes that are gone."""
        return ()

    def begin(self, lines: Exchange, order_supervisor: Callable[[Header], None]) -> None:
        """Get ready; raises RankwiseError if that is impossible."""

    def look(self) -> None:
        """Look how far it is, while it is not ready; raises RankwiseError if it never will be."""

    def is_expected(self, name: object) -> bool:
        """Return whether a process of this name may connect, beside workers and templates."""
        return False

    def servers(self) -> list[str]:
        """Return the processes that start, end and know ranks, beside our own supervisor."""
        return [connections.TEMPLATE]

    def seats(self, bind: str) -> tuple[list[list[Core]], list[int]]:
        """Return the cores and the machine of each slot, for ranks that are bound like this.

        Raises ComputeFailure if they cannot be. Without a wish, a slot stands for a core.
        """
        return share_out(bind or "core", self._width, read_cores(self._cores)), [0] * self._width

    def take(self, name: Name, header: Header, body: bytes) -> None:
        """Take in what a process of the place says about itself; raises RankwiseError."""
        if header["kind"] == "mpi":
            self.title = header["library"]

    def gone(self, name: Name) -> None:
        """Learn that a process of the place has closed its connection."""

    def prepare(self, order: Header) -> None:
        """Add to the order for a world how it is started."""

    def share(self) -> bool:
        """Let worlds start that are kept waiting; return whether that is new."""
        return False

    def explain_end(self) -> str:
        """Return why no world can be started any more; empty: they can."""
        return ""

    def end(self) -> None:
        """Return what was taken, such as an allocation."""


def settle_cores(
    options: RunOptions,
    place: Workplace,
    worlds: Worlds,
    tests: Sequence[ListedTest] = (),
    step: Callable[[], None] | None = None,
) -> Domains:
    """Bind ranks as was asked for, or so that tests can have domains alone.

    Return the domains of all slots. Raises ComputeFailure for a map that does not fit.
    """
    wanted = {test.exclusive for test in tests} - {None}
    # Ranks that may run anywhere would be in all domains.
    bind = options.bind or next((level for level in LEVELS if level in wanted), "")
    seats, machines = place.seats(bind)
    if not bind and options.slurm is not None and step is not None:
        # The batch system has bound them, perhaps.
        seats = worlds.await_seats(step) or seats
    domains = domains_of(seats, machines)
    # To be bound to the only domain there is has no effect.
    is_bound = options.bind not in ("", "none") or len(set(domains.get(bind, ()))) > 1
    if is_bound:
        worlds.bind(seats)
    # A world that is elsewhere would have other cores, or not those of its node alone.
    if is_bound or (wanted and options.slurm is not None):
        place.keeps_slots = worlds.keeps_slots = True
    return domains


class Listener(Protocol):
    """What a pool tells of a run."""

    def on_verdict(self, header: Header, body: bytes) -> None:
        """Take the reports of all ranks of a test, or what one of them has said later."""

    def on_ending(self, case: int, ending: AbortedTest) -> None:
        """Take how a test came to an end that its ranks did not report."""

    def on_interrupt(self, header: Header) -> None:
        """Learn that a rank wants the run to end."""

    def on_lost(self, words: str) -> None:
        """Learn of workers that ended unasked where no test can be blamed: the run has failed."""

    def on_debug(self, worker: int, pid: int, words: str) -> None:
        """Lend the terminal to a worker, and come back when it is free again."""

    def on_look(self) -> None:
        """Show how it stands; called several times a second."""


# What the files of some ranks take.
_ROOM_BYTES = 1 << 16


def start_controller(config: pytest.Config, options: RunOptions) -> None:
    """Make this process the controller of a pool.

    Comes back in other processes too: in the template and in ranks, which are copies of this one.
    They go on as workers.
    """
    _fill_standard_descriptors()
    forgotten = mpi.forget_job()
    folder = _make_folder()
    secret = secrets.token_hex(32)
    try:
        listener, address = _listen(options, folder)
    except pytest.UsageError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    own, theirs = connections.pair()
    template, template_end = connections.pair()
    invitation = Invitation(
        address=address,
        secret=secret,
        folder=str(folder),
        width=options.width,
        settings=settle(config),
    )
    if options.bind == "core" and options.slurm is None and options.sets_threads:
        # Libraries that are loaded for all ranks must not start more threads than a rank has cores.
        os.environ["OMP_NUM_THREADS"] = "1"
        config.add_cleanup(_forget_threads)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # as Python has it if it was started with a closed one
            stream.flush()
    supervisor_pid = os.fork()
    if not supervisor_pid:
        # Lines end for the others only when no process has this side of them any more.
        own.close()
        template.close()
        listener.close()
        # Ctrl-C at the terminal is for the controller, which tells the others.
        os.setsid()
        line = connections.Channel(theirs)
        supervise(config, options, invitation, line=line, template_line=template_end)
        return
    theirs.close()
    template_end.close()
    paths = {name: str(folder / name) for name in FORK_SOCKETS}
    # The other processes are at work meanwhile.
    from rankwise.pytest_plugin.workers.controller import ControllerSession

    session = ControllerSession(
        config,
        options,
        invitation,
        folder,
        place=_make_place(config, options, invitation, paths),
        listener=listener,
        supervisor=own,
        template=template,
        supervisor_pid=supervisor_pid,
    )
    config.pluginmanager.register(session, "rankwise-controller")
    # What this process does after pytest, perhaps with another pytest, is as without this one.
    config.add_cleanup(mpi.stand_in_for_mpi())
    config.add_cleanup(lambda: os.environ.update(forgotten))


def _make_folder() -> Path:
    """Make the folder of the run; raises UsageError if nothing can be written there."""
    try:
        folder = Path(tempfile.mkdtemp(prefix="rankwise-"))
        try:
            with (folder / "room").open("wb") as file:
                # Not a sparse file: a full disk is to be noticed now, with a message, not by a
                # rank.
                os.posix_fallocate(file.fileno(), 0, _ROOM_BYTES)
            (folder / "room").unlink()
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    except OSError as error:
        raise pytest.UsageError(
            f"the files of this run have no place: {error}. Set TMPDIR to a folder with room"
        ) from None
    return folder


def _fill_standard_descriptors() -> None:
    """Let no file or line of ours have a number that is a stream's: ranks get others there."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def _forget_threads() -> None:
    os.environ.pop("OMP_NUM_THREADS", None)


def _listen(options: RunOptions, folder: Path) -> tuple[socket.socket, connections.Address]:
    """Listen where all ranks can reach us, and nowhere else; raises UsageError."""
    if options.slurm is None:
        return connections.listen_on_file(folder / "controller")
    from rankwise.pytest_plugin.workers.slurm_allocation import reachable_address

    host = reachable_address(options.slurm)
    try:
        return connections.listen_on_host(host)
    except OSError as error:
        raise pytest.UsageError(
            f"cannot listen on {host}: {error}. Name an address of this machine that the nodes can "
            "reach with --slurm-address=ADDRESS"
        ) from None


def _make_place(
    config: pytest.Config,
    options: RunOptions,
    invitation: Invitation,
    fork_sockets: Mapping[str, str],
) -> Workplace:
    if options.slurm is None:
        return Workplace(fork_sockets, width=options.width, cores=options.cores)
    from rankwise.pytest_plugin.workers.slurm_nodes import BatchSite, SlurmSite

    kind = BatchSite if options.slurm.on else SlurmSite
    return kind(options, invitation, clean_command(config))
