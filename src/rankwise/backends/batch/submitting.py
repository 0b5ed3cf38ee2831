"""From attempts to jobs: scripts, arrays, secrets and pilots; nothing is submitted twice."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import secrets
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rankwise.backends import orders
from rankwise.backends.base import Attempt, Submission, Unreachable, words_of
from rankwise.backends.batch.system import (
    INDEX,
    BatchJob,
    BatchNode,
    BatchSystem,
    Ending,
    Needs,
    QueueFull,
    needs_of,
)
from rankwise.documents.site_models import BatchConfig, ComputeConfig
from rankwise.errors import ComputeFailure
from rankwise.node import dialect
from rankwise.node.files import Beside, write_file
from rankwise.node.order import NodeOrder

LOG = "runner.log"
SECRETS = "secrets.json"
# Pauses until a full queue, and a system without an answer, are tried again.
_FULL_SECONDS, _AWAY_SECONDS = 5.0, 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyJob:
    """An attempt that is ready to be sent."""

    attempt: Attempt
    options: tuple[str, ...]
    script: str
    """All but the last word, which is the folder of the attempt."""
    nodes: int = 1
    cores: int = 1
    """Of each node."""
    pilot: ReadyJob | None = None
    """What to send if it goes to a pilot, and there is none yet."""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What became of a ready: it has a number now, or was refused."""

    ready: ReadyJob
    job_id: str = ""
    refusal: str = ""
    is_dropped: bool = False
    """Whether it was taken back before it was sent."""


@dataclass(slots=True, kw_only=True)
class _Batch:
    """Attempts that are submitted as one; its name is known before that."""

    jobs: Sequence[ReadyJob]
    name: str
    was_tried: bool = False


