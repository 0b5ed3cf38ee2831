"""Communicators of tests, an `MPI.COMM_WORLD` of their ranks, and parallel assertions."""

from __future__ import annotations

import copyreg
import ctypes
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from rankwise.launch.mpi import load_mpi

if TYPE_CHECKING:
    from mpi4py import MPI

_NAME = "MPI_COMM_WORLD"


class Substitute:
    """A communicator that takes the place of MPI.COMM_WORLD in some tests."""

    def __init__(self, communicator: MPI.Intracomm) -> None:
        self.communicator = communicator
        self.exists = True
        """False if a test has freed it, which would be an error for the real one."""
        self.is_dirty = False
        """Whether parts of collective operations may be left over in it."""

    @property
    def is_usable(self) -> bool:
        """Whether another test may have it."""
        return self.exists and not self.is_dirty


class WorldObject:
    """Makes the object MPI.COMM_WORLD of this process stand for one communicator or another.

    The object itself stays: tests have imported it. Our own code uses `real`, which is the world.
    """

    def __init__(self, mpi: Any) -> None:
        self.real: MPI.Intracomm = mpi.Intracomm(mpi.COMM_WORLD)
        self._mpi = mpi
        self._handler = self.real.Get_errhandler()
        self._length = mpi._sizeof(mpi.Comm)
        self._objects = [mpi.COMM_WORLD]
        # A handle does not show that its communicator was freed, but MPI calls this then.
        self._mark = mpi.Comm.Create_keyval(delete_fn=_note_end)
        _pickle_by_name(mpi)

    def add(self, alias: MPI.Intracomm) -> None:
        """Add another object that stands for MPI.COMM_WORLD in this process."""
        self._objects.append(alias)

    def make_substitute(self, communicator: MPI.Intracomm) -> Substitute:
        """Return a substitute for the world; the communicator must have no other use."""
        made = Substitute(communicator)
        communicator.Set_attr(self._mark, made)
        self.restore_settings(made)
        return made

    def restore_settings(self, one: Substitute) -> None:
        """Set the name and the error handler of the world; local."""
        one.communicator.Set_name(_NAME)
        one.communicator.Set_errhandler(self._handler)

    def point_at(self, substitute: Substitute | None) -> None:
        """Let MPI.COMM_WORLD stand for this communicator; None: for the world."""
        source = self._mpi._addressof(substitute.communicator if substitute else self.real)
        for one in self._objects:
            # The handle in the object of mpi4py, which has no other way to change it.
            ctypes.memmove(self._mpi._addressof(one), source, self._length)


def _note_end(_communicator: object, _mark: int, one: Substitute) -> None:
    one.exists = False


def _pickle_by_name(mpi: Any) -> None:
    """Let pickle find MPI.COMM_WORLD by its name, as mpi4py does for the world's own handle."""

    def reduce(communicator: Any) -> Any:
        if communicator is mpi.COMM_WORLD:
            return "COMM_WORLD"
        if communicator == mpi.COMM_WORLD:
            return mpi.Intracomm, (mpi.COMM_WORLD,)
        return communicator.__reduce__()

    copyreg.pickle(mpi.Intracomm, reduce)


# Own references: a test may have replaced these functions, and they are called in its middle.
_monotonic, _sleep = time.monotonic, time.sleep
# On Windows, to sleep for no time is the same.
_yield = getattr(os, "sched_yield", partial(time.sleep, 0))

# A rank polls eagerly for this long while it waits for others, then it sleeps in between.
_EAGER_SECONDS = 0.001
_PATIENT_SECONDS = 0.0005

# Communicators are made several at a time, because all ranks have to wait for each other to do so.
_LARGEST_STOCK = 16

# This many tests in a row have a COMM_WORLD each; then the ranks meet and use these again.
_LARGEST_ROUND = 8

# A communicator that a test has used is freed this many tests later.
_TESTS_BEFORE_FREE = 16
# At most this many communicators of failed tests stay allocated; MPICH has 2,048 in all.
_MOST_DIRTY = 512

_WORLD = "MPI.COMM_WORLD"


