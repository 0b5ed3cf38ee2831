"""The controller's engine: it gives tests to worlds that it has started, and outlives them."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from rankwise.errors import RankwiseError
from rankwise.launch.cores import Core
from rankwise.pytest_plugin import rank_status
from rankwise.pytest_plugin.collection import ListedTest
from rankwise.pytest_plugin.connections import (
    SUPERVISOR,
    Exchange,
    Header,
    worker_number,
    world_and_rank,
)
from rankwise.pytest_plugin.failure_report import (
    AbortedTest,
    FailureReport,
    explain_step,
    name_world,
)
from rankwise.pytest_plugin.rank_status import AFTER, HangWatch, Overdue, RankStatus, Setups
from rankwise.pytest_plugin.schedulers.dispatcher import NO_WORKER, Dispatcher, RunningTest
from rankwise.pytest_plugin.workers.place import Listener, Workplace
from rankwise.pytest_plugin.workers.supervisor import read_log
from rankwise.pytest_plugin.workers.worlds import (
    World,
    Worlds,
    WorldState,
    find_culprit,
    is_explained,
    was_running,
)

_LOOK_SECONDS = 0.1
# For the last try to start a world; those before have less: a start that hangs, as some do where
# many processes start and end, is better tried again than waited for.
_START_SECONDS = 120.0
# There is room for a step when it is started: it need not wait for others.
_STUCK_SECONDS = 8.0
_MOST_BAD_STARTS = 3
# With a pause that grows by this between them, they last for two minutes.
_MOST_BAD_STEPS = 11
_PAUSE_SECONDS = 2.0
# After a node has hung up: how often, and for how long, it is asked whether the job is over.
_DOUBT_SECONDS = 1.0
_DOUBT_LASTS_SECONDS = 30.0
# So often a test may be started again after all its ranks were ended from outside, unexplained.
_MOST_DOUBTS = 3


class PoolFailure(RankwiseError):
    """The pool cannot go on; the message says why."""


class RankBroken(PoolFailure):
    """A rank's pytest has an internal error; the message is its traceback."""


