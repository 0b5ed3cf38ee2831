"""Attempts on machines that share no files with this one."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from rankwise.backends.base import Attempt, Submission, Update
from rankwise.backends.remote.connection import LineAway, Machine
from rankwise.backends.remote.host import Board, Host, sent_to
from rankwise.errors import ComputeFailure
from rankwise.plan import Resources, Task
from rankwise.records import AttemptEnd


class Fleet(Protocol):
    """Machines, each with its keeper. All of it is called by one thread."""

    def capacity(self) -> Resources:
        """Return the most that one machine has; asks them if need be, and never raises."""

    def room(self) -> Resources:
        """Return how much tasks may claim on all of them together."""

    def pick(self, task: Task) -> tuple[Host, Resources] | None:
        """Return the machine that a task gets, and what it takes there; None: none is free yet.

        ComputeFailure: none ever will be.
        """

    def recover(self, machine: str, claim: Resources) -> Host | None:
        """Return the machine on which another client has started something; None: it is gone."""

    def note_over(self, keeper: Host, claim: Resources) -> None:
        """Count something no longer that is over."""

    def close(self) -> Sequence[str]:
        """Return everything back; tells what could not be."""


def claim_of(task: Task, most: Resources) -> Resources:
    """Say what a task takes of a machine; who claims no cores takes one for each process.

    What must be alone takes all cores, where it is known how many there are.
    """
    width = task.width or len(task.processes)
    own = task.resources
    cores = own.cores or min(float(width), most.cores)
    if task.is_alone and math.isfinite(most.cores):
        cores = most.cores
    return Resources(cores=cores, memory=own.memory, gpus=own.gpus)


def fits(claim: Resources, free: Resources) -> bool:
    """Return whether there is enough of everything."""
    return (
        claim.cores <= free.cores + 1e-9 and claim.memory <= free.memory and claim.gpus <= free.gpus
    )


_ADOPT_TRIES, _ADOPT_SECONDS = 4, 1.0


class RemoteBackend:
    """Sends attempts to machines of a fleet; they outlive the client."""

    makes_runtimes = True

    def __init__(self, fleet: Fleet, board: Board, machine_of: Callable[[Host], Machine]) -> None:
        self._fleet = fleet
        self._board = board
        self._machine_of = machine_of
        self._waiting: list[Submission] = []
        self._placed: dict[str, tuple[Host, Resources]] = {}
        self._over: dict[str, AttemptEnd] = {}

    def capacity(self) -> Resources:
        """Return the most that one machine has: a task is on one of them."""
        return self._fleet.capacity()

    def room(self) -> Resources:
        """Return how much tasks may claim on all machines together."""
        return self._fleet.room()

    def place(self, folder: Path) -> Path:
        """Leave attempts where they would be: what they write elsewhere is mirrored there."""
        return folder

    def submit(self, job: Submission) -> None:
        """Take an attempt; the news will tell when it is sent."""
        if job.task.nodes > 1:
            raise ComputeFailure(
                f"needs {job.task.nodes} nodes, and a task runs on one machine here; machines that "
                f"work together are a cluster's: Slurm or Kubernetes"
            )
        if not self._send(job):
            self._waiting.append(job)

    def _send(self, job: Submission) -> bool:
        picked = self._fleet.pick(job.task)
        if picked is None:
            return False
        keeper, claim = self._placed[job.attempt.marker] = picked
        keeper.start(job, claim)
        return True

    def adopt(self, attempt: Attempt, job_id: str) -> bool:
        """Watch an attempt that another client has sent, unless it never came to that."""
        del job_id  # what was written down before says more
        sent = sent_to(attempt.folder)
        if not sent:
            return False  # No runner but one that is sent can begin with it.
        cores, memory, gpus = sent["claim"]
        claim = Resources(cores=cores, memory=memory, gpus=gpus)
        is_fetched = (attempt.folder / "end.json").exists()
        keeper = self._fleet.recover(sent["machine"], claim)
        if keeper is None:
            return self._adopt_without_machine(attempt, sent["machine"], sent["is_started"])
        if not (sent["is_started"] or is_fetched or self._has_begun(keeper, attempt)):
            self._fleet.note_over(keeper, claim)
            return False
        self._placed[attempt.marker] = (keeper, claim)
        if is_fetched:
            self._board.end(attempt)
        keeper.watch(attempt, is_over=is_fetched)
        return True

    def _adopt_without_machine(self, attempt: Attempt, machine: str, is_started: bool) -> bool:
        """Take up what was on a machine that is gone, and with it all that ran there."""
        if (attempt.folder / "end.json").exists():
            self._board.end(attempt)
            return True
        if not is_started:
            return False
        reason = f"{machine}, on which it ran, is gone"
        self._board.end(attempt, AttemptEnd(outcome="lost", exit_code=1, reason=reason))
        return True

    def _has_begun(self, keeper: Host, attempt: Attempt) -> bool:
        """Ask whether an attempt has begun; if not, it never will.

        ComputeFailure: nobody answers, and so nobody knows.
        """
        for last in (*(False,) * (_ADOPT_TRIES - 1), True):
            try:
                said = self._machine_of(keeper).ask("abandon", {"marker": attempt.marker})
            except LineAway as away:
                if last:
                    raise ComputeFailure(
                        f"{attempt.label} may have been started, and {away}; resume again when "
                        f"{keeper.name} can be reached"
                    ) from away
                time.sleep(_ADOPT_SECONDS)
            else:
                return bool(said["has_begun"])
        return True

    def wait(self, seconds: float) -> list[Attempt]:
        """Return those attempts that are over."""
        deadline = time.monotonic() + seconds
        while True:
            self._send_waiting()
            ended = [self._note_over(*one) for one in self._board.take_ended()]
            left = deadline - time.monotonic()
            if ended or left <= 0:
                return ended
            self._board.wait(left)

    def _send_waiting(self) -> None:
        for job, reason in self._board.take_returned():
            keeper, claim = self._placed.pop(job.attempt.marker)
            self._fleet.note_over(keeper, claim)
            self._board.tell(Update(text=reason))
            self._waiting.append(job)
        waiting, self._waiting = self._waiting, []
        for job in waiting:
            try:
                if not self._send(job):
                    self._waiting.append(job)
            except ComputeFailure as failure:
                end = AttemptEnd(outcome="not run", exit_code=1, reason=str(failure))
                self._board.end(job.attempt, end)

    def _note_over(self, attempt: Attempt, end: AttemptEnd | None) -> Attempt:
        if placed := self._placed.pop(attempt.marker, None):
            self._fleet.note_over(*placed)
        if end is not None:
            self._over[attempt.marker] = end
        return attempt

    def news(self) -> list[Update]:
        """Return what was heard since the last time."""
        return self._board.take_news()

    def end_of(self, attempt: Attempt) -> AttemptEnd | None:
        """Say how an attempt ended that `wait` has given; None: as its runner has written."""
        return self._over.pop(attempt.marker, None)

    def cancel(self, attempt: Attempt) -> None:
        """Have an attempt end: in good order if it runs, at once if it waits."""
        waiting = [job for job in self._waiting if job.attempt.marker == attempt.marker]
        for job in waiting:
            self._waiting.remove(job)
            end = AttemptEnd(outcome="cancelled", exit_code=130, reason="cancelled")
            self._board.end(attempt, end)
        if placed := self._placed.get(attempt.marker):
            placed[0].end(attempt)

    def clean(self, attempt: Attempt) -> None:
        """Do nothing: what a lost runner has left was killed when its folder was removed."""

    def close(self) -> None:
        """Give back what was had for this run, and say what could not be."""
        for trouble in self._fleet.close():
            self._board.tell(Update(text=trouble))
