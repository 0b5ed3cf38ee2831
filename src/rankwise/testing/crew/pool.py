"""The controller's engine: it gives tests to worlds that it has started, and outlives them."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rankwise.errors import RankwiseError
from rankwise.testing.blackbox import Moment, OutputTail
from rankwise.testing.crew.inquest import Inquest, find_culprit, was_at
from rankwise.testing.crew.keeper import log_path
from rankwise.testing.crew.member import KEEPER, TEMPLATE, member_number, world_and_rank
from rankwise.testing.crew.terminal_loan import overlap
from rankwise.testing.crew.worlds import World, Worlds
from rankwise.testing.dispatch import NOBODY, Dispatcher, Flight
from rankwise.testing.ended import Ending, describe_status
from rankwise.testing.exchange import Exchange
from rankwise.testing.listing import ListedTest
from rankwise.testing.watch import Overdue, find_overdue
from rankwise.testing.wire import Header

_LOOK_SECONDS = 0.1
# Other ranks of the test may be on their way out too, and what a rank said last may yet arrive.
_SETTLE_SECONDS = 0.05
# A rank that has closed its line is gone, or has closed more than is its own.
_STATUS_SECONDS = 3.0
_START_SECONDS = 120.0
# There is room for a step when it is started: it need not wait for others.
_STUCK_SECONDS = 8.0
_MOST_BAD_STARTS = 3
# With a pause that grows by this between them, they last for two minutes.
_MOST_BAD_STEPS = 11
_PAUSE_SECONDS = 2.0
_DOUBT_SECONDS = 1.0
_DOUBT_LASTS_SECONDS = 30.0
# So often a test may be started again after all its ranks were ended by who knows whom.
_MOST_DOUBTS = 3
_LOG_LINES = 20


class PoolFailure(RankwiseError):
    """The pool cannot go on; the message says why."""


class Pool:
    """Runs a suite on worlds that may die at any time."""

    def __init__(self, lines: Exchange, worlds: Worlds, folder: Path, *, grace: float) -> None:
        self._lines = lines
        self.worlds = worlds
        self._folder = folder
        self._grace = grace
        self._dispatcher: Dispatcher | None = None
        self._tests: Sequence[ListedTest] = ()
        self._stumbles: dict[int, tuple[float, dict[int, bytes]]] = {}
        self._limits: Sequence[float] = ()
        self._inquest: Inquest | None = None
        self._doubts: dict[int, int] = {}
        self._bad_starts = 0
        self._last_look = 0.0
        self._temporary = ""
        self._order = b""
        self._reported: set[int] = set()
        self._doubt_at = 0.0
        self._doubt_until = 0.0
        self.explain_end: Callable[[], str] | None = None
        """Says how the allocation that the ranks are in has ended; empty: it has not."""
        self.share: Callable[[], bool] = lambda: False
        """Lets worlds start that a batch system keeps waiting; gives if that is new."""
        self.lost_nodes: Callable[[], Sequence[str]] = tuple
        self.servers: Callable[[], Sequence[str]] = lambda: (KEEPER, TEMPLATE)
        """Names those who start, end and know ranks."""
        self.on_verdict: Callable[[Header, bytes], None]
        self.on_ending: Callable[[int, Ending], None]
        self.on_interrupt: Callable[[Header], None]
        self.on_notice: Callable[[str], None]
        self.on_debug: Callable[[int, str], None] = lambda _member, _words: None
        """Lends the terminal to a member, and comes back when it is free again."""
        self._petitions: deque[tuple[int, str]] = deque()
        self._pauses: list[tuple[float, float]] = []
        self.on_look: Callable[[], None] = lambda: None
        """Called several times a second, for those who look on."""

    # The run

    def begin(self, tests: Sequence[ListedTest], dispatcher: Dispatcher, temporary: str) -> None:
        """Start with the first tests."""
        self._tests = tests
        self._limits = [test.limit for test in tests]
        self._inquest = Inquest(tests, grace=self._grace)
        self._dispatcher = dispatcher
        self._temporary = temporary
        for world in self.worlds.alive.values():
            for rank in world.ready:
                self._welcome(world, rank)
        dispatcher.begin()

    def run(self) -> None:
        """Go on until all tests are over."""
        assert self._dispatcher is not None
        while not self._dispatcher.finished:
            self.step()
        while any(not world.leaving for world in self.worlds.alive.values()):
            self._dismiss_idle()
            self.step()

    def end(self, seconds: float) -> None:
        """Let ranks that have been told to end do so, for no longer than this."""
        deadline = time.monotonic() + seconds
        while self.worlds.alive and time.monotonic() < deadline:
            self.step()
        for world in list(self.worlds.alive.values()):
            self._kill(world)
            self.worlds.remove(world)

    def interrupt(self, number: int) -> None:
        """Send a signal to every rank."""
        for world in self.worlds.alive.values():
            for rank in world.pids:
                order = {
                    "kind": "signal",
                    "world": world.number,
                    "rank": rank,
                    "signal": number,
                }
                self._tell_servers(order)
            world.leaving = True
        self._lines.flush()

    def step(self) -> None:
        """Deal with what has happened, or wait a moment for something to happen."""
        self._lines.step(_LOOK_SECONDS)
        self._deliver()
        if self._petitions:
            self._lend_terminal()
        now = time.monotonic()
        for world in list(self.worlds.alive.values()):
            if world.conclude_at is not None and now >= world.conclude_at:
                self._conclude(world)
        if now - self._last_look >= _LOOK_SECONDS:
            self._last_look = now
            self._look(now)
            self._resume_after_pause(now)
            self.on_look()
        self._deliver()
        self._lines.flush()

    def _deliver(self) -> None:
        dispatcher = self._dispatcher
        while dispatcher is not None and dispatcher.outbox:
            member, header, body = dispatcher.outbox.popleft()
            if member == NOBODY:
                self._reported.add(header["case"])
                self._stumbles.pop(header["case"], None)
                self.on_verdict(header, body)
                continue
            world, _ = world_and_rank(member)
            if header["kind"] == "finish":
                self._dismiss(self.worlds.alive.get(world))
            elif self._lines.has(member):
                self._lines.send(member, header, body)

    def _dismiss(self, world: World | None) -> None:
        if world is not None and not world.leaving:
            world.leaving = True
            for member in world.members:
                self._lines.send(member, {"kind": "finish"})

    def _dismiss_idle(self) -> None:
        """Let go of worlds that came too late to get a test."""
        for world in self.worlds.alive.values():
            if world.is_ready:
                self._dismiss(world)
            elif not world.leaving:
                world.leaving = True
                self._kill(world)

    # Messages

    def take(self, member: int, header: Header, body: bytes) -> None:
        """Take in what a member says."""
        number, rank = world_and_rank(member)
        world = self.worlds.alive.get(number)
        if world is None:
            return
        match header["kind"]:
            case "here":
                world.pids[rank] = int(header["pid"])
                world.nodes[rank] = header["node"]
            case "ready" if world.hearsay is not None:
                # Only there can its output be kept, and it has to be before the first test.
                place = {"world": number, "rank": rank, "pid": world.pids[rank]}
                self._tell_servers({"kind": "watch", **place, "outputs": header["outputs"]})
            case "ready":
                world.outputs[rank] = OutputTail(world.pids[rank], header["outputs"])
                self._note_ready(world, rank)
            case "done" if self._dispatcher is not None:
                self._dispatcher.done(member, header, body)
            case "stumbled":
                _, bodies = self._stumbles.setdefault(header["case"], (time.monotonic(), {}))
                bodies[member] = body
            case "late":
                self.on_verdict({**header, "rank": rank}, body)
            case "interrupt":
                if not world.leaving:
                    self.on_interrupt({**header, "rank": rank})
            case "debug":
                self._petitions.append((member, header["words"]))
            case "broken":
                raise PoolFailure(f"rank {rank} has failed to go on:\n{header['reason']}")
            case "bye" if world.leaving or self._is_stopped:
                world.leaving = True
                world.ended.setdefault(rank, 0)

    def _lend_terminal(self) -> None:
        """Let debuggers talk to the user, one after the other; time stands still meanwhile."""
        while self._petitions:
            member, words = self._petitions.popleft()
            if self._lines.has(member):
                start = time.monotonic()
                self.on_debug(member, words)
                self._pauses.append((start, time.monotonic()))

    def pid_of(self, member: int) -> int:
        """Give the process of a member; 0: it has none that is known."""
        number, rank = world_and_rank(member)
        world = self.worlds.alive.get(number)
        return world.pids.get(rank, 0) if world is not None else 0

    def watched(self, header: Header) -> None:
        """Learn that a rank elsewhere is ready, and that its output is kept."""
        world = self.worlds.alive.get(header["world"])
        if world is not None and world.hearsay is not None:
            world.outputs[header["rank"]] = world.hearsay.box(header["rank"])
            self._note_ready(world, header["rank"])

    def note_moments(self, header: Header) -> None:
        """Learn what ranks elsewhere are at."""
        for number, rank, *said in header["moments"]:
            world = self.worlds.alive.get(number)
            if world is not None and world.hearsay is not None:
                world.hearsay.note_moment(rank, said)

    def _note_ready(self, world: World, rank: int) -> None:
        world.ready.add(rank)
        if self._dispatcher is not None:
            self._welcome(world, rank)
            if world.is_ready and world.conclude_at is None:
                self._bad_starts = 0
                self._dispatcher.resume()

    @property
    def _is_stopped(self) -> bool:
        return self._dispatcher is None or self._dispatcher.finished

    def _welcome(self, world: World, rank: int) -> None:
        header = {"kind": "order", "temporary": self._temporary}
        self._lines.send(member_number(world.number, rank), header, self._order)

    def set_order(self, nodeids: Sequence[str]) -> None:
        """Have ranks that collect for themselves count the tests in this order."""
        self._order = json.dumps(nodeids).encode()

    def hung_up(self, member: int) -> None:
        """Learn that a member has closed its line."""
        number, rank = world_and_rank(member)
        world = self.worlds.alive.get(number)
        if world is not None and rank not in world.ended and not world.leaving:
            # How it ended is said by its parent, which takes a moment longer.
            world.suspects.append(rank)
            self._fail(world, None, _STATUS_SECONDS)

    def ended(self, header: Header) -> None:
        """Learn how a rank's process ended."""
        world = self.worlds.alive.get(header["world"])
        if world is None:
            return
        rank = header["rank"]
        if world.hearsay is not None:
            world.hearsay.note_end(rank, header)
        if header.get("why"):
            world.reasons[rank] = header["why"]
        said_goodbye = rank in world.ended
        world.ended[rank] = None if header["by_us"] else header["status"]
        world.gone.add(rank)
        if header["by_us"] or said_goodbye or (world.venue == "fresh" and world.leaving):
            if header["by_us"] and not world.leaving and world.conclude_at is None:
                # Its launcher was ended by mpiexec, and nobody knows why.
                self._fail(world, None, _SETTLE_SECONDS)
            elif world.conclude_at is None and len(world.gone) == world.size:
                self.worlds.remove(world)
                if self._dispatcher is not None and world.hearsay is not None:
                    # There is room for another step.
                    self._dispatcher.resume()
            return
        self._fail(world, rank, _SETTLE_SECONDS)

    def launcher_ended(self, header: Header) -> None:
        """Learn that an mpiexec has ended."""
        self.worlds.launcher_ended(header["world"])
        if self._dispatcher is not None:
            self._dispatcher.resume()
        world = self.worlds.alive.get(header["world"])
        if world is None:
            return
        if world.leaving and world.conclude_at is None:
            self.worlds.remove(world)
        elif not world.culprits:
            self._fail(world, None, _SETTLE_SECONDS)

    def _fail(self, world: World, rank: int | None, patience: float) -> None:
        """Note that a world is lost, and whose doing it was if that is known."""
        now = time.monotonic()
        due = now + patience
        world.conclude_at = min(due, world.conclude_at or due)
        world.latest_conclusion = world.latest_conclusion or now + _STATUS_SECONDS
        if rank is not None and rank not in world.culprits:
            world.culprits.append(rank)

    # Worlds that are lost

    def doubt(self) -> None:
        """Have it found out soon whether the allocation is still there."""
        self._doubt_at = time.monotonic()
        self._doubt_until = self._doubt_at + _DOUBT_LASTS_SECONDS

    def _resume_after_pause(self, now: float) -> None:
        if self._doubt_at <= now < self._doubt_until:
            self._doubt_at = now + _DOUBT_SECONDS
            self._give_up_if_over()
        if self.worlds.not_before and now >= self.worlds.not_before:
            self.worlds.not_before = 0.0
            if self._dispatcher is not None:
                self._dispatcher.resume()

    def _give_up_if_over(self) -> None:
        """End the run if there is nowhere to go on; tests that ran there are told why."""
        why = self.explain_end() if self.explain_end is not None else ""
        if not why:
            return
        if self._dispatcher is None or self._inquest is None:
            raise PoolFailure(why)
        for world in self.worlds.alive.values():
            for flight in self._dispatcher.flights(world.members):
                if flight.at_it:
                    self._end_test(flight.case, self._inquest.on_lost_site(flight, why))
        left = len(self._tests) - len(self._reported)
        tests = "1 test was" if left == 1 else f"{left} tests were"
        raise PoolFailure(f"{why}: {tests} not run" if left else why)

    def _end_test(self, case: int, ending: Ending) -> None:
        if ending.phase != "closing":
            self._reported.add(case)
        self.on_ending(case, ending)

    def _conclude(self, world: World) -> None:
        """Blame the tests that ended a world, and have the others run again."""
        self._give_up_if_over()
        if not world.is_ready:
            self._conclude_start(world)
            return
        assert self._dispatcher is not None
        assert self._inquest is not None
        culprit = find_culprit(world)
        self._note_lost_node(world, culprit)
        is_awaited = culprit is not None and culprit not in world.ended
        # If nobody here knows why, Slurm does: it says so when the step is over.
        is_unknown = world.hearsay is not None and _is_unknown(world, culprit)
        if is_unknown and world.is_launched:
            is_awaited = True
        if is_awaited and time.monotonic() < world.latest_conclusion:
            return  # how it ended is still to be said
        flights = self._dispatcher.flights(world.members)
        self._kill(world)
        endings = {
            flight.case: self._inquest.on_crash(world, culprit, flight)
            for flight in flights
            if culprit is not None and was_at(world, culprit, flight)
        }
        if is_unknown and world.venue == "fresh":
            # The step was for this test alone.
            said = self.read_log(world.number)
            endings = {one.case: self._inquest.on_lost_step(one, said) for one in flights}
        if not endings:
            self._report_unexplained(world, culprit)
            endings = self._lose_patience([flight for flight in flights if flight.at_it])
        for case, ending in endings.items():
            self._end_test(case, ending)
        self._lose(world, list(endings))

    def _note_lost_node(self, world: World, culprit: int | None) -> None:
        node = world.nodes.get(culprit, "") if culprit is not None else ""
        if culprit is not None and node in self.lost_nodes():
            world.reasons.setdefault(culprit, f"was lost with node {node}")

    def _lose_patience(self, flights: Sequence[Flight]) -> dict[int, Ending]:
        """Blame tests whose worlds are lost again and again, or the run would never end."""
        assert self._inquest is not None
        blamed = {}
        for flight in flights:
            times = self._doubts[flight.case] = self._doubts.get(flight.case, 0) + 1
            if times >= _MOST_DOUBTS:
                blamed[flight.case] = self._inquest.on_lost_worlds(flight, times)
        return blamed

    def _lose(self, world: World, blamed: Sequence[int]) -> None:
        for member in world.members:
            self._lines.forget(member)
        self.worlds.remove(world)
        if self._dispatcher is not None:
            for flight in self._dispatcher.flights(world.members):
                self._stumbles.pop(flight.case, None)
            self._dispatcher.lose(world.members, blamed)

    def _report_unexplained(self, world: World, culprit: int | None) -> None:
        """Say what happened to a world in which no test can be blamed."""
        if culprit is None:
            said = self.read_log(world.number) if world.hearsay is not None else ""
            words = f": {said.splitlines()[-1]}" if said else ""
            self.on_notice(f"{_name(world)} ended by itself{words}")
            return
        moment = world.box(culprit).read_moment()
        if moment is not None and moment.phase == "closing":
            assert self._inquest is not None
            ending = self._inquest.on_crash_after(world, culprit)
            self._end_test(moment.case, ending)
        else:
            how = world.reasons.get(culprit) or describe_status(world.ended.get(culprit))
            self.on_notice(f"rank {culprit} of {_name(world)} {how} between two tests")

    def _conclude_start(self, world: World) -> None:
        """Try again to start a world, but not for ever."""
        log = self.read_log(world.number)
        self._bad_starts += 1
        if world.hearsay is not None:
            # Whoever had to start it may have been away for a moment, or a node may be lost.
            self.worlds.not_before = time.monotonic() + _PAUSE_SECONDS * self._bad_starts
        self._kill(world)
        self._lose(world, ())
        most = _MOST_BAD_STARTS if world.hearsay is None else _MOST_BAD_STEPS
        if self._bad_starts >= most or self._dispatcher is None:
            raise PoolFailure(
                f"{_name(world)} could not be started"
                + (f"; this is what it printed:\n{log}" if log else "")
            )
        self._dispatcher.resume()

    def read_log(self, world: int) -> str:
        """Give the end of what a world's mpiexec and ranks have printed."""
        try:
            text = log_path(self._folder, world).read_text(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.strip().splitlines()[-_LOG_LINES:])

    def _kill(self, world: World) -> None:
        world.leaving = True
        self._tell_servers({"kind": "kill", "world": world.number})
        self._lines.flush()

    def _tell_servers(self, order: Header) -> None:
        for server in self.servers():
            if self._lines.has(server):
                self._lines.send(server, order)

    # Tests that take too long

    def _look(self, now: float) -> None:
        if self._dispatcher is None:
            return
        stumbles = {
            case: since + overlap(since, self._pauses)
            for case, (since, _) in self._stumbles.items()
        }
        for world in list(self.worlds.alive.values()):
            if not world.is_ready:
                # Slurm may keep a step waiting, and says so when it does not.
                is_due = self.worlds.warm and (world.hearsay is None or world.pids)
                if is_due and now - world.started > _START_SECONDS:
                    self._fail(world, None, 0.0)
                is_stuck = world.hearsay is not None and not world.pids and world.is_launched
                if is_stuck and now - world.started > _STUCK_SECONDS and self.share():
                    self._bad_starts = -1
                    self._fail(world, None, 0.0)
                continue
            if world.conclude_at is not None:
                continue
            moments = self._moments(world)
            overdue = find_overdue(
                list(moments.values()), self._limits, stumbles, grace=self._grace, now=now
            )
            if overdue:
                self._end_overdue(world, overdue, moments)

    def _moments(self, world: World) -> Mapping[int, Moment]:
        found = {}
        for rank in range(world.size):
            moment = world.box(rank).read_moment()
            if moment is not None and rank not in world.ended:
                # What was held by a debugger has that much longer.
                held = overlap(moment.since, self._pauses)
                found[rank] = replace(moment, since=moment.since + held) if held else moment
        return found

    def _end_overdue(
        self, world: World, overdue: Sequence[Overdue], moments: Mapping[int, Moment]
    ) -> None:
        assert self._dispatcher is not None
        assert self._inquest is not None
        flights = {flight.case: flight for flight in self._dispatcher.flights(world.members)}
        blamed = []
        # The stacks of all are taken before anything is ended.
        endings = []
        for one in overdue:
            flight = flights.get(one.case)
            if one.phase == "closing":
                endings.append((one.case, self._inquest.on_overdue_after(world, one, moments)))
            elif flight is not None:
                blamed.append(one.case)
                _, stumbled = self._stumbles.get(one.case, (0.0, {}))
                ending = self._inquest.on_overdue(world, one, flight, stumbled)
                endings.append((one.case, ending))
        if not endings:
            return
        self._kill(world)
        for case, ending in endings:
            self._end_test(case, ending)
        self._lose(world, blamed)


def _is_unknown(world: World, culprit: int | None) -> bool:
    """Tell whether it is not known how a world came to its end."""
    return culprit is None or (culprit not in world.reasons and world.ended.get(culprit) is None)


def _name(world: World) -> str:
    return "a world of 1 rank" if world.size == 1 else f"a world of {world.size} ranks"
