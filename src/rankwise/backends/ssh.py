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
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path

from rankwise.backends import base
from rankwise.backends.base import Unreachable, Updates
from rankwise.backends.remote.backend import RemoteBackend, fits
from rankwise.backends.remote.connection import CommandResult, Machine, Sink, exchange
from rankwise.backends.remote.host import Host
from rankwise.backends.remote.packing import HostPolicy
from rankwise.backends.remote.tracked import Tracked
from rankwise.documents.site_models import ComputeConfig
from rankwise.errors import ComputeFailure, RankwiseError
from rankwise.machine import shortfall
from rankwise.node.equipment import run
from rankwise.plan import Resources, Task, claim_of

CONNECT_SECONDS = 15
# The shared connection stays open between two calls, and ends by itself if the client was killed.
_PERSIST_SECONDS = 30
_AWAY_CODE = 255
# ssh puts 17 characters behind the name of a socket, and has room for 107.
_LONGEST_SOCKET = 90
# A blank or a % in the name of a socket means something to ssh.
_PLAIN_PATH = re.compile(r"[\w./-]+", re.ASCII)
_DATA = tomllib.loads(Path(__file__).with_name("ssh.toml").read_text(encoding="utf-8"))
_OPTIONS = [
    one.format(persist=_PERSIST_SECONDS, connect=CONNECT_SECONDS) for one in _DATA["options"]
]


class SshConnection:
    """One host; all calls go through one connection."""

    def __init__(self, host: str, *, options: Sequence[str] = (), config: str = "") -> None:
        self.name = host
        # The site file's options come before ours: ssh takes the first value of each.
        own = ["-F", config] if config else []
        settings = [word for one in _OPTIONS for word in ("-o", one)]
        # Other options may lead to another machine or user: they get a connection of their own.
        self._socket = _socket_for([host, *own, *options])
        self._words = [
            *("ssh", *own, *options, *settings, "-o", f"ControlPath={self._socket}", "-T"),
            # `-e none`: no byte that is sent means anything to ssh.
            *("-e", "none", "--", host),
        ]

    def call(
        self, command: str, *, given: Iterable[bytes] = (), seconds: float = 60.0, into: Sink = None
    ) -> CommandResult:
        """Run a line there."""
        # `-T` and BatchMode: no terminal and no question, whatever the user's configuration says.
        result = exchange([*self._words, command], given=given, seconds=seconds, into=into)
        if result.is_late:
            raise Unreachable(f"{self.name} gave {result.errors}")
        # 255 is ssh's own code; a program there that ends with it looks the same.
        if result.exit_code == _AWAY_CODE or result.exit_code < 0:
            raise self._failure(result.errors)
        return result

    def _failure(self, errors: str) -> ComputeFailure:
        lines = [line.strip() for line in errors.splitlines() if line.strip()]
        last = lines[-1] if lines else "the connection broke"
        if not any(words in errors for words in _DATA["refusals"]):
            return Unreachable(f"{self.name} cannot be reached: {last}")
        advice = next(text for words, text in _DATA["advice"].items() if words in errors)
        by_hand = self._command_by_hand()
        return ComputeFailure(f"{self.name}: ssh says: {last}; {advice.format(by_hand=by_hand)}")

    def _command_by_hand(self) -> str:
        """Return the command by which a person can try the connection."""
        own = self._words[1 : self._words.index("-o")]
        return " ".join(["ssh", *own, self.name, "true"])

    def is_there(self) -> None:
        """Return None: a host that does not answer may come back."""

    def close(self) -> None:
        """End the connection as soon as no process uses it."""
        if self._socket.exists():
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                # Not `exit`: what another client still does through this connection goes on.
                words = [*self._words[:-3], "-O", "stop", "--", self.name]
                run(words, CONNECT_SECONDS, start_new_session=True)


def _socket_for(words: Sequence[str]) -> Path:
    """Return the path of a connection's socket: short enough for ssh, in a folder of our own."""
    name = hashlib.sha256("\0".join(words).encode()).hexdigest()[:20]
    places = (tempfile.gettempdir(), os.environ.get("XDG_RUNTIME_DIR", ""), "/tmp")
    sockets = [Path(place, f"rankwise-ssh-{os.getuid()}", name) for place in places if place]
    socket = next((one for one in sockets if _is_fit_for_ssh(one)), sockets[-1])
    folder = socket.parent
    # Another user could have made this folder first, to answer in a host's place.
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    if not is_ours or status.st_mode & 0o077:
        raise ComputeFailure(f"{folder} is not yours alone; remove it, or set another TMPDIR")
    return socket


