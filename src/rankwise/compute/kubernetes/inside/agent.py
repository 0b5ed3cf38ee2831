"""A pod that is no head: runs what it is told to, and shows the head what comes of it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any

from rankwise.compute.kubernetes.inside.line import Line, LineError, answer, call, listen
from rankwise.compute.kubernetes.inside.mirror import Mirror, new_files
from rankwise.compute.kubernetes.inside.pod import (
    MOST_BYTES,
    Pod,
    say,
)

_LOOK_SECONDS = 0.1
_ACK_SECONDS = 10.0
_END_SECONDS = 3.0
# The head may not be ready yet, or the network not be: pods start in any order.
_FIND_SECONDS = 600.0
_TRY_SECONDS = 1.0
_OUTPUT_SECONDS = 2.0


class Agent:
    """One pod."""

    def __init__(self, pod: Pod) -> None:
        self._pod = pod
        self._node = pod.nodes[int(os.environ.get("JOB_COMPLETION_INDEX", "0"))]
        self._mirror = Mirror(pod.folder, is_partial=True)
        self._showing = threading.Lock()
        self._numbers = 0
        self._acknowledged = 0
        self._heard = threading.Condition()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._is_over = threading.Event()
        self._head: Line | None = None

    def run(self) -> int:
        """Serve until the head has no more use for us, or is gone."""
        self._pod.unpack(self._node)
        self._pod.stand_in(self._node)
        signal.signal(signal.SIGTERM, lambda *_: self._is_over.set())
        signal.signal(signal.SIGINT, lambda *_: self._is_over.set())
        door = listen(self._pod.address, 0)
        self._head = head = self._find_head(door.getsockname()[1])
        if head is None:
            return 0 if self._is_over.is_set() else 1
        threading.Thread(target=self._hear, args=(head,), daemon=True).start()
        threading.Thread(target=self._open, args=(door,), daemon=True).start()
        while not self._is_over.wait(_LOOK_SECONDS):
            self._show()
        self._end_all()
        self._show(with_files=True)
        head.close()
        return 0

    def _find_head(self, port: int) -> Line | None:
        deadline = time.monotonic() + _FIND_SECONDS
        hello = {
            "node": self._node,
            "name": os.uname().nodename,
            "address": self._pod.address,
            "port": port,
        }
        while not self._is_over.is_set():
            try:
                line = call(self._pod.head, self._pod.port, self._pod.key)
                line.send(hello)
                return line
            except LineError as error:
                if time.monotonic() > deadline:
                    say(f"the head of the task is not at {self._pod.head}: {error}")
                    return None
                self._is_over.wait(_TRY_SECONDS)
        return None

    def _hear(self, head: Line) -> None:
        """Take in what the head says."""
        try:
            while True:
                said, _ = head.receive()
                if "order" in said:
                    self._pod.write_order(said["order"])
                elif "taken" in said:
                    with self._heard:
                        self._acknowledged = int(said["taken"])
                        self._heard.notify_all()
                elif said.get("do") == "leave":
                    # It still says what it has taken of what we show it last.
                    self._is_over.set()
        except LineError as error:
            if not self._is_over.is_set():
                say(f"the head of the task is gone: {error}")
        with self._heard:
            self._acknowledged = sys.maxsize
            self._heard.notify_all()
        self._is_over.set()

    # What is shown

    def _show(self, *, with_files: bool = False) -> None:
        """Send what has changed; returns when the head has it."""
        assert self._head is not None
        with self._showing:
            try:
                frames = list(self._mirror.look())
                if with_files and self._pod.brings_files:
                    name = f"nodes/node{self._node}"
                    frames += new_files(
                        self._pod.work_folder(self._node),
                        self._pod.unpacked,
                        name=name,
                        most=MOST_BYTES,
                    )
                if with_files and self._pod.memory_kills():
                    frames.append({"note": "out of memory", "values": [self._node]})
                for frame in frames:
                    self._head.send({"frame": frame})
                if not frames:
                    return
                self._numbers += len(frames)
                with self._heard:
                    wanted = self._numbers
                    self._heard.wait_for(lambda: self._acknowledged >= wanted, _ACK_SECONDS)
            except LineError:
                self._is_over.set()

    # What is run

    def _open(self, door: socket.socket) -> None:
        while True:
            connection, _ = door.accept()
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            line = answer(connection, self._pod.key)
            said, _ = line.receive()
        except LineError:
            return
        try:
            process = self._start(said)
        except OSError as error:
            _send(line, {"stream": "err"}, f"rankwise: {error}\n".encode())
            _send(line, {"exit": 126})
            line.close()
            return
        self._running.add(process)
        pumps = [
            threading.Thread(target=_pump, args=(line, stream, name), daemon=True)
            for stream, name in ((process.stdout, "out"), (process.stderr, "err"))
        ]
        for pump in pumps:
            pump.start()
        threading.Thread(target=_obey, args=(line, process), daemon=True).start()
        code = process.wait()
        for pump in pumps:
            # Something that it has left behind may hold the stream.
            pump.join(_OUTPUT_SECONDS)
        self._running.discard(process)
        # Before the head hears that it has ended, it knows what it has written down.
        self._show()
        _send(line, {"exit": code if code >= 0 else 128 - code})
        line.close()

    def _start(self, said: dict[str, Any]) -> subprocess.Popen[bytes]:
        for name, text in said["files"].items():
            self._pod.write_file(name, text)
        environment = {**self._pod.container, **said["set"], **self._pod.secrets()}
        for name in said["unset"]:
            environment.pop(name, None)
        return subprocess.Popen(
            said["command"],
            env=environment,
            cwd=self._pod.work_folder(self._node),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def _end_all(self) -> None:
        """End what still runs: asked first, and then killed."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in list(self._running):
                _signal(process, number)
            deadline = time.monotonic() + _END_SECONDS
            while self._running and time.monotonic() < deadline:
                time.sleep(0.02)


def _obey(line: Line, process: subprocess.Popen[bytes]) -> None:
    """Do what the caller says; one that is gone wants nothing any more."""
    with contextlib.suppress(LineError, OSError):
        while process.poll() is None:
            said, _ = line.receive()
            if said.get("do") == "input ended":
                assert process.stdin is not None
                process.stdin.close()
            elif said.get("do") == "end":
                break
    _signal(process, signal.SIGTERM)
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        _signal(process, signal.SIGKILL)


def _pump(line: Line, stream: Any, name: str) -> None:
    while data := os.read(stream.fileno(), 65536):
        _send(line, {"stream": name}, data)


def _send(line: Line, header: dict[str, Any], body: bytes = b"") -> None:
    # The caller is gone, which `_obey` notices.
    with contextlib.suppress(LineError):
        line.send(header, body)


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    # It has just ended.
    with contextlib.suppress(OSError):
        os.killpg(process.pid, number)
