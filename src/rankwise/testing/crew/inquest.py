"""What can be found out about tests that did not end by themselves."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rankwise.testing.blackbox import Moment
from rankwise.testing.crew.member import member_number, world_and_rank
from rankwise.testing.crew.worlds import World
from rankwise.testing.dispatch import Flight
from rankwise.testing.ended import Ending, describe_phase, describe_status
from rankwise.testing.hang import Stack, read_crash
from rankwise.testing.listing import ListedTest
from rankwise.testing.naming import describe_ranks
from rankwise.testing.results import RankResult, unpack
from rankwise.testing.watch import Overdue


def find_culprit(world: World) -> int | None:
    """Give the rank that ended by itself, before the others could follow it; None: not known."""
    first = world.culprits[0] if world.culprits else None
    if first is None or (world.ended.get(first) or 0) >= 0:
        # MPI_Abort ends all ranks with the same exit code, and not always this one first.
        for rank in (*world.culprits, *world.outputs):
            if _has_aborted(world, rank):
                return rank
    if first is None and world.suspects:
        return world.suspects[0]
    return first


def was_at(world: World, rank: int | None, flight: Flight) -> bool:
    """Tell whether a rank was at this test."""
    if rank is None or member_number(world.number, rank) not in flight.members:
        return False
    moment = world.box(rank).read_moment()
    if moment is None:
        return member_number(world.number, rank) in flight.at_it
    return moment.case == flight.case and moment.phase != "closing"


class Inquest:
    """Describes endings; the world's files must still be there."""

    def __init__(self, tests: Sequence[ListedTest], *, grace: float) -> None:
        self._tests = tests
        self._grace = grace
        self._memory_kills = _count_memory_kills()

    def on_crash(self, world: World, culprit: int, flight: Flight) -> Ending:
        """Describe the end of a test that one of its ranks has not survived."""
        ranks = {world_and_rank(member)[1]: place for place, member in enumerate(flight.members)}
        ending = self._on_death(world, culprit, ranks)
        ending.ended = self._results(flight, flight.bodies)
        return ending

    def on_crash_after(self, world: World, culprit: int) -> Ending:
        """Describe the end of a rank that tore down fixtures after its last test."""
        return self._on_death(world, culprit, {rank: rank for rank in range(world.size)})

    def on_lost_worlds(self, flight: Flight, times: int) -> Ending:
        """Describe the end of a test whose worlds end with it, by nobody's doing that is known."""
        return Ending(
            size=len(flight.members),
            phase="call",
            headline=f"all ranks were ended from outside, {times} times while this test ran",
        )

    def on_lost_site(self, flight: Flight, why: str) -> Ending:
        """Describe the end of a test with which everything else has ended."""
        return Ending(
            size=len(flight.members), phase="call", headline=f"{why}, while this test ran"
        )

    def on_lost_step(self, flight: Flight, said: str) -> Ending:
        """Describe the end of a test whose job step was ended; `said` is what Slurm printed."""
        return Ending(
            size=len(flight.members),
            phase="call",
            headline=f"the job step of this test was ended {explain_step(said)}",
            ended=self._results(flight, flight.bodies),
            output={0: {"stderr": said}} if said else {},
        )

    def on_overdue(
        self, world: World, one: Overdue, flight: Flight, stumbled: Mapping[int, bytes]
    ) -> Ending:
        """Describe a test that goes on for too long; `stumbled` are those who have left it."""
        size = len(flight.members)
        failed = self._results(flight, stumbled)
        ended = self._results(flight, flight.bodies)
        failed |= {place: ended[place] for place in ended if place in failed}
        ranks = dict(enumerate(world_and_rank(member)[1] for member in flight.members))
        at_it = {
            place: rank
            for place, rank in ranks.items()
            if place not in ended and _is_at(world, rank, one.case)
        }
        waiting, silent = _stacks(world, at_it)
        if one.why == "grace":
            who = describe_ranks(sorted(failed), size)
            verb = "failed" if any(result.failed for result in failed.values()) else "left the test"
            headline = f"{who} {verb}, and the others did not end within {self._grace:g} s"
        else:
            headline = self._over_limit(one)
        return Ending(
            size=size,
            phase=one.phase,
            headline=headline,
            how="failed" if one.why == "grace" else "timed out",
            seconds=one.seconds,
            failed=failed,
            ended=ended,
            waiting=waiting,
            unanswered=silent,
            output={
                place: world.outputs[rank].read()
                for place, rank in ranks.items()
                if rank in world.outputs and place not in ended
            },
        )

    def on_overdue_after(self, world: World, one: Overdue, moments: Mapping[int, Moment]) -> Ending:
        """Describe fixtures that take too long to be torn down after their last test."""
        busy = {rank: rank for rank, moment in moments.items() if moment.phase == "closing"}
        waiting, silent = _stacks(world, busy)
        return Ending(
            size=world.size,
            phase="closing",
            headline=self._over_limit(one),
            how="timed out",
            seconds=one.seconds,
            waiting=waiting,
            unanswered=silent,
        )

    def _over_limit(self, one: Overdue) -> str:
        limit = self._tests[one.case].limit
        return f"no end after {limit:g} s {describe_phase(one.phase)} (time limit)"

    def _on_death(self, world: World, culprit: int, ranks: Mapping[int, int]) -> Ending:
        """Describe how a rank ended; `ranks` are the places in the test of a world's ranks."""
        moment = world.box(culprit).read_moment()
        phase = moment.phase if moment is not None else "call"
        status = world.ended.get(culprit)
        kills, self._memory_kills = self._memory_kills, _count_memory_kills()
        how = describe_status(status, out_of_memory=self._memory_kills > kills)
        if status is None and _has_aborted(world, culprit):
            how = "called MPI_Abort"
        how = world.reasons.get(culprit, how)
        # Others may have crashed in the same way at the same moment.
        fellows = {culprit: read_crash(world.box(culprit).read_crash())}
        for rank in world.culprits:
            stack = read_crash(world.box(rank).read_crash())
            if rank in ranks and stack and world.ended.get(rank) == status:
                fellows[rank] = stack
        were = how.replace("was ", "were ", 1) if len(fellows) > 1 else how
        who = describe_ranks([ranks[rank] for rank in fellows], len(ranks))
        return Ending(
            size=len(ranks),
            phase=phase,
            headline=f"{who} {were} {describe_phase(phase)}",
            seconds=time.monotonic() - moment.since if moment is not None else 0.0,
            crashes={ranks[rank]: stack for rank, stack in fellows.items() if stack},
            output={
                ranks[rank]: world.outputs[rank].read() for rank in fellows if rank in world.outputs
            },
        )

    def _results(self, flight: Flight, bodies: Mapping[int, bytes]) -> dict[int, RankResult]:
        return {
            place: unpack(bodies[member], self._tests[flight.case])
            for place, member in enumerate(flight.members)
            if member in bodies
        }


