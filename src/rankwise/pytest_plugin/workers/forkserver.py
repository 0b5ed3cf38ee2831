"""Processes that become ranks: copies of one that has loaded what they need.

A server listens on a socket file, its fork socket. The rank proxy that mpiexec has started hands
over its environment and descriptors; the server makes a copy of itself, and the copy goes on as
that rank. The server is the parent of its ranks: it knows how each of them ended.
"""

from __future__ import annotations

import contextlib
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

from rankwise.node.processes import LIBC, PR_SET_PDEATHSIG, prctl
from rankwise.pytest_plugin.connections import Channel, Header, WireError
from rankwise.pytest_plugin.rank_status import Key, NodeStatus, read_counter

SECRET_VARIABLE = "RANKWISE_SECRET"
MEMORY_VARIABLE = "RANKWISE_MEMORY"

# Three streams and the line of PMI are sent; more would come from a stranger.
_MOST_DESCRIPTORS = 8
_HANDOVER_SECONDS = 5.0
# mpiexec ends its launchers when one rank has aborted; that rank is on its way out by itself then.
_LEAVING_SECONDS = 0.5
# How often the status of ranks is looked at.
_LOOK_SECONDS = 0.1
_CREDENTIALS = struct.Struct("3i")


@dataclass(slots=True, kw_only=True)
class ForkRequest:
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
        # The standard streams of the launcher are those that mpiexec reads.
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
class _ForkedRank:
    """A rank that is a copy of this process, or that a launcher has started."""

    fork_request: ForkRequest
    pid: int
    is_copy: bool
    watch: int = -1
    kill_at: float | None = None
    """When to kill it, if it has not ended by then."""
    is_orphan: bool = False
    """Whether mpiexec has ended its launcher before it."""
    killed: bool = False
    why: str = ""
    """Why it was killed, for the report of its test; empty: for no reason of its own."""

    @property
    def line(self) -> socket.socket:
        return self.fork_request.line

    @property
    def key(self) -> Key:
        return self.fork_request.world, self.fork_request.rank