class Sending:
    """Sends what is waiting, as far as there is room."""

    def __init__(
        self, notes: SubmitNotes, *, most: int | None, environment: Mapping[str, str]
    ) -> None:
        self.trouble = ""
        """Why nothing can be sent for now; empty: all is well."""
        self._notes, self._system = notes, notes.system
        self._most = most
        self._environment = environment
        self._waiting: dict[str, ReadyJob] = {}
        self._doubtful: _Batch | None = None
        self._unwanted: set[str] = set()
        """Markers in the doubtful batch that are dropped, unless the batch turns out to be sent."""
        self._not_before = 0.0
        self._at_once = self._system.most_in_array

    def __len__(self) -> int:
        return len(self._waiting) + (len(self._doubtful.jobs) if self._doubtful else 0)

    def add(self, ready: ReadyJob) -> None:
        """Queue it until it can be sent."""
        self._waiting[ready.attempt.marker] = ready

    def drop(self, attempt: Attempt) -> bool:
        """Remove an attempt before it is sent; False: it has been sent, or may have been.

        Which of the two it was, `send` reports later.
        """
        if self._waiting.pop(attempt.marker, None) is not None:
            return True
        doubtful = self._doubtful.jobs if self._doubtful is not None else ()
        self._unwanted |= {attempt.marker} & {one.attempt.marker for one in doubtful}
        return False

    def send(self, in_flight: int) -> list[Sent]:
        """Send what can be sent now, and return the results."""
        done: list[Sent] = []
        while len(self) and time.monotonic() >= self._not_before:
            room = self._at_once if self._most is None else self._most - in_flight
            batch = self._doubtful or self._next_batch(min(room, self._at_once))
            if batch is None:
                break
            self._doubtful = None
            sent = self._send(batch)
            if self._doubtful is None:
                self._unwanted.clear()
            done += sent
            in_flight += sum(bool(one.job_id) for one in sent)
        return done

    def _next_batch(self, most: int) -> _Batch | None:
        """Return the first that waits, with all that are equal to it."""
        if most < 1 or not self._waiting:
            return None
        first = next(iter(self._waiting.values()))
        alike = [
            one
            for one in self._waiting.values()
            # Only these differ between members of an array: the folder is looked up by the index.
            if (one.options, one.script) == (first.options, first.script)
        ][:most]
        for one in alike:
            del self._waiting[one.attempt.marker]
        name = first.attempt.marker if len(alike) == 1 else _new_name()
        return _Batch(jobs=alike, name=name)

    def _send(self, batch: _Batch) -> list[Sent]:
        dropped: list[Sent] = []
        try:
            # It may have been sent before, and only the answer was lost.
            number = self._system.find(batch.name) if batch.was_tried else ""
            if not number:
                dropped = self._without_unwanted(batch)
                if not batch.jobs:
                    self.trouble = ""
                    return dropped
                number = self._submit(batch)
        except QueueFull as full:
            self.trouble = f"waiting for room in the queue: {full}"
            self._hold_back(batch)
            return dropped
        except Unreachable as away:
            # It may have been taken all the same: before it is sent again, it is looked for.
            self.trouble = f"{self._system.title} does not answer, trying again: {away}"
            batch.was_tried = True
            self._doubtful = batch
            self._not_before = time.monotonic() + _AWAY_SECONDS
            return dropped
        except Exception as failure:  # Also a defect in the batch system's own code.
            self.trouble = ""
            why = words_of(failure)
            return dropped + [Sent(ready=one, refusal=why) for one in batch.jobs]
        self.trouble, self._at_once = "", self._system.most_in_array
        if len(batch.jobs) == 1:
            return [*dropped, Sent(ready=batch.jobs[0], job_id=number)]
        ids = [self._system.member(number, index) for index in range(len(batch.jobs))]
        members = zip(batch.jobs, ids, strict=True)
        return dropped + [Sent(ready=one, job_id=job_id) for one, job_id in members]

    def _hold_back(self, batch: _Batch) -> None:
        self._waiting = {one.attempt.marker: one for one in batch.jobs} | self._waiting
        # A full queue may have room for a smaller array; a single job has to wait.
        self._at_once = max(1, len(batch.jobs) // 2)
        self._not_before = time.monotonic() + (_FULL_SECONDS if len(batch.jobs) == 1 else 0.0)

    def _without_unwanted(self, batch: _Batch) -> list[Sent]:
        """Leave out what was cancelled while it was not known whether it was sent."""
        dropped = [one for one in batch.jobs if one.attempt.marker in self._unwanted]
        if dropped:
            batch.jobs = [one for one in batch.jobs if one not in dropped]
            # If the first job appears later, it must not be taken for this one.
            batch.name = _new_name()
        return [Sent(ready=one, is_dropped=True) for one in dropped]

    def _submit(self, batch: _Batch) -> str:
        first = batch.jobs[0]
        folder = first.attempt.folder
        is_array = len(batch.jobs) > 1
        for index, ready in enumerate(batch.jobs):
            self._notes.note(ready.attempt, batch.name, index if is_array else None)
            write_secrets(ready)
        place, output = str(folder), folder / LOG
        if is_array:
            # One file for all members: the job reads its line by its index.
            listed, output = folder / "array.txt", folder / f"array-{INDEX}.log"
            folders = "".join(f"{one.attempt.folder}\n" for one in batch.jobs)
            write_file(listed, os.fsencode(folders))
            for index, ready in enumerate(batch.jobs):
                # What the system writes to a member is shown beside the member's own records.
                link = ready.attempt.folder / self._notes.log_name
                link.unlink(missing_ok=True)
                link.symlink_to(str(output).replace(INDEX, str(index)))
            place = f"@{listed}"
        script = f"{first.script} {shlex.quote(place)}\n"
        # The script stays with the attempt, to show what was run.
        write_file(folder / "job.sh", script)
        job = BatchJob(
            name=batch.name,
            script=script,
            options=first.options,
            output=output,
            count=len(batch.jobs),
            environment=self._environment,
        )
        return self._system.submit(job)


def _new_name() -> str:
    """Return a name that no job has: jobs are found by it."""
    return f"rw-{secrets.token_hex(8)}"


def write_secrets(ready: ReadyJob) -> None:
    """Write the values of secrets for the job, which removes the file once it has read it.

    Not in the environment: Slurm keeps that of every job in files of its own, and with
    `AccountingStoreFlags=job_env` in a database for good. Others may do the same.
    """
    if not ready.secrets:
        return
    remove_secrets(ready.attempt)
    write_file(ready.attempt.folder / SECRETS, json.dumps(dict(ready.secrets)), 0o600)


def remove_secrets(attempt: Attempt) -> None:
    """Remove the values of secrets that no job has read; raises OSError."""
    # With those of a client that was killed while it wrote them.
    for place in (attempt.folder / SECRETS, *attempt.folder.glob(f".{SECRETS}*")):
        place.unlink(missing_ok=True)


def make_ready(
    job: Submission, nodes: Sequence[BatchNode], choice: ComputeConfig, system: BatchSystem
) -> ReadyJob:
    """Write everything that an attempt needs there; ComputeFailure: it cannot be."""
    attempt, task, settings = job.attempt, job.task, choice.batch
    try:
        # The batch system chooses the nodes later: only their folders are known.
        later = [
            NodeOrder(name=f"node{number}", address="", folder=str(place))
            for number, place in enumerate(orders.make_folders(attempt.folder, task))
        ]
        order = orders.make_order(job, later, keeps_allocation=system.keeps_allocation)
        order.write(attempt.folder)
        parts = _parts(attempt.folder, settings, system)
    except OSError as error:
        raise ComputeFailure(
            f"{attempt.label} could not be made ready in {attempt.folder}: {error.strerror}"
        ) from error
    # Unknown nodes: what is claimed goes out as it is, and the system may refuse it.
    most_cores = max((node.cores for node in nodes), default=0)
    needs = needs_of(task, most_cores=most_cores, counts_gpus=choice.gpus is not None)
    run = attempt.label.partition("/")[0]
    words = orders.start_words(settings.python or sys.executable, parts)
    pilot = None
    if settings.mode == "pilot":
        # Whole nodes: tasks of any size may share them.
        whole = Needs(
            nodes=max(needs.nodes, settings.pilot_nodes),
            cores=max(most_cores, needs.cores),
            is_pilot=True,
        )
        pilot = ReadyJob(
            attempt=attempt,
            options=tuple(system.options(whole)),
            script=script_text(settings, run, [*words, "pilot", str(settings.pilot_idle)]),
            nodes=whole.nodes,
            cores=whole.cores,
        )
    return ReadyJob(
        attempt=attempt,
        options=tuple(system.options(needs)),
        script=script_text(settings, run, [*words, "batch"]),
        secrets=job.secrets,
        nodes=needs.nodes,
        # A pilot shares its nodes by cores: a task that must be alone takes all of them.
        cores=max(needs.cores, most_cores) if needs.is_alone else needs.cores,
        pilot=pilot,
    )


def _parts(folder: Path, settings: BatchConfig, system: BatchSystem) -> Path:
    """Copy our own files to where the nodes can read them: beside the attempts of the store."""
    files = dict(_own_files(is_compiled=not settings.python))
    files[dialect.FILE] = json.dumps(system.dialect.data()).encode()
    place = folder.parent.parent / ".parts" / orders.digest_of(files)
    if not place.exists():
        with Beside(place) as beside:
            for name, content in files.items():
                Path(beside, name).parent.mkdir(parents=True, exist_ok=True)
                Path(beside, name).write_bytes(content)
    return place


@functools.cache
def _own_files(*, is_compiled: bool) -> Mapping[str, bytes]:
    """Return our own files, compiled if the nodes have the Python of this machine."""
    files = dict(orders.own_files())
    if is_compiled:
        tag = sys.implementation.cache_tag
        compiled = (orders.compiled_node() / "__pycache__").glob(f"*.{tag}.pyc")
        files |= {f"__pycache__/{one.name}": one.read_bytes() for one in compiled}
    return files


PILOT = "pilot"
"""The key of the pilot's folder, in the record of an attempt."""
OVER, CLOSED, INBOX, TAKEN = "over", "closed", "inbox", "taken"


@dataclass(slots=True, kw_only=True)
class _Pilot:
    attempt: Attempt
    nodes: int
    cores: int
    """Of each node."""
    job_id: str = ""
    is_over: bool = False
    jobs: list[ReadyJob] = field(default_factory=list)
    """Attempts in its inbox that do not know its job id yet."""

    def is_open(self) -> bool:
        return not self.is_over and not (self.attempt.folder / CLOSED).exists()


class PilotSending:
    """Sends attempts to pilots, and pilots to the queue; what has not begun can be removed."""

    def __init__(self, sending: Sending, notes: SubmitNotes) -> None:
        self._sending, self._notes = sending, notes
        self._waiting: dict[str, ReadyJob] = {}
        self._pilots: dict[str, _Pilot] = {}
        self._count = 0

    @property
    def trouble(self) -> str:
        """Return why no pilot can be sent for now; empty: all is well."""
        return self._sending.trouble

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, ready: ReadyJob) -> None:
        """Queue it until it can be sent."""
        self._waiting[ready.attempt.marker] = ready

    def drop(self, attempt: Attempt) -> bool:
        """Remove an attempt that has not begun; False: it may have begun."""
        if self._waiting.pop(attempt.marker, None) is None and not self._notes.take_back(attempt):
            return False
        folder = self._notes.pilot_of(attempt)
        if folder is not None and folder.name not in self._pilots:
            self._notes.end_if_empty(folder)
        for pilot in self._pilots.values():
            pilot.jobs = [one for one in pilot.jobs if one.attempt.marker != attempt.marker]
        return True

    def send(self, in_flight: int) -> list[Sent]:
        """Put what waits into the inbox of a pilot, and return the pilot's job of each."""
        del in_flight  # However many they are, there is one job.
        done: list[Sent] = []
        # A pilot has room for any number: it queues what does not fit at once.
        for ready in list(self._waiting.values()):
            pilot = self._pilot_for(ready)
            self._put(ready, pilot)
            pilot.jobs.append(ready)
            del self._waiting[ready.attempt.marker]
        sent = self._sending.send(sum(not pilot.is_over for pilot in self._pilots.values()))
        for one in sent:
            pilot = self._pilots[one.ready.attempt.marker]
            pilot.job_id, pilot.is_over = one.job_id, bool(one.refusal)
            if one.refusal:
                done += [Sent(ready=ready, refusal=one.refusal) for ready in pilot.jobs]
                pilot.jobs.clear()
        for pilot in self._pilots.values():
            if pilot.job_id:
                done += [Sent(ready=ready, job_id=pilot.job_id) for ready in pilot.jobs]
                pilot.jobs.clear()
        return done

    def note_over(self, job_id: str) -> None:
        """Note that a pilot has ended: it gets nothing more."""
        for pilot in self._pilots.values():
            pilot.is_over |= pilot.job_id == job_id

    def close(self) -> None:
        """End the pilots: there is nothing more to do."""
        for pilot in self._pilots.values():
            if pilot.is_open():
                with contextlib.suppress(OSError):
                    (pilot.attempt.folder / INBOX / OVER).touch()
                self._notes.remove_waiting(pilot.attempt.marker)

    def _pilot_for(self, ready: ReadyJob) -> _Pilot:
        for pilot in self._pilots.values():
            has_room = pilot.nodes >= ready.nodes and pilot.cores >= ready.cores
            if has_room and pilot.is_open():
                return pilot
        name = _new_name()
        # Beside the folders of the tasks, in that of the run.
        folder = ready.attempt.folder.parent.parent / ".pilots" / name
        # Before the pilot is sent: orders may be put there while it waits in the queue.
        for inner in (INBOX, TAKEN):
            (folder / inner).mkdir(parents=True)
        assert ready.pilot is not None  # all are made so in this mode
        attempt = Attempt(label=name, marker=name, folder=folder)
        ready = replace(ready.pilot, attempt=attempt)
        pilot = self._pilots[name] = _Pilot(attempt=attempt, nodes=ready.nodes, cores=ready.cores)
        self._sending.add(ready)
        return pilot

    def _put(self, ready: ReadyJob, pilot: _Pilot) -> None:
        self._count += 1
        marker, folder = ready.attempt.marker, ready.attempt.folder
        # The pilot begins with the first name: in the order of the queue.
        name = f"{self._count:08}-{marker}"
        pilots = {PILOT: str(pilot.attempt.folder), "order": name}
        # The record first: after a kill, it says which inbox may have the order.
        self._notes.note(ready.attempt, pilot.attempt.marker, None, **pilots)
        write_secrets(ready)
        order = {"folder": str(folder), "nodes": ready.nodes, "cores": ready.cores}
        write_file(pilot.attempt.folder / INBOX / name, json.dumps(order))


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitNotes:
    """Records in the folders of attempts, written before they are submitted."""

    system: BatchSystem
    backend: str

    @property
    def log_name(self) -> str:
        """The file with what the system writes to a member of an array."""
        return f"{self.backend}.log"

    def note(self, attempt: Attempt, name: str, index: int | None, **more: str) -> None:
        """Record under which name an attempt is submitted, and as which member of an array."""
        said = {"name": name, "index": index, **more}
        write_file(attempt.folder / f"{self.backend}.json", json.dumps(said))

    def _read(self, folder: Path) -> dict[str, Any]:
        try:
            said = json.loads((folder / f"{self.backend}.json").read_text())
        except (OSError, ValueError):
            return {}
        return said if isinstance(said, dict) else {}

    def find(self, folder: Path) -> str:
        """Return the job id of an attempt that may have been submitted; empty: it was not.

        Unreachable: the system does not answer.
        """
        said = self._read(folder)
        number = self.system.find(str(said["name"])) if "name" in said else ""
        index = said.get("index")
        return number if index is None or not number else self.system.member(number, index)

    def remove_waiting(self, name: str) -> None:
        """Remove a job from the queue by its name: its id may have been lost."""
        with contextlib.suppress(ComputeFailure):
            if number := self.system.find(name):
                self.system.cancel(number, Ending.IF_WAITING)

    def end_if_empty(self, folder: Path) -> None:
        """End the pilot of a client that is gone, if it has nothing more to do."""
        left = [path.name for inner in (INBOX, TAKEN) for path in _entries(folder / inner)]
        # Hidden names are files that are being written; `.end` files are requests, not orders.
        if any(not name.startswith(".") and not name.endswith(".end") for name in left):
            return
        with contextlib.suppress(OSError):
            (folder / INBOX / OVER).touch()
        self.remove_waiting(folder.name)

    def pilot_of(self, attempt: Attempt) -> Path | None:
        """Return the folder of the pilot that an attempt was given to; None: to none."""
        note = self._read(attempt.folder)
        return Path(note[PILOT]) if PILOT in note else None

    def _orders(self, attempt: Attempt, *inner: str) -> list[Path]:
        """Return where a pilot may have the order of an attempt; empty: there is no pilot."""
        note = self._read(attempt.folder)
        return [Path(note[PILOT], name, note["order"]) for name in inner] if PILOT in note else []

    def take_back(self, attempt: Attempt) -> bool:
        """Remove an order from the inbox of its pilot; False: it is not there any more."""
        try:
            for order in (orders := self._orders(attempt, INBOX)):
                order.unlink()
        except OSError:
            return False
        return bool(orders)

    def is_with_pilot(self, attempt: Attempt) -> bool:
        """Return whether a pilot has it, or will have it."""
        # In this order: the pilot may move it from the inbox at this moment.
        return any(order.exists() for order in self._orders(attempt, INBOX, TAKEN))

    def withdraw(self, attempt: Attempt) -> None:
        """Keep a pilot that waits in the queue again from starting an attempt once more."""
        for order in self._orders(attempt, TAKEN):
            with contextlib.suppress(OSError):
                order.unlink(missing_ok=True)
        # It may have just begun all the same.
        self.ask_to_end(attempt)

    def ask_to_end(self, attempt: Attempt) -> None:
        """Have a pilot end one attempt and nothing else."""
        if (folder := self.pilot_of(attempt)) is not None:
            with contextlib.suppress(OSError):
                (folder / INBOX / f"{attempt.marker}.end").touch()


def script_text(settings: BatchConfig, label: str, command: Sequence[str]) -> str:
    """Return the script: modules, the site's own lines, and then our part in place of the shell.

    Its last word, the attempt, is still missing. A line that fails ends it: the next ones need it.
    `module` is defined in login shells.
    """
    # A login shell only if needed: its profiles may be slow, or fail.
    lines = ["#!/bin/bash -l" if settings.modules else "#!/bin/bash", f"# {label}, by rankwise"]
    if settings.modules or settings.init:
        lines.append("set -e")
    lines += [f"module load {shlex.quote(module)}" for module in settings.modules]
    lines += settings.init
    lines.append(f"exec {shlex.join(command)}")
    return "\n".join(lines)