# What Slurm prints when it ends a step, and what that means.
_STEP_ENDS = (
    ("DUE TO TIME LIMIT", "because it had reached its time limit"),
    ("DUE TO NODE FAILURE", "because a node was lost"),
    ("NODE FAILURE", "because a node was lost"),
    ("oom", "because it had used up its memory"),
    ("exceeded memory limit", "because it had used up its memory"),
    ("Exceeded job memory limit", "because it had used up its memory"),
    ("CANCELLED", "from outside (scancel)"),
)


def explain_step(said: str) -> str:
    """Say why Slurm has ended a step, from what it printed."""
    for words, meaning in _STEP_ENDS:
        if words in said:
            return meaning
    return "from outside"


def _has_aborted(world: World, rank: int) -> bool:
    """Tell whether a rank's MPI has said that it was asked to end all ranks."""
    output = world.outputs[rank].read() if rank in world.outputs else {}
    return "MPI_Abort" in output.get("stderr", "")


def _is_at(world: World, rank: int, case: int) -> bool:
    """Tell whether a rank has not gone on to another test."""
    moment = world.box(rank).read_moment()
    return moment is None or moment.case == case


def _stacks(world: World, ranks: Mapping[int, int]) -> tuple[dict[int, Stack], list[int]]:
    """Give where ranks are, by their place in the test; and those that did not answer."""
    found = world.stacks_of(ranks.values())
    stacks = {place: found[rank] for place, rank in ranks.items() if rank in found}
    return stacks, [place for place in ranks if place not in stacks]


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
