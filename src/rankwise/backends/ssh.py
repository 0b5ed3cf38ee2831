"""Hosts that we may log in to, by ssh."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from rankwise.backends.base import UNLIMITED, BackendFacts, Updates, largest
from rankwise.backends.remote.backend import RemoteBackend, fits
from rankwise.backends.remote.connection import LineAway, Machine, Said, exchange
from rankwise.backends.remote.host import Board, Host, Ways
from rankwise.backends.remote.tracked import Tracked
from rankwise.documents.site_models import ComputeConfig
from rankwise.errors import ComputeFailure, RankwiseError
from rankwise.plan import Resources, Task, claim_of, shortfall

CONNECT_SECONDS = 15
# What is kept open between two calls ends by itself after a client that was killed.
_PERSIST_SECONDS = 30
_AWAY_CODE = 255
# ssh puts 17 characters behind the name of a socket, and has room for 107.
_LONGEST_SOCKET = 90
# A blank or a % in the name of a socket means something to ssh.
_PLAIN_PATH = re.compile(r"[\w./-]+", re.ASCII)
_WORDS_OF_REFUSAL = (
    "Host key verification failed",
    "REMOTE HOST IDENTIFICATION HAS CHANGED",
    "Permission denied (",
    "Could not resolve hostname",
    "Too many authentication failures",
    "Bad configuration option",
    "command-line line 0:",
)
_OPTIONS = (
    "BatchMode=yes",
    "ControlMaster=auto",
    f"ControlPersist={_PERSIST_SECONDS}",
    f"ConnectTimeout={CONNECT_SECONDS}",
    "ServerAliveInterval=5",
    "ServerAliveCountMax=3",
    "ClearAllForwardings=yes",
    "LogLevel=ERROR",
)


class SshLine:
    """One host; all calls go through one connection."""

    def __init__(self, host: str, *, options: Sequence[str] = (), config: str = "") -> None:
        self.name = host
        own = ["-F", config] if config else []
        settings = [word for one in _OPTIONS for word in ("-o", one)]
        self._socket = _socket_for([host, *own, *options])
        self._words = [
            *("ssh", *own, *options, *settings, "-o", f"ControlPath={self._socket}", "-T"),
            *("-e", "none", "--", host),
        ]

    def call(
        self,
        command: str,
        *,
        data: bytes = b"",
        body: IO[bytes] | None = None,
        seconds: float = 60.0,
        into: IO[bytes] | None = None,
    ) -> Said:
        """Run a line there."""
        said = exchange([*self._words, command], data=data, body=body, seconds=seconds, into=into)
        if said is None:
            raise LineAway(f"{self.name} gave no answer in {seconds:g} s")
        if said.exit_code == _AWAY_CODE or said.exit_code < 0:
            raise self._failure(said.errors)
        return said

    def _failure(self, said: str) -> ComputeFailure:
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        last = lines[-1] if lines else "the line was cut"
        if not any(words in said for words in _WORDS_OF_REFUSAL):
            return LineAway(f"{self.name} cannot be reached: {last}")
        text = f"{self.name}: ssh says: {last}"
        if "REMOTE HOST IDENTIFICATION HAS CHANGED" in said:
            return ComputeFailure(
                f"{text}; its key is not the one in known_hosts: find out why first"
            )
        if "Host key verification failed" in said:
            return ComputeFailure(
                f"{text}; its key is not known here. Type  {self.by_hand()}  once, compare what it "
                f"shows with the host's own, and say yes"
            )
        if "Permission denied" in said:
            return ComputeFailure(
                f"{text}; it must let you in without a question. Try  {self.by_hand()} : if that "
                f"asks for a password, add your key there (ssh-copy-id) or to the agent (ssh-add)"
            )
        return ComputeFailure(
            f"{text}; `hosts` and `options` of its table are given to ssh as they are"
        )

    def by_hand(self) -> str:
        """Return the command by which a person would look whether it works."""
        own = self._words[1 : self._words.index("-o")]
        return " ".join(["ssh", *own, self.name, "true"])

    def is_there(self) -> None:
        """Leave it to a call: a host that does not answer may come back."""

    def close(self) -> None:
        """End the connection as soon as nobody uses it."""
        if self._socket.exists():
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                words = [*self._words[:-3], "-O", "stop", "--", self.name]
                subprocess.run(
                    words,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    timeout=CONNECT_SECONDS,
                    check=False,
                    start_new_session=True,
                )


def _socket_for(words: Sequence[str]) -> Path:
    """Name the place of a connection: short, since there is no room for long ones, and our own."""
    name = hashlib.sha256("\0".join(words).encode()).hexdigest()[:20]
    places = (tempfile.gettempdir(), os.environ.get("XDG_RUNTIME_DIR", ""), "/tmp")
    sockets = [Path(place, f"rankwise-ssh-{os.getuid()}", name) for place in places if place]
    socket = next((one for one in sockets if _is_fit_for_ssh(one)), sockets[-1])
    folder = socket.parent
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    if not is_ours or status.st_mode & 0o077:
        raise ComputeFailure(
            f"{folder} is not yours alone; remove it, or set TMPDIR to a folder of your own"
        )
    return socket


def _is_fit_for_ssh(socket: Path) -> bool:
    text = str(socket)
    has_room = len(text) <= _LONGEST_SOCKET and socket.parent.parent.is_dir()
    return has_room and _PLAIN_PATH.fullmatch(text) is not None


_REACH_SECONDS = 2.0 * CONNECT_SECONDS
_CLOSE_SECONDS = 10.0
_AGAIN_SECONDS = 1.0


@dataclass(slots=True)
class _Host:
    machine: Machine
    keeper: Host
    has: Resources | None = None
    """None: it has not said yet."""
    used: Resources = Resources()

    @property
    def free(self) -> Resources:
        return (self.has or UNLIMITED) - self.used


class SshFleet:
    """Hosts that are there anyway; nothing is made and nothing is given back."""

    def __init__(self, choice: ComputeConfig, board: Board, ledger: Tracked) -> None:
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
        return _Host(machine, Host(name, lambda: machine, self._board, self._ways))

    def machine_of(self, keeper: Host) -> Machine:
        return self._hosts[keeper.name].machine

    def facts(self) -> BackendFacts:
        """Return what hosts have; all are asked at once, the first time."""
        self._ask()
        told = [host.has for host in self._hosts.values() if host.has is not None]
        if not told:
            capacity = self._choice.capacity(UNLIMITED)
            return BackendFacts(capacity=capacity, room=UNLIMITED, makes_runtimes=True)
        room = UNLIMITED if self._choice.oversubscribe else sum(told[1:], told[0])
        return BackendFacts(capacity=largest(told), room=room, makes_runtimes=True)

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
            host.has = UNLIMITED
        else:
            host.has = self._choice.capacity(found.resources)

    def pick(self, task: Task) -> tuple[Host, Resources] | None:
        """Return the host with most free cores, of those that have enough of everything."""
        self._ask()
        usable = [host for host in self._hosts.values() if not host.keeper.failure]
        if not usable:
            reasons = (host.keeper.failure for host in self._hosts.values())
            raise ComputeFailure("; ".join(dict.fromkeys(reasons)))
        claims = [(host, claim_of(task, host.has or UNLIMITED)) for host in usable]
        able = [(host, claim) for host, claim in claims if fits(claim, host.has or UNLIMITED)]
        if not able:
            host, claim = claims[0]
            raise ComputeFailure(
                shortfall(claim, host.has or UNLIMITED) or "no host has all that it needs"
            )
        free = [(host, claim) for host, claim in able if fits(claim, host.free)]
        if not free:
            return None
        host, claim = max(free, key=lambda one: one[0].free.cores)
        host.used += claim
        return host.keeper, claim

    def recover(self, machine: str, claim: Resources) -> Host:
        """Return the host of that name, also if the site file has it no longer."""
        if machine not in self._hosts:
            self._hosts[machine] = self._host(machine)
        host = self._hosts[machine]
        # Another client has reached it: that it does not answer now is no reason to give it up.
        host.keeper.failure = ""
        host.used += claim
        return host.keeper

    def note_over(self, keeper: Host, claim: Resources) -> None:
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


def machine_at(choice: ComputeConfig, host: str) -> Machine:
    """Return a host as the site file says that it is reached."""
    ssh = choice.ssh
    line = SshLine(host, options=ssh.options, config=ssh.config)
    return Machine(line, folder=ssh.folder, python=ssh.python, init=ssh.init)


def open_ssh(choice: ComputeConfig, updates: Updates, ledger: Tracked) -> RemoteBackend:
    """Make hosts ready to be a compute; none is asked yet."""
    return RemoteBackend(choice.name, updates, lambda board: SshFleet(choice, board, ledger))
