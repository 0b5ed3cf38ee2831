"""The pods of a task: what each has, and the one in which the runner is.

pod head      gathers the others, and shows the client what comes of it all
pod other     any other, see `pod_worker.py`
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

from .files import own_command, read_record, read_text, write_file
from .mirror import FolderMirror, Frame, Taker, new_files, to_line
from .order import ORDER, Order, Placement
from .outcome import CANCELLED, LOST, write_end
from .processes import read_small
from .wire import PodConnection, PodConnectionError, answer, answer_all, listen

# Between two looks at the folder, while something changes and when nothing does for long.
_LOOK_SECONDS, _LATEST_LOOK_SECONDS = 0.05, 0.5
# How long the others may be silent once they are let go.
_LEAVE_SECONDS = 30.0
# Before a file is written again for which there was no room.
_AGAIN_SECONDS = 1.0
_END = "end.json"


def exit_code(code: int) -> int:
    """Return the exit code of a process as shells have it, from that of `subprocess`."""
    return code if code >= 0 else 128 - code


def say(text: str) -> None:
    """Write a line for people into the log of the container."""
    print(f"rankwise: {text}", file=sys.stderr, flush=True)


# Variables of ours that processes in a pod need to start others by `call`.
_KEPT = ("RANKWISE_PARTS", "RANKWISE_KEYS", "RANKWISE_WORK")
# Where Python has no such filter, what is unpacked is what the client has packed, all the same.
_SAFELY: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}


class Pod:
    """This pod, as its variables and volumes describe it."""

    def __init__(self) -> None:
        self._parts = os.environ["RANKWISE_PARTS"]
        self._keys = os.environ["RANKWISE_KEYS"]
        self.work = os.environ["RANKWISE_WORK"]
        self.folder = f"{self.work}/attempt"
        self.nodes = [int(one) for one in os.environ.get("RANKWISE_NODES", "").split(",") if one]
        self.head = os.environ.get("RANKWISE_HEAD", "")
        self.port = int(os.environ["RANKWISE_PORT"])
        self.address = os.environ.get("RANKWISE_ADDRESS", "127.0.0.1")
        with open(f"{self._keys}/key", "rb") as file:
            self.key = file.read()
        self._given = read_text(f"{self._parts}/order.json")
        self.order = Order.read(json.loads(self._given))
        self.container = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("RANKWISE_") or name in _KEPT
        }
        self.unpacked = 0.0
        self._killed_before = self._memory_kills()

    def unpack(self, node: int | None) -> None:
        """Lay out our own files, and the code if a node of the task is here."""
        os.makedirs(self.folder, exist_ok=True)
        os.makedirs(os.environ.get("HOME") or self.work, exist_ok=True)
        write_file(f"{self.work}/container.json", json.dumps(self.container))
        if node is not None:
            place = self.order.nodes[node].folder
            os.makedirs(place, exist_ok=True)
            role = next((one.role for one in self.order.processes if one.node == node), "")
            for name in (f"{self._parts}/code-{role}.tgz", f"{self._parts}/code.tgz"):
                if os.path.exists(name):
                    with tarfile.open(name) as code:
                        code.extractall(place, **_SAFELY)
                    break
        # Clocks of files are coarse: what is written from now on must look newer.
        time.sleep(0.02)
        self.unpacked = time.time() - 0.01

    def stand_in(self, node: int) -> None:
        """Have the folders of other nodes here: launchers start ranks in their own."""
        for other in self.order.nodes:
            if not os.path.lexists(other.folder):
                os.makedirs(os.path.dirname(other.folder), exist_ok=True)
                os.symlink(self.order.nodes[node].folder, other.folder)

    def _memory_kills(self) -> int:
        """Count what the kernel has ended here because there was no more memory."""
        lines = map(bytes.split, read_small("/sys/fs/cgroup/memory.events").splitlines())
        return sum(int(count) for name, count in lines if name == b"oom_kill")

    def ran_out_of_memory(self) -> bool:
        """Return whether the kernel has ended something of the task here for want of memory."""
        return self._memory_kills() > self._killed_before

    def place(self, there: Placement) -> None:
        """Write where the order is carried out, beside the order itself."""
        self.order = self.order.placed(there)
        write_file(f"{self.folder}/{ORDER}", self._given)
        there.write(self.folder)

    def left_files(self, node: int) -> Iterator[Frame]:
        """Return what processes have left in their folder, unless that stays where it is."""
        if self.order.brings_files:
            folder, name = self.order.nodes[node].folder, f"nodes/node{node}"
            yield from new_files(folder, self.unpacked, name=name)

    def secrets(self) -> dict[str, str]:
        """Read the values of the task's secrets, which are in no message."""
        return {name: read_text(f"{self._keys}/secret.{name}") for name in self.order.secrets}


