"""Processes that become ranks: copies of one that has loaded what they need.

A server waits behind a door, a socket file. A launcher that mpiexec has started comes and hands
over its environment and descriptors; the server makes a copy of itself, and the copy goes on as
that rank. The server is the parent of its ranks: it knows how each of them ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import hmac
import os
import selectors
import signal
import socket
import struct
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from rankwise.testing.crew.witness import Key, Witness
from rankwise.testing.wire import Channel, Header, WireError

SECRET_VARIABLE = "RANKWISE_SECRET"
MEMORY_VARIABLE = "RANKWISE_MEMORY"

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_MOST_DESCRIPTORS = 8
_HANDOVER_SECONDS = 5.0
# mpiexec ends its launchers when one rank has aborted; that rank is on its way out by itself then.
_LEAVING_SECONDS = 0.5
# How often a witness looks.
_LOOK_SECONDS = 0.1
_CREDENTIALS = struct.Struct("3i")


@dataclass(slots=True, kw_only=True)
class Errand:
    """What a launcher handed over: the place in a world that a copy is to take."""

    world: int
    rank: int
    environment: Mapping[bytes, bytes]
    descriptors: list[int]
    line: socket.socket = field(repr=False)
    cores: Collection[int] | None = None
    """Those that the launcher was bound to; None: not known."""

    @property
    def memory(self) -> int:
        """How many bytes its job step may use for this rank; 0: not known."""
        return int(self.environment.get(MEMORY_VARIABLE.encode(), b"0"))

    def take_place(self, usual: Mapping[bytes, bytes]) -> None:
        """Make this process the one that mpiexec takes it for.

        Of the environment only what mpiexec has changed in the `usual` one is taken over: what
        the user's modules have put there stays.
        """
        for number, target in zip(self.descriptors, (0, 1, 2), strict=False):
            os.dup2(number, target)
            os.close(number)
        for name, value in self.environment.items():
            if usual.get(name) != value and name != SECRET_VARIABLE.encode():
                os.environb[name] = value
        if len(self.descriptors) > 3:
            os.environ["PMI_FD"] = str(self.descriptors[3])
        if self.cores:
            # A batch system may not let this process use them all.
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, self.cores)


@dataclass(slots=True, kw_only=True, eq=False)
class _Ward:
    """A rank that is a copy of this process, or that a launcher has started."""

    errand: Errand
    pid: int
    is_copy: bool
    watch: int = -1
    condemned: float | None = None
    """When to kill it, if it has not ended by then."""
    killed: bool = False
    why: str = ""
    """Why it was killed, for the report of its test; empty: for no reason of its own."""

    @property
    def line(self) -> socket.socket:
        return self.errand.line

    @property
    def key(self) -> Key:
        return self.errand.world, self.errand.rank


class ForkServer:
    """Makes ranks for as long as the line to the controller is there."""

    def __init__(self, line: Channel, secret: str) -> None:
        self._line = line
        self._secret = secret
        self._selector = selectors.DefaultSelector()
        self._wards: set[_Ward] = set()
        self._doors: dict[socket.socket, Sequence[str]] = {}
        self._errand: Errand | None = None
        self._forked = False
        self._last_look = 0.0
        self.witness: Witness | None = None
        """Who tells the controller about ranks, on a machine that is not the controller's."""
        self._selector.register(line, selectors.EVENT_READ, self._take_orders)

    def open_door(self, door: socket.socket, command: Sequence[str] = ()) -> None:
        """Receive launchers there; with a command, that is what they are to start."""
        if door not in self._doors:
            self._doors[door] = command
            self._selector.register(door, selectors.EVENT_READ, lambda: self._receive(door))

    def serve(self) -> Errand | None:
        """Do as the controller says. Comes back in copies only, with what they are for."""
        while True:
            for key, _ in self._selector.select(self._patience()):
                handler: Callable[[], None] = key.data
                handler()
                if self._forked:
                    return self._errand
            self._execute_condemned()
            self._look()

    # Orders

    def _take_orders(self) -> None:
        try:
            for header, _ in self._line.receive_all():
                self.obey(header)
                if self._forked:
                    return
        except WireError:
            self.end()

    def obey(self, header: Header) -> None:
        """Follow an order."""
        match header["kind"]:
            case "kill":
                for ward in self._wards:
                    if ward.errand.world == header["world"]:
                        self._kill(ward)
            case "signal":
                for ward in self._wards:
                    if (ward.errand.world, ward.errand.rank) == (header["world"], header["rank"]):
                        with contextlib.suppress(OSError):
                            os.kill(ward.pid, header["signal"])
            case "watch":
                self._watch_output(header)
            case "stacks":
                self._tell_stacks(header)
            case "end":
                self.end()

    def end(self) -> NoReturn:
        """End with all that was started here."""
        for ward in self._wards:
            self._kill(ward)
        os._exit(0)

    def _tell(self, header: Header) -> None:
        try:
            self._line.send(header)
        except WireError:
            self.end()

    # What is said about ranks, if the controller cannot see them

    def _watch_output(self, header: Header) -> None:
        key = header["world"], header["rank"]
        for ward in self._wards:
            if ward.key == key and self.witness is not None:
                self.witness.watch(key, header["pid"], header["outputs"])
                self._tell({"kind": "watched", "world": key[0], "rank": key[1]})

    def _tell_stacks(self, header: Header) -> None:
        assert self.witness is not None, "the controller asks only those who have one"
        pids = {
            ward.key: ward.pid
            for ward in self._wards
            if ward.errand.world == header["world"] and ward.errand.rank in header["ranks"]
        }
        said = self.witness.stacks(pids)
        self._tell({"kind": "stacks", "question": header["question"], **said})

    def _look(self) -> None:
        now = time.monotonic()
        if self.witness is None or now - self._last_look < _LOOK_SECONDS:
            return
        self._last_look = now
        if news := self.witness.look([ward.key for ward in self._wards]):
            self._tell({"kind": "moments", "moments": news})
        self._end_greedy()

    def _end_greedy(self) -> None:
        """End ranks whose job step has used up its memory: to Slurm, copies are not part of it."""
        steps: dict[int, list[_Ward]] = {}
        for ward in self._wards:
            if ward.is_copy and not ward.why:
                steps.setdefault(ward.errand.world, []).append(ward)
        for wards in steps.values():
            allowed = sum(ward.errand.memory for ward in wards)
            used = {ward.pid: memory_of(ward.pid) for ward in wards} if allowed else {}
            if sum(used.values()) > allowed:
                greediest = max(wards, key=lambda ward: used[ward.pid])
                greediest.why = (
                    "was killed: its job step is out of memory "
                    f"({sum(used.values()) >> 20} MB used, {allowed >> 20} MB allowed)"
                )
                kill_group(greediest.pid)

    # Ranks

    def _receive(self, door: socket.socket) -> None:
        line, _ = door.accept()
        try:
            errand = self._read_errand(line)
        except (OSError, ValueError) as error:
            line.close()
            self._tell({"kind": "stranger", "reason": str(error)})
            return
        command = self._doors[door]
        if command:
            self._delegate(errand, command)
        else:
            self._copy(errand)

    def _read_errand(self, line: socket.socket) -> Errand:
        line.settimeout(_HANDOVER_SECONDS)
        head, descriptors, _, _ = socket.recv_fds(line, 4, _MOST_DESCRIPTORS)
        try:
            return self._parse_errand(line, int.from_bytes(head, "big"), descriptors)
        except (OSError, ValueError):
            for number in descriptors:
                os.close(number)
            raise

    def _parse_errand(self, line: socket.socket, size: int, descriptors: list[int]) -> Errand:
        body = bytearray()
        while len(body) < size:
            piece = line.recv(size - len(body))
            if not piece:
                raise ValueError("it closed too early")
            body += piece
        world, *entries = bytes(body).split(b"\0")
        environment = dict(entry.split(b"=", 1) for entry in entries)
        shown = environment.get(SECRET_VARIABLE.encode(), b"")
        if len(descriptors) < 3 or not hmac.compare_digest(shown, self._secret.encode()):
            raise ValueError("it does not know the secret of this run")
        return Errand(
            world=int(world),
            rank=rank_in(environment),
            environment=environment,
            descriptors=descriptors,
            line=line,
            cores=_cores_of_peer(line),
        )

    def _copy(self, errand: Errand) -> None:
        pid = fork_with_parent()
        if not pid:
            self._become(errand)
            return
        for number in errand.descriptors:
            os.close(number)
        # If the launcher is gone, its line says so at once, and the copy is ended.
        with contextlib.suppress(OSError):
            errand.line.sendall((0).to_bytes(4, "big"))
        self._watch(_Ward(errand=errand, pid=pid, is_copy=True))

    def _become(self, errand: Errand | None) -> None:
        """Be a copy: nothing of the server's is this process's business."""
        self._forked = True
        self._errand = errand
        self._selector.close()
        self._line.drop()
        for ward in self._wards:
            ward.line.close()
            if ward.watch >= 0:
                os.close(ward.watch)
        for door in self._doors:
            door.close()
        self._wards.clear()
        if errand is not None:
            errand.line.close()
            os.setpgid(0, 0)

    def _delegate(self, errand: Errand, command: Sequence[str]) -> None:
        """Let the launcher start the rank itself."""
        for number in errand.descriptors:
            os.close(number)
        body = "\0".join(command).encode()
        try:
            errand.line.sendall(len(body).to_bytes(4, "big") + body)
            answer = errand.line.recv(4)
        except OSError:
            answer = b""
        if len(answer) < 4:
            # Gone before it had started anything.
            errand.line.close()
            return
        pid = int.from_bytes(answer, "big")
        self._watch(_Ward(errand=errand, pid=pid, is_copy=False))

    def _watch(self, ward: _Ward) -> None:
        self._wards.add(ward)
        self._selector.register(ward.line, selectors.EVENT_READ, lambda: self._heard(ward))
        if ward.is_copy:
            ward.watch = os.pidfd_open(ward.pid)
            self._selector.register(ward.watch, selectors.EVENT_READ, lambda: self._ended(ward))

    def _heard(self, ward: _Ward) -> None:
        """The launcher is gone, or says how the rank that it has started ended."""
        if ward not in self._wards:
            return  # both have ended at the same moment
        data = b""
        with contextlib.suppress(OSError):
            data = ward.line.recv(4)
        if len(data) == 4:
            self._bury(ward, int.from_bytes(data, "big", signed=True))
            return
        self._selector.unregister(ward.line)
        if ward.is_copy:
            ward.condemned = time.monotonic() + _LEAVING_SECONDS
        else:
            self._kill(ward)
            self._bury(ward, None)

    def _ended(self, ward: _Ward) -> None:
        if ward not in self._wards:
            return
        try:
            status = os.waitstatus_to_exitcode(os.waitpid(ward.pid, 0)[1])
        except ChildProcessError:  # a module of the user's lets nobody wait for children
            status = 0
        with contextlib.suppress(OSError):
            ward.line.sendall(status.to_bytes(4, "big", signed=True))
        self._bury(ward, status)

    def _bury(self, ward: _Ward, status: int | None) -> None:
        self._wards.discard(ward)
        for watched in (ward.line, ward.watch):
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(watched)
        ward.line.close()
        if ward.watch >= 0:
            os.close(ward.watch)
        said = self.witness.testify(ward.key) if self.witness is not None else {}
        if ward.why:
            said["why"] = ward.why
        self._tell(
            {
                "kind": "ended",
                "world": ward.errand.world,
                "rank": ward.errand.rank,
                "status": status,
                "by_us": ward.killed,
                **said,
            }
        )

    def _patience(self) -> float | None:
        times = [ward.condemned for ward in self._wards if ward.condemned is not None]
        if self.witness is not None and self._wards:
            times.append(self._last_look + _LOOK_SECONDS)
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _execute_condemned(self) -> None:
        now = time.monotonic()
        for ward in self._wards:
            if ward.condemned is not None and ward.condemned <= now:
                ward.condemned = None
                self._kill(ward)

    def _kill(self, ward: _Ward) -> None:
        ward.killed = True
        # With everything that the test has started and not ended.
        kill_group(ward.pid)