class ForkServer:
    """Makes ranks for as long as the line to the controller is there."""

    def __init__(self, line: Channel, secret: str) -> None:
        self._line = line
        self._secret = secret
        self._selector = selectors.DefaultSelector()
        self._forked_ranks: set[_ForkedRank] = set()
        self._fork_sockets: dict[socket.socket, Sequence[str]] = {}
        self._fork_request: ForkRequest | None = None
        self._forked = False
        self._last_look = 0.0
        self.node_status: NodeStatus | None = None
        """Who tells the controller about ranks, on a machine that is not the controller's."""
        self._selector.register(line, selectors.EVENT_READ, self._take_orders)

    def open_fork_socket(self, fork_socket: socket.socket, command: Sequence[str] = ()) -> None:
        """Receive launchers there; with a command, that is what they are to start."""
        if fork_socket not in self._fork_sockets:
            self._fork_sockets[fork_socket] = command
            self._selector.register(
                fork_socket, selectors.EVENT_READ, lambda: self._receive(fork_socket)
            )

    def close_fork_sockets(self) -> None:
        """Leave launchers to another process that listens there."""
        for fork_socket in self._fork_sockets:
            self._selector.unregister(fork_socket)
            fork_socket.close()
        self._fork_sockets.clear()

    def serve(self) -> ForkRequest | None:
        """Do as the controller says. Comes back in copies only, with what they are for."""
        while True:
            for key, _ in self._selector.select(self._patience()):
                handler: Callable[[], None] = key.data
                handler()
                if self._forked:
                    return self._fork_request
            self._kill_due()
            self._look()

    def _when_ended(self, pid: int, then: Callable[[], None]) -> None:
        """Call back once when a process has ended."""
        watch = os.pidfd_open(pid)

        def has_ended() -> None:
            self._selector.unregister(watch)
            os.close(watch)
            then()

        self._selector.register(watch, selectors.EVENT_READ, has_ended)

    # Orders

    def _take_orders(self) -> None:
        try:
            for header, _ in self._line.receive_all():
                self.obey(header)
                if self._forked:
                    return
        except WireError:
            # The controller is gone, however that came: nothing here may outlive it.
            self.end()

    def obey(self, header: Header) -> None:
        """Follow an order."""
        match header["kind"]:
            case "kill":
                for forked in self._forked_ranks:
                    if forked.fork_request.world == header["world"]:
                        self._kill(forked)
            case "signal":
                for forked in self._forked_ranks:
                    if forked.key == (header["world"], header["rank"]):
                        with contextlib.suppress(OSError):
                            os.kill(forked.pid, header["signal"])
            case "watch":
                self._watch_output(header)
            case "stacks":
                self._tell_stacks(header)
            case "end":
                self.end()

    def end(self) -> NoReturn:
        """End with all that was started here."""
        for forked in self._forked_ranks:
            self._kill(forked)
        # Without exit handlers: those would be of modules that tests have loaded.
        os._exit(0)

    def _tell(self, header: Header) -> None:
        try:
            self._line.send(header)
        except WireError:
            self.end()

    # What is said about ranks, if the controller cannot see them

    def _watch_output(self, header: Header) -> None:
        key = header["world"], header["rank"]
        for forked in self._forked_ranks:
            if forked.key == key and self.node_status is not None:
                self.node_status.watch(key, header["pid"], header["outputs"])
                self._tell({"kind": "watched", "world": key[0], "rank": key[1]})

    def _tell_stacks(self, header: Header) -> None:
        assert self.node_status is not None, "the controller asks only servers that have one"
        asked = [(header["world"], rank) for rank in header["ranks"]]
        pids = {forked.key: forked.pid for forked in self._forked_ranks if forked.key in asked}
        said = self.node_status.stacks(pids)
        self._tell({"kind": "stacks", "question": header["question"], **said})

    def _look(self) -> None:
        now = time.monotonic()
        if self.node_status is None or now - self._last_look < _LOOK_SECONDS:
            return
        self._last_look = now
        if news := self.node_status.look([forked.key for forked in self._forked_ranks]):
            self._tell({"kind": "moments", "moments": news})
        self._end_greedy()

    def _end_greedy(self) -> None:
        """End ranks whose job step has used up its memory: to Slurm, copies are not part of it."""
        steps: dict[int, list[_ForkedRank]] = {}
        for forked in self._forked_ranks:
            if forked.is_copy and not forked.why:
                steps.setdefault(forked.fork_request.world, []).append(forked)
        for forked_ranks in steps.values():
            allowed = sum(forked.fork_request.memory for forked in forked_ranks)
            used = {forked.pid: memory_of(forked.pid) for forked in forked_ranks} if allowed else {}
            if sum(used.values()) > allowed:
                greediest = max(forked_ranks, key=lambda forked: used[forked.pid])
                greediest.why = (
                    "was killed: its job step is out of memory "
                    f"({sum(used.values()) >> 20} MB used, {allowed >> 20} MB allowed)"
                )
                kill_group(greediest.pid)

    # Ranks

    def _receive(self, fork_socket: socket.socket) -> None:
        line, _ = fork_socket.accept()
        descriptors: list[int] = []
        try:
            line.settimeout(_HANDOVER_SECONDS)
            head, descriptors, _, _ = socket.recv_fds(line, 4, _MOST_DESCRIPTORS)
            request = self._parse_request(line, int.from_bytes(head, "big"), descriptors)
        except (OSError, ValueError) as error:
            for number in descriptors:
                os.close(number)
            line.close()
            self._tell({"kind": "stranger", "reason": str(error)})
            return
        if command := self._fork_sockets[fork_socket]:
            self._delegate(request, command)
        else:
            self._copy(request)

    def _parse_request(self, line: socket.socket, size: int, descriptors: list[int]) -> ForkRequest:
        body = bytearray()
        while len(body) < size:
            piece = line.recv(size - len(body))
            if not piece:
                raise ValueError("it closed too early")
            body += piece
        # As in /proc/PID/environ: entries may hold any byte but the zero between them.
        world, *entries = bytes(body).split(b"\0")
        environment = dict(entry.split(b"=", 1) for entry in entries)
        shown = environment.get(SECRET_VARIABLE.encode(), b"")
        if len(descriptors) < 3 or not hmac.compare_digest(shown, self._secret.encode()):
            raise ValueError("it does not know the secret of this run")
        return ForkRequest(
            world=int(world),
            rank=rank_in(environment),
            environment=environment,
            descriptors=descriptors,
            line=line,
            cores=_cores_of_peer(line),
        )

    def _copy(self, fork_request: ForkRequest) -> None:
        pid = fork_with_parent()
        if not pid:
            self._become(fork_request)
            return
        for number in fork_request.descriptors:
            os.close(number)
        # If the launcher is gone, its line says so at once, and the copy is ended.
        with contextlib.suppress(OSError):
            fork_request.line.sendall((0).to_bytes(4, "big"))
        self._watch(_ForkedRank(fork_request=fork_request, pid=pid, is_copy=True))

    def _become(self, fork_request: ForkRequest | None) -> None:
        """Be a copy: nothing of the server's is this process's business."""
        # The parent's epoll would go on to report the parent's events here.
        self._forked = True
        self._fork_request = fork_request
        self._selector.close()
        self._line.close()
        for forked in self._forked_ranks:
            forked.line.close()
            if forked.watch >= 0:
                os.close(forked.watch)
        for fork_socket in self._fork_sockets:
            fork_socket.close()
        self._forked_ranks.clear()
        if fork_request is not None:
            fork_request.line.close()
            # What the test starts is in this group, and is killed with the rank.
            os.setpgid(0, 0)

    def _delegate(self, fork_request: ForkRequest, command: Sequence[str]) -> None:
        """Let the launcher start the rank itself."""
        for number in fork_request.descriptors:
            os.close(number)
        body = "\0".join(command).encode()
        try:
            fork_request.line.sendall(len(body).to_bytes(4, "big") + body)
            answer = fork_request.line.recv(4)
        except OSError:
            answer = b""
        if len(answer) < 4:
            # Gone before it had started anything.
            fork_request.line.close()
            return
        pid = int.from_bytes(answer, "big")
        self._watch(_ForkedRank(fork_request=fork_request, pid=pid, is_copy=False))

    def _watch(self, forked: _ForkedRank) -> None:
        self._forked_ranks.add(forked)
        self._selector.register(forked.line, selectors.EVENT_READ, lambda: self._heard(forked))
        if forked.is_copy:
            forked.watch = os.pidfd_open(forked.pid)
            self._selector.register(forked.watch, selectors.EVENT_READ, lambda: self._ended(forked))

    def _heard(self, forked: _ForkedRank) -> None:
        """The launcher is gone, or says how the rank that it has started ended."""
        if forked not in self._forked_ranks:
            return  # both have ended at the same moment
        data = b""
        with contextlib.suppress(OSError):
            data = forked.line.recv(4)
        if len(data) == 4:
            self._reap(forked, int.from_bytes(data, "big", signed=True))
            return
        # mpiexec has ended its launcher, or the launcher was killed: the rank gets a moment.
        self._selector.unregister(forked.line)
        forked.is_orphan = True
        if forked.is_copy:
            forked.kill_at = time.monotonic() + _LEAVING_SECONDS
        else:
            # Its parent was the launcher: there is no exit status to wait for here.
            self._kill(forked)
            self._reap(forked, None)

    def _ended(self, forked: _ForkedRank) -> None:
        if forked not in self._forked_ranks:
            return
        try:
            status = os.waitstatus_to_exitcode(os.waitpid(forked.pid, 0)[1])
        except ChildProcessError:  # a module of the user's ignores SIGCHLD
            status = 0
        with contextlib.suppress(OSError):
            forked.line.sendall(status.to_bytes(4, "big", signed=True))
        self._reap(forked, status)

    def _reap(self, forked: _ForkedRank, status: int | None) -> None:
        self._forked_ranks.discard(forked)
        for watched in (forked.line, forked.watch):
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(watched)
        forked.line.close()
        if forked.watch >= 0:
            os.close(forked.watch)
        said = self.node_status.final_status(forked.key) if self.node_status is not None else {}
        if forked.why:
            said["why"] = forked.why
        world, rank = forked.key
        # With MPICH a rank may come to its end after MPI_Abort: that is not finishing.
        by_us = forked.killed or (forked.is_orphan and status == 0)
        header = {"kind": "ended", "world": world, "rank": rank, "status": status, "by_us": by_us}
        # After the files were read: the controller may blame a test as soon as it knows.
        self._tell({**header, **said})

    def _patience(self) -> float | None:
        times = [forked.kill_at for forked in self._forked_ranks if forked.kill_at is not None]
        if self.node_status is not None and self._forked_ranks:
            times.append(self._last_look + _LOOK_SECONDS)
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _kill_due(self) -> None:
        now = time.monotonic()
        for forked in self._forked_ranks:
            if forked.kill_at is not None and forked.kill_at <= now:
                forked.kill_at = None
                self._kill(forked)

    def _kill(self, forked: _ForkedRank) -> None:
        forked.killed = True
        # With everything that the test has started and not ended.
        kill_group(forked.pid)


