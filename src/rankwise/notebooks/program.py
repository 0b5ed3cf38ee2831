"""Run notebooks, and leave behind what became of them.

    INTERPRETER program.py NOTEBOOK… --out FOLDER [options]     see --help
    INTERPRETER program.py --serve [--jobs N]                   orders come as lines of JSON

One file, so that it can be handed to any interpreter that has nbclient: it imports nothing of ours.
In FOLDER it leaves the executed notebook (whatever became of it), a page of HTML, the pictures,
`outcome.json` and a JUnit file with a case for each cell. The exit code is 0 only if all passed.

The interpreter of the kernel is `python`, as PATH has it: that is the one of the runtime, which
need not be the one that runs this program. Every kernel is in a session of its own; a process
beside us, the guardian, ends them all when this process is gone, however that came about.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import difflib
import html
import importlib.util
import json
import math
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn
from xml.etree import ElementTree

MARKER = "RANKWISE_KERNELS"
"""A variable in the environment of kernels and of all that they start: so they are found."""

DEFAULT_TIMEOUT = 600.0
STARTUP_SECONDS = 60.0
INTERRUPT_SECONDS = 3.0
PDF_SECONDS = 120.0
SWEEP_SECONDS = 5.0
MOST_OUTPUT = 10_000_000  # bytes of a cell, in the notebook
MOST_PRINTED = 20_000  # characters of a cell, in the log
MOST_SAID = 4000  # bytes that a kernel has written by itself
LONGEST_SOCKET = 70  # the names of sockets are limited to 107
SAVE_SECONDS = 2.0

PASSED = "passed"
ERROR = "error"
DIFFERS = "output differs"
TIMED_OUT = "timed out"
KERNEL_DIED = "kernel died"
NEEDS_INPUT = "needs input"
MISSING_KERNEL = "missing kernel"
NO_START = "kernel did not start"
UNREADABLE = "unreadable"
CANNOT_WRITE = "cannot write"
CANCELLED = "cancelled"
INTERNAL = "internal error"

USAGE = 2

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{4,}\b")
_NO_LAUNCHER = re.compile(r"No module named '?ipykernel")


# What is asked for, and what became of it


@dataclass
class Order:
    """One notebook to run."""

    notebook: Path
    out: Path
    junit: Path | None = None
    kernel_python: str = "python"
    timeout: float | None = None
    cell_timeout: float | None = None
    parameters: dict[str, Any] = field(default_factory=dict)
    html: bool = False
    pdf: bool = False
    as_script: bool = False
    compare: str = "tagged"

    @property
    def stem(self) -> str:
        return self.notebook.stem

    @property
    def folder(self) -> Path:
        """Where it runs: its own folder, as in Jupyter."""
        return self.notebook.absolute().parent


@dataclass
class Case:
    """What became of one cell, or of another part of the notebook."""

    cell: int
    title: str
    state: str = "not run"
    seconds: float = 0.0
    reason: str = ""
    details: str = ""


class Trouble(Exception):
    """Why a notebook has not passed."""

    def __init__(self, outcome: str, reason: str, *, cell: int | None = None, details: str = ""):
        super().__init__(reason)
        self.outcome = outcome
        self.reason = reason
        self.cell = cell
        self.details = details


@dataclass
class Result:
    """All that is known of a notebook that was run."""

    order: Order
    outcome: str = PASSED
    reason: str = ""
    cell: int | None = None
    details: str = ""
    started: float = field(default_factory=time.time)
    seconds: float = 0.0
    cases: list[Case] = field(default_factory=list)
    kernel: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    injected: int | None = None
    """Where a cell with parameters was put in, among those of the notebook."""

    def take(self, trouble: Trouble) -> None:
        """Note why it has not passed."""
        self.outcome, self.reason = trouble.outcome, trouble.reason
        self.cell, self.details = trouble.cell, trouble.details

    def as_dict(self) -> dict[str, Any]:
        """Give what is written into outcome.json."""
        return {
            "outcome": self.outcome,
            "reason": self.reason,
            "cell": self.cell,
            "details": self.details,
            "notebook": str(self.order.notebook),
            "started": self.started,
            "seconds": round(self.seconds, 3),
            "kernel": self.kernel,
            "notes": self.notes,
            "files": self.files,
            "cells": [
                {
                    "cell": case.cell,
                    "title": case.title,
                    "state": case.state,
                    "seconds": round(case.seconds, 3),
                    "reason": case.reason,
                }
                for case in self.cases
            ],
        }


def number_of(index: int, injected: int | None) -> int:
    """Give the number of a cell in the notebook as it was written; 0: it is not in there."""
    if injected is None or index < injected:
        return index + 1
    return 0 if index == injected else index


def say(text: str) -> None:
    """Write to the log; one that nobody reads is no reason to stop."""
    with contextlib.suppress(OSError, ValueError):
        print(text, flush=True)


def plain(text: object) -> str:
    """Give a text without what colours it."""
    return _ANSI.sub("", str(text))


def readable(text: str) -> str:
    """Give a text as a terminal shows it: of lines that were written over, the last is left."""
    lines = plain(text).replace("\r\n", "\n").split("\n")
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines)


def counted(seconds: float) -> str:
    """Give a time limit in words."""
    return f"{seconds:g} s"


# The guardian


class Guardian:
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
    """Make a folder whose sockets have names that are short enough; the guardian removes it."""
    for place in (tempfile.gettempdir(), "/tmp", "/var/tmp"):
        with contextlib.suppress(OSError):
            if len(place) + 30 <= LONGEST_SOCKET:
                return tempfile.mkdtemp(prefix="rankwise-nb-", dir=place)
    return tempfile.mkdtemp(prefix="rankwise-nb-")


def _guard(line: int, token: str, folder: str) -> NoReturn:
    """Be the guardian: wait for the other end to be closed, by its process or by the kernel."""
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
            _kill_group(group)
        _sweep(token)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os._exit(0)


def _kill_group(group: int) -> None:
    with contextlib.suppress(OSError):
        os.killpg(group, signal.SIGKILL)


def _sweep(token: str) -> None:
    """Kill all processes that have our mark in their environment, where that can be read."""
    mark = f"{MARKER}={token}".encode()
    deadline = time.monotonic() + SWEEP_SECONDS
    while time.monotonic() < deadline:
        found = [process for process in _processes() if mark in _environment_of(process)]
        for process in found:
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)
        if not found:
            return
        time.sleep(0.02)


def _processes() -> list[int]:
    try:
        return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    except OSError:
        return []


def _environment_of(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/environ").read_bytes()
    except OSError:
        return b""


# Kernels


@dataclass
class Choice:
    """Which kernel a notebook runs with."""

    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    is_python: bool = True
    by_message: bool = False
    """Whether it is interrupted by a message, not by a signal."""
    name: str = ""


def choose_kernel(notebook: Any, order: Order) -> Choice:
    """Find the kernel for a notebook.

    Those in Python run with the interpreter of the runtime, whatever the kernel was called where
    they were written. Raises Trouble if there is none.
    """
    spec = notebook.metadata.get("kernelspec") or {}
    said = notebook.metadata.get("language_info") or {}
    name = str(spec.get("name") or "")
    language = str(spec.get("language") or said.get("name") or "").lower()
    if name == "python2":
        raise Trouble(MISSING_KERNEL, "the notebook is for Python 2")
    if language in ("python", "ipython") or not (language or name) or name.startswith("python"):
        return _python_kernel(order)
    return _other_kernel(name or language)


def _python_kernel(order: Order) -> Choice:
    python = shutil.which(order.kernel_python)
    if python is None:
        raise Trouble(MISSING_KERNEL, f"there is no {order.kernel_python} in PATH")
    # What is run here is not what a person has typed: it does not belong into the history.
    words = ["-m", "ipykernel_launcher", "-f", "{connection_file}"]
    return Choice([python, *words, "--HistoryManager.hist_file=:memory:"], name=python)


def _other_kernel(name: str) -> Choice:
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

    manager = KernelSpecManager()
    try:
        spec = manager.get_kernel_spec(name)
    except NoSuchKernel:
        known = ", ".join(sorted(manager.find_kernel_specs())) or "none"
        reason = f"there is no kernel {name!r} here; known are: {known}"
        raise Trouble(MISSING_KERNEL, reason) from None
    words = [word.replace("{resource_dir}", spec.resource_dir) for word in spec.argv]
    return Choice(
        words,
        environment={key: os.path.expandvars(value) for key, value in spec.env.items()},
        is_python=spec.language == "python",
        by_message=spec.interrupt_mode == "message",
        name=name,
    )


class Kernel:
    """A kernel, from its start to its end."""

    def __init__(self, choice: Choice, guardian: Guardian) -> None:
        self.choice = choice
        self.info: dict[str, Any] = {}
        self.died: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.client: Any = None
        self._guardian = guardian
        self._process: subprocess.Popen[bytes] | None = None
        self._said = b""
        self._watch: asyncio.Task[None] | None = None

    @property
    def said(self) -> str:
        """Give the end of what the process has written outside of any cell."""
        return plain(self._said.decode(errors="replace")).strip()

    async def start(self, folder: Path, limit: float = STARTUP_SECONDS) -> None:
        """Start it and wait until it answers; raises Trouble."""
        deadline = time.monotonic() + limit
        sockets = self._connect()
        self._launch(folder)
        while not all(map(os.path.exists, sockets)) and not self.died.done():
            await self._before(deadline)
        # Only now: whoever tries before there is somebody waits longer than need be.
        self.client.start_channels(hb=False, stdin=False)
        await self._ready(deadline)

    async def _before(self, deadline: float) -> None:
        if time.monotonic() > deadline:
            raise Trouble(NO_START, f"the kernel did not answer within {counted(STARTUP_SECONDS)}")
        await asyncio.sleep(0.01)

    def _connect(self) -> list[str]:
        """Prepare the connection; gives the files that are there when the kernel listens."""
        from jupyter_client.connect import write_connection_file

        base = tempfile.mkdtemp(prefix="k", dir=self._guardian.folder)
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
            MARKER: self._guardian.token,
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
            raise Trouble(NO_START, f"cannot start {self.choice.command[0]}: {error}") from None
        self._guardian.began(self._process.pid)
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

    def _stillborn(self) -> Trouble:
        """Say why it has ended before it has answered."""
        said = self.said
        if _NO_LAUNCHER.search(said):
            python = self.choice.name
            reason = f"{python} has no ipykernel: install it there with pip install ipykernel"
            return Trouble(MISSING_KERNEL, reason, details=said)
        return Trouble(NO_START, f"the kernel {self.how_it_ended()} at its start", details=said)

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
            _kill_group(self._process.pid)
            await asyncio.wait({self.died}, timeout=SWEEP_SECONDS)
            # Others of its group may have outlived it for a moment.
            _kill_group(self._process.pid)
            self._guardian.ended(self._process.pid)
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
    """Give the client of jupyter_client, changed where a notebook could make it wait for ever."""
    from jupyter_client.asynchronous.client import AsyncKernelClient
    from jupyter_client.channels import AsyncZMQSocketChannel

    class Channel(AsyncZMQSocketChannel):
        async def get_msg(self, *arguments: Any, **named: Any) -> Any:  # type: ignore[override]
            # A kernel that never stops to write would leave no moment for anything else.
            await asyncio.sleep(0)
            message: Any = super().get_msg(*arguments, **named)
            return await message

    class Client(AsyncKernelClient):
        def __init__(self, is_running: Callable[[], bool]) -> None:
            super().__init__()
            self.allow_stdin = False
            self.iopub_channel_class = Channel
            self._is_running = is_running

        async def is_alive(self) -> bool:
            return self._is_running()

    return Client


# Running the cells


class Run:
    """One notebook, being run."""

    def __init__(self, order: Order, guardian: Guardian, is_quiet: bool) -> None:
        self.order = order
        self.result = Result(order)
        self.notebook: Any = None
        self.kernel: Kernel | None = None
        self._guardian = guardian
        self._is_quiet = is_quiet
        self._cell_cases: dict[int, Case] = {}
        self._before: list[Any] = []
        self._reply: dict[str, Any] = {}
        self._saved = time.monotonic()
        self._began = time.monotonic()

    def log(self, text: str) -> None:
        if not self._is_quiet:
            say(text)

    # The parts, in their order

    def read(self) -> Choice | None:
        """Read the notebook and find its kernel; None: it is not to be run."""
        try:
            self.notebook = _read(self.order.notebook)
            own = self.notebook.metadata.get("rankwise") or {}
            self._before = json.loads(json.dumps(self.notebook.cells))
            self.result.injected = inject(self.notebook, self.order.parameters)
            for index, cell in enumerate(self.notebook.cells):
                if cell.cell_type == "code":
                    self._clear(index, cell)
            if reason := own.get("needs_input"):
                words = "its metadata says so" if reason is True else str(reason)
                raise Trouble(NEEDS_INPUT, words)
            choice = choose_kernel(self.notebook, self.order)
            if self.order.parameters and not choice.is_python:
                raise Trouble(UNREADABLE, "parameters are for notebooks in Python")
        except Trouble as trouble:
            self._blame(trouble)
            return None
        else:
            return choice

    def _clear(self, index: int, cell: Any) -> None:
        """Forget what the notebook says of an earlier run."""
        number = self.number(index)
        first = next((line.strip() for line in cell.source.splitlines() if line.strip()), "")
        title = first if len(first) <= 60 else f"{first[:59]}…"
        case = Case(number, title or "empty")
        if "skip-execution" in _tags(cell):
            case.state, case.reason = "skipped", "it is tagged skip-execution"
        else:
            cell.outputs = []
            cell.execution_count = None
            if not cell.source.strip():
                case.state = "passed"
        self._cell_cases[index] = case
        self.result.cases.append(case)

    def number(self, index: int) -> int:
        """Give the number of a cell in the notebook as it was written; 0: it is not in there."""
        return number_of(index, self.result.injected)

    async def warm_up(self, choice: Choice) -> Kernel | None:
        """Start the kernel."""
        kernel = Kernel(choice, self._guardian)
        try:
            await kernel.start(self.order.folder)
        except Trouble as trouble:
            await kernel.end()
            self._blame(trouble)
            return None
        except BaseException:
            await kernel.end()
            raise
        return kernel

    async def execute(self, kernel: Kernel) -> None:
        """Run the cells, one after the other."""
        self.kernel = kernel
        self._began = time.monotonic()
        self.result.kernel = {
            "name": kernel.choice.name,
            "language": kernel.info.get("language_info", {}).get("name", ""),
            "version": kernel.info.get("language_info", {}).get("version", ""),
        }
        if language := kernel.info.get("language_info"):
            self.notebook.metadata["language_info"] = language
        try:
            await self._execute_cells(kernel)
        except Trouble as trouble:
            self._blame(trouble)
        finally:
            self.result.seconds = time.monotonic() - self._began

    async def _execute_cells(self, kernel: Kernel) -> None:
        client = self._make_client(kernel)
        limit = self._limit()
        differing: Trouble | None = None
        for index, cell in enumerate(self.notebook.cells):
            case = self._cell_cases.get(index)
            if case is None or case.state != "not run":
                continue
            began = time.monotonic()
            try:
                await self._execute_cell(client, kernel, index, cell, limit)
                case.state = "passed"
                if trouble := self._compare(index, cell):
                    case.state, case.reason = "failed", trouble.reason
                    case.details = trouble.details
                    differing = differing or trouble
            except (Trouble, asyncio.CancelledError):
                case.state = "failed"
                raise
            finally:
                case.seconds = time.monotonic() - began
                self.log(self._line(case, cell))
                self._save_at_times()
        with contextlib.suppress(Exception):
            client.set_widgets_metadata()
        await self._check_survival(kernel)
        if differing:
            raise differing

    def _make_client(self, kernel: Kernel) -> Any:
        execution = self.notebook.metadata.get("execution") or {}
        client = _executor_class()(
            self.notebook,
            log=self.log,
            allow_errors=bool(execution.get("allow_errors")),
            on_cell_executed=self._replied,
            # Its own way takes minutes for megabytes.
            coalesce_streams=False,
            record_timing=False,
        )
        client.kc = kernel.client
        return client

    def _replied(self, execute_reply: dict[str, Any], **_: Any) -> None:
        self._reply = execute_reply["content"]

    def _limit(self) -> float | None:
        """Give the seconds for all cells; None: no limit."""
        own = (self.notebook.metadata.get("rankwise") or {}).get("timeout")
        said = _first_number(self.order.timeout, own, DEFAULT_TIMEOUT)
        return said or None

    def _cell_limit(self, cell: Any) -> float | None:
        """Give the seconds for one cell; what is nearer to it counts."""
        whole = self.notebook.metadata
        said = _first_number(
            (cell.metadata.get("rankwise") or {}).get("timeout"),
            (cell.metadata.get("execution") or {}).get("timeout"),
            self.order.cell_timeout,
            (whole.get("rankwise") or {}).get("cell_timeout"),
            (whole.get("execution") or {}).get("timeout"),
        )
        return said if said is not None and said > 0 else None

    async def _execute_cell(
        self, client: Any, kernel: Kernel, index: int, cell: Any, limit: float | None
    ) -> None:
        self._reply = {}
        left = None if limit is None else max(0.0, self._began + limit - time.monotonic())
        own = self._cell_limit(cell)
        is_own = own is not None and (left is None or own < left)
        where = self._name(index)
        task = asyncio.ensure_future(
            client.async_execute_cell(cell, index, execution_count=client.code_cells_executed + 1)
        )
        try:
            await asyncio.wait(
                {task, kernel.died},
                timeout=own if is_own else left,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if task.done():
                self._check(task, index, cell)
            elif kernel.died.done():
                # What it has said before may still be on its way.
                await asyncio.wait({task}, timeout=0.2)
                raise self._death(kernel, where, index)
            else:
                reason = (
                    f"{where} took longer than {counted(own or 0)}"
                    if is_own
                    else f"the notebook took longer than {counted(limit or 0)}, in {where}"
                )
                raise await self._interrupted(task, kernel, index, reason)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=1.0)
            if task.done() and not task.cancelled():
                task.exception()

    def _check(self, task: asyncio.Future[Any], index: int, cell: Any) -> None:
        """Look at what has become of a cell that has come to its end."""
        from nbclient.exceptions import CellExecutionError, DeadKernelError

        where = self._name(index)
        error = task.exception()
        if error is None:
            payload = self._reply.get("payload") or ()
            if any(one.get("source") == "ask_exit" for one in payload):
                reason = f"{where} ends the kernel by exit(): what comes after it is not run"
                raise Trouble(ERROR, reason, cell=self.number(index))
            return
        if isinstance(error, DeadKernelError):
            assert self.kernel is not None
            raise self._death(self.kernel, where, index)
        if not isinstance(error, CellExecutionError):
            raise error
        lines = plain("\n".join(map(str, self._reply.get("traceback") or ())))
        details = lines or plain(getattr(error, "traceback", ""))
        name, value = str(error.ename), plain(error.evalue)
        if name == "StdinNotImplementedError":
            raise Trouble(NEEDS_INPUT, f"{where} asks for input", cell=self.number(index))
        if name in ("SystemExit", "KeyboardInterrupt") and not details.strip():
            details = "".join(plain(one.get("text", "")) for one in cell.outputs)
        said = f"{name}: {value.splitlines()[0]}" if value.strip() else name
        if name == "SystemExit":
            said = f"sys.exit({value}): what comes after it is not run"
        raise Trouble(ERROR, f"{where}: {said}", cell=self.number(index), details=details)

    def _death(self, kernel: Kernel, where: str, index: int) -> Trouble:
        reason = f"the kernel {kernel.how_it_ended()}, in {where}"
        return Trouble(KERNEL_DIED, reason, cell=self.number(index), details=kernel.said)

    async def _interrupted(
        self, task: asyncio.Future[Any], kernel: Kernel, index: int, reason: str
    ) -> Trouble:
        """Interrupt a cell that takes too long, to learn where it was."""
        kernel.interrupt()
        await asyncio.wait(
            {task, kernel.died}, timeout=INTERRUPT_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
        details = ""
        if task.done() and not task.cancelled() and task.exception() is not None:
            details = plain("\n".join(map(str, self._reply.get("traceback") or ())))
        elif not task.done() and not kernel.died.done():
            reason += "; it does not react to interrupts and was killed"
        return Trouble(TIMED_OUT, reason, cell=self.number(index), details=details)

    async def _check_survival(self, kernel: Kernel) -> None:
        """Make sure that the kernel has not died of the last cell."""
        kernel.client.kernel_info()
        answer = asyncio.ensure_future(kernel.client.get_shell_msg(timeout=2))
        await asyncio.wait({answer, kernel.died}, return_when=asyncio.FIRST_COMPLETED)
        answer.cancel()
        await asyncio.gather(answer, return_exceptions=True)
        if kernel.died.done():
            reason = f"the kernel {kernel.how_it_ended()}, after the last cell"
            raise Trouble(KERNEL_DIED, reason, details=kernel.said)

    def _compare(self, index: int, cell: Any) -> Trouble | None:
        number = self.number(index)
        if number and _is_compared(cell, self.order.compare):
            before = self._before[number - 1].get("outputs") or []
            if difference := differences(before, cell.outputs):
                reason = f"{self._name(index)} has another output than the one that is stored"
                return Trouble(DIFFERS, reason, cell=number, details=difference)
        return None

    # What is said

    def _name(self, index: int) -> str:
        number = self.number(index)
        return f"cell {number}" if number else "the cell with the parameters"

    def _line(self, case: Case, cell: Any) -> str:
        count = f" [{cell.execution_count}]" if cell.get("execution_count") else ""
        name = f"cell {case.cell}" if case.cell else "parameters"
        return f"--- {name}{count} {case.state} after {case.seconds:.2f} s: {case.title}"

    def _blame(self, trouble: Trouble) -> None:
        """Note why it has not passed, and which cells have not been run therefore."""
        self.result.take(trouble)
        for case in self.result.cases:
            if case.state == "failed" and not case.reason:
                case.reason = trouble.reason
                case.details = trouble.details
            elif case.state == "not run":
                case.state, case.reason = "skipped", f"not run: {trouble.reason}"

    def _save_at_times(self) -> None:
        """Save what there is: whoever kills us takes no more than the last seconds with him."""
        if time.monotonic() - self._saved > SAVE_SECONDS:
            with contextlib.suppress(OSError):
                write(self.order.out / self.order.notebook.name, _as_text(self.notebook))
            self._saved = time.monotonic()


def _first_number(*values: object) -> float | None:
    numbers = (one for one in values if isinstance(one, (int, float)) and one is not True)
    return next((float(one) for one in numbers if one is not False), None)


def _tags(cell: Any) -> list[str]:
    tags = cell.metadata.get("tags") or ()
    return [str(tag) for tag in tags] if isinstance(tags, (list, tuple)) else []


def _executor_class() -> Any:
    """Give the client of nbclient, with a limit to what a cell may write."""
    from nbclient import NotebookClient

    class Executor(NotebookClient):
        def __init__(self, notebook: Any, *, log: Callable[[str], None], **named: Any) -> None:
            super().__init__(notebook, **named)
            self._say = log
            self._index = -1
            self._kept = 0
            self._printed = 0

        def output(self, outs: Any, msg: Any, display_id: Any, cell_index: int) -> Any:
            if cell_index != self._index:
                self._index, self._kept, self._printed = cell_index, 0, 0
            content = msg["content"]
            text = content.get("text", "") if msg["msg_type"] == "stream" else ""
            if text and self._printed < MOST_PRINTED:
                self._say(readable(text[: MOST_PRINTED - self._printed]).rstrip("\n"))
                self._printed += len(text)
            was_full = self._kept > MOST_OUTPUT
            self._kept += len(text) or len(str(content.get("data", "")))
            if self._kept > MOST_OUTPUT and msg["msg_type"] != "error":
                if was_full:
                    return None
                note = f"\n[more than {MOST_OUTPUT} bytes: the rest is left out]\n"
                msg = {**msg, "msg_type": "stream", "content": {"name": "stdout", "text": note}}
                msg["header"] = {**msg["header"], "msg_type": "stream"}
            made = super().output(outs, msg, display_id, cell_index)
            if len(outs) > 1 and made is outs[-1] and _is_continued(outs[-2], made):
                outs[-2]["text"] += outs.pop()["text"]
                return outs[-1]
            return made

    return Executor


def _is_continued(first: Any, second: Any) -> bool:
    """Tell whether one output goes on where the other has stopped."""
    names = [one["name"] for one in (first, second) if one["output_type"] == "stream"]
    return len(names) == 2 and names[0] == names[1]


def _read(path: Path) -> Any:
    """Read a notebook of any version; raises Trouble."""
    import nbformat

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    except OSError as error:
        raise Trouble(UNREADABLE, f"{path}: {error.strerror}") from None
    except RecursionError:
        raise Trouble(UNREADABLE, f"{path} is nested too deeply") from None
    except Exception as error:  # whatever is in the file
        words = " ".join(str(error).split())[:300]
        raise Trouble(UNREADABLE, f"{path} is no notebook: {words}") from None
    if not isinstance(notebook.get("cells"), list):
        raise Trouble(UNREADABLE, f"{path} is no notebook: it has no cells")
    return notebook


# Parameters, and outputs that are compared


def inject(notebook: Any, parameters: Mapping[str, Any]) -> int | None:
    """Put a cell with the values after the one that is tagged `parameters`; gives its index."""
    if not parameters:
        return None
    from nbformat.v4 import new_code_cell

    lines = [f"{name} = {literal(value)}" for name, value in parameters.items()]
    cell: Any = new_code_cell(  # type: ignore[no-untyped-call]
        "\n".join(lines), metadata={"tags": ["injected-parameters"]}
    )
    if (notebook.nbformat, notebook.nbformat_minor) < (4, 5):
        cell.pop("id", None)
    cells = notebook.cells
    for index, found in enumerate(cells):
        if "injected-parameters" in _tags(found):
            # Those of an earlier run.
            cells[index] = cell
            return None
    places = [index for index, found in enumerate(cells) if "parameters" in _tags(found)]
    place = places[0] + 1 if places else 0
    cells.insert(place, cell)
    return place


def literal(value: Any) -> str:
    """Write a value in Python."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {literal(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(literal, value))}]"
    if isinstance(value, float) and not math.isfinite(value):
        return f"float({str(value)!r})"
    return repr(value)


