"""Run commands in turns and take their time."""

from __future__ import annotations

import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench import peers
from bench.contestants import Contestant
from bench.environment import variables

_MOST_CHARACTERS = 300


class BenchError(Exception):
    """A measured command did not do what it was measured for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One run: seconds on the clock, and seconds of CPU of all its processes."""

    wall: float
    cpu: float
    memory: int
    """The most bytes that its largest process had, or that this one has, which started it."""


@dataclass(slots=True, kw_only=True)
class Result:
    """A contestant's runs, or why it cannot take part, in a few words that follow its name."""

    contestant: Contestant
    samples: list[Sample] = field(default_factory=list)
    obstacle: str | None = None

    @property
    def wall(self) -> float:
        return median([sample.wall for sample in self.samples])

    @property
    def cpu(self) -> float:
        return median([sample.cpu for sample in self.samples])

    @property
    def fastest(self) -> float:
        return min(sample.wall for sample in self.samples)

    @property
    def memory(self) -> float:
        return median([sample.memory for sample in self.samples])

    def takes_part(self, number: int) -> bool:
        """Say whether it runs in this round; round 0 does not count."""
        most = self.contestant.most_rounds
        return self.obstacle is None and (most is None or number <= most)


def run(contestant: Contestant, extra: Mapping[str, str] | None = None) -> Sample:
    """Run a contestant once.

    Raises BenchError when it ends in another way than it should, or has not done the work.
    """
    with tempfile.TemporaryFile() as output:
        started = time.perf_counter()
        process = subprocess.Popen(
            contestant.command,
            cwd=contestant.folder,
            env={**variables(contestant.environment), **contestant.variables, **(extra or {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        # A wait with a timeout looks every 50 ms only, which is more than what is measured here.
        limit = threading.Timer(contestant.most_seconds, os.killpg, (process.pid, signal.SIGKILL))
        limit.start()
        try:
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = code = os.waitstatus_to_exitcode(status)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        finally:
            limit.cancel()
        wall = time.perf_counter() - started
        output.seek(0)
        text = output.read().decode(errors="replace")
    if code != contestant.code or contestant.shows not in text:
        shown = textwrap.shorten(" ".join(contestant.command), _MOST_CHARACTERS)
        raise BenchError(
            f"{contestant.name}: `{shown}` ended with {code} instead of {contestant.code}, "
            f"or without showing '{contestant.shows}':\n{text[-4000:]}"
        )
    return Sample(wall=wall, cpu=usage.ru_utime + usage.ru_stime, memory=1024 * usage.ru_maxrss)


def forget(folder: Path) -> None:
    """Remove what pytest remembers of earlier runs; compiled files stay."""
    shutil.rmtree(folder / ".pytest_cache", ignore_errors=True)


def take_turns(
    contestants: Sequence[Contestant], repetitions: int, *, is_warm: bool = False
) -> list[Result]:
    """Run all contestants in turns, each as if for the first time in its folder.

    A first round, which compiles files and warms the disk's cache, does not count; there is none
    if all `is_warm` already. Every other round goes backwards, so that none always follows the
    same neighbour.

    Raises BenchError when one of ours fails. A peer that fails has an obstacle in its result.
    """
    results = [
        Result(contestant=one, obstacle=peers.obstacle(one.peer) if one.peer else None)
        for one in contestants
    ]
    for number in range(1 if is_warm else 0, repetitions + 1):
        for result in results if number % 2 else reversed(results):
            if result.takes_part(number):
                _take_turn(result, counts=number > 0)
    return results


def _take_turn(result: Result, *, counts: bool) -> None:
    forget(result.contestant.folder)
    if result.contestant.prepare is not None:
        result.contestant.prepare()
    try:
        sample = run(result.contestant)
    except BenchError as error:
        if result.contestant.peer is None:
            raise
        print(f"bench: {error}", file=sys.stderr)
        result.obstacle = f"does not work: {peers.in_short(str(error))}"
    else:
        if counts:
            result.samples.append(sample)


def median(values: Sequence[float]) -> float:
    return statistics.median(values)
