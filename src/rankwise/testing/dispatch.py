"""Turn a policy's decisions into orders for ranks, and what ranks say into verdicts to report.

No sockets and no pytest in here: messages come in by method calls and go out through `outbox`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from rankwise.testing.policy import Assignment, Case, Dynamic, Pace, Policy, Sequential, Static
from rankwise.testing.wire import Header

# Some MPIs have no more than 2,048 communicators, and tests want theirs.
_MOST_CIRCLES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """The tests of a run as the dispatcher knows them: numbers only."""

    cases: Sequence[Case]
    groups: Sequence[Sequence[int]]
    """For each test, the collectors (package, module, class) that it belongs to."""


def make_policy(
    scheduler: str, suite: Suite, width: int, pace: Pace, *, strict: bool = True
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
            return Dynamic(suite.cases, width, pace)
    raise ValueError(f"unknown scheduler {scheduler!r}")


@dataclass(slots=True, kw_only=True)
class _Running:
    """A test on its way: who still has it, and what the others said."""

    ranks: tuple[int, ...]
    waiting: set[int]
    bodies: dict[int, bytes] = field(default_factory=dict)
    failed: bool = False
    seconds: float = 0.0


class Dispatcher:
    """Runs one suite on `width` ranks, one of which also reports."""

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
    ) -> None:
        self.outbox: deque[tuple[int, Header, bytes]] = deque()
        self.finished = False
        self._suite = suite
        self._policy = policy
        self._pace = pace
        self._width = width
        self._reporter = reporter
        self._maxfail = maxfail
        # Whether a test must have been reported before the next one starts.
        self._acknowledged = acknowledged and policy.one_by_one
        self._failures = 0
        self._stopping = False
        self._running: dict[int, _Running] = {}
        self._row: dict[int, deque[int]] = {}
        self._unassigned: dict[int, int] = {}
        self._circles: set[tuple[int, ...]] = set()
        self._kept = [0] * width
        self._visitors: dict[int, set[int]] = {}
        for groups in suite.groups:
            for group in groups:
                self._unassigned[group] = self._unassigned.get(group, 0) + 1

    def begin(self) -> None:
        """Let every rank start."""
        self._policy.release(tuple(range(self._width)))
        self._dispatch()

    def done(self, rank: int, header: Header, body: bytes) -> None:
        """Take in what a rank says about a test that it has run."""
        index = header["case"]
        running = self._running[index]
        running.waiting.discard(rank)
        running.bodies[rank] = body
        running.failed = running.failed or header["failed"]
        running.seconds = max(running.seconds, header["seconds"])
        row = self._row[rank]
        row.popleft()
        if header.get("leave"):
            self._abandon(rank)
        if not running.waiting:
            self._complete(index, running)
        if not row and not self._policy.one_by_one:
            self._policy.release((rank,))
        if header.get("stop"):
            self._stopping = True
        self._dispatch()

    def logged(self, index: int) -> None:
        """Learn that the verdict on a test has been reported."""
        running = self._running.pop(index, None)
        if running is not None:
            self._policy.release(running.ranks)
            self._dispatch()

    def stop(self, *, at_once: bool = False) -> None:
        """Start nothing more; what runs may end. At once: don't wait for it."""
        self._stopping = True
        if at_once:
            self._finish()
        else:
            self._dispatch()

    def _abandon(self, rank: int) -> None:
        """Forget the rest of a row that a rank will not run: only rows of one-rank tests."""
        while self._row[rank]:
            self._running.pop(self._row[rank].popleft())

    def _complete(self, index: int, running: _Running) -> None:
        self._pace.observe(running.seconds)
        if running.failed:
            self._failures += 1
            if self._maxfail and self._failures >= self._maxfail:
                self._stopping = True
        local = running.ranks == (self._reporter,)
        if not local:
            self._send_verdict(index, running)
        if local or not self._acknowledged:
            del self._running[index]
            if self._policy.one_by_one and not any(self._row[rank] for rank in running.ranks):
                self._policy.release(running.ranks)

    def _send_verdict(self, index: int, running: _Running) -> None:
        bodies = [running.bodies[rank] for rank in running.ranks]
        header = {
            "kind": "verdict",
            "case": index,
            "ranks": running.ranks,
            "lengths": [len(body) for body in bodies],
        }
        self.outbox.append((self._reporter, header, b"".join(bodies)))

    def _dispatch(self) -> None:
        while not self._stopping and (assignment := self._policy.take()) is not None:
            self._assign(assignment)
        if not self._running:
            self._finish()

    def _finish(self) -> None:
        if not self.finished:
            self.finished = True
            for rank in range(self._width):
                self.outbox.append((rank, {"kind": "finish"}, b""))

    def _assign(self, assignment: Assignment) -> None:
        for index in assignment.cases:
            self._running[index] = _Running(ranks=assignment.ranks, waiting=set(assignment.ranks))
        closing = self._visit(assignment)
        header = {
            "kind": "run",
            "cases": assignment.cases,
            "ranks": assignment.ranks,
            "close": closing,
            "keep": self._meet_again(assignment.ranks),
        }
        for rank in assignment.ranks:
            self._row[rank] = deque(assignment.cases)
            self.outbox.append((rank, header, b""))

    def _meet_again(self, ranks: tuple[int, ...]) -> bool:
        """Decide whether these ranks keep the communicator between them for their next test.

        Decided here because all of them must do the same; communicators are a scarce resource.
        """
        if ranks not in self._circles and all(self._kept[r] < _MOST_CIRCLES for r in ranks):
            self._circles.add(ranks)
            for rank in ranks:
                self._kept[rank] += 1
        return ranks in self._circles

    def _visit(self, assignment: Assignment) -> list[int]:
        """Note which ranks have been in which groups; give the groups that end with these tests.

        A rank keeps a module's fixtures alive for as long as tests of that module may still come
        to it. Ranks that had earlier tests of a group that ends now are told to close it.
        """
        closing = []
        for index in assignment.cases:
            for group in self._suite.groups[index]:
                self._visitors.setdefault(group, set()).update(assignment.ranks)
                self._unassigned[group] -= 1
                if not self._unassigned[group]:
                    closing.append(group)
        for group in closing:
            for rank in self._visitors.pop(group).difference(assignment.ranks):
                self.outbox.append((rank, {"kind": "close", "groups": [group]}, b""))
        return closing
