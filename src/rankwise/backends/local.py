"""This machine as a backend: a runner of its own for each attempt, and nodes that are folders."""

from __future__ import annotations

import contextlib
import ipaddress
import itertools
import json
import math
import os
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rankwise import records
from rankwise.backends import orders
from rankwise.backends.base import Attempt, BackendFacts, Submission, Update, Updates
from rankwise.errors import ComputeFailure
from rankwise.launch.cores import available_cores
from rankwise.node.order import LOOPBACK, NodeOrder
from rankwise.plan import Resources, Task
from rankwise.store import State

# A fork takes a millisecond: after so long, the starter hangs or the machine stands still.
_ANSWER_SECONDS = 60.0


class StarterGone(Exception):
    """It is not known whether the runner was started."""


class Starter:
    """Starts runners, which outlive it; it ends with the client, also with one that is killed."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        """None: it was not needed yet."""
        self._end: Callable[[], object] = lambda: None

    def start(self, folder: Path, secrets: Mapping[str, str]) -> int:
        """Start the runner of an attempt, and return its process id.

        Raises OSError if there cannot be one, StarterGone if that is not known.
        """
        # A fault of the folder is raised here: the runner could report it to no one.
        (folder / "runner.log").open("ab").close()
        # Started with the first attempt, and again after it was killed.
        if self.process is None or self.process.poll() is not None:
            self.close()
            self.process = _start()
            # Also without `close`: a forgotten one must not stay.
            self._end = weakref.finalize(self, _end, self.process)
        # In one line, through a pipe: the values of secrets come to no file and no command line.
        line = json.dumps({"start": str(folder), "secrets": dict(secrets)})
        try:
            answer = self._ask(self.process, f"{line}\n".encode())
        except (OSError, ValueError) as error:
            self.process.kill()
            self.close()
            raise StarterGone(str(error)) from error
        if answer < 0:
            raise OSError(-answer, os.strerror(-answer))
        return answer

    def _ask(self, process: subprocess.Popen[bytes], line: bytes) -> int:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(line)
        # A starter that hangs must not hang the run.
        ready, _, _ = select.select([process.stdout], [], [], _ANSWER_SECONDS)
        if not ready:
            raise TimeoutError("no answer")
        return int(process.stdout.readline().removeprefix(b"started "))

    def close(self) -> None:
        """End it; what it has started goes on."""
        self._end()
        self.process = None


def _start() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*orders.start_words(sys.executable, orders.compiled_node()), "starter"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        # What we have open is not inherited anyway, and without closing it starts faster.
        close_fds=False,
        # Ctrl-C at the terminal must reach neither it nor the runners that it starts.
        start_new_session=True,
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    # It closes the pipes, and at the end of its input the starter ends.
    with process:
        pass


# For runners that another client has started: their ends can be polled, not awaited.
_LOOK_SECONDS, _AGAIN_SECONDS = 0.1, 1.0
# An address for each node: a launcher takes nodes with equal addresses for one.
_FIRST_ADDRESS = ipaddress.IPv4Address("127.0.0.1")


@dataclass(slots=True, kw_only=True)
class _Started:
    attempt: Attempt
    pid: int = 0
    """0: another client has started its runner."""
    handle: int | None = None
    """None: its end can only be polled."""
    gpus: tuple[str, ...] = ()
    was_asked_to_end: bool = False


class LocalBackend:
    """Starts attempts on this machine; they outlive the client. A thread waits for their ends."""

    def __init__(self, capacity: Resources, updates: Updates, *, gpus: Sequence[str] = ()) -> None:
        self._capacity = capacity
        self._tell = updates.put
        self._free_gpus = list(gpus)
        """Those that are really there, as CUDA_VISIBLE_DEVICES names them."""
        self._starter = Starter()
        self._watched: dict[str, _Started] = {}
        self._lock = threading.Lock()
        """Held to change what is watched, or which GPUs are free."""
        self._thread: threading.Thread | None = None
        self._poll: select.epoll
        self._bell: int
        """Becomes readable when the thread has something to do."""
        self._is_asked = False
        self._is_closed = False

    def facts(self) -> BackendFacts:
        """Return what there is; tasks may claim no more than that."""
        return BackendFacts(capacity=self._capacity, room=self._capacity)

    def place(self, folder: Path) -> Path:
        """Return the same folder."""
        return folder

    def submit(self, job: Submission) -> None:
        """Start an attempt's runner; its process id is the id of the attempt."""
        attempt, task = job.attempt, job.task
        with self._lock:
            gpus = tuple(self._free_gpus[: task.resources.gpus])
        try:
            # Folders and order first: the runner reads them as soon as it is started.
            nodes = _make_nodes(attempt.folder, task)
            order = orders.make_order(job, nodes, gpus=gpus, defaults=LOOPBACK)
            order.write(attempt.folder)
            pid = self._start_runner(attempt.folder, job.secrets)
        except OSError as error:
            why = f"{attempt.label} could not be started in {attempt.folder}: {error.strerror}"
            raise ComputeFailure(why) from error
        # Before it is watched: its end must be the last update.
        self._tell(Update(attempt=attempt, job_id=str(pid), has_started=True))
        self._watch(_Started(attempt=attempt, pid=pid, handle=_handle(pid), gpus=gpus))

    def _start_runner(self, folder: Path, secrets: Mapping[str, str]) -> int:
        try:
            return self._starter.start(folder, secrets)
        except StarterGone as gone:
            # Either it has taken the attempt already, or it never will.
            if records.abandon(folder):
                raise OSError(0, f"the process that starts runners was lost: {gone}") from gone
            return records.runner_of(folder) or 0

    def adopt(self, attempt: Attempt, job_id: str) -> None:
        """Watch an attempt that another client has started, unless it never came to that."""
        del job_id  # its folder says more
        if records.abandon(attempt.folder):
            self._tell(Update(attempt=attempt, is_absent=True))
            return
        self._tell(Update(attempt=attempt, has_started=True))
        given = orders.gpus_of(attempt.folder)
        gpus = tuple(name for name in self._free_gpus if name in given)
        self._watch(_Started(attempt=attempt, gpus=gpus))

    def _watch(self, one: _Started) -> None:
        with self._lock:
            self._free_gpus = [name for name in self._free_gpus if name not in one.gpus]
            self._watched[one.attempt.marker] = one
        self._have_thread()
        if one.handle is not None:
            self._poll.register(one.handle, select.EPOLLIN)
        else:
            self._ring()

    def cancel(self, attempt: Attempt) -> None:
        """Have the runner end what it has started."""
        one = self._watched.get(attempt.marker)
        # The claim has the process id also of a runner that another client has started.
        pid = records.runner_of(attempt.folder) or (one.pid if one is not None else 0)
        if one is not None and pid and not one.was_asked_to_end:
            one.was_asked_to_end = True
            with contextlib.suppress(ProcessLookupError):
                # The runner ends its processes in good order, and records how they ended.
                os.kill(pid, signal.SIGTERM)

    def look(self) -> None:
        """Report what is over, and that this was all."""
        self._is_asked = True
        self._have_thread()
        self._ring()

    def close(self) -> None:
        """End the starter and the thread; the runners go on."""
        self._starter.close()
        if self._thread is None:
            return
        self._is_closed = True
        self._ring()
        self._thread.join()
        self._thread = None
        # After the thread has ended: it waits for these handles.
        handles = [one.handle for one in self._watched.values() if one.handle is not None]
        for handle in (*handles, self._bell):
            os.close(handle)
        self._poll.close()

    def _have_thread(self) -> None:
        """Start the thread that waits for ends, unless it runs."""
        if self._thread is None:
            # One wait for all runners, without polling: an idle client uses no CPU.
            self._poll, self._bell = select.epoll(), os.eventfd(0)
            self._poll.register(self._bell, select.EPOLLIN)
            self._thread = threading.Thread(target=self._work, name="local", daemon=True)
            self._thread.start()

    def _ring(self) -> None:
        """Wake the thread: there is something that it cannot wait for."""
        os.eventfd_write(self._bell, 1)

    # In the thread

    def _work(self) -> None:
        failure = ""
        while not self._is_closed:
            try:
                self._reap()
                failure = ""
            except Exception as error:  # Whatever it is, a run waits for ends.
                if failure != (failure := f"this machine: {error!r}; trying again"):
                    self._tell(Update(text=failure))
                # A failure that stays must not take a whole core.
                time.sleep(_AGAIN_SECONDS)

    def _reap(self) -> None:
        """Wait until something may be over, and report what is."""
        has_others = any(one.handle is None for one in list(self._watched.values()))
        ready = {handle for handle, _ in self._poll.poll(_LOOK_SECONDS if has_others else None)}
        if self._bell in ready:
            os.eventfd_read(self._bell)
        # Read before the ends: what is over at this moment must be reported first.
        is_asked, self._is_asked = self._is_asked, False
        try:
            for one in list(self._watched.values()):
                if one.handle in ready or (one.handle is None and _is_over(one)):
                    self._finish(one)
        finally:
            if is_asked:
                self._tell(Update(has_looked=True))

    def _finish(self, one: _Started) -> None:
        end = records.end_of(one.attempt.folder)
        # A runner that was killed has left processes behind.
        if end.outcome == State.LOST:
            from rankwise.node.processes import sweep_marked

            sweep_marked(one.attempt.marker)
        if one.handle is not None:
            self._poll.unregister(one.handle)
            os.close(one.handle)
        with self._lock:
            # GPUs are free again before the end is reported: the next task may start at once.
            del self._watched[one.attempt.marker]
            self._free_gpus += one.gpus
        self._tell(Update(attempt=one.attempt, end=end))