def _is_compared(cell: Any, which: str) -> bool:
    tags = {tag.lower().replace("nbval-", "") for tag in _tags(cell)}
    lines = {line.strip("# ").lower() for line in cell.source.splitlines() if line[:1] == "#"}
    if "ignore-output" in tags or "nbval_ignore_output" in lines or which == "none":
        return False
    return which == "all" or "check-output" in tags or "nbval_check_output" in lines


def differences(before: Sequence[Any], after: Sequence[Any]) -> str:
    """Say how two outputs differ, in what a person reads of them; empty: they do not."""
    was, now = _readable(before), _readable(after)
    if was == now:
        return ""
    lines = difflib.unified_diff(was, now, "stored", "now", lineterm="")
    return "\n".join(lines)


def _readable(outputs: Sequence[Any]) -> list[str]:
    """Give the lines of an output, without what differs from run to run."""
    printed, shown = "", ""
    for output in outputs:
        kind = output.get("output_type")
        if kind == "stream" and output.get("name") == "stdout":
            printed += _joined(output.get("text"))
        elif kind in ("execute_result", "display_data"):
            shown += _joined((output.get("data") or {}).get("text/plain")) + "\n"
        elif kind == "error":
            shown += f"{output.get('ename')}: {output.get('evalue')}\n"
    text = _ADDRESS.sub("0x…", plain(printed.rstrip("\n") + "\n" + shown))
    return [line.rstrip() for line in text.strip("\n").splitlines()]


