"""What a rank is at: written down by itself, read here or on its node; and what is overdue."""

from __future__ import annotations

import contextlib
import faulthandler
import mmap
import os
import re
import struct
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from rankwise.pytest_plugin.stacks import Frame, Stack, StackFile, ask_for_stacks

Phase = Literal["setup", "call", "teardown", "closing", "ending", "idle"]
"""`closing`: fixtures of a module or the session are torn down after the last test. `ending`: the
process comes to its end. `idle`: it waits for the next test; a rank does not write that down."""

AFTER: tuple[Phase, ...] = ("closing", "ending", "idle")
"""Those in which no test runs: the test that is named has run last."""

# Own references: a test may have put something else in their place, and this runs in its middle.
_monotonic = time.monotonic

_PHASES: tuple[Phase, ...] = ("setup", "call", "teardown", "closing", "ending")
# The test's number, the phase's, and since when: CLOCK_MONOTONIC is the same for all processes.
_MOMENT = struct.Struct("=qqd")
# Before it stands how often it was changed, and an odd number while it is being changed: a rank may
# lose the processor in the middle of that, and half a moment would be a wrong one.
_COUNT = struct.Struct("=q")
_SIZE = _COUNT.size + _MOMENT.size
# No test has this number.
_IDLE = -1
# The last lines say what happened; a rank may have written gigabytes.
_TAIL_BYTES = 4096


class RankStatus(NamedTuple):
    """What a rank was at when it last wrote it down."""

    case: int
    phase: Phase
    since: float


class StatusFiles:
    """The files of one rank."""

    def __init__(self, folder: Path, name: str) -> None:
        self.moment = folder / f"{name}.moment"
        self.stacks = folder / f"{name}.stacks"
        self.crash = folder / f"{name}.crash"

    def read_status(self) -> RankStatus | None:
        """Return what the rank is at; None: nothing."""
        try:
            # Read twice: between two equal readings with an even count, nothing was being written.
            data, again = self.moment.read_bytes(), self.moment.read_bytes()
        except OSError:
            return None
        if len(data) < _SIZE or data != again or _COUNT.unpack_from(data)[0] % 2:
            return None
        case, phase, since = _MOMENT.unpack_from(data, _COUNT.size)
        if case == _IDLE:
            return None
        return RankStatus(case=case, phase=_PHASES[phase], since=since)

    def read_crash(self) -> str:
        """Return what the interpreter said at its end."""
        try:
            return self.crash.read_text(errors="replace")
        except OSError:
            return ""

    def remove(self) -> None:
        """Forget a rank that is gone."""
        for path in (self.moment, self.stacks, self.crash):
            path.unlink(missing_ok=True)


class StatusWriter:
    """A rank's side: it writes."""

    def __init__(self, files: StatusFiles) -> None:
        descriptor = os.open(files.moment, os.O_RDWR | os.O_CREAT, 0o600)
        # Not a hole: where a disk is full, to write to that would end the process.
        os.write(descriptor, bytes(_SIZE))
        # Memory that outlives the process: to write a moment down takes no system call.
        self._memory = mmap.mmap(descriptor, _SIZE)
        os.close(descriptor)
        self._case = _IDLE
        self._changes = 0
        self.rest()
        self._stacks = StackFile(files.stacks)
        # Opened now: after a signal, the handler can only write.
        self._crash = files.crash.open("wb", buffering=0)
        self.arm()

    def arm(self) -> None:
        """Have the interpreter write here what it has to say when a signal ends it.

        Not to stderr, as pytest arranges when it is configured: that may not be shown.
        """
        faulthandler.enable(file=self._crash)

    def begin(self, case: int) -> None:
        """Be at a test from now on."""
        self._case = case
        self.enter("setup")

    def enter(self, phase: Phase) -> None:
        """Be in this phase of the test from now on."""
        self._write(self._case, _PHASES.index(phase), _monotonic())

    def rest(self) -> None:
        """Be at nothing."""
        self._write(_IDLE, 0, 0.0)

    def _write(self, case: int, phase: int, since: float) -> None:
        # Odd while it changes, even again when it is whole: see `_COUNT`.
        self._changes += 2
        _COUNT.pack_into(self._memory, 0, self._changes - 1)
        _MOMENT.pack_into(self._memory, _COUNT.size, case, phase, since)
        _COUNT.pack_into(self._memory, 0, self._changes)


