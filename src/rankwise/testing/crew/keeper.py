"""The process that owns all others of a run: it starts them, and none of them outlives it.

It is a copy of the controller from before anything of the user's was loaded. It starts mpiexec and
the template, and makes ranks from itself where the template cannot: then they load the user's
modules themselves, with MPI at work. It ends when the controller does, however that ends.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from rankwise.errors import RankwiseError
from rankwise.launch.mpi import library_name, prepare_clock
from rankwise.testing.crew.forkserver import (
    SECRET_VARIABLE,
    ForkServer,
    adopt_orphans,
    descendants,
    fork_with_parent,
    kill_group,
)
from rankwise.testing.wire import Channel, Header

if TYPE_CHECKING:
    from rankwise.launch.mpiexec import Mpiexec

OUTPOSTS = -1
"""Stands in the place of a world's number for the step that has a server on each node."""

_LAUNCHER = str(Path(__file__).with_name("launcher.py"))
# So long an mpiexec may tidy up after its ranks are gone.
_TIDY_SECONDS = 2.0


class Keeper(ForkServer):
    """Serves a controller at the other end of a line."""

    def __init__(
        self,
        line: Channel,
        secret: str,
        *,
        warm: socket.socket,
        cold: socket.socket,
        quiet: bool,
        folder: Path,
        command: Sequence[str] = (),
    ) -> None:
        super().__init__(line, secret)
        self._secret_shown = secret
        self._warm = warm
        self._folder = folder
        self._quiet = quiet
        self._command = command
        self._surroundings: Mapping[str, str] | None = None
        self._mpiexec: Mpiexec | None = None
        self._launchers: dict[int, subprocess.Popen[bytes]] = {}
        self._dismissed: dict[int, float] = {}
        self._template = 0
        adopt_orphans()
        self.open_door(cold, command)

    def prepare_mpi(self) -> None:
        """Load MPI without starting it, and find the mpiexec that belongs to it."""
        try:
            # The template does not wait for this to be loaded.
            from rankwise.launch.mpiexec import find_mpiexec, loaded_library

            version = load_mpi_without_start()
            library = loaded_library()
            self._mpiexec = find_mpiexec(version, library)
        except RankwiseError as error:
            self._tell({"kind": "refused", "reason": str(error)})
            return
        prepare_clock(version, library)
        self._tell({"kind": "mpi", "library": library_name(version), "mpiexec": self._mpiexec.path})

    def name_mpi(self) -> None:
        """Say which MPI there is, on a node where others start it."""
        try:
            library = library_name(load_mpi_without_start())
        except RankwiseError as error:
            self._tell({"kind": "refused", "reason": str(error)})
            return
        self._tell({"kind": "mpi", "library": library})

    def obey(self, header: Header) -> None:
        match header["kind"]:
            case "spawn":
                self._spawn(header)
            case "surroundings":
                self._surroundings = header["environment"]
            case "template":
                self.start_template()
            case "take over":
                # No template can be made: launchers that wait for one get copies of this process.
                self.open_door(self._warm, self._command)
            case "kill":
                super().obey(header)
                self._end_launcher(header["world"])
            case _:
                super().obey(header)

    def start_template(self) -> bool:
        """Make the template; gives whether this process is it."""
        pid = fork_with_parent()
        if not pid:
            self._become(None)
            return True
        self._template = pid
        watch = os.pidfd_open(pid)
        self._selector.register(
            watch, selectors.EVENT_READ, lambda: self._template_ended(pid, watch)
        )
        return False

    def _template_ended(self, pid: int, watch: int) -> None:
        self._selector.unregister(watch)
        os.close(watch)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        self._template = 0
        self._tell({"kind": "template ended", "status": status})

    # mpiexec

    def _spawn(self, header: Header) -> None:
        world = int(header["world"])
        launch: Sequence[str] | None = header.get("launch")
        from rankwise.launch.mpiexec import without_job

        if launch is not None:
            # By a batch system, which makes what it starts on its nodes know of the job.
            surroundings = self._surroundings or os.environ
            environment = {
                name: value
                for name, value in without_job(surroundings).items()
                if not name.startswith("SLURM_")
            }
            # It is this machine's srun that is called.
            if here := os.environ.get("SLURM_CONF"):
                environment["SLURM_CONF"] = here
        elif self._mpiexec is not None:
            launch = self._mpiexec.command(header["size"])
            environment = {
                **without_job(os.environ),
                **self._mpiexec.environment(),
                **self._own_folder(world),
            }
        else:
            return
        environment |= {**header["environment"], SECRET_VARIABLE: self._secret_shown}
        program = header.get("program") or [
            *(sys.executable, "-I", "-S", _LAUNCHER, header["door"], str(world))
        ]
        command = [*launch, *program]
        output = None
        if self._quiet:
            output = os.open(log_path(self._folder, world), os.O_WRONLY | os.O_CREAT, 0o600)
        try:
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
        finally:
            if output is not None:
                os.close(output)
        self._launchers[world] = process
        watch = os.pidfd_open(process.pid)
        self._selector.register(
            watch, selectors.EVENT_READ, lambda: self._launcher_ended(world, watch)
        )

    def _own_folder(self, world: int) -> dict[str, str]:
        """Have Open MPI keep its files apart from those of its other jobs of this user.

        One that ends removes folders that one that starts has just made, and a job that is killed
        leaves its own behind: these go with the run's.
        """
        folder = self._folder / f"world-{world}"
        folder.mkdir(exist_ok=True)
        return {"OMPI_MCA_orte_tmpdir_base": str(folder), "PRTE_MCA_prte_tmpdir_base": str(folder)}

    def _launcher_ended(self, world: int, watch: int) -> None:
        self._selector.unregister(watch)
        os.close(watch)
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

    def _execute_condemned(self) -> None:
        super()._execute_condemned()
        for world, when in list(self._dismissed.items()):
            if when <= time.monotonic():
                del self._dismissed[world]
                self._launchers[world].send_signal(signal.SIGTERM)

    def end(self) -> NoReturn:
        for ward in self._wards:
            self._kill(ward)
            # To its launcher this is the end, too.
            ward.line.close()
        if self._template:
            kill_group(self._template)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._template, 0)
        deadline = time.monotonic() + _TIDY_SECONDS
        while time.monotonic() < deadline and any(
            process.poll() is None for process in self._launchers.values()
        ):
            time.sleep(0.005)
        # Whatever is left was started by a test or by a launcher: nothing stays behind.
        for _ in range(5):
            left = descendants(os.getpid())
            for pid in left:
                kill_group(pid)
            if not left:
                break
            time.sleep(0.005)
        remove_folder(self._folder)
        os._exit(0)


def log_path(folder: Path, world: int) -> Path:
    """Name the file for what a world's mpiexec and ranks print."""
    return folder / f"world-{world}.log"


def remove_folder(folder: Path) -> None:
    """Remove a run's folder, also if another process does so too."""
    import shutil

    shutil.rmtree(folder, ignore_errors=True)


def load_mpi_without_start() -> str:
    """Load mpi4py's MPI as what is not to be started yet; gives the library's version.

    Raises MpiMissing.
    """
    from rankwise.launch.mpi import load_mpi

    prevent_start()
    version: str = load_mpi().Get_library_version()
    return version


def prevent_start() -> None:
    """Let an import of mpi4py's MPI start nothing."""
    try:
        import mpi4py
    except ImportError:
        return  # `load_mpi` says what to do
    mpi4py.rc(initialize=False, finalize=False)


def usual_environment() -> Mapping[bytes, bytes]:
    """Give the environment as mpiexec will get it."""
    return dict(os.environb)
