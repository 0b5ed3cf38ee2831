"""Times, sizes, names and ends, as people say them."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterable, Sequence

_NUMBERED = re.compile(r"(?P<name>.+)-(?P<number>\d+)")


def label(process: str) -> str:
    """Say the name of a process: `worker 2` for worker-2."""
    found = _NUMBERED.fullmatch(process)
    return f"{found['name']} {found['number']}" if found else process


def fold(processes: Iterable[str]) -> str:
    """Name many processes shortly: `rank 0-2, 7 and launcher`."""
    numbers: dict[str, list[int]] = {}
    for process in processes:
        found = _NUMBERED.fullmatch(process)
        if found:
            numbers.setdefault(found["name"], []).append(int(found["number"]))
        else:
            numbers.setdefault(process, [])
    return listed([f"{name} {_ranges(them)}" if them else name for name, them in numbers.items()])


def _ranges(numbers: Sequence[int]) -> str:
    spans: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if spans and number == spans[-1][1] + 1:
            spans[-1] = spans[-1][0], number
        else:
            spans.append((number, number))
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def listed(names: Sequence[str], *, most: int = 0) -> str:
    """Enumerate names; only the first ones if there are more than `most` (0: all)."""
    if most and len(names) > most:
        names = [*names[:most], f"{len(names) - most} more"]
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def counted(number: int, noun: str) -> str:
    """Say how many: `1 task`, `2 processes`."""
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{number} {noun if number == 1 else plural}"


def duration(seconds: float) -> str:
    """Say how long something took."""
    if seconds < 0.9995:
        return f"{max(0, round(seconds * 1000))} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // 86400} d {whole % 86400 // 3600:02} h"


def size(number: float) -> str:
    """Say how many bytes."""
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    while number >= 1024 and len(units) > 1:
        number /= 1024
        del units[0]
    return f"{number:.0f} {units[0]}" if number >= 100 else f"{number:.3g} {units[0]}"


def ending(exit_code: int | None, number: int | None) -> str:
    """Say how a process has ended: `exit code 7`, `signal 11 (SIGSEGV)`."""
    if number is not None:
        try:
            return f"signal {number} ({signal.Signals(number).name})"
        except ValueError:
            return f"signal {number}"
    return "an unknown end" if exit_code is None else f"exit code {exit_code}"


def short_path(path: str) -> str:
    """Give a path as people would write it in this folder."""
    if not path:
        return ""
    here = os.path.relpath(path)
    return path if here.startswith("..") else here
