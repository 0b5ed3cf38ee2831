"""The worlds of a pool: which there are, who is in them, and which of them runs a test."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from rankwise.launch.cores import Core, cores_for
from rankwise.pytest_plugin.collection import ListedTest
from rankwise.pytest_plugin.connections import CORES, WORLD, Header, worker_number
from rankwise.pytest_plugin.rank_status import (
    AFTER,
    OutputTail,
    RemoteRank,
    RemoteStatus,
    StatusFiles,
    how_aborted,
)
from rankwise.pytest_plugin.schedulers.base import Assignment, ScheduledTest, WorldKind
from rankwise.pytest_plugin.schedulers.dispatcher import RunningTest
from rankwise.pytest_plugin.stacks import Stack, ask_for_stacks

# Worlds of exact size wait for the next test of their size, but not any number of them: so many
# ranks for each worker. Worlds that do not come to their end keep others from being started.
_IDLE_RANKS = 3
_FINISHING_RANKS = 2

# Other ranks of the test may be on their way out too, and what a rank said last may yet arrive.
_SETTLE_SECONDS = 0.05
# How long to wait for the exit status of a rank: its parent sends it, a moment after the rank has
# closed its connection or mpiexec has exited.
_STATUS_SECONDS = 3.0
# A rank that said goodbye has finished, even if nothing more was heard of it for so long after its
# mpiexec has exited: the process that would know how it exited is gone.
_FORGET_SECONDS = 30.0


class WorldState(Enum):
    """Where a world is between its start and its end."""

    STARTING = "starting"
    """Not all of its ranks are ready."""
    READY = "ready"
    """It can run tests."""
    FINISHING = "finishing"
    """It was told to finish, or was for one test that is over: its ranks exit by themselves."""
    LOST = "lost"
    """A rank exited unasked, or seems to have: `World.cause` says how that was noticed."""
    GONE = "gone"
    """All of its ranks have finished, or it was killed and reported."""


class WorldEvent(Enum):
    """What can happen to a world."""

    ALL_READY = "the last of its ranks is ready"
    FINISH = "it is told to finish, or its only test is over"
    INTERRUPT = "its ranks get Ctrl-C, and may exit in any way"
    RANK_FINISHED = "a rank has exited as it was told to"
    ALL_FINISHED = "all ranks have exited as they were told to"
    RANK_EXITED = "a rank has exited in any other way"
    RANK_DISCONNECTED = "a rank has closed its connection without a goodbye"
    MPIEXEC_EXITED = "its mpiexec has exited"
    STATUS_MISSING = "its mpiexec has exited, and a rank has not said goodbye in time"
    START_TIMEOUT = "it took too long to start"
    EXPLAINED = "what looked like an unasked exit was asked for"
    REMOVED = "it was killed, and its end has been reported"


def _transitions() -> dict[WorldState, dict[WorldEvent, WorldState]]:
    """Return what each event leads to in each state: every pair is there."""
    state, event = WorldState, WorldEvent
    unasked = dict.fromkeys(
        (
            *(event.RANK_EXITED, event.RANK_DISCONNECTED, event.MPIEXEC_EXITED),
            *(event.STATUS_MISSING, event.START_TIMEOUT),
        ),
        state.LOST,
    )
    told = {event.FINISH: state.FINISHING, event.INTERRUPT: state.FINISHING}
    # A rank that has not been told anything does not finish.
    too_soon = {event.RANK_FINISHED: state.LOST, event.ALL_FINISHED: state.LOST}
    # Its ranks' exits, and their goodbyes, may be told a moment later.
    late = {event.MPIEXEC_EXITED: state.FINISHING, event.START_TIMEOUT: state.FINISHING}
    changes: dict[WorldState, dict[WorldEvent, WorldState]] = {
        state.STARTING: unasked | told | too_soon | {event.ALL_READY: state.READY},
        # Ranks of a world for one test exit when they are done with it, one sooner than another.
        state.READY: unasked | told,
        state.FINISHING: unasked | late,
        state.LOST: dict.fromkeys((event.INTERRUPT, event.EXPLAINED), state.FINISHING),
        state.GONE: {},
    }
    always = dict.fromkeys((event.ALL_FINISHED, event.REMOVED), state.GONE)
    # Any other event leaves a world as it is.
    return {one: dict.fromkeys(event, one) | always | changes[one] for one in state}


TRANSITIONS = _transitions()


@dataclass(slots=True, kw_only=True, eq=False)
class World:
    """An mpiexec and its ranks."""

    number: int
    size: int
    world_kind: WorldKind
    threads: int
    status_folder: Path
    started: float
    slots: tuple[int, ...] = ()
    earlier_tries: int = 0
    """How many starts of worlds have failed in a row before this one."""
    state: WorldState = WorldState.STARTING
    """Changed by `on` only."""
    cause: WorldEvent | None = None
    """What has happened to a world that is lost."""
    check_at: float | None = None
    """When to look again at how it ended; None: nothing looks like its end."""
    check_until: float = 0.0
    """Until when to wait for the exit status of the rank that failed first."""
    ready: set[int] = field(default_factory=set)
    ended: dict[int, int | None] = field(default_factory=dict)
    """The exit status of ranks whose processes have exited; None: not known, or killed by us."""
    pids: dict[int, int] = field(default_factory=dict)
    nodes: dict[int, str] = field(default_factory=dict)
    """Where ranks are, if that is not here."""
    seats: dict[int, list[Core]] = field(default_factory=dict)
    """The cores that a batch system has left to ranks."""
    outputs: dict[int, OutputTail | RemoteRank] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    """Why ranks were ended, as the process says that has ended them."""
    launch_ended: float | None = None
    """When its mpiexec has exited; None: it has not."""
    remote: RemoteStatus | None = None
    """What is said about its ranks; None: they are on this machine."""
    busy: bool = False
    idle_since: float = 0.0
    told_to_finish: float | None = None
    """Since when its ranks are to exit by themselves; None: they are not."""
    is_interrupted: bool = False
    """Whether its ranks got Ctrl-C: then they may exit in any way."""
    goodbyes: set[int] = field(default_factory=set)
    """Ranks that have done all there is to do at their end."""
    last_tests: dict[int, int] = field(default_factory=dict)
    """The test that each rank has run last; in the order in which they ended."""
    failed_ranks: list[int] = field(default_factory=list)
    """Ranks that have exited by themselves and otherwise than told, the first first."""
    disconnected: list[int] = field(default_factory=list)
    """Ranks that have closed their connections without a goodbye."""

    # What happens to it

    def on(self, event: WorldEvent) -> None:
        """Go to the state that an event leads to."""
        before, self.state = self.state, TRANSITIONS[self.state][event]
        now = time.monotonic()
        if self.state is WorldState.LOST and before is not WorldState.LOST:
            self.cause = event
            if self.check_at is None:
                self.check_at = now
        elif self.state is WorldState.FINISHING and before is WorldState.LOST:
            self.cause = None
            self.check_at = None if self.is_launched else now + _STATUS_SECONDS
            self.check_until = 0.0
            self.failed_ranks.clear()
            self.disconnected.clear()

    def rank_ready(self, rank: int) -> None:
        """Learn that a rank can run tests."""
        self.ready.add(rank)
        if self.has_started:
            self.on(WorldEvent.ALL_READY)

    def finish(self) -> None:
        """Have its ranks exit by themselves from now on; idempotent."""
        if self.told_to_finish is None:
            self.told_to_finish = time.monotonic()
            self.on(WorldEvent.FINISH)
            self._go_if_finished()

    def interrupt(self) -> None:
        """Learn that its ranks got Ctrl-C."""
        self.is_interrupted = True
        self.finish()
        self.on(WorldEvent.INTERRUPT)
        self._go_if_finished()

    def rank_exited(self, rank: int, status: int | None) -> None:
        """Learn that a rank's process has exited; None: not by itself, or not known how."""
        self.ended[rank] = status
        if self.has_finished(rank):
            self.on(WorldEvent.RANK_FINISHED)
            self._go_if_finished()
            return
        # The order counts: the first one to fail is blamed, the others may only have followed.
        if status is not None and rank not in self.failed_ranks:
            self.failed_ranks.append(rank)
        if status is not None or self.state is not WorldState.LOST:
            self._lose(WorldEvent.RANK_EXITED, _SETTLE_SECONDS)

    def rank_disconnected(self, rank: int) -> None:
        """Learn that a rank has closed its connection: how it exited is told by its parent."""
        if rank not in self.ended and not self.has_finished(rank):
            self.disconnected.append(rank)
            self._lose(WorldEvent.RANK_DISCONNECTED, _STATUS_SECONDS)

    def mpiexec_exited(self) -> None:
        """Learn that its mpiexec has exited."""
        self.launch_ended = time.monotonic()
        is_told = self.told_to_finish is not None
        if is_told or not self.failed_ranks:
            self._lose(WorldEvent.MPIEXEC_EXITED, _STATUS_SECONDS if is_told else _SETTLE_SECONDS)

    def start_timed_out(self) -> None:
        """Learn that it took too long to start."""
        self._lose(WorldEvent.START_TIMEOUT, 0.0)

    def recheck(self, now: float) -> bool:
        """Return whether it is lost, now that there was time for all to be told."""
        # Its mpiexec has exited, and a rank of which nothing was heard did not say goodbye.
        if self.state is not WorldState.LOST and self.has_ended_badly:
            self._lose(WorldEvent.STATUS_MISSING, 0.0)
        elif self.told_to_finish is not None and not self.has_ended_badly:
            # Those whose exit is not known yet have said goodbye.
            self.on(WorldEvent.EXPLAINED)
            self.check_at = None if self.launch_ended is None else now + _STATUS_SECONDS
            if self.launch_ended is not None and now - self.launch_ended > _FORGET_SECONDS:
                self.on(WorldEvent.ALL_FINISHED)
        return self.state is WorldState.LOST

    def _lose(self, event: WorldEvent, patience: float) -> None:
        """Learn of an exit that was perhaps not asked for, and look again a moment later."""
        now = time.monotonic()
        due = now + patience
        self.check_at = due if self.check_at is None else min(due, self.check_at)
        self.check_until = self.check_until or now + _STATUS_SECONDS
        self.on(event)

    def _go_if_finished(self) -> None:
        if len(self.ended) == self.size and all(map(self.has_finished, range(self.size))):
            self.on(WorldEvent.ALL_FINISHED)

    def note_test(self, rank: int, case: int) -> None:
        """Learn that a rank has run a test."""
        self.last_tests.pop(rank, None)
        self.last_tests[rank] = case

    # What is known of it

    @property
    def is_launched(self) -> bool:
        """Whether its mpiexec is still there."""
        return self.launch_ended is None

    @property
    def has_started(self) -> bool:
        """Whether all of its ranks have been ready."""
        return len(self.ready) == self.size

    def has_finished(self, rank: int) -> bool:
        """Return whether a rank has exited, or is about to, as one does that was told to finish."""
        if self.is_interrupted:
            return True
        is_told = self.told_to_finish is not None
        # A rank of a world for one test need not be told: it exits when it has run that test.
        is_told = is_told or (self.world_kind == "fresh" and rank in self.last_tests)
        # No exit code yet is as good as 0: after its goodbye a rank does nothing that can fail.
        return is_told and rank in self.goodbyes and self.ended.get(rank, 0) == 0

    @property
    def has_ended_badly(self) -> bool:
        """Whether a rank has exited, or has lost its mpiexec, otherwise than by finishing."""
        return any(
            not self.has_finished(rank)
            for rank in range(self.size)
            if rank in self.ended or rank in self.disconnected or not self.is_launched
        )

    @property
    def workers(self) -> tuple[int, ...]:
        return tuple(worker_number(self.number, rank) for rank in range(self.size))

    def status_of(self, rank: int) -> StatusFiles | RemoteRank:
        if self.remote is not None:
            return self.remote.status_of(rank)
        return self.files(rank)

    def files(self, rank: int) -> StatusFiles:
        """Return the status files of a rank on this machine."""
        return StatusFiles(self.status_folder, f"{self.number}.{rank}")

    def stacks_of(self, ranks: Iterable[int]) -> dict[int, Stack]:
        """Return where ranks are, as far as they answer."""
        if self.remote is not None:
            return self.remote.stacks_of(self.number, list(ranks))
        known = [rank for rank in ranks if rank in self.pids]
        return ask_for_stacks({one: (self.pids[one], self.files(one).stacks) for one in known})

    def forget(self) -> None:
        """Let go of its files."""
        for rank in range(self.size):
            self.status_of(rank).remove()
        for output in self.outputs.values():
            output.close()


