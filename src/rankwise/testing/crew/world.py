"""The ranks that the user's mpirun started, of which this process is one."""

from __future__ import annotations

import atexit
import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankwise.errors import RankwiseError
from rankwise.launch.mpi import Place, library_name, mark_as_joined, start_mpi
from rankwise.testing import wire
from rankwise.testing.blackbox import BlackBox, BoxFiles
from rankwise.testing.crew.last_words import LastWords
from rankwise.testing.crew.switchboard_process import SwitchboardProcess

if TYPE_CHECKING:
    from mpi4py import MPI

Settings = dict[str, Any]


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
        self._switchboard: SwitchboardProcess | None = None
        self._last_words: LastWords | None = None
        self.box: BlackBox | None = None

    @classmethod
    def join(cls, place: Place, settle: Callable[[], Settings]) -> World:
        """Start MPI and connect to the switchboard, which rank 0 starts; collective.

        What `settle` gives on rank 0 becomes the settings of all.

        Raises MpiMissing or MpiMismatch when the ranks cannot find each other.
        """
        # Before MPI starts: then it can be a mere copy of this process.
        switchboard = SwitchboardProcess() if place.rank == 0 else None
        try:
            mpi = start_mpi(place)
        except RankwiseError:
            if switchboard is not None:
                switchboard.stop()
            raise
        comm = mpi.COMM_WORLD.Dup()
        world = cls(
            place,
            comm,
            library_name(mpi.Get_library_version()),
            comm.allgather(mpi.Get_processor_name()),
        )
        mark_as_joined()
        own = None
        if switchboard is not None:
            world._switchboard = switchboard
            own = switchboard.open(world._hosts), settle()
        invitation, world.settings = comm.bcast(own, root=0)
        world.channel = wire.Channel.open(
            wire.Address(**invitation["address"]), invitation["secret"], world.rank
        )
        # At once: who has not shown the secret for long is dropped, and to collect may take longer.
        world.channel.send({"kind": "here", "pid": os.getpid()})
        if invitation["folder"]:
            world.box = BlackBox(BoxFiles(Path(invitation["folder"]), str(world.rank)))
        # MPI waits for all ranks when a process ends; the others must learn before that, through
        # the switchboard, that this one leaves.
        atexit.register(world.leave)
        if not world.is_reporter:
            world._last_words = LastWords.begin()
        return world

    def speak(self) -> None:
        """Let this rank write to stderr; what it had to say until now, rank 0 says."""
        if self._last_words is not None:
            self._last_words.end()

    def leave(self) -> None:
        """Hang up; on rank 0 also end the switchboard. Idempotent."""
        if self._last_words is not None and (words := self._last_words.end()):
            with contextlib.suppress(wire.WireError):
                self.channel.send({"kind": "refused", "reason": words})
        self.channel.close()
        if self._switchboard is not None:
            self._switchboard.stop()

    def abort(self, code: int) -> None:
        """End all ranks at once, those that hang included; does not come back."""
        self.leave()
        self.comm.Abort(code or 1)