def _joined(text: Any) -> str:
    return "".join(map(str, text)) if isinstance(text, list) else str(text or "")


# As a script


def as_script(notebook: Any, injected: int | None = None) -> tuple[str, str]:
    """Give a notebook as a script, or why there is none."""
    parts: list[str] = []
    for index, cell in enumerate(notebook.cells):
        number = number_of(index, injected)
        name = f"cell {number}" if number else "parameters"
        if cell.cell_type != "code" or "skip-execution" in _tags(cell):
            continue
        if "raises-exception" in _tags(cell):
            return "", f"{name} is expected to fail, which would end a script"
        try:
            compile(cell.source, "cell", "exec", dont_inherit=True)
        except (SyntaxError, ValueError):
            return "", f"{name} has magics, or is no plain Python for another reason"
        if "get_ipython" in cell.source:
            return "", f"{name} asks for IPython"
        parts.append(f"# {name}\n{cell.source.rstrip()}\n")
    if any(re.search(r"\bdisplay\(", part) for part in parts):
        parts.insert(0, "from IPython.display import display\n")
    return "\n".join(parts), ""


async def run_script(run: Run) -> None:
    """Run a notebook as a script too, with a log of its own."""
    order, result = run.order, run.result
    text, reason = as_script(run.notebook, result.injected)
    case = Case(0, "as a script")
    result.cases.append(case)
    python = shutil.which(order.kernel_python)
    if reason or python is None:
        case.state, case.reason = "skipped", reason or f"there is no {order.kernel_python}"
        result.notes.append(f"not run as a script: {case.reason}")
        return
    script, log = order.out / f"{order.stem}.py", order.out / f"{order.stem}.log"
    write(script, text)
    paths = filter(None, [str(order.folder), os.environ.get("PYTHONPATH", "")])
    environment = {
        **os.environ,
        MARKER: run._guardian.token,
        "PYTHONPATH": os.pathsep.join(paths),
        # No window, and nothing that waits for one.
        "MPLBACKEND": "Agg",
    }
    limit = run._limit()
    began = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        *(python, "-u", str(script.absolute())),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=order.folder,
        env=environment,
        start_new_session=True,
    )
    run._guardian.began(process.pid)
    output = bytearray()
    reading = asyncio.ensure_future(_pump(process, output))
    try:
        await asyncio.wait({reading}, timeout=limit)
        is_late = not reading.done()
        _kill_group(process.pid)
        code = await process.wait()
    finally:
        reading.cancel()
        _kill_group(process.pid)
        run._guardian.ended(process.pid)
    case.seconds = time.monotonic() - began
    written = bytes(output).decode(errors="replace")
    write(log, written)
    result.files += [script.name, log.name]
    if not is_late and code == 0:
        case.state = "passed"
        return
    how = f"took longer than {counted(limit or 0)}" if is_late else f"left with exit code {code}"
    last = next((line for line in reversed(written.splitlines()) if line.strip()), "")
    case.state = "failed"
    case.reason = f"as a script it {how}: {plain(last)[:200]}"
    case.details = plain(written[-2000:])
    if result.outcome == PASSED:
        outcome = TIMED_OUT if is_late else ERROR
        result.take(Trouble(outcome, case.reason, details=case.details))


