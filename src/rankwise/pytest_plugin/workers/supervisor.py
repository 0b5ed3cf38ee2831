"""The process that starts all others of a run and that none outlives."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

from rankwise.errors import RankwiseError
from rankwise.launch import mpi
from rankwise.launch.cores import read_cores
from rankwise.node.processes import PR_SET_CHILD_SUBREAPER, prctl, sweep
from rankwise.pytest_plugin import connections
from rankwise.pytest_plugin.rank_status import NodeStatus
from rankwise.pytest_plugin.workers import forkserver
from rankwise.pytest_plugin.workers.worker import PoolLink, PoolSession

if TYPE_CHECKING:
    from rankwise.launch.mpiexec import Mpiexec
    from rankwise.pytest_plugin.workers.place import RunOptions

NODE_SUPERVISORS = -1
"""Stands in the place of a world's number for the step that has a server on each node."""

FORK_SOCKETS = ("warm", "cold")
"""Where launchers get a copy of the template, or a rank that imports everything itself."""

_LAUNCHER = str(Path(__file__).with_name("rank_proxy.py"))
_LOG_LINES = 40
# So long an mpiexec may tidy up after its ranks are gone.
_TIDY_SECONDS = 2.0


class Supervisor(forkserver.ForkServer):
    """Serves a controller at the other end of a line."""

    def __init__(
        self,
        line: connections.Channel,
        secret: str,
        *,
        warm: socket.socket,
        cold: socket.socket,
        quiet: bool,
        folder: Path,
        command: Sequence[str] = (),
    ) -> None:
        super().__init__(line, secret)
        self._warm = warm
        self._folder = folder
        self._quiet = quiet
        self._command = command
        self._surroundings: Mapping[str, str] | None = None
        self._mpiexec: Mpiexec | None = None
        self._launchers: dict[int, subprocess.Popen[bytes]] = {}
        self._dismissed: dict[int, float] = {}
        self._template = 0
        # The parent of whatever the processes below this one leave behind.
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        self.open_fork_socket(cold, command)

    def load_mpi(self, *, finds_mpiexec: bool) -> None:
        """Load MPI without starting it, and say which it is.

        Find the mpiexec that belongs to it, too, unless others start the worlds.
        """
        try:
            version = mpi.load_mpi_without_start()
            if finds_mpiexec:
                # The template does not wait for this to be loaded.
                from rankwise.launch.mpiexec import find_mpiexec, loaded_library

                library = loaded_library()
                self._mpiexec = find_mpiexec(version, library)
                mpi.prepare_clock(version, library)
        except RankwiseError as error:
            self._tell({"kind": "refused", "reason": str(error)})
            return
        self._tell({"kind": "mpi", "library": mpi.library_name(version)})

    def obey(self, header: connections.Header) -> None:
        match header["kind"]:
            case "spawn":
                self._spawn(header)
            case "surroundings":
                self._surroundings = header["environment"]
            case "template":
                self.start_template()
            case "take over":
                # No template can be made: launchers that wait for one get copies of this process.
                self.open_fork_socket(self._warm, self._command)
            case "kill":
                super().obey(header)
                self._end_launcher(header["world"])
            case _:
                super().obey(header)

    def start_template(self) -> bool:
        """Make the template; returns whether this process is it."""
        pid = forkserver.fork_with_parent()
        if not pid:
            self._become(None)
            return True
        self._template = pid
        self._when_ended(pid, self._template_ended)
        return False

    def _template_ended(self) -> None:
        status = os.waitstatus_to_exitcode(os.waitpid(self._template, 0)[1])
        self._template = 0
        self._tell({"kind": "template ended", "status": status})

    # mpiexec

    def _spawn(self, header: connections.Header) -> None:
        world = int(header["world"])
        launch: Sequence[str] | None = header.get("launch")
        if launch is not None:
            # By a batch system, which makes what it starts on its nodes know of the job.
            surroundings = self._surroundings or os.environ
            environment = {
                name: value
                for name, value in mpi.without_job(surroundings).items()
                if not name.startswith("SLURM_")
            }
            # It is this machine's srun that is called.
            if here := os.environ.get("SLURM_CONF"):
                environment["SLURM_CONF"] = here
        elif self._mpiexec is not None:
            launch = self._mpiexec.command(header["size"])
            environment = {
                **mpi.without_job(os.environ),
                **self._mpiexec.environment(),
                **self._own_folder(world),
            }
        else:
            return
        environment |= {**header["environment"], forkserver.SECRET_VARIABLE: self._secret}
        program = header.get("program") or [
            *(sys.executable, "-I", "-S", _LAUNCHER, header["fork_socket"], str(world))
        ]
        command = [*launch, *program]
        log = log_path(self._folder, world).open("wb") if self._quiet else contextlib.nullcontext()
        try:
            with log as output:
                process = subprocess.Popen(
                    command,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
        except OSError as error:
            self._tell({"kind": "launcher ended", "world": world, "status": str(error)})
            return
        self._launchers[world] = process
        self._when_ended(process.pid, lambda: self._launcher_ended(world))

    def _own_folder(self, world: int) -> dict[str, str]:
        """Have Open MPI keep its files apart from those of its other jobs of this user.

        One that ends removes folders that one that starts has just made, and a job that is killed
        leaves its own behind: these go with the run's.
        """
        folder = self._folder / f"world-{world}"
        folder.mkdir(exist_ok=True)
        return {"OMPI_MCA_orte_tmpdir_base": str(folder), "PRTE_MCA_prte_tmpdir_base": str(folder)}

    def _launcher_ended(self, world: int) -> None:
        self._dismissed.pop(world, None)
        process = self._launchers.pop(world)
        self._tell({"kind": "launcher ended", "world": world, "status": process.wait()})

    def _end_launcher(self, world: int) -> None:
        """Let an mpiexec go whose ranks are ended: it sees that, and has files to remove."""
        if world in self._launchers:
            self._dismissed[world] = time.monotonic() + _TIDY_SECONDS

    def _patience(self) -> float | None:
        times = [super()._patience()]
        times += [when - time.monotonic() for when in self._dismissed.values()]
        return min((max(0.0, one) for one in times if one is not None), default=None)

    def _kill_due(self) -> None:
        super()._kill_due()
        for world, when in list(self._dismissed.items()):
            if when <= time.monotonic():
                del self._dismissed[world]
                # It can tidy up; what does not end by this is swept up at the end of the run.
                self._launchers[world].send_signal(signal.SIGTERM)

    def end(self) -> NoReturn:
        # Ranks first: an mpiexec whose ranks are gone ends by itself, and removes its files.
        for forked in self._forked_ranks:
            self._kill(forked)
            # To its launcher this is the end, too.
            forked.line.close()
        if self._template:
            forkserver.kill_group(self._template)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._template, 0)
        deadline = time.monotonic() + _TIDY_SECONDS
        while time.monotonic() < deadline and any(
            process.poll() is None for process in self._launchers.values()
        ):
            time.sleep(0.005)
        # Whatever is left was started by a test or by a launcher: nothing stays behind.
        sweep(self._folder.name, is_reaper=True)
        shutil.rmtree(self._folder, ignore_errors=True)
        # Not by way of pytest: this process is a copy of the controller.
        os._exit(0)


