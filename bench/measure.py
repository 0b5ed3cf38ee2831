"""Run commands in turns and take their time."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench import peers
from bench.contestants import Contestant
from bench.environment import variables

_LIMIT_SECONDS = 300.0


class BenchError(Exception):
    """A measured command did not do what it was measured for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One run: seconds on the clock, and seconds of CPU of all its processes."""

    wall: float
    cpu: float


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

    def takes_part(self, number: int) -> bool:
        """Say whether it runs in this round; round 0 does not count."""
        most = self.contestant.most_rounds
        return self.obstacle is None and (most is None or number <= most)


def run(contestant: Contestant, extra: Mapping[str, str] | None = None) -> Sample:
    """Run a contestant once.

    Raises BenchError when it ends in another way than it should, or has not done the work.
    """
    with tempfile.TemporaryFile() as output:
        before = _children_cpu()
        started = time.perf_counter()
        process = subprocess.Popen(
            contestant.command,
            cwd=contestant.folder,
            env={**variables(contestant.environment), **(extra or {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        # A wait with a timeout looks every 50 ms only, which is more than what is measured here.
        limit = threading.Timer(_LIMIT_SECONDS, os.killpg, (process.pid, signal.SIGKILL))
        limit.start()
        try:
            code = process.wait()
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        finally:
            limit.cancel()
        sample = Sample(wall=time.perf_counter() - started, cpu=_children_cpu() - before)
        output.seek(0)
        text = output.read().decode(errors="replace")
    if code != contestant.code or contestant.shows not in text:
        shown = " ".join(contestant.command)
        raise BenchError(
            f"{contestant.name}: `{shown}` ended with {code} instead of {contestant.code}, "
            f"or without showing '{contestant.shows}':\n{text[-4000:]}"
        )
    return sample


def _children_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def forget(folder: Path) -> None:
    """Remove what pytest remembers of earlier runs; compiled files stay."""
    shutil.rmtree(folder / ".pytest_cache", ignore_errors=True)


def take_turns(contestants: Sequence[Contestant], repetitions: int) -> list[Result]:
    """Run all contestants in turns, each as if for the first time in its folder.

    A first round, which compiles files and warms the disk's cache, does not count. Every other
    round goes backwards, so that nobody always follows the same neighbour.

    Raises BenchError when one of ours fails. A peer that fails has an obstacle in its result.
    """
    results = [
        Result(contestant=one, obstacle=peers.obstacle(one.peer) if one.peer else None)
        for one in contestants
    ]
    for number in range(repetitions + 1):
        for result in results if number % 2 else reversed(results):
            if result.takes_part(number):
                _take_turn(result, counts=number > 0)
    return results


def _take_turn(result: Result, *, counts: bool) -> None:
    forget(result.contestant.folder)
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