class Pool:
    """Runs a suite on worlds that may die at any time."""

    def __init__(
        self,
        lines: Exchange,
        worlds: Worlds,
        folder: Path,
        *,
        place: Workplace,
        listener: Listener,
        grace: float,
    ) -> None:
        self._lines = lines
        self.worlds = worlds
        self._place = place
        self._listener = listener
        self._folder = folder
        self._grace = grace
        self._dispatcher: Dispatcher | None = None
        self.is_interrupted = False
        """Whether ranks were sent a signal: then they end as it makes them."""
        self._tests: Sequence[ListedTest] = ()
        self._setups = Setups()
        worlds.dismiss = self._dismiss
        self._doubts: dict[int, int] = {}
        self._last_look = 0.0
        self._memory_kills = 0
        self._temporary = ""
        self._order = b""
        self._doubt_at = 0.0
        self._doubt_until = 0.0
        self._terminal_requests: deque[tuple[int, int, str]] = deque()
        self._watch: HangWatch[bytes] = HangWatch(grace=grace)

    # The run

    def begin(self, tests: Sequence[ListedTest], dispatcher: Dispatcher, temporary: str) -> None:
        """Start with the first tests."""
        self._tests = tests
        self._watch.limits = [test.limit for test in tests]
        self._memory_kills = rank_status.count_memory_kills()
        self._dispatcher = dispatcher
        self._temporary = temporary
        # Ranks that were ready before the tests were known have waited for this.
        for world in self.worlds.alive.values():
            for rank in world.ready:
                self._welcome(world, rank)
        dispatcher.begin()

    def run(self) -> None:
        """Go on until all tests are over."""
        assert self._dispatcher is not None
        while not self._dispatcher.finished:
            self.step()
        while any(world.state is not WorldState.FINISHING for world in self.worlds.alive.values()):
            self._dismiss_idle()
            self.step()

    def end(self, seconds: float | None = None) -> None:
        """Let ranks that have been told to finish do so.

        They have the time limit of the last test that they ran, or no longer than is said here.
        """
        deadline = time.monotonic() + seconds if seconds is not None else None
        while self.worlds.alive and (deadline is None or time.monotonic() < deadline):
            self.step()
        for world in list(self.worlds.alive.values()):
            self._drop(world)

    def interrupt(self, number: int) -> None:
        """Send a signal to every rank; what has none yet is ended."""
        self.is_interrupted = True
        for world in list(self.worlds.alive.values()):
            if not world.pids:
                self._drop(world)
                continue
            for rank in world.pids:
                where = {"world": world.number, "rank": rank}
                self._tell_servers({"kind": "signal", **where, "signal": number})
            world.interrupt()
        self._lines.flush()

    def step(self) -> None:
        """Deal with what has happened, or wait a moment for something to happen."""
        # What a message makes the dispatcher decide goes out in the same step: ranks wait for it.
        self._lines.step(_LOOK_SECONDS)
        self._deliver()
        if self._terminal_requests:
            self._lend_terminal()
        now = time.monotonic()
        for world in list(self.worlds.alive.values()):
            # One that is gone has let go of its ranks in good order; one that only seems to have
            # ended is looked at again when all that is on its way about it has had time to arrive.
            if world.state is WorldState.GONE:
                self._forget(world)
            elif world.check_at is not None and now >= world.check_at and world.recheck(now):
                self._conclude(world)
        if now - self._last_look >= _LOOK_SECONDS:
            self._last_look = now
            self._look(now)
            self._resume_after_pause(now)
            self._listener.on_look()
        self._deliver()
        self._lines.flush()

    def _deliver(self) -> None:
        dispatcher = self._dispatcher
        while dispatcher is not None and dispatcher.outbox:
            worker, header, body = dispatcher.outbox.popleft()
            if worker == NO_WORKER:
                if header["kind"] == "verdict":
                    self._watch.forget(header["case"])
                self._listener.on_verdict(header, body)
                continue
            world, _ = world_and_rank(worker)
            if header["kind"] == "finish":
                self._dismiss(self.worlds.alive.get(world))
            elif self._lines.has(worker):
                self._lines.send(worker, header, body)

    def _dismiss(self, world: World | None) -> None:
        if world is not None and world.state is WorldState.READY:
            world.finish()
            for worker in world.workers:
                self._lines.send(worker, {"kind": "finish"})

    def _dismiss_idle(self) -> None:
        """Let go of worlds that came too late to get a test."""
        for world in list(self.worlds.alive.values()):
            if world.state is WorldState.READY:
                self._dismiss(world)
            elif world.state is WorldState.STARTING:
                self._drop(world)

    # Messages

    def take(self, worker: int, header: Header, body: bytes) -> None:
        """Take in what a worker says."""
        number, rank = world_and_rank(worker)
        world = self.worlds.alive.get(number)
        if world is None:
            return
        match header["kind"]:
            case "here":
                world.pids[rank] = int(header["pid"])
                world.nodes[rank] = header["node"]
                world.seats[rank] = [Core(*one) for one in header["cores"]]
            case "ready":
                self._take_ready(world, rank, header)
            case "done" if self._dispatcher is not None:
                world.note_test(rank, header["case"])
                self._dispatcher.done(worker, header, body)
            case "rank_failed" | "repeats" | "fixture":
                self._note_course(worker, header, body)
            case "stopped" if self._dispatcher is not None:
                self._dispatcher.halt(header)
            case "late":
                self._listener.on_verdict({**header, "rank": rank}, body)
            case "interrupt" if not self.is_interrupted:
                self._listener.on_interrupt({**header, "rank": rank})
            case "debug":
                self._terminal_requests.append((worker, world.pids.get(rank, 0), header["words"]))
            case "broken":
                raise RankBroken(header["reason"])
            case "bye":
                world.goodbyes.add(rank)
                if self._dispatcher is None or self._dispatcher.finished:
                    world.finish()

    def _take_ready(self, world: World, rank: int, header: Header) -> None:
        if world.remote is not None:
            # Only there can its output be kept, and it has to be before the first test.
            place = {"world": world.number, "rank": rank, "pid": world.pids[rank]}
            self._tell_servers({"kind": "watch", **place, "outputs": header["outputs"]})
        else:
            world.outputs[rank] = rank_status.OutputTail(world.pids[rank], header["outputs"])
            self._note_ready(world, rank)

    def _note_course(self, worker: int, header: Header, body: bytes) -> None:
        """Learn how a test goes while it does."""
        match header["kind"]:
            case "fixture":
                self._setups.note(worker, header["key"], header["words"], header["state"])
            case "rank_failed":
                self._watch.rank_failed(header["case"], worker, body)
            case "repeats":
                self._watch.rank_repeats(header["case"], worker)

    def _lend_terminal(self) -> None:
        """Let debuggers talk to the user, one after the other; time stands still meanwhile."""
        while self._terminal_requests:
            worker, pid, words = self._terminal_requests.popleft()
            if self._lines.has(worker):
                start = time.monotonic()
                self._listener.on_debug(worker, pid, words)
                self._watch.pause(start)

    def take_from_server(self, header: Header) -> None:
        """Take in what a process says that starts, ends or knows ranks."""
        match header["kind"]:
            case "ended":
                self._note_end(header)
            case "watched":
                self._note_watched(header)
            case "moments":
                self._note_statuses(header)
            case "launcher ended":
                self.worlds.launcher_ended(header["world"])
                self._resume()

    def _resume(self) -> None:
        """Place tests that have waited: there may be room for them now."""
        if self._dispatcher is not None:
            self._dispatcher.resume()

    def _note_watched(self, header: Header) -> None:
        """Learn that a rank elsewhere is ready, and that its output is kept."""
        world = self.worlds.alive.get(header["world"])
        if world is not None and world.remote is not None:
            world.outputs[header["rank"]] = world.remote.status_of(header["rank"])
            self._note_ready(world, header["rank"])

    def _note_statuses(self, header: Header) -> None:
        """Learn what ranks elsewhere are at."""
        for number, rank, *said in header["moments"]:
            world = self.worlds.alive.get(number)
            if world is not None and world.remote is not None:
                world.remote.note_status(rank, said)

    def _note_ready(self, world: World, rank: int) -> None:
        world.rank_ready(rank)
        if self._dispatcher is not None:
            self._welcome(world, rank)
            if world.state is WorldState.READY:
                self.worlds.bad_starts = 0
                self._dispatcher.resume()

    @cached_property
    def _failure_report(self) -> FailureReport:
        return FailureReport(self._tests, grace=self._grace, memory_kills=self._memory_kills)

    def _welcome(self, world: World, rank: int) -> None:
        # A world for one test has nothing to do with what happened in another one.
        hopeless = self._setups.hopeless if world.world_kind != "fresh" else {}
        header = {"kind": "order", "temporary": self._temporary, "hopeless": hopeless}
        # It may have been started before it was known that a test wants domains alone.
        header["cores"] = self.worlds.cores_of(world)
        self._lines.send(worker_number(world.number, rank), header, self._order)

    def set_order(self, nodeids: Sequence[str]) -> None:
        """Have ranks that collect for themselves count the tests in this order."""
        self._order = json.dumps(nodeids).encode()

    def hung_up(self, worker: int) -> None:
        """Learn that a worker has closed its line."""
        number, rank = world_and_rank(worker)
        if world := self.worlds.alive.get(number):
            world.rank_disconnected(rank)

    def _note_end(self, header: Header) -> None:
        """Learn how a rank's process ended."""
        world = self.worlds.alive.get(header["world"])
        if world is None:
            return
        rank = header["rank"]
        if world.remote is not None:
            world.remote.note_end(rank, header)
        if header.get("why"):
            world.reasons[rank] = header["why"]
        world.rank_exited(rank, None if header["by_us"] else header["status"])

    def _forget(self, world: World) -> None:
        """Forget a world whose ranks have all finished."""
        if len(world.ended) < world.size:
            self._kill(world)
        self.worlds.remove(world)
        self._resume()

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
            self._resume()

    def _give_up_if_over(self) -> None:
        """End the run if there is nowhere to go on; tests that ran there are told why."""
        why = self._place.explain_end()
        if not why:
            return
        if self._dispatcher is None:
            raise PoolFailure(why)
        left = len(self._tests) - self._dispatcher.completed
        for world in self.worlds.alive.values():
            for running in self._dispatcher.running_tests(world.workers):
                if running.at_it:
                    ending = self._failure_report.on_lost(running, f"{why}, while this test ran")
                    self._listener.on_ending(running.case, ending)
                    left -= 1
        tests = "1 test was" if left == 1 else f"{left} tests were"
        raise PoolFailure(f"{why}: {tests} not run" if left else why)

    def _conclude(self, world: World) -> None:
        """Blame the tests that ended a world, and have the others run again."""
        self._give_up_if_over()
        if not world.has_started or self._dispatcher is None:
            self._conclude_start(world)
            return
        culprit = find_culprit(world)
        self._note_lost_node(world, culprit)
        # What is not known here, Slurm knows: it says so when the step is over.
        is_unknown = world.remote is not None and not is_explained(world, culprit)
        running_tests = self._dispatcher.running_tests(world.workers)
        blamed = [running for running in running_tests if was_running(world, culprit, running)]
        is_awaited = culprit is not None and culprit not in world.ended
        # What it has printed outside of tests is complete when mpiexec has ended.
        is_awaited = is_awaited or (world.is_launched and (is_unknown or not blamed))
        if is_awaited and time.monotonic() < world.check_until:
            return  # how it ended is still to be said
        # From here on nothing of it may go on: what it had is about to run elsewhere.
        self._kill(world)
        endings = {
            running.case: self._failure_report.on_crash(world, culprit, running)
            for running in blamed
            if culprit is not None
        }
        if is_unknown and world.world_kind == "fresh":
            # The step was for this test alone.
            said = read_log(self._folder, world.number)
            how = f"the job step of this test was ended {explain_step(said)}"
            endings = {
                one.case: self._failure_report.on_lost(one, how, said) for one in running_tests
            }
        # No test is to blame by itself: the world was ended from outside, or between tests.
        if not endings:
            at_it = [running for running in running_tests if running.at_it]
            endings = self._lose_patience(at_it)
            again = [running.case for running in at_it if running.case not in endings]
            if again or not endings:
                self._report_unexplained(world, culprit, again)
        for case, ending in endings.items():
            self._listener.on_ending(case, ending)
        self._lose(world, list(endings))

    def _note_lost_node(self, world: World, culprit: int | None) -> None:
        if culprit is not None and (node := world.nodes.get(culprit, "")) in self._place.lost:
            world.reasons.setdefault(culprit, f"was lost with node {node}")

    def _lose_patience(self, running_tests: Sequence[RunningTest]) -> dict[int, AbortedTest]:
        """Blame tests whose worlds are lost again and again, or the run would never end."""
        blamed = {}
        for running in running_tests:
            times = self._doubts[running.case] = self._doubts.get(running.case, 0) + 1
            if times >= _MOST_DOUBTS:
                how = f"all ranks were ended from outside, {times} times while this test ran"
                blamed[running.case] = self._failure_report.on_lost(running, how)
        return blamed

    def _lose(self, world: World, blamed: Sequence[int]) -> None:
        # Before its number is forgotten: what it still says must not count for any test.
        for worker in world.workers:
            self._lines.forget(worker)
        self.worlds.remove(world)
        self._setups.forget(world.workers)
        if self._dispatcher is not None:
            for running in self._dispatcher.running_tests(world.workers):
                self._watch.forget(running.case)
            self._dispatcher.lose(world.workers, blamed)

    def _report_unexplained(self, world: World, culprit: int | None, again: Sequence[int]) -> None:
        """Report the end of a world that no test which ran at that moment can be blamed for.

        Those in `again` ran there, and are started once more.
        """
        case, ending = self._failure_report.on_end_after(
            world, culprit, read_log(self._folder, world.number)
        )
        if culprit is None and again:
            names = ", ".join(self._tests[one].nodeid for one in again)
            ending.headline += f"; started again, because they ran there: {names}"
            case = None
        if case is not None:
            self._listener.on_ending(case, ending)
        else:
            self._report_lost(world, ending.headline, ending.log)

    def _report_lost(self, world: World, headline: str, log: str) -> None:
        words = f"{name_world(world)}: {headline}"
        self._listener.on_lost(f"{words}\nprinted outside of tests:\n{log}" if log else words)

    def _conclude_start(self, world: World) -> None:
        """Try again to start a world, but not for ever."""
        log = read_log(self._folder, world.number)
        if world.earlier_tries >= self.worlds.bad_starts:
            # Of worlds that were started side by side, one counts for all.
            self.worlds.bad_starts += 1
        tries = self.worlds.bad_starts
        if world.remote is not None:
            # slurmctld may have been away for a moment, or a node may be lost.
            self.worlds.not_before = time.monotonic() + _PAUSE_SECONDS * tries
        self._kill(world)
        self._lose(world, ())
        most = _MOST_BAD_STARTS if world.remote is None else _MOST_BAD_STEPS
        # Before the tests are known, nothing can wait for another start.
        if tries >= most or self._dispatcher is None:
            limit = self._start_limit(world)
            within = f" within {limit:g} s" if time.monotonic() - world.started > limit else ""
            raise PoolFailure(
                f"{name_world(world)} could not be started{within}"
                + (f"; this is what it printed:\n{log}" if log else "")
            )
        self._dispatcher.resume()

    def drop_all(self) -> None:
        """Kill and forget all worlds, before any test has run in them."""
        for world in list(self.worlds.alive.values()):
            self._kill(world)
            self._lose(world, ())

    def _drop(self, world: World) -> None:
        """Kill and forget a world in which nothing is left to report."""
        self._kill(world)
        self.worlds.remove(world)

    def _kill(self, world: World) -> None:
        self._tell_servers({"kind": "kill", "world": world.number})
        self._lines.flush()

    def _tell_servers(self, order: Header) -> None:
        for server in (SUPERVISOR, *self._place.servers()):
            if self._lines.has(server):
                self._lines.send(server, order)

    # Tests that take too long

    def _look(self, now: float) -> None:
        for world in list(self.worlds.alive.values()):
            if world.state is WorldState.STARTING:
                self._look_at_start(world, now)
            elif world.state is not WorldState.LOST and self._dispatcher is not None:
                # A world that is told to finish is watched, too: its ranks may hang in a teardown.
                moments = self._moments(world)
                overdue = self._watch.find(list(moments.values()))
                if overdue:
                    self._end_overdue(world, overdue, moments)
                elif not moments and world.told_to_finish is not None:
                    self._look_at_end(world, now - world.told_to_finish)

    def _look_at_start(self, world: World, now: float) -> None:
        # Ranks that import the tests themselves may take any time for that, but not to start MPI.
        is_awaited = self.worlds.warm or len(world.pids) < world.size
        # Slurm may keep a step waiting, and says so when it does not.
        is_due = is_awaited and (world.remote is None or world.pids)
        if is_due and now - world.started > self._start_limit(world):
            world.start_timed_out()
        is_stuck = world.remote is not None and not world.pids and world.is_launched
        if is_stuck and now - world.started > _STUCK_SECONDS and self._place.share():
            self.worlds.bad_starts = -1
            world.start_timed_out()

    def _start_limit(self, world: World) -> float:
        """Return how long a world may take to start: longer with every try."""
        if self._dispatcher is None:
            return _START_SECONDS
        left = _MOST_BAD_STARTS - 1 - max(0, world.earlier_tries)
        return float(_START_SECONDS / 2 ** max(0, left))

    def _look_at_end(self, world: World, seconds: float) -> None:
        """End a world that has run no test and does not come to its end."""
        limit = max(self._watch.limits, default=0.0)
        if limit and seconds > limit:
            log = read_log(self._folder, world.number)
            self._kill(world)
            self._report_lost(world, f"no end {limit:g} s after it was told to finish", log)
            self._lose(world, ())

    def _moments(self, world: World) -> Mapping[int, RankStatus]:
        ranks = [rank for rank in range(world.size) if rank not in world.ended]
        found = {rank: world.status_of(rank).read_status() for rank in ranks}
        return {rank: self._watch.without_pauses(one) for rank, one in found.items() if one}

    def _end_overdue(
        self, world: World, overdue: Sequence[Overdue], moments: Mapping[int, RankStatus]
    ) -> None:
        assert self._dispatcher is not None
        running_tests = {
            running.case: running for running in self._dispatcher.running_tests(world.workers)
        }
        blamed = []
        # The stacks of all are taken before anything is ended.
        endings = []
        for one in overdue:
            running = running_tests.get(one.case)
            if one.phase in AFTER:
                said = read_log(self._folder, world.number)
                ending = self._failure_report.on_overdue_after(world, one, moments, said)
                endings.append((one.case, ending))
            elif running is not None:
                blamed.append(one.case)
                rank_failed = self._watch.failures_of(one.case)
                ending = self._failure_report.on_overdue(world, one, running, rank_failed)
                ending.hint = self._give_up_fixtures(world, one, running) or ending.hint
                endings.append((one.case, ending))
        if not endings:
            return
        # Killed before it is reported: what a hook of the user's does meanwhile may take long.
        self._kill(world)
        for case, ending in endings:
            self._listener.on_ending(case, ending)
        self._lose(world, blamed)

    def _give_up_fixtures(self, world: World, one: Overdue, running: RunningTest) -> str:
        """Have a fixture not tried again that ranks were not done with at the limit."""
        if one.phase != "setup" or one.why != "limit" or world.world_kind == "fresh":
            return ""
        test = self._tests[one.case]
        hints = [self._setups.give_up(at, test.nodeid, test.limit) for at in running.workers]
        return next(filter(None, hints), "")
