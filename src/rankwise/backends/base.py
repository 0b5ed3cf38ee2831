"""The contract of backends, what they share, and opening them by the names of the site file."""

from __future__ import annotations

import contextlib
import functools
import math
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from rankwise.documents.site import Site
from rankwise.documents.site_models import COMMAND, KUBERNETES, LOCAL, SSH, ComputeConfig
from rankwise.errors import ComputeFailure, RankwiseError
from rankwise.machine import machine, visible_gpus
from rankwise.plan import Resources, RuntimeChoice, Task
from rankwise.records import AttemptEnd
from rankwise.runtimes.base import PreparedRuntime
from rankwise.store import State


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One try at a task, as a backend knows it."""

    label: str
    """For people: run, task and number."""
    marker: str
    """Unique among all attempts that there ever were."""
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """Everything that a backend needs to start an attempt."""

    attempt: Attempt
    task: Task
    runtime: PreparedRuntime
    runtimes: Mapping[RuntimeChoice, PreparedRuntime] = field(default_factory=dict)
    """Of the processes that have one of their own."""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """Something new about an attempt, or about the backend itself."""

    attempt: Attempt | None = None
    job_id: str = ""
    """The id that the attempt has there from now on."""
    has_started: bool = False
    text: str = ""
    """For people: why it waits, or who does not answer."""
    silence: str | None = None
    """For people: why there is no news of an attempt that may run; empty: there is again."""
    end: AttemptEnd | None = None
    """How the attempt ended: none of its processes is left, and no other update follows."""
    is_absent: bool = False
    """Whether an attempt that was to be adopted was never started, and never will be."""
    has_looked: bool = False
    """Whether this answers `look`: the updates for what was found came before."""


Updates = SimpleQueue[Update]
"""The queue of updates of all backends of a run; the engine waits for nothing else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendFacts:
    """What a backend has and does."""

    capacity: Resources
    """How much there is of everything, in use or not."""
    room: Resources
    """How much all tasks together may claim; without limit if the backend has a queue."""
    makes_runtimes: bool = False
    """Whether runtimes are made where its tasks run; otherwise they are made here."""
    sends_together: bool = False
    """Whether `look` sends what was submitted, with equal attempts in one array."""


# As a shell reports them: 128 and the number of the signal.
CANCELLED_CODE, KILLED_CODE, LOST_CODE = 130, 137, 1
_TERM, _KILL = 15, 9


def not_run(reason: str) -> AttemptEnd:
    """Return the end of an attempt of which nothing was started."""
    return AttemptEnd(outcome=State.NOT_RUN, exit_code=LOST_CODE, reason=reason)


def lost(reason: str, **more: Any) -> AttemptEnd:
    """Return the end of an attempt of which no more can be found out."""
    return AttemptEnd(outcome=State.LOST, exit_code=LOST_CODE, reason=reason, **more)


def cancelled(reason: str = "cancelled", **more: Any) -> AttemptEnd:
    """Return the end of an attempt that was ended on request."""
    return AttemptEnd(outcome=State.CANCELLED, exit_code=CANCELLED_CODE, reason=reason, **more)


def times_of(end: AttemptEnd | None) -> dict[str, Any]:
    """Return when the runner began and ended, for an end with another outcome."""
    return {"started": end.started, "ended": end.ended} if end is not None else {}


def out_of_memory(reason: str, culprit: str | None, **more: Any) -> AttemptEnd:
    """Return the end of an attempt that the kernel has killed for want of memory."""
    return AttemptEnd(
        outcome=State.CRASHED,
        exit_code=KILLED_CODE,
        signal=_KILL,
        culprit=culprit,
        reason=reason,
        **more,
    )


def is_conclusive(end: AttemptEnd) -> bool:
    """Return whether a runner's record is conclusive: only the task's own processes ended it."""
    match end.outcome:
        case State.PASSED:
            return end.exit_code == 0
        case State.FAILED:
            # A shell ends with these codes if its command was killed by one of these signals.
            return end.exit_code not in (128 + _TERM, 128 + _KILL)
        case State.TIMED_OUT | State.NOT_RUN:
            return True
        case State.CRASHED:
            return end.signal not in (_TERM, _KILL)
    # It was cancelled, perhaps by the backend, or a newer runner has written it.
    return False