def _is_fit_for_ssh(socket: Path) -> bool:
    text = str(socket)
    has_room = len(text) <= _LONGEST_SOCKET and socket.parent.parent.is_dir()
    return has_room and _PLAIN_PATH.fullmatch(text) is not None


# Room for two tries, each with the limit that ssh has.
_REACH_SECONDS = 2.0 * CONNECT_SECONDS
_CLOSE_SECONDS, _AGAIN_SECONDS = 10.0, 1.0


class SshBackend(RemoteBackend):
    """Hosts that exist anyway: nothing is made and nothing is given back."""

    def __init__(self, choice: ComputeConfig, updates: Updates, tracked: Tracked) -> None:
        policy = HostPolicy(
            backend=choice.name,
            tracked=tracked,
            python=choice.ssh.python,
            is_shared=choice.ssh.shared,
            patience=choice.ssh.patience,
        )
        super().__init__(updates, policy)
        self._choice = choice
        for name in choice.ssh.hosts:
            self._reopen(name)
        self._is_asked = False

    def open_machine(self, name: str) -> Machine:
        return machine_at(self._choice, name)

    def facts(self) -> base.BackendFacts:
        """Return what hosts have; all are asked at once, the first time."""
        self._ask()
        found = [host.has for host in self._hosts.values() if host.has is not None]
        # Of silent hosts nothing is known: their tasks wait here.
        capacity = base.largest(found) if found else self._choice.capacity(base.UNLIMITED)
        is_limited = found and not self._choice.oversubscribe
        room = sum(found[1:], found[0]) if is_limited else base.UNLIMITED
        return base.BackendFacts(capacity=capacity, room=room, makes_runtimes=True)

    def _ask(self) -> None:
        """Ask all hosts what they have; those that do not answer are left out."""
        if self._is_asked:
            return
        self._is_asked = True
        threads = [
            threading.Thread(target=self._reach, args=(host,), daemon=True)
            for host in self._hosts.values()
        ]
        for one in threads:
            one.start()
        for one in threads:
            one.join(_REACH_SECONDS)

    def _reach(self, host: Host) -> None:
        assert host.machine is not None  # all hosts are made with it
        try:
            try:
                found = host.machine.reach()
            except Unreachable:  # One lost packet must not leave a host out for the whole run.
                time.sleep(_AGAIN_SECONDS)
                found = host.machine.reach()
        except RankwiseError as failure:
            host.failure = str(failure)
            return
        # Then tasks may claim more than there is: they share what they find.
        unlimited = self._choice.oversubscribe
        host.has = base.UNLIMITED if unlimited else self._choice.capacity(found.resources)

    def _pick(self, task: Task) -> tuple[Host, Resources] | None:
        """Return the host with most free cores, of those that have enough of everything."""
        self._ask()
        usable = [host for host in self._hosts.values() if not host.failure]
        if not usable:
            reasons = (host.failure for host in self._hosts.values())
            raise ComputeFailure("; ".join(dict.fromkeys(reasons)))
        # What a silent host has is not known: it is tried.
        amounts = [(host, host.has or base.UNLIMITED) for host in usable]
        claims = [(host, has, claim_of(task, has)) for host, has in amounts]
        able = [(host, has, claim) for host, has, claim in claims if fits(claim, has)]
        if not able:
            _, has, claim = claims[0]
            raise ComputeFailure(shortfall(claim, has) or "no host has all that it needs")
        free = [(has - host.used, host, claim) for host, has, claim in able]
        free = [(room, host, claim) for room, host, claim in free if fits(claim, room)]
        # The emptiest host: its tasks share memory bandwidth and disks with the fewest others.
        return max(free, key=lambda one: one[0].cores)[1:] if free else None

    def _reopen(self, name: str) -> Host:
        """Return the host of that name, also if the site file has it no longer."""
        if name not in self._hosts:
            self._hosts[name] = Host(name, self, self.open_machine(name))
        host = self._hosts[name]
        # It was reached once: that it does not answer now is no reason to do without it.
        host.failure = ""
        return host

    def _close_hosts(self) -> Sequence[str]:
        """Remove what is over on the hosts, and end the connections."""
        left = [host.name for host in self._hosts.values() if not host.close(_CLOSE_SECONDS)]
        return [
            f"{name} does not answer: what is over has left a folder there, which `rankwise clean` "
            f"removes once it does"
            for name in left
        ]


def machine_at(choice: ComputeConfig, host: str) -> Machine:
    """Return a host as the site file says that it is reached."""
    ssh = choice.ssh
    line = SshConnection(host, options=ssh.options, config=ssh.config)
    return Machine(line, folder=ssh.folder, python=ssh.python, init=ssh.init)
