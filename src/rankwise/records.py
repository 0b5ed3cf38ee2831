"""What runners leave in the folder of an attempt, and who has taken the attempt."""

from __future__ import annotations

import contextlib
import enum
import fcntl
import json
import math
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from rankwise.store.rows import ProcessRow

CLAIM = "claim"
ORDER = "order.json"
CONDITIONS = "conditions.json"
"""What the machine was doing before and after, for tasks that measure."""
PROCESSES = "processes"
USAGE = "usage.json"
"""What everything that an attempt has started uses over time."""
EXPORTS = "exports"
"""Variables that a task leaves behind: NAME=VALUE, or NAME for one that it has unset."""
IDENTITY = "identity"
"""What a task has made, in one word: the same word, the same result."""
LOGS = ("output.log.first", "output.log.1", "output.log")
"""The parts of a log, the oldest first."""
MARKER = "RANKWISE_ATTEMPT"
"""The variable by which everything that an attempt has started is known."""


class Claim(enum.Enum):
    """Whose an attempt is."""

    FREE = enum.auto()
    """Nobody has begun with it yet."""
    HELD = enum.auto()
    """Its runner is at work."""
    LEFT = enum.auto()
    """Its runner is gone, or somebody has given it up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnd:
    """How an attempt has ended."""

    outcome: str
    exit_code: int
    signal: int | None = None
    culprit: str | None = None
    reason: str = ""
    started: float | None = None
    ended: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What the processes of an attempt on one node have used, over time; all lists are as long."""

    began: float
    time: Sequence[float]
    """Seconds since then."""
    cpu: Sequence[float]
    """How many cores were busy."""
    memory: Sequence[float]
    """In bytes; what processes share is counted once."""
    gpu: Sequence[float] = ()
    """How busy the busiest GPU was, from 0 to 1; empty: there was none."""
    gpu_memory: Sequence[float] = ()
    cores: int = 0
    cpu_seconds: float = 0.0
    peak_memory: float = 0


def claim_of(folder: Path) -> Claim:
    """Tell whose an attempt is."""
    try:
        file = os.open(folder / CLAIM, os.O_RDWR)
    except FileNotFoundError:
        return Claim.FREE
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return Claim.HELD
    finally:
        os.close(file)
    return Claim.LEFT


def give_up(folder: Path) -> bool:
    """Take an attempt that no runner has begun with, so that none ever will; False: one has."""
    own = folder / f".{CLAIM}.{os.urandom(4).hex()}"
    own.touch()
    try:
        os.link(own, folder / CLAIM)
    except FileExistsError:
        return False
    finally:
        own.unlink()
    return True


def abandon(folder: Path) -> bool:
    """Make sure that an attempt which has not begun never will; False: it has."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return give_up(folder)
    except OSError:
        return False


def runner_of(folder: Path) -> int | None:
    """Give the process of the runner that is at work; None: there is none, or it is not known."""
    if claim_of(folder) is not Claim.HELD:
        return None
    pid = _read(folder / CLAIM).get("pid")
    return pid if isinstance(pid, int) else None


def read_end(folder: Path) -> AttemptEnd | None:
    """Give how an attempt has ended; None: no runner has said so."""
    data = _read(folder / "end.json")
    try:
        return AttemptEnd(**data) if data else None
    except TypeError:
        return None


def read_processes(folder: Path) -> list[ProcessRow]:
    """Give what is known of an attempt's processes and ranks."""
    found = []
    for place in process_folders(folder):
        data = {**_read(place / "start.json"), **_read(place / "end.json")}
        known = {field.name: data[field.name] for field in fields(ProcessRow) if field.name in data}
        found.append(ProcessRow(**{"role": "", **known, "name": place.name}))
    return found


def read_usage(folder: Path) -> list[Usage]:
    """Give what an attempt has used over time, on its first node and then on others; if known."""
    places = [folder / USAGE, *(place / USAGE for place in process_folders(folder))]
    return [usage for place in places if (usage := _usage(_read(place))) is not None]


def _usage(data: Mapping[str, Any]) -> Usage | None:
    """Take what a runner has written, if it is whole."""
    lists = ("time", "cpu", "memory", "gpu", "gpu_memory")
    columns = {name: data[name] for name in lists if name in data}
    names = ("began", "cores", "cpu_seconds", "peak_memory")
    single = {name: data[name] for name in names if name in data}
    if not all(isinstance(column, list) for column in columns.values()):
        return None
    values = [*single.values(), *(one for column in columns.values() for one in column)]
    if not all(isinstance(one, int | float) and math.isfinite(one) for one in values):
        return None
    lengths = {len(column) for column in columns.values()}
    try:
        return Usage(**single, **columns) if len(lengths) == 1 and 0 not in lengths else None
    except TypeError:
        return None


def read_exports(folder: Path) -> dict[str, str | None]:
    """Give the variables that an attempt has left behind; None: it has unset it."""
    try:
        text = os.fsdecode((folder / EXPORTS).read_bytes())
    except OSError:
        return {}
    entries = (entry.partition("=") for entry in text.split("\0") if entry)
    return {name: value if equals else None for name, equals, value in entries}


def write_exports(folder: Path, variables: Mapping[str, str | None]) -> None:
    """Leave variables behind, all of them at once."""
    entries = (name if value is None else f"{name}={value}" for name, value in variables.items())
    beside = folder / f".{EXPORTS}"
    beside.write_bytes(os.fsencode("".join(f"{entry}\0" for entry in entries)))
    beside.replace(folder / EXPORTS)


def process_folders(folder: Path) -> list[Path]:
    """Give the folders in which an attempt's processes have their logs, in a stable order."""
    try:
        places = [Path(entry.path) for entry in os.scandir(folder / PROCESSES) if entry.is_dir()]
    except OSError:
        return []
    return sorted(places, key=_order)


def sweep(marker: str) -> int:
    """Kill everything that an attempt has started and that its runner could not end."""
    wanted = f"{MARKER}={marker}".encode()
    count = 0
    for pid in _marked(wanted):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
            count += 1
    return count


def _marked(wanted: bytes) -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    yield int(entry.name)


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def _order(place: Path) -> tuple[str, int, str]:
    name, _, number = place.name.partition("-")
    digits = number.split(".")[0]
    return name, int(digits) if digits.isdigit() else 0, place.name