class Leftovers:
    """Communicators and messages that tests have left, until they cannot disturb other tests."""

    def __init__(self) -> None:
        self.unwanted: list[MPI.Message] = []
        """Messages that were taken from the queue; to free them they would have to be received."""
        self._to_free: deque[MPI.Intracomm] = deque()
        self._dirty: deque[MPI.Intracomm] = deque()

    def drain(self, communicator: MPI.Intracomm) -> bool:
        """Take messages that were never received from MPI's queue; returns whether there were any.

        They are not received: the sender's memory that a large one is in may be gone.
        """
        before = len(self.unwanted)
        while (message := take_message(communicator)) is not None:
            self.unwanted.append(message)
        return len(self.unwanted) > before

    def dispose(self, communicator: MPI.Intracomm, *, orderly: bool) -> None:
        """Take a communicator that a test has used; `orderly` says that the test has finished."""
        (self.free_later if orderly else self.quarantine)(communicator)

    def quarantine(self, communicator: MPI.Intracomm) -> None:
        """Keep a communicator allocated, so that its identity is not used again.

        Parts of a collective operation may be left over in it. They cannot be drained, and the
        next communicator with the same identity would receive them. Only if there are too many
        such communicators, the oldest is freed.
        """
        self._dirty.append(communicator)
        if len(self._dirty) > _MOST_DIRTY:
            self.free_later(self._dirty.popleft())

    def free_later(self, communicator: MPI.Intracomm) -> None:
        """Free a communicator some tests later.

        MPI gives the identity of a freed communicator to a new one, where another test would find
        a message that was never received. By then it has certainly arrived, and is drained.
        """
        self._to_free.append(communicator)
        if len(self._to_free) > _TESTS_BEFORE_FREE:
            oldest = self._to_free.popleft()
            # A test may have freed its communicator itself: then the handle is null.
            if oldest:
                self.drain(oldest)
                oldest.Free()


class RankGroup:
    """Ranks that run tests together, with a stock of communicators for their next tests.

    All of them take part in each of these tests, so their stocks are always equally large.
    """

    def __init__(self, private: MPI.Intracomm, world: WorldObject, leftovers: Leftovers) -> None:
        self.private = private
        self.for_fixtures: Substitute | None = None
        """MPI.COMM_WORLD when fixtures are torn down outside of the tests of these ranks."""
        self._world = world
        self._leftovers = leftovers
        self._stock: list[MPI.Intracomm] = []
        self._next_stock = 1
        self._round: list[Substitute] = []
        self._clean: list[Substitute] = []
        self._next_in_round = 0

    def take(self) -> MPI.Intracomm:
        """Return a communicator that no test has used; collective when the stock is empty."""
        if not self._stock:
            # MPI itself polls eagerly while it makes them, but not for long once all are here.
            wait_patiently(self.private.Ibarrier().Test)
            self._stock = [self.private.Dup() for _ in range(self._next_stock)]
            # Few at first: many groups of ranks run only one or two tests.
            self._next_stock = min(2 * self._next_stock, _LARGEST_STOCK)
        return self._stock.pop()

    def take_world(self) -> Substitute:
        """Return the substitute for MPI.COMM_WORLD in the next test; collective after each round.

        A new one for each test would take a good part of the time of a short test.
        """
        if self._next_in_round == len(self._round):
            self._begin_round()
        self._next_in_round += 1
        return self._round[self._next_in_round - 1]

    def _begin_round(self) -> None:
        """Begin a round of tests with the communicators of the round before the last.

        All ranks are here and have finished the last round. What was sent in it has arrived, and
        is drained now. Another rank may be ahead, but it cannot use these communicators before
        all ranks meet again: none of its messages is mistaken for one that was left over.
        """
        usable = bytearray(one.is_usable for one in self._round)
        if usable:
            _agree(self.private, usable)
        number = min(2 * len(self._round), _LARGEST_ROUND) or 1
        new = [self.make_substitute() for _ in range(number - len(self._clean))]
        last, self._round = self._round, self._clean + new
        self._clean = []
        for one, fine in zip(last, usable, strict=True):
            if fine:
                self._leftovers.drain(one.communicator)
                self._world.restore_settings(one)
                self._clean.append(one)
            elif one.exists:
                self._leftovers.quarantine(one.communicator)
        self._next_in_round = 0

    def make_substitute(self) -> Substitute:
        """Make a communicator that takes the place of MPI.COMM_WORLD; collective."""
        return self._world.make_substitute(self.private.Dup())

    def dissolve(self) -> None:
        """Free everything that no test has used."""
        for communicator in (*self._stock, self.private):
            communicator.Free()


