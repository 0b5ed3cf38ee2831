"""Attempts on machines that share no files with this one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from rankwise.backends.base import (
    ActiveBackend,
    Attempt,
    BackendFacts,
    Submission,
    Update,
    Updates,
    cancelled,
    lost,
    not_run,
    words_of,
)
from rankwise.backends.remote.connection import Machine
from rankwise.backends.remote.host import Board, Host, sent_to
from rankwise.errors import ComputeFailure
from rankwise.plan import Resources, Task
from rankwise.records import AttemptEnd, end_of


class Fleet(Protocol):
    """Machines, each with its keeper. After `facts`, all of it is called by one thread."""

    def facts(self) -> BackendFacts:
        """Return the most that one machine has, and what all have together; never raises."""

    def pick(self, task: Task) -> tuple[Host, Resources] | None:
        """Return the machine that a task gets, and what it takes there; None: none is free yet.

        ComputeFailure: none ever will be.
        """

    def recover(self, machine: str, claim: Resources) -> Host | None:
        """Return the machine on which another client has started something; None: it is gone."""

    def machine_of(self, keeper: Host) -> Machine:
        """Return the machine itself, on which something was started."""

    def note_over(self, keeper: Host, claim: Resources) -> None:
        """Count something no longer that is over."""

    def close(self) -> Sequence[str]:
        """Return everything back; tells what could not be."""


def fits(claim: Resources, free: Resources) -> bool:
    """Return whether there is enough of everything."""
    return (
        claim.cores <= free.cores + 1e-9 and claim.memory <= free.memory and claim.gpus <= free.gpus
    )


class RemoteBackend(ActiveBackend):
    """Sends attempts to machines of a fleet; they outlive the client."""

    def __init__(self, name: str, updates: Updates, open_fleet: Callable[[Board], Fleet]) -> None:
        super().__init__(name, updates, who=name)
        self._fleet = open_fleet(self)
        self._waiting: list[Submission] = []
        self._placed: dict[str, tuple[Host, Resources]] = {}

    def facts(self) -> BackendFacts:
        """Return the most that one machine has: a task is on one of them."""
        return self._fleet.facts()

    def place(self, folder: Path) -> Path:
        """Leave attempts where they would be: what they write elsewhere is mirrored there."""
        return folder

    def submit(self, job: Submission) -> None:
        """Take an attempt; it is sent as soon as a machine is free."""
        if job.task.nodes > 1:
            raise ComputeFailure(
                f"needs {job.task.nodes} nodes, and a task runs on one machine here; machines that "
                f"work together are a cluster's: Slurm or Kubernetes"
            )
        self._order(lambda: self._waiting.append(job))

    # Told by the machines' threads

    def tell(self, update: Update) -> None:
        """Pass on what was heard."""
        self._tell(update)

    def end(self, attempt: Attempt, end: AttemptEnd | None = None) -> None:
        """Take in that an attempt is over; without an end, its runner has written it."""
        self._order(lambda: self._note_over(attempt, end))

    def give_back(self, job: Submission, reason: str) -> None:
        """Have another machine take a job."""
        self._order(lambda: self._send_elsewhere(job, reason))

    # In the thread

    def _go_on(self) -> None:
        """Send what waits, to machines that have room."""
        for job in list(self._waiting):
            try:
                picked = self._fleet.pick(job.task)
            except Exception as failure:  # Whatever it is, a run waits for its end.
                self._waiting.remove(job)
                self._note_over(job.attempt, not_run(words_of(failure)))
                continue
            if picked is not None:
                self._waiting.remove(job)
                keeper, claim = self._placed[job.attempt.marker] = picked
                keeper.start(job, claim)

    def _send_elsewhere(self, job: Submission, reason: str) -> None:
        keeper, claim = self._placed.pop(job.attempt.marker)
        self._tell(Update(text=reason))
        self._waiting.append(job)
        self._fleet.note_over(keeper, claim)

    def _note_over(self, attempt: Attempt, end: AttemptEnd | None) -> None:
        self._tell(Update(attempt=attempt, end=end or end_of(attempt.folder)))
        if placed := self._placed.pop(attempt.marker, None):
            self._fleet.note_over(*placed)

    def _watch_again(self, attempt: Attempt, job_id: str) -> bool:
        """Watch an attempt that another client has sent, unless it never came to that."""
        del job_id  # what was written down before says more
        sent = sent_to(attempt.folder)
        if not sent:
            return False  # No runner but one that is sent can begin with it.
        is_fetched = (attempt.folder / "end.json").exists()
        if attempt.marker not in self._placed:
            cores, memory, gpus = sent["claim"]
            claim = Resources(cores=cores, memory=memory, gpus=gpus)
            keeper = self._fleet.recover(sent["machine"], claim)
            if keeper is None:
                return self._end_without_machine(attempt, sent["machine"], sent["is_started"])
            self._placed[attempt.marker] = (keeper, claim)
        keeper, claim = self._placed[attempt.marker]
        if not (sent["is_started"] or is_fetched or self._has_begun(keeper, attempt)):
            del self._placed[attempt.marker]
            self._fleet.note_over(keeper, claim)
            return False
        keeper.watch(attempt, is_over=is_fetched)
        if is_fetched:
            self._note_over(attempt, None)
        return True

    def _end_without_machine(self, attempt: Attempt, machine: str, is_started: bool) -> bool:
        """Take up what was on a machine that is gone, and with it all that ran there."""
        is_fetched = (attempt.folder / "end.json").exists()
        if is_started or is_fetched:
            end = lost(f"{machine}, on which it ran, is gone")
            self._note_over(attempt, None if is_fetched else end)
        return is_started or is_fetched

    def _has_begun(self, keeper: Host, attempt: Attempt) -> bool:
        """Ask whether an attempt has begun; if not, it never will.

        ComputeFailure: nobody answers, and so nobody knows.
        """
        said = self._fleet.machine_of(keeper).ask("abandon", {"marker": attempt.marker})
        return bool(said["has_begun"])

    def _end(self, attempt: Attempt) -> None:
        """Have an attempt end: in good order if it runs, at once if it waits."""
        waiting = [job for job in self._waiting if job.attempt.marker == attempt.marker]
        for job in waiting:
            self._waiting.remove(job)
            self._note_over(attempt, cancelled())
        if placed := self._placed.get(attempt.marker):
            placed[0].end(attempt)

    def close(self) -> None:
        """Give back what was had for this run, and say what could not be."""
        super().close()
        for trouble in self._fleet.close():
            self._tell(Update(text=trouble))
