"""This machine as a backend: a runner of its own for each attempt, and nodes that are folders."""

from __future__ import annotations

import contextlib
import ipaddress
import itertools
import json
import os
import select
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rankwise import records
from rankwise.backends.base import Attempt, Submission, Update
from rankwise.backends.orders import (
    compiled_node,
    gpus_of,
    make_folders,
    make_order,
    start_words,
    write_order,
)
from rankwise.errors import ComputeFailure
from rankwise.launch.cores import available_cores
from rankwise.node.order import NodeOrder
from rankwise.plan import Resources, Task

# A copy takes a millisecond. Only a machine that stands still takes as long as this.
_ANSWER_SECONDS = 60.0


class StarterGone(Exception):
    """Nobody knows whether the runner was started."""


class Starter:
    """Starts runners, which outlive it, and ends with the client, whatever happens to that."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._end: Callable[[], object] = lambda: None

    @property
    def pid(self) -> int | None:
        """Return its own process number; None: it was not needed yet."""
        return self._process.pid if self._process is not None else None

    def start(self, folder: Path, secrets: Mapping[str, str]) -> int:
        """Start the runner of an attempt and give its process number.

        Raises OSError if there cannot be one, StarterGone if that is not known.
        """
        # What is wrong with the folder is said here, where somebody hears it.
        (folder / "runner.log").open("ab").close()
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._process = _start()
            # Also if whoever has it forgets to close it.
            self._end = weakref.finalize(self, _end, self._process)
        line = json.dumps({"start": str(folder), "secrets": dict(secrets)})
        try:
            answer = self._ask(self._process, f"{line}\n".encode())
        except (OSError, ValueError) as error:
            self._process.kill()
            self.close()
            raise StarterGone(str(error)) from error
        if answer < 0:
            raise OSError(-answer, os.strerror(-answer))
        return answer

    def _ask(self, process: subprocess.Popen[bytes], line: bytes) -> int:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(line)
        ready, _, _ = select.select([process.stdout], [], [], _ANSWER_SECONDS)
        if not ready:
            raise TimeoutError("no answer")
        return int(process.stdout.readline().removeprefix(b"started "))

    def close(self) -> None:
        """End it; what it has started goes on."""
        self._end()
        self._process = None


def _start() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*start_words(sys.executable, compiled_node()), "starter"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        # What we have open is not inherited anyway, and without closing it starts faster.
        close_fds=False,
        start_new_session=True,
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    for line in (process.stdin, process.stdout):
        with contextlib.suppress(OSError):
            assert line is not None
            line.close()
    process.wait()


# For runners that somebody else has started: their end cannot be waited for, only looked for.
_LOOK_SECONDS = 0.1
# The loopback has many: a launcher that finds equal addresses takes the nodes for one.
_FIRST_ADDRESS = ipaddress.IPv4Address("127.0.0.1")
# All nodes are this machine: what looks for a network finds one that needs none.
_LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "TP_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}


@dataclass(slots=True, kw_only=True)
class _Started:
    attempt: Attempt
    pid: int = 0
    """0: another client has started its runner."""
    handle: int | None = None
    """None: its end cannot be waited for. A process of ours was gone before it could be."""
    gpus: tuple[str, ...] = ()


class LocalBackend:
    """Starts attempts on this machine; they outlive the client."""

    makes_runtimes = False

    def __init__(self, capacity: Resources, *, gpus: Sequence[str] = ()) -> None:
        self._capacity = capacity
        self._free_gpus = list(gpus)
        """Those that are really there, as CUDA_VISIBLE_DEVICES names them."""
        self._starter = Starter()
        self._watched: dict[str, _Started] = {}
        self._news: list[Update] = []

    def capacity(self) -> Resources:
        """Return how much there is of everything."""
        return self._capacity

    def room(self) -> Resources:
        """Return how much tasks may claim: here, no more than there is."""
        return self._capacity

    def place(self, folder: Path) -> Path:
        """Leave attempts where they would be."""
        return folder

    def submit(self, job: Submission) -> str:
        """Start an attempt's runner and give its process number."""
        attempt, task = job.attempt, job.task
        gpus = tuple(self._free_gpus[: task.resources.gpus])
        try:
            nodes = _make_nodes(attempt.folder, task)
            order = make_order(job, nodes, gpus=gpus, defaults=_LOOPBACK)
            write_order(order, attempt.folder)
            pid = self._start_runner(attempt.folder, job.secrets)
        except OSError as error:
            raise ComputeFailure(
                f"{attempt.label} could not be started in {attempt.folder}: {error.strerror}"
            ) from error
        del self._free_gpus[: len(gpus)]
        watched = _Started(attempt=attempt, pid=pid, handle=_handle(pid), gpus=gpus)
        self._watched[attempt.marker] = watched
        return str(pid)

    def _start_runner(self, folder: Path, secrets: Mapping[str, str]) -> int:
        try:
            return self._starter.start(folder, secrets)
        except StarterGone as gone:
            # Either it has taken the attempt already, or it never will.
            if records.abandon(folder):
                raise OSError(0, f"the process that starts runners was lost: {gone}") from gone
            return records.runner_of(folder) or 0

    def adopt(self, attempt: Attempt, job_id: str) -> bool:
        """Watch an attempt that another client has started, unless it never came to that."""
        del job_id  # its folder says more
        if records.abandon(attempt.folder):
            return False
        given = gpus_of(attempt.folder)
        gpus = tuple(name for name in self._free_gpus if name in given)
        self._free_gpus = [name for name in self._free_gpus if name not in gpus]
        self._watched[attempt.marker] = _Started(attempt=attempt, gpus=gpus)
        self._news.append(Update(attempt=attempt, has_started=True))
        return True

    def wait(self, seconds: float) -> list[Attempt]:
        """Return those attempts whose runners are gone."""
        deadline = time.monotonic() + seconds
        while True:
            gone = self._gone(max(0.0, deadline - time.monotonic()))
            if gone or time.monotonic() >= deadline:
                return gone

    def _gone(self, seconds: float) -> list[Attempt]:
        all_of_them = self._watched.values()
        handles = {one.handle: one for one in all_of_them if one.handle is not None}
        others = [one for one in all_of_them if one.handle is None]
        poll = select.poll()
        for handle in handles:
            poll.register(handle, select.POLLIN)
        over = [one for one in others if one.pid or _is_over(one.attempt.folder)]
        if others:
            seconds = 0.0 if over else min(seconds, _LOOK_SECONDS)
        ended = [handles[handle] for handle, _ in poll.poll(seconds * 1000)]
        return [self._forget(one) for one in [*ended, *over]]

    def _forget(self, one: _Started) -> Attempt:
        del self._watched[one.attempt.marker]
        self._free_gpus += one.gpus
        if one.handle is not None:
            os.close(one.handle)
        return one.attempt

    def news(self) -> list[Update]:
        """Tell of what was adopted; what is submitted here has started."""
        news, self._news = self._news, []
        return news

    def end_of(self, attempt: Attempt) -> None:
        """Leave it to the runner's records, which are all that there is."""

    def cancel(self, attempt: Attempt) -> None:
        """Have a runner end what it has started."""
        watched = self._watched.get(attempt.marker)
        pid = records.runner_of(attempt.folder)
        if pid is None and watched is not None:
            pid = watched.pid
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    def clean(self, attempt: Attempt) -> None:
        """End whatever a lost runner has left behind."""
        from rankwise.node.processes import sweep_marked

        sweep_marked(attempt.marker)

    def close(self) -> None:
        """End what starts runners; they go on."""
        self._starter.close()


def _handle(pid: int) -> int | None:
    """Return what becomes readable when a process ends; None if it is gone."""
    try:
        return os.pidfd_open(pid) if pid else None
    except ProcessLookupError:
        return None


def _is_over(folder: Path) -> bool:
    return records.claim_of(folder) is records.ClaimState.LEFT


def _make_nodes(folder: Path, task: Task) -> list[NodeOrder]:
    """Make the folders of the nodes, with the code in them."""
    places = make_folders(folder, task)
    shares = _share_cores(available_cores(), task.nodes)
    return [
        NodeOrder(
            name=f"node{number}",
            address=str(_FIRST_ADDRESS + number),
            folder=str(place),
            cores=share,
        )
        for number, (place, share) in enumerate(zip(places, shares, strict=True))
    ]


def _share_cores(cores: Sequence[int], nodes: int) -> list[Sequence[int]]:
    """Return each node its cores; with fewer cores than nodes, some have the same one.

    A single node is not bound to any: other tasks may run beside it.
    """
    if nodes == 1:
        return [()]
    count = len(cores)
    edges = [number * count // nodes for number in range(nodes + 1)]
    return [cores[begin : max(end, begin + 1)] for begin, end in itertools.pairwise(edges)]