class OutputTail:
    """The end of what a process has written to files that only it knows by name."""

    def __init__(self, pid: int, descriptors: dict[str, int]) -> None:
        self._files = {}
        for name, number in descriptors.items():
            # Opened while the process lives, they can be read when it is gone.
            with contextlib.suppress(OSError):
                self._files[name] = os.open(f"/proc/{pid}/fd/{number}", os.O_RDONLY)

    def read(self) -> dict[str, str]:
        """Return the last lines of each that has any."""
        found = {}
        for name, descriptor in self._files.items():
            size = os.fstat(descriptor).st_size
            start = max(0, size - _TAIL_BYTES)
            text = os.pread(descriptor, _TAIL_BYTES, start).decode(errors="replace")
            if start:
                text = f"… ({start} bytes before)\n{text.partition(chr(10))[2] or text}"
            if text.strip():
                found[name] = text
        return found

    def close(self) -> None:
        """Let go of the files; idempotent."""
        while self._files:
            os.close(self._files.popitem()[1])


# A phase that is over sooner is not worth a message.
_SLOW_SECONDS = 0.3

Key = tuple[int, int]
"""A world's number and a rank in it."""


class NodeStatus:
    """Looks at the status files of the ranks of one server."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._outputs: dict[Key, OutputTail] = {}
        self._told: dict[Key, RankStatus] = {}

    def watch(self, key: Key, pid: int, descriptors: dict[str, int]) -> None:
        """Get hold of a rank's output, while there is a process to ask for it."""
        self._outputs[key] = OutputTail(pid, descriptors)

    def look(self, keys: list[Key]) -> list[list[Any]]:
        """Return what ranks are at that take long over it; and, once, that they no longer are."""
        now = time.monotonic()
        news = []
        for key in keys:
            moment = self._files(key).read_status()
            told = self._told.get(key)
            # Most looks find nothing new, and short phases are over before they are worth a
            # message.
            if moment == told:
                continue
            if moment is not None and now - moment.since > _SLOW_SECONDS:
                self._told[key] = moment
                news.append([*key, *describe_status_age(moment)])
            elif told is not None:
                del self._told[key]
                news.append([*key, None])
        return news

    def final_status(self, key: Key) -> dict[str, Any]:
        """Return all that is known about a rank whose process has ended, and forget it."""
        box = self._files(key)
        moment = box.read_status()
        output = self._outputs.pop(key, None)
        said = {
            "moment": describe_status_age(moment) if moment is not None else None,
            "crash": box.read_crash(),
            "outputs": output.read() if output is not None else {},
        }
        if output is not None:
            output.close()
        self._told.pop(key, None)
        box.remove()
        return said

    def stacks(self, pids: dict[Key, int]) -> dict[str, Any]:
        """Return where ranks of one world are, and the end of what they have written."""
        asked = {key[1]: (pid, self._files(key).stacks) for key, pid in pids.items()}
        stacks = ask_for_stacks(asked)
        return {
            "stacks": {
                str(rank): [list(frame) for frame in stack] for rank, stack in stacks.items()
            },
            "outputs": {
                str(rank): output.read()
                for (world, rank), output in self._outputs.items()
                if (world, rank) in pids
            },
        }

    def _files(self, key: Key) -> StatusFiles:
        world, rank = key
        return StatusFiles(self._folder, f"{world}.{rank}")


def describe_status_age(moment: RankStatus) -> list[Any]:
    """Write a moment down for another machine, whose clock has another beginning."""
    return [moment.case, moment.phase, time.monotonic() - moment.since]


def read_status(said: list[Any] | None) -> RankStatus | None:
    """Read such a note."""
    if not said or said[0] is None:
        return None
    case, phase, age = said
    return RankStatus(case=case, phase=phase, since=time.monotonic() - age)


Answers = list[dict[str, Any]]


@dataclass(slots=True, kw_only=True)
class RemoteRank:
    """Status and output of a rank elsewhere: as `StatusFiles` and `OutputTail` have them here."""

    last_moment: RankStatus | None = None
    last_words: str = ""
    output: Mapping[str, str] = field(default_factory=dict)

    def read_status(self) -> RankStatus | None:
        return self.last_moment

    def read_crash(self) -> str:
        return self.last_words

    def read(self) -> dict[str, str]:
        return dict(self.output)

    def remove(self) -> None:
        """The files are removed where they are."""

    def close(self) -> None:
        """Nothing is open here."""


