"""The dispatcher with ranks that only pretend: what they are told, in which order, and when it ends."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwise.pytest_plugin.connections import Header
from rankwise.pytest_plugin.schedulers.base import Assignment, Pace, ScheduledTest
from rankwise.pytest_plugin.schedulers.dispatcher import Dispatcher, ScheduledSuite, make_scheduler

SCHEDULERS = ("sequential", "static", "dynamic")


@dataclass(kw_only=True)
class FakeRank:
    """A rank as `crew.loop` has it: takes its messages in order and does what they say."""

    messages: deque[tuple[Header, bytes]] = field(default_factory=deque)
    batch: deque[int] = field(default_factory=deque)
    order: Header = field(default_factory=dict)
    orders: list[Header] = field(default_factory=list)
    entered: bool = False
    given: set[int] = field(default_factory=set)
    ran: list[int] = field(default_factory=list)
    closed: list[int] = field(default_factory=list)
    finished: int = 0


class FakeCrew:
    """Ranks that take turns by chance, around a real dispatcher."""

    def __init__(
        self,
        scheduler: str,
        suite: ScheduledSuite,
        width: int,
        chance: random.Random,
        *,
        maxfail: int = 0,
        acknowledged: bool = False,
        batching: bool = True,
        failing: Sequence[int] = (),
        leaving: Sequence[int] = (),
    ) -> None:
        pace = Pace(batching=batching)
        policy = make_scheduler(scheduler, suite, width, pace)
        self.dispatcher = Dispatcher(
            suite, policy, pace, width=width, maxfail=maxfail, acknowledged=acknowledged
        )
        self.ranks = [FakeRank() for _ in range(width)]
        self.verdicts: list[int] = []
        self.bodies: dict[int, dict[int, bytes]] = {}
        self._suite = suite
        self._chance = chance
        self._acknowledges = acknowledged and scheduler == "sequential"
        self._failing = failing
        self._leaving = leaving

    def begin(self) -> None:
        self.dispatcher.begin()
        self._deliver()

    def go(self) -> None:
        """Run until no worker has anything to do."""
        self.begin()
        while self.step():
            pass

    def step(self) -> bool:
        """Let one rank do the next thing that it can do; False if none can do anything."""
        able = [rank for rank in range(len(self.ranks)) if self._can_move(rank)]
        if able:
            self._move(self._chance.choice(able))
            self._deliver()
        return bool(able)

    def _deliver(self) -> None:
        while self.dispatcher.outbox:
            rank, header, body = self.dispatcher.outbox.popleft()
            self.ranks[rank].messages.append((header, body))

    def _can_move(self, number: int) -> bool:
        rank = self.ranks[number]
        if not rank.batch:
            return bool(rank.messages)
        # A test on several ranks ends nowhere before it has begun everywhere.
        peers = [self.ranks[other] for other in rank.order["ranks"]]
        index = rank.batch[0]
        return not rank.entered or all(
            index in peer.ran or (peer.entered and peer.batch[0] == index) for peer in peers
        )

    def _move(self, number: int) -> None:
        rank = self.ranks[number]
        if not rank.batch:
            self._read(number, *rank.messages.popleft())
        elif not rank.entered:
            rank.entered = True
        else:
            self._end_test(number)

    def _read(self, number: int, header: Header, body: bytes) -> None:
        rank = self.ranks[number]
        assert not rank.finished, f"rank {number} got {header} after its end"
        match header["kind"]:
            case "run":
                assert number in header["ranks"]
                rank.order = header
                rank.orders.append(header)
                rank.batch.extend(header["cases"])
                rank.given.update(header["cases"])
            case "close":
                self._close(rank, header["groups"])
            case "verdict":
                assert number == 0
                self._take_verdict(header, body)
            case "finish":
                rank.finished += 1

    def _end_test(self, number: int) -> None:
        rank = self.ranks[number]
        index = rank.batch.popleft()
        rank.entered = False
        rank.ran.append(index)
        later = {group for rest in rank.batch for group in self._suite.groups[rest]}
        own = set(self._suite.groups[index])
        leave = index in self._leaving and len(rank.order["ranks"]) == 1
        if leave:
            rank.batch.clear()
        self._close(rank, [g for g in rank.order["close"] if g in own and g not in later])
        header: Header = {
            "kind": "done",
            "case": index,
            "failed": index in self._failing,
            "seconds": 0.001,
        }
        if index in self._leaving:
            header |= {"stop": True, "leave": leave}
        self.dispatcher.done(number, header, f"{index}:{number}".encode())

    def _close(self, rank: FakeRank, groups: Sequence[int]) -> None:
        for group in groups:
            # A rank that has left its batch may be told so before the dispatcher knows it.
            known = rank.given if self._leaving else rank.ran
            assert any(group in self._suite.groups[index] for index in known)
            assert group not in rank.closed
            rank.closed.append(group)

    def _take_verdict(self, header: Header, body: bytes) -> None:
        index, ranks = header["case"], header["ranks"]
        self.verdicts.append(index)
        start = 0
        parts = {}
        for rank, length in zip(ranks, header["lengths"], strict=True):
            parts[rank] = body[start : start + length]
            start += length
        assert start == len(body)
        self.bodies[index] = parts
        if self._acknowledges:
            self.dispatcher.logged(index)

    @property
    def judged(self) -> Counter[int]:
        """How often each test has come to the reporter, as a verdict or by running on it alone."""
        alone = [i for i in self.ranks[0].ran if self._suite.cases[i].size == 1]
        return Counter(self.verdicts) + Counter(alone)

    @property
    def started(self) -> set[int]:
        return {index for rank in self.ranks for index in rank.ran}


@dataclass(frozen=True, kw_only=True)
class Scene:
    scheduler: str
    suite: ScheduledSuite
    width: int
    acknowledged: bool
    batching: bool
    chance: random.Random

    def crew(
        self, *, maxfail: int = 0, failing: Sequence[int] = (), leaving: Sequence[int] = ()
    ) -> FakeCrew:
        return FakeCrew(
            self.scheduler,
            self.suite,
            self.width,
            self.chance,
            acknowledged=self.acknowledged,
            batching=self.batching,
            maxfail=maxfail,
            failing=failing,
            leaving=leaving,
        )


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    """Tests in modules in packages, as a collection has them."""
    width = draw(st.integers(1, 5))
    tests = draw(
        st.lists(st.tuples(st.integers(1, width), st.integers(0, 3), st.booleans()), max_size=25)
    )
    known = draw(st.sampled_from((None, 0.001, 1.0)))
    groups = [
        # A package, one of its two modules, and perhaps a class in it.
        [module // 2, 10 + module, *([20 + module] if in_class else [])]
        for _, module, in_class in tests
    ]
    cases = [
        ScheduledTest(index=index, size=size, seconds=known)
        for index, (size, _, _) in enumerate(tests)
    ]
    return Scene(
        scheduler=draw(st.sampled_from(SCHEDULERS)),
        suite=ScheduledSuite(cases=cases, groups=groups),
        width=width,
        acknowledged=draw(st.booleans()),
        batching=draw(st.booleans()),
        chance=draw(st.randoms(use_true_random=False)),
    )


@given(scenes())
def test_every_test_gets_exactly_one_verdict_and_every_rank_one_end(scene: Scene) -> None:
    crew = scene.crew()
    crew.go()
    assert crew.judged == Counter(range(len(scene.suite.cases)))
    assert [rank.finished for rank in crew.ranks] == [1] * scene.width
    assert crew.dispatcher.finished


@given(scenes())
def test_a_test_runs_once_on_each_of_its_ranks_and_on_no_other(scene: Scene) -> None:
    crew = scene.crew()
    crew.go()
    counted = Counter(index for rank in crew.ranks for index in rank.ran)
    assert counted == Counter({case.index: case.size for case in scene.suite.cases})
    assert all(len(rank.ran) == len(set(rank.ran)) for rank in crew.ranks)


@given(scenes())
def test_a_verdict_carries_what_each_rank_said(scene: Scene) -> None:
    crew = scene.crew()
    crew.go()
    for index, parts in crew.bodies.items():
        assert len(parts) == scene.suite.cases[index].size
        assert parts == {rank: f"{index}:{rank}".encode() for rank in parts}


@given(scenes())
def test_a_group_is_closed_once_on_each_rank_that_was_in_it_and_after_its_last_test(
    scene: Scene,
) -> None:
    crew = scene.crew()
    crew.go()
    groups = scene.suite.groups
    for rank in crew.ranks:
        visited = {group for index in rank.ran for group in groups[index]}
        assert sorted(rank.closed) == sorted(visited)


@given(scenes())
def test_no_rank_comes_back_to_a_group_that_it_has_closed(scene: Scene) -> None:
    crew = scene.crew()
    crew.begin()
    groups = scene.suite.groups
    more = True
    while more:
        before = [(len(rank.ran), list(rank.closed)) for rank in crew.ranks]
        more = crew.step()
        for rank, (ran, closed) in zip(crew.ranks, before, strict=True):
            for index in rank.ran[ran:]:
                assert not set(groups[index]) & set(closed)


@given(scenes(), st.integers(1, 3))
def test_nothing_starts_after_so_many_failures(scene: Scene, maxfail: int) -> None:
    everything = range(len(scene.suite.cases))
    crew = scene.crew(maxfail=maxfail, failing=everything)
    crew.go()
    assert [rank.finished for rank in crew.ranks] == [1] * scene.width
    assert set(crew.judged.values()) <= {1}
    assert set(crew.judged) == crew.started
    assert len(crew.started) >= min(maxfail, len(everything))
    if scene.scheduler == "sequential" and all(case.size > 1 for case in scene.suite.cases):
        assert len(crew.started) == min(maxfail, len(everything))


@given(scenes(), st.integers(0, 40))
def test_what_runs_when_told_to_stop_gets_its_verdict_and_nothing_more_starts(
    scene: Scene, steps: int
) -> None:
    crew = scene.crew()
    crew.begin()
    for _ in range(steps):
        crew.step()
    told = {index for rank in crew.ranks for index in (*rank.ran, *rank.batch)}
    told |= {
        index
        for rank in crew.ranks
        for header, _ in rank.messages
        if header["kind"] == "run"
        for index in header["cases"]
    }
    crew.dispatcher.stop()
    crew._deliver()
    while crew.step():
        pass
    assert crew.started == told
    assert crew.judged == Counter(told)
    assert [rank.finished for rank in crew.ranks] == [1] * scene.width


@given(scenes(), st.integers(0, 40))
def test_told_to_stop_at_once_every_rank_is_told_the_end_once(scene: Scene, steps: int) -> None:
    crew = scene.crew()
    crew.begin()
    for _ in range(steps):
        crew.step()
    crew.dispatcher.stop(at_once=True)
    assert crew.dispatcher.finished
    ends = [rank for rank, header, _ in crew.dispatcher.outbox if header["kind"] == "finish"]
    already = [number for number, rank in enumerate(crew.ranks) for _ in range(rank.finished)]
    waiting = [
        number
        for number, rank in enumerate(crew.ranks)
        for header, _ in rank.messages
        if header["kind"] == "finish"
    ]
    assert sorted(ends + already + waiting) == list(range(scene.width))


@given(scenes(), st.data())
def test_a_rank_that_leaves_its_row_ends_the_run_and_what_it_left_has_no_verdict(
    scene: Scene, data: st.DataObject
) -> None:
    count = len(scene.suite.cases)
    leaving = data.draw(st.sets(st.integers(0, max(0, count - 1)), max_size=3))
    crew = scene.crew(leaving=sorted(leaving))
    crew.go()
    assert [rank.finished for rank in crew.ranks] == [1] * scene.width
    assert crew.judged == Counter(crew.started)
    if not leaving & crew.started:
        assert len(crew.started) == count


def test_a_row_is_left_at_the_test_that_stops_the_run() -> None:
    cases = [ScheduledTest(index=index, size=1) for index in range(5)]
    suite = ScheduledSuite(cases=cases, groups=[[0]] * 5)
    crew = FakeCrew("sequential", suite, 1, random.Random(0), leaving=[2])
    crew.go()
    assert crew.ranks[0].ran == [0, 1, 2]
    assert crew.ranks[0].finished == 1


class _AnyRanks:
    """A policy that brings ever new ranks together, one test at a time."""

    one_by_one: ClassVar[bool] = True

    def __init__(self, tests: int, width: int, chance: random.Random) -> None:
        self._waiting = list(range(tests))
        self._width = width
        self._chance = chance
        self._free = 0

    def release(self, ranks: tuple[int, ...]) -> None:
        self._free += len(ranks)

    def put_back(self, case: int) -> None:
        raise AssertionError(f"no rank is lost, and {case} is put back")

    def take(self) -> Assignment | None:
        if self._free < self._width or not self._waiting:
            return None
        ranks = tuple(sorted(self._chance.sample(range(self._width), self._chance.randint(2, 5))))
        self._free -= len(ranks)
        return Assignment(cases=(self._waiting.pop(),), ranks=ranks)


TWO_DOMAINS = {
    **{level: [0, 1, 2, 3] for level in ("core",)},
    **{level: [0, 0, 1, 1] for level in ("l3", "numa", "socket")},
    "node": [0] * 4,
}


@pytest.mark.parametrize("scheduler", ["static", "dynamic"])
def test_ranks_of_a_domain_that_a_test_has_alone_stay_idle_until_it_is_over(scheduler: str) -> None:
    cases = [ScheduledTest(index=0, size=1, exclusive="numa")]
    cases += [ScheduledTest(index=index, size=1) for index in range(1, 7)]
    suite = ScheduledSuite(cases=cases, groups=[()] * len(cases))
    policy = make_scheduler(scheduler, suite, 4, pace := Pace(), domains=TWO_DOMAINS)
    dispatcher = Dispatcher(suite, policy, pace, width=4)
    dispatcher.begin()
    given: dict[int, list[int]] = {rank: [] for rank in range(4)}

    def deliver() -> None:
        while dispatcher.outbox:
            rank, header, _ = dispatcher.outbox.popleft()
            if header["kind"] == "run":
                assert header["ranks"] == (rank,)
                given[rank] += header["cases"]

    def end(rank: int) -> None:
        case = given[rank].pop(0)
        dispatcher.done(rank, {"case": case, "failed": False, "seconds": 1.0}, b"")
        deliver()

    deliver()
    assert given[0] == [0]
    end(2)
    end(3)
    assert given[1] == []
    assert given[2]
    assert given[3]
    end(0)
    assert given[0]
    assert given[1]
    while any(given.values()):
        end(next(rank for rank, cases in given.items() if cases))
    assert dispatcher.finished


def test_the_number_of_groups_that_a_rank_keeps_a_communicator_for_is_bounded() -> None:
    """There are 252 groups of 5 of 10 ranks, and an MPI has some two thousand communicators."""
    cases = [ScheduledTest(index=index, size=5) for index in range(1000)]
    suite = ScheduledSuite(cases=cases, groups=[()] * len(cases))
    policy = _AnyRanks(len(cases), 10, random.Random(1))
    dispatcher = Dispatcher(suite, policy, Pace(), width=10)
    dispatcher.begin()
    kept: dict[int, set[tuple[int, ...]]] = {rank: set() for rank in range(10)}
    decided: dict[tuple[int, ...], bool] = {}
    while dispatcher.outbox:
        rank, header, _ = dispatcher.outbox.popleft()
        if header["kind"] == "run":
            ranks, keep = header["ranks"], header["keep"]
            assert decided.setdefault(ranks, keep) == keep, "kept once, kept for good"
            if keep:
                kept[rank].add(ranks)
            done = {"kind": "done", "case": header["cases"][0], "failed": False, "seconds": 0.0}
            dispatcher.done(rank, done, b"")
    assert dispatcher.finished
    assert all(0 < len(groups) <= 32 for groups in kept.values())
    assert len(decided) > 10 * 32, "or there was nothing to bound"


def test_an_empty_suite_ends_at_once() -> None:
    crew = FakeCrew("dynamic", ScheduledSuite(cases=[], groups=[]), 3, random.Random(0))
    crew.go()
    assert [rank.finished for rank in crew.ranks] == [1, 1, 1]


def test_acknowledged_verdicts_hold_the_next_test_back_until_they_are_reported() -> None:
    cases = [ScheduledTest(index=index, size=2) for index in range(2)]
    suite = ScheduledSuite(cases=cases, groups=[[], []])
    policy = make_scheduler("sequential", suite, 2, pace := Pace())
    dispatcher = Dispatcher(suite, policy, pace, width=2, acknowledged=True)
    dispatcher.begin()
    done = {"kind": "done", "case": 0, "failed": False, "seconds": 0.0}
    for rank in range(2):
        dispatcher.done(rank, done, b"")
    kinds = [(rank, header["kind"]) for rank, header, _ in dispatcher.outbox]
    assert kinds == [(0, "run"), (1, "run"), (0, "verdict")]
    dispatcher.outbox.clear()
    dispatcher.logged(0)
    assert [(rank, h["kind"], h["cases"]) for rank, h, _ in dispatcher.outbox] == [
        (0, "run", (1,)),
        (1, "run", (1,)),
    ]


def test_a_test_fails_if_it_failed_on_any_of_its_ranks() -> None:
    cases = [ScheduledTest(index=index, size=2) for index in range(2)]
    suite = ScheduledSuite(cases=cases, groups=[[], []])
    policy = make_scheduler("sequential", suite, 2, pace := Pace())
    dispatcher = Dispatcher(suite, policy, pace, width=2, maxfail=1)
    dispatcher.begin()
    for rank, failed in enumerate((True, False)):
        header = {"kind": "done", "case": 0, "failed": failed, "seconds": 0.0}
        dispatcher.done(rank, header, b"")
    assert dispatcher.finished


def test_a_rank_that_speaks_of_a_test_it_was_not_given_is_not_believed() -> None:
    suite = ScheduledSuite(cases=[ScheduledTest(index=0, size=1)], groups=[[]])
    policy = make_scheduler("dynamic", suite, 2, pace := Pace())
    dispatcher = Dispatcher(suite, policy, pace, width=2)
    dispatcher.begin()
    with pytest.raises(KeyError):
        dispatcher.done(0, {"kind": "done", "case": 7, "failed": False, "seconds": 0.0}, b"")


def test_a_rank_that_stops_its_session_stops_the_run_and_the_reporter_is_told_why() -> None:
    cases = [ScheduledTest(index=index, size=1) for index in range(3)]
    suite = ScheduledSuite(cases=cases, groups=[[0]] * 3)
    pace = Pace(batching=False)
    dispatcher = Dispatcher(suite, make_scheduler("dynamic", suite, 2, pace), pace, width=2)
    dispatcher.begin()
    why = {"fail": "", "stop": "enough"}
    done = {"case": 1, "failed": False, "seconds": 0.1, "stop": True, "leave": True, "why": why}
    dispatcher.done(1, done, b"")
    dispatcher.done(0, {"case": 0, "failed": False, "seconds": 0.1}, b"")
    told = [header for rank, header, _ in dispatcher.outbox if rank == 0]
    assert {"kind": "stopped", **why} in told
    assert dispatcher.not_started() == [2]
    assert dispatcher.finished


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_only_the_row_with_the_last_test_is_said_to_be_the_last(scheduler: str) -> None:
    cases = [ScheduledTest(index=index, size=1) for index in range(4)]
    suite = ScheduledSuite(cases=cases, groups=[[0]] * 4)
    crew = FakeCrew(scheduler, suite, 2, random.Random(0), batching=False)
    crew.go()
    batches = [order for rank in crew.ranks for order in rank.orders]
    assert [order.get("last", False) for order in batches].count(True) == 1
    # It is the last of what some rank has got.
    assert any(rank.orders and rank.orders[-1].get("last") for rank in crew.ranks)