class Communicators:
    """Makes a communicator for every test and frees it: their number never grows."""

    KEY: ClassVar[pytest.StashKey[Communicators]] = pytest.StashKey()
    latest: ClassVar[Communicators | None] = None
    """Those of the pytest session that this process is in."""

    @classmethod
    def of(cls, config: pytest.Config) -> Communicators:
        """Return those of a session; one without a world has them from now on."""
        if cls.KEY not in config.stash:
            config.stash[cls.KEY] = cls()
        return config.stash[cls.KEY]

    def __init__(self, world: MPI.Intracomm | None = None, *, spans_world: bool = False) -> None:
        """With `spans_world`, all ranks of the world run the test, as mpi-pytest starts them."""
        self._world = world
        self._spans_world = spans_world
        Communicators.latest = self
        self._object: WorldObject | None = None
        self._own: Substitute | None = None
        self._present: Substitute | None = None
        self.ranks: tuple[int, ...] = ()
        """The ranks of MPI.COMM_WORLD now, by their numbers in the world; empty: all."""
        self._kept: dict[tuple[int, ...], RankGroup] = {}
        self._group: RankGroup | None = None
        self._group_is_kept = False
        self.current: MPI.Intracomm | None = None
        """The communicator of the test, if it has asked for it."""
        self.leftovers = Leftovers()
        self.track: Callable[[Any], Any] = lambda communicator: communicator
        """Replaces a communicator by one that notes what is made of it (--leak-check)."""
        self._handlers: list[tuple[str, MPI.Comm, MPI.Errhandler]] = []

    @property
    def slot(self) -> tuple[int, int]:
        """This rank's number among the ranks of the test, and the number of these ranks."""
        private = None if self._group is None else self._group.private
        return (0, 1) if private is None else (private.rank, private.size)

    def open(self, ranks: Sequence[int], *, wanted: bool, keep: bool, alone: bool = False) -> None:
        """Prepare for a test on these ranks of the world; collective.

        MPI.COMM_WORLD is of these ranks until `close`. If the processes are for this test `alone`
        it is left as it is. With `keep` the ranks expect to meet again. If the communicator is
        `wanted`, it is made now: a fixture that fails on one rank cannot leave the others waiting.
        """
        key = tuple(ranks)
        # A test on one rank makes its communicator only when it asks for it.
        if len(key) == 1:
            if not alone:
                self._enter(key, self._own_world())
            return
        assert self._object is not None
        group = self._kept.get(key) or RankGroup(self._create(key), self._object, self.leftovers)
        self._group = group
        self._group_is_kept = keep
        if keep:
            self._kept[key] = group
        if not alone:
            self._enter(key, group.take_world())
            if keep and group.for_fixtures is None:
                group.for_fixtures = group.make_substitute()
        if wanted:
            self.current = self.track(group.take())

    def _create(self, ranks: tuple[int, ...]) -> MPI.Intracomm:
        assert self._world is not None, "a test on several ranks needs a world"
        group = self._world.Get_group()
        chosen = group.Incl(ranks)
        # Collective for the chosen ranks only: the others are busy with other tests.
        private = self._world.Create_group(chosen)
        chosen.Free()
        group.Free()
        return private

    def _enter(self, ranks: tuple[int, ...], one: Substitute | None) -> None:
        """Let MPI.COMM_WORLD have these ranks; None: the real one."""
        assert self._object is not None
        self.ranks, self._present = ranks, one
        self._object.point_at(one)

    def _own_world(self) -> Substitute:
        """Return the substitute for MPI.COMM_WORLD in tests on this rank alone."""
        assert self._world is not None
        assert self._object is not None
        own = self._own
        if own is not None and own.exists:
            # Disconnect would wait for messages that were taken out: so it is not used again.
            own.is_dirty = self.leftovers.drain(own.communicator) or own.is_dirty
            if own.is_dirty:
                self.leftovers.quarantine(own.communicator)
        if own is None or not own.is_usable:
            # Not a copy of MPI.COMM_SELF, which lacks attributes of the world with some MPIs.
            own = self._own = self._object.make_substitute(self._create((self._world.rank,)))
        else:
            self._object.restore_settings(own)
        return own

    @contextmanager
    def as_with(self, ranks: tuple[int, ...]) -> Iterator[None]:
        """Let MPI.COMM_WORLD have these ranks in a `with` block, as in their tests."""
        if self._object is None or ranks == self.ranks:
            yield
            return
        present = self.ranks, self._present
        self._enter(ranks, self._for_fixtures(ranks))
        try:
            yield
        finally:
            self._enter(*present)

    def _for_fixtures(self, ranks: tuple[int, ...]) -> Substitute | None:
        if not ranks:
            return None
        group = self._kept.get(ranks)
        if group is None or group.for_fixtures is None or not group.for_fixtures.exists:
            return self._own_world()
        return group.for_fixtures

    def for_test(self) -> MPI.Intracomm:
        """Return the communicator of the test; also one on one rank has its own."""
        if self.current is None:
            if self._group is not None:
                self.current = self.track(self._group.take())
            else:
                mpi = load_mpi()
                whole = mpi.COMM_WORLD if self._spans_world else mpi.COMM_SELF
                self.current = self.track(whole.Dup())
        return self.current

    @property
    def world_exists(self) -> bool:
        """Whether MPI.COMM_WORLD is valid: a test may have freed its substitute."""
        return self._present is None or self._present.exists

    def add_world(self, alias: MPI.Intracomm) -> None:
        """Let another object be the same as MPI.COMM_WORLD."""
        assert self._object is not None
        self._object.add(alias)

    def meet(self) -> None:
        """Wait until all ranks of the test are here."""
        if self._group is not None:
            wait_patiently(self._group.private.Ibarrier().Test)

    def changed_handlers(self) -> list[str]:
        """Restore the error handlers of the world; returns which were changed."""
        found = []
        for name, communicator, usual in self._handlers:
            # A communicator that was freed has no handler.
            if name == _WORLD and not self.world_exists:
                continue
            handler = communicator.Get_errhandler()
            if handler != usual:
                communicator.Set_errhandler(usual)
                found.append(f"another error handler on {name}")
        return found

    def all_agree(self, fine: bool) -> bool:
        """Return whether all ranks of the test are fine; collective."""
        if self._group is None:
            return fine
        answer = bytearray([fine])
        _agree(self._group.private, answer)
        return bool(answer[0])

    def renew(self) -> None:
        """Replace the communicators that a failed attempt has used."""
        if self._present is not None and self._group is not None:
            self._present.is_dirty = True
            self._enter(self.ranks, self._group.take_world())
        if self.current is not None:
            self.leftovers.quarantine(self.current)
            self.current = None
            self.for_test()

    def join(self, world: MPI.Intracomm) -> None:
        """Take the world of this process, once MPI is started."""
        self._world = world
        mpi = load_mpi()
        self._object = WorldObject(mpi)
        both = ((_WORLD, mpi.COMM_WORLD), ("MPI.COMM_SELF", mpi.COMM_SELF))
        self._handlers = [(name, one, one.Get_errhandler()) for name, one in both]

    def close(self, *, orderly: bool = True) -> None:
        """Dispose of what the test had; idempotent.

        If this rank has not finished the test in an `orderly` way, parts of a collective operation
        of the others may be left over: see `Leftovers.quarantine`.
        """
        self.changed_handlers()
        substitute, group = self._present, self._group
        is_over = group is not None and not self._group_is_kept
        if substitute is not None:
            self._enter((), None)
            substitute.is_dirty = not orderly
            if is_over and substitute.exists:
                self.leftovers.dispose(substitute.communicator, orderly=orderly)
        if self.current is not None:
            self.leftovers.dispose(self.current, orderly=orderly)
            self.current = None
        if group is not None and is_over:
            group.dissolve()
        self._group = None


