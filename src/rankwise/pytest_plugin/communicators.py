"""Communicators of tests, an `MPI.COMM_WORLD` of their ranks, assertions of all of them."""

from __future__ import annotations

import copyreg
import ctypes
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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
        """Whether no test has freed it: that would be an error on the real one."""
        self.is_spoilt = False
        """Whether parts of collective operations may be left over in it."""

    @property
    def is_usable(self) -> bool:
        """Whether another test may have it."""
        return self.exists and not self.is_spoilt


class WorldObject:
    """The object MPI.COMM_WORLD of this process, which is pointed at one communicator or another.

    What is ours must not use the object where it means the world: `real` always is.
    """

    def __init__(self, mpi: Any) -> None:
        self.real: MPI.Intracomm = mpi.Intracomm(mpi.COMM_WORLD)
        self._mpi = mpi
        self._handler = self.real.Get_errhandler()
        self._length = mpi._sizeof(mpi.Comm)
        self._objects = [mpi.COMM_WORLD]
        self._addresses = [mpi._addressof(mpi.COMM_WORLD)]
        # MPI calls this whoever frees the communicator, and no handle says that it is stale.
        self._mark = mpi.Comm.Create_keyval(delete_fn=_note_end)
        _pickle_by_name(mpi)

    def add(self, alias: MPI.Intracomm) -> None:
        """Take care of another object that stands for MPI.COMM_WORLD in this process."""
        self._objects.append(alias)
        self._addresses.append(self._mpi._addressof(alias))

    def make_substitute(self, communicator: MPI.Intracomm) -> Substitute:
        """Let a communicator that is used for nothing else take the place of the world."""
        made = Substitute(communicator)
        communicator.Set_attr(self._mark, made)
        self.restore_settings(made)
        return made

    def restore_settings(self, one: Substitute) -> None:
        """Give it the name and the error handler of the world; local."""
        one.communicator.Set_name(_NAME)
        one.communicator.Set_errhandler(self._handler)

    def point_at(self, one: Substitute | None) -> None:
        """Make it what MPI.COMM_WORLD is; None: the world."""
        source = self._mpi._addressof(one.communicator if one is not None else self.real)
        for address in self._addresses:
            ctypes.memmove(address, source, self._length)


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


# Own references: a test may have put something else in their place, and this runs in its middle.
_monotonic, _sleep, _yield = time.monotonic, time.sleep, os.sched_yield

# A rank looks for its peers eagerly for this long, then it sleeps between looks.
_EAGER_SECONDS = 0.001
_PATIENT_SECONDS = 0.0005

# Communicators are made some at a time: ranks that make one have to wait for each other.
_LARGEST_STOCK = 16

# So many tests in a row have a COMM_WORLD each; then the ranks meet.
_LARGEST_ROUND = 8

# So many tests later a communicator that a test has used is freed.
_RESTING = 16
# So many communicators of failed tests are never used again; MPICH has 2,048 in all.
_MOST_SPOILT = 512

_WORLD = "MPI.COMM_WORLD"


class Remains:
    """Communicators and messages that tests have left, until they can do no harm."""

    def __init__(self) -> None:
        self.unwanted: list[MPI.Message] = []
        """Messages that were thrown away: to free them would be to receive them."""
        self._resting: deque[MPI.Intracomm] = deque()
        self._spoilt: deque[MPI.Intracomm] = deque()

    def drain(self, communicator: MPI.Intracomm) -> bool:
        """Take messages that nobody has received out of MPI's queue; tell whether there were any.

        They are not received: the memory that a large one would be fetched from may be gone.
        """
        before = len(self.unwanted)
        while (message := take_message(communicator)) is not None:
            self.unwanted.append(message)
        return len(self.unwanted) > before

    def put_away(self, communicator: MPI.Intracomm, *, orderly: bool) -> None:
        """Take a communicator that its test has used, and left in an `orderly` way or not."""
        if orderly:
            self.put_to_rest(communicator)
        else:
            self.spoil(communicator)

    def spoil(self, communicator: MPI.Intracomm) -> None:
        """Use a communicator never again, but for its identity when there are too many of these.

        Parts of a collective operation may be left over in it. They cannot be drained, and the
        next communicator with the same identity would receive them: so it is not freed at all.
        """
        self._spoilt.append(communicator)
        if len(self._spoilt) > _MOST_SPOILT:
            self.put_to_rest(self._spoilt.popleft())

    def put_to_rest(self, communicator: MPI.Intracomm) -> None:
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
                self.drain(oldest)
                oldest.Free()


