"""Run commands in turns and take their time."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.environment import NO_XDIST, pytest, variables

SCHEDULERS = ("sequential", "static", "dynamic")
_LIMIT_SECONDS = 300.0


class BenchError(Exception):
    """A measured command did not do what it was measured for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """A command, the folder it runs in, and what its output must show."""

    name: str
    command: Sequence[str]
    folder: Path
    shows: str
    target: float | None = None
    """What the ratio to the first contestant should not exceed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One run: seconds on the clock, and seconds of CPU of all its processes."""

    wall: float
    cpu: float


def run(contestant: Contestant, extra: Mapping[str, str] | None = None) -> Sample:
    """Run a contestant once.

    Raises BenchError when it fails, or has not done the work.
    """
    with tempfile.TemporaryFile() as output:
        before = _children_cpu()
        started = time.perf_counter()
        process = subprocess.Popen(
            contestant.command,
            cwd=contestant.folder,
            env={**variables(), **(extra or {})},
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
    if code or contestant.shows not in text:
        shown = " ".join(contestant.command)
        raise BenchError(f"{contestant.name}: `{shown}` ended with {code}:\n{text[-4000:]}")
    return sample


def each_scheduler(folder: Path, shows: str, *, target: float) -> list[Contestant]:
    """Let every scheduler run a suite on two ranks."""
    return [
        Contestant(
            name=f"mpirun -n 2 pytest --scheduler={scheduler}",
            command=pytest(*NO_XDIST, f"--scheduler={scheduler}", ranks=2),
            folder=folder,
            shows=shows,
            target=target,
        )
        for scheduler in SCHEDULERS
    ]


def _children_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def forget(folder: Path) -> None:
    """Remove what pytest remembers of earlier runs; compiled files stay."""
    shutil.rmtree(folder / ".pytest_cache", ignore_errors=True)


def take_turns(contestants: Sequence[Contestant], repetitions: int) -> dict[str, list[Sample]]:
    """Run all contestants in turns, each as if for the first time in its folder.

    A first round, which compiles files and warms the disk's cache, does not count. Every other
    round goes backwards, so that nobody always follows the same neighbour.
    """
    samples: dict[str, list[Sample]] = {contestant.name: [] for contestant in contestants}
    for number in range(repetitions + 1):
        for contestant in contestants if number % 2 else reversed(contestants):
            forget(contestant.folder)
            sample = run(contestant)
            if number:
                samples[contestant.name].append(sample)
    return samples


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


@dataclass(slots=True, kw_only=True)
class Load:
    """What else the machine was doing while something was measured."""

    before: float
    after: float = 0.0
    steal: float | None = None
    """The share of CPU time that a hypervisor gave to others; None: not known here."""

    def __str__(self) -> str:
        steal = "unknown" if self.steal is None else f"{100 * self.steal:.1f} %"
        return f"load {self.before:.1f} before, {self.after:.1f} after, steal {steal}"


@contextmanager
def watch_load() -> Iterator[Load]:
    """Note the load before and after; the numbers are complete when the block is left."""
    load = Load(before=os.getloadavg()[0])
    ticks = _cpu_ticks()
    yield load
    load.after = os.getloadavg()[0]
    if ticks is not None and (now := _cpu_ticks()) is not None:
        total = sum(now) - sum(ticks)
        load.steal = (now[7] - ticks[7]) / total if total else 0.0


def _cpu_ticks() -> list[int] | None:
    """Read user, nice, system, idle, iowait, irq, softirq, steal; None where there is no /proc."""
    try:
        with Path("/proc/stat").open() as file:
            return [int(field) for field in file.readline().split()[1:9]]
    except OSError:
        return None
