"""Instances as a fleet: made when a task needs one, and given back when none does."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from threading import Event

from rankwise.compute.contract import News
from rankwise.compute.provider.instances import Instances, give_all_back, new_name
from rankwise.compute.provider.line import ProviderLine
from rankwise.compute.remote.board import Board
from rankwise.compute.remote.compute import RemoteCompute
from rankwise.compute.remote.fleet import claim_of, fits
from rankwise.compute.remote.keeper import Keeper, Ways
from rankwise.compute.remote.ledger import Entry, Ledger
from rankwise.compute.remote.machine import Machine
from rankwise.errors import ComputeFailure
from rankwise.plan import Resources, Task
from rankwise.site import ComputeChoice

_UNLIMITED = Resources(cores=math.inf, memory=sys.maxsize, gpus=sys.maxsize)


@dataclass(slots=True, kw_only=True)
class _Instance:
    keeper: Keeper
    used: Resources = Resources()
    tasks: int = 0
    """How many it has now."""
    is_spent: bool = False
    """Whether it takes no more."""
    unwanted: Event = field(default_factory=Event)
    machine: Machine | None = None
    """None: it is being made."""


class ProviderFleet:
    """Instances of one run: those of an earlier client of the same run are its own."""

    def __init__(self, choice: ComputeChoice, board: Board, ledger: Ledger, run: str) -> None:
        self._choice, self._board, self._ledger, self._run = choice, board, ledger, run
        self._making = Instances(choice, ledger, run)
        self._ways = Ways(
            compute=choice.name,
            ledger=ledger,
            python=choice.command.python,
            patience=choice.command.patience,
            look_seconds=choice.command.look_seconds,
            is_noted=False,
        )
        self._instances: dict[str, _Instance] = {}

    def capacity(self) -> Resources:
        """Tell what an instance is said to have."""
        return self._choice.capacity(_UNLIMITED)

    def room(self) -> Resources:
        """Tell that whatever comes is taken: it waits here."""
        return _UNLIMITED

    def pick(self, task: Task) -> tuple[Keeper, Resources] | None:
        """Give an instance that has room, or have one made."""
        most = self.capacity()
        claim = claim_of(task, Resources(cores=1e9) if math.isinf(most.cores) else most)
        if not fits(claim, most):
            raise ComputeFailure("needs more than an instance is said to have")
        usable = [one for one in self._instances.values() if not one.keeper.failure]
        free = [one for one in usable if self._has_room(one, claim, most)]
        if not free:
            if len(usable) >= self._choice.command.instances:
                return None
            failed = [one.keeper.failure for one in self._instances.values() if one.machine is None]
            if any(failed):
                # What could not be made will not be made by asking again.
                raise ComputeFailure(next(filter(None, failed)))
            free = [self._new()]
        one = max(free, key=lambda one: one.tasks)
        one.used += claim
        one.tasks += 1
        one.is_spent = not self._choice.command.reuse
        return one.keeper, claim

    def _has_room(self, one: _Instance, claim: Resources, most: Resources) -> bool:
        if one.is_spent:
            return False
        # Of which nothing is said, has one task at a time.
        is_told = self._choice.cores is not None
        return fits(claim, most - one.used) if is_told else one.tasks == 0

    def _new(self) -> _Instance:
        name = new_name()
        unwanted = Event()

        def make() -> Machine:
            self._board.tell(News(text=f"{self._choice.name}: making the instance {name}"))
            values = self._making.make(name, lambda: not unwanted.is_set())
            self._instances[name].machine = machine = self._machine(name, values)
            return machine

        keeper = Keeper(name, make, self._board, self._ways)
        self._instances[name] = _Instance(keeper=keeper, unwanted=unwanted)
        return self._instances[name]

    def _machine(self, name: str, values: Mapping[str, str]) -> Machine:
        command = self._choice.command
        line = ProviderLine(name, values, command, self._ledger)
        return Machine(line, folder=command.folder, python=command.python, init=command.init)

    def recover(self, machine: str, claim: Resources) -> Keeper | None:
        """Give an instance that an earlier client has made; None: it is gone."""
        if machine not in self._instances:
            entry = self._ledger.get(machine)
            if entry is None or entry.about["state"] != "made":
                return None
            there = self._machine(machine, {"name": machine, **entry.about["values"]})
            keeper = Keeper(machine, lambda: there, self._board, self._ways)
            self._instances[machine] = _Instance(keeper=keeper, machine=there)
        one = self._instances[machine]
        one.used += claim
        one.tasks += 1
        one.is_spent = not self._choice.command.reuse
        return one.keeper

    def machine_of(self, keeper: Keeper) -> Machine:
        machine = self._instances[keeper.name].machine
        assert machine is not None  # it is asked for what runs there already
        return machine

    def note_over(self, keeper: Keeper, claim: Resources) -> None:
        """Count something no longer; an instance that takes no more is given back at once."""
        one = self._instances[keeper.name]
        one.used -= claim
        one.tasks -= 1
        if one.tasks == 0 and (one.is_spent or keeper.failure) and one.machine is not None:
            keeper.close(0.0)
            entry = self._ledger.get(keeper.name)
            if entry is not None:
                self._tell_of(give_all_back([entry], self._ledger))
            if not keeper.failure:
                del self._instances[keeper.name]

    def close(self) -> Sequence[str]:
        """Delete every instance of this run, also those that an earlier client has left."""
        for one in self._instances.values():
            one.unwanted.set()
        for one in self._instances.values():
            # One that is just being made can be deleted once it is known what it is.
            one.keeper.close(self._choice.command.create_seconds)
        entries: list[Entry] = [
            entry
            for entry in self._ledger.entries(compute=self._choice.name, run=self._run)
            if entry.kind == "instance"
        ]
        self._tell_of(give_all_back(entries, self._ledger))
        return ()

    def _tell_of(self, troubles: dict[str, str]) -> None:
        for name, why in troubles.items():
            self._board.tell(
                News(
                    text=f"WARNING: the instance {name} of {self._choice.name} is still there, and "
                    f"may cost money: {why}. Type  rankwise clean  to try again"
                )
            )


def open_provider(choice: ComputeChoice, ledger: Ledger, run: str) -> RemoteCompute:
    """Make a provider ready to be a compute; nothing is made yet."""
    board = Board()
    fleet = ProviderFleet(choice, board, ledger, run)
    return RemoteCompute(fleet, board, fleet.machine_of)
