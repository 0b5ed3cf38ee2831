"""Keeps one machine: a thread that starts attempts there, looks after them, and fetches them."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rankwise.compute.contract import Attempt, Job, News
from rankwise.compute.order import write_beside
from rankwise.compute.remote.board import Board
from rankwise.compute.remote.ledger import Entry, Ledger
from rankwise.compute.remote.line import LineAway
from rankwise.compute.remote.machine import Found, Machine
from rankwise.compute.remote.mirror import Mirror
from rankwise.compute.remote.parcel import Parcel
from rankwise.errors import ComputeFailure, RankwiseError
from rankwise.plan import Resources
from rankwise.records import AttemptEnd
from rankwise.runtime.uv import find_uv

SENT = "remote.json"
"""To which machine an attempt was sent; written before it is."""
LOST_CODE, CANCELLED_CODE = 1, 130
_SOONEST_SECONDS, _LATEST_SECONDS = 0.05, 1.0
_AWAY_SECONDS, _LONGEST_AWAY_SECONDS = 0.5, 15.0
# How long a machine that does not answer is asked to end something, before we go without it.
_END_SECONDS = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """How attempts are kept on machines of one compute."""

    compute: str
    ledger: Ledger
    python: str = ""
    is_shared: bool = False
    """Whether the machines see the files of this one, under the same names."""
    patience: float = 600.0
    """For how many seconds a machine may be silent before what ran there is lost."""
    look_seconds: float = 0.4
    """How long a machine may wait for news before it answers."""
    is_noted: bool = True
    """Whether folders there are written down: machines that are deleted take theirs with them."""


@dataclass(slots=True, kw_only=True)
class _Flight:
    attempt: Attempt
    job: Job | None = None
    """None: it was sent before, perhaps by another client."""
    claim: Resources = Resources()
    mirror: Mirror
    gpus: tuple[str, ...] = ()
    has_started: bool = False
    known: list[Any] = field(default_factory=lambda: ["", False])
    asked_to_end: float | None = None
    was_told_to_end: bool = False
    is_over: bool = False
    """Whether it only has to be removed over there."""


class Keeper:
    """One machine and what runs there. Every call but the thread's own returns at once."""

    def __init__(self, name: str, opening: Callable[[], Machine], board: Board, ways: Ways) -> None:
        self.name = name
        self.failure = ""
        """Why it cannot be used; empty: it can, as far as is known."""
        self._opening = opening
        self._machine: Machine | None = None
        self._board, self._ways = board, ways
        self._flights: dict[str, _Flight] = {}
        self._free_gpus: list[str] | None = None
        self._wake = threading.Condition()
        self._is_closing = False
        self._deadline = 0.0
        self._away_since: float | None = None
        self._trouble = ""
        self._thread: threading.Thread | None = None

    # Called by the compute

    def start(self, job: Job, claim: Resources) -> None:
        """Have an attempt started there, which takes so much of the machine."""
        mirror = Mirror(job.attempt.folder)
        self._add(_Flight(attempt=job.attempt, job=job, claim=claim, mirror=mirror))

    def watch(self, attempt: Attempt, *, is_over: bool = False) -> None:
        """Look after an attempt that was sent before; `is_over`: only remove it there."""
        gpus = _gpus_of(attempt.folder)
        mirror = Mirror(attempt.folder)
        self._add(_Flight(attempt=attempt, mirror=mirror, gpus=gpus, is_over=is_over))

    def end(self, attempt: Attempt) -> None:
        """Have an attempt end."""
        with self._wake:
            flight = self._flights.get(attempt.marker)
            if flight is None or flight.asked_to_end is not None:
                return
            flight.asked_to_end = time.monotonic()
            if self._machine is None and flight.job is not None:
                # The machine is yet to be had, which may take long: nothing was sent.
                self._finish(flight, _cancelled("cancelled"))
            self._wake.notify_all()

    def close(self, seconds: float) -> bool:
        """Remove what is over, for so long; tells whether nothing is left there."""
        with self._wake:
            self._is_closing, self._deadline = True, time.monotonic() + seconds
            self._wake.notify_all()
        if self._thread is not None:
            self._thread.join(seconds + 1.0)
        if self._machine is not None:
            self._machine.line.close()
        return not self._flights

    def _add(self, flight: _Flight) -> None:
        with self._wake:
            self._flights[flight.attempt.marker] = flight
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self.name, daemon=True)
                self._thread.start()
            self._wake.notify_all()

    # The thread

    def _work(self) -> None:
        pause = 0.0
        while True:
            with self._wake:
                if self._is_closing and (not self._flights or time.monotonic() > self._deadline):
                    return
                is_urgent = any(
                    one.job is not None or (one.asked_to_end and not one.was_told_to_end)
                    for one in self._flights.values()
                )
                if self._away_since is not None or not is_urgent:
                    self._wake.wait(pause if self._flights else None)
                flights = list(self._flights.values())
            try:
                is_news = self._round(flights)
            except LineAway as away:
                pause = self._note_away(str(away), pause)
            except (RankwiseError, OSError) as failure:
                self._fail(str(failure))
            except Exception as error:  # Whatever it is, somebody waits for an end.
                self._fail(f"{self.name}: {error!r}")
            else:
                self._note_back()
                slower = min(max(pause, _SOONEST_SECONDS) * 1.3, _LATEST_SECONDS)
                pause = _SOONEST_SECONDS if is_news else slower

    def _round(self, flights: list[_Flight]) -> bool:
        """Do what is to be done for each; tell whether something was new."""
        is_news = False
        if not flights:
            return False
        machine = self._open()
        for flight in flights:
            if flight.job is not None and flight.attempt.marker in self._flights:
                is_news = True
                self._start(machine, flight, flight.job)
        for flight in flights:
            if flight.asked_to_end is not None and not flight.was_told_to_end:
                machine.ask("end", {"marker": flight.attempt.marker})
                flight.was_told_to_end = True
        watched = [one for one in flights if one.job is None and not one.is_over]
        watched = [one for one in watched if one.attempt.marker in self._flights]
        if watched:
            is_news |= self._look(machine, watched)
        for flight in flights:
            if flight.is_over and flight.attempt.marker in self._flights:
                self._remove(machine, flight)
                is_news = True
        return is_news

    def _open(self) -> Machine:
        if self._machine is None:
            self._machine = self._opening()
        found = self._machine.reach()
        if self._free_gpus is None:
            taken = {name for one in self._flights.values() for name in one.gpus}
            self._free_gpus = [name for name in found.gpus if name not in taken]
        return self._machine

    # Starting

    def _start(self, machine: Machine, flight: _Flight, job: Job) -> None:
        if flight.asked_to_end is not None:
            self._finish(flight, _cancelled("cancelled"))
            return
        found = machine.reach()
        try:
            self._send_uv(machine, found, job)
            flight.gpus = flight.gpus or self._take_gpus(job.task.resources.gpus)
            parcel = Parcel(
                job,
                found,
                python=self._ways.python,
                is_shared=self._ways.is_shared,
                gpus=flight.gpus,
            )
        except LineAway:
            raise
        except (ComputeFailure, OSError) as failure:
            self._finish(flight, _not_run(str(failure)))
            return
        with contextlib.closing(parcel):
            self._note_sent(machine, flight)
            request = {"marker": flight.attempt.marker}
            try:
                said = machine.start(request, parcel.head, parcel.body)
            except LineAway:
                raise
            except ComputeFailure as failure:
                machine.ask("abandon", request)
                self._ways.ledger.drop(flight.attempt.marker)
                self._finish(flight, _not_run(str(failure)))
                return
        flight.job = None
        _note(flight.attempt.folder, {**_noted(flight.attempt.folder), "is_started": True})
        self._board.tell(News(attempt=flight.attempt, job_id=f"{self.name}:{said['pid']}"))

    def _send_uv(self, machine: Machine, found: Found, job: Job) -> None:
        """Send uv along if it is needed there, is not there, and ours can run there."""
        if job.task.runtime.kind != "uv" or found.uv:
            return
        ours = find_uv()
        system = os.uname()
        if ours and len(ours) == 1 and found.platform == f"{system.sysname}-{system.machine}":
            machine.send_program(Path(ours[0]).resolve(), "uv")

    def _take_gpus(self, count: int) -> tuple[str, ...]:
        free = self._free_gpus or []
        taken = tuple(free[:count])
        del free[:count]
        return taken

    def _note_sent(self, machine: Machine, flight: _Flight) -> None:
        """Write down where it goes, before it goes there."""
        attempt, claim = flight.attempt, flight.claim
        _note(
            attempt.folder,
            {"machine": self.name, "is_started": False}
            | {"claim": [claim.cores, claim.memory, claim.gpus]},
        )
        if self._ways.is_noted:
            about = {"machine": self.name, "root": machine.reach().root}
            run = attempt.label.partition("/")[0]
            self._ways.ledger.put(
                Entry(
                    name=attempt.marker,
                    kind="folder",
                    compute=self._ways.compute,
                    run=run,
                    about=about,
                )
            )

    # Watching

    def _look(self, machine: Machine, flights: list[_Flight]) -> bool:
        wanted = {
            one.attempt.marker: {"files": one.mirror.known(), "known": one.known} for one in flights
        }
        is_asked = any(one.asked_to_end for one in flights)
        wait = 0.0 if is_asked else self._ways.look_seconds
        said = machine.ask("look", {"attempts": wanted, "wait": wait})["attempts"]
        is_news = False
        for flight in flights:
            is_news |= self._take_in(machine, flight, said[flight.attempt.marker])
        return is_news

    def _take_in(self, machine: Machine, flight: _Flight, said: Mapping[str, Any]) -> bool:
        flight.mirror.take(said["files"])
        is_new = bool(said["files"]) or flight.known != [said["state"], said["has_begun"]]
        flight.known = [said["state"], said["has_begun"]]
        if said["has_begun"] and not flight.has_started:
            flight.has_started = True
            self._board.tell(News(attempt=flight.attempt, has_started=True))
        # Whose logs are here to their ends, is here but for the rest.
        if said["state"] != "running" and flight.mirror.is_level(said["files"]):
            self._fetch(machine, flight, said)
        self._board.seen(flight.attempt)
        return is_new

    def _fetch(self, machine: Machine, flight: _Flight, said: Mapping[str, Any]) -> None:
        """Get what is left of an attempt that is over, remove it there, and tell."""
        folder = flight.attempt.folder
        if said["state"] != "absent":
            with tempfile.TemporaryFile() as file:
                machine.fetch(flight.attempt.marker, file)
                flight.mirror.unpack(file)
        if said["state"] == "over" and not (folder / "end.json").exists():
            raise LineAway(f"{self.name}: the line was cut while an attempt was fetched")
        end = None
        if said["state"] == "lost":
            end = _lost(_why_lost(self.name, said))
        elif said["state"] == "absent":
            end = _lost(f"{self.name} has nothing of it any more: its folder there is gone")
        flight.is_over = True
        with contextlib.suppress(LineAway):
            self._remove(machine, flight)
        self._give_gpus_back(flight)
        self._board.end(flight.attempt, end)

    def _remove(self, machine: Machine, flight: _Flight) -> None:
        machine.ask("remove", {"marker": flight.attempt.marker})
        self._ways.ledger.drop(flight.attempt.marker)
        self._forget(flight)

    def _finish(self, flight: _Flight, end: AttemptEnd) -> None:
        self._forget(flight)
        self._give_gpus_back(flight)
        self._board.end(flight.attempt, end)

    def _forget(self, flight: _Flight) -> None:
        with self._wake:
            self._flights.pop(flight.attempt.marker, None)

    def _give_gpus_back(self, flight: _Flight) -> None:
        if self._free_gpus is not None:
            self._free_gpus += flight.gpus
        flight.gpus = ()

    # Trouble

    def _note_away(self, text: str, pause: float) -> float:
        now = time.monotonic()
        if self._away_since is None:
            self._away_since = now
        if self._trouble == "" and self._flights:
            self._trouble = text
            self._board.tell(News(text=f"{text}; trying again"))
        for flight in list(self._flights.values()):
            self._board.seen(flight.attempt)
            if flight.asked_to_end is not None and now > flight.asked_to_end + _END_SECONDS:
                reason = f"cancelled; {text}, so what ran there may go on: rankwise clean ends it"
                self._finish(flight, _cancelled(reason))
        is_new = self._machine is None or self._machine.found is None
        is_first = is_new and not any(one.job is None for one in self._flights.values())
        if is_first or now > self._away_since + self._ways.patience:
            self._fail(text)
        if self._machine is not None and self._machine.line.is_there() is False:
            self._fail(f"{self.name} is gone")
        return min(max(pause * 1.5, _AWAY_SECONDS), _LONGEST_AWAY_SECONDS)

    def _note_back(self) -> None:
        self._away_since = None
        if self._trouble:
            self._trouble = ""
            self._board.tell(News(text=f"{self.name} answers again"))

    def _fail(self, text: str) -> None:
        """Give up the machine: what has not been sent goes elsewhere, all else is lost."""
        self.failure = text
        for flight in list(self._flights.values()):
            if flight.is_over:
                self._forget(flight)
            elif flight.job is not None and not (flight.attempt.folder / SENT).exists():
                self._forget(flight)
                self._board.give_back(flight.job, text)
            else:
                self._finish(flight, _lost(text))