def rank_in(environment: Mapping[bytes, bytes]) -> int:
    """Read a rank's number from what mpiexec has put into its environment."""
    # Slurm's is last: under an mpiexec within a job, it is the number of the launcher's own task.
    for name in (b"OMPI_COMM_WORLD_RANK", b"PMIX_RANK", b"PMI_RANK", b"SLURM_PROCID"):
        if name in environment:
            return int(environment[name])
    raise ValueError("no mpiexec has started it")


def memory_of(pid: int) -> int:
    """Return how many bytes a process uses that are not shared with the one it is a copy of."""
    # Of a page that several processes share, Pss has a part for each.
    return read_counter(Path(f"/proc/{pid}/smaps_rollup"), "Pss:") << 10


def _cores_of_peer(line: socket.socket) -> Collection[int] | None:
    """Return the cores that the process at the other end may use, if they are not all of ours."""
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
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        # If the parent ended before the call above, no signal will come.
        if os.getppid() != parent:
            os._exit(1)
    return pid


def exit_as_c_does(code: int) -> NoReturn:
    """End without taking the interpreter down, which has no effect that can be seen.

    MPICH tells mpiexec in an exit handler of C's that a rank is done: `os._exit` has none.
    """
    LIBC.exit(code)
    raise AssertionError("exit came back")


def kill_group(pid: int) -> None:
    """Kill a process and those of its group."""
    # To the kernel, 0 and -1 stand for many processes, and 1 is init.
    if pid <= 1:
        return
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(OSError):
            kill(pid, signal.SIGKILL)


def write_output_to(path: Path) -> None:
    """Have what this process prints go to a file."""
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for target in (1, 2):
        os.dup2(number, target)
    os.close(number)
