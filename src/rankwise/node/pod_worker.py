"""A pod that is no head: runs what it is told to, and shows the head what comes of it.

    call ADDRESS PORT COMMAND…

runs a command in such a pod, as ssh would: called by the runner and by launchers. Variables that
differ from those of the container go along. So do the files that the runner has made for the
processes. The standard input is not passed on, only that it has ended.
"""

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

from .files import read_json, read_text, write_file
from .mirror import FolderMirror
from .order import Placement, read_order
from .pod import Pod, exit_code, say
from .wire import PodConnection, PodConnectionError, answer, answer_all, call, listen

_LOOK_SECONDS = 0.1
# How long the head may take to confirm what it was shown, before we look again.
_ACK_SECONDS = 10.0
_END_SECONDS = 3.0
# The head may not be ready yet, or the network not be: pods start in any order.
_FIND_SECONDS = 600.0
_TRY_SECONDS = 1.0
# How long output may come after the end of a command.
_OUTPUT_SECONDS = 2.0
# As ssh says that it has not reached a host.
CANNOT = 255
_CONNECT_SECONDS = 60.0


class Worker:
    """One pod."""

    def __init__(self, pod: Pod) -> None:
        self._pod = pod
        self._node = pod.nodes[int(os.environ.get("JOB_COMPLETION_INDEX", "0"))]
        self._mirror = FolderMirror(pod.folder, is_partial=True)
        self._showing = threading.Lock()
        self._numbers = 0
        self._acknowledged = 0
        self._heard = threading.Condition()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._has_run = False
        self._is_over = threading.Event()
        # Whether the head needs us no more: only then all that we have run has an end.
        self._is_let_go = False
        self._signal = 0
        # Whether the head knows that we are to end.
        self._is_known = False
        self._head: PodConnection | None = None

    def run(self) -> int:
        """Serve until the head needs us no more, or is gone."""
        self._pod.unpack(self._node)
        self._pod.stand_in(self._node)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note_signal)
        door = listen(self._pod.address, 0)
        self._head = head = self._find_head(door.getsockname()[1])
        if head is None:
            return 128 + self._signal if self._signal else 1
        threading.Thread(target=self._hear, args=(head,), daemon=True).start()
        threading.Thread(target=answer_all, args=(door, self._serve), daemon=True).start()
        while not (self._is_over.wait(_LOOK_SECONDS) or self._signal):
            self._show(seconds=_ACK_SECONDS)
        self._is_over.set()
        is_early = not self._is_let_go and (bool(self._running) or not self._has_run)
        if is_early and self._signal:
            self._tell_why(head)
        self._end_all()
        self._show(is_last=True)
        _send(head, {"farewell": True})
        head.close()
        return 0 if not is_early else 128 + self._signal if self._signal else 1

    def _tell_why(self, head: PodConnection) -> None:
        """Have the head know the signal before anything here ends by it, and takes others along."""
        _send(head, {"taken away": f"it was asked to end by signal {self._signal}"})
        with self._heard:
            self._heard.wait_for(lambda: self._is_known, _END_SECONDS)

    def _note_signal(self, number: int, _: object) -> None:
        # Nothing with a lock: the thread that it interrupts may hold that.
        self._signal = number

    def _find_head(self, port: int) -> PodConnection | None:
        deadline = time.monotonic() + _FIND_SECONDS
        hello = {
            "node": self._node,
            "name": os.uname().nodename,
            "pod": os.environ.get("RANKWISE_POD", ""),
            "address": self._pod.address,
            "port": port,
        }
        while not self._signal:
            try:
                line = call(self._pod.head, self._pod.port, self._pod.key)
                line.send(hello)
                return line
            except PodConnectionError as error:
                if time.monotonic() > deadline:
                    say(f"the head of the task is not at {self._pod.head}: {error}")
                    return None
                time.sleep(_TRY_SECONDS)
        return None

    def _hear(self, head: PodConnection) -> None:
        """Take in what the head says."""
        try:
            while True:
                said, _ = head.receive()
                if "placement" in said:
                    self._pod.place(Placement.read(said["placement"]))
                elif said.get("do") == "leave":
                    # It still says what it has taken of what we show it last.
                    self._is_let_go = True
                    self._is_over.set()
                with self._heard:
                    self._acknowledged = int(said.get("taken", self._acknowledged))
                    self._is_known |= "known" in said
                    self._heard.notify_all()
        except PodConnectionError as error:
            if not self._is_over.is_set():
                say(f"the head of the task is gone: {error}")
        with self._heard:
            self._is_known = True
            self._acknowledged = sys.maxsize
            self._heard.notify_all()
        self._is_over.set()

    # What is shown

    def _show(self, *, is_last: bool = False, seconds: float | None = None) -> None:
        """Send what has changed, with `is_last` all that there is.

        Returns when the head has it or is gone, at the latest after these seconds, if given.
        """
        assert self._head is not None
        with self._showing:
            try:
                frames = list(self._mirror.look(is_last=is_last))
                if is_last:
                    frames += self._pod.left_files(self._node)
                    if self._pod.ran_out_of_memory():
                        frames.append({"note": "out of memory", "values": [self._node]})
                for frame in frames:
                    self._head.send({"frame": frame})
            except PodConnectionError:
                self._is_over.set()
                return
            self._numbers += len(frames)
            wanted = self._numbers
        with self._heard:
            self._heard.wait_for(lambda: self._acknowledged >= wanted, seconds)

    # What is run

    def _serve(self, connection: socket.socket) -> None:
        try:
            line = answer(connection, self._pod.key)
            said, _ = line.receive()
        except PodConnectionError:
            return
        if self._is_over.is_set() or self._signal:
            # What is started now would be ended unseen.
            line.close()
            return
        try:
            process = self._start(said)
        except OSError as error:
            _send(line, {"stream": "err"}, f"rankwise: {error}\n".encode())
            _send(line, {"exit": 126})
            line.close()
            return
        self._has_run = True
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
        # Before the head hears that it has ended, it knows what it has written down.
        self._show()
        _send(line, {"exit": exit_code(code)})
        line.close()
        # Only now: if the pod left before, the end of this process would not be reported.
        self._running.discard(process)

    def _start(self, said: dict[str, Any]) -> subprocess.Popen[bytes]:
        for name, text in said["files"].items():
            mode = 0o777 if name.startswith("bin/") else 0o666
            write_file(f"{self._pod.folder}/{name}", text, mode)
        environment = {**self._pod.container, **said["set"], **self._pod.secrets()}
        for name in said["unset"]:
            environment.pop(name, None)
        return subprocess.Popen(
            said["command"],
            env=environment,
            cwd=self._pod.order.nodes[self._node].folder,
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


def _obey(line: PodConnection, process: subprocess.Popen[bytes]) -> None:
    """Do what the caller says; end the process if the caller is gone."""
    assert process.stdin is not None
    with contextlib.suppress(PodConnectionError, OSError), process.stdin as pipe:
        while process.poll() is None:
            said, _ = line.receive()
            if said.get("do") == "input ended":
                pipe.close()
            elif said.get("do") == "end":
                break
    _signal(process, signal.SIGTERM)
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        _signal(process, signal.SIGKILL)


def _pump(line: PodConnection, stream: Any, name: str) -> None:
    with stream:
        while data := os.read(stream.fileno(), 65536):
            _send(line, {"stream": name}, data)


def _send(line: PodConnection, header: dict[str, Any], body: bytes = b"") -> None:
    # If the other end is gone, the thread that reads from it notices.
    with contextlib.suppress(PodConnectionError):
        line.send(header, body)


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    # It has just ended.
    with contextlib.suppress(OSError):
        os.killpg(process.pid, number)


# From another pod


def run_in_other_pod(address: str, port: str, *command: str) -> int:
    """Run a command in another pod, and return its exit code."""
    work = os.environ["RANKWISE_WORK"]
    with open(f"{os.environ['RANKWISE_KEYS']}/key", "rb") as file:
        key = file.read()
    try:
        line = call(address, int(port), key, seconds=_CONNECT_SECONDS)
        line.send({"do": "run", "command": command, **_surroundings(work)})
    except (OSError, ValueError) as error:
        print(f"rankwise: the pod at {address} cannot be reached: {error}", file=sys.stderr)
        return CANNOT
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: _send(line, {"do": "end"}))
    threading.Thread(target=_tell_end_of_input, args=(line,), daemon=True).start()
    return _relay(line, address)