class Worlds:
    """Starts worlds as tests need them; the `WorldProvider` of a dispatcher."""

    def __init__(
        self,
        spawn: Callable[[Header], None],
        *,
        width: int,
        folder: Path,
        fork_sockets: Mapping[str, str],
        sets_threads: bool,
    ) -> None:
        self._spawn = spawn
        self._width = width
        self._folder = folder
        self._fork_sockets = fork_sockets
        self._cores: Sequence[Sequence[Core]] | None = None
        # Whether OMP_NUM_THREADS is ours to set.
        self._sets_threads = sets_threads
        self.keeps_slots = False
        """Whether a world is used again on its own slots only."""
        self._tests: Sequence[ListedTest] = ()
        self._reserved: dict[tuple[int, ...], World] = {}
        self._next = 0
        self.alive: dict[int, World] = {}
        self.warm = True
        """Whether there is, or will be, a template to make ranks from."""
        self.make_remote_status: Callable[[], RemoteStatus] | None = None
        """Returns room for the status of a world elsewhere; None: all are here."""
        self.dismiss: Callable[[World], None] = World.finish
        """Asks a world to finish."""
        self.bad_starts = 0
        """How many starts have failed in a row."""
        self.not_before = 0.0
        """Until when no world is to be started."""
        self._steps: dict[int, int] = {}
        """How many slots those have whose ranks have yet to end."""

    def bind(self, cores: Sequence[Sequence[Core]] | None) -> None:
        """Have the ranks of each slot stay on its cores; None: no longer."""
        self._cores = cores

    def cores_of(self, world: World) -> str:
        """Return the cores of each rank of a world, as `bind_to` reads them; empty: all."""
        if self._cores is None or not world.slots:
            return ""
        return cores_for(world.slots, world.size, self._cores)

    def know(self, tests: Sequence[ListedTest]) -> None:
        """Learn what the tests need."""
        self._tests = tests

    def start(
        self, size: int, world_kind: WorldKind, *, threads: int = 1, slots: Sequence[int] = ()
    ) -> World:
        """Have a world started."""
        world = World(
            number=self._next,
            size=size,
            world_kind=world_kind,
            threads=threads,
            status_folder=self._folder,
            started=time.monotonic(),
            slots=tuple(slots),
            earlier_tries=self.bad_starts,
            remote=self.make_remote_status() if self.make_remote_status is not None else None,
        )
        self._next += 1
        self.alive[world.number] = world
        if world_kind == "fresh" and self.make_remote_status is not None:
            self._steps[world.number] = size * threads
        environment = {WORLD: str(world.number)}
        if cores := self.cores_of(world):
            # mpiexec cannot bind to the cores of our choice on all MPIs: ranks do that themselves.
            environment[CORES] = cores
        if self._sets_threads and threads > 1:
            environment["OMP_NUM_THREADS"] = str(threads)
        # Libraries read the number of threads when they are loaded: those of a template are.
        fork_socket = "warm" if threads == 1 and self.warm else "cold"
        self._spawn(
            {
                "kind": "spawn",
                "world": world.number,
                "size": size,
                "threads": threads,
                "world_kind": world_kind,
                "slots": list(slots),
                "fork_socket": self._fork_sockets[fork_socket],
                "environment": environment,
            }
        )
        return world

    def start_shared(self) -> World:
        """Have the world of all ranks started: rank and slot are the same there."""
        return self.start(self._width, "shared", slots=range(self._width))

    def remove(self, world: World) -> None:
        """Forget a world that is gone, or is killed; idempotent."""
        world.on(WorldEvent.REMOVED)
        self.alive.pop(world.number, None)
        self._steps.pop(world.number, None)
        for cases in [cases for cases, one in self._reserved.items() if one is world]:
            del self._reserved[cases]
        world.forget()

    def shared(self) -> World | None:
        """Return the world of all ranks, if there is one that works."""
        working = (WorldState.STARTING, WorldState.READY)
        shared = (world for world in self.alive.values() if world.world_kind == "shared")
        return next((world for world in shared if world.state in working), None)

    def await_seats(self, step: Callable[[], None]) -> list[list[Core]]:
        """Return the cores of each rank of the shared world when they are there; [] without it."""
        while (world := self.shared()) is not None and len(world.seats) < world.size:
            step()
        return [world.seats[rank] for rank in range(world.size)] if world is not None else []

    # What a dispatcher asks

    def place(self, assignment: Assignment, first: ScheduledTest) -> tuple[int, ...] | None:
        test = self._tests[first.index]
        if first.world_kind == "shared":
            shared = self.shared()
            if shared is None and self._has_room(self._width, "shared"):
                shared = self.start_shared()
            if shared is None or shared.state is not WorldState.READY:
                return None
            return tuple(worker_number(shared.number, slot) for slot in assignment.ranks)
        # One that was started for these tests, when there was none for them.
        world = self._reserved.get(assignment.cases)
        if world is not None and world.state is WorldState.LOST:
            return None
        world = world or self._idle(first.world_kind, test, assignment.ranks)
        if world is None:
            if not self._has_room(test.size * test.threads, first.world_kind):
                return None
            self._dismiss_idle(test.size)
            slots = assignment.ranks[: test.size * test.threads]
            world = self.start(test.size, first.world_kind, threads=test.threads, slots=slots)
            self._reserved[assignment.cases] = world
        if world.state is not WorldState.READY:
            return None
        self._reserved.pop(assignment.cases, None)
        world.busy = True
        return world.workers

    def _has_room(self, count: int, world_kind: WorldKind) -> bool:
        """Return whether so many ranks can be started now, and would not be kept waiting."""
        if time.monotonic() < self.not_before:
            return False
        # MPI_Finalize of many ranks takes long; without a limit, short tests would fill the
        # machine.
        finishing = sum(
            one.size for one in self.alive.values() if one.state is WorldState.FINISHING
        )
        if self.make_remote_status is None and finishing > _FINISHING_RANKS * self._width:
            return False
        taken = sum(self._steps.values())
        return world_kind != "fresh" or not taken or taken + count <= self._width

    def launcher_ended(self, number: int) -> None:
        """Learn that what has started a world has ended."""
        self._steps.pop(number, None)
        if number in self.alive:
            self.alive[number].mpiexec_exited()

    def _idle(
        self, world_kind: WorldKind, test: ListedTest, slots: tuple[int, ...]
    ) -> World | None:
        """Find a world that has nothing to do, for a test that may have one that was used."""
        used = slots[: test.size * test.threads]
        for world in self._idle_worlds(world_kind):
            is_fit = (world.size, world.threads) == (test.size, test.threads)
            if is_fit and (world.slots == used or not self.keeps_slots):
                return world
        return None

    def _idle_worlds(self, world_kind: WorldKind) -> list[World]:
        """Return the worlds of a kind that could run a test at once."""
        reserved = self._reserved.values()
        return [
            world
            for world in self.alive.values()
            if world.world_kind == world_kind
            and world.state is WorldState.READY
            and world not in reserved
            and not world.busy
        ]

    def _dismiss_idle(self, count: int) -> None:
        """Let those go that have waited longest, if with so many more ranks there are too many."""
        idle = sorted(self._idle_worlds("exact"), key=lambda world: world.idle_since)
        count += sum(world.size for world in idle)
        while idle and count > _IDLE_RANKS * self._width:
            world = idle.pop(0)
            count -= world.size
            self.dismiss(world)

    def release_workers(self, workers: tuple[int, ...]) -> None:
        for world in self.alive.values():
            if world.workers == workers:
                world.busy = False
                world.idle_since = time.monotonic()
                if world.world_kind == "fresh":
                    world.finish()

    def workers(self) -> Iterable[int]:
        return [
            worker
            for world in self.alive.values()
            if world.state is WorldState.READY
            for worker in world.workers
        ]


