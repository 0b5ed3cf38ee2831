"""One machine elsewhere, and the thread that looks after the attempts on it."""

from __future__ import annotations

import contextlib
import json
import os
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from rankwise.backends.base import (
    Attempt,
    Submission,
    Update,
    cancelled,
    lost,
    not_run,
)
from rankwise.backends.orders import gpus_of
from rankwise.backends.remote.connection import HostFacts, LineAway, Machine
from rankwise.backends.remote.packing import AttemptMirror, HostPackage
from rankwise.backends.remote.tracked import Tracked, TrackedInstance
from rankwise.errors import ComputeFailure, RankwiseError
from rankwise.node.files import write_file
from rankwise.plan import Resources
from rankwise.records import AttemptEnd
from rankwise.runtimes.uv import find_uv


class Board(Protocol):
    """Who is told what happens on machines, by their threads."""

    def tell(self, update: Update) -> None:
        """Take in what was heard."""

    def end(self, attempt: Attempt, end: AttemptEnd | None = None) -> None:
        """Take in that an attempt is over; without an end, its runner has written it."""

    def give_back(self, job: Submission, reason: str) -> None:
        """Take in that a machine cannot take a job, of which nothing has begun."""


SENT = "remote.json"
"""To which machine an attempt was sent; written before it is."""
_SOONEST_SECONDS, _LATEST_SECONDS = 0.05, 1.0
_AWAY_SECONDS, _LONGEST_AWAY_SECONDS = 0.5, 15.0
# How long a machine that does not answer is asked to end something, before we go without it.
_END_SECONDS = 20.0
# Once is nothing: a provider may list what it has just made a little later.
_TIMES_GONE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """How attempts are kept on machines of one compute."""

    compute: str
    ledger: Tracked
    python: str = ""
    is_shared: bool = False
    """Whether the machines see the files of this one, under the same names."""
    patience: float = 600.0
    """For how many seconds a machine may be silent before what was not sent goes elsewhere."""
    look_seconds: float = 0.4
    """How long a machine may wait for news before it answers."""
    is_noted: bool = True
    """Whether folders there are written down: machines that are deleted take theirs with them."""


@dataclass(slots=True, kw_only=True)
class _Hosted:
    attempt: Attempt
    job: Submission | None = None
    """None: it was sent before, perhaps by another client."""
    claim: Resources = Resources()
    mirror: AttemptMirror
    gpus: tuple[str, ...] = ()
    was_sent: bool = False
    """Whether the machine may have it: only the machine can say that it has not, or has no more."""
    has_started: bool = False
    is_silent: bool = False
    """Whether it was told that nothing is heard of it."""
    known: list[Any] = field(default_factory=lambda: ["", False])
    asked_to_end: float | None = None
    was_told_to_end: bool = False
    is_over: bool = False
    """Whether it only has to be removed over there."""


