"""What an attempt has measured: read from what it has left, and kept with its conditions."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rankwise.checks.material import Material, Missing
from rankwise.metrics.conditions import joined, versions_in
from rankwise.metrics.reading import read_all
from rankwise.plan import Check, RuntimeChoice, Task
from rankwise.records import CONDITIONS, AttemptEnd, read_processes
from rankwise.store import ProcessRow, Store
from rankwise.store.samples import Sample


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What came of reading it."""

    end: AttemptEnd
    """A case that has measured nothing has failed, whatever its exit code."""
    samples: tuple[Sample, ...] = ()
    conditions: dict[str, Any] | None = None
    remarks: tuple[str, ...] = ()


def measure(task: Task, folder: Path, end: AttemptEnd) -> Measured:
    """Read what a task measures. Only reads, so it may be asked again."""
    if task.measuring is None or end.outcome != "passed":
        return Measured(end=end)
    material = Material(task=task, folder=folder, started=end.started)

    def text_of(name: str) -> str:
        try:
            groups = material.sources(Check(kind="contains", on=name))
        except Missing as missing:
            raise OSError(str(missing)) from missing
        return "\n".join(source.text for _, sources in groups for source in sources)

    found = read_all(task.measuring.metrics, text_of)
    if found.faults:
        end = dataclasses.replace(
            end, outcome="failed", exit_code=1, reason="; ".join(found.faults)
        )
        return Measured(end=end)
    return Measured(
        end=end, samples=found.samples, conditions=_conditions(task, folder), remarks=found.remarks
    )


def keep(store: Store, run: str, task: Task, attempt: int, measured: Measured) -> None:
    """Store what was measured."""
    if task.measuring is not None and measured.samples:
        store.add_samples(
            run,
            task.key,
            attempt,
            measured.samples,
            case=task.measuring.case,
            trial=task.measuring.trial,
            conditions=measured.conditions,
        )


def _conditions(task: Task, folder: Path) -> dict[str, Any] | None:
    """Join what the runner has read before and afterwards; None: it could not."""
    try:
        data = json.loads((folder / CONDITIONS).read_bytes())
        used = _own_seconds(read_processes(folder))
        conditions = joined(data["before"], data["after"], own_cpu_seconds=used)
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return {**conditions, **_versions(task.runtime)}


def _versions(runtime: RuntimeChoice) -> Mapping[str, str]:
    """Give the versions of what a task has run in, as far as they can be seen from here."""
    match runtime.kind:
        case "current":
            return versions_in(Path(sys.prefix))
        case "python":
            place = Path(runtime.python)
            return versions_in(place if place.is_dir() else place.parent.parent)
    return {}


def _own_seconds(processes: Iterable[ProcessRow]) -> float:
    """Give the CPU time of an attempt. A launcher's has that of its ranks in it, if they are its
    children: whichever is more, counts."""
    ranks, others = 0.0, 0.0
    for one in processes:
        if one.rank is None:
            others += one.cpu_seconds or 0.0
        else:
            ranks += one.cpu_seconds or 0.0
    return max(ranks, others)
