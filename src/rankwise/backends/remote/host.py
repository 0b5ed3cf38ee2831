"""One machine elsewhere, and the thread that watches the attempts on it."""

from __future__ import annotations

import contextlib
import json
import os
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankwise.backends import base
from rankwise.backends.base import Attempt, Submission, Unreachable, Update
from rankwise.backends.orders import gpus_of
from rankwise.backends.remote.connection import HostFacts, Machine
from rankwise.backends.remote.packing import AttemptMirror, packed
from rankwise.backends.remote.tracked import TrackedInstance
from rankwise.errors import ComputeFailure, RankwiseError
from rankwise.node.files import write_file
from rankwise.plan import Resources
from rankwise.records import AttemptEnd
from rankwise.runtimes.uv import find_uv

if TYPE_CHECKING:
    from rankwise.backends.remote.backend import RemoteBackend

SENT = "remote.json"
"""The file that names the machine that an attempt goes to; written before it is sent."""
_SOONEST_SECONDS, _LATEST_SECONDS = 0.05, 1.0
_AWAY_SECONDS, _LONGEST_AWAY_SECONDS = 0.5, 15.0
# How long a machine that does not answer is asked to end something, before we go on without it.
_END_SECONDS = 20.0
# Providers may list a new instance only after some seconds: one answer is not enough.
_TIMES_GONE = 3
_LISTED = 5


@dataclass(slots=True, kw_only=True)
class _Hosted:
    attempt: Attempt
    job: Submission | None = None
    """What is still to be started; None: it was started before, perhaps by another client."""
    claim: Resources = Resources()
    mirror: AttemptMirror
    gpus: tuple[str, ...] = ()
    was_sent: bool = False
    """Whether the machine may have it: then only the machine can say that it is over."""
    has_started: bool = False
    is_silent: bool = False
    """Whether its silence was reported."""
    known: list[Any] = field(default_factory=lambda: ["", False])
    """Its state and whether it has begun, as the machine last reported them."""
    asked_to_end: float | None = None
    was_told_to_end: bool = False
    is_over: bool = False
    """Whether it only has to be removed over there."""


