"""Kernels and other processes of a notebook, and the supervisor that none of them outlives."""

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from .cells import section
from .notebook_results import Ended, NotebookFailure, NotebookOrder, plain

MARKER = "RANKWISE_KERNELS"
"""A variable in the environment of kernels, inherited by what they start: the sweep finds it."""
STARTUP_SECONDS = 60.0
SWEEP_SECONDS = 5.0
MOST_KERNEL_OUTPUT = 4000  # bytes that a kernel has written outside of cells
LONGEST_SOCKET = 70  # the kernel adds to this name, and the system allows 107 characters
_NO_LAUNCHER = re.compile(r"No module named '?ipykernel")


class KernelSupervisor:
    """A process that ends all kernels when this one is gone.

    Make it before heavy modules are loaded: it is a fork, and keeps what is loaded by then.
    """

    def __init__(self) -> None:
        self.token = secrets.token_hex(8)
        self.folder = _short_folder()
        # The system closes our end even if this process is killed: the supervisor waits for that.
        theirs, self._pipe = os.pipe()
        self._process = os.fork()
        if self._process == 0:
            os.close(self._pipe)
            _supervise(theirs, self.token, self.folder)
        os.close(theirs)

    def tell(self, group: int, *, is_alive: bool) -> None:
        """Say that a process group must not outlive us, or is gone: its id may be reused."""
        with contextlib.suppress(OSError):
            os.write(self._pipe, f"{'+' if is_alive else '-'}{group}\n".encode())

    def close(self) -> None:
        """End all that is left, and wait until it is gone."""
        with contextlib.suppress(OSError):
            os.close(self._pipe)
            os.waitpid(self._process, 0)


def _short_folder() -> str:
    """Make a folder for sockets, if possible one with a short name; the supervisor removes it."""
    for place in (tempfile.gettempdir(), "/tmp", "/var/tmp"):
        with contextlib.suppress(OSError):
            if len(place) + 30 <= LONGEST_SOCKET:
                return tempfile.mkdtemp(prefix="rankwise-nb-", dir=place)
    return tempfile.mkdtemp(prefix="rankwise-nb-")