def _handle(pid: int) -> int | None:
    """Return what becomes readable when a process ends; None: it is gone, or we have no room."""
    try:
        # Unlike the process id, the handle cannot come to mean another process.
        return os.pidfd_open(pid) if pid else None
    except OSError:
        return None


def _is_over(one: _Started) -> bool:
    """Return whether a runner is gone whose end cannot be waited for."""
    try:
        if one.pid:
            # Signal 0 only asks whether there is such a process.
            os.kill(one.pid, 0)
    except ProcessLookupError:
        return True  # Perhaps before it took the attempt.
    return records.claim_of(one.attempt.folder) is records.ClaimState.LEFT


def _make_nodes(folder: Path, task: Task) -> list[NodeOrder]:
    """Make the folders of the nodes, with the code in them."""
    places = orders.make_folders(folder, task)
    shares = _share_cores(available_cores(), task.nodes)
    return [
        NodeOrder(
            name=f"node{number}",
            address=str(_FIRST_ADDRESS + number),
            folder=str(place),
            cores=share[: math.ceil(task.node_limits.cores) or None] if task.node_limits else share,
        )
        for number, (place, share) in enumerate(zip(places, shares, strict=True))
    ]


def _share_cores(cores: Sequence[int], nodes: int) -> list[Sequence[int]]:
    """Return each node its cores; with fewer cores than nodes, some have the same one.

    A single node is not bound to any: other tasks may run beside it.
    """
    # Pinned ranks of two tasks would share the same cores, while others are idle.
    if nodes == 1:
        return [()]
    # Bound to disjoint cores: nodes would otherwise take all cores twice.
    count = len(cores)
    edges = [number * count // nodes for number in range(nodes + 1)]
    return [cores[begin : max(end, begin + 1)] for begin, end in itertools.pairwise(edges)]
