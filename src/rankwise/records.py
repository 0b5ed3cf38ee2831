"""What runners leave in the folder of an attempt, and who has taken the attempt."""

from __future__ import annotations

import enum
import math
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import chain
from pathlib import Path
from typing import Any

from rankwise.files import read_data, read_left
from rankwise.node.files import give_up, is_held, write_file
from rankwise.store.rows import ProcessRow, State

CLAIM = "claim"
ORDER = "order.json"
# What the machine was doing before and after, for tasks that measure.
CONDITIONS = "conditions.json"
PROCESSES = "processes"
# What everything that an attempt has started uses over time.
USAGE = "usage.json"
# Variables that a task leaves behind: NAME=VALUE, or NAME for one that it has unset.
EXPORTS = "exports"
# What a task has made, in one word: the same word, the same result.
IDENTITY = "identity"
# A digest of the files that a task said it makes, when it had passed.
OUTPUTS = "outputs.digest"
# What the provider of a machine says that an attempt has used, by name: pairs of the seconds since
# its start and a value.
PROVIDED = "provided.json"
# In the folder of a run: a line for each instance that was made or deleted.
INSTANCES, MADE, DELETED = "instances.log", "made", "deleted"
# The parts of a log, the oldest first.
LOGS = ("output.log.first", "output.log.1", "output.log")
# The variable by which everything that an attempt has started is known.
MARKER = "RANKWISE_ATTEMPT"


class ClaimState(enum.Enum):
    """Which process has an attempt."""

    FREE = enum.auto()
    """No runner has begun with it yet."""
    HELD = enum.auto()
    """Its runner is at work."""
    LEFT = enum.auto()
    """Its runner is gone, or a client has given it up."""


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


_COLUMNS = ("time", "cpu", "memory", "gpu", "gpu_memory")


def claim_of(folder: Path) -> ClaimState:
    """Return which process has an attempt."""
    return {None: ClaimState.FREE, True: ClaimState.HELD, False: ClaimState.LEFT}[is_held(folder)]


def abandon(folder: Path) -> bool:
    """Make sure that an attempt which has not begun never will; False: it has."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return give_up(folder)
    except OSError:
        return False


def runner_of(folder: Path) -> int | None:
    """Return the process of the runner that is at work; None: there is none, or it is not known."""
    if claim_of(folder) is not ClaimState.HELD:
        return None
    pid = read_data(folder / CLAIM).get("pid")
    return pid if isinstance(pid, int) else None


def read_end(folder: Path) -> AttemptEnd | None:
    """Return how an attempt has ended; None: no runner has said so."""
    data = read_data(folder / "end.json")
    try:
        return AttemptEnd(**data) if data else None
    except TypeError:
        return None


def read_processes(folder: Path) -> list[ProcessRow]:
    """Return what is known of an attempt's processes and ranks."""
    found = []
    for place in process_folders(folder):
        data = {**read_data(place / "start.json"), **read_data(place / "end.json")}
        known = {field.name: data[field.name] for field in fields(ProcessRow) if field.name in data}
        found.append(ProcessRow(**{"role": "", **known, "name": place.name}))
    return found


def read_usage(folder: Path) -> list[Usage]:
    """Return what an attempt has used over time, on its first node and then on others; if known."""
    # Processes on other nodes have a file of their own: the runner does not see them.
    places = [folder / USAGE, *(place / USAGE for place in process_folders(folder))]
    return [usage for place in places if (usage := _usage(read_data(place))) is not None]


def _usage(data: Mapping[str, Any]) -> Usage | None:
    """Take what a runner has written, if it is whole."""
    known = {field.name: data[field.name] for field in fields(Usage) if field.name in data}
    try:
        usage = Usage(**known)
        columns = [known[name] for name in _COLUMNS if name in known]
        values = [*chain(*columns), *(known[name] for name in known if name not in _COLUMNS)]
        is_whole = all(map(math.isfinite, values)) and {len(usage.time)} == {*map(len, columns)}
    except TypeError:  # A field is missing, or has another type.
        return None
    return usage if is_whole and usage.time else None


def read_provided(folder: Path) -> dict[str, list[tuple[float, float]]]:
    """Return what the provider has measured during an attempt, by name; empty: nothing."""
    try:
        return {
            name: [(float(time), float(value)) for time, value in points]
            for name, points in read_data(folder / PROVIDED).items()
            if points
        }
    except (TypeError, ValueError):
        return {}


def count_instances(folder: Path) -> Counter[str]:
    """Return how many instances a run has made and deleted."""
    try:
        lines = set(read_left(folder / INSTANCES).decode(errors="replace").splitlines())
    except OSError:
        lines = set()
    return Counter(line.partition(" ")[0] for line in lines)


def read_exports(folder: Path) -> dict[str, str | None]:
    """Return the variables that an attempt has left behind; None: it has unset it."""
    try:
        text = os.fsdecode(read_left(folder / EXPORTS))
    except OSError:
        return {}
    entries = (entry.partition("=") for entry in text.split("\0") if entry)
    return {name: value if equals else None for name, equals, value in entries}


def write_exports(folder: Path, variables: Mapping[str, str | None]) -> None:
    """Leave variables behind, all of them at once."""
    entries = (name if value is None else f"{name}={value}" for name, value in variables.items())
    write_file(f"{folder}/{EXPORTS}", "".join(f"{entry}\0" for entry in entries))


def process_folders(folder: Path) -> list[Path]:
    """Return the folders in which an attempt's processes have their logs, in a stable order."""
    try:
        places = [Path(entry.path) for entry in os.scandir(folder / PROCESSES) if entry.is_dir()]
    except OSError:
        return []
    return sorted(places, key=_order)


def _order(place: Path) -> list[str | int]:
    parts = re.split(r"(\d+)", place.name)
    # Every second one is a number: names of ranks that were started again have two.
    return [int(part) if number % 2 else part for number, part in enumerate(parts)]


def end_of(folder: Path) -> AttemptEnd:
    """Return how an attempt ended whose runner is gone."""
    end = read_end(folder)
    if end is not None:
        return end
    reason = "its runner was killed, or could not write down how it ended"
    try:
        said = read_left(folder / "runner.log").decode(errors="replace").split("\n")
    except OSError:
        said = [f"{folder} is gone"]
    # Its last words, if it has left any.
    reason = ": ".join([reason, *list(filter(str.strip, said))[-1:]])
    return AttemptEnd(outcome=State.LOST, exit_code=1, reason=reason)