def log_path(folder: Path, world: int) -> Path:
    """Name the file for what a world's mpiexec and ranks print."""
    return folder / f"world-{world}.log"


def read_log(folder: Path, world: int) -> str:
    """Return the end of what a world's mpiexec and ranks have printed."""
    try:
        text = log_path(folder, world).read_text(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.strip().splitlines()[-_LOG_LINES:])


def supervise_node(config: pytest.Config, invitation: connections.Invitation) -> None:
    """Be the supervisor of one node; comes back in its copies, the template and ranks."""
    from rankwise.pytest_plugin.workers.place import RunOptions

    mpi.forget_job()
    options = RunOptions(config, width=invitation.width)
    folder = invitation.own_folder
    # An error if it exists: in /tmp, another user could have made it.
    folder.mkdir(mode=0o700)
    name = connections.name_on_node(connections.SUPERVISOR, connections.node_name())
    line = connections.Channel.open(invitation.address, invitation.secret, name)
    supervise(config, options, invitation, line=line)


def supervise(
    config: pytest.Config,
    options: RunOptions,
    invitation: connections.Invitation,
    *,
    line: connections.Channel,
    template_line: socket.socket | None = None,
) -> None:
    """Be a supervisor; comes back in its copies, the template and ranks without one."""
    folder = invitation.own_folder
    node_status = NodeStatus(folder) if invitation.is_distant else None
    # As mpiexec will get it.
    usual = dict(os.environb)
    command: Sequence[str] = ()
    # Ctrl-C reaches all of the terminal's processes; the controller decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if not options.warm:
        command = clean_command(config)
        os.environ[connections.INVITATION] = invitation.to_text()
    try:
        # Before the controller knows of this process: what it has started then connects here.
        warm, cold = (connections.listen_on_file(folder / name)[0] for name in FORK_SOCKETS)
        if invitation.is_distant:
            here = {"kind": "here", "pid": os.getpid(), "node": connections.node_name()}
            line.send({**here, "cores": read_cores()})
        supervisor = Supervisor(
            line,
            invitation.secret,
            warm=warm,
            cold=cold,
            quiet=options.quiet,
            folder=folder,
            command=command,
        )
        supervisor.node_status = node_status
        if invitation.is_distant:
            # Slurm ends it so when the job is over, and there is a folder to remove.
            signal.signal(signal.SIGTERM, lambda _number, _frame: supervisor.end())
        mpi.prevent_start()
        fork_request = None
        # The template is what everybody waits for: it does not wait for MPI to be loaded here.
        # In an allocation that is there, those on the nodes are as soon at it.
        is_needed = options.slurm is None or not options.slurm.job
        is_template = options.warm and is_needed and supervisor.start_template()
        if not is_template:
            if template_line is not None:
                template_line.close()
            if options.slurm is None:
                is_step = invitation.is_distant and options.uses_srun
                supervisor.load_mpi(finds_mpiexec=not is_step)
            fork_request = supervisor.serve()
    except BaseException:  # a copy of pytest must not go on as pytest
        import traceback

        traceback.print_exc()
        os._exit(1)
    # Only copies get here: they are pytest processes that Ctrl-C interrupts, as any other.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    link = PoolLink(invitation)
    server = None
    if fork_request is None:
        if options.quiet:
            forkserver.write_output_to(folder / "template.log")
        link.join_as_template(template_line if is_template else None)
        server = forkserver.ForkServer(link.channel, invitation.secret)
        server.node_status = node_status
        server.open_fork_socket(warm)
        cold.close()
    else:
        fork_request.take_place(usual)
        link.join_world()
    PoolSession(config, link, server=server, usual=usual).add_to(config)


def clean_command(config: pytest.Config) -> list[str]:
    """Return the command that starts the same pytest again."""
    arguments = [str(argument) for argument in config.invocation_params.args]
    code = (
        f"import sys; sys.path[:] = {sys.path!r}; "
        f"import pytest; sys.exit(pytest.main({arguments!r}))"
    )
    # The options of this interpreter, as `multiprocessing` passes them on: -O, -W, -X and others.
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [sys.executable, *flags, "-c", code]
