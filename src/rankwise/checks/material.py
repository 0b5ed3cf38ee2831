"""What checks look at: the logs and the files that an attempt has left."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rankwise.plan import Check, Task
from rankwise.records import CLAIM, LOGS, ORDER, PROCESSES, read_processes
from rankwise.store.rows import ProcessRow

STREAMS = ("output", "stdout", "stderr")
_MOST_BYTES = 100_000_000
# The kernel's clock for files runs behind by a few milliseconds.
_CLOCK_SECONDS = 0.05


class Missing(Exception):
    """What a check is to look at is not there; the message says what and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One text that is looked at."""

    name: str
    """As people find it: `rank-0/output.log`, or a file's path."""
    text: str
    lost: int = 0
    """Bytes that were left out of it, because there were too many."""


@dataclass(slots=True, kw_only=True)
class Material:
    """What one attempt has left."""

    task: Task
    folder: Path
    started: float | None = None
    """When the attempt did: what is older is none of its work."""
    _processes: list[ProcessRow] | None = field(default=None)
    _logs: dict[tuple[str, str], Source] = field(default_factory=dict)

    def sources(self, check: Check) -> list[tuple[Check, list[Source]]]:
        """Give what a check looks at, in groups that must each pass it; raises Missing."""
        if not check.rank:
            return [(check, self._of(check.on, None))]
        return [(_check_of(check, one), self._of(check.on, one)) for one in self.ranks(check)]

    def files(self, check: Check) -> list[tuple[str, Path]]:
        """Give the files that a check of files is about, as written and as they are."""
        ranks = self.ranks(check) if check.rank else [None]
        names = [_for_rank(check.what, number) for number in ranks]
        return [(name, self.file(name)) for name in names]

    def file(self, name: str) -> Path:
        """Find a file that the attempt has written; raises Missing."""
        for folder in self.work_folders():
            path = folder / name
            if path.exists():
                self._refuse_old(name, path)
                return path
        folders = ", ".join(map(str, self.work_folders()[:1]))
        raise Missing(f"there is no {name} in {folders}{_beside(self.work_folders()[0] / name)}")

    def work_folders(self) -> list[Path]:
        """Give the folders in which processes worked, node by node, and that of the attempt."""
        try:
            nodes = json.loads((self.folder / ORDER).read_bytes())["nodes"]
            found = [Path(node["folder"]) for node in nodes]
        except (OSError, ValueError, LookupError, TypeError):
            found = []
        if not found and self.task.folder:
            found = [Path(self.task.folder)]
        return list(dict.fromkeys([*found, self.folder]))

    def ranks(self, check: Check) -> list[int]:
        """Give the ranks that a check is about: those that there should have been."""
        if check.rank != "all":
            return [int(check.rank)]
        known = {one.rank for one in self.task.processes if one.rank is not None}
        return list(range(max(len(known), self.task.width, 1)))

    def logs(self) -> dict[str, Path]:
        """Give the log of each process."""
        names = [one.name for one in self._all()]
        return {name: self.folder / PROCESSES / name / LOGS[-1] for name in names}

    def _of(self, on: str, rank: int | None) -> list[Source]:
        if on not in STREAMS:
            name = _for_rank(on, rank)
            return [Source(name=name, text=read_text(self.file(name)))]
        found = [one for one in self._all() if rank is None or one.rank == rank]
        if not found:
            who = "no process" if rank is None else f"no rank {rank}"
            raise Missing(f"there was {who} that could have written anything")
        return [self._log(one, on) for one in found]

    def _all(self) -> list[ProcessRow]:
        if self._processes is None:
            self._processes = read_processes(self.folder)
        return self._processes

    def _log(self, process: ProcessRow, stream: str) -> Source:
        key = process.name, stream
        if key not in self._logs:
            names = [name.replace("output", stream, 1) for name in LOGS]
            parts = [self.folder / PROCESSES / process.name / name for name in names]
            text = "".join(read_text(part) for part in parts if part.exists())
            self._logs[key] = Source(
                name=f"{process.name}/{names[-1]}", text=text, lost=process.log_lost
            )
        return self._logs[key]

    def _began(self) -> float | None:
        """Tell when the attempt began, by the clock that files have: that of a server, perhaps."""
        try:
            return (self.folder / CLAIM).stat().st_mtime
        except OSError:
            return self.started

    def _refuse_old(self, name: str, path: Path) -> None:
        """Raise Missing for what was there before: it says nothing about this attempt."""
        status = path.stat()
        newest = max(status.st_mtime, status.st_ctime)
        began = self._began()
        if began is not None and newest < began - _CLOCK_SECONDS:
            age = began - newest
            raise Missing(
                f"{path} was not written: the one that is there is {age:.1f} s older than the start"
            )


def read_text(path: Path) -> str:
    """Read a file, whatever is in it; raises Missing if that cannot be."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise Missing(f"{path} has more than {_MOST_BYTES} bytes, and is not read")
        return path.read_bytes().decode(errors="replace").replace("\r\n", "\n")
    except OSError as error:
        raise Missing(f"{path} cannot be read: {error.strerror}") from error


def _check_of(check: Check, rank: int) -> Check:
    return dataclasses.replace(check, what=_for_rank(check.what, rank))


def _for_rank(name: str, rank: int | None) -> str:
    return name if rank is None else name.replace("{rank}", str(rank))


def _beside(path: Path) -> str:
    """Say what is there instead."""
    try:
        names = sorted(_shown(path.parent))
    except OSError:
        return f": there is no folder {path.parent}"
    if not names:
        return ", which is empty"
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return f"; there is {', '.join(names[:8])}{more}"


def _shown(folder: Path) -> Iterator[str]:
    return (entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