class Circle:
    """Ranks that run tests together, with a stock of communicators for their next tests.

    All of them come to every test of theirs, so their stocks are always equally large.
    """

    def __init__(self, private: MPI.Intracomm, world: WorldObject, remains: Remains) -> None:
        self.private = private
        self.for_fixtures: Substitute | None = None
        """MPI.COMM_WORLD when fixtures are torn down outside of the tests of these ranks."""
        self._world = world
        self._remains = remains
        self._stock: list[MPI.Intracomm] = []
        self._next_stock = 1
        self._round: list[Substitute] = []
        self._rested: list[Substitute] = []
        self._next_in_round = 0

    def take(self) -> MPI.Intracomm:
        """Return a communicator that no test has used; collective when the stock is empty."""
        if not self._stock:
            # MPI waits eagerly while it makes them: that is short once all are here.
            wait_patiently(self.private.Ibarrier().Test)
            self._stock = [self.private.Dup() for _ in range(self._next_stock)]
            self._next_stock = min(2 * self._next_stock, _LARGEST_STOCK)
        return self._stock.pop()

    def take_world(self) -> Substitute:
        """Return what MPI.COMM_WORLD is in the next test; collective at the end of a round.

        To make a new one for each test would take a good part of a short test's time.
        """
        if self._next_in_round == len(self._round):
            self._begin_round()
        self._next_in_round += 1
        return self._round[self._next_in_round - 1]

    def _begin_round(self) -> None:
        """Let the tests to come use what those of the round before the last have used.

        All ranks are here, and have done with the last round. What was sent in it has arrived, and
        is thrown away now. Another rank may be ahead, but it cannot use these communicators
        before all ranks have met again: none of its messages is taken for one that was left over.
        """
        usable = bytearray(one.is_usable for one in self._round)
        if usable:
            _agree(self.private, usable)
        number = min(2 * len(self._round), _LARGEST_ROUND) or 1
        new = [self.make_substitute() for _ in range(number - len(self._rested))]
        last, self._round = self._round, self._rested + new
        self._rested = []
        for one, fine in zip(last, usable, strict=True):
            if fine:
                self._remains.drain(one.communicator)
                self._world.restore_settings(one)
                self._rested.append(one)
            elif one.exists:
                self._remains.spoil(one.communicator)
        self._next_in_round = 0

    def make_substitute(self) -> Substitute:
        """Make a communicator for the place of MPI.COMM_WORLD; collective."""
        return self._world.make_substitute(self.private.Dup())

    def dissolve(self) -> None:
        """Free everything that no test has used."""
        for communicator in (*self._stock, self.private):
            communicator.Free()


