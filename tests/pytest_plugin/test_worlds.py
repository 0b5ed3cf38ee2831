"""The worlds of a pool, without processes: which are asked for, and which of them run a test."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from rankwise.launch.cores import Core
from rankwise.pytest_plugin.collection import ListedTest, make_cases
from rankwise.pytest_plugin.connections import CORES, WORLD, Header, worker_number
from rankwise.pytest_plugin.rank_status import OutputTail
from rankwise.pytest_plugin.schedulers.base import Assignment, Pace, ScheduledTest, WorldKind
from rankwise.pytest_plugin.schedulers.dynamic import Dynamic
from rankwise.pytest_plugin.schedulers.sequential import Sequential
from rankwise.pytest_plugin.workers.worlds import (
    TRANSITIONS,
    World,
    WorldEvent,
    Worlds,
    WorldState,
    find_culprit,
)


def cores(first: int) -> list[list[Core]]:
    return [[Core(number, number, 0, 0, 0)] for number in range(first, first + 8)]


def listed(size: int, threads: int = 1, **options: Any) -> ListedTest:
    return ListedTest(
        nodeid=f"test_{size}",
        name=f"test_{size}",
        path=Path("test_it.py"),
        location=("test_it.py", 0, "test_it"),
        keywords={},
        size=size,
        limit=0.0,
        threads=threads,
        groups=(),
        session=cast(Any, None),
        ihook=cast(Any, None),
        **{"world": False, "exclusive": None, **options},
    )


class Place:
    """The worlds of a run of 8 slots, and the orders to start some."""

    def __init__(
        self,
        folder: Path,
        *tests: ListedTest,
        width: int = 8,
        bound_from: int | None = None,
        sets_threads: bool = False,
    ) -> None:
        self.spawned: list[Header] = []
        self.worlds = Worlds(
            self.spawned.append,
            width=width,
            folder=folder,
            fork_sockets={"warm": "/warm", "cold": "/cold"},
            sets_threads=sets_threads,
        )
        if bound_from is not None:
            self.worlds.bind(cores(bound_from))
        self._tests = tests
        self.worlds.know(tests)

    def ask(
        self, index: int, slots: Sequence[int], world_kind: WorldKind = "exact"
    ) -> tuple[int, ...] | None:
        """Ask for the workers that are to run a test."""
        first = ScheduledTest(index=index, size=len(slots), world_kind=world_kind)
        return self.worlds.place(Assignment(cases=(index,), ranks=tuple(slots)), first)

    def get_ready(self, number: int) -> World:
        world = self.worlds.alive[number]
        for rank in range(world.size):
            world.rank_ready(rank)
        return world


def workers(world: int, *ranks: int) -> tuple[int, ...]:
    return tuple(worker_number(world, rank) for rank in ranks)


# The shared world


def test_the_shared_world_has_all_ranks_and_is_started_once(tmp_path: Path) -> None:
    place = Place(tmp_path, listed(2), listed(1))
    assert place.ask(0, (0, 1), "shared") is None
    assert place.ask(1, (2,), "shared") is None
    assert place.spawned == [
        {
            "kind": "spawn",
            "world": 0,
            "size": 8,
            "threads": 1,
            "world_kind": "shared",
            "slots": list(range(8)),
            "fork_socket": "/warm",
            "environment": {WORLD: "0"},
        }
    ]
    place.get_ready(0)
    assert place.ask(0, (0, 1), "shared") == workers(0, 0, 1)
    assert place.ask(1, (5,), "shared") == workers(0, 5)


def test_a_world_is_ready_when_all_of_its_ranks_are(tmp_path: Path) -> None:
    place = Place(tmp_path, listed(1))
    place.ask(0, (0,), "shared")
    world = place.worlds.alive[0]
    for rank in range(7):
        world.rank_ready(rank)
    assert place.ask(0, (0,), "shared") is None
    world.rank_ready(7)
    assert place.ask(0, (0,), "shared") == workers(0, 0)


@pytest.mark.parametrize("trouble", ["leaving", "failing"])
def test_a_shared_world_that_does_not_work_is_replaced(tmp_path: Path, trouble: str) -> None:
    place = Place(tmp_path, listed(1))
    place.ask(0, (0,), "shared")
    broken = place.get_ready(0)
    if trouble == "leaving":
        broken.finish()
    else:
        broken.rank_exited(0, 1)
    assert place.worlds.shared() is None
    assert place.ask(0, (0,), "shared") is None
    assert len(place.spawned) == 2
    place.get_ready(1)
    assert place.ask(0, (0,), "shared") == workers(1, 0)


def test_numbers_of_worlds_are_not_used_again(tmp_path: Path) -> None:
    place = Place(tmp_path, listed(1))
    for number in range(3):
        place.ask(0, (0,), "shared")
        place.worlds.remove(place.worlds.alive[number])
    assert [header["world"] for header in place.spawned] == [0, 1, 2]


# Worlds of exactly one size


def test_a_test_waits_for_the_world_that_was_started_for_it(tmp_path: Path) -> None:
    place = Place(tmp_path, listed(2), listed(2))
    assert place.ask(0, (0, 1)) is None
    assert place.ask(0, (0, 1)) is None
    assert place.ask(1, (2, 3)) is None
    assert [header["size"] for header in place.spawned] == [2, 2], "one for each"
    place.get_ready(1)
    assert place.ask(0, (0, 1)) is None, "that one is the other's"
    assert place.ask(1, (2, 3)) == workers(1, 0, 1)
    place.get_ready(0)
    assert place.ask(0, (0, 1)) == workers(0, 0, 1)


def test_a_world_that_has_been_used_is_used_again(tmp_path: Path) -> None:
    place = Place(tmp_path, listed(2), listed(2))
    place.ask(0, (0, 1))
    place.get_ready(0)
    assert place.ask(0, (0, 1)) == workers(0, 0, 1)
    assert place.ask(1, (2, 3)) is None, "it is busy"
    place.worlds.release_workers(workers(0, 0, 1))
    place.worlds.remove(place.worlds.alive[1])
    assert place.ask(1, (2, 3)) == workers(0, 0, 1)


@pytest.mark.parametrize("trouble", ["leaving", "failing", "another size", "more threads"])
def test_a_world_that_does_not_fit_is_not_used_again(tmp_path: Path, trouble: str) -> None:
    second = {"another size": listed(3), "more threads": listed(2, threads=2)}
    place = Place(tmp_path, listed(2), second.get(trouble, listed(2)))
    place.ask(0, (0, 1))
    world = place.get_ready(0)
    place.ask(0, (0, 1))
    place.worlds.release_workers(world.workers)
    if trouble == "leaving":
        world.finish()
    elif trouble == "failing":
        world.rank_exited(0, 1)
    assert place.ask(1, (0, 1, 2, 3)) is None
    assert len(place.spawned) == 2


def test_a_fresh_world_is_used_once_and_then_it_is_to_leave(tmp_path: Path) -> None:
    place = Place(tmp_path, listed(1), listed(1))
    place.ask(0, (0,), "fresh")
    world = place.get_ready(0)
    assert place.ask(0, (0,), "fresh") == workers(0, 0)
    place.worlds.release_workers(world.workers)
    assert world.state is WorldState.FINISHING
    assert place.ask(1, (0,), "fresh") is None
    assert len(place.spawned) == 2


def test_when_a_world_is_gone_another_one_is_started_for_its_test(tmp_path: Path) -> None:
    place = Place(tmp_path, listed(2))
    place.ask(0, (0, 1))
    place.worlds.remove(place.worlds.alive[0])
    assert place.ask(0, (0, 1)) is None
    assert len(place.spawned) == 2
    place.get_ready(1)
    assert place.ask(0, (0, 1)) == workers(1, 0, 1)


def test_a_world_that_fails_before_all_are_ready_does_not_get_its_test(tmp_path: Path) -> None:
    """One rank has died, and then the last of the others says that it is ready."""
    place = Place(tmp_path, listed(2))
    place.ask(0, (0, 1))
    world = place.worlds.alive[0]
    world.rank_ready(0)
    world.rank_exited(0, 1)
    world.rank_ready(1)
    assert place.ask(0, (0, 1)) != world.workers


# Cores, threads and fork_sockets


def test_ranks_are_bound_to_the_cores_of_their_seats(tmp_path: Path) -> None:
    place = Place(tmp_path, listed(2, threads=2), bound_from=10, sets_threads=True)
    place.ask(0, (2, 3, 6, 7))
    (header,) = place.spawned
    assert header["size"] == 2
    assert header["environment"] == {WORLD: "0", CORES: "12,13;16,17", "OMP_NUM_THREADS": "2"}


def test_of_a_whole_domain_a_test_uses_as_many_seats_as_it_needs(tmp_path: Path) -> None:
    """It is exclusive: it has been given all of them."""
    place = Place(tmp_path, listed(2), bound_from=0, sets_threads=True)
    place.ask(0, (4, 5, 6, 7))
    assert place.spawned[0]["environment"][CORES] == "4;5"


def test_a_bound_world_is_used_again_on_its_own_cores_only(tmp_path: Path) -> None:
    place = Place(tmp_path, listed(2), listed(2), bound_from=0)
    place.worlds.keeps_slots = True
    place.ask(0, (0, 1))
    world = place.get_ready(0)
    place.ask(0, (0, 1))
    place.worlds.release_workers(world.workers)
    assert place.ask(1, (2, 3)) is None
    place.worlds.remove(place.worlds.alive[1])
    assert place.ask(1, (0, 1)) == world.workers


def test_the_number_of_threads_is_left_alone_where_it_is_not_ours_to_set(tmp_path: Path) -> None:
    place = Place(tmp_path, listed(1, threads=2))
    place.ask(0, (0, 1))
    assert place.spawned[0]["environment"] == {WORLD: "0"}


def test_the_cores_that_ranks_of_the_shared_world_have_are_waited_for(tmp_path: Path) -> None:
    place = Place(tmp_path, listed(2))
    assert place.worlds.await_seats(lambda: pytest.fail("there is nothing to wait for")) == []
    world = place.worlds.start_shared()
    said = dict(enumerate(cores(20)))

    def step() -> None:
        rank, seat = said.popitem()
        world.seats[rank] = seat

    assert place.worlds.await_seats(step) == cores(20)
    assert place.worlds.await_seats(step) == cores(20)


def test_a_world_that_is_lost_is_not_waited_for(tmp_path: Path) -> None:
    place = Place(tmp_path, listed(2))
    world = place.worlds.start_shared()
    assert place.worlds.await_seats(lambda: world.rank_exited(0, 1)) == []


def test_ranks_with_threads_are_not_made_from_a_template(tmp_path: Path) -> None:
    """Libraries that are loaded have read how many threads they may have."""
    place = Place(tmp_path, listed(1, threads=2), listed(1))
    place.ask(0, (0, 1))
    place.ask(1, (2,))
    assert [header["fork_socket"] for header in place.spawned] == ["/cold", "/warm"]


def test_without_a_template_every_rank_comes_through_the_other_door(tmp_path: Path) -> None:
    place = Place(tmp_path, listed(1))
    place.worlds.warm = False
    place.ask(0, (0,))
    assert place.spawned[0]["fork_socket"] == "/cold"


# All of them


def test_all_workers_are_those_of_worlds_that_were_not_told_to_end(tmp_path: Path) -> None:
    place = Place(tmp_path, listed(1), listed(2), listed(1), width=2)
    place.ask(0, (0,), "shared")
    place.ask(1, (0, 1))
    place.ask(2, (0,))
    place.get_ready(0)
    place.get_ready(2).finish()
    assert list(place.worlds.workers()) == [*workers(0, 0, 1)]
    place.get_ready(1)
    assert list(place.worlds.workers()) == [*workers(0, 0, 1), *workers(1, 0, 1)]


def test_a_world_that_is_gone_leaves_no_files_behind(tmp_path: Path) -> None:
    place = Place(tmp_path, listed(2))
    world = place.worlds.start(2, "exact")
    number = os.memfd_create("out")
    os.write(number, b"text")
    world.outputs[0] = OutputTail(os.getpid(), {"stdout": number})
    os.close(number)
    for rank in range(2):
        world.files(rank).moment.touch()
        world.files(rank).crash.touch()
    assert len(list(tmp_path.iterdir())) == 4
    place.worlds.remove(world)
    place.worlds.remove(world)
    assert list(tmp_path.iterdir()) == []
    assert world.outputs[0].read() == {}
    assert place.worlds.alive == {}


# Rows


@pytest.mark.parametrize("policy", ["dynamic", "sequential"])
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (listed(2, threads=2), listed(4, world=True)),
        (listed(2, exclusive="node"), listed(3, exclusive="node")),
        (listed(2, world=True), listed(2, exclusive="numa")),
    ],
    ids=["threads", "node", "numa"],
)
def test_only_tests_that_need_equal_worlds_and_seats_travel_together(
    policy: str, one: ListedTest, other: ListedTest
) -> None:
    """The world and the slots of a batch are those that its first test needs."""
    tests = [one, other] * 32
    known = {one.nodeid: 0.001, other.nodeid: 0.001}
    aligned = policy == "dynamic"
    cases = make_cases(tests, known, 4, fresh=False, every_world=False, aligned=aligned)
    if policy == "sequential":
        driven: Sequential | Dynamic = Sequential(cases, Pace())
    else:
        driven = Dynamic(cases, 4, Pace())
    driven.release((0, 1, 2, 3))
    while (assignment := driven.take()) is not None:
        batch = [tests[index] for index in assignment.cases]
        assert len({(test.size, test.threads, test.exclusive) for test in batch}) == 1
        driven.release(assignment.ranks)


# States and ends


UNASKED = (
    *(WorldEvent.RANK_EXITED, WorldEvent.RANK_DISCONNECTED, WorldEvent.MPIEXEC_EXITED),
    *(WorldEvent.STATUS_MISSING, WorldEvent.START_TIMEOUT),
)


def test_every_event_has_a_next_state_in_every_state() -> None:
    assert set(TRANSITIONS) == set(WorldState)
    for state in WorldState:
        assert set(TRANSITIONS[state]) == set(WorldEvent), state


@pytest.mark.parametrize("state", [WorldState.STARTING, WorldState.READY, WorldState.LOST])
@pytest.mark.parametrize("event", UNASKED)
def test_an_exit_that_was_not_asked_for_loses_a_world(state: WorldState, event: WorldEvent) -> None:
    assert TRANSITIONS[state][event] is WorldState.LOST


def test_a_world_that_finishes_is_lost_by_a_rank_but_not_by_its_mpiexec() -> None:
    found = {event for event in WorldEvent if TRANSITIONS[WorldState.FINISHING][event] is LOST}
    assert found == set(UNASKED) - {WorldEvent.MPIEXEC_EXITED, WorldEvent.START_TIMEOUT}


LOST = WorldState.LOST


def test_a_lost_world_is_not_forgotten_before_its_end_was_explained_or_reported() -> None:
    left = {event for event in WorldEvent if TRANSITIONS[LOST][event] is not LOST}
    assert left == {
        *(WorldEvent.INTERRUPT, WorldEvent.EXPLAINED),
        *(WorldEvent.ALL_FINISHED, WorldEvent.REMOVED),
    }


def test_a_world_that_is_gone_stays_so_and_every_other_can_go() -> None:
    assert set(TRANSITIONS[WorldState.GONE].values()) == {WorldState.GONE}
    assert {TRANSITIONS[state][WorldEvent.REMOVED] for state in WorldState} == {WorldState.GONE}


def test_no_state_is_left_for_an_earlier_one() -> None:
    """But for a world that was taken for lost."""
    order = [WorldState.STARTING, WorldState.READY, WorldState.FINISHING, LOST, WorldState.GONE]
    for state in WorldState:
        for event, after in TRANSITIONS[state].items():
            is_back = order.index(after) < order.index(state)
            assert not is_back or (state, after) == (LOST, WorldState.FINISHING), event


class Life:
    """A world to which anything may happen, as its processes can have it happen."""

    def __init__(self, chance: random.Random, world_kind: WorldKind) -> None:
        self.world = World(
            number=0,
            size=2,
            world_kind=world_kind,
            threads=1,
            status_folder=Path("/none"),
            started=0.0,
        )
        self._chance = chance
        self.open: set[int] = {0, 1}
        """Ranks whose connections are there."""
        self.mpiexec_is_there = True

    def happen(self) -> None:
        """Let one thing happen that can."""
        world = self.world
        acts: list[Callable[[], object]] = [world.finish, lambda: world.recheck(time.monotonic())]
        if self._chance.random() < 0.05:
            acts.append(world.interrupt)
        if world.state is WorldState.STARTING:
            acts.append(world.start_timed_out)
        if self.mpiexec_is_there:
            acts.append(self._end_mpiexec)
        for rank in range(world.size):
            if rank in self.open:
                acts += [
                    partial(world.rank_ready, rank),
                    partial(world.goodbyes.add, rank),
                    partial(self._disconnect, rank),
                ]
                if world.has_started:
                    acts.append(partial(world.note_test, rank, 0))
            if rank not in world.ended:
                status = self._chance.choice([0, 0, 0, 1, -11, None])
                acts.append(partial(world.rank_exited, rank, status))
        self._chance.choice(acts)()

    def _end_mpiexec(self) -> None:
        self.mpiexec_is_there = False
        self.world.mpiexec_exited()

    def _disconnect(self, rank: int) -> None:
        self.open.discard(rank)
        self.world.rank_disconnected(rank)


@pytest.mark.parametrize("world_kind", ["shared", "exact", "fresh"])
def test_nothing_that_happens_to_a_process_falls_between_states(world_kind: WorldKind) -> None:
    seen = set()
    for seed in range(3000):
        life = Life(random.Random(seed), world_kind)
        world = life.world
        for _ in range(20):
            life.happen()
            seen.add(world.state)
            finished = [world.has_finished(rank) for rank in range(world.size)]
            if world.state is WorldState.GONE:
                # It was not removed, so that all of its ranks have finished.
                assert all(finished), seed
                break
            assert (world.cause is not None) is (world.state is LOST)
            if any(not finished[rank] for rank in world.ended):
                assert world.state is LOST, seed
            if not life.mpiexec_is_there or world.state is LOST:
                assert world.check_at is not None, f"{seed}: it would be waited for without end"
    assert seen == set(WorldState)


def test_a_rank_that_has_finished_is_not_blamed_for_one_that_has_not(tmp_path: Path) -> None:
    """What ranks, their parents and mpiexec say comes over several connections, in any order."""
    place = Place(tmp_path, listed(2))
    place.ask(0, (0, 1))
    world = place.get_ready(0)
    world.finish()
    world.goodbyes.add(0)
    place.worlds.launcher_ended(0)
    world.rank_exited(0, 0)
    assert world.state is WorldState.FINISHING
    assert world.failed_ranks == []
    world.rank_disconnected(1)
    assert world.state is LOST
    assert find_culprit(world) == 1


def test_goodbyes_may_come_after_the_end_of_mpiexec(tmp_path: Path) -> None:
    place = Place(tmp_path, listed(2))
    place.ask(0, (0, 1))
    world = place.get_ready(0)
    world.finish()
    place.worlds.launcher_ended(0)
    for rank in range(2):
        assert world.state is WorldState.FINISHING
        world.goodbyes.add(rank)
        world.rank_exited(rank, 0)
    assert world.state is WorldState.GONE


def test_a_rank_without_a_goodbye_is_lost_when_there_was_time_for_it(tmp_path: Path) -> None:
    place = Place(tmp_path, listed(2))
    place.ask(0, (0, 1))
    world = place.get_ready(0)
    world.finish()
    world.goodbyes.add(0)
    place.worlds.launcher_ended(0)
    assert world.check_at is not None
    assert world.recheck(world.check_at)
    assert world.cause is WorldEvent.STATUS_MISSING


def test_ranks_that_said_goodbye_are_not_waited_for_without_end(tmp_path: Path) -> None:
    """The process that would know how they exited may be gone."""
    place = Place(tmp_path, listed(1))
    place.ask(0, (0,))
    world = place.get_ready(0)
    world.finish()
    world.goodbyes.add(0)
    place.worlds.launcher_ended(0)
    checks = 0
    while world.state is WorldState.FINISHING:
        assert world.check_at is not None
        assert not world.recheck(world.check_at)
        checks += 1
    assert world.state is WorldState.GONE
    assert checks > 1, "first there is time for the exit status to come"


@pytest.mark.parametrize(
    ("goodbye", "status", "told", "is_well"),
    [
        (True, 0, True, True),
        (True, 23, True, False),
        (False, 0, True, False),
        (True, -11, True, False),
        (True, None, True, False),
        (True, 0, False, False),
    ],
)
def test_only_a_rank_that_was_told_to_finish_and_did_has_ended_well(
    tmp_path: Path, goodbye: bool, status: int | None, told: bool, is_well: bool
) -> None:
    place = Place(tmp_path, listed(2))
    place.ask(0, (0, 1))
    world = place.get_ready(0)
    if told:
        world.finish()
    if goodbye:
        world.goodbyes.add(1)
    assert not world.has_ended_badly
    world.rank_exited(1, status)
    assert world.has_ended_badly is not is_well
    assert (world.state is WorldState.LOST) is not is_well


def test_a_fresh_rank_that_is_done_may_end_before_its_peers_are(tmp_path: Path) -> None:
    place = Place(tmp_path, listed(2))
    place.ask(0, (0, 1), "fresh")
    world = place.get_ready(0)
    world.note_test(1, 0)
    world.goodbyes.add(1)
    world.rank_exited(1, 0)
    assert world.state is WorldState.READY


def test_a_rank_that_loses_its_mpiexec_has_ended_badly_unless_it_is_done(tmp_path: Path) -> None:
    place = Place(tmp_path, listed(1))
    place.ask(0, (0,))
    world = place.get_ready(0)
    world.finish()
    place.worlds.launcher_ended(0)
    assert world.has_ended_badly
    world.goodbyes.add(0)
    assert not world.has_ended_badly


def test_worlds_that_wait_for_a_test_of_their_size_are_let_go_when_there_are_too_many(
    tmp_path: Path,
) -> None:
    sizes = (1, 2, 3, 4)
    place = Place(tmp_path, *map(listed, sizes), listed(4, threads=2), width=4)
    for index, size in enumerate(sizes):
        place.ask(index, range(size))
        place.get_ready(index)
        found = place.ask(index, range(size))
        assert found is not None
        place.worlds.release_workers(found)
    states = [world.state for world in place.worlds.alive.values()]
    assert states == [WorldState.READY] * 4
    # 10 ranks wait, and with 4 more there were 14 for 4 workers.
    place.ask(4, range(8))
    assert [world.state for world in place.worlds.alive.values()] == [
        WorldState.FINISHING,
        WorldState.FINISHING,
        WorldState.READY,
        WorldState.READY,
        WorldState.STARTING,
    ]


def test_nothing_is_started_while_too_many_ranks_do_not_come_to_their_end(tmp_path: Path) -> None:
    place = Place(tmp_path, listed(4), width=4)
    for number in range(3):
        assert place.ask(0, range(4), "fresh") is None
        found = place.get_ready(number)
        assert place.ask(0, range(4), "fresh") == found.workers
        place.worlds.release_workers(found.workers)
    assert place.ask(0, range(4), "fresh") is None
    assert len(place.spawned) == 3
    place.worlds.remove(place.worlds.alive[0])
    assert place.ask(0, range(4), "fresh") is None
    assert len(place.spawned) == 4