class Host:
    """One machine and what runs there. Every call but the thread's own returns at once."""

    def __init__(self, name: str, opening: Callable[[], Machine], board: Board, ways: Ways) -> None:
        self.name = name
        self.failure = ""
        """Why it cannot be used; empty: it can, as far as is known."""
        self._opening = opening
        self._machine: Machine | None = None
        self._board, self._ways = board, ways
        self._flights: dict[str, _Hosted] = {}
        self._free_gpus: list[str] | None = None
        self._wake = threading.Condition()
        self._is_closing = False
        self._deadline = 0.0
        self._away_since: float | None = None
        self._told: list[str] = []
        """What has been said of the trouble that there is; empty: there is none."""
        self._times_gone = 0
        self._thread: threading.Thread | None = None

    # Called by the compute

    def start(self, job: Submission, claim: Resources) -> None:
        """Have an attempt started there, which takes so much of the machine."""
        mirror = AttemptMirror(job.attempt.folder)
        self._add(_Hosted(attempt=job.attempt, job=job, claim=claim, mirror=mirror))

    def watch(self, attempt: Attempt, *, is_over: bool = False) -> None:
        """Look after an attempt that was sent before; `is_over`: only remove it there."""
        gpus = gpus_of(attempt.folder)
        mirror = AttemptMirror(attempt.folder)
        flight = _Hosted(attempt=attempt, mirror=mirror, gpus=gpus, is_over=is_over)
        flight.was_sent = True
        self._add(flight)

    def end(self, attempt: Attempt) -> None:
        """Have an attempt end."""
        with self._wake:
            flight = self._flights.get(attempt.marker)
            if flight is None or flight.asked_to_end is not None:
                return
            flight.asked_to_end = time.monotonic()
            if self._machine is None and flight.job is not None:
                # The machine is yet to be had, which may take long: nothing was sent.
                self._finish(flight, cancelled())
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

    def _add(self, flight: _Hosted) -> None:
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
            except (RankwiseError, OSError) as failure:
                pause = self._note_trouble(failure, pause)
            except Exception as error:  # Whatever it is, a run waits for an end.
                pause = self._note_trouble(ComputeFailure(f"{self.name}: {error!r}"), pause)
            else:
                if flights:
                    self._note_back()
                slower = min(max(pause, _SOONEST_SECONDS) * 1.3, _LATEST_SECONDS)
                pause = _SOONEST_SECONDS if is_news else slower

    def _round(self, flights: list[_Hosted]) -> bool:
        """Do what is to be done for each; tell whether something was new."""
        is_news = False
        if not flights:
            return False
        machine = self._open()
        troubles: list[Exception] = []
        for flight in flights:
            if flight.job is not None and flight.attempt.marker in self._flights:
                is_news = True
                with _put_off(troubles):
                    self._start(machine, flight, flight.job)
        for flight in flights:
            if flight.asked_to_end is not None and not flight.was_told_to_end:
                machine.ask("end", {"marker": flight.attempt.marker})
                flight.was_told_to_end = True
        watched = [one for one in flights if one.job is None and not one.is_over]
        watched = [one for one in watched if one.attempt.marker in self._flights]
        if watched:
            is_news |= self._look(machine, watched, troubles)
        for flight in flights:
            if flight.is_over and flight.attempt.marker in self._flights:
                self._remove(machine, flight)
                is_news = True
        if troubles:
            raise troubles[0]
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

    def _start(self, machine: Machine, flight: _Hosted, job: Submission) -> None:
        request = {"marker": flight.attempt.marker}
        if flight.asked_to_end is not None:
            if flight.was_sent and machine.ask("abandon", request)["has_begun"]:
                flight.job = None
            else:
                self._ways.ledger.drop(flight.attempt.marker)
                self._finish(flight, cancelled())
            return
        found = machine.reach()
        try:
            self._send_uv(machine, found, job)
            flight.gpus = flight.gpus or self._take_gpus(job.task.resources.gpus)
            parcel = HostPackage(
                job,
                found,
                python=self._ways.python,
                is_shared=self._ways.is_shared,
                gpus=flight.gpus,
            )
        except LineAway:
            raise
        except (ComputeFailure, OSError) as failure:
            if flight.was_sent:  # by a call whose answer was lost: it may run
                raise
            self._finish(flight, not_run(_in_words(failure)))
            return
        with contextlib.closing(parcel):
            self._note_sent(machine, flight)
            try:
                said = machine.start(request, parcel.head, parcel.body)
            except LineAway:
                raise
            except ComputeFailure as failure:
                if machine.ask("abandon", request)["has_begun"]:
                    flight.job = None
                    return
                self._ways.ledger.drop(flight.attempt.marker)
                self._finish(flight, not_run(str(failure)))
                return
        flight.job = None
        self._board.tell(Update(attempt=flight.attempt, job_id=f"{self.name}:{said['pid']}"))
        _note(flight.attempt.folder, {**sent_to(flight.attempt.folder), "is_started": True})

    def _send_uv(self, machine: Machine, found: HostFacts, job: Submission) -> None:
        """Send uv along if it is needed there, is not there, and ours can run there."""
        is_needed = job.task.runtime.kind == "uv" or job.task.tools
        if not is_needed or found.uv:
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

    def _note_sent(self, machine: Machine, flight: _Hosted) -> None:
        """Write down where it goes, before it goes there."""
        attempt, claim = flight.attempt, flight.claim
        if self._ways.is_noted:
            about = {"machine": self.name, "root": machine.reach().root}
            run = attempt.label.partition("/")[0]
            self._ways.ledger.put(
                TrackedInstance(
                    name=attempt.marker,
                    kind="folder",
                    compute=self._ways.compute,
                    run=run,
                    about=about,
                )
            )
        _note(
            attempt.folder,
            {"machine": self.name, "is_started": False}
            | {"claim": [claim.cores, claim.memory, claim.gpus]},
        )
        flight.was_sent = True

    # Watching

    def _look(self, machine: Machine, flights: list[_Hosted], troubles: list[Exception]) -> bool:
        wanted = {
            one.attempt.marker: {"files": one.mirror.known(), "known": one.known} for one in flights
        }
        is_asked = any(one.asked_to_end for one in flights)
        wait = 0.0 if is_asked else self._ways.look_seconds
        said = machine.ask("look", {"attempts": wanted, "wait": wait})["attempts"]
        is_news = False
        for flight in flights:
            with _put_off(troubles):
                is_news |= self._take_in(machine, flight, said[flight.attempt.marker])
        return is_news

    def _take_in(self, machine: Machine, flight: _Hosted, said: Mapping[str, Any]) -> bool:
        flight.mirror.take(said["files"])
        is_new = bool(said["files"]) or flight.known != [said["state"], said["has_begun"]]
        flight.known = [said["state"], said["has_begun"]]
        if said["has_begun"] and not flight.has_started:
            flight.has_started = True
            self._board.tell(Update(attempt=flight.attempt, has_started=True))
        # Whose logs are here to their ends, is here but for the rest.
        if said["state"] != "running" and flight.mirror.is_level(said["files"]):
            self._fetch(machine, flight, said)
        self._note_heard(flight)
        return is_new

    def _fetch(self, machine: Machine, flight: _Hosted, said: Mapping[str, Any]) -> None:
        """Get what is left of an attempt that is over, remove it there, and tell."""
        folder = flight.attempt.folder
        if said["state"] != "absent":
            with tempfile.TemporaryFile() as file:
                machine.fetch(flight.attempt.marker, file)
                try:
                    flight.mirror.unpack(file)
                except (tarfile.TarError, EOFError) as error:
                    raise ComputeFailure(f"{self.name}: not all of it came: {error}") from error
        if said["state"] == "over" and not (folder / "end.json").exists():
            raise ComputeFailure(f"{self.name}: not all of it came: its end is missing")
        end = None
        if said["state"] == "lost":
            end = lost(_why_lost(self.name, said))
        elif said["state"] == "absent":
            end = lost(f"{self.name} has nothing of it any more: its folder there is gone")
        flight.is_over = True
        # It is over, whatever keeps it from being removed: that is tried again.
        with contextlib.suppress(RankwiseError, OSError):
            self._remove(machine, flight)
        self._give_gpus_back(flight)
        self._board.end(flight.attempt, end)

    def _remove(self, machine: Machine, flight: _Hosted) -> None:
        """Remove an attempt there, but for files that could not be brought here."""
        left = flight.mirror.left_there()
        said = machine.ask("remove", {"marker": flight.attempt.marker, "is_kept": bool(left)})
        if left:
            text = f"could not be read on {self.name}, and stays there: {'; '.join(left[:5])}"
            self._board.tell(Update(attempt=flight.attempt, text=text))
        elif not said["is_gone"]:
            text = f"its folder on {self.name} could not be removed; `rankwise clean` tries again"
            self._board.tell(Update(attempt=flight.attempt, text=text))
        else:
            self._ways.ledger.drop(flight.attempt.marker)
        self._forget(flight)

    def _finish(self, flight: _Hosted, end: AttemptEnd) -> None:
        self._forget(flight)
        self._give_gpus_back(flight)
        self._board.end(flight.attempt, end)

    def _forget(self, flight: _Hosted) -> None:
        with self._wake:
            self._flights.pop(flight.attempt.marker, None)

    def _give_gpus_back(self, flight: _Hosted) -> None:
        if self._free_gpus is not None:
            self._free_gpus += flight.gpus
        flight.gpus = ()

    # Trouble

    def _note_trouble(self, failure: Exception, pause: float) -> float:
        """Say what is wrong, give back what was not sent if there is no hope, and ask again.

        What was sent may run, whatever is wrong here: only the machine can say that it does not.
        """
        now, text = time.monotonic(), _in_words(failure)
        if self._away_since is None:
            self._away_since = now
        for flight in list(self._flights.values()):
            if flight.asked_to_end is not None and now > flight.asked_to_end + _END_SECONDS:
                reason = f"cancelled; {text}, so what ran there may go on: rankwise clean ends it"
                self._finish(flight, cancelled(reason))
        is_away = isinstance(failure, LineAway)
        is_late = now > self._away_since + self._ways.patience
        is_reached = self._machine is not None and self._machine.found is not None
        is_waited_for = is_away and any(one.was_sent for one in self._flights.values())
        if is_late or not (is_reached or is_waited_for):
            self._give_back(text)
        if is_away and self._is_gone():
            self._lose(f"{self.name} is gone")
        self._tell_trouble(f"{text}; trying again")
        if is_late:
            self._tell_trouble(
                f"{self.name} has given no answer for more than {self._ways.patience:g} s, and "
                f"what was sent there may go on; waiting for it, until the run is cancelled"
            )
        return min(max(pause * 1.5, _AWAY_SECONDS), _LONGEST_AWAY_SECONDS)

    def _tell_trouble(self, text: str) -> None:
        """Tell of a trouble once, and have it stand beside each attempt that may run there."""
        if not self._flights or text in self._told:
            return
        self._told.append(text)
        self._board.tell(Update(text=text))
        for flight in self._flights.values():
            if flight.was_sent and not flight.is_over:
                self._board.tell(Update(attempt=flight.attempt, silence=text))
                flight.is_silent = True

    def _note_heard(self, flight: _Hosted) -> None:
        """Have it no longer said of an attempt that nothing is heard of it."""
        if flight.is_silent:
            flight.is_silent = False
            self._board.tell(Update(attempt=flight.attempt, silence=""))

    def _note_back(self) -> None:
        self._away_since = None
        self._times_gone = 0
        self.failure = ""
        if self._told:
            self._told = []
            self._board.tell(Update(text=f"{self.name} answers again"))

    def _is_gone(self) -> bool:
        """Ask whether there is no such machine any more, with all that ran there."""
        is_there = self._machine.line.is_there() if self._machine is not None else None
        self._times_gone = self._times_gone + 1 if is_there is False else 0
        return self._times_gone >= _TIMES_GONE

    def _give_back(self, text: str) -> None:
        """Use the machine no more for now: what has not been sent goes elsewhere."""
        self.failure = text
        for flight in list(self._flights.values()):
            if flight.job is not None and not flight.was_sent:
                self._forget(flight)
                self._board.give_back(flight.job, text)

    def _lose(self, text: str) -> None:
        """Give up a machine that is gone, with all that it had."""
        self._give_back(text)
        for flight in list(self._flights.values()):
            if flight.is_over:
                self._forget(flight)
            else:
                self._finish(flight, lost(text))


