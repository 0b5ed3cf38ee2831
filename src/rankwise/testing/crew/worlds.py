"""The worlds of a pool: which there are, who is in them, and which of them runs a test."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rankwise.launch.cores import cores_for
from rankwise.testing.blackbox import BoxFiles, OutputTail
from rankwise.testing.crew.hearsay import Hearsay, HearsayBox
from rankwise.testing.crew.member import CORES, WORLD, member_number
from rankwise.testing.hang import Stack, ask_for_stacks
from rankwise.testing.listing import ListedTest
from rankwise.testing.policy import Assignment, Case
from rankwise.testing.policy.contract import Venue
from rankwise.testing.wire import Header


@dataclass(slots=True, kw_only=True, eq=False)
class World:
    """An mpiexec and its ranks."""

    number: int
    size: int
    venue: Venue
    threads: int
    box_folder: Path
    started: float
    seats: tuple[int, ...] = ()
    ready: set[int] = field(default_factory=set)
    ended: dict[int, int | None] = field(default_factory=dict)
    """How ranks ended, by rank; None: not known."""
    gone: set[int] = field(default_factory=set)
    """Ranks whose processes have ended."""
    pids: dict[int, int] = field(default_factory=dict)
    nodes: dict[int, str] = field(default_factory=dict)
    """Where ranks are, if that is not here."""
    outputs: dict[int, OutputTail | HearsayBox] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    """Why ranks were ended, by those who ended them."""
    is_launched: bool = True
    """Whether what has started it is still there."""
    hearsay: Hearsay | None = None
    """What is said about its ranks; None: they are on this machine."""
    busy: bool = False
    leaving: bool = False
    """Whether it has been told to end."""
    conclude_at: float | None = None
    """When to say why it is lost; None: it is not."""
    latest_conclusion: float = 0.0
    """Until when to wait for how the rank ended that is to blame."""
    culprits: list[int] = field(default_factory=list)
    """Ranks that have ended by themselves, the first first."""
    suspects: list[int] = field(default_factory=list)
    """Ranks that have closed their lines."""

    @property
    def is_ready(self) -> bool:
        return len(self.ready) == self.size

    @property
    def members(self) -> tuple[int, ...]:
        return tuple(member_number(self.number, rank) for rank in range(self.size))

    def box(self, rank: int) -> BoxFiles | HearsayBox:
        if self.hearsay is not None:
            return self.hearsay.box(rank)
        return self.files(rank)

    def files(self, rank: int) -> BoxFiles:
        """Give the black box of a rank on this machine."""
        return BoxFiles(self.box_folder, f"{self.number}.{rank}")

    def stacks_of(self, ranks: Iterable[int]) -> dict[int, Stack]:
        """Give where ranks are, as far as they answer."""
        if self.hearsay is not None:
            return self.hearsay.stacks_of(self.number, list(ranks))
        return ask_for_stacks(
            {
                rank: (self.pids[rank], self.files(rank).stacks)
                for rank in ranks
                if rank in self.pids
            }
        )

    def forget(self) -> None:
        """Let go of its files."""
        for rank in range(self.size):
            self.box(rank).remove()
        for output in self.outputs.values():
            output.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """Which core each seat is; None: ranks are not bound."""

    cores: Sequence[int] | None
    set_threads: bool
    """Whether OMP_NUM_THREADS is ours to set."""


class Worlds:
    """Starts worlds as tests need them; the `Venues` of a dispatcher."""

    def __init__(
        self,
        spawn: Callable[[Header], None],
        *,
        width: int,
        folder: Path,
        doors: Mapping[str, str],
        binding: Binding,
    ) -> None:
        self._spawn = spawn
        self._width = width
        self._folder = folder
        self._doors = doors
        self._binding = binding
        self._tests: Sequence[ListedTest] = ()
        self._reserved: dict[tuple[int, ...], World] = {}
        self._next = 0
        self.alive: dict[int, World] = {}
        self.warm = True
        """Whether there is, or will be, a template to make ranks from."""
        self.hear: Callable[[], Hearsay] | None = None
        """Gives room for what is said about a world elsewhere; None: all are here."""
        self.not_before = 0.0
        """Until when no world is to be started."""
        self._steps: dict[int, int] = {}
        """How many seats those have whose ranks have yet to end."""

    def know(self, tests: Sequence[ListedTest]) -> None:
        """Learn what the tests need."""
        self._tests = tests

    def start(
        self, size: int, venue: Venue, *, threads: int = 1, seats: Sequence[int] = ()
    ) -> World:
        """Have a world started."""
        world = World(
            number=self._next,
            size=size,
            venue=venue,
            threads=threads,
            box_folder=self._folder,
            started=time.monotonic(),
            seats=tuple(seats),
            hearsay=self.hear() if self.hear is not None else None,
        )
        self._next += 1
        self.alive[world.number] = world
        if venue == "fresh" and self.hear is not None:
            self._steps[world.number] = size * threads
        environment = {WORLD: str(world.number)}
        if self._binding.cores is not None and seats:
            environment[CORES] = cores_for(seats, size, self._binding.cores)
        if self._binding.set_threads and threads > 1:
            environment["OMP_NUM_THREADS"] = str(threads)
        # Libraries read the number of threads when they are loaded: those of a template are.
        door = "warm" if threads == 1 and self.warm else "cold"
        self._spawn(
            {
                "kind": "spawn",
                "world": world.number,
                "size": size,
                "threads": threads,
                "venue": venue,
                "seats": list(seats),
                "door": self._doors[door],
                "environment": environment,
            }
        )
        return world

    def start_shared(self) -> World:
        """Have the world of all ranks started: rank and seat are the same there."""
        return self.start(self._width, "shared", seats=range(self._width))

    def remove(self, world: World) -> None:
        """Forget a world that is gone."""
        self.alive.pop(world.number, None)
        self._steps.pop(world.number, None)
        for cases in [cases for cases, one in self._reserved.items() if one is world]:
            del self._reserved[cases]
        world.forget()

    def shared(self) -> World | None:
        """Give the world of all ranks, if there is one that works."""
        for world in self.alive.values():
            if world.venue == "shared" and not world.leaving and world.conclude_at is None:
                return world
        return None

    # What a dispatcher asks

    def place(self, assignment: Assignment, first: Case) -> tuple[int, ...] | None:
        test = self._tests[first.index]
        if first.venue == "shared":
            shared = self.shared()
            if shared is None and self._has_room(self._width, "shared"):
                shared = self.start_shared()
            if shared is None or not shared.is_ready:
                return None
            return tuple(member_number(shared.number, seat) for seat in assignment.ranks)
        world = self._reserved.get(assignment.cases)
        if world is not None and world.conclude_at is not None:
            return None
        world = world or self._idle(first.venue, test, assignment.ranks)
        if world is None:
            if not self._has_room(test.size * test.threads, first.venue):
                return None
            seats = self._used(test, assignment.ranks)
            world = self.start(test.size, first.venue, threads=test.threads, seats=seats)
            self._reserved[assignment.cases] = world
        if not world.is_ready:
            return None
        self._reserved.pop(assignment.cases, None)
        world.busy = True
        return world.members

    def _has_room(self, count: int, venue: Venue) -> bool:
        """Tell whether so many ranks can be started now, and would not be kept waiting."""
        if time.monotonic() < self.not_before:
            return False
        taken = sum(self._steps.values())
        return venue != "fresh" or not taken or taken + count <= self._width

    def launcher_ended(self, number: int) -> None:
        """Learn that what has started a world has ended."""
        self._steps.pop(number, None)
        if number in self.alive:
            self.alive[number].is_launched = False

    def _idle(self, venue: Venue, test: ListedTest, seats: tuple[int, ...]) -> World | None:
        """Find a world that has nothing to do, for a test that may have one that was used."""
        reserved = self._reserved.values()
        for world in self.alive.values():
            if (
                (world.venue, world.size, world.threads) == (venue, test.size, test.threads)
                and world.is_ready
                and world not in reserved
                and not (world.busy or world.leaving or world.conclude_at is not None)
                and (self._binding.cores is None or world.seats == self._used(test, seats))
            ):
                return world
        return None

    def _used(self, test: ListedTest, seats: tuple[int, ...]) -> tuple[int, ...]:
        return seats[: test.size * test.threads]

    def vacate(self, members: tuple[int, ...]) -> None:
        for world in self.alive.values():
            if world.members == members:
                world.busy = False
                world.leaving = world.leaving or world.venue == "fresh"

    def everyone(self) -> Iterable[int]:
        return [
            member
            for world in self.alive.values()
            if world.is_ready and not world.leaving
            for member in world.members
        ]
