"""Turn a policy's decisions into orders for ranks, and what ranks say into verdicts to report.

No sockets and no pytest in here: messages come in by method calls and go out through `outbox`.

A policy deals in seats: as many as ranks may be busy at once. The members are the processes that
run tests. Under mpirun they are the same; a pool has several worlds whose ranks take turns on its
seats, and after a crash other processes have the same seats.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from rankwise.testing.policy import Assignment, Case, Dynamic, Pace, Policy, Sequential, Static
from rankwise.testing.policy.contract import Venue
from rankwise.testing.wire import Header

# Some MPIs have no more than 2,048 communicators, and tests want theirs.
_MOST_CIRCLES = 32

NOBODY = -1
"""Stands for the reporter where it is no member."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """The tests of a run as the dispatcher knows them: numbers only."""

    cases: Sequence[Case]
    groups: Sequence[Sequence[int]]
    """For each test, the collectors (package, module, class) that it belongs to."""


def make_policy(
    scheduler: str,
    suite: Suite,
    width: int,
    pace: Pace,
    *,
    strict: bool = True,
    domains: Sequence[int] | None = None,
) -> Policy:
    """Choose the policy behind a scheduler's name; a strict sequence has no rows of short tests.

    Raises ValueError for a name that is none.
    """
    match scheduler:
        case "sequential":
            return Sequential(suite.cases, None if strict else pace)
        case "static":
            return Static(suite.cases, width, pace)
        case "dynamic":
            return Dynamic(suite.cases, width, pace, domains=domains)
    raise ValueError(f"unknown scheduler {scheduler!r}")


class Venues(Protocol):
    """Says which members run what was given to some seats."""

    def place(self, assignment: Assignment, first: Case) -> tuple[int, ...] | None:
        """Give the members, in the order of their ranks; None: they have yet to be started."""

    def vacate(self, members: tuple[int, ...]) -> None:
        """Learn that members that were not of the shared world have run what they were given."""

    def everyone(self) -> Iterable[int]:
        """Give all members that there are."""


class OneWorld:
    """The ranks of mpirun: every seat is a member."""

    def __init__(self, width: int) -> None:
        self._width = width

    def place(self, assignment: Assignment, _first: Case) -> tuple[int, ...]:
        return assignment.ranks

    def vacate(self, members: tuple[int, ...]) -> None:
        raise AssertionError(f"{members} are of the only world there is")

    def everyone(self) -> Iterable[int]:
        return range(self._width)


@dataclass(slots=True, kw_only=True, eq=False)
class _Row:
    """Tests that the same members run one after the other, and which of them each still has."""

    assignment: Assignment
    members: tuple[int, ...]
    venue: Venue
    left: dict[int, deque[int]]
    released: set[int] = field(default_factory=set)

    @property
    def is_over(self) -> bool:
        return not any(self.left.values())


@dataclass(slots=True, kw_only=True)
class _Running:
    """A test on its way: who still has it, and what the others said."""

    seats: tuple[int, ...]
    members: tuple[int, ...]
    ranks: tuple[int, ...]
    waiting: set[int]
    bodies: dict[int, bytes] = field(default_factory=dict)
    failed: bool = False
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Flight:
    """A test that had been given to members and was not over."""

    case: int
    members: tuple[int, ...]
    at_it: frozenset[int]
    """Members for which it was the next one to end."""
    bodies: dict[int, bytes]
    """What those said who were done with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AtWork:
    """A test that runs now, and on which seats."""

    case: int
    seats: tuple[int, ...]


