"""The dispatcher with worlds that die: what was lost starts again, and nothing is counted twice."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwise.pytest_plugin.collection import ListedTest
from rankwise.pytest_plugin.connections import Header, worker_number, world_and_rank
from rankwise.pytest_plugin.schedulers.base import Assignment, Pace, ScheduledTest, WorldKind
from rankwise.pytest_plugin.schedulers.dispatcher import (
    NO_WORKER,
    Dispatcher,
    RunningTest,
    ScheduledSuite,
    make_scheduler,
)
from rankwise.pytest_plugin.schedulers.sequential import Sequential
from rankwise.pytest_plugin.workers.worlds import World, Worlds, WorldState

SCHEDULERS = ("sequential", "static", "dynamic")


# One step at a time


class FakeVenues:
    """As many workers as there are slots; those of other worlds come when they are told to."""

    def __init__(self, width: int) -> None:
        self._width = width
        self.apart: dict[tuple[int, ...], tuple[int, ...]] = {}
        self.asked: list[tuple[int, ...]] = []
        self.vacated: list[tuple[int, ...]] = []

    def place(self, assignment: Assignment, first: ScheduledTest) -> tuple[int, ...] | None:
        if first.world_kind == "shared":
            return assignment.ranks
        self.asked.append(assignment.cases)
        return self.apart.get(assignment.cases)

    def release_workers(self, workers: tuple[int, ...]) -> None:
        self.vacated.append(workers)

    def workers(self) -> Iterable[int]:
        workers = {one for group in self.apart.values() for one in group}
        return [*range(self._width), *sorted(workers)]


def suite_of(*tests: tuple[int, WorldKind] | int, group: int | None = None) -> ScheduledSuite:
    pairs: list[tuple[int, WorldKind]] = [
        (one, "shared") if isinstance(one, int) else one for one in tests
    ]
    cases = [
        ScheduledTest(index=index, size=size, world_kind=world_kind, seconds=0.001)
        for index, (size, world_kind) in enumerate(pairs)
    ]
    return ScheduledSuite(cases=cases, groups=[[] if group is None else [group]] * len(cases))


def dispatcher_of(
    suite: ScheduledSuite,
    width: int,
    scheduler: str = "dynamic",
    *,
    worlds: FakeVenues | None = None,
    batching: bool = False,
    **settings: Any,
) -> Dispatcher:
    pace = Pace(batching=batching)
    policy = make_scheduler(scheduler, suite, width, pace, strict=False)
    return Dispatcher(
        suite, policy, pace, width=width, reporter=NO_WORKER, worlds=worlds, **settings
    )


def done(case: int, *, failed: bool = False) -> Header:
    return {"kind": "done", "case": case, "failed": failed, "seconds": 0.0}


def sent(dispatcher: Dispatcher) -> list[tuple[int, str, Any]]:
    """Take what is in the outbox: the recipient, the kind, and which tests or groups."""
    found = []
    while dispatcher.outbox:
        worker, header, _ = dispatcher.outbox.popleft()
        about = header.get("cases", header.get("groups", header.get("case")))
        found.append((worker, header["kind"], about))
    return found


def test_what_is_in_flight_is_what_members_have_and_have_not_ended() -> None:
    dispatcher = dispatcher_of(suite_of(2, 2, 2), 4, "sequential", batching=True)
    dispatcher.begin()
    dispatcher.done(0, done(0), b"zero of 0")
    dispatcher.done(1, done(0), b"zero of 1")
    dispatcher.done(1, done(1), b"one of 1")
    first, second = dispatcher.running_tests([0, 1, 2])
    assert first == RunningTest(
        case=1, workers=(0, 1), at_it=frozenset({0}), bodies={1: b"one of 1"}
    )
    assert second == RunningTest(case=2, workers=(0, 1), at_it=frozenset({1}), bodies={})
    assert dispatcher.running_tests([0]) == [first, second], "a batch is all of its workers'"
    assert dispatcher.running_tests([2, 3]) == []


def test_what_was_lost_starts_again_but_for_the_test_that_is_blamed() -> None:
    dispatcher = dispatcher_of(suite_of(1, 1, 1), 1, "sequential", batching=True)
    dispatcher.begin()
    dispatcher.done(0, done(0), b"")
    sent(dispatcher)
    dispatcher.lose([0], blamed=[1])
    assert sent(dispatcher) == [(0, "run", (2,))]
    assert dispatcher.completed == 2
    dispatcher.done(0, done(2), b"")
    assert sent(dispatcher) == [(NO_WORKER, "verdict", 2), (0, "finish", None)]
    assert dispatcher.finished
    assert dispatcher.completed == 3


def test_without_anybody_to_blame_all_that_was_lost_starts_again_in_its_order() -> None:
    dispatcher = dispatcher_of(suite_of(2, 2, 2), 2, "sequential", batching=True)
    dispatcher.begin()
    sent(dispatcher)
    dispatcher.done(0, done(0), b"")
    dispatcher.lose([0, 1], blamed=[])
    assert sent(dispatcher) == [(0, "run", (0, 1, 2)), (1, "run", (0, 1, 2))]


def test_what_a_lost_member_had_said_is_not_part_of_the_verdict() -> None:
    dispatcher = dispatcher_of(suite_of(2), 2)
    dispatcher.begin()
    dispatcher.done(0, done(0, failed=True), b"before")
    dispatcher.lose([0, 1], blamed=[])
    dispatcher.outbox.clear()
    for worker in (0, 1):
        dispatcher.done(worker, done(0), b"after")
    worker, header, body = dispatcher.outbox.popleft()
    assert (worker, header["kind"], body) == (NO_WORKER, "verdict", b"afterafter")


def test_a_test_that_is_blamed_counts_as_a_failure() -> None:
    dispatcher = dispatcher_of(suite_of(1, 1), 1, maxfail=1)
    dispatcher.begin()
    sent(dispatcher)
    dispatcher.lose([0], blamed=[0])
    assert dispatcher.finished
    assert sent(dispatcher) == [(0, "finish", None)]


def test_the_last_test_may_be_the_one_that_is_blamed() -> None:
    dispatcher = dispatcher_of(suite_of(2), 2)
    dispatcher.begin()
    dispatcher.lose([0, 1], blamed=[0])
    assert dispatcher.finished


def test_members_that_had_nothing_can_be_lost() -> None:
    dispatcher = dispatcher_of(suite_of(1, 1), 1)
    dispatcher.begin()
    before = list(dispatcher.outbox)
    dispatcher.lose([7, 8], blamed=[])
    assert list(dispatcher.outbox) == before
    assert not dispatcher.finished


def test_a_group_whose_last_test_was_lost_is_closed_when_that_has_been_run() -> None:
    dispatcher = dispatcher_of(suite_of(1, 1, group=5), 2)
    dispatcher.begin()
    runs = [header for _, header, _ in dispatcher.outbox if header["kind"] == "run"]
    assert [header["close"] for header in runs] == [[], [5]]
    assert (0, "close", [5]) in sent(dispatcher)
    dispatcher.done(0, done(0), b"")
    dispatcher.outbox.clear()
    dispatcher.lose([1], blamed=[])
    (again,) = (header for _, header, _ in dispatcher.outbox if header["kind"] == "run")
    assert (again["cases"], again["close"]) == ((1,), [5])


def test_a_member_that_is_gone_is_not_told_to_close_anything() -> None:
    """It had a test of the group, and the group ends after it was lost."""
    worlds = FakeVenues(2)
    dispatcher = dispatcher_of(suite_of(1, 1, (1, "exact"), group=5), 2, worlds=worlds)
    dispatcher.begin()
    dispatcher.lose([1], blamed=[1])
    sent(dispatcher)
    worlds.apart[(2,)] = (100,)
    dispatcher.resume()
    assert sent(dispatcher) == [(0, "close", [5]), (100, "run", (2,))]


def test_what_has_no_members_yet_waits_and_the_others_go_on() -> None:
    worlds = FakeVenues(2)
    dispatcher = dispatcher_of(suite_of((1, "exact"), 1), 2, worlds=worlds)
    dispatcher.begin()
    assert sent(dispatcher) == [(1, "run", (1,))]
    dispatcher.done(1, done(1), b"")
    assert not dispatcher.finished
    dispatcher.resume()
    assert worlds.asked == [(0,), (0,)]
    worlds.apart[(0,)] = (100,)
    dispatcher.resume()
    (order,) = [header for worker, header, _ in dispatcher.outbox if worker == 100]
    assert (order["cases"], order["ranks"], order["world_kind"]) == ((0,), (0,), "exact")
    dispatcher.done(100, done(0), b"")
    assert worlds.vacated == [(100,)]
    assert dispatcher.finished


def test_the_seats_of_a_test_that_waits_for_its_members_are_taken() -> None:
    worlds = FakeVenues(2)
    dispatcher = dispatcher_of(suite_of((2, "exact"), 1), 2, worlds=worlds)
    dispatcher.begin()
    assert sent(dispatcher) == []
    worlds.apart[(0,)] = (100, 101)
    dispatcher.resume()
    sent(dispatcher)
    dispatcher.done(100, done(0), b"")
    assert sent(dispatcher) == [], "workers of another world free their slots together"
    dispatcher.done(101, done(0), b"")
    assert (0, "run", (1,)) in sent(dispatcher)


def test_a_world_may_have_fewer_members_than_seats() -> None:
    """Threads, or a domain of its own: the slots are all free again when it is done."""
    worlds = FakeVenues(4)
    worlds.apart[(0,)] = (100, 101)
    dispatcher = dispatcher_of(suite_of((4, "exact"), 4), 4, worlds=worlds)
    dispatcher.begin()
    for worker in (100, 101):
        dispatcher.done(worker, done(0), b"")
    assert [one for one in sent(dispatcher) if one[1] == "run"] == [
        (100, "run", (0,)),
        (101, "run", (0,)),
        *((worker, "run", (1,)) for worker in range(4)),
    ]


def test_what_waits_for_members_that_were_lost_is_placed_anew() -> None:
    worlds = FakeVenues(1)
    dispatcher = dispatcher_of(suite_of((1, "exact")), 1, worlds=worlds)
    dispatcher.begin()
    assert worlds.asked == [(0,)]
    dispatcher.lose([100], blamed=[])
    assert worlds.asked == [(0,), (0,)]


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_the_seats_of_a_world_that_was_lost_are_free_again(scheduler: str) -> None:
    worlds = FakeVenues(2)
    worlds.apart[(0,)] = (100, 101)
    dispatcher = dispatcher_of(suite_of((2, "exact"), 2), 2, scheduler, worlds=worlds)
    dispatcher.begin()
    dispatcher.done(100, done(0), b"")
    sent(dispatcher)
    dispatcher.lose([100, 101], blamed=[0])
    assert sent(dispatcher) == [(0, "run", (1,)), (1, "run", (1,))]


def test_told_to_stop_nothing_that_waits_for_members_is_started() -> None:
    worlds = FakeVenues(1)
    dispatcher = dispatcher_of(suite_of((1, "exact")), 1, worlds=worlds)
    dispatcher.begin()
    assert sent(dispatcher) == [], "its world is not there"
    dispatcher.stop()
    assert dispatcher.finished
    worlds.apart[(0,)] = (100,)
    dispatcher.resume()
    assert [kind for _, kind, _ in sent(dispatcher)] == ["finish"]


def test_a_session_that_stops_starts_nothing_that_waits_for_members() -> None:
    """A hook of a worker that has no test wants the run to stop."""
    worlds = FakeVenues(1)
    dispatcher = dispatcher_of(suite_of((1, "exact")), 1, worlds=worlds)
    dispatcher.begin()
    dispatcher.halt({"fail": "", "stop": "enough"})
    assert dispatcher.finished
    worlds.apart[(0,)] = (100,)
    dispatcher.resume()
    assert [kind for _, kind, _ in sent(dispatcher)] == ["stopped", "finish"]


def test_after_the_last_failure_that_is_allowed_nothing_that_waits_is_started() -> None:
    worlds = FakeVenues(2)
    dispatcher = dispatcher_of(suite_of(1, (1, "exact")), 2, worlds=worlds, maxfail=1)
    dispatcher.begin()
    assert sent(dispatcher) == [(0, "run", (0,))]
    worlds.apart[(1,)] = (100,)
    dispatcher.lose([0], blamed=[0])
    assert "run" not in [kind for _, kind, _ in sent(dispatcher)]
    assert dispatcher.finished


def test_told_to_stop_nothing_that_was_lost_is_started_again() -> None:
    dispatcher = dispatcher_of(suite_of(1, 1), 2)
    dispatcher.begin()
    dispatcher.stop()
    sent(dispatcher)
    dispatcher.lose([0], blamed=[])
    assert sent(dispatcher) == []
    dispatcher.done(1, done(1), b"")
    assert dispatcher.finished
    assert "run" not in [kind for _, kind, _ in sent(dispatcher)]


# Everything at once, by chance


@dataclass(eq=False)
class Member:
    """A rank of a world as `crew.loop` has it; what it says takes a while to arrive."""

    world: int
    rank: int
    messages: deque[Header] = field(default_factory=deque)
    said: deque[tuple[Header, bytes]] = field(default_factory=deque)
    batch: deque[int] = field(default_factory=deque)
    order: Header = field(default_factory=dict)
    entered: bool = False
    ran: list[int] = field(default_factory=list)
    open: set[int] = field(default_factory=set)
    finished: int = 0
    dead: bool = False
    """It has ended, and the dispatcher does not know yet."""

    @property
    def number(self) -> int:
        return worker_number(self.world, self.rank)


class FakePool:
    """Does with a real dispatcher and real bookkeeping of worlds what a pool does, without ranks."""

    def __init__(self, scene: Scene, *, maxfail: int = 0, failing: Sequence[int] = ()) -> None:
        self._suite = scene.suite
        self._chance = scene.chance
        self._careful = scene.careful
        self._failing = failing
        self._losses = scene.losses
        self.worlds = Worlds(
            self._spawn,
            width=scene.width,
            folder=Path("/nonexistent"),
            fork_sockets={"warm": "w", "cold": "c"},
            sets_threads=False,
        )
        self.worlds.know([_listed(case) for case in scene.suite.cases])
        pace = Pace(batching=not scene.careful)
        policy = make_scheduler(
            scene.scheduler, scene.suite, scene.width, pace, strict=scene.strict, apart=True
        )
        self._alone = isinstance(policy, Sequential)
        self.dispatcher = Dispatcher(
            scene.suite,
            policy,
            pace,
            width=scene.width,
            reporter=NO_WORKER,
            maxfail=maxfail,
            acknowledged=scene.careful,
            worlds=self.worlds,
        )
        self.workers: dict[int, Member] = {}
        self.verdicts: Counter[int] = Counter()
        self.blamed: Counter[int] = Counter()
        self._unlogged: deque[int] = deque()

    def _spawn(self, header: Header) -> None:
        for rank in range(header["size"]):
            self.workers[worker_number(header["world"], rank)] = Member(header["world"], rank)

    def go(self, stop_after: int | None = None) -> None:
        self.dispatcher.begin()
        self._deliver()
        steps = 0
        while acts := self._possible():
            if steps == stop_after:
                self.dispatcher.stop()
            else:
                self._chance.choice(acts)()
            self._deliver()
            steps += 1

    # What may happen next

    def _possible(self) -> list[Any]:
        acts: list[Any] = []
        for world in self.worlds.alive.values():
            if world.state is WorldState.LOST:
                acts.append(lambda world=world: self._conclude(world))
            if not world.has_started:
                if not self.dispatcher.finished:
                    acts.append(lambda world=world: self._get_ready(world))
                continue
            for number in world.workers:
                worker = self.workers[number]
                if worker.said:
                    acts.append(lambda worker=worker: self._hear(worker))
                if self._can_move(worker):
                    acts.append(lambda worker=worker: self._move(worker))
        if self._unlogged:
            acts.append(self._log)
        if self._losses and acts and self._chance.random() < 0.1:
            healthy = [w for w in self.worlds.alive.values() if w.state is not WorldState.LOST]
            if healthy:
                self._losses -= 1
                world = self._chance.choice(healthy)
                return [lambda: self._break(world)]
        return acts

    def _get_ready(self, world: World) -> None:
        world.rank_ready(len(world.ready))
        if world.state is WorldState.READY:
            self.dispatcher.resume()

    def _log(self) -> None:
        self.dispatcher.logged(self._unlogged.popleft())

    def _hear(self, worker: Member) -> None:
        header, body = worker.said.popleft()
        if header["kind"] == "bye":
            world = self.worlds.alive[worker.world]
            world.finish()
            world.goodbyes.add(worker.rank)
            world.rank_exited(worker.rank, 0)
            if world.state is WorldState.GONE:
                self.worlds.remove(world)
        else:
            self.dispatcher.done(worker.number, header, body)

    def _break(self, world: World) -> None:
        culprit = self._chance.randrange(world.size)
        world.rank_exited(culprit, 1)
        self.workers[worker_number(world.number, culprit)].dead = True

    def _conclude(self, world: World) -> None:
        culprit = worker_number(world.number, world.failed_ranks[0])
        running_tests = self.dispatcher.running_tests(world.workers)
        blamed = [running.case for running in running_tests if culprit in running.at_it]
        assert len(blamed) <= 1, "a worker is at one test at a time"
        for running in running_tests:
            assert set(running.bodies).isdisjoint(running.at_it)
        self.blamed.update(blamed)
        self._lose(world, blamed)
        # It may have failed before all of its ranks were ready, and tests have waited for it.
        self.dispatcher.resume()

    def _lose(self, world: World, blamed: Sequence[int]) -> None:
        for number in world.workers:
            del self.workers[number]
        self.worlds.remove(world)
        self.dispatcher.lose(world.workers, blamed)
        assert self.dispatcher.running_tests(world.workers) == []

    # Messages

    def _deliver(self) -> None:
        outbox = self.dispatcher.outbox
        while outbox:
            number, header, body = outbox.popleft()
            if number == NO_WORKER:
                self._take_verdict(header, body)
                continue
            world = self.worlds.alive.get(world_and_rank(number)[0])
            if header["kind"] == "finish":
                if world is not None and world.told_to_finish is None:
                    world.finish()
                    for one in world.workers:
                        self.workers[one].messages.append(header)
            elif number in self.workers:
                self.workers[number].messages.append(header)

    def _take_verdict(self, header: Header, body: bytes) -> None:
        case = header["case"]
        assert not self.verdicts[case]
        assert not self.blamed[case]
        self.verdicts[case] += 1
        parts = body.decode().split(";")[:-1]
        assert [len(part) + 1 for part in parts] == header["lengths"]
        said = [tuple(map(int, part.split(":"))) for part in parts]
        assert len({world for _, world, _ in said}) == 1, "all of them were in one world"
        assert [rank for _, _, rank in said] == list(header["ranks"])
        assert [index for index, _, _ in said] == [case] * self._suite.cases[case].size
        if self._careful:
            self._unlogged.append(case)

    # Ranks

    def _can_move(self, worker: Member) -> bool:
        if worker.dead or worker.finished:
            return False
        if not worker.batch:
            return bool(worker.messages)
        peers = [self.workers[worker_number(worker.world, r)] for r in worker.order["ranks"]]
        index = worker.batch[0]
        return not worker.entered or all(
            index in peer.ran or (peer.entered and peer.batch[0] == index) for peer in peers
        )

    def _move(self, worker: Member) -> None:
        if worker.batch:
            if worker.entered:
                self._end_test(worker)
            else:
                self._enter(worker)
            return
        header = worker.messages.popleft()
        match header["kind"]:
            case "run":
                assert worker.rank in header["ranks"]
                worker.order = header
                worker.batch.extend(header["cases"])
            case "close":
                worker.open.difference_update(self._closable(worker, header["groups"]))
            case "finish":
                worker.finished += 1
                if not self.dispatcher._stopping:
                    assert not worker.open, "told to end with fixtures still open"
                worker.said.append(({"kind": "bye"}, b""))

    def _enter(self, worker: Member) -> None:
        index = worker.batch[0]
        worker.entered = True
        worker.open.update(self._suite.groups[index])
        assert not self.verdicts[index], "run again after its verdict"
        assert not self.blamed[index], "run again although it was blamed"
        if self._alone:
            orders = {id(one.order) for one in self.workers.values() if one.entered}
            assert len(orders) == 1, "one test at a time"

    def _end_test(self, worker: Member) -> None:
        index = worker.batch.popleft()
        worker.entered = False
        worker.ran.append(index)
        later = {group for rest in worker.batch for group in self._suite.groups[rest]}
        ending = set(self._suite.groups[index]) & set(worker.order["close"]) - later
        worker.open.difference_update(self._closable(worker, ending))
        body = f"{index}:{worker.world}:{worker.rank};".encode()
        header = {**done(index, failed=index in self._failing)}
        worker.said.append((header, body))
        if worker.order.get("world_kind") == "fresh" and not worker.batch:
            worker.finished += 1
            worker.said.append(({"kind": "bye"}, b""))

    def _closable(self, worker: Member, groups: Iterable[int]) -> Iterable[int]:
        assert worker.open.issuperset(groups), "told to close what is not open"
        return groups


def _listed(case: ScheduledTest) -> ListedTest:
    return ListedTest(
        nodeid=f"test_it.py::test_{case.index}",
        name=f"test_{case.index}",
        path=Path("test_it.py"),
        location=("test_it.py", case.index, f"test_{case.index}"),
        keywords={},
        size=case.size,
        limit=0.0,
        world=case.world_kind == "exact",
        threads=1,
        exclusive=None,
        groups=(),
        session=cast(Any, None),
        ihook=cast(Any, None),
    )


@dataclass(frozen=True, kw_only=True)
class Scene:
    scheduler: str
    suite: ScheduledSuite
    width: int
    careful: bool
    strict: bool
    losses: int
    chance: random.Random


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    width = draw(st.integers(1, 4))
    worlds: Sequence[WorldKind] = draw(
        st.sampled_from((("shared",), ("shared", "exact"), ("exact",), ("fresh",)))
    )
    tests = draw(
        st.lists(
            st.tuples(st.integers(1, width), st.integers(0, 3), st.sampled_from(worlds)),
            max_size=20,
        )
    )
    known = draw(st.sampled_from((None, 0.001, 1.0)))
    careful = draw(st.booleans())
    return Scene(
        scheduler=draw(st.sampled_from(SCHEDULERS)),
        suite=ScheduledSuite(
            cases=[
                ScheduledTest(index=index, size=size, seconds=known, world_kind=world_kind)
                for index, (size, _, world_kind) in enumerate(tests)
            ],
            # A package and one of its two modules.
            groups=[[module // 2, 10 + module] for _, module, _ in tests],
        ),
        width=width,
        careful=careful,
        strict=careful or draw(st.booleans()),
        losses=draw(st.integers(0, 8)),
        chance=draw(st.randoms(use_true_random=False)),
    )


@given(scenes())
def test_whatever_dies_every_test_has_one_verdict_or_is_blamed_once(scene: Scene) -> None:
    pool = FakePool(scene)
    pool.go()
    assert pool.dispatcher.finished
    assert pool.verdicts + pool.blamed == Counter(range(len(scene.suite.cases)))


@given(scenes())
def test_whatever_dies_those_that_are_left_are_told_the_end_once(scene: Scene) -> None:
    pool = FakePool(scene)
    pool.go()
    for world in pool.worlds.alive.values():
        assert not world.has_started, "only such as came too late are left"
    assert all(worker.finished <= 1 for worker in pool.workers.values())


@given(scenes(), st.integers(1, 3))
def test_whatever_dies_the_run_ends_after_so_many_failures(scene: Scene, maxfail: int) -> None:
    pool = FakePool(scene, maxfail=maxfail, failing=range(len(scene.suite.cases)))
    pool.go()
    assert pool.dispatcher.finished
    counted = pool.verdicts + pool.blamed
    assert set(counted.values()) <= {1}
    assert len(counted) >= min(maxfail, len(scene.suite.cases))


@given(scenes(), st.integers(0, 60))
def test_whatever_dies_a_run_that_is_told_to_stop_ends(scene: Scene, steps: int) -> None:
    pool = FakePool(scene)
    pool.go(stop_after=steps)
    assert pool.dispatcher.finished
    assert set((pool.verdicts + pool.blamed).values()) <= {1}
