"""A real change: is ping-pong over loopback TCP told from the same over shared memory?

And does it say when nothing has changed, and when the machine is too busy to tell?
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.environment import BENCH, python, variables
from bench.measure import BenchError
from bench.table import Table
from rankwise.metrics.base import read
from rankwise.metrics.conditions import joined, noise
from rankwise.node.machine import machine_reading
from rankwise.plan import Metric
from rankwise.stats.comparison import Comparison, Pair, Trials, compare

_TRIALS = 15
# Two ranks on a virtual machine waver by a tenth by themselves.
_THRESHOLD = 0.20
_SIZE = "65536"  # smaller ones are as much about which core wakes up when
_LOOPS = ("--loop", "20000", "--loop-large", "20000", "--skip-large", "1000")
_COMMAND = ("-m", "mpi4py.bench", "pingpong", "--min", _SIZE, "--max", _SIZE, *_LOOPS)
_LIMIT_SECONDS = 120.0
# MPICH's, which the environment of the benches has.
_TCP = {"MPIR_CVAR_NOLOCAL": "1", "FI_PROVIDER": "tcp", "UCX_TLS": "tcp,self"}
_SPIN = "while True: pass"


@dataclass(slots=True)
class _Taken:
    """The trials of one kind."""

    values: list[float] = field(default_factory=list)
    """In seconds."""
    noise: list[tuple[str, ...]] = field(default_factory=list)

    def trials(self, *, is_trusting: bool = False) -> Trials:
        """Return the rounds that were measured in quiet; all of them if `is_trusting`."""
        quiet = [
            value
            for value, reasons in zip(self.values, self.noise, strict=True)
            if is_trusting or not reasons
        ]
        reasons = [reason for each in self.noise for reason in each]
        return Trials(values=quiet, noisy=len(self.values) - len(quiet), noise=reasons)


def run(_folder: Path, _repetitions: int) -> Table:
    table = Table(
        title=f"Ping-pong of 64 KiB, {_TRIALS} interleaved trials each, threshold {_THRESHOLD:.0%}",
        headings=("A µs", "B µs", "change", "verdict", "expected", "whatever the conditions"),
    )
    first, again, tcp, loaded = (_Taken() for _ in range(4))
    for _ in range(_TRIALS):
        _take(first, {})
        _take(again, {})
        _take(tcp, _TCP)
    with _busy_cores():
        for _ in range(_TRIALS):
            _take(loaded, {})
    for name, other, expected in (
        ("the same again", again, "unchanged"),
        ("over loopback TCP", tcp, "regressed"),
        ("the same, all cores busy", loaded, "inconclusive"),
    ):
        table.rows.append(_row(name, first, other, expected))
    table.remarks += sorted({reason for each in first.noise for reason in each})[:3]
    return table


def _take(taken: _Taken, more: Mapping[str, str]) -> None:
    """Run it once, and keep what it has measured and under which conditions."""
    used, before = _children_seconds(), machine_reading()
    done = subprocess.run(
        python(*_COMMAND, ranks=2),
        env={**variables(BENCH), **more},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_LIMIT_SECONDS,
        check=False,
    )
    conditions = joined(before, machine_reading(), own_cpu_seconds=_children_seconds() - used)
    found = read(Metric(parser="mpi4py.bench", only=("pingpong_time",)), done.stdout)
    if done.returncode or found.faults:
        raise BenchError(f"ping-pong ended with {done.returncode}: {found.faults} {done.stderr}")
    taken.values.append(found.samples[0].value)
    taken.noise.append(noise(conditions))


def _children_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


@contextmanager
def _busy_cores() -> Iterator[None]:
    """Keep every core busy meanwhile."""
    line = [sys.executable, "-c", _SPIN]
    busy: Sequence[subprocess.Popen[Any]] = [
        subprocess.Popen(line, stdin=subprocess.DEVNULL) for _ in range(os.cpu_count() or 1)
    ]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def _row(name: str, first: _Taken, second: _Taken, expected: str) -> Sequence[str]:
    result = _compared(first.trials(), second.trials())
    trusting = _compared(first.trials(is_trusting=True), second.trials(is_trusting=True))
    return (
        name,
        *(f"{1e6 * value:.1f}" if value else "-" for value in (trusting.before, trusting.after)),
        f"{trusting.change:+.0%}" if trusting.change is not None else "-",
        result.verdict,
        expected,
        trusting.verdict,
    )


def _compared(first: Trials, second: Trials) -> Comparison:
    return compare([Pair(before=first, after=second, threshold=_THRESHOLD)])[0]
