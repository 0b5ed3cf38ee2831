"""What else the machine was doing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


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