def _agree(communicator: MPI.Intracomm, answers: bytearray) -> None:
    """Replace each answer by whether all ranks say so; collective."""
    from mpi4py import MPI

    # Not blocking: MPI would occupy the core while it waits.
    request = communicator.Iallreduce(MPI.IN_PLACE, [answers, MPI.BYTE], op=MPI.BAND)
    wait_patiently(request.Test)


def take_message(communicator: MPI.Intracomm, status: MPI.Status | None = None) -> Any:
    """Take a message that has arrived out of MPI's queue; None: there is none.

    Some MPIs fetch what has arrived only after they have looked, so this asks twice.
    """
    return communicator.Improbe(status=status) or communicator.Improbe(status=status)


def wait_patiently(is_done: Callable[[], bool]) -> None:
    """Wait for other ranks without keeping them from the core that they may need."""
    eager_until = _monotonic() + _EAGER_SECONDS
    while not is_done():
        if _monotonic() < eager_until:
            _yield()
        else:
            _sleep(_PATIENT_SECONDS)


def parallel_assert(
    assertion: bool | Callable[[], bool],
    msg: str = "",
    *,
    participating: bool = True,
    comm: MPI.Intracomm | None = None,
) -> None:
    """Assert something on every rank of `comm` (default: the communicator of the running test).

    Collective: if it fails on one rank it fails on all, so that none is left waiting in the next
    collective call. A rank that is not `participating` takes part without a condition.
    """
    __tracebackhide__ = True
    # mpi-pytest takes functions too, and a function that is not called is always true.
    holds = not participating or bool(assertion() if callable(assertion) else assertion)
    # Not `or`: a null communicator is false, and its error must show.
    if comm is None:
        latest = Communicators.latest
        comm = load_mpi().COMM_WORLD if latest is None else latest.for_test()
    results = comm.allgather(holds)
    failing = [rank for rank, fine in enumerate(results) if not fine]
    if failing:
        where = ", ".join(str(rank) for rank in failing)
        raise AssertionError(f"failed on rank{'s' * (len(failing) > 1)} {where}. {msg}".strip())