class Host:
    """One machine and what runs there. Every call but the thread's own returns at once."""

    def __init__(self, name: str, backend: RemoteBackend, machine: Machine | None = None) -> None:
        self.name = name
        self.machine = machine
        """None: it is still to be made."""
        self.failure = ""
        """Why it cannot be used; empty: it can, as far as is known."""
        self.has: Resources | None = None
        """What it has; None: that is not known. The backend's own, as the next two."""
        self.used = Resources()
        self.tasks = 0
        self._backend, self._policy = backend, backend.policy
        self._attempts: dict[str, _Hosted] = {}
        self._free_gpus: list[str] | None = None
        self._wake = threading.Condition()
        self._is_closing = False
        self._deadline = 0.0
        self._away_since: float | None = None
        self._told: list[str] = []
        """The troubles that were reported since it last answered."""
        self._times_gone = 0
        self._thread: threading.Thread | None = None

    # Called by the backend

    def start(self, job: Submission, claim: Resources) -> None:
        """Have an attempt started there, which takes so much of the machine."""
        mirror = AttemptMirror(job.attempt.folder)
        self._add(_Hosted(attempt=job.attempt, job=job, claim=claim, mirror=mirror))

    def watch(self, attempt: Attempt, *, is_over: bool = False) -> None:
        """Watch an attempt that was sent before; `is_over`: only remove it there."""
        self._add(
            _Hosted(
                attempt=attempt,
                mirror=AttemptMirror(attempt.folder),
                gpus=gpus_of(attempt.folder),
                was_sent=True,
                is_over=is_over,
            )
        )

    def end(self, attempt: Attempt) -> None:
        """End an attempt."""
        with self._wake:
            one = self._attempts.get(attempt.marker)
            if one is None or one.asked_to_end is not None:
                return
            one.asked_to_end = time.monotonic()
            if one.job is not None and not one.was_sent and not self._is_reached:
                # To make or to reach a machine may take long, and nothing is there yet.
                self._finish(one, base.cancelled())
            self._wake.notify_all()

    def close(self, seconds: float) -> bool:
        """Remove what is over, for so long; return whether nothing is left there."""
        with self._wake:
            self._is_closing, self._deadline = True, time.monotonic() + seconds
            self._wake.notify_all()
        if self._thread is not None:
            self._thread.join(seconds + 1.0)
        if self.machine is not None:
            self.machine.line.close()
        return not self._attempts

    @property
    def _is_reached(self) -> bool:
        return self.machine is not None and self.machine.found is not None

    def _add(self, one: _Hosted) -> None:
        with self._wake:
            self._attempts[one.attempt.marker] = one
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self.name, daemon=True)
                self._thread.start()
            self._wake.notify_all()

    # The thread

    def _work(self) -> None:
        pause = 0.0
        while True:
            with self._wake:
                if self._is_closing and (not self._attempts or time.monotonic() > self._deadline):
                    return
                is_urgent = any(
                    one.job is not None or (one.asked_to_end and not one.was_told_to_end)
                    for one in self._attempts.values()
                )
                # What is urgent does not wait, but for a machine that does not answer.
                if self._away_since is not None or not is_urgent:
                    self._wake.wait(pause if self._attempts else None)
                attempts = list(self._attempts.values())
            try:
                is_new = self._serve(attempts)
            except (RankwiseError, OSError) as failure:
                pause = self._note_trouble(failure, pause)
            except Exception as error:  # Whatever it is, a run waits for an end.
                pause = self._note_trouble(ComputeFailure(f"{self.name}: {error!r}"), pause)
            else:
                if attempts:
                    self._note_back()
                slower = min(max(pause, _SOONEST_SECONDS) * 1.3, _LATEST_SECONDS)
                pause = _SOONEST_SECONDS if is_new else slower

    def _serve(self, attempts: list[_Hosted]) -> bool:
        """Do what is due for each attempt; return whether something was new."""
        if not attempts:
            return False
        machine, is_new = self._open(), False
        troubles: list[Exception] = []
        for one in attempts:
            if one.job is not None and self._has(one):
                is_new = True
                with _put_off(troubles):
                    self._start(machine, one, one.job)
        for one in attempts:
            if one.asked_to_end is not None and not one.was_told_to_end:
                machine.ask("end", {"marker": one.attempt.marker})
                one.was_told_to_end = True
        watched = [one for one in attempts if one.job is None and not one.is_over]
        if watched := list(filter(self._has, watched)):
            is_new |= self._look(machine, watched, troubles)
        for one in attempts:
            if one.is_over and self._has(one):
                self._remove(machine, one)
                is_new = True
        if troubles:
            raise troubles[0]
        return is_new

    def _has(self, one: _Hosted) -> bool:
        """Return whether an attempt is still here: another thread may have ended it."""
        return one.attempt.marker in self._attempts

    def _open(self) -> Machine:
        if self.machine is None:
            self.machine = self._backend.open_machine(self.name)
        found = self.machine.reach()
        if self._free_gpus is None:
            taken = {name for one in list(self._attempts.values()) for name in one.gpus}
            self._free_gpus = [name for name in found.gpus if name not in taken]
        return self.machine

    # Starting

    def _start(self, machine: Machine, one: _Hosted, job: Submission) -> None:
        request = {"marker": one.attempt.marker}
        if one.asked_to_end is not None:
            if one.was_sent and machine.ask("abandon", request)["has_begun"]:
                one.job = None
            else:
                self._finish_unsent(one, base.cancelled())
            return
        found = machine.reach()
        with contextlib.ExitStack() as stack:
            try:
                self._send_uv(machine, found, job)
                one.gpus = one.gpus or self._take_gpus(job.task.resources.gpus)
                package = packed(job, found, policy=self._policy, gpus=one.gpus)
                chunks = stack.enter_context(package)
            except Unreachable:
                raise
            except (ComputeFailure, OSError) as failure:
                if one.was_sent:  # By a call whose answer was lost: it may run.
                    raise
                self._finish(one, base.not_run(_in_words(failure)))
                return
            self._note_sent(found, one)
            try:
                answer = machine.start(request, chunks)
            except Unreachable:
                raise
            except ComputeFailure as failure:
                # The agent refused. Unless an earlier call had started it, it never will run.
                if machine.ask("abandon", request)["has_begun"]:
                    one.job = None
                else:
                    self._finish_unsent(one, base.not_run(str(failure)))
                return
        one.job = None
        self._backend.tell(Update(attempt=one.attempt, job_id=f"{self.name}:{answer['pid']}"))
        _note(one.attempt.folder, {**sent_to(one.attempt.folder), "is_started": True})

    def _send_uv(self, machine: Machine, found: HostFacts, job: Submission) -> None:
        """Send our uv if it is needed there, missing there, and can run there."""
        is_needed = job.task.runtime.kind == "uv" or job.task.tools
        if not is_needed or found.uv:
            return
        ours, system = find_uv(), os.uname()
        # More than one word is a module of this Python, which is not there.
        if ours and len(ours) == 1 and found.platform == f"{system.sysname}-{system.machine}":
            machine.send_program(Path(ours[0]).resolve(), "uv")

    def _take_gpus(self, count: int) -> tuple[str, ...]:
        free = self._free_gpus or []
        taken = tuple(free[:count])
        del free[:count]
        return taken

    def _note_sent(self, found: HostFacts, one: _Hosted) -> None:
        """Record where it goes, before it goes there."""
        attempt, claim = one.attempt, one.claim
        if self._policy.is_tracked:
            entry = TrackedInstance(
                name=attempt.marker,
                kind="folder",
                compute=self._policy.backend,
                run=attempt.label.partition("/")[0],
                about={"machine": self.name, "root": found.root},
            )
            self._policy.tracked.put(entry)
        claimed = [claim.cores, claim.memory, claim.gpus]
        sent = {"machine": self.name, "is_started": False, "claim": claimed}
        _note(attempt.folder, sent)
        # Before the call: if its answer is lost, the attempt may run there.
        one.was_sent = True

    # Watching

    def _look(self, machine: Machine, attempts: list[_Hosted], troubles: list[Exception]) -> bool:
        wanted = {
            one.attempt.marker: {"files": one.mirror.known, "known": one.known} for one in attempts
        }
        is_asked = any(one.asked_to_end for one in attempts)
        # The machine answers when it has news, but an end that is asked for is not waited for.
        wait = 0.0 if is_asked else self._policy.look_seconds
        answers = machine.ask("look", {"attempts": wanted, "wait": wait})["attempts"]
        is_new = False
        for one in attempts:
            with _put_off(troubles):
                is_new |= self._note_answer(machine, one, answers[one.attempt.marker])
        return is_new

    def _note_answer(self, machine: Machine, one: _Hosted, answer: Mapping[str, Any]) -> bool:
        """Take the logs and the state of an attempt; return whether something was new."""
        one.mirror.take(answer["files"])
        is_new = bool(answer["files"]) or one.known != [answer["state"], answer["has_begun"]]
        one.known = [answer["state"], answer["has_begun"]]
        if answer["has_begun"] and not one.has_started:
            one.has_started = True
            self._backend.tell(Update(attempt=one.attempt, has_started=True))
        # First the logs to their ends, in pieces that followers see; then the rest at once.
        if answer["state"] != "running" and one.mirror.is_level(answer["files"]):
            self._fetch(machine, one, answer)
        if one.is_silent:
            one.is_silent = False
            self._backend.tell(Update(attempt=one.attempt, silence=""))
        return is_new

    def _fetch(self, machine: Machine, one: _Hosted, answer: Mapping[str, Any]) -> None:
        """Get the other files of an attempt that is over, remove it there, and report its end."""
        state = answer["state"]
        if state != "absent":
            with tempfile.TemporaryFile() as file:
                machine.fetch(one.attempt.marker, file)
                try:
                    one.mirror.unpack(file)
                except (tarfile.TarError, EOFError) as error:
                    raise ComputeFailure(f"{self.name}: not all of it came: {error}") from error
        if state == "over" and not (one.attempt.folder / "end.json").exists():
            raise ComputeFailure(f"{self.name}: not all of it came: its end is missing")
        if state == "over":
            self._backend.ask_usage(self.name, one.attempt)
        end = None
        if state == "lost":
            end = base.lost(_why_lost(self.name, answer))
        elif state == "absent":
            end = base.lost(f"its folder on {self.name} is gone")
        one.is_over = True
        # Its end counts, also if it cannot be removed now: that is tried again.
        with contextlib.suppress(RankwiseError, OSError):
            self._remove(machine, one)
        self._free_gpus_of(one)
        self._backend.note_end(one.attempt, end)

    def _remove(self, machine: Machine, one: _Hosted) -> None:
        """Remove an attempt there, but for files that could not be brought here."""
        left = one.mirror.left_there()
        answer = machine.ask("remove", {"marker": one.attempt.marker, "is_kept": bool(left)})
        if left:
            listed = "; ".join(left[:_LISTED])
            text = f"could not be read on {self.name}, and stays there: {listed}"
            self._backend.tell(Update(attempt=one.attempt, text=text))
        elif not answer["is_gone"]:
            text = f"its folder on {self.name} could not be removed; `rankwise clean` tries again"
            self._backend.tell(Update(attempt=one.attempt, text=text))
        else:
            self._policy.tracked.drop(one.attempt.marker)
        self._forget(one)

    def _finish_unsent(self, one: _Hosted, end: AttemptEnd) -> None:
        """End an attempt of which nothing is there, and never will be."""
        self._policy.tracked.drop(one.attempt.marker)
        self._finish(one, end)

    def _finish(self, one: _Hosted, end: AttemptEnd) -> None:
        self._forget(one)
        self._free_gpus_of(one)
        self._backend.note_end(one.attempt, end)

    def _forget(self, one: _Hosted) -> None:
        with self._wake:
            self._attempts.pop(one.attempt.marker, None)

    def _free_gpus_of(self, one: _Hosted) -> None:
        if self._free_gpus is not None:
            self._free_gpus += one.gpus
        one.gpus = ()

    # Trouble

    def _note_trouble(self, failure: Exception, pause: float) -> float:
        """Report what is wrong, and return after how long to ask again.

        What was not sent goes elsewhere if the machine was never reached or is silent for too
        long. What was sent may run, whatever is wrong here: only the machine can say otherwise.
        """
        now, text = time.monotonic(), _in_words(failure)
        if self._away_since is None:
            self._away_since = now
        ending = [one for one in list(self._attempts.values()) if not one.is_over]
        for one in ending:
            if one.asked_to_end is not None and now > one.asked_to_end + _END_SECONDS:
                reason = f"cancelled; {text}, so what ran there may go on: rankwise clean ends it"
                self._finish(one, base.cancelled(reason))
        is_away = isinstance(failure, Unreachable)
        is_late = now > self._away_since + self._policy.patience
        is_waited_for = is_away and any(one.was_sent for one in list(self._attempts.values()))
        if is_late or not (self._is_reached or is_waited_for):
            self._return_unsent(text)
        if is_away and self._is_gone():
            self._lose(f"{self.name} is gone")
        self._tell_trouble(f"{text}; trying again")
        if is_late:
            self._tell_trouble(
                f"{self.name} has given no answer for more than {self._policy.patience:g} s, and "
                f"what was sent there may go on; waiting for it, until the run is cancelled"
            )
        return min(max(pause * 1.5, _AWAY_SECONDS), _LONGEST_AWAY_SECONDS)

    def _tell_trouble(self, text: str) -> None:
        """Report a trouble once, also for each attempt that may run there."""
        if not self._attempts or text in self._told:
            return
        self._told.append(text)
        self._backend.tell(Update(text=text))
        # A copy, as everywhere outside of the lock: other threads add attempts and end them.
        for one in list(self._attempts.values()):
            if one.was_sent and not one.is_over:
                self._backend.tell(Update(attempt=one.attempt, silence=text))
                one.is_silent = True

    def _note_back(self) -> None:
        self._away_since = None
        self._times_gone = 0
        self.failure = ""
        if self._told:
            self._told = []
            self._backend.tell(Update(text=f"{self.name} answers again"))

    def _is_gone(self) -> bool:
        """Ask whether there is no such machine any more, with all that ran there."""
        is_there = self.machine.line.is_there() if self.machine is not None else None
        self._times_gone = self._times_gone + 1 if is_there is False else 0
        return self._times_gone >= _TIMES_GONE

    def _return_unsent(self, text: str) -> None:
        """Use the machine no more for now: what has not been sent goes elsewhere."""
        self.failure = text
        for one in list(self._attempts.values()):
            if one.job is not None and not one.was_sent:
                self._forget(one)
                self._backend.note_unsent(one.job, text)

    def _lose(self, text: str) -> None:
        """Drop a machine that is gone, with all attempts on it."""
        self._return_unsent(text)
        for one in list(self._attempts.values()):
            if one.is_over:
                self._forget(one)
            else:
                self._finish(one, base.lost(text))


@contextlib.contextmanager
def _put_off(troubles: list[Exception]) -> Iterator[None]:
    """Go on with other attempts after a trouble of one; a silent machine is a trouble for all."""
    try:
        yield
    except Unreachable:
        raise
    except (RankwiseError, OSError, ValueError) as error:
        troubles.append(error)


def _in_words(failure: Exception) -> str:
    if isinstance(failure, OSError) and failure.strerror:
        place = f"{failure.filename}: " if failure.filename else ""
        return f"{place}{failure.strerror}"
    return str(failure)


def _why_lost(name: str, answer: Mapping[str, Any]) -> str:
    if answer["was_restarted"]:
        return f"{name} was restarted while it ran"
    return f"its runner on {name} was killed, or could not write down how it ended"


def _note(folder: Path, data: Mapping[str, Any]) -> None:
    # Synced: also after a crash of this machine, it must be known what runs elsewhere.
    write_file(folder / SENT, json.dumps(dict(data)), is_synced=True)


def sent_to(folder: Path) -> dict[str, Any]:
    """Return which machine an attempt was sent to, and what it claims there; empty: none.

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
