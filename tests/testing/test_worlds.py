"""The worlds of a pool, with nobody in them: which are asked for, and which of them run a test."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from rankwise.testing.blackbox import OutputTail
from rankwise.testing.crew.member import CORES, WORLD, member_number
from rankwise.testing.crew.worlds import Binding, World, Worlds
from rankwise.testing.listing import Layout, ListedTest, make_cases
from rankwise.testing.policy import Assignment, Case, Dynamic, Pace, Sequential
from rankwise.testing.policy.contract import Venue
from rankwise.testing.wire import Header

UNBOUND = Binding(cores=None, set_threads=False)


def listed(size: int, threads: int = 1, **wishes: Any) -> ListedTest:
    return ListedTest(
        nodeid=f"test_{size}",
        location=("test_it.py", 0, "test_it"),
        keywords={},
        size=size,
        limit=0.0,
        threads=threads,
        groups=(),
        config=cast(Any, None),
        ihook=cast(Any, None),
        **{"world": False, "exclusive": None, **wishes},
    )


class Place:
    """The worlds of a run of 8 seats, and the orders to start some."""

    def __init__(
        self, folder: Path, *tests: ListedTest, binding: Binding = UNBOUND, width: int = 8
    ) -> None:
        self.spawned: list[Header] = []
        self.worlds = Worlds(
            self.spawned.append,
            width=width,
            folder=folder,
            doors={"warm": "/warm", "cold": "/cold"},
            binding=binding,
        )
        self._tests = tests
        self.worlds.know(tests)

    def ask(
        self, index: int, seats: Sequence[int], venue: Venue = "exact"
    ) -> tuple[int, ...] | None:
        """Ask for the members that are to run a test."""
        first = Case(index=index, size=len(seats), venue=venue)
        return self.worlds.place(Assignment(cases=(index,), ranks=tuple(seats)), first)

    def get_ready(self, number: int) -> World:
        world = self.worlds.alive[number]
        world.ready.update(range(world.size))
        return world


def members(world: int, *ranks: int) -> tuple[int, ...]:
    return tuple(member_number(world, rank) for rank in ranks)


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
            "venue": "shared",
            "seats": list(range(8)),
            "door": "/warm",
            "environment": {WORLD: "0"},
        }
    ]
    place.get_ready(0)
    assert place.ask(0, (0, 1), "shared") == members(0, 0, 1)
    assert place.ask(1, (5,), "shared") == members(0, 5)


def test_a_world_is_ready_when_all_of_its_ranks_are(tmp_path: Path) -> None:
    place = Place(tmp_path, listed(1))
    place.ask(0, (0,), "shared")
    world = place.worlds.alive[0]
    world.ready.update(range(7))
    assert place.ask(0, (0,), "shared") is None
    world.ready.add(7)
    assert place.ask(0, (0,), "shared") == members(0, 0)


@pytest.mark.parametrize("trouble", ["leaving", "failing"])
def test_a_shared_world_that_does_not_work_is_replaced(tmp_path: Path, trouble: str) -> None:
    place = Place(tmp_path, listed(1))
    place.ask(0, (0,), "shared")
    broken = place.get_ready(0)
    if trouble == "leaving":
        broken.leaving = True
    else:
        broken.conclude_at = 0.0
    assert place.worlds.shared() is None
    assert place.ask(0, (0,), "shared") is None
    assert len(place.spawned) == 2
    place.get_ready(1)
    assert place.ask(0, (0,), "shared") == members(1, 0)


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
    assert place.ask(1, (2, 3)) == members(1, 0, 1)
    place.get_ready(0)
    assert place.ask(0, (0, 1)) == members(0, 0, 1)


def test_a_world_that_has_been_used_is_used_again(tmp_path: Path) -> None:
    place = Place(tmp_path, listed(2), listed(2))
    place.ask(0, (0, 1))
    place.get_ready(0)
    assert place.ask(0, (0, 1)) == members(0, 0, 1)
    assert place.ask(1, (2, 3)) is None, "it is busy"
    place.worlds.vacate(members(0, 0, 1))
    place.worlds.remove(place.worlds.alive[1])
    assert place.ask(1, (2, 3)) == members(0, 0, 1)


@pytest.mark.parametrize("trouble", ["leaving", "failing", "another size", "more threads"])
def test_a_world_that_does_not_fit_is_not_used_again(tmp_path: Path, trouble: str) -> None:
    second = {"another size": listed(3), "more threads": listed(2, threads=2)}
    place = Place(tmp_path, listed(2), second.get(trouble, listed(2)))
    place.ask(0, (0, 1))
    world = place.get_ready(0)
    place.ask(0, (0, 1))
    place.worlds.vacate(world.members)
    if trouble == "leaving":
        world.leaving = True
    elif trouble == "failing":
        world.conclude_at = 0.0
    assert place.ask(1, (0, 1, 2, 3)) is None
    assert len(place.spawned) == 2


def test_a_fresh_world_is_used_once_and_then_it_is_to_leave(tmp_path: Path) -> None:
    place = Place(tmp_path, listed(1), listed(1))
    place.ask(0, (0,), "fresh")
    world = place.get_ready(0)
    assert place.ask(0, (0,), "fresh") == members(0, 0)
    place.worlds.vacate(world.members)
    assert world.leaving
    assert place.ask(1, (0,), "fresh") is None
    assert len(place.spawned) == 2


def test_when_a_world_is_gone_another_one_is_started_for_its_test(tmp_path: Path) -> None:
    place = Place(tmp_path, listed(2))
    place.ask(0, (0, 1))
    place.worlds.remove(place.worlds.alive[0])
    assert place.ask(0, (0, 1)) is None
    assert len(place.spawned) == 2
    place.get_ready(1)
    assert place.ask(0, (0, 1)) == members(1, 0, 1)


def test_a_world_that_fails_before_all_are_ready_does_not_get_its_test(tmp_path: Path) -> None:
    """One rank has died, and then the last of the others says that it is ready."""
    place = Place(tmp_path, listed(2))
    place.ask(0, (0, 1))
    world = place.get_ready(0)
    world.conclude_at = 0.0
    assert place.ask(0, (0, 1)) != world.members


# Cores, threads and doors


def test_ranks_are_bound_to_the_cores_of_their_seats(tmp_path: Path) -> None:
    binding = Binding(cores=range(10, 18), set_threads=True)
    place = Place(tmp_path, listed(2, threads=2), binding=binding)
    place.ask(0, (2, 3, 6, 7))
    (header,) = place.spawned
    assert header["size"] == 2
    assert header["environment"] == {WORLD: "0", CORES: "12,13;16,17", "OMP_NUM_THREADS": "2"}


def test_of_a_whole_domain_a_test_uses_as_many_seats_as_it_needs(tmp_path: Path) -> None:
    """It is exclusive: it has been given all of them."""
    place = Place(tmp_path, listed(2), binding=Binding(cores=range(8), set_threads=True))
    place.ask(0, (4, 5, 6, 7))
    assert place.spawned[0]["environment"][CORES] == "4;5"


def test_a_bound_world_is_used_again_on_its_own_cores_only(tmp_path: Path) -> None:
    place = Place(
        tmp_path, listed(2), listed(2), binding=Binding(cores=range(8), set_threads=False)
    )
    place.ask(0, (0, 1))
    world = place.get_ready(0)
    place.ask(0, (0, 1))
    place.worlds.vacate(world.members)
    assert place.ask(1, (2, 3)) is None
    place.worlds.remove(place.worlds.alive[1])
    assert place.ask(1, (0, 1)) == world.members


def test_the_number_of_threads_is_left_alone_where_it_is_not_ours_to_set(tmp_path: Path) -> None:
    place = Place(tmp_path, listed(1, threads=2))
    place.ask(0, (0, 1))
    assert place.spawned[0]["environment"] == {WORLD: "0"}


def test_ranks_with_threads_are_not_made_from_a_template(tmp_path: Path) -> None:
    """Libraries that are loaded have read how many threads they may have."""
    place = Place(tmp_path, listed(1, threads=2), listed(1))
    place.ask(0, (0, 1))
    place.ask(1, (2,))
    assert [header["door"] for header in place.spawned] == ["/cold", "/warm"]


def test_without_a_template_every_rank_comes_through_the_other_door(tmp_path: Path) -> None:
    place = Place(tmp_path, listed(1))
    place.worlds.warm = False
    place.ask(0, (0,))
    assert place.spawned[0]["door"] == "/cold"


# All of them


def test_everyone_is_who_is_there_and_has_not_been_told_to_end(tmp_path: Path) -> None:
    place = Place(tmp_path, listed(1), listed(2), listed(1), width=2)
    place.ask(0, (0,), "shared")
    place.ask(1, (0, 1))
    place.ask(2, (0,))
    place.get_ready(0)
    place.get_ready(2).leaving = True
    assert list(place.worlds.everyone()) == [*members(0, 0, 1)]
    place.get_ready(1)
    assert list(place.worlds.everyone()) == [*members(0, 0, 1), *members(1, 0, 1)]


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
    """The world and the seats of a row are those that its first test needs."""
    tests = [one, other] * 32
    layout = Layout(width=4, domains=[0] * 4)
    known = {one.nodeid: 0.001, other.nodeid: 0.001}
    aligned = policy == "dynamic"
    cases = make_cases(tests, known, layout, fresh=False, every_world=False, aligned=aligned)
    if policy == "sequential":
        driven: Sequential | Dynamic = Sequential(cases, Pace())
    else:
        driven = Dynamic(cases, 4, Pace(), domains=layout.domains)
    driven.release((0, 1, 2, 3))
    while (assignment := driven.take()) is not None:
        row = [tests[index] for index in assignment.cases]
        assert len({(test.size, test.threads, test.exclusive) for test in row}) == 1
        driven.release(assignment.ranks)