class Head:
    """The first pod of a task."""

    def __init__(self, pod: Pod) -> None:
        self._pod = pod
        self._node = pod.nodes[0] if pod.nodes else None
        self._taker = Taker(pod.folder)
        self._mirror = FolderMirror(pod.folder)
        self._output = ContainerLog(has_frames=os.environ.get("RANKWISE_OUTPUT") == "frames")
        self._workers: dict[int, tuple[PodConnection, dict[str, Any]]] = {}
        self._readers: list[threading.Thread] = []
        self._arrived = threading.Condition()
        # Which pods were gone before we let them go, or before all that they had was here, and why.
        self._lost: dict[int, str] = {}
        # Which pods have said that they have no more to show.
        self._left: set[int] = set()
        self._is_leaving = False
        self._heard = time.monotonic()
        self._runner: subprocess.Popen[bytes] | None = None
        self._signal = 0
        self._is_runner_told = False

    def run(self) -> int:
        """Run the task, once all of its pods are there."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._forward)
        self._pod.unpack(self._node)
        if self._gather():
            self._begin()
        else:
            reason = "cancelled before all pods were there"
            write_end(self._pod.folder, "cancelled", CANCELLED, reason)
        code = self._look_on() if self._runner is not None else CANCELLED
        self._leave()
        return code or (LOST if self._lost else 0)

    def _forward(self, number: int, _: object) -> None:
        self._signal = number
        if self._runner is not None:
            self._runner.send_signal(number)

    # The other pods

    def _gather(self) -> bool:
        """Wait until all other pods have come; False: the task is to end before that."""
        wanted = set(range(len(self._pod.order.nodes))) - {self._node}
        if not wanted:
            return not self._signal
        door = listen(self._pod.address, self._pod.port)
        threading.Thread(target=answer_all, args=(door, self._greet), daemon=True).start()
        told = -1
        while wanted - self._workers.keys() and not (self._signal or self._lost):
            with self._arrived:
                self._arrived.wait(0.2)
            if told != len(self._workers):
                told = len(self._workers)
                self._output.note("gathered", told, len(wanted))
        return not (self._signal or self._lost)

    def _greet(self, connection: socket.socket) -> None:
        try:
            line = answer(connection, self._pod.key)
            hello, _ = line.receive()
            node = int(hello["node"])
            if node in self._workers or not 0 <= node < len(self._pod.order.nodes):
                raise ValueError(f"node {node} is here already, or none of this task")
        except (PodConnectionError, ValueError, LookupError, TypeError) as error:
            say(f"a caller was turned away: {error}")
            connection.close()
            return
        reader = threading.Thread(target=self._hear, args=(node, line), daemon=True)
        with self._arrived:
            self._workers[node] = line, hello
            self._readers.append(reader)
            self._arrived.notify_all()
        reader.start()

    def _hear(self, node: int, line: PodConnection) -> None:
        """Take in what another pod shows, until it says farewell or is gone."""
        count = 0
        try:
            while True:
                said, _ = line.receive()
                self._heard = time.monotonic()
                if "taken away" in said:
                    # Once the runner has ended, it only matters whether all comes here.
                    if not self._is_leaving:
                        self._lose(node, str(said["taken away"]))
                    line.send({"known": True})
                elif "farewell" in said:
                    self._left.add(node)
                    return
                elif "frame" in said:
                    count += 1
                    self._take(said["frame"])
                    line.send({"taken": count})
        except PodConnectionError as error:
            self._lose(node, f"the line to it has broken: {error}")

    def _take(self, frame: Frame) -> None:
        """Keep what another pod shows; without room for it, it waits until there is some."""
        is_told = False
        while True:
            try:
                if "path" in frame:
                    self._taker.take(frame)
                else:
                    self._output.put(frame)
                return
            except (ValueError, LookupError, TypeError) as error:
                why = f"it was sent in a way that cannot be understood: {error}"
                self._output.put({"left_out": str(frame.get("path")), "size": 0, "why": why})
                return
            except OSError as error:
                if not is_told:
                    say(f"{frame['path']} cannot be written; trying again: {error}")
                is_told = True
                time.sleep(_AGAIN_SECONDS)

    def _lose(self, node: int, why: str) -> None:
        """Note that a pod is gone that was still needed; without it the task cannot go on."""
        with self._arrived:
            is_harmless = self._is_leaving and not self._pod.order.brings_files
            if node in self._lost or node in self._left or is_harmless:
                return
            self._lost[node] = why
            self._arrived.notify_all()
        pod = str(self._workers[node][1].get("pod", ""))
        self._output.put({"note": "pod lost", "values": [node], "pod": pod, "why": why})
        self._end_runner()

    def _end_runner(self) -> None:
        """Have the runner end everything, once; it says whether something had failed before."""
        with self._arrived:
            if self._runner is None or self._is_runner_told:
                return
            self._is_runner_told = True
        self._runner.send_signal(signal.SIGTERM)

    # The runner

    def _begin(self) -> None:
        there = Placement(nodes=self._nodes())
        self._pod.place(there)
        self._send_to_all({"placement": there.data()})
        values = self._pod.secrets()
        with open(f"{self._pod.folder}/runner.log", "ab") as log:
            self._runner = subprocess.Popen(
                [*own_command(), "run", self._pod.folder],
                stdin=subprocess.PIPE if values else subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._pod.container,
            )
        if self._runner.stdin is not None:
            # It has ended at once, and says why in its log.
            with contextlib.suppress(OSError), self._runner.stdin as pipe:
                pipe.write(json.dumps(values).encode())
        if self._signal:
            self._runner.send_signal(self._signal)
        elif self._lost:
            self._end_runner()

    def _nodes(self) -> list[dict[str, Any]]:
        """Return where the nodes are, and how they are reached."""
        found: list[dict[str, Any]] = []
        for number in range(len(self._pod.order.nodes)):
            if number == self._node:
                name, address, reach = os.uname().nodename, self._pod.address, []
            else:
                hello = self._workers[number][1]
                name, address = hello["name"], hello["address"]
                reach = [*own_command(), "call", address, str(hello["port"])]
            # By number: a cluster need not have names for its pods.
            found.append({"name": name, "address": address, "host": address, "reach": reach})
        return found

    def _look_on(self) -> int:
        """Show what happens until the runner has ended."""
        assert self._runner is not None
        pause = _LOOK_SECONDS
        while (code := self._runner.poll()) is None:
            has_news = self._show(self._mirror.look())
            pause = _LOOK_SECONDS if has_news else min(pause * 1.3, _LATEST_LOOK_SECONDS)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._runner.wait(pause)
        self._show(self._mirror.look())
        return exit_code(code)

    def _leave(self) -> None:
        """Let the others go, and show the rest of what there is: the end last of all."""
        self._let_go()
        if self._pod.ran_out_of_memory():
            self._output.note("out of memory", -1 if self._node is None else self._node)
        if self._node is not None:
            self._show(self._pod.left_files(self._node))
        for node in self._workers:
            there = f"{self._pod.folder}/nodes/node{node}"
            self._show(new_files(there, 0, name=f"nodes/node{node}"))
        if self._lost:
            self._note_loss()
        self._show(self._mirror.look(is_last=True))
        self._output.end()

    def _show(self, frames: Iterable[Frame]) -> bool:
        """Show frames to the client, and return whether there were any."""
        has_any = False
        for frame in frames:
            self._output.put(frame)
            has_any = True
        return has_any

    def _send_to_all(self, message: dict[str, Any]) -> None:
        for line, _ in self._workers.values():
            # Of a pod that is gone, its reader says so.
            with contextlib.suppress(PodConnectionError):
                line.send(message)

    def _let_go(self) -> None:
        """Wait until each of the others has shown all that it has, or is silent for too long."""
        self._is_leaving = True
        self._send_to_all({"do": "leave"})
        self._heard = time.monotonic()
        while any(reader.is_alive() for reader in self._readers):
            if time.monotonic() > self._heard + _LEAVE_SECONDS:
                break
            time.sleep(_LOOK_SECONDS)
        for node in self._workers:
            self._lose(node, f"it has shown nothing for {_LEAVE_SECONDS:g} s")

    def _note_loss(self) -> None:
        """Make a success a loss, if files that belong to it have not arrived."""
        end = read_record(f"{self._pod.folder}/{_END}", "outcome")
        if end and end["outcome"] == "passed":
            node, why = next(iter(self._lost.items()))
            pod = self._workers[node][1].get("pod") or f"of node {node}"
            reason = f"pod {pod} was gone before all that it had was brought: {why}"
            end |= {"outcome": "lost", "exit_code": LOST, "reason": reason}
            write_file(f"{self._pod.folder}/{_END}", json.dumps(end))


class ContainerLog:
    """The log of the container: frames for a client, or lines for people."""

    def __init__(self, *, has_frames: bool) -> None:
        self._has_frames = has_frames
        self._number = 0
        self._process = ""
        # Several threads write here: of two frames with one number, the client drops one.
        self._writing = threading.Lock()

    def put(self, frame: Frame) -> None:
        """Write a frame, or what is of interest in it."""
        with self._writing:
            if self._has_frames:
                self._number += 1
                self._write(to_line({"n": self._number, **frame}) + "\n")
            else:
                self._tell(frame)

    def _tell(self, frame: Frame) -> None:
        if "left_out" in frame:
            say(f"{frame['left_out']} stays in its pod: {frame.get('why', 'it is too large')}")
        elif "note" in frame:
            words = ": ".join(str(frame[key]) for key in ("pod", "why") if frame.get(key))
            say(f"{frame['note']}: node {frame['values'][0]} {words}".rstrip())
        elif str(frame.get("path", "")).endswith("/output.log") and frame.get("text"):
            process = str(frame["path"]).split("/")[-2]
            head = f"--- {process} ---\n" if process != self._process else ""
            self._process = process
            self._write(head + frame["text"])

    def note(self, what: str, *values: int) -> None:
        """Write how far the task is, which is in no file."""
        if self._has_frames:
            self.put({"note": what, "values": list(values)})
        else:
            say(f"{what}: {' of '.join(map(str, values))}")

    def end(self) -> None:
        """Write that this was all."""
        if self._has_frames:
            self.put({"end": True})

    def _write(self, text: str) -> None:
        data = text.encode(errors="surrogateescape")
        # The log of the container may be gone.
        with contextlib.suppress(OSError):
            while data:
                data = data[os.write(1, data) :]


def main(part: str) -> int:
    """Be the part of a pod that is asked for."""
    if part == "head":
        return Head(Pod()).run()
    from .pod_worker import Worker

    return Worker(Pod()).run()