class Dispatcher:
    """Runs one suite on `width` seats."""

    def __init__(
        self,
        suite: Suite,
        policy: Policy,
        pace: Pace,
        *,
        width: int,
        reporter: int = 0,
        maxfail: int = 0,
        acknowledged: bool = False,
        venues: Venues | None = None,
    ) -> None:
        self.outbox: deque[tuple[int, Header, bytes]] = deque()
        self.finished = False
        self._suite = suite
        self._policy = policy
        self._pace = pace
        self._width = width
        self._venues = venues or OneWorld(width)
        self._reporter = reporter
        self._maxfail = maxfail
        # Whether a test must have been reported before the next one starts.
        self._acknowledged = acknowledged and policy.one_by_one
        self.completed = 0
        """How many tests have come to their end."""
        self._failures = 0
        self._stopping = False
        self._running: dict[int, _Running] = {}
        self._rows: dict[int, _Row] = {}
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
        self._policy.release(tuple(range(self._width)))
        self._dispatch()

    def resume(self) -> None:
        """Try again to place what waited for members to be started."""
        parked, self._parked = self._parked, deque()
        for assignment in parked:
            self._assign(assignment)

    def done(self, member: int, header: Header, body: bytes) -> None:
        """Take in what a member says about a test that it has run."""
        index = header["case"]
        running = self._running[index]
        running.waiting.discard(member)
        running.bodies[member] = body
        running.failed = running.failed or header["failed"]
        running.seconds = max(running.seconds, header["seconds"])
        row = self._rows[member]
        row.left[member].popleft()
        if header.get("leave"):
            self._abandon(row, member)
        if not running.waiting:
            self._complete(index, running, row)
        if not row.left[member]:
            self._leave_row(row, member)
        if header.get("stop"):
            self._stopping = True
        self._dispatch()

    def _leave_row(self, row: _Row, member: int) -> None:
        """Give up a member's seat, or all of them if it was the last and they go together."""
        del self._rows[member]
        if row.venue == "shared" and not self._policy.one_by_one:
            seat = row.assignment.ranks[row.members.index(member)]
            row.released.add(seat)
            self._policy.release((seat,))
        if not row.is_over:
            return
        if row.venue != "shared":
            self._venues.vacate(row.members)
            if not self._policy.one_by_one:
                self._policy.release(row.assignment.ranks)

    def logged(self, index: int) -> None:
        """Learn that the verdict on a test has been reported."""
        running = self._running.pop(index, None)
        if running is not None:
            self._policy.release(running.seats)
            self._dispatch()

    def stop(self, *, at_once: bool = False) -> None:
        """Start nothing more; what runs may end. At once: don't wait for it."""
        self._stopping = True
        self._parked.clear()
        if at_once:
            self._finish()
        else:
            self._dispatch()

    def flights(self, members: Collection[int]) -> list[Flight]:
        """Give the tests that some of these members have and that are not over."""
        rows = {id(row): row for one in members if (row := self._rows.get(one)) is not None}
        found = []
        for row in rows.values():
            for index in row.assignment.cases:
                running = self._running.get(index)
                if running is not None and running.waiting:
                    found.append(
                        Flight(
                            case=index,
                            members=row.members,
                            at_it=frozenset(
                                one for one, left in row.left.items() if left and left[0] == index
                            ),
                            bodies=dict(running.bodies),
                        )
                    )
        return found

    def at_work(self) -> list[AtWork]:
        """Give the tests that run now; of those that travel together, the first."""
        found = []
        for row in {id(row): row for row in self._rows.values()}.values():
            next_ones = {left[0] for left in row.left.values() if left}
            case = next((one for one in row.assignment.cases if one in next_ones), None)
            if case is not None:
                found.append(AtWork(case=case, seats=row.assignment.ranks))
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

    def seats_of(self, index: int) -> tuple[int, ...]:
        """Give the seats that a test has which is not over."""
        running = self._running.get(index)
        return running.seats if running is not None else ()

    def not_started(self) -> list[int]:
        """Give the tests that no member has been given, as far as they are known."""
        return [case.index for case in self._suite.cases if case.index not in self._given]

    def lose(self, members: Collection[int], blamed: Collection[int]) -> None:
        """Learn that members are gone: what they had starts again, but for the blamed tests."""
        for flight in reversed(self.flights(members)):
            del self._running[flight.case]
            if flight.case in blamed:
                self._count_failure()
            else:
                self._policy.put_back(flight.case)
                for group in self._suite.groups[flight.case]:
                    self._unassigned[group] += 1
        for visitors in self._visitors.values():
            visitors.difference_update(members)
        for row in {id(row): row for one in members if (row := self._rows.get(one))}.values():
            for one in row.members:
                if self._rows.get(one) is row:
                    del self._rows[one]
            self._policy.release(
                tuple(seat for seat in row.assignment.ranks if seat not in row.released)
            )
        self.resume()
        self._dispatch()

    def _abandon(self, row: _Row, member: int) -> None:
        """Forget the rest of a row that a member will not run: only rows of one-rank tests."""
        left = row.left[member]
        while left:
            del self._running[left.popleft()]

    def _complete(self, index: int, running: _Running, row: _Row) -> None:
        self._pace.observe(running.seconds)
        self.completed += 1
        if running.failed:
            self._count_failure()
        local = running.members == (self._reporter,)
        if not local:
            self._send_verdict(index, running)
        if local or not self._acknowledged:
            del self._running[index]
            if self._policy.one_by_one and row.is_over:
                self._policy.release(running.seats)

    def _count_failure(self) -> None:
        self._failures += 1
        if self._maxfail and self._failures >= self._maxfail:
            self._stopping = True

    def _send_verdict(self, index: int, running: _Running) -> None:
        bodies = [running.bodies[member] for member in running.members]
        header = {
            "kind": "verdict",
            "case": index,
            "ranks": running.ranks,
            "lengths": [len(body) for body in bodies],
        }
        if running.seats != running.ranks:
            header["seats"] = running.seats
        self.outbox.append((self._reporter, header, b"".join(bodies)))

    def _dispatch(self) -> None:
        while not self._stopping and (assignment := self._policy.take()) is not None:
            self._assign(assignment)
        if self._stopping:
            self._parked.clear()
        if not self._running and not self._parked:
            self._finish()

    def _finish(self) -> None:
        if not self.finished:
            self.finished = True
            for member in self._venues.everyone():
                self.outbox.append((member, {"kind": "finish"}, b""))

    def _assign(self, assignment: Assignment) -> None:
        first = self._suite.cases[assignment.cases[0]]
        members = self._venues.place(assignment, first)
        if members is None:
            self._parked.append(assignment)
            return
        ranks = assignment.ranks if first.venue == "shared" else tuple(range(len(members)))
        self._given.update(assignment.cases)
        for index in assignment.cases:
            self._running[index] = _Running(
                seats=assignment.ranks, members=members, ranks=ranks, waiting=set(members)
            )
        header = {
            "kind": "run",
            "cases": assignment.cases,
            "ranks": ranks,
            "close": self._visit(assignment, members, first.venue),
            "keep": self._meet_again(members),
        }
        if first.venue != "shared":
            header["venue"] = first.venue
        row = _Row(
            assignment=assignment,
            members=members,
            venue=first.venue,
            left={member: deque(assignment.cases) for member in members},
        )
        for member in members:
            self._rows[member] = row
            self.outbox.append((member, header, b""))

    def _meet_again(self, members: tuple[int, ...]) -> bool:
        """Decide whether these members keep the communicator between them for their next test.

        Decided here because all of them must do the same; communicators are a scarce resource.
        """
        if members not in self._circles and all(self._kept[one] < _MOST_CIRCLES for one in members):
            self._circles.add(members)
            for one in members:
                self._kept[one] += 1
        return members in self._circles

    def _visit(self, assignment: Assignment, members: tuple[int, ...], venue: Venue) -> list[int]:
        """Note which members have been in which groups; give the groups that end with these tests.

        A member keeps a module's fixtures alive for as long as tests of that module may still come
        to it. Members that had earlier tests of a group that ends now are told to close it.
        """
        closing = []
        for index in assignment.cases:
            for group in self._suite.groups[index]:
                visitors = self._visitors.setdefault(group, set())
                if venue != "fresh":
                    visitors.update(members)
                self._unassigned[group] -= 1
                if not self._unassigned[group]:
                    closing.append(group)
        for group in closing:
            for member in self._visitors.pop(group).difference(members):
                self.outbox.append((member, {"kind": "close", "groups": [group]}, b""))
        return closing