@contextlib.contextmanager
def _put_off(troubles: list[Exception]) -> Iterator[None]:
    """Go on with other attempts where one is in trouble; a silent machine is a trouble for all."""
    try:
        yield
    except LineAway:
        raise
    except (RankwiseError, OSError, ValueError) as error:
        troubles.append(error)


def _in_words(failure: Exception) -> str:
    if isinstance(failure, OSError) and failure.strerror:
        place = f"{failure.filename}: " if failure.filename else ""
        return f"{place}{failure.strerror}"
    return str(failure)


def _why_lost(name: str, said: Mapping[str, Any]) -> str:
    if said["was_restarted"]:
        return f"{name} was restarted while it ran"
    return f"its runner on {name} was killed, or could not write down how it ended"


def _note(folder: Path, data: Mapping[str, Any]) -> None:
    write_file(folder / SENT, json.dumps(dict(data)))
    file = os.open(folder / SENT, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def sent_to(folder: Path) -> dict[str, Any]:
    """Say to which machine an attempt was sent, and what it claims there; nothing: to none.

    ComputeFailure: that cannot be read. What was sent may run: it must not be taken for unsent.
    """
    path = folder / SENT
    try:
        data: dict[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ComputeFailure(
            f"{path}: {_in_words(error)}; it says on which machine an attempt runs: make it "
            f"readable, and resume"
        ) from error
    return data