async def _pump(process: asyncio.subprocess.Process, output: bytearray) -> None:
    """Keep what a script writes, and read on when that is too much; ends when it has ended."""
    assert process.stdout is not None
    ending = asyncio.ensure_future(process.wait())
    while not (ending.done() and process.stdout.at_eof()):
        reading = asyncio.ensure_future(process.stdout.read(65536))
        await asyncio.wait({reading, ending}, return_when=asyncio.FIRST_COMPLETED)
        if not reading.done():
            # What it has left behind may hold the line open.
            await asyncio.wait({reading}, timeout=0.2)
        if not reading.done():
            reading.cancel()
            return
        if len(output) < MOST_OUTPUT:
            output += reading.result()
        await asyncio.sleep(0)


# What is left behind


def write(path: Path, content: str | bytes) -> None:
    """Write a file as a whole, or not at all; raises OSError."""
    data = content.encode(errors="backslashreplace") if isinstance(content, str) else content
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            # Some file systems say only now that there was no room.
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise


def _as_text(notebook: Any) -> str:
    import nbformat

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        text: str = nbformat.writes(  # type: ignore[no-untyped-call]
            notebook, version=nbformat.NO_CONVERT
        )
    return text + "\n"


def leave(run: Run) -> None:
    """Write everything; what cannot be written is an outcome of its own."""
    order, result = run.order, run.result
    try:
        if run.notebook is not None:
            write(order.out / order.notebook.name, _as_text(run.notebook))
            result.files.insert(0, order.notebook.name)
            for _, name, data in pictures_of(run.notebook, order.stem, result.injected):
                write(order.out / name, data)
                result.files.append(name)
            if order.html or order.pdf:
                _leave_pages(run)
    except OSError as error:
        result.outcome, result.cell = CANNOT_WRITE, None
        before = f"; before that: {result.reason}" if result.reason else ""
        place = error.filename or order.out
        result.reason = f"cannot write {place}: {error.strerror}{before}"
        for name in result.files:
            # Half of it would look like all of it.
            with contextlib.suppress(OSError):
                (order.out / name).unlink()
        result.files = []
    finally:
        _leave_results(result)