class Backend(Protocol):
    """A place where tasks run. What it has started goes on without it.

    Calls return at once, but for the first `facts` and for `close`; updates report their results.
    Threads are the backend's own, and end with `close`. A thread that fails reports an update, and
    goes on.
    """

    def facts(self) -> BackendFacts:
        """Return capacity and properties; asks for them the first time, and never raises."""

    def place(self, folder: Path) -> Path:
        """Return the folder for an attempt that would have this one on a local disk."""

    def submit(self, job: Submission) -> None:
        """Start an attempt; ComputeFailure: nothing was or will be started."""

    def adopt(self, attempt: Attempt, job_id: str) -> None:
        """Watch an attempt that another client has submitted, or report that it is absent.

        While that cannot be found out, the reason is reported, and it is tried again.
        """

    def cancel(self, attempt: Attempt) -> None:
        """End an attempt. The engine repeats this until the end is reported."""

    def look(self) -> None:
        """Do what is due now, and report what is over; `has_looked` comes last."""

    def close(self) -> None:
        """Release everything: the run is over."""


class Unreachable(ComputeFailure):
    """No answer: what was asked for may have been done or not, and may be asked again later."""

    seconds: float | None = None
    """After how long to ask again, as the other side says."""


# Pauses after a failure of our own, and after a question without an answer.
_AGAIN_SECONDS, _ASK_SECONDS = 1.0, 3.0


def words_of(failure: Exception) -> str:
    """Return the message of a failure; an unexpected one comes with its type."""
    return str(failure) if isinstance(failure, RankwiseError | OSError) else repr(failure)


class ActiveBackend(ABC):
    """A backend with a thread that does whatever may take time.

    The state of a subclass belongs to the thread, once the first order has started it.
    """

    def __init__(self, name: str, updates: Updates, *, who: str) -> None:
        self._name = name
        self._who = who
        """The other side, for messages that it does not answer."""
        self._trouble = ""
        self._tell = updates.put
        self._orders: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._is_asked = False
        """Whether the engine waits for the answer to `look`."""
        self._unwanted: dict[str, Attempt] = {}
        """Attempts to cancel, written by the engine: a repeated cancel is one order."""
        self._doubtful: list[tuple[Attempt, str]] = []
        """Attempts of another client that may have been started; not known yet."""
        self._ask_at = 0.0
        self._failure = ""

    def adopt(self, attempt: Attempt, job_id: str) -> None:
        """Watch an attempt that another client has submitted, or report that it is absent."""
        self._order(lambda: self._take_over(attempt, job_id))

    def cancel(self, attempt: Attempt) -> None:
        """End an attempt."""
        # The engine repeats a cancel: one order at a time is enough.
        if attempt.marker not in self._unwanted:
            self._unwanted[attempt.marker] = attempt
            self._order(lambda: self._end(self._unwanted.pop(attempt.marker)))

    def place(self, folder: Path) -> Path:
        """Return the same folder: what attempts write elsewhere is brought there."""
        return folder

    def look(self) -> None:
        """Do what is due, and report what is over and that this was all."""
        self._order(self._note_look)

    def close(self) -> None:
        """End the thread, after what it is doing now."""
        # Read by the thread after each order: the wake-up below is the last one.
        self._is_closed = True
        if self._thread is not None:
            self._wake()
            self._thread.join()

    def _order(self, act: Callable[[], None]) -> None:
        """Have the thread do something, and then what is due."""
        self._orders.put(act)
        if self._thread is None:
            # A daemon: a call without an answer must not keep Python from ending.
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()

    def _wake(self) -> None:
        """Have the thread do what is due."""
        self._order(lambda: None)

    # In the thread

    def _work(self) -> None:
        pause: float | None = None
        while not self._is_closed:
            try:
                self._carry_out(pause)
                self._ask_again()
                # After the orders: a submit and what follows from it are one step.
                pause = self._do_due()
                if self._doubtful:
                    pause = min(pause or _ASK_SECONDS, _ASK_SECONDS)
                self._failure = ""
            except Exception as error:  # Whatever it is, a run waits for ends.
                pause = _AGAIN_SECONDS
                self._note_failure(f"{self._name}: {error!r}; trying again")
            # Also after a failure: the engine waits for this answer.
            if self._is_asked:
                self._is_asked = False
                self._tell(Update(has_looked=True))

    def _carry_out(self, pause: float | None) -> None:
        """Wait for orders, and carry out all of them."""
        with contextlib.suppress(Empty):
            # The first may be long in coming; all others are there already.
            self._orders.get(timeout=pause)()
            while True:
                self._orders.get_nowait()()

    def _note_trouble(self, text: str) -> None:
        """Report a trouble once, and its end; empty: there is none."""
        if text and not self._trouble:
            self._tell(Update(text=text))
        elif self._trouble and not text:
            self._tell(Update(text=f"{self._who} answers again"))
        self._trouble = text

    def _note_failure(self, text: str) -> None:
        if text != self._failure:
            self._failure = text
            self._tell(Update(text=text))

    def _note_look(self) -> None:
        self._is_asked = True

    def _take_over(self, attempt: Attempt, job_id: str, *, is_again: bool = False) -> None:
        try:
            if not self._watch_again(attempt, job_id):
                self._tell(Update(attempt=attempt, is_absent=True))
        except Exception as failure:  # Whatever it is, it may run.
            self._doubtful.append((attempt, job_id))
            self._ask_at = time.monotonic() + _ASK_SECONDS
            # Once is enough: the attempt waits for hours if the other side is silent.
            if not is_again:
                why = words_of(failure)
                text = f"it is not known yet whether it was started; asking again: {why}"
                self._tell(Update(attempt=attempt, text=text))

    def _ask_again(self) -> None:
        """Try again to adopt what could not be found out before."""
        if self._doubtful and time.monotonic() >= self._ask_at:
            doubtful, self._doubtful = self._doubtful, []
            for attempt, job_id in doubtful:
                self._take_over(attempt, job_id, is_again=True)

    @abstractmethod
    def _watch_again(self, attempt: Attempt, job_id: str) -> bool:
        """Watch what another client has submitted; False: it was not started, and never will be.

        ComputeFailure: this cannot be found out now.
        """

    @abstractmethod
    def _end(self, attempt: Attempt) -> None:
        """End an attempt, unless it was asked to already."""

    @abstractmethod
    def _do_due(self) -> float | None:
        """Do what is due; return after how many seconds there may be more, None: after an order."""


