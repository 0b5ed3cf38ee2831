"""The controller's engine: it gives tests to worlds that it has started, and outlives them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rankwise.errors import RankwiseError
from rankwise.testing.blackbox import Moment, OutputTail
from rankwise.testing.crew.keeper import log_path
from rankwise.testing.crew.member import TEMPLATE, member_number, world_and_rank
from rankwise.testing.crew.worlds import World, Worlds
from rankwise.testing.dispatch import NOBODY, Dispatcher, Flight
from rankwise.testing.ended import Ending, describe_phase, describe_status
from rankwise.testing.exchange import Exchange
from rankwise.testing.hang import ask_for_stacks, read_crash
from rankwise.testing.listing import ListedTest
from rankwise.testing.naming import describe_ranks
from rankwise.testing.results import RankResult, unpack
from rankwise.testing.watch import Overdue, find_overdue
from rankwise.testing.wire import Header, Name

KEEPER = "keeper"

_LOOK_SECONDS = 0.1
# Other ranks of the test may be on their way out too, and what a rank said last may yet arrive.
_SETTLE_SECONDS = 0.05
# A rank that has closed its line is gone, or has closed more than is its own.
_STATUS_SECONDS = 1.0
_START_SECONDS = 120.0
_MOST_BAD_STARTS = 3
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
        self._memory_kills = _count_memory_kills()
        self._bad_starts = 0
        self._last_look = 0.0
        self._temporary = ""
        self._order = b""
        self._is_over = False
        self.on_verdict: Callable[[Header, bytes], None]
        self.on_ending: Callable[[ListedTest, Ending], None]
        self.on_interrupt: Callable[[Header], None]
        self.on_notice: Callable[[str], None]

    # The run

    def begin(self, tests: Sequence[ListedTest], dispatcher: Dispatcher, temporary: str) -> None:
        """Start with the first tests."""
        self._tests = tests
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
        self._is_over = True
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
        now = time.monotonic()
        for world in list(self.worlds.alive.values()):
            if world.failing_since is not None and now >= world.failing_since:
                self._conclude(world)
        if now - self._last_look >= _LOOK_SECONDS:
            self._last_look = now
            self._look(now)
        self._deliver()
        self._lines.flush()

    def _deliver(self) -> None:
        dispatcher = self._dispatcher
        while dispatcher is not None and dispatcher.outbox:
            member, header, body = dispatcher.outbox.popleft()
            if member == NOBODY:
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
            case "ready":
                world.ready.add(rank)
                world.outputs[rank] = OutputTail(world.pids[rank], header["outputs"])
                if self._dispatcher is not None:
                    self._welcome(world, rank)
                    if world.is_ready and world.failing_since is None:
                        self._bad_starts = 0
                        self._dispatcher.resume()
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
            case "broken":
                raise PoolFailure(f"rank {rank} has failed to go on:\n{header['reason']}")
            case "bye" if world.leaving or self._is_stopped:
                world.leaving = True
                world.ended.setdefault(rank, 0)

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
        said_goodbye = rank in world.ended
        world.ended[rank] = header["status"]
        world.gone.add(rank)
        if header["by_us"] or said_goodbye or (world.venue == "fresh" and world.leaving):
            if header["by_us"] and not world.leaving and world.failing_since is None:
                # Its launcher was ended by mpiexec, and nobody knows why.
                self._fail(world, None, _SETTLE_SECONDS)
            elif world.failing_since is None and len(world.gone) == world.size:
                self.worlds.remove(world)
            return
        self._fail(world, rank, _SETTLE_SECONDS)

    def launcher_ended(self, header: Header) -> None:
        """Learn that an mpiexec has ended."""
        world = self.worlds.alive.get(header["world"])
        if world is None:
            return
        if world.leaving and world.failing_since is None:
            self.worlds.remove(world)
        elif not world.culprits:
            self._fail(world, None, _SETTLE_SECONDS)

    def _fail(self, world: World, rank: int | None, patience: float) -> None:
        """Note that a world is lost, and whose doing it was if that is known."""
        due = time.monotonic() + patience
        world.failing_since = min(due, world.failing_since or due)
        if rank is not None and rank not in world.culprits:
            world.culprits.append(rank)

    # Worlds that are lost

    def _conclude(self, world: World) -> None:
        """Blame the tests that ended a world, and have the others run again."""
        if not world.is_ready:
            self._conclude_start(world)
            return
        dispatcher = self._dispatcher
        assert dispatcher is not None
        members = world.members
        flights = dispatcher.flights(members)
        first = self._find_culprit(world)
        blamed = [flight for flight in flights if self._was_at(world, first, flight)]
        self._kill(world)
        for flight in blamed:
            assert first is not None
            self._report_crash(world, flight, first)
        if not blamed:
            self._report_unexplained(world, first)
        self._lose(world, [flight.case for flight in blamed])

    def _was_at(self, world: World, rank: int | None, flight: Flight) -> bool:
        """Tell whether a rank was at this test; it may not have told the end of the one before."""
        if rank is None or member_number(world.number, rank) not in flight.members:
            return False
        moment = world.box(rank).read_moment()
        if moment is None:
            return member_number(world.number, rank) in flight.at_it
        return moment.case == flight.case and moment.phase != "closing"

    def _find_culprit(self, world: World) -> int | None:
        """Give the rank that ended by itself, before the others could follow it."""
        for rank in (*world.culprits, *world.outputs):
            # MPI_Abort ends all ranks in the same way, and not always this one first.
            output = world.outputs[rank].read() if rank in world.outputs else {}
            if "MPI_Abort" in output.get("stderr", ""):
                return rank
        candidates = world.culprits or world.suspects
        return candidates[0] if candidates else None

    def _lose(self, world: World, blamed: Sequence[int]) -> None:
        for member in world.members:
            self._lines.forget(member)
        self.worlds.remove(world)
        if self._dispatcher is not None:
            for flight in self._dispatcher.flights(world.members):
                self._stumbles.pop(flight.case, None)
            self._dispatcher.lose(world.members, blamed)

    def _report_crash(self, world: World, flight: Flight, culprit: int) -> None:
        test = self._tests[flight.case]
        ranks = {world_and_rank(member)[1]: place for place, member in enumerate(flight.members)}
        ending = self._crash_ending(world, culprit, ranks)
        ending.ended = self._results(test, flight, flight.bodies)
        self.on_ending(test, ending)

    def _crash_ending(self, world: World, culprit: int, ranks: Mapping[int, int]) -> Ending:
        """Describe how a rank ended; `ranks` are the places in the test of a world's ranks."""
        size = len(ranks)
        moment = world.box(culprit).read_moment()
        phase = moment.phase if moment is not None else "call"
        status = world.ended.get(culprit)
        kills, self._memory_kills = self._memory_kills, _count_memory_kills()
        how = describe_status(status, out_of_memory=self._memory_kills > kills)
        # Others may have crashed in the same way at the same moment.
        fellows = {culprit: read_crash(world.box(culprit).read_crash())}
        for rank in world.culprits:
            stack = read_crash(world.box(rank).read_crash())
            if rank in ranks and stack and world.ended.get(rank) == status:
                fellows[rank] = stack
        were = how.replace("was ", "were ", 1) if len(fellows) > 1 else how
        who = describe_ranks([ranks[rank] for rank in fellows], size)
        return Ending(
            size=size,
            phase=phase,
            headline=f"{who} {were} {describe_phase(phase)}",
            seconds=time.monotonic() - moment.since if moment is not None else 0.0,
            crashes={ranks[rank]: stack for rank, stack in fellows.items() if stack},
            output={
                ranks[rank]: world.outputs[rank].read() for rank in fellows if rank in world.outputs
            },
        )

    def _report_unexplained(self, world: World, culprit: int | None) -> None:
        """Say what happened to a world in which no test can be blamed."""
        if culprit is None:
            self.on_notice(f"a world of {world.size} ranks ended by itself")
            return
        moment = world.box(culprit).read_moment()
        if moment is not None and moment.phase == "closing":
            ranks = {rank: rank for rank in range(world.size)}
            self.on_ending(self._tests[moment.case], self._crash_ending(world, culprit, ranks))
        else:
            how = describe_status(world.ended.get(culprit))
            self.on_notice(f"rank {culprit} of a world of {world.size} {how} between two tests")

    def _conclude_start(self, world: World) -> None:
        """Try again to start a world, but not for ever."""
        self._bad_starts += 1
        log = self.read_log(world.number)
        self._kill(world)
        self._lose(world, ())
        if self._bad_starts >= _MOST_BAD_STARTS or self._dispatcher is None:
            ranks = "1 rank" if world.size == 1 else f"{world.size} ranks"
            raise PoolFailure(
                f"a world of {ranks} could not be started"
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
        for server in (KEEPER, TEMPLATE):
            if self._lines.has(server):
                self._lines.send(server, order)

    # Tests that take too long

    def _look(self, now: float) -> None:
        if self._dispatcher is None:
            return
        limits = [test.limit for test in self._tests]
        stumbles = {case: since for case, (since, _) in self._stumbles.items()}
        for world in list(self.worlds.alive.values()):
            if not world.is_ready:
                if self.worlds.warm and now - world.started > _START_SECONDS:
                    self._fail(world, None, 0.0)
                continue
            if world.failing_since is not None:
                continue
            moments = self._moments(world)
            overdue = find_overdue(
                list(moments.values()), limits, stumbles, grace=self._grace, now=now
            )
            if overdue:
                self._end_overdue(world, overdue, moments)

    def _moments(self, world: World) -> Mapping[int, Moment]:
        found = {}
        for rank in range(world.size):
            moment = world.box(rank).read_moment()
            if moment is not None and rank not in world.ended:
                found[rank] = moment
        return found

    def _end_overdue(
        self, world: World, overdue: Sequence[Overdue], moments: Mapping[int, Moment]
    ) -> None:
        assert self._dispatcher is not None
        flights = {flight.case: flight for flight in self._dispatcher.flights(world.members)}
        blamed = []
        # The stacks of all are taken before anything is ended.
        endings = []
        for one in overdue:
            flight = flights.get(one.case)
            if one.phase == "closing":
                endings.append((one.case, self._closing_ending(world, one, moments)))
            elif flight is not None:
                blamed.append(one.case)
                endings.append((one.case, self._overdue_ending(world, one, flight)))
        if not endings:
            return
        self._kill(world)
        for case, ending in endings:
            self.on_ending(self._tests[case], ending)
        self._lose(world, blamed)

    def _overdue_ending(self, world: World, one: Overdue, flight: Flight) -> Ending:
        test = self._tests[one.case]
        size = len(flight.members)
        _, stumbled = self._stumbles.get(one.case, (0.0, {}))
        failed = self._results(test, flight, stumbled)
        ended = self._results(test, flight, flight.bodies)
        failed |= {place: ended[place] for place in ended if place in failed}
        waiting, silent = self._stacks(
            world,
            {
                place: world_and_rank(member)[1]
                for place, member in enumerate(flight.members)
                if member not in flight.bodies and self._is_at(world, member, one.case)
            },
        )
        if one.why == "grace":
            who = describe_ranks(sorted(failed), size)
            verb = "failed" if any(result.failed for result in failed.values()) else "left the test"
            headline = f"{who} {verb}, and the others did not end within {self._grace:g} s"
        else:
            headline = f"no end after {test.limit:g} s {describe_phase(one.phase)} (time limit)"
        ranks = [world_and_rank(member)[1] for member in flight.members]
        return Ending(
            size=size,
            phase=one.phase,
            headline=headline,
            seconds=one.seconds,
            failed=failed,
            ended=ended,
            waiting=waiting,
            unanswered=silent,
            output={
                place: world.outputs[rank].read()
                for place, rank in enumerate(ranks)
                if rank in world.outputs and place not in ended
            },
        )

    def _is_at(self, world: World, member: int, case: int) -> bool:
        """Tell whether a member has not gone on to another test, though it has not told yet."""
        moment = world.box(world_and_rank(member)[1]).read_moment()
        return moment is None or moment.case == case

    def _closing_ending(self, world: World, one: Overdue, moments: Mapping[int, Moment]) -> Ending:
        busy = {rank: rank for rank, moment in moments.items() if moment.phase == "closing"}
        waiting, silent = self._stacks(world, busy)
        limit = self._tests[one.case].limit
        return Ending(
            size=world.size,
            phase="closing",
            headline=f"no end after {limit:g} s {describe_phase('closing')} (time limit)",
            seconds=one.seconds,
            waiting=waiting,
            unanswered=silent,
        )

    def _stacks(self, world: World, ranks: Mapping[int, int]) -> tuple[dict[int, Any], list[int]]:
        """Give where ranks are, by their place in the test; and those that did not answer."""
        files = {
            place: (world.pids[rank], world.box(rank).stacks)
            for place, rank in ranks.items()
            if rank in world.pids
        }
        stacks = ask_for_stacks(files)
        return dict(stacks), [place for place in ranks if place not in stacks]

    def _results(
        self, test: ListedTest, flight: Flight, bodies: Mapping[int, bytes]
    ) -> dict[int, RankResult]:
        return {
            place: unpack(bodies[member], test)
            for place, member in enumerate(flight.members)
            if member in bodies
        }

    def is_member(self, name: Name) -> bool:
        """Tell whether a line is one of a rank."""
        return isinstance(name, int)


def _count_memory_kills() -> int:
    """Tell how many processes the kernel has killed for want of memory."""
    try:
        with Path("/proc/vmstat").open() as file:
            for line in file:
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    except OSError:
        pass
    return 0
