"""What this machine has, as far as this process may use it, and what is lacking for a task."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rankwise.plan import Resources
from rankwise.wording import size

_NVML = "libnvidia-ml.so.1"


def machine(
    *,
    root: Path = Path("/"),
    environ: Mapping[str, str] = os.environ,
    load: Callable[[str], Any] = ctypes.CDLL,
) -> Resources:
    """Return what there is here; never raises."""
    return Resources(
        cores=_cores(root), memory=_memory(root), gpus=len(visible_gpus(environ=environ, load=load))
    )


def visible_gpus(
    *, environ: Mapping[str, str] = os.environ, load: Callable[[str], Any] = ctypes.CDLL
) -> tuple[str, ...]:
    """Name the GPUs that may be used, as CUDA_VISIBLE_DEVICES does; never raises."""
    count = _count_gpus(load)
    if "CUDA_VISIBLE_DEVICES" not in environ:
        return tuple(map(str, range(count)))
    seen: list[str] = []
    for name in environ["CUDA_VISIBLE_DEVICES"].split(","):
        name = name.strip()  # noqa: PLW2901  the name without its blanks is still the name
        # CUDA itself stops at the first that is none.
        is_one = name.isdecimal() and int(name) < count
        if count == 0 or not (is_one or name.startswith(("GPU-", "MIG-"))):
            break
        if name not in seen:
            seen.append(name)
    return tuple(seen)


def _count_gpus(load: Callable[[str], Any]) -> int:
    """Ask the driver's own library, if there is one."""
    count = ctypes.c_uint(0)
    try:
        library = load(_NVML)
        if library.nvmlInit_v2():
            return 0
        try:
            failed = library.nvmlDeviceGetCount_v2(ctypes.byref(count))
        finally:
            library.nvmlShutdown()
    except (OSError, AttributeError):  # no such library, or a very old one
        return 0
    return 0 if failed else count.value


def _cores(root: Path) -> float:
    try:
        usable = float(len(os.sched_getaffinity(0)))
    except (AttributeError, OSError):
        usable = float(os.cpu_count() or 1)
    # With less than one, nothing could ever run.
    return max(1.0, min([usable, *_quotas(root)]))


def _quotas(root: Path) -> Iterator[float]:
    """Return the shares of processor time that the groups of this process are allowed, in cores."""
    for folder in _groups(root, "cpu"):
        quota, period = _numbers(folder / "cpu.max", 2)
        if quota is None:
            [quota] = _numbers(folder / "cpu.cfs_quota_us", 1)
            [period] = _numbers(folder / "cpu.cfs_period_us", 1)
        if quota and period and quota > 0 < period:
            yield quota / period


def _memory(root: Path) -> int:
    # What is not known keeps no task from running.
    limits = [sys.maxsize]
    for folder in _groups(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            [limit] = _numbers(folder / name, 1)
            if limit and limit > 0:
                limits.append(limit)
    return min([*limits, _total_memory(root)])


def _total_memory(root: Path) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        # In some containers only this file has the container's own memory.
        text = (root / "proc/meminfo").read_text().partition("MemTotal:")[2]
        return int(text.split()[0]) * 1024
    with contextlib.suppress(OSError, ValueError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return sys.maxsize


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Return the control groups that this process is in, with those around them."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except (OSError, ValueError):
        return
    # A limit of any group around this process holds for it, too.
    mounts = root / "sys/fs/cgroup"
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        # Version 2 has no list of controllers, and one mount for all of them.
        mount = mounts / (controllers or ".")
        if controllers and not mount.exists():
            mount = mounts / controller
        inner = Path(path.lstrip("/"))
        # A container may see its own group as the root, under the name that it has outside.
        yield from (mount / group for group in (inner, *inner.parents))


def _numbers(file: Path, count: int) -> list[int | None]:
    """Read whole numbers from a file; None for each that is not there, or no number (`max`)."""
    try:
        words = file.read_text().split()
    except (OSError, ValueError):
        words = []
    found = [int(word) if word.lstrip("-").isdecimal() else None for word in words[:count]]
    return [*found, *[None] * (count - len(found))]


# Sums of fractions of cores are not exact.
_CORE_DUST = 1e-9


def shortfall(claim: Resources, capacity: Resources) -> str | None:
    """Say what a task needs more of than there is, or None if there is enough."""
    amounts = (("GPU", claim.gpus, capacity.gpus), ("core", claim.cores, capacity.cores))
    lacks = [
        f"needs {round(need, 2):.10g} {noun}{'s' * (need != 1)}, found {round(found, 2):.10g}"
        for noun, need, found in amounts
        if need > found + _CORE_DUST
    ]
    if claim.memory > capacity.memory:
        needed, found = size(claim.memory), size(capacity.memory)
        if needed == found:
            needed, found = f"{claim.memory} bytes", f"{capacity.memory} bytes"
        lacks.append(f"needs {needed} of memory, found {found}")
    return "; ".join(lacks) or None
