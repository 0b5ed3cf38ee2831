"""Kernels from their start to their end, and the process that none of them outlives."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from .cells import section
from .notebook_results import MISSING_KERNEL, NO_START, NotebookFailure, NotebookOrder, plain

MARKER = "RANKWISE_KERNELS"
"""A variable in the environment of kernels and of all that they start: so they are found."""
STARTUP_SECONDS = 60.0
SWEEP_SECONDS = 5.0
MOST_SAID = 4000  # bytes that a kernel has written by itself
LONGEST_SOCKET = 70  # the names of sockets are limited to 107
_NO_LAUNCHER = re.compile(r"No module named '?ipykernel")


# The supervisor


class KernelSupervisor:
    """A process that ends all kernels when this one is gone; it is made before anything heavy."""

    def __init__(self) -> None:
        self.token = secrets.token_hex(8)
        self.folder = _short_folder()
        theirs, self._line = os.pipe()
        self._process = os.fork()
        if self._process == 0:
            os.close(self._line)
            _guard(theirs, self.token, self.folder)
        os.close(theirs)

    def began(self, group: int) -> None:
        """Tell of a group of processes that must not outlive us."""
        self._tell(f"+{group}\n")

    def ended(self, group: int) -> None:
        """Tell that a group is gone; its number may soon be somebody else's."""
        self._tell(f"-{group}\n")

    def _tell(self, text: str) -> None:
        with contextlib.suppress(OSError):
            os.write(self._line, text.encode())

    def close(self) -> None:
        """End all that is left, and wait until it is gone."""
        with contextlib.suppress(OSError):
            os.close(self._line)
        with contextlib.suppress(OSError):
            os.waitpid(self._process, 0)


def _short_folder() -> str:
    """Make a folder whose sockets have names that are short enough; the supervisor removes it."""
    for place in (tempfile.gettempdir(), "/tmp", "/var/tmp"):
        with contextlib.suppress(OSError):
            if len(place) + 30 <= LONGEST_SOCKET:
                return tempfile.mkdtemp(prefix="rankwise-nb-", dir=place)
    return tempfile.mkdtemp(prefix="rankwise-nb-")


def _guard(line: int, token: str, folder: str) -> NoReturn:
    """Be the supervisor: wait for the other end to be closed, by its process or by the kernel."""
    try:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(nothing, stream)
        os.closerange(3, line)
        os.closerange(line + 1, 256)
        groups: set[int] = set()
        text = ""
        while data := os.read(line, 65536):
            *lines, text = (text + data.decode()).split("\n")
            for one in lines:
                (groups.add if one[0] == "+" else groups.discard)(int(one[1:]))
        for group in groups:
            kill_group(group)
        _sweep(token)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os._exit(0)


def kill_group(group: int) -> None:
    with contextlib.suppress(OSError):
        os.killpg(group, signal.SIGKILL)


def _sweep(token: str) -> None:
    """Kill all processes that have our mark in their environment, where that can be read."""
    mark = f"{MARKER}={token}".encode()
    deadline = time.monotonic() + SWEEP_SECONDS
    while time.monotonic() < deadline:
        found = _marked(mark)
        for process in found:
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)
        if not found:
            return
        time.sleep(0.02)