class RemoteStatus:
    """What was said about the ranks of one world."""

    def __init__(self, ask: Callable[[Mapping[str, Any]], Answers]) -> None:
        self._ask = ask
        self._ranks: dict[int, RemoteRank] = {}

    def status_of(self, rank: int) -> RemoteRank:
        return self._ranks.setdefault(rank, RemoteRank())

    def note_status(self, rank: int, said: list[Any]) -> None:
        """Learn what a rank is at."""
        self.status_of(rank).last_moment = read_status(said)

    def note_end(self, rank: int, said: Mapping[str, Any]) -> None:
        """Learn what was found when a rank's process had ended."""
        box = self.status_of(rank)
        if "crash" in said:
            box.last_moment = read_status(said["moment"])
            box.last_words = said["crash"]
            box.output = said["outputs"]

    def stacks_of(self, world: int, ranks: Sequence[int]) -> dict[int, Stack]:
        """Ask where ranks are."""
        stacks: dict[int, Stack] = {}
        question = {"kind": "stacks", "world": world, "ranks": list(ranks)}
        for answer in self._ask(question):
            for rank, frames in answer["stacks"].items():
                stacks[int(rank)] = tuple(Frame(*frame) for frame in frames)
            for rank, output in answer["outputs"].items():
                self.status_of(int(rank)).output = output
        return stacks


_OTHER_PARTS = {
    "closing": "when fixtures of a wider scope were torn down",
    "ending": "after its last test, at the end of the process",
    "idle": "between two tests",
}


def describe_phase(phase: Phase) -> str:
    """Name a part of a test in a sentence."""
    return _OTHER_PARTS.get(phase, f"in {phase}")


def describe_overdue(test: str, limit: float, phase: Phase) -> str:
    """Say that a part of a test, which is named by its node id, exceeded its limit."""
    who = "a rank" if phase in AFTER else test.rpartition("::")[2]
    return f"{who} exceeded its time limit of {limit:g} s {describe_phase(phase)}"


def describe_grace(who: str, seconds: float, *, verb: str = "failed") -> str:
    """Say that the others went on after some ranks had left a test."""
    return f"{who} {verb}, and the others did not end within {seconds:g} s"


class Overdue(NamedTuple):
    """A test that has to be ended."""

    case: int
    why: Literal["limit", "grace"]
    phase: Phase
    seconds: float
    """For how long the phase had run."""


SetupState = Literal["begins", "done", "failed"]
Hopeless = tuple[float, str]
Said = TypeVar("Said")


class Setups:
    """Which fixtures of a session, a package or a module are being set up, and by which workers.

    A fixture that was not set up within a time limit is not tried again within the same or a
    shorter one, as pytest does not try one again that has failed.
    """

    def __init__(self) -> None:
        self._at: dict[int, list[str]] = {}
        self._having: dict[str, set[int]] = {}
        self._words: dict[str, str] = {}
        self.hopeless: dict[str, Hopeless] = {}
        """Those that did not come to their end: how long is too short for them, and in words."""

    def note(self, worker: int, key: str, words: str, state: SetupState) -> None:
        """Learn that a worker begins to set a fixture up, or how that has ended."""
        self._words[key] = words
        at = self._at.setdefault(worker, [])
        if state == "begins":
            at.append(key)
            return
        at.remove(key)
        if state == "done":
            self._having.setdefault(key, set()).add(worker)

    def forget(self, workers: Iterable[int]) -> None:
        """Learn that workers are gone, and their fixtures with them."""
        gone = set(workers)
        for worker in gone:
            self._at.pop(worker, None)
        for having in self._having.values():
            having.difference_update(gone)

    def give_up(self, worker: int, test: str, limit: float) -> str:
        """Have no other worker try what a worker did not come to the end of; returns a hint.

        Empty if it sets up none.
        """
        at = self._at.get(worker)
        if not at:
            return ""
        key, words = at[-1], self._words[at[-1]]
        why = f"{words} was not set up within {limit:g} s (time limit) for {test}, and is not tried"
        self.hopeless[key] = limit, f"{why} again. {_OWN_FIXTURES}"
        hint = f"It sets up {words}."
        if self._having.get(key, set()) - {worker}:
            hint += " Another worker has it already."
        return f"{hint} {_OWN_FIXTURES}"


_OWN_FIXTURES = (
    "Every worker sets up such fixtures for itself: what only one process at a time can have, as a "
    "port or a file, must be another one on each worker, or --n-workers=1 runs the tests on one."
)


