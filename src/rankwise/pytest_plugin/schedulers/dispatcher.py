"""Turn a scheduler's decisions into orders for ranks, and what ranks say into verdicts to report.

No sockets and no pytest in here: messages come in by method calls and go out through `outbox`.

A scheduler deals in slots: as many as ranks may be busy at once. The workers are the processes that
run tests. Under mpirun they are the same; a pool has several worlds whose ranks take turns on its
slots, and after a crash other processes have the same slots.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from rankwise.pytest_plugin.connections import Header
from rankwise.pytest_plugin.schedulers.base import (
    Assignment,
    Domains,
    Pace,
    ScheduledTest,
    Scheduler,
    SchedulerFactory,
    WorldKind,
)
from rankwise.pytest_plugin.schedulers.dynamic import Dynamic
from rankwise.pytest_plugin.schedulers.sequential import Sequential
from rankwise.pytest_plugin.schedulers.static import Static

# Some MPIs have no more than 2,048 communicators, and tests want theirs.
_MOST_CIRCLES = 32

NO_WORKER = -1
"""Stands for the reporter where it is no worker."""


class ScheduledSuite(NamedTuple):
    """The tests of a run as the dispatcher knows them: numbers only."""

    cases: Sequence[ScheduledTest]
    groups: Sequence[Sequence[int]]
    """For each test, the collectors (package, module, class) that it belongs to."""


def make_scheduler(
    name: str,
    suite: ScheduledSuite,
    width: int,
    pace: Pace,
    *,
    strict: bool = True,
    apart: bool = False,
    domains: Domains | None = None,
) -> Scheduler:
    """Return the scheduler of this name: ours, or one that is installed as an entry point.

    A strict sequence has no batches of short tests, and with `apart` none of tests on one rank.
    Raises ImportError for a name that is none.
    """
    match name:
        case "sequential":
            return Sequential(suite.cases, None if strict else pace, apart=strict and apart)
        case "static":
            return Static(suite.cases, width, pace, domains=domains)
        case "dynamic":
            return Dynamic(suite.cases, width, pace, domains=domains)
    # Only here: hardly any run has a scheduler of another package.
    from rankwise.plugins import SCHEDULERS

    make: SchedulerFactory = SCHEDULERS.load(name)
    near = domains["numa"] if domains else [0] * width
    return make(suite.cases, width=width, pace=pace, domains=near)


class WorldProvider(Protocol):
    """Says which workers run what was given to some slots."""

    def place(self, assignment: Assignment, first: ScheduledTest) -> tuple[int, ...] | None:
        """Return the workers, in the order of their ranks; None: they have yet to be started."""

    def release_workers(self, workers: tuple[int, ...]) -> None:
        """Learn that workers that were not of the shared world have run what they were given."""

    def workers(self) -> Iterable[int]:
        """Return all workers that there are."""


class OneWorld:
    """The ranks of mpirun: every slot is a worker."""

    def __init__(self, width: int) -> None:
        self._width = width

    def place(self, assignment: Assignment, first: ScheduledTest) -> tuple[int, ...]:
        return assignment.ranks[: first.ranks or first.size]

    def release_workers(self, workers: tuple[int, ...]) -> None:
        raise AssertionError(f"{workers} are of the only world there is")

    def workers(self) -> Iterable[int]:
        return range(self._width)


@dataclass(slots=True, kw_only=True, eq=False)
class _Batch:
    """Tests that the same workers run one after the other, and which of them each still has."""

    assignment: Assignment
    workers: tuple[int, ...]
    world_kind: WorldKind
    left: dict[int, deque[int]]
    released: set[int] = field(default_factory=set)

    @property
    def is_over(self) -> bool:
        return not any(self.left.values())


@dataclass(slots=True, kw_only=True)
class _Running:
    """A test on its way: who still has it, and what the others said."""

    slots: tuple[int, ...]
    workers: tuple[int, ...]
    ranks: tuple[int, ...]
    waiting: set[int]
    bodies: dict[int, bytes] = field(default_factory=dict)
    failed: bool = False
    seconds: float = 0.0


class RunningTest(NamedTuple):
    """A test that had been given to workers and was not over."""

    case: int
    workers: tuple[int, ...]
    at_it: frozenset[int]
    """Workers for which it was the next one to end."""
    bodies: dict[int, bytes]
    """What those said who were done with it."""


class Dispatcher:
    """Runs one suite on `width` slots."""

    def __init__(
        self,
        suite: ScheduledSuite,
        scheduler: Scheduler,
        pace: Pace,
        *,
        width: int,
        reporter: int = 0,
        maxfail: int = 0,
        acknowledged: bool = False,
        worlds: WorldProvider | None = None,
    ) -> None:
        self.outbox: deque[tuple[int, Header, bytes]] = deque()
        self.finished = False
        self._suite = suite
        self._scheduler = scheduler
        self._pace = pace
        self._width = width
        self._worlds = worlds or OneWorld(width)
        self._reporter = reporter
        self._maxfail = maxfail
        # Whether a test must have been reported before the next one starts.
        self._acknowledged = acknowledged and scheduler.one_by_one
        self.completed = 0
        """How many tests have come to their end."""
        self._failures = 0
        self._stopping = False
        self._running: dict[int, _Running] = {}
        self._batches: dict[int, _Batch] = {}
        self._given: set[int] = set()
        self._parked: deque[Assignment] = deque()
        self._unassigned: dict[int, int] = defaultdict(int)
        self._circles: set[tuple[int, ...]] = set()
        self._kept: dict[int, int] = defaultdict(int)
        self._visitors: dict[int, set[int]] = {}
        for groups in suite.groups:
            for group in groups:
                self._unassigned[group] += 1

    def begin(self) -> None:
        """Let every rank start."""
        self._scheduler.release(tuple(range(self._width)))
        self._dispatch()

    def resume(self) -> None:
        """Try again to place what waited for workers to be started."""
        # Those that find no room again are parked once more meanwhile.
        parked, self._parked = self._parked, deque()
        if not self._stopping:
            for assignment in parked:
                self._assign(assignment)

    def done(self, worker: int, header: Header, body: bytes) -> None:
        """Take in what a worker says about a test that it has run."""
        index = header["case"]
        running = self._running[index]
        running.waiting.discard(worker)
        running.bodies[worker] = body
        running.failed = running.failed or header["failed"]
        running.seconds = max(running.seconds, header["seconds"])
        batch = self._batches[worker]
        batch.left[worker].popleft()
        # Its session is told to stop, by maxfail or a hook: the worker runs no more of its batch.
        if header.get("leave"):
            self._abandon(batch, worker)
        if not running.waiting:
            self._complete(index, running, batch)
        if not batch.left[worker]:
            self._leave_batch(batch, worker)
        if header.get("stop"):
            self._stopping = True
        if header.get("why"):
            self.halt(header["why"])
        self._dispatch()

    def _leave_batch(self, batch: _Batch, worker: int) -> None:
        """Release a worker's slot, or all of them if it was the last and they go together."""
        del self._batches[worker]
        if batch.world_kind == "shared" and not self._scheduler.one_by_one:
            slot = batch.assignment.ranks[batch.workers.index(worker)]
            batch.released.add(slot)
            # A worker of the shared world is free by itself, before others are back from the test.
            self._scheduler.release((slot,))
        if not batch.is_over:
            return
        if batch.world_kind != "shared":
            self._worlds.release_workers(batch.workers)
        if not self._scheduler.one_by_one:
            # Those of a world of its own, or those that were kept idle.
            left = [slot for slot in batch.assignment.ranks if slot not in batch.released]
            self._scheduler.release(tuple(left))

    def logged(self, index: int) -> None:
        """Learn that the verdict on a test has been reported."""
        # None: the test was lost meanwhile, and runs again.
        running = self._running.pop(index, None)
        if running is not None:
            self._scheduler.release(running.slots)
            self._dispatch()

    def stop(self, *, at_once: bool = False) -> None:
        """Start nothing more; what runs may end. At once: don't wait for it."""
        self._stopping = True
        if at_once:
            self._finish()
        else:
            self._dispatch()

    def halt(self, why: Header) -> None:
        """Start nothing more, as a worker's session wants it; the reporter is told why."""
        header = {"kind": "stopped", "fail": why["fail"], "stop": why["stop"]}
        self.outbox.append((self._reporter, header, b""))
        self.stop()

    def running_tests(self, workers: Collection[int]) -> list[RunningTest]:
        """Return the tests that some of these workers have and that are not over."""
        found = []
        for batch in self._batches_of(workers):
            for index in batch.assignment.cases:
                running = self._running.get(index)
                if running is not None and running.waiting:
                    found.append(
                        RunningTest(
                            case=index,
                            workers=batch.workers,
                            at_it=frozenset(
                                one for one, left in batch.left.items() if left and left[0] == index
                            ),
                            bodies=dict(running.bodies),
                        )
                    )
        return found

    def _batches_of(self, workers: Iterable[int]) -> list[_Batch]:
        """Return what these workers have, each once."""
        # Batches are equal only if they are the same.
        return list(dict.fromkeys(self._batches[one] for one in workers if one in self._batches))

    def at_work(self) -> list[tuple[int, tuple[int, ...]]]:
        """Return the tests that run now and their slots; of those that travel together, one."""
        found = []
        for batch in self._batches_of(self._batches):
            next_ones = {left[0] for left in batch.left.values() if left}
            case = next((one for one in batch.assignment.cases if one in next_ones), None)
            if case is not None:
                found.append((case, batch.assignment.ranks))
        return found

    def seconds_left(self) -> float | None:
        """Estimate how long the rest takes, if nothing has to wait; None: nothing is known."""
        work = longest = 0.0
        for case in self._suite.cases:
            if case.index in self._given and case.index not in self._running:
                continue
            seconds = self._pace.estimate(case)
            if seconds is None:
                return None
            work += case.size * seconds
            longest = max(longest, seconds)
        return max(work / self._width, longest)

    def slots_of(self, index: int) -> tuple[int, ...]:
        """Return the slots that a test has which is not over."""
        running = self._running.get(index)
        return running.slots if running is not None else ()

    def not_started(self) -> list[int]:
        """Return the tests that no worker has been given, as far as they are known."""
        return [case.index for case in self._suite.cases if case.index not in self._given]

    def lose(self, workers: Collection[int], blamed: Collection[int]) -> None:
        """Learn that workers are gone: what they had starts again, but for the blamed tests."""
        # In reverse, as each of them is put back before those that are there.
        for running in reversed(self.running_tests(workers)):
            del self._running[running.case]
            if running.case in blamed:
                self.completed += 1
                self._count_failure()
            else:
                self._scheduler.put_back(running.case)
                self._given.discard(running.case)
                for group in self._suite.groups[running.case]:
                    self._unassigned[group] += 1
        for visitors in self._visitors.values():
            visitors.difference_update(workers)
        for batch in self._batches_of(workers):
            for one in batch.workers:
                if self._batches.get(one) is batch:
                    del self._batches[one]
            self._scheduler.release(
                tuple(slot for slot in batch.assignment.ranks if slot not in batch.released)
            )
        self.resume()
        self._dispatch()

    def _abandon(self, batch: _Batch, worker: int) -> None:
        """Forget the rest of a batch that a worker will not run: only batches of one-rank tests."""
        left = batch.left[worker]
        while left:
            del self._running[left.popleft()]

    def _complete(self, index: int, running: _Running, batch: _Batch) -> None:
        self._pace.observe(running.seconds)
        self.completed += 1
        if running.failed:
            self._count_failure()
        # The reporter has reported its own test already: no verdict has to travel.
        local = running.workers == (self._reporter,)
        if not local:
            self._send_verdict(index, running)
        if local or not self._acknowledged:
            del self._running[index]
            if self._scheduler.one_by_one and batch.is_over:
                self._scheduler.release(running.slots)

    def _count_failure(self) -> None:
        self._failures += 1
        if self._maxfail and self._failures >= self._maxfail:
            self._stopping = True

    def _send_verdict(self, index: int, running: _Running) -> None:
        bodies = [running.bodies[worker] for worker in running.workers]
        header = {
            "kind": "verdict",
            "case": index,
            "ranks": running.ranks,
            "lengths": [len(body) for body in bodies],
        }
        if running.slots != running.ranks:
            header["slots"] = running.slots
        self.outbox.append((self._reporter, header, b"".join(bodies)))

    def _dispatch(self) -> None:
        while not self._stopping and (assignment := self._scheduler.take()) is not None:
            self._assign(assignment)
        if self._stopping:
            self._parked.clear()
        if not self._running and not self._parked:
            self._finish()

    def _finish(self) -> None:
        if not self.finished:
            self.finished = True
            for worker in self._worlds.workers():
                self.outbox.append((worker, {"kind": "finish"}, b""))

    def _assign(self, assignment: Assignment) -> None:
        first = self._suite.cases[assignment.cases[0]]
        workers = self._worlds.place(assignment, first)
        if workers is None:
            self._parked.append(assignment)
            return
        ranks = tuple(range(len(workers)))
        if first.world_kind == "shared":
            ranks = assignment.ranks[: len(workers)]
        self._given.update(assignment.cases)
        for index in assignment.cases:
            self._running[index] = _Running(
                slots=assignment.ranks, workers=workers, ranks=ranks, waiting=set(workers)
            )
        header = {
            "kind": "run",
            "cases": assignment.cases,
            "ranks": ranks,
            "close": self._visit(assignment, workers, first.world_kind),
            "keep": self._meet_again(workers),
        }
        if first.world_kind != "shared":
            header["world_kind"] = first.world_kind
        if len(self._given) == len(self._suite.cases):
            header["last"] = True
        batch = _Batch(
            assignment=assignment,
            workers=workers,
            world_kind=first.world_kind,
            left={worker: deque(assignment.cases) for worker in workers},
        )
        for worker in workers:
            self._batches[worker] = batch
            self.outbox.append((worker, header, b""))

    def _meet_again(self, workers: tuple[int, ...]) -> bool:
        """Decide whether these workers keep the communicator between them for their next test.

        Decided here because all of them must do the same; communicators are a scarce resource.
        """
        if workers not in self._circles and all(self._kept[one] < _MOST_CIRCLES for one in workers):
            self._circles.add(workers)
            for one in workers:
                self._kept[one] += 1
        return workers in self._circles

    def _visit(
        self, assignment: Assignment, workers: tuple[int, ...], world_kind: WorldKind
    ) -> list[int]:
        """Note which workers have been in which groups; give the groups that end with these tests.

        A worker keeps a module's fixtures alive for as long as tests of that module may still come
        to it. Workers that had earlier tests of a group that ends now are told to close it.
        """
        closing = []
        for index in assignment.cases:
            for group in self._suite.groups[index]:
                visitors = self._visitors.setdefault(group, set())
                # A world for one test ends with it, and so do its fixtures.
                if world_kind != "fresh":
                    visitors.update(workers)
                self._unassigned[group] -= 1
                if not self._unassigned[group]:
                    closing.append(group)
        # Workers of these tests close it themselves, after the last one.
        for group in closing:
            for worker in self._visitors.pop(group).difference(workers):
                self.outbox.append((worker, {"kind": "close", "groups": [group]}, b""))
        return closing


def make_dispatcher(
    name: str,
    suite: ScheduledSuite,
    *,
    width: int,
    careful: bool,
    strict: bool,
    maxfail: int,
    domains: Domains | None = None,
    worlds: WorldProvider | None = None,
) -> Dispatcher:
    """Make the dispatcher of a run; without worlds, for the ranks of an mpirun, of which 0 reports.

    Careful: a test starts only when the one before has been reported.
    """
    pace = Pace(batching=not careful)
    is_pool = worlds is not None
    scheduler = make_scheduler(
        name, suite, width, pace, strict=strict, apart=is_pool, domains=domains
    )
    return Dispatcher(
        suite,
        scheduler,
        pace,
        width=width,
        reporter=NO_WORKER if is_pool else 0,
        maxfail=maxfail,
        acknowledged=careful,
        worlds=worlds,
    )