def _marked(mark: bytes) -> list[int]:
    """Return the processes that have a mark in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark in path.read_bytes():
                found.append(int(path.parent.name))
    return found


# Kernels


@dataclass
class KernelChoice:
    """Which kernel a notebook runs with."""

    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    is_python: bool = True
    by_message: bool = False
    """Whether it is interrupted by a message, not by a signal."""
    name: str = ""


def choose_kernel(notebook: Any, order: NotebookOrder) -> KernelChoice:
    """Find the kernel for a notebook.

    Those in Python run with the interpreter of the runtime, whatever the kernel was called where
    they were written. Raises NotebookFailure if there is none.
    """
    spec = section(notebook.metadata, "kernelspec")
    said = section(notebook.metadata, "language_info")
    name = str(spec.get("name") or "")
    language = str(spec.get("language") or said.get("name") or "").lower()
    if name == "python2":
        raise NotebookFailure(MISSING_KERNEL, "the notebook is for Python 2")
    if language in ("python", "ipython") or not (language or name) or name.startswith("python"):
        return _python_kernel(order)
    return _other_kernel(name or language)


def _python_kernel(order: NotebookOrder) -> KernelChoice:
    python = shutil.which(order.kernel_python)
    if python is None:
        raise NotebookFailure(MISSING_KERNEL, f"there is no {order.kernel_python} in PATH")
    # What is run here is not what a person has typed: it does not belong into the history.
    words = ["-m", "ipykernel_launcher", "-f", "{connection_file}"]
    return KernelChoice([python, *words, "--HistoryManager.hist_file=:memory:"], name=python)


def _other_kernel(name: str) -> KernelChoice:
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

    manager = KernelSpecManager()
    try:
        spec = manager.get_kernel_spec(name)
    except NoSuchKernel:
        known = ", ".join(sorted(manager.find_kernel_specs())) or "none"
        reason = f"there is no kernel {name!r} here; known are: {known}"
        raise NotebookFailure(MISSING_KERNEL, reason) from None
    words = [word.replace("{resource_dir}", spec.resource_dir) for word in spec.argv]
    return KernelChoice(
        words,
        environment={key: os.path.expandvars(value) for key, value in spec.env.items()},
        is_python=spec.language == "python",
        by_message=spec.interrupt_mode == "message",
        name=name,
    )


class Kernel:
    """A kernel, from its start to its end."""

    def __init__(self, choice: KernelChoice, supervisor: KernelSupervisor) -> None:
        self.choice = choice
        self.info: dict[str, Any] = {}
        self.died: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.client: Any = None
        self._supervisor = supervisor
        self._process: subprocess.Popen[bytes] | None = None
        self._said = b""
        self._watch: asyncio.Task[None] | None = None

    @property
    def said(self) -> str:
        """Return the end of what the process has written outside of any cell."""
        return plain(self._said.decode(errors="replace")).strip()

    async def start(self, folder: Path) -> None:
        """Start it and wait until it answers; raises NotebookFailure."""
        deadline = time.monotonic() + STARTUP_SECONDS
        sockets = self._connect()
        self._launch(folder)
        while not all(map(os.path.exists, sockets)) and not self.died.done():
            await self._before(deadline)
        # Only now: whoever tries before there is somebody waits longer than need be.
        self.client.start_channels(hb=False, stdin=False)
        await self._ready(deadline)

    async def _before(self, deadline: float) -> None:
        if time.monotonic() > deadline:
            reason = f"the kernel did not answer within {STARTUP_SECONDS:g} s"
            raise NotebookFailure(NO_START, reason)
        await asyncio.sleep(0.01)

    def _connect(self) -> list[str]:
        """Prepare the connection; gives the files that are there when the kernel listens."""
        from jupyter_client.connect import write_connection_file

        base = tempfile.mkdtemp(prefix="k", dir=self._supervisor.folder)
        is_local = self.choice.is_python and len(base) <= LONGEST_SOCKET
        path, details = write_connection_file(
            f"{base}/kernel.json",
            # No ports that somebody else could take in between, or could connect to.
            transport="ipc" if is_local else "tcp",
            ip=f"{base}/s" if is_local else "127.0.0.1",
            key=secrets.token_hex(16).encode(),
        )
        self.client = _client_class()(is_running=lambda: not self.died.done())
        self.client.load_connection_file(path)
        self.choice.command = [
            word.replace("{connection_file}", path) for word in self.choice.command
        ]
        ports = [details["shell_port"], details["iopub_port"]]
        return [f"{details['ip']}-{port}" for port in ports] if is_local else []

    def _launch(self, folder: Path) -> None:
        environment = {
            **os.environ,
            **self.choice.environment,
            MARKER: self._supervisor.token,
            "JPY_PARENT_PID": str(os.getpid()),
            "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        }
        try:
            self._process = subprocess.Popen(
                self.choice.command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            reason = f"cannot start {self.choice.command[0]}: {error}"
            raise NotebookFailure(NO_START, reason) from None
        self._supervisor.began(self._process.pid)
        self._listen()
        self._watch = asyncio.ensure_future(self._wait())

    def _listen(self) -> None:
        """Keep the end of what it writes, so that it neither blocks nor fills a disk."""
        assert self._process is not None
        assert self._process.stdout is not None
        stream = self._process.stdout.fileno()
        os.set_blocking(stream, False)
        loop = asyncio.get_running_loop()

        def read() -> None:
            try:
                data = os.read(stream, 65536)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            self._said = (self._said + data)[-MOST_SAID:]
            if not data:
                loop.remove_reader(stream)

        loop.add_reader(stream, read)

    async def _wait(self) -> None:
        """Notice the end of the process, at once where the system can tell."""
        assert self._process is not None
        loop = asyncio.get_running_loop()
        gone = asyncio.Event()
        try:
            handle = os.pidfd_open(self._process.pid)
        except (AttributeError, OSError):
            while self._process.poll() is None:
                await asyncio.sleep(0.1)
        else:
            loop.add_reader(handle, gone.set)
            try:
                await gone.wait()
            finally:
                loop.remove_reader(handle)
                os.close(handle)
        self.died.set_result(self._process.wait())

    async def _ready(self, deadline: float) -> None:
        """Ask until an answer has come on both lines."""
        has_output = False
        while not (self.info and has_output):
            if self.died.done():
                raise self._stillborn()
            self.client.kernel_info()
            for _ in range(2):
                await self._before(deadline)
                shell = asyncio.ensure_future(self.client.get_shell_msg(timeout=1))
                output = asyncio.ensure_future(self.client.get_iopub_msg(timeout=1))
                await asyncio.wait({shell, output, self.died}, return_when=asyncio.FIRST_COMPLETED)
                await asyncio.wait({shell, output, self.died}, timeout=0.2)
                for task in (shell, output):
                    task.cancel()
                done = await asyncio.gather(shell, output, return_exceptions=True)
                reply, message = done
                if isinstance(reply, dict) and reply["msg_type"] == "kernel_info_reply":
                    self.info = reply["content"]
                has_output = has_output or isinstance(message, dict)
                if self.info and has_output:
                    break

    def _stillborn(self) -> NotebookFailure:
        """Say why it has ended before it has answered."""
        said = self.said
        if _NO_LAUNCHER.search(said):
            python = self.choice.name
            reason = f"{python} has no ipykernel: install it there with pip install ipykernel"
            return NotebookFailure(MISSING_KERNEL, reason, details=said)
        reason = f"the kernel {self.how_it_ended()} at its start"
        return NotebookFailure(NO_START, reason, details=said)

    def how_it_ended(self) -> str:
        """Say how the process has ended."""
        code = self.died.result() if self.died.done() else None
        if code is None:
            return "is there"
        if code >= 0:
            return f"left with exit code {code}"
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        hint = " (the machine may have been out of memory)" if name == "SIGKILL" else ""
        return f"was ended by {name}{hint}"

    def interrupt(self) -> None:
        """Ask it to stop what it does."""
        if self.choice.by_message:
            with contextlib.suppress(Exception):
                message = self.client.session.msg("interrupt_request", content={})
                self.client.control_channel.send(message)
        elif self._process is not None:
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, signal.SIGINT)

    async def end(self) -> None:
        """End it and all that it has started, at once."""
        if self._process is not None:
            kill_group(self._process.pid)
            await asyncio.wait({self.died}, timeout=SWEEP_SECONDS)
            # Others of its group may have outlived it for a moment.
            kill_group(self._process.pid)
            self._supervisor.ended(self._process.pid)
            loop = asyncio.get_running_loop()
            assert self._process.stdout is not None
            loop.remove_reader(self._process.stdout.fileno())
            self._process.stdout.close()
            if self._watch is not None and not self.died.done():
                self._watch.cancel()
        if self.client is not None:
            self.client.stop_channels()
            self.client.context.destroy(linger=0)


def _client_class() -> Any:
    """Return the client of jupyter_client, changed where a notebook could make it wait for ever."""
    from jupyter_client.asynchronous.client import AsyncKernelClient
    from jupyter_client.channels import AsyncZMQSocketChannel

    class PatientChannel(AsyncZMQSocketChannel):
        async def get_msg(self, *arguments: Any, **named: Any) -> Any:  # type: ignore[override]
            # A kernel that never stops to write would leave no moment for anything else.
            await asyncio.sleep(0)
            message: Any = super().get_msg(*arguments, **named)
            return await message

    class PatientClient(AsyncKernelClient):
        def __init__(self, is_running: Callable[[], bool]) -> None:
            super().__init__()
            self.allow_stdin = False
            self.iopub_channel_class = PatientChannel
            self._is_running = is_running

        async def is_alive(self) -> bool:
            return self._is_running()

    return PatientClient
