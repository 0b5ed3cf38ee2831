"""The communicators of the test that is running on this rank."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import pytest

from rankwise.launch.mpi import load_mpi

if TYPE_CHECKING:
    from mpi4py import MPI

# A rank looks for its peers eagerly for this long, then it sleeps between looks.
_EAGER_SECONDS = 0.002
_PATIENT_SECONDS = 0.0005


class Communicators:
    """Makes and frees them: their number never grows, however many tests run."""

    KEY: ClassVar[pytest.StashKey[Communicators]] = pytest.StashKey()

    def __init__(self, world: MPI.Intracomm | None = None) -> None:
        self._world = world
        self._private: MPI.Intracomm | None = None
        self._for_test: MPI.Intracomm | None = None

    def open(self, ranks: Sequence[int], *, wanted: bool) -> None:
        """Prepare for a test on these ranks of the world; collective over them.

        All ranks of a test come here before its setup begins, so that a fixture that fails on one
        of them cannot leave the others waiting for a communicator.
        """
        if len(ranks) > 1:
            assert self._world is not None, "a test on several ranks needs a world"
            group = self._world.Get_group()
            members = group.Incl(ranks)
            self._private = self._world.Create_group(members)
            members.Free()
            group.Free()
            if wanted:
                self._for_test = self._private.Dup()

    def for_test(self) -> MPI.Intracomm:
        """Give the test's communicator; a test on one rank has one of its own too."""
        if self._for_test is None:
            if self._private is not None:
                self._for_test = self._private.Dup()
            else:
                self._for_test = load_mpi().COMM_SELF.Dup()
        return self._for_test

    def all_agree(self, fine: bool) -> bool:
        """Tell whether all ranks of the test say that they are fine; collective over them."""
        if self._private is None:
            return fine
        from mpi4py import MPI

        answer = bytearray([fine])
        request = self._private.Iallreduce(MPI.IN_PLACE, [answer, MPI.BYTE], op=MPI.BAND)
        eager_until = time.monotonic() + _EAGER_SECONDS
        while not request.Test():
            # A peer may take long in its setup: it needs the core more than we do.
            if time.monotonic() < eager_until:
                os.sched_yield()
            else:
                time.sleep(_PATIENT_SECONDS)
        return bool(answer[0])

    def close(self) -> None:
        """Free what the test had; idempotent."""
        for communicator in (self._for_test, self._private):
            # A test may have freed it itself: then the handle is null.
            if communicator is not None and communicator:
                communicator.Free()
        self._for_test = self._private = None
