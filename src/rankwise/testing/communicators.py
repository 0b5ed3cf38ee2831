"""The communicators of the test that is running on this rank."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from rankwise.launch.mpi import load_mpi

if TYPE_CHECKING:
    from mpi4py import MPI

# A rank looks for its peers eagerly for this long, then it sleeps between looks.
_EAGER_SECONDS = 0.001
_PATIENT_SECONDS = 0.0005

# Communicators are made some at a time: ranks that make one have to wait for each other.
_LARGEST_STOCK = 16

# So many tests later a communicator that a test has used is freed.
_RESTING = 16
# So many communicators of failed tests are never used again; MPICH has 2,048 in all.
_MOST_SPOILT = 512


class Circle:
    """Ranks that run tests together, with a stock of communicators for their next tests.

    All of them come to every test of theirs, so their stocks are always equally large.
    """

    def __init__(self, private: MPI.Intracomm) -> None:
        self.private = private
        self._stock: list[MPI.Intracomm] = []
        self._next_stock = 1

    def take(self) -> MPI.Intracomm:
        """Give a communicator that no test has used; collective when the stock is empty."""
        if not self._stock:
            # MPI waits eagerly while it makes them: that is short once all are here.
            wait_patiently(self.private.Ibarrier().Test)
            self._stock = [self.private.Dup() for _ in range(self._next_stock)]
            self._next_stock = min(2 * self._next_stock, _LARGEST_STOCK)
        return self._stock.pop()

    def dissolve(self) -> None:
        """Free everything."""
        for communicator in (*self._stock, self.private):
            communicator.Free()


class Communicators:
    """Gives every test its own and frees it: their number never grows, however many tests run."""

    KEY: ClassVar[pytest.StashKey[Communicators]] = pytest.StashKey()
    latest: ClassVar[Communicators | None] = None
    """Those of the pytest session that this process is in."""

    def __init__(self, world: MPI.Intracomm | None = None) -> None:
        self._world = world
        Communicators.latest = self
        self._kept: dict[tuple[int, ...], Circle] = {}
        self._circle: Circle | None = None
        self._circle_is_kept = False
        self._for_test: MPI.Intracomm | None = None
        self._resting: deque[MPI.Intracomm] = deque()
        self._spoilt: deque[MPI.Intracomm] = deque()
        self.unwanted: list[MPI.Message] = []
        """Messages that were thrown away: to free them would be to receive them."""
        self.track: Callable[[Any], Any] | None = None
        """Looks after the communicators that tests get, if somebody wants to know."""
        self._handlers: list[tuple[str, MPI.Comm, MPI.Errhandler]] = []

    @property
    def seat(self) -> tuple[int, int]:
        """This rank's number among the ranks of the test, and how many they are."""
        if self._circle is None:
            return 0, 1
        return self._circle.private.rank, self._circle.private.size

    def open(self, ranks: Sequence[int], *, wanted: bool, keep: bool, alone: bool = False) -> None:
        """Prepare for a test on these ranks of the world; they all come here.

        Before a test that is `alone` in its world, messages that an earlier one has sent on
        MPI.COMM_WORLD and that nobody has received are thrown away.

        It is before the test's setup, so that a fixture that fails on one of the ranks cannot
        leave the others waiting for a communicator. With `keep` the ranks expect to meet again.
        """
        if len(ranks) == 1:
            return
        key = tuple(ranks)
        self._circle = self._kept.get(key) or self._gather(key)
        self._circle_is_kept = keep
        if keep:
            self._kept[key] = self._circle
        if alone:
            # Once all are here, whatever was sent has arrived.
            wait_patiently(self._circle.private.Ibarrier().Test)
            self.unwanted += _drain(load_mpi().COMM_WORLD)
        if wanted:
            self._for_test = self._tracked(self._circle.take())

    def _gather(self, ranks: tuple[int, ...]) -> Circle:
        assert self._world is not None, "a test on several ranks needs a world"
        group = self._world.Get_group()
        members = group.Incl(ranks)
        circle = Circle(self._world.Create_group(members))
        members.Free()
        group.Free()
        return circle

    def for_test(self) -> MPI.Intracomm:
        """Give the test's communicator; a test on one rank has one of its own too."""
        if self._for_test is None:
            if self._circle is not None:
                self._for_test = self._tracked(self._circle.take())
            else:
                self._for_test = self._tracked(load_mpi().COMM_SELF.Dup())
        return self._for_test

    def _tracked(self, communicator: MPI.Intracomm) -> MPI.Intracomm:
        if self.track is None:
            return communicator
        tracked: MPI.Intracomm = self.track(communicator)
        return tracked

    @property
    def current(self) -> MPI.Intracomm | None:
        """The test's communicator, if it has asked for it."""
        return self._for_test

    def meet(self) -> None:
        """Wait until all ranks of the test are here."""
        if self._circle is not None:
            wait_patiently(self._circle.private.Ibarrier().Test)

    def changed_handlers(self) -> list[str]:
        """Set error handlers of the world back to what they were; say which were others."""
        found = []
        for name, communicator, usual in self._handlers:
            handler = communicator.Get_errhandler()
            if handler != usual:
                communicator.Set_errhandler(usual)
                found.append(f"another error handler on {name}")
        return found

    def all_agree(self, fine: bool) -> bool:
        """Tell whether all ranks of the test say that they are fine; they all come here."""
        if self._circle is None:
            return fine
        from mpi4py import MPI

        answer = bytearray([fine])
        request = self._circle.private.Iallreduce(MPI.IN_PLACE, [answer, MPI.BYTE], op=MPI.BAND)
        wait_patiently(request.Test)
        return bool(answer[0])

    def renew(self) -> None:
        """Put an untouched communicator in the place of one that a failed attempt has used."""
        if self._for_test is not None:
            self._spoil(self._for_test)
            self._for_test = None
            self.for_test()

    def join(self, world: MPI.Intracomm) -> None:
        """Learn of the ranks around this one, which were not there before."""
        self._world = world
        mpi = load_mpi()
        self._handlers = [
            (name, communicator, communicator.Get_errhandler())
            for name, communicator in (
                ("MPI.COMM_WORLD", mpi.COMM_WORLD),
                ("MPI.COMM_SELF", mpi.COMM_SELF),
            )
        ]

    def close(self, *, orderly: bool = True) -> None:
        """Put away what the test had; idempotent.

        If this rank did not get to the test's end in an `orderly` way, what the others sent it in
        a collective operation may be left over. That cannot be drained, and the next communicator
        with the same identity would receive it: so this one is not freed at all.
        """
        self.changed_handlers()
        if self._for_test is not None:
            if orderly:
                self._put_to_rest(self._for_test)
            else:
                self._spoil(self._for_test)
            self._for_test = None
        if self._circle is not None and not self._circle_is_kept:
            self._circle.dissolve()
        self._circle = None

    def _spoil(self, communicator: MPI.Intracomm) -> None:
        self._spoilt.append(communicator)
        if len(self._spoilt) > _MOST_SPOILT:
            self._put_to_rest(self._spoilt.popleft())

    def _put_to_rest(self, communicator: MPI.Intracomm) -> None:
        """Free a communicator some tests later.

        MPI gives the identity of a freed communicator to a new one. A message that a test sent and
        never received would be found there by another test: it is thrown away here, when it has
        certainly arrived.
        """
        self._resting.append(communicator)
        if len(self._resting) > _RESTING:
            oldest = self._resting.popleft()
            # A test may have freed its communicator itself: then the handle is null.
            if oldest:
                self.unwanted += _drain(oldest)
                oldest.Free()


def _drain(communicator: MPI.Intracomm) -> list[MPI.Message]:
    """Take messages that nobody has received out of MPI's queue.

    They are not received: the memory that a large one would be fetched from may be gone.
    """
    taken = []
    while (message := communicator.Improbe()) is not None:
        taken.append(message)
    return taken


def wait_patiently(is_done: Callable[[], bool]) -> None:
    """Wait for peers without taking the core from one that may need it to get here."""
    eager_until = time.monotonic() + _EAGER_SECONDS
    while not is_done():
        if time.monotonic() < eager_until:
            os.sched_yield()
        else:
            time.sleep(_PATIENT_SECONDS)