def find_overdue(
    moments: Sequence[RankStatus],
    limits: Sequence[float],
    failures: Mapping[int, float],
    *,
    grace: float,
    now: float,
) -> list[Overdue]:
    """Find tests over their time limit (0: none), or over the grace after a rank has failed.

    `failures` has the moment of each running test's first failure.
    """
    found: dict[int, Overdue] = {}
    # The rank that has taken longest stands for its test.
    for moment in moments:
        since = _begun(moment, moments)
        if since is None:
            continue
        taken, limit = now - since, limits[moment.case]
        rank_failed = failures.get(moment.case)
        if rank_failed is not None and now - rank_failed > grace and moment.phase not in AFTER:
            why: Literal["limit", "grace"] = "grace"
        elif limit and taken > limit:
            why = "limit"
        else:
            continue
        if moment.case not in found or found[moment.case].seconds < taken:
            found[moment.case] = Overdue(
                case=moment.case, why=why, phase=moment.phase, seconds=taken
            )
    return list(found.values())


def _begun(moment: RankStatus, moments: Sequence[RankStatus]) -> float | None:
    """Return since when a rank is responsible for what it is at; None: it waits for another one.

    After a test ranks may wait for those that are still at it: in a fixture that all of them tear
    down together, and in MPI_Finalize for all ranks of the world.
    """
    if moment.phase not in AFTER:
        return moment.since
    is_ending = moment.phase == "ending"
    peers = [one for one in moments if is_ending or one.case == moment.case]
    if any(one.phase not in AFTER or (is_ending and one.phase != "ending") for one in peers):
        return None
    return max(one.since for one in peers)


class HangWatch(Generic[Said]):
    """Knows how long tests may take, and in which of them a rank has failed."""

    def __init__(self, limits: Sequence[float] = (), *, grace: float = 0.0) -> None:
        self.limits = limits
        self.grace = grace
        self._failures: dict[int, tuple[float, dict[int, Said]]] = {}
        self._pauses: list[tuple[float, float]] = []

    def rank_failed(self, case: int, rank: int, said: Said) -> None:
        """Learn that a rank has failed in a test: the others have the grace from now on."""
        self._failures.setdefault(case, (time.monotonic(), {}))[1][rank] = said

    def rank_repeats(self, case: int, rank: int) -> None:
        """Learn that a rank that had failed in a test runs it once more."""
        _, said = self._failures.get(case, (0.0, {}))
        said.pop(rank, None)
        if not said:
            self.forget(case)

    def forget(self, case: int) -> None:
        """Learn that a test is over; idempotent."""
        self._failures.pop(case, None)

    def forget_all_but(self, cases: Collection[int]) -> None:
        """Learn that only these tests are not over."""
        for case in [case for case in self._failures if case not in cases]:
            self.forget(case)

    def failures_of(self, case: int) -> Mapping[int, Said]:
        """Return what the ranks said that have failed in a test."""
        return self._failures.get(case, (0.0, {}))[1]

    def pause(self, since: float) -> None:
        """Learn that everything was held since a moment, by a debugger: that does not count."""
        self._pauses.append((since, time.monotonic()))

    def without_pauses(self, moment: RankStatus) -> RankStatus:
        """Return a moment with as much time as was left to the rank."""
        held = overlap(moment.since, self._pauses)
        return moment._replace(since=moment.since + held) if held else moment

    def find(self, moments: Sequence[RankStatus]) -> list[Overdue]:
        """Find the tests that have to be ended."""
        failures = {
            case: since + overlap(since, self._pauses)
            for case, (since, _) in self._failures.items()
        }
        now = time.monotonic()
        return find_overdue(moments, self.limits, failures, grace=self.grace, now=now)


def overlap(since: float, pauses: Sequence[tuple[float, float]]) -> float:
    """Return how much of the time since a moment everything was held by debuggers."""
    return sum(max(0.0, end - max(since, start)) for start, end in pauses)


# What MPICH, and MPIs that are made of it, print before they have mpiexec end all ranks.
_ABORTED = re.compile(r"Abort\(-?\d+\) on node \d|application called MPI_Abort\(")


def how_aborted(stderr: str) -> str:
    """Return what a rank's MPI has ended all ranks for, from what it has printed; empty: nothing.

    To write about MPI_Abort is no call of it.
    """
    if not _ABORTED.search(stderr):
        return ""
    is_call = "application called MPI_Abort(" in stderr
    return "called MPI_Abort" if is_call else "had an error of MPI that ends all ranks"


def count_memory_kills() -> int:
    """Return how many processes the kernel has killed for want of memory."""
    return read_counter(Path("/proc/vmstat"), "oom_kill ")


def read_counter(path: Path, name: str) -> int:
    """Return the number behind a name in a file of the kernel's; 0: it is not there."""
    with contextlib.suppress(OSError):
        lines = path.read_text().splitlines()
        return next((int(line.split()[1]) for line in lines if line.startswith(name)), 0)
    return 0
