"""What every compute can do, so that the engine need not know which one it is; opened by name."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from rankwise.documents.site import Site
from rankwise.documents.site_models import COMMAND, KUBERNETES, LOCAL, SSH, ComputeConfig
from rankwise.machine import machine, visible_gpus
from rankwise.plan import Resources, Task
from rankwise.records import AttemptEnd
from rankwise.runtimes.base import PreparedRuntime


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One try at a task, as a compute knows it."""

    label: str
    """For people: run, task and number."""
    marker: str
    """Unique among all attempts that there ever were."""
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """Everything that a compute needs to start an attempt."""

    attempt: Attempt
    task: Task
    runtime: PreparedRuntime
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """Something that a compute has heard of an attempt, or of itself, while it waited."""

    attempt: Attempt | None = None
    job_id: str = ""
    """The number that the attempt has there from now on."""
    has_started: bool = False
    text: str = ""
    """For people: why it waits, or who does not answer."""
    silence: str | None = None
    """For people: why nothing is heard of an attempt that may run; empty: it is heard again."""


class Backend(Protocol):
    """A place where tasks run. What it has started goes on without it."""

    @property
    def makes_runtimes(self) -> bool:
        """Return whether runtimes are made where its tasks run; otherwise they are made here."""

    def capacity(self) -> Resources:
        """Return how much there is of everything, in use or not."""

    def room(self) -> Resources:
        """Return how much all tasks together may claim; what has a queue of its own takes any."""

    def place(self, folder: Path) -> Path:
        """Return the folder that an attempt can have there, if it would be this one here."""

    def submit(self, job: Submission) -> str | None:
        """Start an attempt and give its number there; None: it is taken, the news will tell.

        ComputeFailure: nothing was started.
        """

    def adopt(self, attempt: Attempt, job_id: str) -> bool:
        """Watch an attempt that another client has submitted.

        False: it never came to that, and never will.
        """

    def wait(self, seconds: float) -> Sequence[Attempt]:
        """Return those attempts whose runners are gone, as soon as there is one."""

    def news(self) -> Sequence[Update]:
        """Return what was heard since the last time."""

    def end_of(self, attempt: Attempt) -> AttemptEnd | None:
        """Say how an attempt ended that `wait` has given; None: as its runner has written."""

    def cancel(self, attempt: Attempt) -> None:
        """Have a runner end what it has started; returns at once."""

    def clean(self, attempt: Attempt) -> None:
        """End whatever an attempt has left behind whose runner was lost."""

    def close(self) -> None:
        """Keep nothing for later: the run is over."""


UNLIMITED = Resources(cores=math.inf, memory=sys.maxsize, gpus=sys.maxsize)


def open_computes(
    names: Iterable[str],
    site: Site,
    *,
    secrets: Iterable[str] = (),
    store: Path | None = None,
    run: str = "",
) -> dict[str, Backend]:
    """Make the computes ready that the site file has under these names.

    However many names this machine has, it is one compute, and what one task uses of it no other
    can. Where they are told to have different amounts, it has the greatest. `secrets` are the
    names of variables that must not leave this machine by themselves. What is made elsewhere for
    `run` is written down in the `store`.
    """
    choices = {name: site.compute(name) for name in names}
    computes: dict[str, Backend] = {}
    own = {name: choice for name, choice in choices.items() if choice.backend == LOCAL}
    if own:
        computes |= dict.fromkeys(own, _local(own))
    for name in choices.keys() - own.keys():
        computes[name] = _elsewhere(choices[name], tuple(secrets), store or Path.cwd(), run)
    return computes


def _elsewhere(choice: ComputeConfig, secrets: tuple[str, ...], store: Path, run: str) -> Backend:
    """Open one that is not this machine; each is loaded only by those who have it."""
    if choice.backend == KUBERNETES:
        from rankwise.backends.kubernetes.backend import KubernetesBackend

        return KubernetesBackend(choice)
    if choice.backend in (SSH, COMMAND):
        from rankwise.backends.remote.tracked import FOLDER, Tracked

        ledger = Tracked(store / FOLDER)
        if choice.backend == SSH:
            from rankwise.backends.ssh import open_ssh

            return open_ssh(choice, ledger)
        from rankwise.backends.cloud import open_provider

        return open_provider(choice, ledger, run)
    from rankwise.backends.batch.backend import BatchBackend

    return BatchBackend(choice, environment=os.environ, secrets=secrets)


def _local(choices: Mapping[str, ComputeConfig]) -> Backend:
    from rankwise.backends.local import LocalBackend

    found = machine()
    told = [
        UNLIMITED if choice.oversubscribe else choice.capacity(found) for choice in choices.values()
    ]
    capacity = Resources(
        cores=max((one.cores for one in told), default=0),
        memory=max((one.memory for one in told), default=0),
        gpus=max((one.gpus for one in told), default=0),
    )
    return LocalBackend(capacity, gpus=visible_gpus())
