"""The ranks that the user's mpirun started, of which this process is one."""

from __future__ import annotations

import atexit
import contextlib
import json
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rankwise
from rankwise.launch.mpi import Place, library_name, mark_as_joined, start_mpi
from rankwise.testing import wire

if TYPE_CHECKING:
    from mpi4py import MPI

Settings = dict[str, Any]

# Run without site-packages and the user's environment: it starts in a fraction of the time.
_START_SWITCHBOARD = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from rankwise.testing.switchboard import main; main()"
)


class World:
    """This rank's membership: the communicator of all, and the line to the switchboard."""

    def __init__(self, place: Place, comm: MPI.Intracomm, library: str, hosts: list[str]) -> None:
        self.rank = place.rank
        self.size = place.size
        self.comm = comm
        self.channel: wire.Channel
        self.settings: Settings = {}
        self.library = library
        self.is_reporter = place.rank == 0
        self.shares_host_with_reporter = hosts[place.rank] == hosts[0]
        self._hosts = hosts
        self._switchboard: subprocess.Popen[bytes] | None = None
        self._folder: str | None = None

    @classmethod
    def join(cls, place: Place, settle: Callable[[], Settings]) -> World:
        """Start MPI and connect to the switchboard, which rank 0 starts; collective.

        What `settle` gives on rank 0 becomes the settings of all.

        Raises MpiMissing or MpiMismatch when the ranks cannot find each other.
        """
        mpi = start_mpi(place)
        comm = mpi.COMM_WORLD.Dup()
        world = cls(
            place,
            comm,
            library_name(mpi.Get_library_version()),
            comm.allgather(mpi.Get_processor_name()),
        )
        mark_as_joined()
        own = (world._open(), settle()) if world.is_reporter else None
        invitation, world.settings = comm.bcast(own, root=0)
        world.channel = wire.Channel.open(
            wire.Address(**invitation["address"]), invitation["secret"], world.rank
        )
        # MPI waits for all ranks when a process ends; the others must learn before that, through
        # the switchboard, that this one leaves.
        atexit.register(world.leave)
        return world

    def _open(self) -> dict[str, Any]:
        """Start the switchboard and say how to reach it."""
        if len(set(self._hosts)) == 1:
            self._folder = tempfile.mkdtemp(prefix="rankwise-")
            listener, address = wire.listen_on_file(Path(self._folder) / "switchboard")
        else:
            listener, address = wire.listen_on_host(self._hosts[0])
        secret = secrets.token_hex(32)
        settings = {"listener": listener.fileno(), "secret": secret, "width": self.size}
        source = str(Path(rankwise.__file__).parent.parent)
        with listener:
            self._switchboard = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _START_SWITCHBOARD, source],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=[listener.fileno()],
                # Ctrl-C is for the ranks; the switchboard ends when rank 0 has.
                start_new_session=True,
            )
        assert self._switchboard.stdin is not None
        self._switchboard.stdin.write(json.dumps(settings).encode() + b"\n")
        self._switchboard.stdin.flush()
        return {"address": asdict(address), "secret": secret}

    def leave(self) -> None:
        """Hang up; on rank 0 also end the switchboard. Idempotent."""
        self.channel.close()
        if self._switchboard is not None:
            assert self._switchboard.stdin is not None
            with contextlib.suppress(OSError):
                self._switchboard.stdin.close()
            try:
                self._switchboard.wait(timeout=5)
            except subprocess.TimeoutExpired:
                self._switchboard.kill()
                self._switchboard.wait()
            self._switchboard = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def abort(self, code: int) -> None:
        """End all ranks at once, those that hang included; does not come back."""
        self.leave()
        self.comm.Abort(code or 1)