def _leave_pages(run: Run) -> None:
    order, result = run.order, run.result
    page = order.out / f"{order.stem}.html"
    write(page, page_of(run.notebook, result))
    result.files.append(page.name)
    if order.pdf:
        try:
            write(order.out / f"{order.stem}.pdf", pdf_of(run.notebook, page))
            result.files.append(f"{order.stem}.pdf")
        except Trouble as trouble:
            result.notes.append(trouble.reason)
            if result.outcome == PASSED:
                result.take(trouble)


def _leave_results(result: Result) -> None:
    """Write the small files, by which others know."""
    order = result.order
    try:
        if order.junit is not None:
            write(order.junit, junit_of(result))
        write(order.out / "outcome.json", json.dumps(result.as_dict(), indent=1) + "\n")
    except OSError as error:
        if result.outcome != CANNOT_WRITE:
            result.reason = f"cannot write {error.filename or order.out}: {error.strerror}"
        result.outcome = CANNOT_WRITE


def junit_of(result: Result) -> bytes:
    """Give a JUnit file with a case for each cell."""
    cases = list(result.cases)
    if result.outcome != PASSED and all(case.state != "failed" for case in cases):
        # Nothing that a cell has done.
        cases.append(
            Case(0, result.outcome, "failed", reason=result.reason, details=result.details)
        )
    states = [case.state for case in cases]
    suite = ElementTree.Element(
        "testsuite",
        name=_NO_XML.sub("?", result.order.stem),
        tests=str(len(cases)),
        failures=str(states.count("failed")),
        errors="0",
        skipped=str(states.count("skipped")),
        time=f"{result.seconds:.3f}",
    )
    sources = _sources(result)
    for case in cases:
        title = f"cell {case.cell}: {case.title}" if case.cell else case.title
        element = ElementTree.SubElement(
            suite,
            "testcase",
            classname=_NO_XML.sub("?", result.order.stem),
            name=_NO_XML.sub("?", title),
            time=f"{case.seconds:.3f}",
        )
        if case.state == "failed":
            text = "\n\n".join(
                filter(None, [case.reason, sources.get(case.cell), case.details[-2000:]])
            )
            fault = ElementTree.SubElement(
                element,
                "failure",
                message=_NO_XML.sub("?", case.reason),
                type=_NO_XML.sub("?", result.outcome),
            )
            fault.text = _NO_XML.sub("?", text)
        elif case.state in ("skipped", "not run"):
            ElementTree.SubElement(
                element, "skipped", message=_NO_XML.sub("?", case.reason or "not run")
            )
    root = ElementTree.Element("testsuites")
    root.append(suite)
    whole: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return whole