def rank_in(environment: Mapping[bytes, bytes]) -> int:
    """Read a rank's number from what mpiexec has put into its environment."""
    for name in (b"OMPI_COMM_WORLD_RANK", b"PMIX_RANK", b"PMI_RANK", b"SLURM_PROCID"):
        if name in environment:
            return int(environment[name])
    raise ValueError("no mpiexec has started it")


def memory_of(pid: int) -> int:
    """Give how many bytes a process uses that are not shared with the one it is a copy of."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
    except OSError:
        pass
    return 0


def _cores_of_peer(line: socket.socket) -> Collection[int] | None:
    """Give the cores that the process at the other end may use, if they are not all of ours."""
    try:
        size = _CREDENTIALS.size
        said = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        cores = os.sched_getaffinity(_CREDENTIALS.unpack(said)[0])
    except OSError:
        return None
    return None if cores == os.sched_getaffinity(0) else cores


def fork_with_parent() -> int:
    """Make a copy of this process that does not outlive it."""
    parent = os.getpid()
    pid = os.fork()
    if not pid:
        _libc().prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)
    return pid


def adopt_orphans() -> None:
    """Become the parent of whatever the processes below this one leave behind."""
    _libc().prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def exit_as_c_does(code: int) -> NoReturn:
    """End without taking the interpreter down, which nobody would see.

    MPICH tells mpiexec in an exit handler of C's that a rank is done: `os._exit` has none.
    """
    _libc().exit(code)
    raise AssertionError("exit came back")


_LIBC: list[ctypes.CDLL] = []


def _libc() -> ctypes.CDLL:
    if not _LIBC:
        _LIBC.append(ctypes.CDLL(None))
    return _LIBC[0]


def kill_group(pid: int) -> None:
    """Kill a process and those of its group."""
    if pid <= 1:
        return  # not one process, but many
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(OSError):
            kill(pid, signal.SIGKILL)


def descendants(root: int) -> list[int]:
    """Find all processes below one."""
    children: dict[int, list[int]] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                with Path(f"/proc/{entry.name}/stat").open("rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
                if fields[0] != b"Z":
                    children.setdefault(int(fields[1]), []).append(int(entry.name))
    found: list[int] = []
    waiting = [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found