def _why_lost(name: str, said: Mapping[str, Any]) -> str:
    if said["was_restarted"]:
        return f"{name} was restarted while it ran"
    return f"its runner on {name} was killed, or could not write down how it ended"


def _not_run(reason: str) -> AttemptEnd:
    return AttemptEnd(outcome="not run", exit_code=1, reason=reason)


def _lost(reason: str) -> AttemptEnd:
    return AttemptEnd(outcome="lost", exit_code=LOST_CODE, reason=reason)


def _cancelled(reason: str) -> AttemptEnd:
    return AttemptEnd(outcome="cancelled", exit_code=CANCELLED_CODE, reason=reason)


def _note(folder: Path, data: Mapping[str, Any]) -> None:
    write_beside(folder / SENT, json.dumps(dict(data)))
    file = os.open(folder / SENT, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _noted(folder: Path) -> dict[str, Any]:
    try:
        data: dict[str, Any] = json.loads((folder / SENT).read_bytes())
    except (OSError, ValueError):
        return {}
    return data


def sent_to(folder: Path) -> dict[str, Any]:
    """Say to which machine an attempt was sent, and what it claims there; nothing: to none."""
    return _noted(folder)


def _gpus_of(folder: Path) -> tuple[str, ...]:
    """Give the GPUs that an attempt has, which another client has given it."""
    try:
        processes = json.loads((folder / "order.json").read_bytes())["processes"]
        given = [one["environment"].get("CUDA_VISIBLE_DEVICES", "") for one in processes]
    except (OSError, ValueError, LookupError, TypeError):
        return ()
    return tuple(name for names in given for name in names.split(",") if name)