def _sources(result: Result) -> dict[int, str]:
    """Give the sources of the cells that failed, with line numbers as tracebacks have them."""
    try:
        notebook = _read(result.order.notebook)
    except Trouble:
        return {}
    found = {}
    for case in result.cases:
        if case.state == "failed" and 0 < case.cell <= len(notebook.cells):
            found[case.cell] = numbered(notebook.cells[case.cell - 1].source)
    return found


def numbered(source: str, most: int = 1500) -> str:
    """Give a source with the numbers of its lines."""
    lines = [f"{number:4} | {line}" for number, line in enumerate(source.splitlines(), 1)]
    text = "\n".join(lines)
    return text if len(text) <= most else text[:most] + "\n     | …"


def pictures_of(
    notebook: Any, stem: str, injected: int | None = None
) -> Iterator[tuple[int, str, bytes]]:
    """Give the pictures among the outputs: the index of the cell, a name for a file, the bytes."""
    kinds = {"image/png": "png", "image/jpeg": "jpg", "image/svg+xml": "svg", "image/gif": "gif"}
    for index, cell in enumerate(notebook.cells):
        number = 0
        for output in cell.get("outputs") or ():
            for kind, suffix in kinds.items():
                data = (output.get("data") or {}).get(kind)
                if not data:
                    continue
                number += 1
                text = _joined(data)
                content = text.encode()
                if suffix != "svg":
                    try:
                        content = base64.b64decode(text)
                    except ValueError:
                        continue
                cell_number = number_of(index, injected)
                yield index, f"{stem}-cell{cell_number}-{number}.{suffix}", content


# A page of HTML. Nothing in it is fetched from anywhere, and nothing in it is run.

_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; font-src data:"
_STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --paper: #fff; --soft: #f4f6f8;
  --line: #d5dbe1; --good: #1a7f4b; --bad: #c0303a; --mild: #8a6100; --key: #7a3e9d;
  --text: #22663b; --note: #66707a; }
