"""The pod in which the runner is: gathers the others, and shows the client what comes of it all."""

# Paths are texts here, as in the runner: they travel as such.
# ruff: noqa: PTH123

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any

from rankwise.compute.kubernetes.inside.line import Line, LineError, answer, listen
from rankwise.compute.kubernetes.inside.mirror import Frame, Mirror, Taker, new_files, to_line
from rankwise.compute.kubernetes.inside.pod import MOST_BYTES, Pod, say

_LOOK_SECONDS, _LATEST_LOOK_SECONDS = 0.05, 0.5
_LEAVE_SECONDS = 10.0
CANCELLED = 130


class Head:
    """The first pod of a task."""

    def __init__(self, pod: Pod) -> None:
        self._pod = pod
        self._node = pod.nodes[0] if pod.nodes else None
        self._taker = Taker(pod.folder)
        self._mirror = Mirror(pod.folder)
        self._output = Output(has_frames=os.environ.get("RANKWISE_OUTPUT") == "frames")
        self._others: dict[int, tuple[Line, dict[str, Any]]] = {}
        self._readers: list[threading.Thread] = []
        self._arrived = threading.Condition()
        self._runner: subprocess.Popen[bytes] | None = None
        self._signal = 0

    def run(self) -> int:
        """Run the task, once all of its pods are there."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._forward)
        self._pod.unpack(self._node)
        if not self._gather():
            self._end_unbegun()
        else:
            self._begin()
        assert self._runner is not None or self._signal
        code = self._look_on() if self._runner is not None else CANCELLED
        self._leave()
        return code

    def _forward(self, number: int, _: object) -> None:
        self._signal = number
        if self._runner is not None:
            self._runner.send_signal(number)

    # The others

    def _gather(self) -> bool:
        """Wait until all other pods have come; False: we are asked to end before."""
        wanted = {number for number in range(len(self._pod.order["nodes"])) if number != self._node}
        if not wanted:
            return not self._signal
        door = listen(self._pod.address, self._pod.port)
        threading.Thread(target=self._open, args=(door,), daemon=True).start()
        told = -1
        while wanted - self._others.keys() and not self._signal:
            with self._arrived:
                self._arrived.wait(0.2)
            if told != len(self._others):
                told = len(self._others)
                self._output.note("gathered", told, len(wanted))
        return not self._signal

    def _open(self, door: socket.socket) -> None:
        while True:
            connection, _ = door.accept()
            threading.Thread(target=self._greet, args=(connection,), daemon=True).start()

    def _greet(self, connection: socket.socket) -> None:
        try:
            line = answer(connection, self._pod.key)
            hello, _ = line.receive()
            node = int(hello["node"])
        except (LineError, ValueError, LookupError) as error:
            say(f"a caller was turned away: {error}")
            connection.close()
            return
        reader = threading.Thread(target=self._hear, args=(line,), daemon=True)
        with self._arrived:
            self._others[node] = line, hello
            self._readers.append(reader)
            self._arrived.notify_all()
        reader.start()

    def _hear(self, line: Line) -> None:
        """Take in what another pod shows."""
        count = 0
        # It is gone; the runner notices by the calls that it has open.
        with contextlib.suppress(OSError, ValueError, LookupError):
            while True:
                said, _ = line.receive()
                if "frame" not in said:
                    continue
                count += 1
                if "path" not in said["frame"]:
                    self._output.put(said["frame"])
                else:
                    self._taker.take(said["frame"])
                line.send({"taken": count})

    # The runner

    def _begin(self) -> None:
        self._pod.write_order(self._order())
        for line, _ in self._others.values():
            # As above.
            with contextlib.suppress(LineError):
                line.send({"order": self._pod.order})
        values = self._pod.secrets()
        with open(f"{self._pod.folder}/runner.log", "ab") as log:
            self._runner = subprocess.Popen(
                [
                    sys.executable,
                    "-I",
                    "-S",
                    f"{self._pod.work}/runner.py",
                    "gang",
                    self._pod.folder,
                ],
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

    def _order(self) -> dict[str, Any]:
        """Fill in where the nodes are, and how they are reached."""
        order = self._pod.order
        python = [sys.executable, "-I", "-S", sys.argv[0], "call"]
        for number, node in enumerate(order["nodes"]):
            if number == self._node:
                name, address = os.uname().nodename, self._pod.address
                node.update({"reach": []})
            else:
                hello = self._others[number][1]
                name, address = hello["name"], hello["address"]
                node.update({"reach": [*python, address, str(hello["port"])]})
            # By number: a cluster need not have names for its pods.
            node.update({"name": name, "address": address, "host": address})
        return order

    def _end_unbegun(self) -> None:
        now = time.time()
        end = {
            "outcome": "cancelled",
            "exit_code": CANCELLED,
            "signal": None,
            "culprit": None,
            "reason": "cancelled before all pods were there",
            "started": now,
            "ended": now,
        }
        self._pod.write_file("end.json", json.dumps(end))
        for frame in self._mirror.look():
            self._output.put(frame)

    def _look_on(self) -> int:
        """Show what happens until the runner has ended."""
        assert self._runner is not None
        pause = _LOOK_SECONDS
        while (code := self._runner.poll()) is None:
            frames = list(self._mirror.look())
            for frame in frames:
                self._output.put(frame)
            pause = _LOOK_SECONDS if frames else min(pause * 1.3, _LATEST_LOOK_SECONDS)
            try:
                self._runner.wait(pause)
            except subprocess.TimeoutExpired:
                continue
        for frame in self._mirror.look():
            self._output.put(frame)
        return code if code >= 0 else 128 - code

    def _leave(self) -> None:
        """Let the others go, and show the rest of what there is."""
        for line, _ in self._others.values():
            with contextlib.suppress(LineError):
                line.send({"do": "leave"})
        deadline = time.monotonic() + _LEAVE_SECONDS
        for reader in self._readers:
            reader.join(max(0.0, deadline - time.monotonic()))
        if self._pod.memory_kills():
            self._output.note("out of memory", -1 if self._node is None else self._node)
        if self._node is not None and self._pod.brings_files:
            here = self._pod.work_folder(self._node)
            name = f"nodes/node{self._node}"
            for frame in new_files(here, self._pod.unpacked, name=name, most=MOST_BYTES):
                self._output.put(frame)
        for node in self._others:
            there = f"{self._pod.folder}/nodes/node{node}"
            for frame in new_files(there, 0, name=f"nodes/node{node}", most=MOST_BYTES):
                self._output.put(frame)
        self._output.end()


class Output:
    """The log of the container: frames for a client, or lines for people."""

    def __init__(self, *, has_frames: bool) -> None:
        self._has_frames = has_frames
        self._number = 0
        self._process = ""

    def put(self, frame: Frame) -> None:
        if self._has_frames:
            self._number += 1
            self._write(to_line({"n": self._number, **frame}) + "\n")
        elif "left_out" in frame:
            say(f"{frame['left_out']} stays in its pod")
        elif "note" in frame:
            say(f"{frame['note']}: node {frame['values'][0]}")
        elif str(frame.get("path", "")).endswith("/output.log") and frame.get("text"):
            process = str(frame["path"]).split("/")[-2]
            head = f"--- {process} ---\n" if process != self._process else ""
            self._process = process
            self._write(head + frame["text"])

    def note(self, what: str, *values: int) -> None:
        """Tell how far it is, which is in no file."""
        if self._has_frames:
            self._number += 1
            self._write(to_line({"n": self._number, "note": what, "values": list(values)}) + "\n")
        else:
            say(f"{what}: {' of '.join(map(str, values))}")

    def end(self) -> None:
        """Tell that this was all."""
        if self._has_frames:
            self._number += 1
            self._write(to_line({"n": self._number, "end": True}) + "\n")

    def _write(self, text: str) -> None:
        data = text.encode(errors="surrogateescape")
        # Nobody keeps it.
        with contextlib.suppress(OSError):
            while data:
                data = data[os.write(1, data) :]
