"""Hosts with a login as a fleet: those that the site file names, for as long as they answer."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from rankwise.compute.capacity import shortfall
from rankwise.compute.remote.board import Board
from rankwise.compute.remote.compute import RemoteCompute
from rankwise.compute.remote.fleet import claim_of, fits
from rankwise.compute.remote.keeper import Keeper, Ways
from rankwise.compute.remote.ledger import Ledger
from rankwise.compute.remote.line import LineAway
from rankwise.compute.remote.machine import Machine
from rankwise.compute.ssh.line import CONNECT_SECONDS, SshLine
from rankwise.errors import ComputeFailure, RankwiseError
from rankwise.plan import Resources, Task
from rankwise.site import ComputeChoice

_UNLIMITED = Resources(cores=math.inf, memory=sys.maxsize, gpus=sys.maxsize)
_REACH_SECONDS = 2.0 * CONNECT_SECONDS
_CLOSE_SECONDS = 10.0
_AGAIN_SECONDS = 1.0


@dataclass(slots=True)
class _Host:
    machine: Machine
    keeper: Keeper
    has: Resources | None = None
    """None: it has not said yet."""
    used: Resources = Resources()

    @property
    def free(self) -> Resources:
        return (self.has or _UNLIMITED) - self.used


class SshFleet:
    """Hosts that are there anyway; nothing is made and nothing is given back."""

    def __init__(self, choice: ComputeChoice, board: Board, ledger: Ledger) -> None:
        self._choice = choice
        self._board = board
        self._ways = Ways(
            compute=choice.name,
            ledger=ledger,
            python=choice.ssh.python,
            is_shared=choice.ssh.shared,
            patience=choice.ssh.patience,
        )
        self._hosts = {name: self._host(name) for name in choice.ssh.hosts}
        self._is_asked = False

    def _host(self, name: str) -> _Host:
        machine = machine_at(self._choice, name)
        return _Host(machine, Keeper(name, lambda: machine, self._board, self._ways))

    def machine_of(self, keeper: Keeper) -> Machine:
        return self._hosts[keeper.name].machine

    def capacity(self) -> Resources:
        """Tell the most that one host has; all are asked at once, the first time."""
        self._ask()
        told = [host.has for host in self._hosts.values() if host.has is not None]
        if not told:
            return self._choice.capacity(_UNLIMITED)
        return Resources(
            cores=max(one.cores for one in told),
            memory=max(one.memory for one in told),
            gpus=max(one.gpus for one in told),
        )

    def room(self) -> Resources:
        """Tell what all hosts have together."""
        self._ask()
        told = [host.has for host in self._hosts.values() if host.has is not None]
        if not told or self._choice.oversubscribe:
            return _UNLIMITED
        return sum(told[1:], told[0])

    def _ask(self) -> None:
        """Have all hosts say what they have; those that do not answer are left out."""
        if self._is_asked:
            return
        self._is_asked = True
        asking = [
            threading.Thread(target=self._reach, args=(host,), daemon=True)
            for host in self._hosts.values()
        ]
        for one in asking:
            one.start()
        for one in asking:
            one.join(_REACH_SECONDS)

    def _reach(self, host: _Host) -> None:
        try:
            try:
                found = host.machine.reach()
            except LineAway:  # Once is nothing.
                time.sleep(_AGAIN_SECONDS)
                found = host.machine.reach()
        except RankwiseError as failure:
            host.keeper.failure = str(failure)
            return
        if self._choice.oversubscribe:
            host.has = _UNLIMITED
        else:
            host.has = self._choice.capacity(found.resources)

    def pick(self, task: Task) -> tuple[Keeper, Resources] | None:
        """Give the host with most free cores, of those that have enough of everything."""
        self._ask()
        usable = [host for host in self._hosts.values() if not host.keeper.failure]
        if not usable:
            reasons = (host.keeper.failure for host in self._hosts.values())
            raise ComputeFailure("; ".join(dict.fromkeys(reasons)))
        claims = [(host, claim_of(task, host.has or _UNLIMITED)) for host in usable]
        able = [(host, claim) for host, claim in claims if fits(claim, host.has or _UNLIMITED)]
        if not able:
            host, claim = claims[0]
            raise ComputeFailure(
                shortfall(claim, host.has or _UNLIMITED) or "no host has all that it needs"
            )
        free = [(host, claim) for host, claim in able if fits(claim, host.free)]
        if not free:
            return None
        host, claim = max(free, key=lambda one: one[0].free.cores)
        host.used += claim
        return host.keeper, claim

    def recover(self, machine: str, claim: Resources) -> Keeper:
        """Give the host of that name, also if the site file has it no longer."""
        if machine not in self._hosts:
            self._hosts[machine] = self._host(machine)
        host = self._hosts[machine]
        # Another client has reached it: that it does not answer now is no reason to give it up.
        host.keeper.failure = ""
        host.used += claim
        return host.keeper

    def note_over(self, keeper: Keeper, claim: Resources) -> None:
        """Count something no longer that is over."""
        self._hosts[keeper.name].used -= claim

    def close(self) -> Sequence[str]:
        """Remove what is over on the hosts, and end the connections."""
        left = [
            one.keeper.name for one in self._hosts.values() if not one.keeper.close(_CLOSE_SECONDS)
        ]
        return [
            f"{name} does not answer: what is over has left a folder there, which `rankwise clean` "
            f"removes once it does"
            for name in left
        ]


def machine_at(choice: ComputeChoice, host: str) -> Machine:
    """Give a host as the site file says that it is reached."""
    ssh = choice.ssh
    line = SshLine(host, options=ssh.options, config=ssh.config)
    return Machine(line, folder=ssh.folder, python=ssh.python, init=ssh.init)


def open_ssh(choice: ComputeChoice, ledger: Ledger) -> RemoteCompute:
    """Make hosts ready to be a compute; none is asked yet."""
    board = Board()
    fleet = SshFleet(choice, board, ledger)
    return RemoteCompute(fleet, board, fleet.machine_of)
