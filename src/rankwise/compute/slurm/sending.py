"""Jobs on their way to sbatch: those that are alike go as one array, and none goes twice."""

from __future__ import annotations

import json
import secrets
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rankwise.compute.contract import Attempt
from rankwise.compute.order import write_beside
from rankwise.errors import ComputeFailure
from rankwise.slurm import commands
from rankwise.slurm.answers import JobState
from rankwise.slurm.commands import SlurmAway, SlurmFull

SENT = "slurm.json"
"""Under which name an attempt was handed to Slurm; written before it is."""
LOG = "runner.log"
SECRETS = "secrets.json"
_FULL_SECONDS, _AWAY_SECONDS = 5.0, 3.0
MOST_IN_ARRAY = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """An attempt that is ready to be sent."""

    attempt: Attempt
    options: tuple[str, ...]
    script: str
    """All of it but the last word, which names the attempt."""
    nodes: int = 1
    cores: int = 1
    """Of each node."""
    pilot_options: tuple[str, ...] = ()
    pilot_script: str = ""
    """What to send if it goes to a pilot, and there is none yet."""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What became of a parcel: it has a number now, or was refused."""

    parcel: Parcel
    job_id: str = ""
    refusal: str = ""


@dataclass(slots=True, kw_only=True)
class _Batch:
    """Parcels that go together; its name is known before it is sent."""

    parcels: Sequence[Parcel]
    name: str
    was_tried: bool = False


class Sending:
    """Sends what is waiting, as far as there is room."""

    def __init__(self, *, most: int | None, environment: Mapping[str, str]) -> None:
        self.trouble = ""
        """Why nothing can be sent for now; empty: all is well."""
        self._most = most
        self._environment = environment
        self._waiting: dict[str, Parcel] = {}
        self._doubtful: _Batch | None = None
        self._not_before = 0.0
        self._at_once = MOST_IN_ARRAY

    def __len__(self) -> int:
        return len(self._waiting) + (len(self._doubtful.parcels) if self._doubtful else 0)

    def add(self, parcel: Parcel) -> None:
        """Have it wait until it can be sent."""
        self._waiting[parcel.attempt.marker] = parcel

    def drop(self, attempt: Attempt) -> bool:
        """Take it back; False: it has been sent, or may have been."""
        return self._waiting.pop(attempt.marker, None) is not None

    def send(self, in_flight: int) -> list[Sent]:
        """Send what can be sent now, and tell what became of it."""
        done: list[Sent] = []
        while len(self) and time.monotonic() >= self._not_before:
            room = self._at_once if self._most is None else min(self._most - in_flight, 1000)
            batch = self._doubtful or self._next_batch(min(room, self._at_once))
            if batch is None:
                break
            self._doubtful = None
            sent = self._send(batch)
            done += sent
            in_flight += sum(bool(one.job_id) for one in sent)
        return done

    def _next_batch(self, most: int) -> _Batch | None:
        """Take the first that waits, with those that are like it."""
        if most < 1 or not self._waiting:
            return None
        first = next(iter(self._waiting.values()))
        alike = [
            one
            for one in self._waiting.values()
            if (one.options, one.script) == (first.options, first.script)
        ][:most]
        for one in alike:
            del self._waiting[one.attempt.marker]
        if len(alike) == 1:
            return _Batch(parcels=alike, name=first.attempt.marker)
        return _Batch(parcels=alike, name=f"rw-{secrets.token_hex(8)}")

    def _send(self, batch: _Batch) -> list[Sent]:
        try:
            number = self._number_of(batch)
        except SlurmFull as full:
            self.trouble = f"waiting for room in the queue: {full}"
            self._hold_back(batch)
            return []
        except SlurmAway as away:
            # It may have been taken all the same: before it is sent again, it is looked for.
            self.trouble = f"slurmctld does not answer, trying again: {away}"
            batch.was_tried = True
            self._doubtful = batch
            self._not_before = time.monotonic() + _AWAY_SECONDS
            return []
        except (ComputeFailure, OSError) as failure:
            self.trouble = ""
            return [Sent(parcel=parcel, refusal=str(failure)) for parcel in batch.parcels]
        self.trouble, self._at_once = "", MOST_IN_ARRAY
        numbers = _members(number, len(batch.parcels))
        return [
            Sent(parcel=parcel, job_id=one)
            for parcel, one in zip(batch.parcels, numbers, strict=True)
        ]

    def _hold_back(self, batch: _Batch) -> None:
        self._waiting = {one.attempt.marker: one for one in batch.parcels} | self._waiting
        self._at_once = max(1, len(batch.parcels) // 2)
        self._not_before = time.monotonic() + (_FULL_SECONDS if len(batch.parcels) == 1 else 0.0)

    def _number_of(self, batch: _Batch) -> str:
        """Submit a batch, unless that was done and only the answer was lost."""
        if batch.was_tried and (found := commands.find_by_name(batch.name)):
            return next(iter(found)).partition("_")[0]
        return _submit(batch, self._environment)


def _submit(batch: _Batch, environment: Mapping[str, str]) -> str:
    first = batch.parcels[0]
    folder = first.attempt.folder
    options = [f"--job-name={batch.name}", *first.options]
    is_array = len(batch.parcels) > 1
    for index, parcel in enumerate(batch.parcels):
        said = {"name": batch.name, "index": index if is_array else None}
        write_beside(parcel.attempt.folder / SENT, json.dumps(said))
        hand_over(parcel)
    if is_array:
        listed = folder / "array.txt"
        places = "".join(f"{parcel.attempt.folder}\n" for parcel in batch.parcels)
        write_beside(listed, places)
        options += [f"--array=0-{len(batch.parcels) - 1}", f"--output={folder}/array-%a.log"]
        for index, parcel in enumerate(batch.parcels[1:], 1):
            _link(folder / f"array-{index}.log", parcel.attempt.folder)
        _link(folder / "array-0.log", folder)
        place = f"@{listed}"
    else:
        options += [f"--output={folder / LOG}"]
        place = str(folder)
    script = f"{first.script} {shlex.quote(place)}\n"
    # The script stays with the attempt, for whoever wants to know what was run.
    write_beside(folder / "job.sh", script)
    return commands.submit(script, options, environment=environment)


def _link(log: Path, folder: Path) -> None:
    """Have what Slurm writes to the members of an array stand beside their records."""
    place = folder / "slurm.log"
    place.unlink(missing_ok=True)
    place.symlink_to(log)


def hand_over(parcel: Parcel) -> None:
    """Write the values of secrets for the job, which removes the file as soon as it has read it.

    Not in the environment: Slurm keeps that of every job in files of its own, and with
    `AccountingStoreFlags=job_env` in a database for good.
    """
    if not parcel.secrets:
        return
    place = parcel.attempt.folder / SECRETS
    beside = place.with_name(f".{place.name}")
    beside.unlink(missing_ok=True)
    beside.touch(mode=0o600)
    beside.write_text(json.dumps(dict(parcel.secrets)))
    beside.replace(place)


def _members(number: str, count: int) -> list[str]:
    return [number] if count == 1 else [f"{number}_{index}" for index in range(count)]


def find_sent(folder: Path, *, has_accounting: bool) -> str | None:
    """Find the number of an attempt that may have been handed to Slurm; None: it was not.

    SlurmAway: nobody answers.
    """
    try:
        said = json.loads((folder / SENT).read_text())
        name, index = str(said["name"]), said["index"]
    except (OSError, ValueError, LookupError):
        return None
    found: Mapping[str, JobState] = commands.find_by_name(name)
    if not found and has_accounting:
        found = commands.accounts([f"--name={name}", "--starttime=now-30days"])
    if not found:
        return None
    number = next(iter(found)).partition("_")[0]
    return number if index is None else f"{number}_{index}"