@media (prefers-color-scheme: dark) { :root { --ink: #dfe5ec; --paper: #14181d; --soft: #1d232a;
  --line: #36404a; --good: #5cc98f; --bad: #ff8088; --mild: #e0b050; --key: #cf9df0;
  --text: #8fd3a5; --note: #98a3ae; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 60rem; margin: 0 auto; padding: 1rem; }
h1.verdict { font-size: 1.3rem; }
.passed { color: var(--good); } .failed { color: var(--bad); } .skipped { color: var(--mild); }
.cell { margin: 1rem 0; } .what { color: var(--note); font-size: .85em; }
pre { background: var(--soft); border: 1px solid var(--line); border-radius: 4px;
  padding: .5rem .7rem; overflow-x: auto; font: 13px/1.45 ui-monospace, monospace;
  margin: .3rem 0; white-space: pre-wrap; overflow-wrap: anywhere; }
.out pre { background: none; } .broken > pre.source { border-color: var(--bad); }
.out pre.error { border-left: 4px solid var(--bad); }
img { max-width: 100%; background: #fff; } .out { overflow-x: auto; }
table { border-collapse: collapse; }
td, th { border: 1px solid var(--line); padding: .2rem .5rem; }
.k, .kn, .ow, .kc, .kd { color: var(--key); font-weight: 600; }
.s, .s1, .s2, .sd, .sa, .si { color: var(--text); }
.c, .c1, .ch { color: var(--note); font-style: italic; }
@media print { .cell { break-inside: avoid-page; } }
"""


def page_of(notebook: Any, result: Result) -> str:
    """Give the executed notebook as a page."""
    tone = "passed" if result.outcome == PASSED else "failed"
    title, outcome = html.escape(result.order.notebook.name), html.escape(result.outcome)
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{title}: {outcome}</title><style>{_STYLE}</style></head><body>",
        f'<h1 class="verdict">{title}: <span class="{tone}">{outcome}</span></h1>',
    ]
    if result.reason:
        parts.append(f"<p>{html.escape(result.reason)}</p>")
    states = {case.cell: case for case in result.cases if case.cell}
    for index, cell in enumerate(notebook.cells):
        case = states.get(number_of(index, result.injected))
        parts.append(_cell_html(cell, case, result.order.folder))
    parts.append("</body></html>\n")
    return "\n".join(parts)


def _cell_html(cell: Any, case: Case | None, folder: Path) -> str:
    if cell.cell_type == "markdown":
        return f'<div class="cell text">{_markdown(cell, folder)}</div>'
    if cell.cell_type != "code":
        return f'<div class="cell"><pre>{html.escape(cell.source)}</pre></div>'
    about = ""
    if case is not None:
        seconds = f", {case.seconds:.2f} s" if case.seconds else ""
        reason = f": {html.escape(case.reason)}" if case.reason else ""
        about = (
            f'<div class="what">cell {case.cell} <span class="{html.escape(case.state)}">'
            f"{html.escape(case.state)}</span>{seconds}{reason}</div>"
        )
    broken = " broken" if case is not None and case.state == "failed" else ""
    outputs = "\n".join(_output_html(output) for output in cell.get("outputs") or ())
    source = f'<pre class="source">{_highlighted(cell.source)}</pre>'
    return f'<div class="cell code{broken}">{about}{source}<div class="out">{outputs}</div></div>'


def _highlighted(source: str) -> str:
    try:
        from pygments import highlight  # type: ignore[import-untyped]
        from pygments.formatters.html import HtmlFormatter  # type: ignore[import-untyped]
        from pygments.lexers.python import PythonLexer  # type: ignore[import-untyped]
    except ImportError:
        return html.escape(source)
    text: str = highlight(source, PythonLexer(stripnl=False), HtmlFormatter(nowrap=True))
    return text.rstrip("\n")


def _markdown(cell: Any, folder: Path) -> str:
    try:
        import mistune
    except ImportError:
        return f"<pre>{html.escape(cell.source)}</pre>"
    source = re.sub(
        r"\]\(([^)\s]+)", lambda found: f"]({_embedded(found[1], cell, folder)}", cell.source
    )
    # Whatever is HTML in it is shown, not believed.
    text = mistune.create_markdown(escape=True, plugins=["table", "strikethrough"])(source)
    return str(text)


def _embedded(address: str, cell: Any, folder: Path) -> str:
    """Give a picture as part of the page, if it is one that is at hand."""
    kinds = {".png": "png", ".jpg": "jpeg", ".jpeg": "jpeg", ".gif": "gif"}
    if address.startswith("attachment:"):
        for kind, data in (cell.get("attachments") or {}).get(address[11:], {}).items():
            return f"data:{kind};base64,{_joined(data)}"
    path = folder / address
    kind = kinds.get(path.suffix.lower())
    with contextlib.suppress(OSError, ValueError):
        if kind and "://" not in address and path.stat().st_size < 2_000_000:
            return f"data:image/{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"
    return address


def _output_html(output: Any) -> str:
    kind = output.get("output_type")
    if kind == "stream":
        return f"<pre>{html.escape(readable(_joined(output.get('text'))))}</pre>"
    if kind == "error":
        lines = plain("\n".join(map(str, output.get("traceback") or ())))
        text = lines or f"{output.get('ename')}: {output.get('evalue')}"
        return f'<pre class="error">{html.escape(text)}</pre>'
    data = output.get("data") or {}
    for picture in ("image/png", "image/jpeg", "image/gif"):
        if picture in data:
            content = "".join(_joined(data[picture]).split())
            return f'<img alt="" src="data:{picture};base64,{html.escape(content)}">'
    if "image/svg+xml" in data:
        # As a picture, not as a part of the page: it cannot reach outside of itself.
        content = base64.b64encode(_joined(data["image/svg+xml"]).encode()).decode()
        return f'<img alt="" src="data:image/svg+xml;base64,{content}">'
    if "text/html" in data:
        return _joined(data["text/html"])
    return f"<pre>{html.escape(plain(_joined(data.get('text/plain'))))}</pre>"


# PDF


def find_browser() -> str:
    """Give a Chromium that prints; empty if there is none."""
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    return next(filter(None, map(shutil.which, names)), "")


def can_make_pdf() -> bool:
    return bool(find_browser()) or importlib.util.find_spec("typst") is not None


def pdf_of(notebook: Any, page: Path) -> bytes:
    """Give a page as PDF; raises Trouble."""
    browser = find_browser()
    return _printed(browser, page) if browser else _typeset(notebook)


def _printed(browser: str, page: Path) -> bytes:
    with tempfile.TemporaryDirectory(prefix="rankwise-pdf-", ignore_cleanup_errors=True) as folder:
        made = Path(folder) / "page.pdf"
        process = subprocess.Popen(
            [
                *(
                    browser,
                    "--headless",
                    "--no-sandbox",
                    "--disable-gpu",
                    "--disable-dev-shm-usage",
                ),
                *("--no-first-run", f"--user-data-dir={folder}/profile", "--no-pdf-header-footer"),
                *(f"--print-to-pdf={made}", page.absolute().as_uri()),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            said = process.communicate(timeout=PDF_SECONDS)[1].decode(errors="replace")
        except subprocess.TimeoutExpired:
            said = f"it took longer than {counted(PDF_SECONDS)}"
        finally:
            _kill_group(process.pid)
            process.wait()
        if not made.is_file():
            words = " ".join(said.split())[-300:]
            raise Trouble(CANNOT_WRITE, f"{browser} has made no PDF: {words}")
        return made.read_bytes()


_TYPST = """
#set page(margin: 2cm, numbering: "1")
#set text(size: 10pt)
#let cells = json(bytes(sys.inputs.cells))
#let boxed(body, ..more) = block(inset: 6pt, width: 100%, body, ..more)
#for cell in cells {
  if cell.kind == "text" { par(cell.text) }
  else if cell.kind == "source" {
    boxed(raw(cell.text, lang: "python", block: true), fill: luma(240))
  }
  else if cell.kind == "picture" { image(cell.text, width: 80%) }
  else { boxed(raw(cell.text, block: true)) }
}
"""


def _typeset(notebook: Any) -> bytes:
    """Set the notebook with typst; what comes from it is data, never typst's language."""
    try:
        import typst
    except ImportError:
        raise Trouble(
            CANNOT_WRITE, "PDF needs chromium, or pip install 'rankwise[report]'"
        ) from None
    with tempfile.TemporaryDirectory(prefix="rankwise-pdf-") as folder:
        cells: list[dict[str, str]] = []
        pictures: dict[int, list[str]] = {}
        for index, name, data in pictures_of(notebook, "picture"):
            if not name.endswith(".gif"):
                Path(folder, name).write_bytes(data)
                pictures.setdefault(index, []).append(name)
        for index, cell in enumerate(notebook.cells):
            kind = "source" if cell.cell_type == "code" else "text"
            cells.append({"kind": kind, "text": cell.source})
            text = "\n".join(_readable(cell.get("outputs") or ()))
            if text:
                cells.append({"kind": "output", "text": text})
            cells += [{"kind": "picture", "text": name} for name in pictures.get(index, ())]
        source = Path(folder, "notebook.typ")
        source.write_text(_TYPST, encoding="utf-8")
        made: bytes = typst.compile(source, sys_inputs={"cells": json.dumps(cells)}, format="pdf")
    return made


# Several notebooks


class Shop:
    """Runs notebooks: so many at a time, with the next kernel warmed up meanwhile."""

    def __init__(self, jobs: int, guardian: Guardian, *, is_quiet: bool) -> None:
        self._guardian = guardian
        self._is_quiet = is_quiet
        self._kernels = asyncio.Semaphore(jobs + 1)
        self._running = asyncio.Semaphore(jobs)
        self._turn = asyncio.Lock()
        self._shared: Kernel | None = None

    async def run(self, order: Order, *, reuse_kernel: bool = False) -> Result:
        """Run a notebook and write what became of it; raises nothing but CancelledError."""
        run = Run(order, self._guardian, self._is_quiet)
        if order.out.resolve() == order.folder.resolve():
            reason = (
                f"it would take the place of the notebook in {order.out}: choose another folder"
            )
            run.result.take(Trouble(CANNOT_WRITE, reason))
            return run.result
        try:
            order.out.mkdir(parents=True, exist_ok=True)
            for name in (order.notebook.name, f"{order.stem}.html", "outcome.json"):
                # What is there from another time must not be taken for ours.
                with contextlib.suppress(FileNotFoundError):
                    (order.out / name).unlink()
        except OSError as error:
            reason = f"cannot write {order.out}: {error.strerror}"
            run.result.take(Trouble(CANNOT_WRITE, reason))
            return run.result
        try:
            choice = run.read()
            if choice is not None:
                await (self._in_shared(run, choice) if reuse_kernel else self._in_own(run, choice))
            if order.as_script and run.result.outcome in (PASSED, ERROR, DIFFERS):
                await run_script(run)
        except asyncio.CancelledError:
            run._blame(Trouble(CANCELLED, "it was ended from outside"))
            leave(run)
            raise
        except Exception as error:  # our own fault must not look like a pass either
            where = traceback.format_exc()
            run._blame(Trouble(INTERNAL, f"{type(error).__name__}: {error}", details=where))
        leave(run)
        return run.result

    async def _in_own(self, run: Run, choice: Choice) -> None:
        async with self._kernels:
            kernel = await run.warm_up(choice)
            if kernel is None:
                return
            try:
                async with self._running:
                    await run.execute(kernel)
            finally:
                await kernel.end()

    async def _in_shared(self, run: Run, choice: Choice) -> None:
        """Run it where others have run before, and say so."""
        async with self._turn:
            kernel = self._shared
            if kernel is not None and kernel.choice.name == choice.name and not kernel.died.done():
                run.result.notes.append(
                    "the kernel was used before: what other notebooks have left behind is there"
                )
                run.log(run.result.notes[-1])
                await _tidy(kernel, run.order.folder)
            else:
                await self._end_shared()
                kernel = self._shared = await run.warm_up(choice)
            if kernel is not None:
                await run.execute(kernel)
                if run.result.outcome not in (PASSED, ERROR, DIFFERS, NEEDS_INPUT):
                    await self._end_shared()

    async def _end_shared(self) -> None:
        kernel, self._shared = self._shared, None
        if kernel is not None:
            await kernel.end()

    async def close(self) -> None:
        """End what is left."""
        await self._end_shared()


async def _tidy(kernel: Kernel, folder: Path) -> None:
    """Forget the names of the notebook before, as far as that is possible."""
    lines = f"%reset -f\nimport os as _os\n_os.chdir({str(folder)!r})\ndel _os"
    kernel.client.execute(lines, silent=True, store_history=False)
    with contextlib.suppress(Exception):
        await kernel.client.get_shell_msg(timeout=10)


def end_with_signals(task: asyncio.Future[Any], received: list[int]) -> None:
    """Cancel a task when this process is told to end."""
    loop = asyncio.get_running_loop()

    def stop(number: int) -> None:
        received.append(number)
        task.cancel()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, stop, number)


async def run_all(
    orders: Sequence[Order], jobs: int, guardian: Guardian, *, reuse_kernel: bool
) -> list[Result]:
    """Run the notebooks that were named in the command line."""
    shop = Shop(jobs, guardian, is_quiet=len(orders) > 1)
    tasks = [asyncio.ensure_future(shop.run(one, reuse_kernel=reuse_kernel)) for one in orders]
    try:
        results = []
        for task in tasks:
            results.append(await task)
            report(results[-1])
        return results
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await shop.close()


def report(result: Result) -> None:
    """Say what has become of a notebook."""
    words = f": {result.reason}" if result.reason else ""
    if result.details:
        say(result.details)
    for note in result.notes:
        say(f"note: {note}")
    say(f"{result.order.notebook}: {result.outcome} after {result.seconds:.2f} s{words}")


async def serve(jobs: int, guardian: Guardian) -> None:
    """Run what is asked for, line by line, until there is nobody left to ask."""
    shop = Shop(jobs, guardian, is_quiet=True)
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader(limit=2**24)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    tasks: set[asyncio.Task[None]] = set()

    async def answer(asked: dict[str, Any]) -> None:
        number, reuse = asked.pop("id"), asked.pop("reuse_kernel", False)
        order = Order(**{**asked, "notebook": Path(asked["notebook"]), "out": Path(asked["out"])})
        order.junit = order.out / "results.xml"
        result = await shop.run(order, reuse_kernel=reuse)
        source = _sources(result).get(result.cell or 0, "")
        say(json.dumps({"id": number, "source": source, **result.as_dict()}))

    try:
        while line := await lines.readline():
            task = asyncio.create_task(answer(json.loads(line)))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await shop.close()


# The command line


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Run notebooks, and say what became of them.")
    parser.add_argument("notebooks", nargs="*", type=Path, metavar="NOTEBOOK")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where results are written")
    parser.add_argument("--kernel-python", default="python", help="default: python, as in PATH")
    parser.add_argument("--timeout", type=float, help="seconds for a notebook; 0: no limit")
    parser.add_argument("--cell-timeout", type=float, help="seconds for each cell")
    parser.add_argument("--parameters", type=json.loads, default={}, metavar="JSON")
    parser.add_argument("--html", action="store_true", help="write a page of HTML too")
    parser.add_argument("--pdf", action="store_true", help="write a PDF too")
    parser.add_argument("--as-script", action="store_true", help="run it as a script too")
    parser.add_argument("--compare", choices=("tagged", "all", "none"), default="tagged")
    parser.add_argument("--junit", type=Path, metavar="FILE", help="default: results.xml")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="so many at a time")
    parser.add_argument("--reuse-kernel", action="store_true", help="one kernel: state leaks")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    return parser