def find_culprit(world: World) -> int | None:
    """Return the rank that ended by itself, before the others could follow it; None: not known."""
    first = world.failed_ranks[0] if world.failed_ranks else None
    if first is None or (world.ended.get(first) or 0) >= 0:
        # MPI_Abort ends all ranks with the same exit code, and not always this one first.
        for rank in (*world.failed_ranks, *world.outputs):
            if abort_of(world, rank):
                return rank
    if first is None and world.disconnected:
        return world.disconnected[0]
    return first


def is_explained(world: World, culprit: int | None) -> bool:
    """Return whether it is known how a world came to its end."""
    return culprit is not None and (
        culprit in world.reasons or world.ended.get(culprit) is not None
    )


def was_running(world: World, rank: int | None, running: RunningTest) -> bool:
    """Return whether a rank was running this test."""
    if rank is None or worker_number(world.number, rank) not in running.workers:
        return False
    moment = world.status_of(rank).read_status()
    if moment is None:
        return worker_number(world.number, rank) in running.at_it
    return moment.case == running.case and moment.phase not in AFTER


def abort_of(world: World, rank: int) -> str:
    """Return what a rank's MPI says that it has ended all ranks for; empty: nothing."""
    output = world.outputs[rank].read() if rank in world.outputs else {}
    return how_aborted(output.get("stderr", ""))