class Communicators:
    """Gives every test its own and frees it: their number never grows, however many tests run."""

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
        """Know the world; with `spans_world`, all its ranks run each test, without our doing."""
        self._world = world
        self._spans_world = spans_world
        Communicators.latest = self
        self._object: WorldObject | None = None
        self._own: Substitute | None = None
        self._present: Substitute | None = None
        self.ranks: tuple[int, ...] = ()
        """Those that MPI.COMM_WORLD has now, by their numbers in the world; empty: it is real."""
        self._kept: dict[tuple[int, ...], Circle] = {}
        self._circle: Circle | None = None
        self._circle_is_kept = False
        self._for_test: MPI.Intracomm | None = None
        self.remains = Remains()
        self.track: Callable[[Any], Any] | None = None
        """Looks after the communicators that tests get, if somebody wants to know."""
        self._handlers: list[tuple[str, MPI.Comm, MPI.Errhandler]] = []

    @property
    def slot(self) -> tuple[int, int]:
        """This rank's number among the ranks of the test, and how many they are."""
        if self._circle is None:
            return 0, 1
        return self._circle.private.rank, self._circle.private.size

    def open(self, ranks: Sequence[int], *, wanted: bool, keep: bool, alone: bool = False) -> None:
        """Prepare for a test on these ranks of the world; they all come here.

        MPI.COMM_WORLD is of these ranks until `close`. If the processes are for this test `alone`
        it is left as it is.

        It is before the test's setup, so that a fixture that fails on one of the ranks cannot
        leave the others waiting for a communicator. With `keep` the ranks expect to meet again.
        """
        key = tuple(ranks)
        if len(key) == 1:
            if not alone:
                self._enter(key, self._own_world())
            return
        assert self._object is not None
        self._circle = self._kept.get(key) or Circle(self._create(key), self._object, self.remains)
        self._circle_is_kept = keep
        if keep:
            self._kept[key] = self._circle
        if not alone:
            self._enter(key, self._circle.take_world())
            if keep and self._circle.for_fixtures is None:
                self._circle.for_fixtures = self._circle.make_substitute()
        if wanted:
            self._for_test = self._tracked(self._circle.take())

    def _create(self, ranks: tuple[int, ...]) -> MPI.Intracomm:
        assert self._world is not None, "a test on several ranks needs a world"
        group = self._world.Get_group()
        chosen = group.Incl(ranks)
        private = self._world.Create_group(chosen)
        chosen.Free()
        group.Free()
        return private

    def _enter(self, ranks: tuple[int, ...], one: Substitute | None) -> None:
        """Let MPI.COMM_WORLD be of these ranks; None: real."""
        assert self._object is not None
        self.ranks, self._present = ranks, one
        self._object.point_at(one)

    def _own_world(self) -> Substitute:
        """Return what MPI.COMM_WORLD is in tests on this rank alone."""
        assert self._world is not None
        assert self._object is not None
        own = self._own
        if own is not None and own.exists:
            # A communicator waits for what was taken out of it when it is disconnected.
            own.is_spoilt = self.remains.drain(own.communicator) or own.is_spoilt
            if own.is_spoilt:
                self.remains.spoil(own.communicator)
        if own is None or not own.is_usable:
            # Not of MPI.COMM_SELF, which lacks attributes of the world with some MPIs.
            own = self._own = self._object.make_substitute(self._create((self._world.rank,)))
        else:
            self._object.restore_settings(own)
        return own

    @contextmanager
    def as_with(self, ranks: tuple[int, ...]) -> Iterator[None]:
        """Let MPI.COMM_WORLD be for a while as it was when it had these ranks."""
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
        circle = self._kept.get(ranks)
        if circle is None or circle.for_fixtures is None or not circle.for_fixtures.exists:
            return self._own_world()
        return circle.for_fixtures

    def for_test(self) -> MPI.Intracomm:
        """Return the test's communicator; a test on one rank has one of its own too."""
        if self._for_test is None:
            if self._circle is not None:
                self._for_test = self._tracked(self._circle.take())
            else:
                mpi = load_mpi()
                whole = mpi.COMM_WORLD if self._spans_world else mpi.COMM_SELF
                self._for_test = self._tracked(whole.Dup())
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

    @property
    def world_exists(self) -> bool:
        """Whether MPI.COMM_WORLD is there: a test may have freed what it was for that test."""
        return self._present is None or self._present.exists

    def add_world(self, alias: MPI.Intracomm) -> None:
        """Let another object be the same as MPI.COMM_WORLD."""
        assert self._object is not None
        self._object.add(alias)

    def meet(self) -> None:
        """Wait until all ranks of the test are here."""
        if self._circle is not None:
            wait_patiently(self._circle.private.Ibarrier().Test)

    def changed_handlers(self) -> list[str]:
        """Set error handlers of the world back to what they were; say which were others."""
        found = []
        for name, communicator, usual in self._handlers:
            if name == _WORLD and not self.world_exists:
                continue
            handler = communicator.Get_errhandler()
            if handler != usual:
                communicator.Set_errhandler(usual)
                found.append(f"another error handler on {name}")
        return found

    def all_agree(self, fine: bool) -> bool:
        """Return whether all ranks of the test say that they are fine; they all come here."""
        if self._circle is None:
            return fine
        answer = bytearray([fine])
        _agree(self._circle.private, answer)
        return bool(answer[0])

    def renew(self) -> None:
        """Put untouched communicators in the place of those that a failed attempt has used."""
        if self._present is not None and self._circle is not None:
            self._present.is_spoilt = True
            self._enter(self.ranks, self._circle.take_world())
        if self._for_test is not None:
            self.remains.spoil(self._for_test)
            self._for_test = None
            self.for_test()

    def join(self, world: MPI.Intracomm) -> None:
        """Learn of the ranks around this one, which were not there before."""
        self._world = world
        mpi = load_mpi()
        self._object = WorldObject(mpi)
        both = ((_WORLD, mpi.COMM_WORLD), ("MPI.COMM_SELF", mpi.COMM_SELF))
        self._handlers = [(name, one, one.Get_errhandler()) for name, one in both]

    def close(self, *, orderly: bool = True) -> None:
        """Put away what the test had; idempotent.

        If this rank did not get to the test's end in an `orderly` way, what the others sent it in
        a collective operation may be left over. That cannot be drained, and the next communicator
        with the same identity would receive it: so this one is not freed at all.
        """
        self.changed_handlers()
        if self._present is not None:
            self._leave_world(self._present, orderly=orderly)
        if self._for_test is not None:
            self.remains.put_away(self._for_test, orderly=orderly)
            self._for_test = None
        if self._circle is not None and not self._circle_is_kept:
            self._circle.dissolve()
        self._circle = None

    def _leave_world(self, one: Substitute, *, orderly: bool) -> None:
        """Let MPI.COMM_WORLD be real again."""
        self._enter((), None)
        one.is_spoilt = not orderly
        if self._circle is not None and not self._circle_is_kept and one.exists:
            # Its circle will not come back to it.
            self.remains.put_away(one.communicator, orderly=orderly)


