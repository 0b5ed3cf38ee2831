"""The machines of one compute: which there are, and which one a task gets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rankwise.compute.remote.keeper import Keeper
from rankwise.plan import Resources, Task


class Fleet(Protocol):
    """Machines, each with its keeper. All of it is called by one thread."""

    def capacity(self) -> Resources:
        """Tell the most that one machine has; asks them if need be, and never raises."""

    def room(self) -> Resources:
        """Tell how much tasks may claim on all of them together."""

    def pick(self, task: Task) -> tuple[Keeper, Resources] | None:
        """Give the machine that a task gets, and what it takes there; None: none is free yet.

        ComputeFailure: none ever will be.
        """

    def recover(self, machine: str, claim: Resources) -> Keeper | None:
        """Give the machine on which another client has started something; None: it is gone."""

    def note_over(self, keeper: Keeper, claim: Resources) -> None:
        """Count something no longer that is over."""

    def close(self) -> Sequence[str]:
        """Give everything back; tells what could not be."""


def claim_of(task: Task, most: Resources) -> Resources:
    """Say what a task takes of a machine; who claims no cores takes one for each process."""
    width = task.width or len(task.processes)
    own = task.resources
    cores = own.cores or min(float(width), most.cores)
    return Resources(cores=cores, memory=own.memory, gpus=own.gpus)


def fits(claim: Resources, free: Resources) -> bool:
    """Tell whether there is enough of everything."""
    return (
        claim.cores <= free.cores + 1e-9 and claim.memory <= free.memory and claim.gpus <= free.gpus
    )