def _surroundings(work: str) -> dict[str, Any]:
    """Return what the command needs there that it has here."""
    before: dict[str, str] = read_json(f"{work}/container.json")
    secret = set(os.environ.get("RANKWISE_SECRETS", "").split(","))
    now = {name: value for name, value in os.environ.items() if name not in secret}
    folder = f"{work}/attempt"
    names = [*read_order(folder).files, "etc-hosts"]
    names += [f"bin/{name}" for name in sorted(os.listdir(f"{folder}/bin"))]
    return {
        "set": {name: value for name, value in now.items() if before.get(name) != value},
        "unset": [name for name in before if name not in os.environ],
        "files": {name: read_text(f"{folder}/{name}") for name in names},
    }


def _tell_end_of_input(line: PodConnection) -> None:
    with contextlib.suppress(OSError):
        while os.read(0, 65536):
            pass
    _send(line, {"do": "input ended"})


def _relay(line: PodConnection, address: str) -> int:
    """Write what the command writes, until it has ended."""
    while True:
        try:
            said, body = line.receive()
        except PodConnectionError as error:
            print(f"rankwise: the pod at {address} is gone: {error}", file=sys.stderr)
            return CANNOT
        if "exit" in said:
            return int(said["exit"])
        sink = 1 if said.get("stream") == "out" else 2
        # The launcher may have closed its end.
        with contextlib.suppress(OSError):
            while body:
                body = body[os.write(sink, body) :]