def _agree(communicator: MPI.Intracomm, answers: bytearray) -> None:
    """Turn each answer into whether all ranks say so; collective."""
    from mpi4py import MPI

    request = communicator.Iallreduce(MPI.IN_PLACE, [answers, MPI.BYTE], op=MPI.BAND)
    wait_patiently(request.Test)


def take_message(communicator: MPI.Intracomm, status: MPI.Status | None = None) -> Any:
    """Take a message that has arrived out of MPI's queue; None: there is none.

    Some MPIs look first and fetch what has arrived afterwards, so they are asked twice.
    """
    return communicator.Improbe(status=status) or communicator.Improbe(status=status)


def wait_patiently(is_done: Callable[[], bool]) -> None:
    """Wait for peers without taking the core from one that may need it to get here."""
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
    """Assert on every rank of `comm` (of the running test by default) what must hold on each.

    Collective: if it fails on one rank it fails on all, so that none is left waiting in the next
    collective call. A rank that is not `participating` only listens.
    """
    __tracebackhide__ = True
    # mpi-pytest takes functions too; a function that is not called would always be true.
    holds = not participating or bool(assertion() if callable(assertion) else assertion)
    # Not `or`: a null communicator is false, and nothing to be replaced by another one.
    results = (_comm_of_test() if comm is None else comm).allgather(holds)
    failing = [rank for rank, fine in enumerate(results) if not fine]
    if failing:
        where = ", ".join(str(rank) for rank in failing)
        raise AssertionError(f"failed on rank{'s' * (len(failing) > 1)} {where}. {msg}".strip())


def _comm_of_test() -> MPI.Intracomm:
    if Communicators.latest is not None:
        return Communicators.latest.for_test()
    from mpi4py import MPI

    return MPI.COMM_WORLD