def _supervise(pipe: int, token: str, folder: str) -> NoReturn:
    """Be the supervisor: wait until the other end of the pipe is closed, and end what is left."""
    try:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(nothing, stream)
        # Only ours may stay open: an inherited one would keep a terminal or a pipe of others alive.
        os.closerange(3, pipe)
        os.closerange(pipe + 1, 256)
        groups: set[int] = set()
        text = ""
        while data := os.read(pipe, 65536):
            *lines, text = (text + data.decode()).split("\n")
            for line in lines:
                (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
        for group in groups:
            kill_group(group)
        _sweep(token)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os._exit(0)


def kill_group(group: int) -> None:
    """Kill all processes of a group that are still there."""
    with contextlib.suppress(OSError):
        os.killpg(group, signal.SIGKILL)


def _sweep(token: str) -> None:
    """Kill all processes that have our mark in their environment, where that can be read."""
    mark = f"{MARKER}={token}".encode()
    deadline = time.monotonic() + SWEEP_SECONDS
    # Again until none is found: what is killed may have started something meanwhile.
    while time.monotonic() < deadline and _kill_marked(mark):
        time.sleep(0.02)


def _kill_marked(mark: bytes) -> bool:
    """Kill each process that has a mark in its environment; returns whether there was one."""
    found = False
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark in path.read_bytes():
                found = True
                os.kill(int(path.parent.name), signal.SIGKILL)
    return found


class SupervisedProcess:
    """A process in a group of its own, which ends at the latest when this program does."""

    def __init__(self, supervisor: KernelSupervisor, most_output: int) -> None:
        self.died: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._supervisor = supervisor
        self._most_output = most_output
        self._output = bytearray()
        self._has_written_all = asyncio.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._watch: asyncio.Task[None] | None = None

    @property
    def output(self) -> str:
        """The end of what the process has written."""
        return self._output.decode(errors="replace")

    def launch(self, command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        """Start the process; raises NotebookFailure."""
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env={**os.environ, **environment, MARKER: self._supervisor.token},
                start_new_session=True,
            )
        except OSError as error:
            reason = f"cannot start {command[0]}: {error}"
            raise NotebookFailure(Ended.NO_START, reason) from None
        # At once: from here on the process would outlive us.
        self._supervisor.tell(self._process.pid, is_alive=True)
        assert self._process.stdout is not None
        stream = self._process.stdout.fileno()
        # The event loop may call the reader when there is nothing to read.
        os.set_blocking(stream, False)
        asyncio.get_running_loop().add_reader(stream, self._read, stream)
        self._watch = asyncio.ensure_future(self._wait(self._process))

    def _read(self, stream: int) -> None:
        """Keep the end of what the process writes, so that it neither blocks nor fills a disk."""
        try:
            data = os.read(stream, 65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._output += data
        del self._output[: -self._most_output]
        if not data:
            self._has_written_all.set()
            asyncio.get_running_loop().remove_reader(stream)

    async def _wait(self, process: subprocess.Popen[bytes]) -> None:
        """Notice the end of the process, at once where the system can tell."""
        loop = asyncio.get_running_loop()
        gone = asyncio.Event()
        try:
            # From Python 3.9 and Linux 5.3 on.
            handle = os.pidfd_open(process.pid)
        except (AttributeError, OSError):
            while process.poll() is None:
                await asyncio.sleep(0.1)
        else:
            loop.add_reader(handle, gone.set)
            try:
                await gone.wait()
            finally:
                loop.remove_reader(handle)
                os.close(handle)
        self.died.set_result(process.wait())

    async def wait_for_output(self, seconds: float) -> None:
        """Read the rest of the output; what the process has left behind may hold the pipe open."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._has_written_all.wait(), seconds)

    async def end(self) -> None:
        """End the process and all that it has started, at once."""
        if self._process is None:
            return
        kill_group(self._process.pid)
        await asyncio.wait({self.died}, timeout=SWEEP_SECONDS)
        # Others of its group may have outlived it for a moment.
        kill_group(self._process.pid)
        self._supervisor.tell(self._process.pid, is_alive=False)
        assert self._process.stdout is not None
        asyncio.get_running_loop().remove_reader(self._process.stdout.fileno())
        self._process.stdout.close()
        if self._watch is not None and not self.died.done():
            self._watch.cancel()


# Kernels


@dataclass
class KernelChoice:
    """The kernel that a notebook runs with."""

    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    is_python: bool = True
    by_message: bool = False
    """Whether it is interrupted by a message in the place of a signal."""
    name: str = ""


def choose_kernel(notebook: Any, order: NotebookOrder) -> KernelChoice:
    """Find the kernel for a notebook.

    A notebook in Python runs with the interpreter of the runtime, whatever its kernel was called
    where it was written. Raises NotebookFailure if the kernel is not installed.
    """
    spec = section(notebook.metadata, "kernelspec")
    said = section(notebook.metadata, "language_info")
    name = str(spec.get("name") or "")
    language = str(spec.get("language") or said.get("name") or "").lower()
    if name == "python2":
        raise NotebookFailure(Ended.MISSING_KERNEL, "the notebook is for Python 2")
    # Without any metadata a notebook is taken for one in Python, as Jupyter does.
    if language in ("python", "ipython") or not (language or name) or name.startswith("python"):
        return _python_kernel(order)
    return _other_kernel(name or language)


def _python_kernel(order: NotebookOrder) -> KernelChoice:
    python = shutil.which(order.kernel_python)
    if python is None:
        raise NotebookFailure(Ended.MISSING_KERNEL, f"there is no {order.kernel_python} in PATH")
    # IPython's history is for what a person has typed.
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
        raise NotebookFailure(Ended.MISSING_KERNEL, reason) from None
    words = [word.replace("{resource_dir}", spec.resource_dir) for word in spec.argv]
    return KernelChoice(
        words,
        environment={key: os.path.expandvars(value) for key, value in spec.env.items()},
        is_python=spec.language == "python",
        by_message=spec.interrupt_mode == "message",
        name=name,
    )


class Kernel(SupervisedProcess):
    """A kernel, from its start to its end."""

    def __init__(self, choice: KernelChoice, supervisor: KernelSupervisor) -> None:
        super().__init__(supervisor, MOST_KERNEL_OUTPUT)
        self.choice = choice
        self.info: dict[str, Any] = {}
        self.client: Any = None

    async def start(self, folder: Path) -> None:
        """Start the kernel and wait until it answers; raises NotebookFailure."""
        deadline = time.monotonic() + STARTUP_SECONDS
        sockets = self._connect()
        # The kernel ends itself when the process of this id is gone.
        own = {"JPY_PARENT_PID": str(os.getpid()), "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
        self.launch(self.choice.command, folder, {**self.choice.environment, **own})
        while not all(map(os.path.exists, sockets)) and not self.died.done():
            await self._before(deadline)
        # Not earlier: a connection that fails is tried again only after a pause.
        self.client.start_channels(hb=False, stdin=False)
        await self._ready(deadline)

    async def _before(self, deadline: float) -> None:
        """Wait a moment; raises NotebookFailure after the deadline."""
        if time.monotonic() > deadline:
            reason = f"the kernel did not answer within {STARTUP_SECONDS:g} s"
            raise NotebookFailure(Ended.NO_START, reason)
        # Short: it delays every notebook.
        await asyncio.sleep(0.01)

    def _connect(self) -> list[str]:
        """Prepare the connection; returns the files that exist as soon as the kernel listens."""
        from jupyter_client.connect import write_connection_file

        base = tempfile.mkdtemp(prefix="k", dir=self._supervisor.folder)
        # Kernels of other languages may know no other transport than TCP.
        is_local = self.choice.is_python and len(base) <= LONGEST_SOCKET
        path, details = write_connection_file(
            f"{base}/kernel.json",
            # Unlike ports, sockets in our own folder cannot be taken or used by another program.
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

    async def _ready(self, deadline: float) -> None:
        """Ask until an answer has come on both channels.

        Output that a kernel sends before the client is subscribed is lost: so it is asked again.
        """
        has_output = False
        while not (self.info and has_output):
            if self.died.done():
                raise self._start_failure()
            self.client.kernel_info()
            for _ in range(2):
                await self._before(deadline)
                shell = asyncio.ensure_future(self.client.get_shell_msg(timeout=1))
                output = asyncio.ensure_future(self.client.get_iopub_msg(timeout=1))
                await asyncio.wait({shell, output, self.died}, return_when=asyncio.FIRST_COMPLETED)
                await asyncio.wait({shell, output, self.died}, timeout=0.2)
                for task in (shell, output):
                    task.cancel()
                done: Any = await asyncio.gather(shell, output, return_exceptions=True)
                reply, message = done
                if isinstance(reply, dict) and reply["msg_type"] == "kernel_info_reply":
                    self.info = reply["content"]
                has_output = has_output or isinstance(message, dict)
                if self.info and has_output:
                    break

    def _start_failure(self) -> NotebookFailure:
        """Explain why the kernel has ended before it has answered."""
        details = plain(self.output).strip()
        if _NO_LAUNCHER.search(details):
            python = self.choice.name
            reason = f"{python} has no ipykernel: install it there with pip install ipykernel"
            return NotebookFailure(Ended.MISSING_KERNEL, reason, details=details)
        reason = f"the kernel {self.how_it_ended()} at its start"
        return NotebookFailure(Ended.NO_START, reason, details=details)

    def death(self, where: str, cell: int | None = None) -> NotebookFailure:
        """Return the failure of a notebook whose kernel has died."""
        reason = f"the kernel {self.how_it_ended()}, {where}"
        details = plain(self.output).strip()
        return NotebookFailure(Ended.KERNEL_DIED, reason, cell=cell, details=details)

    def how_it_ended(self) -> str:
        """Say how the process has ended; it must have."""
        if (code := self.died.result()) >= 0:
            return f"exited with code {code}"
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        # Most kernels that end by this signal were killed by the system for their memory.
        hint = " (the machine may have been out of memory)" if name == "SIGKILL" else ""
        return f"was ended by {name}{hint}"

    def interrupt(self) -> None:
        """Ask the kernel to stop what it does."""
        if self.choice.by_message:
            with contextlib.suppress(Exception):
                message = self.client.session.msg("interrupt_request", content={})
                self.client.control_channel.send(message)
        elif self._process is not None:
            with contextlib.suppress(OSError):
                # The group: the cell may wait for a process that it has started.
                os.killpg(self._process.pid, signal.SIGINT)

    async def end(self) -> None:
        await super().end()
        if self.client is not None:
            self.client.stop_channels()
            # Otherwise it waits for messages that no kernel will read.
            self.client.context.destroy(linger=0)


def _client_class() -> Any:
    """Return the client of jupyter_client, changed where a notebook could make it wait for ever."""
    from jupyter_client.asynchronous.client import AsyncKernelClient
    from jupyter_client.channels import AsyncZMQSocketChannel

    class PatientChannel(AsyncZMQSocketChannel):
        async def get_msg(self, *arguments: Any, **named: Any) -> Any:  # type: ignore[override]
            # Otherwise nothing else, such as a time limit, gets a turn while a kernel writes.
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