def largest(amounts: Sequence[Resources]) -> Resources:
    """Return the greatest amount of each."""
    return functools.reduce(lambda one, other: one.combined(other, max), amounts)


# Memory and GPUs are integers, which have no infinity.
UNLIMITED = Resources(cores=math.inf, memory=sys.maxsize, gpus=sys.maxsize)


def open_computes(
    names: Iterable[str],
    site: Site,
    updates: Updates,
    *,
    secrets: Collection[str] = (),
    store: Path | None = None,
    run: str = "",
) -> dict[str, Backend]:
    """Open the backends that the site file has under these names.

    This machine is one backend, however many names it has, with the greatest of their amounts:
    what one task uses no other can. `secrets` are the names of variables that stay on this machine.
    What is made elsewhere for `run` is recorded in the `store`. All report to `updates`.
    """
    # All names first: a wrong one must not leave open what others have opened.
    choices = {name: site.compute(name) for name in names}
    own = {name: choice for name, choice in choices.items() if choice.backend == LOCAL}
    backends: dict[str, Backend] = dict.fromkeys(own, _local(own, updates)) if own else {}
    for name in choices.keys() - own.keys():
        backends[name] = _elsewhere(choices[name], updates, secrets, store or Path.cwd(), run)
    return backends


def _elsewhere(
    choice: ComputeConfig, updates: Updates, secrets: Collection[str], store: Path, run: str
) -> Backend:
    """Open a backend that is not this machine."""
    # Imported late: each needs modules, and perhaps packages, that the others do without.
    if choice.backend == KUBERNETES:
        from rankwise.backends.kubernetes.backend import KubernetesBackend

        return KubernetesBackend(choice, updates)
    if choice.backend in (SSH, COMMAND):
        from rankwise.backends.remote.tracked import FOLDER, Tracked

        tracked = Tracked(store / FOLDER)
        if choice.backend == SSH:
            from rankwise.backends.ssh import SshBackend

            return SshBackend(choice, updates, tracked)
        from rankwise.backends.cloud import ProviderBackend

        return ProviderBackend(choice, updates, tracked, run)
    from rankwise.backends.batch.backend import BatchBackend

    return BatchBackend(choice, updates, secrets)


def _local(choices: Mapping[str, ComputeConfig], updates: Updates) -> Backend:
    from rankwise.backends.local import LocalBackend

    found, ours, gpus = machine(), choices.values(), visible_gpus()
    amounts = [UNLIMITED if one.oversubscribe else one.capacity(found) for one in ours]
    return LocalBackend(largest(amounts), updates, gpus=gpus)