def _orders(arguments: argparse.Namespace) -> list[Order]:
    """Give the notebooks to run; several have a folder each."""
    names: set[str] = set()
    orders = []
    for notebook in arguments.notebooks:
        out = arguments.out
        if len(arguments.notebooks) > 1:
            name, number = notebook.stem, 1
            while name in names:
                number += 1
                name = f"{notebook.stem}-{number}"
            names.add(name)
            out = out / name
        is_single = len(arguments.notebooks) == 1
        orders.append(
            Order(
                notebook=notebook,
                out=out,
                junit=arguments.junit if arguments.junit and is_single else out / "results.xml",
                kernel_python=arguments.kernel_python,
                timeout=arguments.timeout,
                cell_timeout=arguments.cell_timeout,
                parameters=arguments.parameters,
                html=arguments.html,
                pdf=arguments.pdf,
                as_script=arguments.as_script,
                compare=arguments.compare,
            )
        )
    return orders


def main(words: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; gives the exit code."""
    parser = _parser()
    arguments = parser.parse_args(words)
    if not arguments.serve and (not arguments.notebooks or arguments.out is None):
        parser.error("name a notebook, and a folder with --out")
    if not isinstance(arguments.parameters, dict):
        parser.error("--parameters must be an object of JSON")
    if arguments.pdf and not can_make_pdf():
        parser.error("--pdf needs chromium, or typst: pip install 'rankwise[report]'")
    if importlib.util.find_spec("nbclient") is None:
        remedy = "pip install nbclient there; here: pip install 'rankwise[notebooks]'"
        parser.error(f"{sys.executable} has no nbclient: {remedy}")
    guardian = Guardian()
    received: list[int] = []

    async def everything() -> list[Result]:
        task = asyncio.current_task()
        assert task is not None
        end_with_signals(task, received)
        if arguments.serve:
            await serve(arguments.jobs, guardian)
            return []
        return await run_all(
            _orders(arguments), arguments.jobs, guardian, reuse_kernel=arguments.reuse_kernel
        )

    try:
        results = asyncio.run(everything())
    except asyncio.CancelledError:
        return 128 + (received[0] if received else signal.SIGTERM)
    finally:
        guardian.close()
    return int(any(result.outcome != PASSED for result in results))


if __name__ == "__main__":
    sys.exit(main())
