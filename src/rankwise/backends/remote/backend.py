"""Attempts on machines that share no files with this one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from rankwise.backends import base
from rankwise.backends.base import Attempt, Submission, Update, Updates
from rankwise.backends.remote.connection import Machine
from rankwise.backends.remote.host import Host, sent_to
from rankwise.backends.remote.packing import HostPolicy
from rankwise.errors import ComputeFailure
from rankwise.plan import Resources, Task
from rankwise.records import AttemptEnd, end_of


def fits(claim: Resources, free: Resources) -> bool:
    """Return whether there is enough of everything."""
    # Sums of fractions of a core are inexact: ten tenths must fit into one core.
    has_cores = claim.cores <= free.cores + 1e-9
    return has_cores and claim.memory <= free.memory and claim.gpus <= free.gpus


class RemoteBackend(base.ActiveBackend):
    """Sends attempts to machines, each with a thread of its own; they outlive the client."""

    def __init__(self, updates: Updates, policy: HostPolicy) -> None:
        super().__init__(policy.backend, updates, who=policy.backend)
        self.policy = policy
        self._hosts: dict[str, Host] = {}
        self._waiting: list[Submission] = []
        self._placed: dict[str, tuple[Host, Resources]] = {}

    # What a subclass does, in the thread but for `open_machine`

    @abstractmethod
    def open_machine(self, name: str) -> Machine:
        """Make a machine that a host was made without; may take long, in the host's thread."""

    @abstractmethod
    def _pick(self, task: Task) -> tuple[Host, Resources] | None:
        """Return the machine for a task, and what it takes there; None: none is free yet.

        ComputeFailure: none ever will be.
        """

    @abstractmethod
    def _reopen(self, name: str) -> Host | None:
        """Return the machine on which another client has started something; None: it is gone."""

    @abstractmethod
    def _close_hosts(self) -> Sequence[str]:
        """Close every machine; return what could not be removed, for people."""

    # For the engine

    def submit(self, job: Submission) -> None:
        """Take an attempt; it is sent as soon as a machine is free."""
        if job.task.nodes > 1:
            raise ComputeFailure(
                f"needs {job.task.nodes} nodes, and a task runs on one machine here: tasks on "
                f"several nodes need Slurm or Kubernetes"
            )
        self._order(lambda: self._waiting.append(job))

    # Called by the threads of machines

    def ask_usage(self, name: str, attempt: Attempt) -> None:
        """Keep what is known of the machine's use during an attempt, if it is; may take long."""

    def tell(self, update: Update) -> None:
        """Pass an update on."""
        self._tell(update)

    def note_end(self, attempt: Attempt, end: AttemptEnd | None = None) -> None:
        """Note that an attempt is over; without an end, its runner has written it."""
        self._order(lambda: self._note_over(attempt, end))

    def note_unsent(self, job: Submission, reason: str) -> None:
        """Have another machine take a job of which nothing has begun."""
        self._order(lambda: self._send_elsewhere(job, reason))

    # In the thread

    def _do_due(self) -> None:
        """Send what waits, to machines that have room."""
        for job in list(self._waiting):
            try:
                picked = self._pick(job.task)
            except Exception as failure:  # Whatever it is, a run waits for its end.
                self._waiting.remove(job)
                self._note_over(job.attempt, base.not_run(base.words_of(failure)))
                continue
            if picked is not None:
                self._waiting.remove(job)
                host, claim = picked
                self._occupy(job.attempt, host, claim)
                host.start(job, claim)

    def _occupy(self, attempt: Attempt, host: Host, claim: Resources) -> None:
        self._placed[attempt.marker] = (host, claim)
        host.used += claim
        host.tasks += 1

    def _release(self, attempt: Attempt) -> None:
        """Count what an attempt took as free again."""
        if placed := self._placed.pop(attempt.marker, None):
            host, claim = placed
            host.used -= claim
            host.tasks -= 1

    def _send_elsewhere(self, job: Submission, reason: str) -> None:
        # The other machines may take longer to become free: people should know why it waits.
        self._tell(Update(text=reason))
        self._waiting.append(job)
        self._release(job.attempt)

    def _note_over(self, attempt: Attempt, end: AttemptEnd | None) -> None:
        self._tell(Update(attempt=attempt, end=end or end_of(attempt.folder)))
        self._release(attempt)

    def _watch_again(self, attempt: Attempt, job_id: str) -> bool:
        """Watch an attempt that another client has sent; False: it was not."""
        del job_id  # The record beside the attempt says more.
        sent = sent_to(attempt.folder)
        if not sent:
            return False  # Only a runner that was sent can begin with it.
        has_ended = (attempt.folder / "end.json").exists()
        if attempt.marker not in self._placed:
            host = self._reopen(sent["machine"])
            if host is None:
                # With the machine, all that ran there is gone.
                if sent["is_started"] or has_ended:
                    end = base.lost(f"{sent['machine']}, on which it ran, is gone")
                    self._note_over(attempt, None if has_ended else end)
                return bool(sent["is_started"] or has_ended)
            cores, memory, gpus = sent["claim"]
            self._occupy(attempt, host, Resources(cores=cores, memory=memory, gpus=gpus))
        host, _ = self._placed[attempt.marker]
        if not (sent["is_started"] or has_ended or _has_begun(host, attempt)):
            self._release(attempt)
            return False
        host.watch(attempt, is_over=has_ended)
        if has_ended:
            self._note_over(attempt, None)
        return True

    def _end(self, attempt: Attempt) -> None:
        """Have an attempt end: with SIGTERM if it runs, at once if it waits."""
        waiting = [job for job in self._waiting if job.attempt.marker == attempt.marker]
        for job in waiting:
            self._waiting.remove(job)
            self._note_over(attempt, base.cancelled())
        if placed := self._placed.get(attempt.marker):
            placed[0].end(attempt)

    def close(self) -> None:
        """Release what was made for this run, and report what could not be released."""
        # First the own thread: it could otherwise start something on a closed machine.
        super().close()
        for trouble in self._close_hosts():
            self._tell(Update(text=trouble))


def _has_begun(host: Host, attempt: Attempt) -> bool:
    """Ask whether an attempt has begun; if not, it never will.

    ComputeFailure: the machine does not answer, so this is not known.
    """
    assert host.machine is not None  # only a machine that exists is reopened
    return bool(host.machine.ask("abandon", {"marker": attempt.marker})["has_begun"])
